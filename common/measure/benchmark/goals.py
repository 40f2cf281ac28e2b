"""A benchmark's conclusions: geometric means of speedups over peers, and the project's targets for them.

ratios(records, "mma", ("flash", "cudnn"))          speedups over the fastest of these, per problem
conclusions(records, goals)                         -> [Conclusion, ...]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from common.measure.benchmark.runner import Record


@dataclass(frozen=True)
class Goal:
    """A target for the geometric mean of a version's speedup over the fastest of some others.

    Attributes:
        version: the version's name.
        over: names of the versions it is compared with.
        where: which problems count, in words: "forward, bf16".
        of: the same as a predicate.
        mean: minimum geometric mean; None for no target.
        least: minimum of every single speedup; None for no target.
        stated: stated(problems): whether the target applies to a set of problems; the speedup is reported anyway.
    """

    version: str
    over: tuple[str, ...]
    where: str
    of: Callable[[Any], bool]
    mean: float | None = None
    least: float | None = None
    stated: Callable[[Sequence[Any]], bool] = lambda problems: True


@dataclass(frozen=True)
class Conclusion:
    """The result for a goal.

    Attributes:
        version, over: labels; "the better of A, B" if there are several.
        where: see Goal.
        problems: number of problems.
        mean, least, most: the speedups' geometric mean, minimum and maximum.
        goal: the targets, "mean 1.05, least 0.9"; "" if there are none.
        reached: whether they are met; None if there are none.
    """

    version: str
    over: str
    where: str
    problems: int
    mean: float
    least: float
    most: float
    goal: str = ""
    reached: bool | None = None


def ratios(records: Iterable[Record], version: str, over: Sequence[str]) -> list[float]:
    """Speedups of `version` over the fastest of `over`, for every problem where both were timed."""
    of_problem: dict[Any, dict[str, float]] = {}
    for one in records:
        if one.timing:
            of_problem.setdefault(one.problem, {})[one.version] = one.timing.seconds
    found = []
    for times in of_problem.values():
        others = [times[name] for name in over if name in times]
        if version in times and others:
            found.append(min(others) / times[version])
    return found


def conclusions(records: Sequence[Record], goals: Sequence[Goal]) -> list[Conclusion]:
    """A conclusion for every goal whose versions were timed."""
    labels = {one.version: one.label for one in records}
    problems = list(dict.fromkeys(one.problem for one in records))
    drawn = []
    for goal in goals:
        found = ratios([one for one in records if goal.of(one.problem)], goal.version, goal.over)
        if not found:
            continue
        mean, least = geometric_mean(found), min(found)
        asked = [f"mean {goal.mean:g}"] if goal.mean else []
        asked += [f"least {goal.least:g}"] if goal.least else []
        counts = bool(asked) and goal.stated(problems)
        over = [labels[name] for name in goal.over if name in labels]
        drawn.append(
            Conclusion(
                labels[goal.version],
                over[0] if len(over) == 1 else f"the better of {', '.join(over)}",
                goal.where,
                len(found),
                mean,
                least,
                max(found),
                ", ".join(asked) if counts else "",
                (mean >= (goal.mean or 0.0) and least >= (goal.least or 0.0)) if counts else None,
            )
        )
    return drawn
