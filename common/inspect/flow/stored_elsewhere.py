"""Right answers that stand in the place of others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from common.inspect.findings.model import Finding
from common.inspect.flow.run import Run, finding_of
from common.inspect.made_of import made_of
from common.inspect.own_lines import owned

MOST_LINES = 10  # in which the number is made, which are reported
MATCHED = 0.9  # of the wrong elements must be others' right answers
FAR = 10  # as many tolerances from its own right answer: one that is slightly wrong is no other's


def stored_elsewhere(run: Run, out: Tensor, ref: Tensor, bound: float) -> Finding | None:
    """Where nearly all wrong elements hold the right answers of others, and these are far enough apart to be known."""
    wrong = np.flatnonzero(run.wrong)
    got, right = out.cpu().double().reshape(-1), ref.cpu().reshape(-1)
    if not bool(torch.isfinite(got[wrong]).all()) or not bool(torch.isfinite(right).all()):
        return None
    order = torch.argsort(right)
    steps = right[order].diff()
    apart = 2 * bound + 1e-5 * float(right.abs().max())
    at = torch.searchsorted(right[order], got[wrong]).clamp(1, right.numel() - 1) if right.numel() > 1 else None
    if at is None:
        return None
    nearer = torch.where((right[order[at]] - got[wrong]).abs() < (right[order[at - 1]] - got[wrong]).abs(), at, at - 1)
    hit = (right[order[nearer]] - got[wrong]).abs() <= apart
    alone = torch.ones(right.numel(), dtype=torch.bool)
    alone[1:] &= steps > 2 * apart
    alone[:-1] &= steps > 2 * apart
    hit &= (order[nearer] != torch.from_numpy(wrong)) & ((right[wrong] - got[wrong]).abs() > FAR * apart)
    sure = hit & alone[nearer]
    if float(hit.double().mean()) < MATCHED or int(sure.sum()) < max(4, 0.5 * len(wrong)):
        return None
    first = int(sure.nonzero()[0])
    element, belongs = int(wrong[first]), int(order[nearer[first]])
    if run.writer[element] < 0:
        return None
    here, there = (run.out_said(np.array([one])) for one in (element, belongs))
    text = f"{here} holds the right answer of {there}, and {int(sure.sum()):,} of the {len(wrong):,} wrong elements "
    text += "hold another element's. Either the index of the store is wrong, or what it was computed from belongs to "
    text += "that other element."
    place = run.trace.entry_of(int(run.writer[element])).place
    lines = owned(made_of(place, run.files)) if place else []
    lines = [one for one in lines if (one.file, one.line) != (place.file, place.line)]
    found = finding_of(run, "stored_elsewhere", int(run.writer[element]), "write", text)
    return replace(found, lines=tuple(lines[:MOST_LINES]))
