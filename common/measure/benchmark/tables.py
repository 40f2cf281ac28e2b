"""A benchmark's printed tables: one per setting, and one of conclusions.

table(records, limits)          a row per version, a column per problem; below, shares of the limit and our speedups
conclusion_table(conclusions)   geometric means and goals
left_out_words(records)         why versions have no time
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from common.measure.benchmark.goals import Conclusion
from common.measure.benchmark.runner import Record
from common.measure.limits import Limits
from common.measure.report import duration


def cells(records: Sequence[Record], ladder: bool = False) -> tuple[list[str], list[list[str]]]:
    """(column names, rows) for one setting: rates, errors, and time and memory of the last problem.

    Args:
        records: records of problems that differ only in size.
        ladder: compare a version's rate with the previous version's.
    """
    problems = list(dict.fromkeys(one.problem for one in records))
    last = problems[-1].column
    with_memory = any(one.memory is not None for one in records)
    columns = ["version", *(one.column for one in problems), "error", f"time at {last}"]
    columns += [f"memory at {last}"] if with_memory else []
    rows, before = [], {}
    for name in dict.fromkeys(one.version for one in records):
        of_problem = {one.problem: one for one in records if one.version == name}
        errors = [one.errors.relative for one in of_problem.values() if one.errors]
        at_last = of_problem.get(problems[-1])
        row = [next(iter(of_problem.values())).label]
        for problem in problems:
            cell = _rate(of_problem.get(problem))
            record = of_problem.get(problem)
            if ladder and problem in before and record and record.rate and record.ours:
                cell += f"  x {record.rate / before[problem]:.2f}"
            row.append(cell)
        row.append(f"{max(errors):.1e}" if errors else "")
        row.append(duration(at_last.timing.seconds) if at_last and at_last.timing else "")
        if with_memory:
            row.append(_bytes(at_last.memory) if at_last and at_last.memory is not None else "")
        rows.append(row)
        before = {problem: one.rate for problem, one in of_problem.items() if one.rate and one.ours}
    return columns, rows


def comparisons(records: Sequence[Record], limits: Limits) -> list[list[str]]:
    """The rows below: each of our versions' fraction of the limit, then its speedup over the fastest other version."""
    problems = list(dict.fromkeys(one.problem for one in records))
    limit = limits.of(problems[0].limit)
    ours = {one.version: one.label for one in records if one.ours}
    rate = {(one.version, one.problem): one.rate for one in records if one.rate}
    fastest = {
        problem: max(
            (one.rate for one in records if one.problem == problem and not one.ours and one.errors and one.rate),
            default=None,
        )
        for problem in problems
    }
    shares = {name: [_share(rate.get((name, one)), limit, "{:.0%}") for one in problems] for name in ours}
    times = {name: [_share(rate.get((name, one)), fastest[one], "{:.2f} x") for one in problems] for name in ours}
    rows = []
    for heading, cells_of in ((f"of {problems[0].limit}, {limit / 1e12:.3g}", shares), ("over the best other", times)):
        told = {name: found for name, found in cells_of.items() if any(found)}
        if len(ours) == 1:
            rows += [[heading, *found] for found in told.values()]
        elif told:
            rows += [[heading], *([f"  {ours[name]}", *found] for name, found in told.items())]
    return rows


def _share(rate: float | None, of: float | None, form: str) -> str:
    return form.format(rate / of) if rate and of else ""


def table(records: Sequence[Record], limits: Limits, ladder: bool = False) -> Table:
    """The table of one setting."""
    columns, rows = cells(records, ladder)
    title = f"{records[0].problem.setting}: {records[0].problem.unit}"
    result = Table(title=escape(title), title_justify="left")
    for number, column in enumerate(columns):
        may_wrap = column.startswith(("time", "memory"))
        result.add_column(escape(column), justify="right" if number else "left", no_wrap=not may_wrap)
    for row in rows:
        result.add_row(*map(escape, row))
    result.add_section()
    for row in comparisons(records, limits):
        result.add_row(*map(escape, row), style="dim")
    return result


def _rate(record: Record | None) -> str:
    if record is None:
        return ""
    if record.rate is None:
        kind = record.left_out.split(":")[0]
        return kind if kind in ("memory", "time", "wrong") else "none"
    rate = record.rate / 1e12
    return f"{rate:.{0 if rate >= 99.95 else 1 if rate >= 9.995 else 2}f}"


def _bytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def left_out_words(records: Sequence[Record]) -> str:
    """Why versions have no time: each reason once, with the problems it applies to."""
    reasons: dict[tuple[str, str], list[Record]] = {}
    for one in records:
        if one.left_out:
            reasons.setdefault((one.label, one.left_out), []).append(one)
    words = []
    for (label, reason), alike in reasons.items():
        where = ", ".join(one.problem.column for one in alike)
        if alike[0].errors and not alike[0].errors.ok:
            reason += f": max error {alike[0].errors.largest:.1e}, bound {alike[0].errors.bound:.1e}"
        words.append(f"{label} at {where}: {reason}")
    return "\n".join(words)


def conclusion_table(conclusions: Sequence[Conclusion]) -> Table:
    """Speedups: geometric means over the problems that both versions ran."""
    result = Table(title="speedups; goal: at least", title_justify="left")
    for column in ("version", "over", "where"):
        result.add_column(column)
    for column in ("problems", "mean", "least", "most"):
        result.add_column(column, justify="right")
    result.add_column("goal")
    for one in conclusions:
        verdict = {None: "", True: ": [green]reached[/]", False: ": [red]missed[/]"}[one.reached]
        numbers = (f"{number:.{2 if number < 100 else 0}f}" for number in (one.mean, one.least, one.most))
        names = map(escape, (one.version, one.over, one.where))
        result.add_row(*names, str(one.problems), *numbers, one.goal + verdict)
    return result
