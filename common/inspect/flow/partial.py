"""Determines how far attention whose warps each process some of a row's keys is correct, from what each warp stores:
handed_on(run, case, inputs).

A warp that read some keys passes on the online softmax state for them: m (usually the largest score), the sum of
exp(score - m), and the rows of V weighted by these. Since reads and stored values were recorded, we know which of these
correct values were stored.
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
says = Sentences(__file__)
SAYS = [says(one) for one in ("shared", "scores", "sums", "outputs", "largest", "alike", "after", "others")]


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
