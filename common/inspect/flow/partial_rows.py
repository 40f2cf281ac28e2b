"""How far a softmax is right whose row is shared out: shared_out(...), by what threads, or warps, store of it.

A thread, or a warp, that read some columns of a row hands on their largest entry, the sum of exp(entry - m) with some
m, or both. Which columns it read was recorded, and so were the numbers that it stored, so we know which of the two are
among them. See partial_states.py, which does the same for attention.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.console.words import Sentences
from common.inspect.flow.partial_states import WARP, is_among
from common.inspect.flow.run import Run, spread
from common.inspect.source_lines import Place
from common.testing.case import Case

NEAR = 60.0  # how far from the largest entry an m may lie, so that a sum relative to it is a number
MAXIMA, REPEATED, SUMS, AFTER = range(4)  # what is wrong first
KEYS = ("maxima", "repeated", "sums", "after")  # of what is said of them
says = Sentences(__file__)


@dataclass(frozen=True)
class SharedOut:
    """How far a row is right.

    Attributes:
        first: what is wrong first: MAXIMA, REPEATED, SUMS or AFTER.
        unit: whose numbers were looked at: "thread" or "warp".
        stores: the lines that store them.
        right, others: those of them at which every unit stores its maximum, and at which each stores something else.
        reads: the lines that read the entries of which a unit stores these.
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
        return says(KEYS[self.first], unit=self.unit)


def shared_out(run: Run, case: Case, inputs: Mapping[str, Tensor]) -> SharedOut | None:
    """None where that is unknown: no softmax, or units that have several rows, or store nothing."""
    if not case.is_softmax or len(inputs) != 1 or not run.sources.names:
        return None
    name = run.sources.names[0]
    x, trace = inputs[name], run.trace
    if x.dim() != 2:
        return None
    wrong = run.writer[np.flatnonzero(run.wrong & (run.writer >= 0))]
    block_of = trace.launch.astype(np.int64) * (int(trace.block.max()) + 1) + trace.block
    threads = int(trace.thread.max()) + 1
    for unit, width in (("thread", 1), ("warp", WARP)):
        unit_of = block_of * threads + trace.thread // width
        told, places, right, others, reads = [], [], [], [], []
        for block in spread(np.unique(block_of[wrong]).tolist()):
            one = _of_block(run, x.double(), run.slice_of(name), np.flatnonzero(block_of == block), unit_of)
            if one is None:
                break
            told.append(one[0])
            places += one[1]
            right.append(one[2])
            others.append(one[3])
            reads += one[4]
        else:
            if told:
                every = list(dict.fromkeys(places))
                sure = ([one for one in every if all(one in each for each in some)] for some in (right, others))
                return SharedOut(min(told), unit, every, *sure, list(dict.fromkeys(reads)))
    return None


def _of_block(
    run: Run, x: Tensor, here: slice, accesses: np.ndarray, unit_of: np.ndarray
) -> tuple[int, list[Place], list[Place], list[Place], list[Place]] | None:
    """The same of one block: one of the numbers above, all stores, those that every unit makes, of maxima and of other
    numbers, and the reads before them; None where one of its units stores nothing."""
    trace, cols = run.trace, x.size(1)
    shared = np.array([one.is_shared and one.unit == 4 for one in trace.memories])[trace.memory[accesses]]
    stores = accesses[trace.is_write[accesses] & shared]
    every = _finite(run, stores)
    if not stores.size:
        return None
    direct = accesses[~shared & ~trace.is_write[accesses]]
    reads = direct[(run.sources.of_read[direct] >= here.start) & (run.sources.of_read[direct] < here.stop)]
    largest_are_right = sums_are_right = read_once = True
    before: set[int] = set()  # the entries of the trace that read
    told = False
    entries = {int(one): stores[trace.entry[stores] == one] for one in np.unique(trace.entry[stores])}
    of_maximum, by_all = set(entries), set(entries)
    for unit in np.unique(unit_of[reads]):
        mine = reads[unit_of[reads] == unit]
        elements = np.unique(run.sources.of_read[mine] - here.start)
        stored = np.unique(_finite(run, stores[unit_of[stores] == unit]))
        rows = np.unique(elements // cols)
        if rows.size != 1 or not (unit_of[stores] == unit).any():
            return None
        row = x[int(rows[0])]
        first = mine[mine < stores[unit_of[stores] == unit].min()]
        read_once &= np.unique(run.sources.of_read[first]).size == first.size
        before |= {*np.unique(first).tolist()}
        entries_read = row[torch.from_numpy(elements % cols)]
        largest = float(entries_read.max())
        if not math.isfinite(largest):
            continue
        told = True
        largest_are_right &= is_among(largest, stored)
        for entry, several in entries.items():
            of_unit = _finite(run, several[unit_of[several] == unit])
            of_maximum -= set() if is_among(largest, of_unit) else {entry}
            by_all -= set() if of_unit.size else {entry}
        shifts = [largest, float(row.max()), *every[np.abs(every - largest) < NEAR].tolist()]
        sums_are_right &= any(is_among(float(torch.exp(entries_read - m).sum()), stored) for m in shifts)
    places = {one: trace.entry_of(int(several[0])).place for one, several in entries.items()}
    wrong_sums = SUMS if read_once else REPEATED
    first = MAXIMA if not largest_are_right else wrong_sums if not sums_are_right else AFTER
    sets = entries, sorted(of_maximum), sorted(by_all - of_maximum)
    read_at = dict.fromkeys(trace.entry_of(one).place for one in sorted(before))
    stored = ([places[one] for one in some if places[one]] for some in sets)
    return (first, *stored, [one for one in read_at if one]) if told else None


def _finite(run: Run, stores: np.ndarray) -> np.ndarray:
    """The numbers that these accesses stored."""
    stored = run.trace.value[stores].astype(np.uint32).view(np.float32).astype(np.float64)
    return np.unique(stored[np.isfinite(stored)])
