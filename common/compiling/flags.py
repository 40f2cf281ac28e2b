"""The flags that nvcc and the host compiler are given."""

from __future__ import annotations

import sys

LANGUAGE = "-std=c++20"
# For kernels in the simulator: a large one compiles in a third of the time and runs half as fast. Tests take less time
# to run kernels than to compile them.
QUICK = "-Og"
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
