"""Determines how far the computation of a row shared by several warps or threads is correct, from the partial results
that each stores.

handed_on(run, case, inputs)     attention whose warps each process some of a row's keys
shared_out(run, case, inputs)    a softmax whose threads, or warps, each process some of a row's columns

A warp that read some keys passes on the online softmax state for them: m (usually the largest score), the sum of
exp(score - m), and the rows of V weighted by these. A thread or warp that read some columns of a softmax row passes on
the same without V. Since reads and stored values were recorded, we know which of these correct values were stored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.console.words import Sentences
from common.inspect.flow.run import Run, spread
from common.inspect.source_lines import Place
from common.testing.case import Case, Scores

WARP = 32
CLOSE = 1e-4  # relative float32 tolerance
UNITS = (1.0, math.log2(math.e))  # units of scores: base e or 2
NEAR = 60.0  # largest distance of m from the largest score for which a sum relative to it is finite
SHARED, SCORES, SUMS, OUTPUTS, LARGEST, ALIKE, AFTER, OTHERS = range(8)  # the first wrong item among what a warp stores
MAXIMA, REPEATED, ROW_SUMS, RELATIVE, BEHIND = range(5)  # the same for a softmax
says = Sentences(__file__)
SAYS = [says(one) for one in ("shared", "scores", "sums", "outputs", "largest", "alike", "after", "others")]
OF_ROWS = ("maxima", "repeated", "row sums", "relative", "behind")  # keys of the sentences for a softmax


def _places(run: Run, accesses: np.ndarray) -> list[Place]:
    """The lines of these accesses, without duplicates."""
    first = accesses[np.unique(run.trace.entry[accesses], return_index=True)[1]]
    return [place for one in first if (place := run.trace.place_of(one))]


def _calls_of(places: list[Place]) -> list[Place]:
    """The calls of the functions that contain these lines; a kernel's lines themselves."""
    return [called for one in places for called in one.callers or (one,)]


def _numbers(run: Run, stores: np.ndarray) -> np.ndarray:
    """The finite numbers stored by these accesses to 4-byte elements, sorted."""
    stored = run.trace.value[stores].astype(np.uint32).view(np.float32).astype(np.float64)
    return np.unique(stored[np.isfinite(stored)])


def _is_among(number: float, stored: np.ndarray, least: float = 1e-3) -> bool:
    """Whether a number is among these sorted ones; the tolerance is relative, but absolute below `least`."""
    at = np.searchsorted(stored, number)
    near = stored[max(0, at - 1) : at + 1]
    return bool((np.abs(near - number) <= CLOSE * max(least, abs(number))).any())


def _are_among(numbers: Tensor, stored: np.ndarray) -> bool:
    least = 0.01 * float(numbers.abs().max())
    return all(_is_among(one, stored, least) for one in numbers.tolist())


# ---- attention


def handed_on(run: Run, case: Case, inputs: Mapping[str, Tensor]) -> tuple[int, list[Place]] | None:
    """(the first wrong item, lines): the lines that read keys (for SCORES and ALIKE) or values, that store a warp's
    results (LARGEST), or none (AFTER); for SHARED and OTHERS, the calls of the function that reads.

    None if unknown: not attention, or warps that process several query rows or store nothing.
    """
    of = case.scores or (case.stages and Scores(lambda **given: case.stages(**given)["S"], case.keys, case.values))
    if not of or any(name not in run.sources.first for name in ("query", of.keys, of.values)):
        return None
    doubles = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    trace, warps = run.trace, run.trace.blocks * WARP + run.trace.thread // WARP
    attention = _Attention(run, of, of.of(**doubles), doubles)
    wrong = run.writer[np.flatnonzero(run.wrong & (run.writer >= 0))]
    first = np.unique(warps, return_index=True)[1]
    mine = warps[first[np.isin(trace.blocks[first], trace.blocks[wrong])]].tolist()
    accesses_of = {warp: np.flatnonzero(warps == warp) for warp in mine}
    places = _places(run, np.flatnonzero((trace.memory == run.sources.memory_of[of.values]) & ~trace.is_write))
    if attention.share_keys(list(accesses_of.values())):
        return SHARED, _calls_of(places)
    found = [told for warp in spread(mine) if (told := attention.of_warp(accesses_of[warp])) is not None]
    if not found:
        return None
    first = min(found)
    if first == AFTER:
        others = [attention.counts_others(one) for one in spread(np.unique(trace.blocks[wrong]).tolist())]
        return None if None in others else (OTHERS, _calls_of(places)) if any(others) else (first, [])
    if first == LARGEST and attention.is_right(np.flatnonzero(trace.blocks == trace.blocks[wrong].min())):
        first = ALIKE
    read = run.sources.memory_of[of.keys if first in (SCORES, ALIKE) else of.values]
    told_at = (trace.memory == read) & ~trace.is_write
    if first == LARGEST:  # the lines where warps store
        told_at = trace.is_write & trace.shared & np.isin(warps, mine)
    return first, _places(run, np.flatnonzero(told_at))


@dataclass
class _Attention:
    """A call of attention: which inputs are keys and values, and the correct scores."""

    run: Run
    of: Scores
    scores: Tensor
    inputs: Mapping[str, Tensor]

    def share_keys(self, warps: list[np.ndarray]) -> bool:
        """Whether two warps of a block, which process the same query row, read the same elements of V."""
        run, read = self.run, {}
        here, memory = run.slice_of(self.of.values), run.sources.memory_of[self.of.values]
        for accesses in warps:
            row = self._rows(accesses, "query")
            elements = run.sources.of_read[accesses[run.trace.memory[accesses] == memory]]
            mine = set(elements[(elements >= here.start) & (elements < here.stop)].tolist())
            if row.size != 1:
                return False
            before = read.setdefault((int(run.trace.blocks[accesses[0]]), int(row[0])), set())
            if mine & before:
                return True
            before |= mine
        return False

    def of_warp(self, accesses: np.ndarray) -> int | None:
        """The first wrong item among what a warp stores."""
        both, stored = self._read_by(accesses), self._stored_by(accesses)
        if both is None or not stored.size:
            return None
        s, v = both
        largest, told = float(s.max()), SCORES
        is_largest = any(_is_among(largest * unit, stored) for unit in UNITS)
        for unit in UNITS:
            near = stored[np.abs(stored / unit - largest) < NEAR]
            for m in [largest, *(near / unit).tolist()]:
                p = torch.exp(s - m)
                has_sum, has_output = _is_among(float(p.sum()), stored), _are_among(p @ v, stored)
                if has_sum and has_output:
                    return AFTER if is_largest or m != largest else LARGEST
                told = max(told, OUTPUTS if has_sum else SUMS if has_output else SCORES)
        return max(told, SUMS) if is_largest else told

    def is_right(self, block: np.ndarray) -> bool:
        """Whether a block stores the correct attention over the keys that it read, outside the case's output."""
        both, stored = self._read_by(block), self._stored_by(block)
        return both is not None and bool(stored.size) and _are_among(torch.softmax(both[0], 0) @ both[1], stored)

    def counts_others(self, block: int) -> bool | None:
        """Whether a block read keys on which none of its wrong elements depends, and whose exponentials are not
        negligible; None if that is unknown, or the keys that it read are too few."""
        run, names = self.run, (self.of.keys, self.of.values)
        accesses = np.flatnonzero(run.trace.blocks == block)
        both, wrong = self._read_by(accesses), np.flatnonzero(run.wrong & (run.writer >= 0))
        needed_of = run.needs.of(wrong[run.trace.blocks[run.writer[wrong]] == block]) if run.needs else {}
        if both is None or any(name not in needed_of for name in names):
            return None
        rows = [needed_of[name].view(-1, self.inputs[name].size(-1)).any(-1).nonzero() for name in names]
        keys, needed = self._rows(accesses, self.of.values), torch.cat(rows).numpy()
        keys = keys if keys.size else self._rows(accesses, self.of.keys)
        others = torch.from_numpy(~np.isin(keys, needed))
        counts = bool((torch.exp(both[0] - both[0].max()) > CLOSE)[others].any())
        return counts if np.isin(needed, keys).all() else None

    def _read_by(self, accesses: np.ndarray) -> tuple[Tensor, Tensor] | None:
        """The scores [keys] and the values [keys, head_dim] of the keys that these accesses read, for one query."""
        query, value = self.inputs["query"], self.inputs[self.of.values]
        row, keys = self._rows(accesses, "query"), self._rows(accesses, self.of.values)
        keys = keys if keys.size else self._rows(accesses, self.of.keys)
        if row.size != 1 or not keys.size or query.dim() != 4 or value.dim() != 4:
            return None
        count = value.size(2)
        of_scores = self.scores.expand(*query.shape[:3], count).reshape(-1, count)
        matrix, positions = np.unique(keys // count), torch.from_numpy(keys % count)
        s, v = of_scores[int(row[0])][positions], value.reshape(-1, *value.shape[2:])[int(matrix[0])][positions]
        return (s, v) if matrix.size == 1 and bool(torch.isfinite(s).all()) else None

    def _stored_by(self, accesses: np.ndarray) -> np.ndarray:
        """The numbers that these accesses store, except to the output."""
        trace = self.run.trace
        units = np.array([one.unit for one in trace.memories])[trace.memory[accesses]]
        return _numbers(self.run, accesses[trace.is_write[accesses] & ~self.run.is_store[accesses] & (units == 4)])

    def _rows(self, accesses: np.ndarray, name: str) -> np.ndarray:
        """The rows of an input that these accesses read; only direct reads of the input, if there are any."""
        run = self.run
        direct = accesses[run.trace.memory[accesses] == run.sources.memory_of[name]]
        here, reads = run.slice_of(name), run.sources.of_read[direct if direct.size else accesses]
        inside = reads[(reads >= here.start) & (reads < here.stop)]
        return np.unique((inside - here.start) // self.inputs[name].size(-1))


# ---- a softmax


@dataclass(frozen=True)
class SharedOut:
    """How far a row is correct.

    Attributes:
        first: the first wrong item: MAXIMA, REPEATED, ROW_SUMS, RELATIVE or BEHIND.
        unit: "thread" or "warp", whose partial results were examined.
        stores: the lines that store them.
        right, others: those where every unit stores its maximum, and those where each stores something else.
        reads: the lines that read the entries from which they are computed.
    """

    first: int
    unit: str
    stores: list[Place]
    right: list[Place]
    others: list[Place]
    reads: list[Place]

    @property
    def says(self) -> str:
        """The same in words."""
        return says(OF_ROWS[self.first], unit=self.unit)


def shared_out(run: Run, case: Case, inputs: Mapping[str, Tensor]) -> SharedOut | None:
    """The result for a softmax; None if unknown: not a softmax, or units that process several rows or store nothing."""
    if not case.is_softmax or len(inputs) != 1 or not run.sources.names:
        return None
    name = run.sources.names[0]
    x, trace = inputs[name].double(), run.trace
    if x.dim() != 2:
        return None
    wrong = run.writer[np.flatnonzero(run.wrong & (run.writer >= 0))]
    blocks = spread(np.unique(trace.blocks[wrong]).tolist())
    for unit, width in (("thread", 1), ("warp", WARP)):
        unit_of = trace.blocks * (int(trace.thread.max()) + 1) + trace.thread // width
        told = [_of_block(run, x, run.slice_of(name), np.flatnonzero(trace.blocks == one), unit_of) for one in blocks]
        if told and all(told):
            first, places, right, others, reads = zip(*told, strict=True)
            every, read_at = (list(dict.fromkeys(one for some in all_ for one in some)) for all_ in (places, reads))
            sure = ([one for one in every if all(one in each for each in some)] for some in (right, others))
            return SharedOut(min(first), unit, every, *sure, read_at)
    return None


def _of_block(
    run: Run, x: Tensor, here: slice, accesses: np.ndarray, unit_of: np.ndarray
) -> tuple[int, list[Place], list[Place], list[Place], list[Place]] | None:
    """The same for one block: one of the constants above; all stores; the stores made by every unit, of maxima and of
    other numbers; and the reads before them. None if one of its units stores nothing."""
    trace, cols = run.trace, x.size(1)
    units = np.array([one.unit for one in trace.memories])[trace.memory[accesses]]
    shared = trace.shared[accesses] & (units == 4)
    stores = accesses[trace.is_write[accesses] & shared]
    every = _numbers(run, stores)
    if not stores.size:
        return None
    direct = accesses[~shared & ~trace.is_write[accesses]]
    reads = direct[(run.sources.of_read[direct] >= here.start) & (run.sources.of_read[direct] < here.stop)]
    largest_are_right = sums_are_right = of_largest = read_once = True
    before: set[int] = set()  # the trace's entries that read
    told = False
    entries = {int(one): stores[trace.entry[stores] == one] for one in np.unique(trace.entry[stores])}
    of_maximum, by_all = set(entries), set(entries)
    for unit in np.unique(unit_of[reads]):
        mine, its = reads[unit_of[reads] == unit], stores[unit_of[stores] == unit]
        elements = np.unique(run.sources.of_read[mine] - here.start)
        stored, rows = _numbers(run, its), np.unique(elements // cols)
        if rows.size != 1 or not its.size:
            return None
        row = x[int(rows[0])]
        first = mine[mine < its.min()]
        read_once &= np.unique(run.sources.of_read[first]).size == first.size
        before |= {*np.unique(first).tolist()}
        entries_read = row[torch.from_numpy(elements % cols)]
        largest = float(entries_read.max())
        if not math.isfinite(largest):
            continue
        told = True
        largest_are_right &= _is_among(largest, stored)
        for entry, several in entries.items():
            of_unit = _numbers(run, several[unit_of[several] == unit])
            of_maximum -= set() if _is_among(largest, of_unit) else {entry}
            by_all -= set() if of_unit.size else {entry}
        shifts = [largest, float(row.max()), *every[np.abs(every - largest) < NEAR].tolist()]
        found = [_is_among(float(torch.exp(entries_read - m).sum()), stored) for m in shifts]
        sums_are_right &= any(found)
        of_largest &= any(found[:2])
    places = {one: trace.place_of(several[0]) for one, several in entries.items()}
    wrong_sums = ROW_SUMS if read_once else REPEATED
    after = BEHIND if of_largest else RELATIVE
    first = MAXIMA if not largest_are_right else wrong_sums if not sums_are_right else after
    sets = entries, sorted(of_maximum), sorted(by_all - of_maximum)
    read_at = dict.fromkeys(trace.place_of(one) for one in sorted(before))
    stored = ([places[one] for one in some if places[one]] for some in sets)
    return (first, *stored, [one for one in read_at if one]) if told else None
