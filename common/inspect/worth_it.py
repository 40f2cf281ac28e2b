"""Which cases are worth a tool's time on a GPU, where every one costs seconds.

chosen = worth_it(cases, verdicts, reach, seed)     the failing ones, else the smallest that launch each kernel
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

MOST_FAILING = 3  # one of each part
LEAST_ELEMENTS = 256  # of a case's inputs: in smaller ones few threads have something to do


def kernels_of(places: Iterable[Place]) -> dict[str, frozenset[str]]:
    """What the sources say: a kernel that is chosen while the program runs counts for all that may choose it."""
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
        cases: those that ran.
        verdicts: on them, in their order.
        reach: see kernels_of.
        seed: of the inputs.
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
    # an operator that launches one kernel tells more about it than one that launches three
    for case in sorted(small, key=lambda case: len(_reached(case, reach, seed))):
        kernels = _reached(case, reach, seed)
        if kernels - covered:
            chosen.append(case)
            covered |= kernels
    return chosen


def apart(
    chosen: Iterable[Case], reach: Mapping[str, frozenset[str]], seed: int
) -> list[list[tuple[Case, frozenset[str]]]]:
    """The cases in as few groups as it takes for no two of a group to launch the same kernel, each with its kernels."""
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
    """Orders cases: the smallest first, but those in which hardly anything happens last."""
    return size < LEAST_ELEMENTS, size if size >= LEAST_ELEMENTS else -size
