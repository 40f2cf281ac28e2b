"""Run: a call with a wrong output and everything known about its data flow; and findings about its accesses."""

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
from common.inspect.replay.recording import coordinates
from common.inspect.source_lines import Place

MOST_ELEMENTS = 8  # per thread, searched for one that shows the mistake
MOST_THREADS = 8  # examined threads


@dataclass
class Run:
    """Everything known about one call.

    Attributes:
        trace, sources: the recording, and which input elements its reads deliver.
        needs: dependencies of the correct answer; None if unknown.
        inputs: by name, on the CPU.
        wrong: mask of the wrong output elements, flat.
        writer: for each output element, the access that wrote it last; -1 if none did.
        threads: the thread of each access, see reached.py.
        launch: the first launch that counts as storing the output.
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
        """The sources with lines that the recorded launches executed, and the .cu files compiled with them."""
        launches = self.trace.launches
        every = [entry.place.file for launch in launches for entry in launch.entries if entry.place]
        every += [launch.launch.file for launch in launches if launch.launch]
        return list(dict.fromkeys([*every, *(file for launch in launches for file in launch.files)]))

    @functools.cached_property
    def _stored(self) -> np.ndarray:
        return np.flatnonzero(self.writer >= 0)

    @functools.cached_property
    def wrong_threads(self) -> list[int]:
        """The threads that stored a wrong element."""
        return list(dict.fromkeys(self.threads[self.writer[self._stored[self.wrong[self._stored]]]].tolist()))

    @functools.cached_property
    def right(self) -> list[int]:
        """The threads whose elements are all correct."""
        every = self.threads[self.writer[self._stored]].tolist()
        return [one for one in dict.fromkeys(every) if one not in set(self.wrong_threads)]

    def stored_by(self, thread: int) -> np.ndarray:
        """The elements of the output that a thread stored."""
        return self._stored[self.threads[self.writer[self._stored]] == thread]

    def wrong_of(self, thread: int) -> np.ndarray:
        """The wrong elements that a thread stored."""
        elements = self.stored_by(thread)
        return elements[self.wrong[elements]]

    def accesses_of(self, thread: int) -> np.ndarray:
        """All accesses of a thread."""
        return np.flatnonzero(self.threads == thread)

    @functools.cached_property
    def is_store(self) -> np.ndarray:
        """Mask of the accesses that write to the output."""
        of_output = np.isin(self.trace.memory, [memory for memory, _ in self.sources.outputs])
        return of_output & self.trace.is_write & (self.trace.launch >= self.launch)

    def slice_of(self, name: str) -> slice:
        """The slice of an input's elements among those of all inputs."""
        first = self.sources.first[name]
        return slice(first, first + self.inputs[name].numel())

    def said(self, name: str, mask: np.ndarray) -> str:
        """Describes elements of an input."""
        return said(name, tuple(self.inputs[name].shape), mask)

    def delivered(self, read: int) -> str:
        """Describes the input element that a read delivers."""
        element, first = self.sources.of_read[read], self.sources.first
        name = next(one for one in reversed(self.sources.names) if first[one] <= element)
        return self.said(name, np.arange(self.inputs[name].numel()) == element - first[name])

    def made_at(self, place: Place | None) -> list[Place]:
        """The student's lines that compute the value stored at a place, most relevant first."""
        return owned(made_of(place, self.files)) if place else []

    def out_said(self, elements: Sequence[int]) -> str:
        """Describes these output elements; if the output consists of several arrays, those in the first one's array."""
        memory, start = max((one for one in self.sources.outputs if one[1] <= elements[0]), key=lambda one: one[1])
        array = self.trace.memories[memory].array
        mask = np.zeros(array.bytes // array.element_bytes, dtype=bool)
        inside = np.asarray(elements) - start
        mask[inside[(inside >= 0) & (inside < mask.size)]] = True
        return said(array.name or "the output", array.shape or (mask.size,), mask)


def which_depend(run: Run, thread: int, name: str, there: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first wrong element of a thread that depends on missing elements of an input, and its dependencies."""
    wrong = run.wrong_of(thread)
    for element in wrong[:MOST_ELEMENTS]:
        needed = run.needs.of([element])[name].numpy()
        if (needed & ~there).any():
            return np.array([element]), needed
    return wrong, run.needs.of(wrong)[name].numpy()


def spread(threads: list[int]) -> list[int]:
    """A sample: the first ones, and others evenly spaced."""
    step = max(1, len(threads) // (MOST_THREADS // 2))
    return list(dict.fromkeys([*threads[: MOST_THREADS // 2], *threads[::step]]))[:MOST_THREADS]


def access_of(run: Run, access: int, action: str) -> Access:
    """An access of the trace as a side of a finding."""
    trace = run.trace
    launch = trace.launches[trace.launch[access]]
    entry = trace.entry_of(access)
    block = coordinates(int(trace.block[access]), launch.grid)
    return Access(action, entry.bytes, entry.place, block, coordinates(int(trace.thread[access]), launch.block))


def said(name: str, shape: tuple[int, ...], mask: np.ndarray) -> str:
    """Describes a set of elements as the smallest slice that contains them, "key[0, 1, 16:32, :]", with their count if
    the slice contains others.

    Args:
        name: the tensor's name.
        shape: the tensor's shape.
        mask: the elements, bool [numel]; at least one.
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


def finding_of(run: Run, kind: str, access: int, action: str, detail: str, more: Sequence[Access] = ()) -> Finding:
    """A finding about an access and the element that it accesses."""
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
