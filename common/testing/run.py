"""Runs many cases: run_cases(...) returns their verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console
from rich.progress import Progress

from common.testing.calling import Caller, InProcess, caller_of, gpu_is_lost
from common.testing.case import ERROR, FAIL, NOT_RUN, Case, Verdict


def _stopped_by(
    verdict: Verdict, caller: Caller, parts: Sequence[str], built_of: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """The parts that cannot continue after this verdict, each with the reason."""
    if verdict.status != ERROR:
        return {}
    if isinstance(caller, InProcess) and caller.device.type == "cuda" and gpu_is_lost():
        why = "The GPU refuses all work after the error above: fix that one, then run again."
        return dict.fromkeys(parts, why)
    if verdict.is_endless:
        part = verdict.case.part
        follow = {
            one: f"It is built on {part}, in which a call did not end."
            for one in parts
            if part in built_of.get(one, ())
        }
        return follow | {part: "A call of this part did not end (see above); other cases may take as long."}
    return {}


def chosen_parts(cases: Sequence[Case], parts: Sequence[str] | None) -> list[Case]:
    """The cases of these parts; all if none is named. ValueError if there are none."""
    chosen = [case for case in cases if not parts or case.part in parts]
    if not chosen:
        raise ValueError(
            f"no test case for parts {list(parts or [])}; there are {sorted({case.part for case in cases})}"
        )
    return chosen


def run_cases(
    cases: Sequence[Case],
    ops,
    console: Console,
    check_one: Callable[[Case], Verdict],
    first_only: bool = False,
    built_of: Mapping[str, Sequence[str]] | None = None,
) -> list[Verdict]:
    """Runs the cases with a progress bar and returns their verdicts. Cases that cannot run (the GPU is lost, a kernel
    of the part never ends) are skipped.

    With first_only the run ends at the first failed case; an unfilled gap does not count as failed. A part that is
    `built_of` one with an endless kernel is skipped too.
    """
    caller = caller_of(ops)
    verdicts: list[Verdict] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("testing", total=len(cases))
        stopped: dict[str, str] = {}  # part -> why its remaining cases are skipped
        for case in cases:
            progress.update(bar, description=f"{case.part}: {case.name}")
            if why := stopped.get(case.part):
                verdicts.append(Verdict(case, NOT_RUN, said=[why]))
            else:
                verdicts.append(check_one(case))
                stopped |= _stopped_by(verdicts[-1], caller, [one.part for one in cases], built_of or {})
            progress.advance(bar)
            if first_only and verdicts[-1].status in (FAIL, ERROR):
                break
    return verdicts
