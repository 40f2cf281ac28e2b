"""A benchmark's results as JSON: to_json(...), from_json(text, problem_of)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from common.measure.benchmark.goals import Conclusion
from common.measure.benchmark.problem import Problem
from common.measure.benchmark.runner import Record
from common.measure.benchmark.sample import Errors
from common.measure.limits import Limits
from common.measure.timing import Timing


def to_json(
    machine: Mapping[str, str],
    limits: Limits,
    command: str,
    date: str,
    records: Sequence[Record],
    conclusions: Sequence[Conclusion],
) -> str:
    """{"machine", "date", "command", "limits", "results": [...], "conclusions": [...]}: seconds, bytes, operations."""
    content = {
        "machine": dict(machine),
        "date": date,
        "command": command,
        "limits": {"copy": limits.copy, "matmul": limits.matmul},
        "results": [_as_json(one) for one in records],
        "conclusions": [asdict(one) for one in conclusions],
    }
    return json.dumps(content, indent=1) + "\n"


def _as_json(one: Record) -> dict:
    timing, errors = one.timing, one.errors
    return {
        "problem": asdict(one.problem),
        "setting": one.problem.setting,
        "size": one.problem.column,
        "version": one.version,
        "label": one.label,
        "ours": one.ours,
        "work": one.problem.work,
        "unit": one.problem.unit,
        "median_seconds": timing and timing.seconds,
        "work_per_second": one.rate,
        "runs": timing and list(timing.runs),
        "relative_error": errors and _number(errors.relative),
        "max_error": errors and _number(errors.largest),
        "max_error_bound": errors and errors.bound,
        "peak_bytes": one.memory,
        "stored_bytes": one.stored_bytes,
        "left_out": one.left_out,
    }


def _number(value: float) -> float | None:
    """The value; None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def from_json(text: str, problem_of: Callable[..., Problem]) -> tuple[list[Record], Limits, dict[str, str]]:
    """Reads the output of to_json: (records, limits, machine).

    Raises:
        ValueError: the text is not in this format.
    """
    try:
        content = json.loads(text)
        limits = Limits(content["limits"]["copy"], content["limits"]["matmul"])
        return [_from_json(one, problem_of) for one in content["results"]], limits, content["machine"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a file that this benchmark wrote: {error!r}") from None


def _from_json(one: dict, problem_of: Callable[..., Problem]) -> Record:
    errors = None
    if one["max_error_bound"] is not None:
        numbers = (one[name] for name in ("relative_error", "max_error", "max_error_bound"))
        errors = Errors(*(math.nan if number is None else number for number in numbers))
    timing = Timing(tuple(one["runs"])) if one["runs"] else None
    kept = (one["peak_bytes"], one["stored_bytes"], one["left_out"])
    return Record(problem_of(**one["problem"]), one["version"], one["label"], one["ours"], timing, errors, *kept)
