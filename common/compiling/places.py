"""Where the sources of a variant are.

    places_of("task2", Variant.STUDENT)     [Place("task2", kernels=(task2/attention_kernel.cu,), binding=...)]
    places_of("task2", Variant.TUNED)       two of them: common/kernels/softmax and common/kernels/gemm
    places_of("gemm", Variant.TUNED)        a room by itself

A place becomes one library. The operators of a variant are those of its places together.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.compiling.gaps import find_gaps, registered_operators
from common.compiling.manifest import read_manifest, tasks
from common.compiling.variant import Variant
from common.console.paths import ROOT

KERNELS = ROOT / "common" / "kernels"


@dataclass(frozen=True)
class Place:
    """The sources of one library.

    Attributes:
        name: "task2", or that of a room in common/kernels.
        kernels: the .cu files.
        binding: the binding.cpp that checks the arguments and registers the operators.
    """

    name: str
    kernels: tuple[Path, ...]
    binding: Path

    @property
    def operators(self) -> set[str]:
        """The names of the operators that the binding registers."""
        return registered_operators(self.binding)


def is_filled(task: str) -> bool:
    """Whether the student has filled every gap of the task's kernels."""
    return not find_gaps(kernel for place in places_of(task, Variant.STUDENT) for kernel in place.kernels)


def rooms() -> list[str]:
    """The rooms of common/kernels that hold kernels of their own."""
    return sorted(file.parent.name for file in KERNELS.glob("*/binding.cpp"))


def room(name: str) -> Place:
    """A room of common/kernels."""
    folder = KERNELS / name
    return Place(name, tuple(sorted(folder.glob("*.cu"))), folder / "binding.cpp")


def places_of(task: str, variant: Variant) -> list[Place]:
    """Where the sources of a task's variant are.

    Args:
        task: "task2", or the name of a room of common/kernels, which is tuned.
        variant: whose.

    Raises:
        ValueError: no such task or room, or a room with another variant than TUNED.
        FileNotFoundError: the task has no kernels, or none of this variant; a student's file is missing.
    """
    if task in rooms():
        if variant != Variant.TUNED:
            raise ValueError(f"variant is {variant.value!r}; common/kernels/{task} holds tuned kernels only")
        return [room(task)]
    if task not in tasks():
        raise ValueError(f"task is {task!r}; it must be one of {', '.join([*tasks(), *rooms()])}")
    manifest = read_manifest(task)
    if variant == Variant.TUNED:
        if not manifest.tuned:
            raise FileNotFoundError(f"{task} has no tuned versions")
        return [room(name) for name in manifest.tuned]
    folder = manifest.folder / "solution" if variant == Variant.SOLUTION else manifest.folder
    kernels = tuple(folder / name for name in manifest.kernels)
    for kernel in kernels:
        if not kernel.is_file():
            raise FileNotFoundError(
                f"{kernel.relative_to(ROOT)} is missing; python -m common.skeleton {task} writes the student's files"
            )
    return [Place(task, kernels, manifest.folder / "given" / "binding.cpp")]
