"""A value that is wrong although all its dependencies are present: where it is stored, and how it is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from common.inspect.findings.model import Finding
from common.inspect.flow.partial import (
    BEHIND,
    MAXIMA,
    OTHERS,
    RELATIVE,
    REPEATED,
    ROW_SUMS,
    SAYS,
    SHARED,
    SharedOut,
    handed_on,
    shared_out,
)
from common.inspect.flow.reads import misses_nothing
from common.inspect.flow.run import Run, finding_of
from common.inspect.made_of import function_begin, is_head, made_of, members_at
from common.inspect.origins import deciding
from common.inspect.own_lines import owned
from common.inspect.source_lines import Place
from common.testing.case import Case

MOST_LINES = 10  # reported lines
MOST_BETWEEN = 14  # reported lines, if it is known where the values start to be wrong
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
    above, most = [one for one in lines if one.at != place.at], MOST_LINES
    if len(above) > MOST_LINES and (handed := handed_on(run, case, run.inputs)):
        text += SAYS[handed[0]] + " "
        above = _in_functions_of(handed[1] or [place], above)
        if handed[0] in (SHARED, OTHERS):
            above, singled = _loops_first(above, handed[1])
    elif len(above) > MOST_LINES and (shared := shared_out(run, case, run.inputs)):
        text += shared.says + " "
        above, most = _beside(shared, above, run.files), MOST_BETWEEN
        singled = shared.first == ROW_SUMS and bool(shared.right and shared.others and above)
        if shared.first == REPEATED:
            above, singled = _loops_first(above, shared.reads)
    else:  # loops that load data, or decide what is loaded, come after the computation
        above.sort(key=is_head)
        if misses_nothing(run, element):
            text += "All inputs that it depends on reach this thread, though perhaps not each line that needs them. "
    if len(above) > TOO_MANY:
        return None
    found = finding_of(run, "wrong_value", access, "write", text.strip())
    return replace(found, lines=tuple(above[:most]), singled=singled)


def _loops_first(lines: list[Place], reads: Sequence[Place]) -> tuple[list[Place], bool]:
    """The lines, first those that determine what the lines `reads` read, and whether there are any of these."""
    loops = {one.at for read in reads for one in deciding(read)}
    found = sorted(lines, key=lambda one: one.at not in loops)
    return found, bool(found) and found[0].at in loops


def _beside(shared: SharedOut, lines: list[Place], files: list[str]) -> list[Place]:
    """The lines in which the values that threads store become wrong or, if these are correct, the other lines."""
    if shared.first in (RELATIVE, BEHIND):
        made = {one.at for store in shared.stores for one in made_of(store, files)}
        made -= {one.at for one in shared.stores}
        return [one for one in lines if one.at not in made]
    every = list(dict.fromkeys(one for store in shared.stores for one in owned(made_of(store, files))))
    of_maximum = set(every)  # computed without the sum
    for store in shared.stores:
        for member in members_at(store):
            of_maximum = min(of_maximum, set(owned(made_of(store, files, member))), key=len)
    if shared.first == MAXIMA:
        return [one for one in every if one in of_maximum]
    if right := [store for store in shared.right if not members_at(store)]:  # stored at separate lines
        of_maximum = _above(right, files)
        stores = {one.at for one in shared.stores}
        first = _above(shared.others, files) - of_maximum - stores
        nearest = [one for store in shared.others for one in owned(made_of(store, files))]
        left = [one for one in dict.fromkeys([*nearest, *every]) if one.at not in of_maximum]
        return sorted(left, key=lambda one: one.at not in first)
    return sorted(every, key=lambda one: one in of_maximum)  # lines of the maximum, which is correct, come last


def _above(stores: Sequence[Place], files: list[str]) -> set[tuple[str, int]]:
    """The lines that compute what these lines store, above each in its own function."""
    found = [(one, store) for store in stores for one in made_of(store, files) if one.line <= store.line]
    return {one.at for one, store in found if function_begin(one) == function_begin(store)}


def _in_functions_of(places: Sequence[Place], lines: list[Place]) -> list[Place]:
    """The lines that are in a function with one of the places."""
    begins = {(place.file, function_begin(place)) for place in places}
    return [one for one in lines if (one.file, function_begin(one)) in begins]
