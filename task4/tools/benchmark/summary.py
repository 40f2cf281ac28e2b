"""What `python -m task4.benchmark` concludes: geometric means against the peers and figures that the project names.

ratios(records, version="mma", peer="flash", direction="forward", dtype="bf16")      speedups, problem by problem
summarise(records)                                                                   -> [Line, ...]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from task4.tools.benchmark.grid import HIDDEN
from task4.tools.benchmark.runs import Record

MIDDLE = (1024, 2048, 4096)


@dataclass(frozen=True)
class Goal:
    """A figure to reach: the geometric mean of `version`'s speedup over `peer`.

    Attributes:
        lengths: the seq_len that count; None for all.
        mean: what the geometric mean should be at least; None if nothing is asked.
        least: what every single speedup should be at least; None likewise.
        hidden: heads * head_dim that the figure is stated for.
    """

    version: str
    peer: str
    direction: str
    dtype: str
    lengths: Collection[int] | None = None
    mean: float | None = None
    least: float | None = None
    hidden: int = HIDDEN


GOALS = (
    Goal("ffma", "efficient", "forward", "fp32", MIDDLE, mean=1.1),
    Goal("3xfp16", "efficient", "forward", "fp32", MIDDLE, mean=2.0),
    Goal("mma", "flash", "forward", "bf16", mean=1.05, least=0.9),
    Goal("mma", "flash", "forward", "fp16"),
    Goal("mma", "naive", "forward", "fp16", (1024,), mean=50.0, hidden=1024),
    Goal("mma", "flash", "backward", "bf16", mean=0.8),
    Goal("mma", "flash", "backward", "fp16"),
    Goal("ffma", "efficient", "backward", "fp32"),
    *(
        Goal(version, peer, "forward", dtype)
        for version, dtype, peers in (
            ("taught", "fp32", ("naive", "tiled", "efficient")),
            ("ffma", "fp32", ("naive", "taught")),
            ("3xfp16", "fp32", ("naive", "taught")),
            ("mma", "fp16", ("naive", "cudnn")),
            ("mma", "bf16", ("naive", "cudnn")),
        )
        for peer in peers
    ),
    *(Goal("mma", "cudnn", "backward", dtype) for dtype in ("fp16", "bf16")),
)


@dataclass(frozen=True)
class Line:
    """One conclusion.

    Attributes:
        version, peer: whose speedup over whom.
        where: "forward, bf16, 1024 .. 4096 tokens".
        problems: how many it rests on.
        mean, least, most: the speedups' geometric mean, minimum and maximum.
        goal: what the mean and the least should be at least, "mean 1.05, least 0.9"; "" if nothing is asked.
        reached: None if nothing is asked.
    """

    version: str
    peer: str
    where: str
    problems: int
    mean: float
    least: float
    most: float
    goal: str = ""
    reached: bool | None = None


def ratios(
    records: Iterable[Record],
    version: str,
    peer: str,
    direction: str,
    dtype: str,
    lengths: Collection[int] | None = None,
) -> list[float]:
    """How many times faster `version` is than `peer`, on every problem on which both were timed."""
    of_problem: dict = {}
    for one in records:
        problem = one.problem
        counts = lengths is None or problem.seq_len in lengths
        if one.timing and counts and (problem.direction, problem.dtype) == (direction, dtype):
            of_problem.setdefault(problem, {})[one.peer] = one.timing.seconds
    return [times[peer] / times[version] for times in of_problem.values() if peer in times and version in times]


def summarise(records: Sequence[Record]) -> list[Line]:
    """A line for every pair of GOALS that was timed. What a goal asks counts for the hidden width that it names."""
    lines = []
    for goal in GOALS:
        hidden = {one.problem.heads * one.problem.head_dim for one in records}
        stated = goal.hidden == HIDDEN or hidden == {goal.hidden}
        found = ratios(records, goal.version, goal.peer, goal.direction, goal.dtype, goal.lengths)
        if not found or not stated:
            continue
        mean, least = geometric_mean(found), min(found)
        asked = [f"mean {goal.mean:g}"] if goal.mean else []
        asked += [f"least {goal.least:g}"] if goal.least else []
        counts = bool(asked) and hidden == {goal.hidden}
        where = f", {_range(goal.lengths)} tokens" if goal.lengths else ""
        lines.append(
            Line(
                goal.version,
                goal.peer,
                f"{goal.direction}, {goal.dtype}{where}",
                len(found),
                mean,
                least,
                max(found),
                ", ".join(asked) if counts else "",
                (mean >= (goal.mean or 0.0) and least >= (goal.least or 0.0)) if counts else None,
            )
        )
    return lines


def _range(lengths: Collection[int]) -> str:
    return f"{min(lengths)}" if len(lengths) == 1 else f"{min(lengths)} .. {max(lengths)}"
