"""How far attention is right whose warps each take some of a row's keys: handed_on(...), by what they store.

A warp that read the keys of some positions hands on what an online softmax knows of them: a number m, mostly the
largest score, the sum of exp(score - m), and the rows of V weighted with these. Which keys it read was recorded, and
so were the numbers that it stored: so we know which of the three are among them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from common.console.words import Sentences
from common.inspect.flow.run import Run, spread
from common.inspect.source_lines import Place
from common.testing.case import Case, Scores

WARP = 32
CLOSE = 1e-4  # of a number: how far float32 may be away
UNITS = (1.0, math.log2(math.e))  # of scores: to base e or 2
SHARED, SCORES, SUMS, OUTPUTS, LARGEST, ALIKE, AFTER = range(7)  # what is wrong first
says = Sentences(__file__)
SAYS = [says(one) for one in ("shared", "scores", "sums", "outputs", "largest", "alike", "after")]


def handed_on(run: Run, case: Case, inputs: Mapping[str, Tensor]) -> tuple[int, list[Place]] | None:
    """Which of the above is wrong first, and the lines at which keys (for SCORES and ALIKE) or values are read, at
    which a warp stores (LARGEST), or none (AFTER); for SHARED those from which the function is called that reads.

    None where that is unknown: no attention, or warps that have several rows of queries, or store nothing.
    """
    of = case.scores or (case.stages and Scores(lambda **given: case.stages(**given)["S"], case.keys, case.values))
    if not of or any(name not in run.sources.first for name in ("query", of.keys, of.values)):
        return None
    doubles = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    scores = of.of(**doubles)
    trace, found = run.trace, []
    warps = (trace.launch.astype(np.int64) * (int(trace.block.max()) + 1) + trace.block) * WARP + trace.thread // WARP
    wrong = run.writer[np.flatnonzero(run.wrong & (run.writer >= 0))]
    blocks = set(zip(trace.launch[wrong].tolist(), trace.block[wrong].tolist(), strict=True))
    mine = [
        int(warps[first])
        for first in np.unique(warps, return_index=True)[1]
        if (int(trace.launch[first]), int(trace.block[first])) in blocks
    ]
    if _share_keys(run, of, inputs, [np.flatnonzero(warps == warp) for warp in mine]):
        of_values = trace.memory == run.sources.memory_of[of.values]
        places = _places(run, np.flatnonzero(of_values & ~trace.is_write))
        return SHARED, [called for one in places for called in one.callers or (one,)]
    for warp in spread(mine):
        one = _of_warp(run, of, scores, doubles, np.flatnonzero(warps == warp))
        if one is not None:
            found.append(one)
    if not found:
        return None
    first = min(found)
    if first == AFTER:
        return first, []
    if first == LARGEST and _has_output(run, of, scores, doubles, sorted(blocks)[0]):
        first = ALIKE
    read = run.sources.memory_of[of.keys if first in (SCORES, ALIKE) else of.values]
    of_input = np.flatnonzero((trace.memory == read) & ~trace.is_write)
    if first == LARGEST:  # where the warps store
        shared = np.array([one.is_shared for one in trace.memories])[trace.memory]
        of_input = np.flatnonzero(trace.is_write & shared & np.isin(warps, mine))
    return first, _places(run, of_input)


def _places(run: Run, accesses: np.ndarray) -> list[Place]:
    """The lines of these accesses."""
    first = accesses[np.unique(run.trace.entry[accesses], return_index=True)[1]]
    return [place for one in first if (place := run.trace.entry_of(int(one)).place)]


def _share_keys(run: Run, of: Scores, inputs: Mapping[str, Tensor], warps: list[np.ndarray]) -> bool:
    """Whether two warps of a block, which have the same row of queries, read the same elements of the values."""
    read: dict[tuple[int, int, int], set[int]] = {}
    here = run.slice_of(of.values)
    for accesses in warps:
        row = _rows(run, accesses, "query", inputs["query"].size(-1))
        elements = run.sources.of_read[accesses[run.trace.memory[accesses] == run.sources.memory_of[of.values]]]
        mine = set(elements[(elements >= here.start) & (elements < here.stop)].tolist())
        if row.size != 1:
            return False
        block = int(run.trace.launch[accesses[0]]), int(run.trace.block[accesses[0]]), int(row[0])
        if mine & read.setdefault(block, set()):
            return True
        read[block] |= mine
    return False


def _of_warp(run: Run, of: Scores, scores: Tensor, inputs: Mapping[str, Tensor], accesses: np.ndarray) -> int | None:
    """The same of one warp."""
    both, stored = _read_by(run, of, scores, inputs, accesses), _stored_by(run, accesses)
    if both is None or not stored.size:
        return None
    s, v = both
    largest, told = float(s.max()), SCORES
    is_largest = any(is_among(largest * unit, stored) for unit in UNITS)
    for unit in UNITS:
        near = stored[np.abs(stored / unit - largest) < 60]
        for m in [largest, *(near / unit).tolist()]:
            p = torch.exp(s - m)
            has_sum, has_output = is_among(float(p.sum()), stored), _are_among(p @ v, stored)
            if has_sum and has_output:
                return AFTER if is_largest or m != largest else LARGEST
            told = max(told, OUTPUTS if has_sum and s.numel() > 1 else SUMS if has_output else SCORES)
    return max(told, SUMS) if is_largest else told


def _has_output(run: Run, of: Scores, scores: Tensor, inputs: Mapping[str, Tensor], where: tuple[int, int]) -> bool:
    """Whether a block stores what attention to the keys that it read gives, in what is not the output of the case."""
    launch, block = where
    accesses = np.flatnonzero((run.trace.launch == launch) & (run.trace.block == block))
    both, stored = _read_by(run, of, scores, inputs, accesses), _stored_by(run, accesses)
    return both is not None and bool(stored.size) and _are_among(torch.softmax(both[0], 0) @ both[1], stored)


def _read_by(
    run: Run, of: Scores, scores: Tensor, inputs: Mapping[str, Tensor], accesses: np.ndarray
) -> tuple[Tensor, Tensor] | None:
    """The scores [keys] and the values [keys, head_dim] of the keys that these accesses read, of one row of queries."""
    query, value = inputs["query"], inputs[of.values]
    row = _rows(run, accesses, "query", query.size(-1))
    keys = _rows(run, accesses, of.values, value.size(-1))
    keys = keys if keys.size else _rows(run, accesses, of.keys, inputs[of.keys].size(-1))
    if row.size != 1 or not keys.size or query.dim() != 4 or value.dim() != 4:
        return None
    of_scores = scores.expand(query.shape[0], query.shape[1], query.shape[2], value.size(2)).reshape(-1, value.size(2))
    matrix, positions = np.unique(keys // value.size(2)), torch.from_numpy(keys % value.size(2))
    s, v = of_scores[int(row[0])][positions], value.reshape(-1, *value.shape[2:])[int(matrix[0])][positions]
    return (s, v) if matrix.size == 1 and bool(torch.isfinite(s).all()) else None


def _stored_by(run: Run, accesses: np.ndarray) -> np.ndarray:
    """The numbers that these accesses store, but for those of the output, in order."""
    own = run.trace.is_write[accesses] & ~run.is_store[accesses]
    units = np.array([one.unit for one in run.trace.memories])[run.trace.memory[accesses]]
    stored = run.trace.value[accesses[own & (units == 4)]].astype(np.uint32).view(np.float32).astype(np.float64)
    return np.unique(stored[np.isfinite(stored)])


def _rows(run: Run, accesses: np.ndarray, name: str, width: int) -> np.ndarray:
    """The rows of an input of which these accesses read something; from the input itself, if any does."""
    direct = accesses[run.trace.memory[accesses] == run.sources.memory_of[name]]
    here, reads = run.slice_of(name), run.sources.of_read[direct if direct.size else accesses]
    return np.unique((reads[(reads >= here.start) & (reads < here.stop)] - here.start) // width)


def is_among(number: float, stored: np.ndarray, least: float = 1e-3) -> bool:
    """Whether a number is among these, which are in order; what is smaller than `least` as precisely as that."""
    at = np.searchsorted(stored, number)
    near = stored[max(0, at - 1) : at + 1]
    return bool((np.abs(near - number) <= CLOSE * max(least, abs(number))).any())


def _are_among(numbers: Tensor, stored: np.ndarray) -> bool:
    least = 0.01 * float(numbers.abs().max())
    return all(is_among(one, stored, least) for one in numbers.tolist())
