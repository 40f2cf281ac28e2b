"""The locations of a variant's sources.

    places_of("task2", Variant.STUDENT)     [Place("task2", kernels=(task2/attention_kernel.cu,), binding=...)]
    places_of("task2", Variant.TUNED)       two places: common/kernels/softmax and common/kernels/gemm
    places_of("gemm", Variant.TUNED)        a single folder ("room") of common/kernels

Each place becomes one library; a variant has the operators of all its places.
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
        name: "task2", or the name of a folder in common/kernels.
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
    """The names of the folders of common/kernels that have a binding.cpp."""
    return sorted(file.parent.name for file in KERNELS.glob("*/binding.cpp"))


def room(name: str) -> Place:
    """The sources in a folder of common/kernels."""
    folder = KERNELS / name
    return Place(name, tuple(sorted(folder.glob("*.cu"))), folder / "binding.cpp")


def places_of(task: str, variant: Variant) -> list[Place]:
    """The locations of the sources of a task's variant.

    Args:
        task: "task2", or the name of a folder of common/kernels, whose variant is TUNED.
        variant: whose sources.

    Raises:
        ValueError: no such task or folder, or a folder with a variant other than TUNED.
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
