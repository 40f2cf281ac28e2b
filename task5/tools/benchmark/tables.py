"""Tables of what `python -m task5.benchmark` measured, its goals, JSON, and the block for Results.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.markup import escape
from rich.table import Table

from common.measure.report import duration
from common.testing.results import Block
from task5.tools.benchmark.runs import Measured
from task5.tools.benchmark.versions import BACKENDS, CUDNN, FLEX, OURS

IDEAL = "of the ideal"


@dataclass(frozen=True)
class Goal:
    """What our kernel is held to on an H200, in bfloat16.

    Attributes:
        pattern: the problems it concerns.
        peer: the version that it is compared with; "the best but cuDNN" of those on gathered K and V.
        at_least: times as fast as that version.
        parameter: of the problems; None: all of the pattern.
    """

    pattern: str
    peer: str
    at_least: float
    parameter: int | None = None


BEST = "the best but cuDNN"
GOALS = (
    Goal("strided", BEST, 1.0),
    Goal("strided", CUDNN, 1 / 1.3),
    Goal("strided", FLEX, 5.0, 8),
    Goal("window", FLEX, 1.0),
)


def speedup(measured: Measured, peer: str) -> float | None:
    """How many times as fast our kernel is as this version (or as BEST); None without both times."""
    ours = measured.seconds(OURS)
    names = [name for name in BACKENDS if name != CUDNN] if peer == BEST else [peer]
    theirs = [measured.timings[name].seconds for name in names if name in measured.timings]
    return min(theirs) / ours if theirs and ours else None


def table(measured: Sequence[Measured]) -> Table:
    """One row per problem of one pattern: medians, and how near our kernel comes to the ideal."""
    first = measured[0].problem
    names = list(dict.fromkeys(name for one in measured for name in [*one.timings, *one.left_out]))
    result = Table(title=escape(f"{first.pattern}, {first.dtype}, medians"), title_justify="left")
    result.add_column("problem", no_wrap=True)
    for column in ("tokens", "density", *names, IDEAL):
        result.add_column(escape(column), justify="right")
    for one in measured:
        result.add_row(*(escape(cell) for cell in cells(one, names)))
    return result


def cells(one: Measured, names: Sequence[str]) -> list[str]:
    """What a row says: the problem, its length, its density, a median per version, the share of the ideal."""
    ours = one.seconds(OURS)
    share = f"{one.ideal / ours:.0%}" if one.ideal and ours else ""
    times = [duration(one.timings[name].seconds) if name in one.timings else "-" for name in names]
    return [one.problem.name, str(one.problem.seq_len), f"{one.problem.density:.1%}", *times, share]


def left_out_words(measured: Sequence[Measured]) -> str:
    """Why versions have no time; each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for one in measured:
        for name, why in one.left_out.items():
            reasons.setdefault((name, why), []).append(f"{one.problem.name} ({one.problem.seq_len})")
    return "\n".join(f"{name}: {', '.join(where)}: {why}" for (name, why), where in reasons.items())


def goal_lines(measured: Sequence[Measured]) -> list[str]:
    """A line for each goal and problem: what was got, and whether that reaches it. Only bfloat16 has goals."""
    lines = []
    for goal in GOALS:
        for one in measured:
            problem = one.problem
            if problem.dtype != "bf16" or problem.pattern != goal.pattern:
                continue
            if goal.parameter not in (None, problem.parameter):
                continue
            got = speedup(one, goal.peer)
            if got is None:
                continue
            verdict = "reached" if got >= goal.at_least else "missed"
            lines.append(
                f"{problem.name}, {problem.seq_len} tokens: {got:.2f} x as fast as {goal.peer} "
                f"(goal {goal.at_least:.2f}): {verdict}"
            )
    return lines


def to_json(machine: Mapping[str, str], command: str, measured: Sequence[Measured]) -> str:
    """{"machine", "command", "results": [...]}, in seconds."""
    results = [
        {
            **asdict(one.problem),
            "density": one.problem.density,
            "ideal_seconds": one.ideal,
            "left_out": one.left_out,
            "versions": {
                name: {"median_seconds": timing.seconds, "runs": list(timing.runs), "max_error": one.errors.get(name)}
                for name, timing in one.timings.items()
            },
        }
        for one in measured
    ]
    return json.dumps({"machine": dict(machine), "command": command, "results": results}, indent=1) + "\n"


def block(machine: Mapping[str, str], command: str, measured: Sequence[Measured], kernels: str) -> Block:
    """The same for Results.md; kernels: whose."""
    names = list(dict.fromkeys(name for one in measured for name in one.timings))
    first = measured[0].problem
    return Block(
        command,
        machine,
        ["problem", "tokens", "density", *names, IDEAL],
        [cells(one, names) for one in measured],
        [
            f"{first.dtype}, {first.batch} x {first.heads} heads of {first.head_dim}, medians; kernel: {kernels}; the "
            "ideal is the time of dense attention (PyTorch's choice, no mask) times the density."
        ],
    )
