"""Stores to the output that are missing, needless, or at the wrong place.

not_stored(run)                         elements that no thread wrote
needlessly_stored(run, ref)             elements of an array modified in place that were correct before
stored_elsewhere(run, out, ref, bound)  elements with the correct answers of others
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from common.console.words import counted
from common.inspect.findings.model import Finding
from common.inspect.flow.run import Run, finding_of

MOST_LINES = 10  # reported lines that compute the value
MATCHED = 0.9  # fraction of the wrong elements that must be correct answers of others
FAR = 10  # minimum distance, in tolerances, from its own correct answer; otherwise it is just slightly wrong


def not_stored(run: Run) -> Finding | None:
    """Elements that no thread stored."""
    left = np.flatnonzero((run.writer < 0) & run.wrong)
    stores = run.writer[run.writer >= 0]
    if not left.size or not stores.size:
        return None
    stored = f"{left.size:,} of the {run.wrong.size:,} elements of the result are never stored, the first is "
    stored += f"{run.out_said(left[:1])}."
    trace = run.trace
    every = np.flatnonzero(run.is_store)
    if every.size > stores.size:
        stored += f" {counted(every.size, 'store')} went to the other {stores.size:,}."
    here = max(start for _, start in run.sources.outputs if start <= left[0])
    memory = next(memory for memory, start in run.sources.outputs if start == here)
    mine = stores[trace.memory[stores] == memory]
    stores = mine if mine.size else stores  # for an output of several arrays: stores to the incomplete one
    last = int(stores[np.lexsort((trace.thread[stores], trace.block[stores], trace.launch[stores]))[-1]])
    detail = f"{stored} The access shown is that of the last thread that stores: its index, the loop or the condition "
    detail += "around it, or the launch leaves them out."
    found = finding_of(run, "not_stored", last, "write", detail)
    return replace(found, byte_offset=int(left[0] - here) * found.element_bytes) if mine.size else found


def needlessly_stored(run: Run, ref: Tensor) -> Finding | None:
    """A store to an element that was correct before."""
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


def stored_elsewhere(run: Run, out: Tensor, ref: Tensor, bound: float) -> Finding | None:
    """Whether nearly all wrong elements have the correct answers of others, if these are distinguishable."""
    wrong = np.flatnonzero(run.wrong)
    got, right = out.cpu().double().reshape(-1)[wrong], ref.cpu().reshape(-1)
    if right.numel() < 2 or not bool(torch.isfinite(got).all()) or not bool(torch.isfinite(right).all()):
        return None
    order = torch.argsort(right)
    in_order = right[order]
    apart = 2 * bound + 1e-5 * float(right.abs().max())
    at = torch.searchsorted(in_order, got).clamp(1, right.numel() - 1)
    nearer = torch.where((in_order[at] - got).abs() < (in_order[at - 1] - got).abs(), at, at - 1)
    hit = (in_order[nearer] - got).abs() <= apart
    alone = torch.ones(right.numel(), dtype=torch.bool)
    alone[1:] &= in_order.diff() > 2 * apart
    alone[:-1] &= in_order.diff() > 2 * apart
    hit &= (order[nearer] != torch.from_numpy(wrong)) & ((right[wrong] - got).abs() > FAR * apart)
    sure = hit & alone[nearer]
    if float(hit.double().mean()) < MATCHED or int(sure.sum()) < max(4, 0.5 * len(wrong)):
        return None
    first = int(sure.nonzero()[0])
    element, belongs = int(wrong[first]), int(order[nearer[first]])
    if run.writer[element] < 0:
        return None
    here, there = run.out_said([element]), run.out_said([belongs])
    text = f"{here} holds the right answer of {there}, and {int(sure.sum()):,} of the {len(wrong):,} wrong elements "
    text += "hold another element's. Either the index of the store is wrong, or what it was computed from belongs to "
    text += "that other element."
    store = int(run.writer[element])
    place = run.trace.place_of(store)
    lines = [one for one in run.made_at(place) if one.at != place.at]
    return replace(finding_of(run, "stored_elsewhere", store, "write", text), lines=tuple(lines[:MOST_LINES]))
