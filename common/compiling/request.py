"""BuildRequest: what to build, and for which target.

BuildRequest("task2", "solution", backend="simulator")
BuildRequest("flash")                                       a folder of common/kernels
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from common.compiling.places import Place, places_of, rooms
from common.compiling.variant import Variant


@dataclass(frozen=True)
class BuildRequest:
    """What to build, and for which target.

    Attributes:
        task: "task2", or the name of a folder of common/kernels: "flash".
        variant: "student", "solution" or "tuned"; None: "student" for a task, "tuned" for common/kernels.
        backend: "auto", "cuda" or "simulator".
        arch: nvcc's target such as "sm_90a"; None: this machine's GPU. In the simulator, sm_90a enables wgmma and TMA.
        checked: use the simulator's checked build, which can detect races and bad accesses and count transactions.
        counted: use the simulator's build that counts each thread's work; excludes `checked`.
        sources: .cu files to build with the task's binding.cpp in place of its own.
        label: the variant's name for these: part of the build folder and of the operators' namespace.

    Raises:
        ValueError: no such variant, sources without a label, or both checked and counted.
    """

    task: str
    variant: Variant | str | None = None
    backend: str = "auto"
    arch: str | None = None
    checked: bool = False
    sources: Iterable[Path | str] | None = None
    label: str | None = None
    counted: bool = False

    def __post_init__(self) -> None:
        if self.variant is None:
            variant = Variant.TUNED if self.task in rooms() else Variant.STUDENT
        else:
            variant = Variant.of(self.variant)
        object.__setattr__(self, "variant", variant)
        if self.checked and self.counted:
            raise ValueError("checked and counted are True; there is no build that is both")
        if self.sources is not None:
            object.__setattr__(self, "sources", tuple(Path(source).resolve() for source in self.sources))
            if not self.label:
                raise ValueError("sources are given and label is not; other sources need a name of their own")

    @property
    def places(self) -> list[Place]:
        """The locations of the sources. Errors: see common.compiling.places.places_of.

        Raises:
            ValueError: sources for a variant of several places.
            FileNotFoundError: one of the sources is missing.
        """
        places = places_of(self.task, self.variant)
        if self.sources is None:
            return places
        if len(places) > 1:
            several = ", ".join(place.name for place in places)
            raise ValueError(
                f"sources are given, but {self.task} {self.variant} has several places: name one of {several}"
            )
        if missing := [str(source) for source in self.sources if not source.is_file()]:
            raise FileNotFoundError(f"no such source: {', '.join(missing)}")
        return [Place(places[0].name, self.sources, places[0].binding)]
