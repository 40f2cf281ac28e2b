"""A value that is wrong although all its dependencies are present: where it is stored, and how it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from common.inspect.findings.model import Finding
from common.inspect.flow.partial import OTHERS, SAYS, SHARED, handed_on
from common.inspect.flow.run import Run, finding_of
from common.inspect.made_of import function_begin, is_head
from common.inspect.origins import deciding
from common.inspect.source_lines import Place
from common.testing.case import Case

MOST_LINES = 10  # reported lines
TOO_MANY = 20  # candidate lines; more would be useless


def wrong_value(run: Run, out: Tensor, ref: Tensor, case: Case) -> Finding | None:
    """The first wrong element with the lines that compute it; None if none of these is the student's."""
    stored = np.flatnonzero(run.wrong & (run.writer >= 0))
    if not stored.size:
        return None
    got, right = out.cpu().double().reshape(-1), ref.cpu().double().reshape(-1)
    finite = stored[torch.isfinite(got[stored]).numpy()]
    element = int((finite if finite.size else stored)[0])
    access = int(run.writer[element])
    place = run.trace.place_of(access)
    lines = run.made_at(place)
    if not lines:
        return None
    text = f"{run.out_said([element])} is stored here as {got[element]:.6g}; it should be {right[element]:.6g}. "
    singled = False
    above = [one for one in lines if one.at != place.at]
    if len(above) > MOST_LINES and (handed := handed_on(run, case, run.inputs)):
        text += SAYS[handed[0]] + " "
        above = _in_functions_of(handed[1] or [place], above)
        if handed[0] in (SHARED, OTHERS):
            above, singled = _loops_first(above, handed[1])
    else:  # loops that load data, or decide what is loaded, come after the computation
        above.sort(key=is_head)
    if len(above) > TOO_MANY:
        return None
    found = finding_of(run, "wrong_value", access, "write", text.strip())
    return replace(found, lines=tuple(above[:MOST_LINES]), singled=singled)


def _loops_first(lines: list[Place], reads: Sequence[Place]) -> tuple[list[Place], bool]:
    """The lines, first those that determine what the lines `reads` read, and whether there are any of these."""
    loops = {one.at for read in reads for one in deciding(read)}
    found = sorted(lines, key=lambda one: one.at not in loops)
    return found, bool(found) and found[0].at in loops


def _in_functions_of(places: Sequence[Place], lines: list[Place]) -> list[Place]:
    """The lines that are in a function with one of the places."""
    begins = {(place.file, function_begin(place)) for place in places}
    return [one for one in lines if (one.file, function_begin(one)) in begins]
