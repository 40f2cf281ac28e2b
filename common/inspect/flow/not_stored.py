"""Elements of the output that no thread wrote, or that a thread wrote and should not have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor

from common.console.words import counted
from common.inspect.findings.model import Finding
from common.inspect.flow.run import Run, finding_of


def not_stored(run: Run) -> Finding | None:
    """Elements that no thread stored."""
    left = np.flatnonzero((run.writer < 0) & run.wrong)
    if not left.size:
        return None
    stores = run.writer[run.writer >= 0]
    stored = f"{left.size:,} of the {run.wrong.size:,} elements of the result are never stored, the first is "
    stored += f"{run.out_said(left[:1])}."
    if not stores.size:
        return None
    trace = run.trace
    every = np.flatnonzero(run.is_store)
    if every.size > stores.size:
        stored += f" {counted(every.size, 'store')} went to the other {stores.size:,}."
    here = max(start for _, start in run.sources.outputs if start <= left[0])
    memory = next(memory for memory, start in run.sources.outputs if start == here)
    mine = stores[trace.memory[stores] == memory]
    stores = mine if mine.size else stores  # an output of several arrays: those to the one that lacks elements
    last = int(stores[np.lexsort((trace.thread[stores], trace.block[stores], trace.launch[stores]))[-1]])
    detail = f"{stored} The access shown is that of the last thread that stores: its index, the loop or the condition "
    detail += "around it, or the launch leaves them out."
    found = finding_of(run, "not_stored", last, "write", detail)
    return replace(found, byte_offset=int(left[0] - here) * found.element_bytes) if mine.size else found


def needlessly_stored(run: Run, ref: Tensor) -> Finding | None:
    """In an array that is changed in place: a store to an element that was right before."""
    kept = np.zeros(run.wrong.size, dtype=bool)
    of_memory = {run.sources.memory_of[name]: name for name in run.sources.names}
    for memory, start in run.sources.outputs:
        if memory in of_memory:
            before = run.inputs[of_memory[memory]].double().reshape(-1)
            kept[start : start + before.numel()] = before == ref.cpu().reshape(-1)[start : start + before.numel()]
    wrong = np.flatnonzero(run.wrong & kept & (run.writer >= 0))
    if not wrong.size:
        return None
    text = f"{run.out_said(wrong[:1])} must keep what it held before the call, and is overwritten here"
    text += f", and so are {wrong.size - 1:,} more." if wrong.size > 1 else "."
    return finding_of(run, "needlessly_stored", int(run.writer[wrong[0]]), "write", text)
