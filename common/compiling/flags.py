"""Compiler flags for nvcc and the host compiler."""

from __future__ import annotations

from common.console.paths import ROOT

LANGUAGE = "-std=c++20"
# For kernels in the simulator's plain build: large ones compile in a third of the time and run at half the speed; tests
# take longer to compile than to run. The other builds count instructions, which -Og makes too many.
QUICK = "-Og"
FAST_KERNELS = ROOT / "common" / "kernels"  # not watched (rewriter.py) in that build, which saves a third of its time
NVCC_FLAGS = [
    LANGUAGE,
    "-O3",
    "-lineinfo",
    "-Xptxas=-v",
    "-Wno-deprecated-gpu-targets",
    # torch's flags disable half's operators, which plain CUDA C++ has
    *(
        f"-U__CUDA_NO_{name}__"
        for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "HALF2_OPERATORS", "BFLOAT16_CONVERSIONS")
    ),
]
# A missing launcher should fail at link time, not at load time; and a compiler that links libstdc++ statically must not
# export its symbols, which would clash with torch's libstdc++
LINKER_FLAGS = ["-Wl,--no-undefined", "-Wl,--exclude-libs,ALL"]
# Unfilled gaps leave variables unused, which is not the student's mistake
UNFILLED_NVCC_FLAGS = ["-diag-suppress=177,550", "-Xcompiler=-Wno-unused"]


def gencode(arch: str, *further: str) -> str:
    """nvcc's flag for one architecture; `further` ones share its PTX, which then lacks sm_90a's extra features."""
    if not further:
        return f"-gencode=arch=compute_{arch.removeprefix('sm_')},code={arch}"
    return f"-gencode=arch=compute_{arch.removeprefix('sm_').rstrip('af')},code=[{','.join((arch, *further))}]"


def check_arch(arch: str) -> None:
    """ValueError unless it looks like sm_75, sm_80 or sm_90a."""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not (arch.startswith("sm_") and digits.isdigit() and len(digits) in (2, 3)):
        raise ValueError(f"arch is {arch!r}; it must look like sm_75, sm_80 or sm_90a")
