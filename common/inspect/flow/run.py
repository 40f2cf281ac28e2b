"""One call whose output is wrong, with all that is known of what flowed: Run; and findings about accesses of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from common.console.words import counted
from common.inspect.findings.model import Access, Finding
from common.inspect.flow.reached import Needs
from common.inspect.flow.sources import Sources
from common.inspect.flow.trace import Trace
from common.inspect.made_of import made_of
from common.inspect.own_lines import owned
from common.inspect.source_lines import Place

MOST_ELEMENTS = 8  # of a thread, among which one is looked for that shows it
MOST_THREADS = 8  # that are looked at


@dataclass
class Run:
    """All that is known of one call.

    Attributes:
        trace, sources: what was recorded, and which elements of inputs its reads deliver.
        needs: what the right answer depends on; None if that is unknown.
        inputs: by name, on the CPU.
        wrong: which of the output's elements are wrong, flat.
        writer: of each of them the access that wrote it last, -1 if none did.
        threads: whose each access is, see reached.py.
        launch: the first that counts as storing the output.
    """

    trace: Trace
    sources: Sources
    needs: Needs | None
    inputs: Mapping[str, Tensor]
    wrong: np.ndarray
    writer: np.ndarray
    threads: np.ndarray
    launch: int

    @functools.cached_property
    def files(self) -> list[str]:
        """The sources of which the recorded launches ran a line, and the .cu files that were compiled with them."""
        launches = self.trace.launches
        every = [entry.place.file for launch in launches for entry in launch.entries if entry.place]
        every += [launch.launch.file for launch in launches if launch.launch]
        return list(dict.fromkeys([*every, *(file for launch in launches for file in launch.files)]))

    @functools.cached_property
    def _stored(self) -> np.ndarray:
        return np.flatnonzero(self.writer >= 0)

    @functools.cached_property
    def wrong_threads(self) -> list[int]:
        """Those that stored a wrong element."""
        return list(dict.fromkeys(self.threads[self.writer[self._stored[self.wrong[self._stored]]]].tolist()))

    @functools.cached_property
    def right(self) -> list[int]:
        """Those all of whose elements are right."""
        every = self.threads[self.writer[self._stored]].tolist()
        return [one for one in dict.fromkeys(every) if one not in set(self.wrong_threads)]

    def stored_by(self, thread: int) -> np.ndarray:
        """The elements of the output that a thread stored."""
        return self._stored[self.threads[self.writer[self._stored]] == thread]

    def wrong_of(self, thread: int) -> np.ndarray:
        """Those of them that are wrong."""
        elements = self.stored_by(thread)
        return elements[self.wrong[elements]]

    def accesses_of(self, thread: int) -> np.ndarray:
        """All that a thread did."""
        return np.flatnonzero(self.threads == thread)

    @functools.cached_property
    def is_store(self) -> np.ndarray:
        """Which accesses write to the output."""
        of_output = np.isin(self.trace.memory, [memory for memory, _ in self.sources.outputs])
        return of_output & self.trace.is_write & (self.trace.launch >= self.launch)

    def slice_of(self, name: str) -> slice:
        """Where the elements of an input stand among those of all inputs."""
        first = self.sources.first[name]
        return slice(first, first + self.inputs[name].numel())

    def said(self, name: str, mask: np.ndarray) -> str:
        """Elements of an input in words."""
        return said(name, tuple(self.inputs[name].shape), mask)

    def delivered(self, read: int) -> str:
        """The element of an input that a read delivers, in words."""
        element, first = self.sources.of_read[read], self.sources.first
        name = next(one for one in reversed(self.sources.names) if first[one] <= element)
        return self.said(name, np.arange(self.inputs[name].numel()) == element - first[name])

    def made_at(self, place: Place | None) -> list[Place]:
        """The student's lines in which the number is made that is stored at a place, those that matter most first."""
        return owned(made_of(place, self.files)) if place else []

    def out_said(self, elements: Sequence[int]) -> str:
        """These elements of the output in words; where it is made of several arrays those in that of the first."""
        memory, start = max((one for one in self.sources.outputs if one[1] <= elements[0]), key=lambda one: one[1])
        array = self.trace.memories[memory].array
        mask = np.zeros(array.bytes // array.element_bytes, dtype=bool)
        inside = np.asarray(elements) - start
        mask[inside[(inside >= 0) & (inside < mask.size)]] = True
        return said(array.name or "the output", array.shape or (mask.size,), mask)


def which_depend(run: Run, thread: int, name: str, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first wrong element of a thread that depends on what is not there of an input, and on what it depends."""
    wrong = run.wrong_of(thread)
    for element in wrong[:MOST_ELEMENTS]:
        needed = run.needs.of([element])[name].numpy()
        if (needed & ~there).any():
            return np.array([element]), needed
    return wrong, run.needs.of(wrong)[name].numpy()


def spread(threads: list[int]) -> list[int]:
    """Some of them: the first ones, and others evenly."""
    step = max(1, len(threads) // (MOST_THREADS // 2))
    return list(dict.fromkeys([*threads[: MOST_THREADS // 2], *threads[::step]]))[:MOST_THREADS]


def access_of(run: Run, access: int, action: str) -> Access:
    """An access of the trace as a side of a finding."""
    trace = run.trace
    launch = trace.launches[trace.launch[access]]
    entry = trace.entry_of(access)
    block = _coordinates(int(trace.block[access]), launch.grid)
    return Access(action, entry.bytes, entry.place, block, _coordinates(int(trace.thread[access]), launch.block))


def said(name: str, shape: tuple[int, ...], mask: np.ndarray) -> str:
    """A set of elements as the smallest slice of a tensor that holds them, "key[0, 1, 16:32, :]"; where it holds others
    as well, with their count.

    Args:
        name: of the tensor.
        shape: of it.
        mask: which of its elements, bool [numel]; one at least.
    """
    chosen = mask.reshape(shape)
    ranges = []
    for axis, size in enumerate(shape):
        others = tuple(i for i in range(len(shape)) if i != axis)
        at = np.flatnonzero(chosen.any(others)) if others else np.flatnonzero(chosen)
        ranges.append((int(at[0]), int(at[-1]) + 1, size))
    count, whole = int(chosen.sum()), int(np.prod([stop - start for start, stop, _ in ranges]))
    text = f"{name}[{', '.join(map(_range, ranges))}]" if shape else name
    return text if count == whole else f"{counted(count, 'element')} of {text}"


def _range(one: tuple[int, int, int]) -> str:
    start, stop, size = one
    if stop - start == 1:
        return str(start)
    return ":" if stop - start == size else f"{start}:{stop}"


def _coordinates(number: int, size: tuple[int, int, int]) -> tuple[int, int, int]:
    x, y, _ = size
    return number % x, number // x % y, number // (x * y)


def finding_of(run: Run, kind: str, access: int, action: str, detail: str, more: Sequence[Access] = ()) -> Finding:
    """A finding about an access and the element that it touches."""
    trace = run.trace
    launch = trace.launches[trace.launch[access]]
    memory = trace.memories[trace.memory[access]]
    return Finding(
        kind,
        launch.kernel,
        launch.launch,
        memory.array.space,
        memory.array.name,
        memory.array.shape,
        memory.array.element_bytes,
        int(trace.element[access]) * memory.unit,
        accesses=(access_of(run, access, action), *more),
        detail=detail,
    )
