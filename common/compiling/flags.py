"""The flags that nvcc and the host compiler are given."""

from __future__ import annotations

import sys
from pathlib import Path

from common.console.paths import ROOT

LANGUAGE = "-std=c++20"
QUICK = "-Og"  # of a large kernel it takes a third of the time, and what is compiled runs half as fast
NVCC_FLAGS = [
    LANGUAGE,
    "-O3",
    "-lineinfo",
    "-Xptxas=-v",
    "-Wno-deprecated-gpu-targets",
    # torch's own flags take half's operators away; CUDA C++ without torch has them
    *(
        f"-U__CUDA_NO_{name}__"
        for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    ),
]
# A missing launcher should be the linker's error, not the loader's; and a compiler that links libstdc++
# statically must not mix its copy's symbols with torch's libstdc++
LINKER_FLAGS = ["-Wl,--no-undefined", "-Wl,--exclude-libs,ALL"] if sys.platform == "linux" else []
# What an unfilled gap leaves unused is no mistake of the student's
UNFILLED_NVCC_FLAGS = ["-diag-suppress=177,550", "-Xcompiler=-Wno-unused"]


def is_fast_kernel(source: Path) -> bool:
    """Whether it is in common/kernels, where there are hundreds of kernels: compiling them for the simulator takes
    longer than most of what is done with them, and so they are compiled with QUICK."""
    return source.is_relative_to(ROOT / "common" / "kernels")


def gencode(arch: str, *further: str) -> str:
    """nvcc's flag for one architecture; further ones are made of the same PTX, without what sm_90a has beyond sm_90."""
    if not further:
        return f"-gencode=arch=compute_{arch.removeprefix('sm_')},code={arch}"
    return f"-gencode=arch=compute_{arch.removeprefix('sm_').rstrip('af')},code=[{','.join((arch, *further))}]"


def check_arch(arch: str) -> None:
    """ValueError unless it looks like sm_75, sm_80 or sm_90a."""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not (arch.startswith("sm_") and digits.isdigit() and len(digits) in (2, 3)):
        raise ValueError(f"arch is {arch!r}; it must look like sm_75, sm_80 or sm_90a")
