"""The simulator's target architectures: the compute capability that kernels and host code see.

    target_of(arch)             Target("sm_90a", 900, True); None: SIMULATOR_ARCH, or sm_89
    target_for_program(texts)   for a program: sm_90a if it uses what only Hopper has

sm_89 is the default, because most kernels that choose a path by architecture have one for it that compiles and runs
faster here. Code for sm_90a sees __CUDA_ARCH__ 900 and __CUDA_ARCH_FEAT_SM90_ALL, and a device of compute capability
9.0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

_KNOWN = {"sm_89": (890, False), "sm_90": (900, False), "sm_90a": (900, True)}
DEFAULT = "sm_89"
_OF_HOPPER = re.compile(
    r"wgmma\.|cp\.(?:reduce\.)?async\.bulk|mbarrier\.(?:try_wait|arrive\.expect_tx)|setmaxnreg|griddepcontrol|elect\.sync|"
    r"barrier\.cluster|\bmapa\b|stmatrix\.|\b__cluster_dims__\b|\bthis_cluster\b|\bcudaLaunchAttributeClusterDimension\b|"
    r"\b__CUDA_ARCH_FEAT_SM90_ALL\b|\bCUtensorMap\b"
)


@dataclass(frozen=True)
class Target:
    """name: as in nvcc's -arch. number: __CUDA_ARCH__. has_features: whether sm_90a's, such as wgmma, are available."""

    name: str
    number: int
    has_features: bool

    @property
    def flags(self) -> list[str]:
        """Compiler flags; empty for the default target."""
        if self.name == DEFAULT:
            return []
        return [f"-DSIMULATOR_ARCH={self.number}", *(["-DCUDA_SIMULATOR_SM90A"] if self.has_features else [])]


def target_of(arch: str | None = None) -> Target:
    """The target of that name.

    Raises:
        ValueError: the simulator has no such target.
    """
    where = "arch" if arch is not None else "SIMULATOR_ARCH"
    name = arch if arch is not None else os.environ.get("SIMULATOR_ARCH") or DEFAULT
    if name not in _KNOWN:
        raise ValueError(f"{where} is {name!r}; the simulator runs code for {', '.join(_KNOWN)}")
    return Target(name, *_KNOWN[name])


def target_for_program(texts: Iterable[str]) -> Target:
    """sm_90a if the program's files use features that only it has, unless SIMULATOR_ARCH is set."""
    if not os.environ.get("SIMULATOR_ARCH") and any(_OF_HOPPER.search(text) for text in texts):
        return target_of("sm_90a")
    return target_of()
