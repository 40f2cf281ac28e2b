"""What `python -m task4.benchmark` prints, and the JSON file that it writes.

table(records)                 one setting: a row per version, a column per length, TFLOP/s
summary_table(lines)           geometric means and goals
to_json(...), from_json(text)  the same records, for pictures and for anybody else
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.markup import escape
from rich.table import Table

from common.measure.limits import Limits
from common.measure.report import duration
from common.measure.timing import Timing
from task4.tools.benchmark.check import Errors
from task4.tools.benchmark.grid import Problem
from task4.tools.benchmark.peers import PEERS
from task4.tools.benchmark.runs import Record
from task4.tools.benchmark.summary import Line


def table(records: Sequence[Record]) -> Table:
    """TFLOP/s of one setting; left_out_words says in words what was left out.

    Args:
        records: of problems that differ in their length only.
    """
    lengths = sorted({one.problem.seq_len for one in records})
    result = Table(title=f"{escape(records[0].problem.setting)}: TFLOP/s", title_justify="left")
    result.add_column("version", no_wrap=True)
    for length in lengths:
        result.add_column(f"{length}", justify="right")
    result.add_column("error", justify="right")
    result.add_column(f"ms at {lengths[-1]}", justify="right")
    result.add_column(f"memory at {lengths[-1]}", justify="right")
    for name in dict.fromkeys(one.peer for one in records):
        of_length = {one.problem.seq_len: one for one in records if one.peer == name}
        errors = [one.errors.relative for one in of_length.values() if one.errors]
        last = of_length.get(lengths[-1])
        result.add_row(
            escape(PEERS[name].label),
            *(_rate(of_length.get(length)) for length in lengths),
            f"{max(errors):.1e}" if errors else "",
            duration(last.timing.seconds) if last and last.timing else "",
            _bytes(last.memory) if last and last.memory is not None else "",
        )
    return result


def _rate(record: Record | None) -> str:
    if record is None:
        return ""
    if record.rate is None:
        return f"[dim]{_short(record.left_out)}[/]"
    rate = record.rate / 1e12
    return f"{rate:.{0 if rate >= 99.95 else 1 if rate >= 9.995 else 2}f}"


def _short(left_out: str) -> str:
    """What a cell says of a record without a time."""
    kind = left_out.split(":")[0]
    return kind if kind in ("memory", "time", "wrong") else "none"


def _bytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def left_out_words(records: Sequence[Record]) -> str:
    """Why versions have no time: each reason once, with the lengths it holds for."""
    reasons: dict[tuple[str, str], list[Record]] = {}
    for one in records:
        if one.left_out:
            reasons.setdefault((one.peer, one.left_out), []).append(one)
    words = []
    for (name, reason), alike in reasons.items():
        lengths = ", ".join(str(one.problem.seq_len) for one in alike)
        if alike[0].errors and not alike[0].errors.ok:
            reason += f": max error {alike[0].errors.largest:.1e}, bound {alike[0].errors.bound:.1e}"
        words.append(f"{PEERS[name].label} at {lengths}: {reason}")
    return "\n".join(words)


def summary_table(lines: Sequence[Line]) -> Table:
    """Speedups, geometric means over the problems that both versions ran."""
    result = Table(title="speedups; goal: at least", title_justify="left")
    for column in ("version", "over", "where"):
        result.add_column(column)
    for column in ("problems", "mean", "least", "most"):
        result.add_column(column, justify="right")
    result.add_column("goal")
    for line in lines:
        verdict = {None: "", True: ": [green]reached[/]", False: ": [red]missed[/]"}[line.reached]
        numbers = (f"{number:.{2 if number < 100 else 0}f}" for number in (line.mean, line.least, line.most))
        names = (escape(PEERS[name].label) for name in (line.version, line.peer))
        result.add_row(*names, line.where, str(line.problems), *numbers, line.goal + verdict)
    return result


def to_json(
    machine: Mapping[str, str],
    limits: Limits,
    command: str,
    date: str,
    records: Sequence[Record],
    lines: Sequence[Line],
) -> str:
    """{"machine", "date", "command", "limits", "results": [...], "summary": [...]}: seconds, bytes, operations."""
    content = {
        "machine": dict(machine),
        "date": date,
        "command": command,
        "limits": {"copy": limits.copy, "matmul": limits.matmul},
        "results": [_as_json(one) for one in records],
        "summary": [asdict(line) for line in lines],
    }
    return json.dumps(content, indent=1) + "\n"


def _as_json(one: Record) -> dict:
    timing, errors = one.timing, one.errors
    return {
        **asdict(one.problem),
        "version": one.peer,
        "flops": one.problem.flops,
        "median_seconds": timing and timing.seconds,
        "flops_per_second": one.rate,
        "runs": timing and list(timing.runs),
        "relative_error": errors and _number(errors.relative),
        "max_error": errors and _number(errors.largest),
        "max_error_bound": errors and errors.bound,
        "peak_bytes": one.memory,
        "left_out": one.left_out,
    }


def _number(value: float) -> float | None:
    """JSON knows no NaN and no infinity."""
    return value if math.isfinite(value) else None


def from_json(text: str) -> tuple[list[Record], Limits, dict[str, str]]:
    """(records, limits, machine) of what to_json wrote.

    Raises:
        ValueError: it is not such a file.
    """
    try:
        content = json.loads(text)
        limits = Limits(content["limits"]["copy"], content["limits"]["matmul"])
        return [_from_json(one) for one in content["results"]], limits, content["machine"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a file that python -m task4.benchmark wrote: {error!r}") from None


def _from_json(one: dict) -> Record:
    problem = Problem(*(one[name] for name in Problem.__dataclass_fields__))
    errors = None
    if one["max_error_bound"] is not None:
        numbers = (one[name] for name in ("relative_error", "max_error", "max_error_bound"))
        errors = Errors(*(math.nan if number is None else number for number in numbers))
    timing = Timing(tuple(one["runs"])) if one["runs"] else None
    if one["version"] not in PEERS:
        raise ValueError(f"version is {one['version']!r}; it must be one of {', '.join(PEERS)}")
    return Record(problem, one["version"], timing, errors, one["peak_bytes"], one["left_out"])
