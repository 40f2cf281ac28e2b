"""Selects the cases to run under a tool on a GPU, where each takes seconds.

chosen = worth_it(cases, verdicts, reach, seed)     failing ones, or the smallest that launch each kernel
reach = kernels_of(places)                          operator -> the names of the kernels that it may launch
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from common.compiling.gaps import functions_behind, with_own_headers
from common.compiling.places import Place
from common.inspect.checked_run import small_size
from common.inspect.profile.ncu import kernels_in
from common.testing.case import ERROR, FAIL, Case, Verdict
from common.testing.first_operator import first_operator

MOST_FAILING = 3  # one per part
LEAST_ELEMENTS = 256  # input elements; in smaller cases few threads have work


def kernels_of(places: Iterable[Place]) -> dict[str, frozenset[str]]:
    """The kernels each operator may launch, from the sources; one selected at run time counts for all candidates."""
    found = {}
    for place in places:
        sources = with_own_headers(place.kernels)
        names = set(kernels_in(sources))
        for operator in place.operators:
            found[operator] = frozenset(names & functions_behind(operator, [*place.kernels, place.binding]))
    return found


def worth_it(
    cases: Sequence[Case], verdicts: Sequence[Verdict], reach: Mapping[str, frozenset[str]], seed: int
) -> list[Case]:
    """The smallest failing case of each part; if none fails, for each kernel the smallest case that may launch it.

    Args:
        cases: the cases that ran.
        verdicts: their verdicts, in the same order.
        reach: see kernels_of.
        seed: seed of the inputs.
    """
    sizes = {case: size for case in cases if (size := small_size(case, seed)) is not None}
    small = sorted(sizes, key=lambda case: _awkward(sizes[case]))
    failing = {one.case for one in verdicts if one.status in (FAIL, ERROR) and not one.is_endless}
    if failing:
        of_part: dict[str, Case] = {}
        for case in small:
            if case in failing:
                of_part.setdefault(case.part, case)
        return list(of_part.values())[:MOST_FAILING]
    chosen: list[Case] = []
    covered: set[str] = set()
    # prefer an operator that launches only this kernel
    for case in sorted(small, key=lambda case: len(_reached(case, reach, seed))):
        kernels = _reached(case, reach, seed)
        if kernels - covered:
            chosen.append(case)
            covered |= kernels
    return chosen


def apart(
    chosen: Iterable[Case], reach: Mapping[str, frozenset[str]], seed: int
) -> list[list[tuple[Case, frozenset[str]]]]:
    """The cases with their kernels, in as few groups as possible such that no two in a group launch the same kernel."""
    groups: list[list[tuple[Case, frozenset[str]]]] = []
    for case in chosen:
        kernels = _reached(case, reach, seed)
        free = (group for group in groups if kernels and not any(kernels & other or not other for _, other in group))
        group = next(free, None)
        if group is None:
            group = []
            groups.append(group)
        group.append((case, kernels))
    return groups


def _reached(case: Case, reach: Mapping[str, frozenset[str]], seed: int) -> frozenset[str]:
    return reach.get(first_operator(case, seed), frozenset())


def _awkward(size: int) -> tuple[bool, int]:
    """Sort key for cases: smallest first, but trivially small ones last."""
    return size < LEAST_ELEMENTS, size if size >= LEAST_ELEMENTS else -size
