"""`python -m taskN.test --first`: reports only the first failed case, for testing on every save."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich.console import Console

from common.cli.workers import Workers
from common.console.terminal import say
from common.console.words import counted
from common.testing.case import ERROR, FAIL, NOT_IMPLEMENTED, NOT_RUN, SKIPPED, Case, Verdict
from common.testing.case_choice import full_name
from common.testing.failures import print_failures


def only_first(
    console: Console,
    verdicts: Sequence[Verdict],
    chosen: Sequence[Case],
    workers: Workers,
    seed: int,
    in_python: Collection[str],
) -> None:
    """Reports the first failed case; if none failed, the first unfilled gap; otherwise that all cases pass.

    Args:
        console: where to print.
        verdicts: verdicts of the cases that ran; a failed case can only be the last.
        chosen: all cases selected to run.
        workers: the processes that run kernels; the checked one reruns the failed case.
        seed: seed of the inputs.
        in_python: the parts that run no kernels, which the checked build cannot check.
    """
    wrong = [one for one in verdicts if one.status in (FAIL, ERROR)]
    unfilled = [one for one in verdicts if one.status in (NOT_IMPLEMENTED, NOT_RUN)]
    ran = [one for one in verdicts if one.status != SKIPPED]
    on_a_gpu = 0 if workers.plain.backend == "cuda" else sum(case.gpu_only for case in chosen)
    here, passed = len(chosen) - on_a_gpu, sum(one.ok for one in verdicts)
    if wrong:
        from common.cli import failing_cases

        for warning in workers.plain.about["warnings"][:1]:
            say(console, warning, "yellow")
        looked_at = [one for one in wrong[:1] if one.case.part not in in_python]
        if failing_cases.recognized(wrong[:1]):
            looked_at = []  # the mistake is known, and the checked build would double the time
        for one in looked_at:  # at once, since the checked build may still be compiling
            say(console, f"{full_name(one.case)}  {one.status}", "red")
        inside = failing_cases.at_failures(console, looked_at, workers.checked, seed) if looked_at else {}
        failing_cases.print_diagnosis(console, wrong[:1], inside)
    elif unfilled:
        print_failures(console, unfilled[:1])
    words = [f"\n{passed} of {counted(here, 'case')} pass"]
    words += [f"{len(unfilled)} wait for a gap"] * bool(unfilled)
    words += [f"{here - len(ran)} not run yet"] * (here > len(ran))
    words += [f"{on_a_gpu} more need a GPU"] * bool(on_a_gpu)
    say(console, ", ".join(words), "green" if passed == here else "")
