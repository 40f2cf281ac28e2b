"""What a benchmark concludes: geometric means over peers, and figures that the project names.

ratios(records, "mma", ("flash", "cudnn"))          speedups over the fastest of these, problem by problem
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
    """A figure to reach: the geometric mean of a version's speedup over the fastest of some others.

    Attributes:
        version: whose.
        over: over whom: names.
        where: which problems count, in words: "forward, bf16".
        of: the same as a function.
        mean: what the geometric mean should be at least; None if nothing is asked.
        least: what every single speedup should be at least; None likewise.
        stated: whether the figure is meant for a set of problems: stated(problems); the conclusion is drawn anyway.
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
    """What came of a goal.

    Attributes:
        version, over: labels; "the better of A, B" where there are several.
        where: see Goal.
        problems: how many it rests on.
        mean, least, most: the speedups' geometric mean, minimum and maximum.
        goal: what the mean and the least should be at least, "mean 1.05, least 0.9"; "" if nothing is asked.
        reached: None if nothing is asked.
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
    """How many times faster `version` is than the fastest of `over`, on every problem on which both were timed."""
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
    """One for every goal whose versions were timed."""
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
