"""Runs cases in the simulator's checked build: `--check` finds mistakes, `--profile` counts memory traffic.

    check_cases(console, title, cases, caller, seed)     prints verdicts and findings; returns the exit status
    profile_cases(console, cases, caller, seed)          [(case, verdict, kernels), ...] for profile/report.py

The caller is a CheckedCaller or a Worker around one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rich.console import Console
from torch import Tensor

from common.console.terminal import say, wide
from common.console.words import counted
from common.inspect.checked_library import Collected
from common.inspect.findings.model import ENDS_THE_KERNEL, Finding, grouped, without_strays
from common.inspect.findings.report import print_findings
from common.inspect.profile.model import KernelProfile
from common.testing import judging
from common.testing import report as check_report
from common.testing.calling import POISONED, Around, Called, Caller
from common.testing.case import ERROR, NOT_IMPLEMENTED, NOT_RUN, PASS, SKIPPED, Case, Verdict
from common.testing.first_operator import first_operator
from common.testing.run import run_cases

MOST_ELEMENTS = 1 << 21  # total input elements of a case
MOST_MATRICES = 10_000  # largest first dimension of an input; cases beyond it test grid limits


def small_size(case: Case, seed: int = 0) -> int | None:
    """The number of input elements of a case; None if the checked build would take more than seconds."""
    if case.gpu_only:
        return None
    return _if_small(*judging.size_of(judging.make_inputs(case, seed)))


def small_size_of(verdict: Verdict) -> int | None:
    """The same for a case that has run."""
    if verdict.case.gpu_only or not verdict.elements:
        return None
    return _if_small(verdict.elements, verdict.matrices)


def _if_small(elements: int, matrices: int) -> int | None:
    return elements if elements <= MOST_ELEMENTS and matrices <= MOST_MATRICES else None


def small_cases(console: Console, cases: Sequence[Case], seed: int) -> list[Case]:
    """The cases that are small enough; prints which ones are skipped and why."""
    small = [case for case in cases if small_size(case, seed) is not None]
    for_gpu = sum(case.gpu_only for case in cases)
    left_out = [f"{case.part}: {case.name}" for case in cases if not case.gpu_only and case not in small]
    if left_out:
        say(
            console,
            f"left out, over {MOST_ELEMENTS:,} input elements or {MOST_MATRICES:,} matrices: "
            f"{'; '.join(left_out)} (--case runs them)",
        )
    if for_gpu:
        say(console, f"left out, for a GPU only: {counted(for_gpu, 'case')}")
    return small


def checked(case: Case, caller: Caller, collected: Collected, seed: int) -> tuple[Verdict, list[Finding]]:
    """Runs a case once, with one draw of its inputs: (verdict, findings in that call)."""
    first: list[list[Finding]] = []

    class Read(Caller):
        """Wraps the caller to read its findings. A wrong output causes another call; only the first one counts."""

        backend, device = caller.backend, caller.device

        def call(self, case: Case, inputs: dict[str, Tensor], around: Around = POISONED) -> Called:
            try:
                return caller.call(case, inputs, around)
            finally:
                first.append([] if first else collected.findings())

    verdict = judging.judge(replace(case, draws=1), Read(), seed)
    findings = first[0] if first else []
    verdict.findings = sum(not group.is_harmless for group in grouped([("", findings)]))
    return verdict, findings


def check_cases(
    console: Console,
    title: str,
    cases: Sequence[Case],
    caller: Caller,
    seed: int,
    write: Callable[[Sequence[Verdict], Sequence[tuple[str, Sequence[Finding]]]], None] | None = None,
) -> int:
    """Runs each case once, with one draw of its inputs; prints the table and the findings. Returns 0 if there are none.

    `write` also receives both, to write a page.
    """
    collected = Collected(caller)
    found: list[tuple[str, list[Finding]]] = []

    def check_one(case: Case) -> Verdict:
        verdict, findings = checked(case, caller, collected, seed)
        if verdict.status == ERROR and any(one.kind in ENDS_THE_KERNEL for one in findings):
            verdict.said = [verdict.diagnosis[0], "See the findings below."]
        found.append((f"{case.part}: {case.name}", findings))
        return verdict

    verdicts = run_cases(cases, caller, console, check_one)
    check_report.print_report(console, title, verdicts, points=False)
    console = wide(console)
    if collected.problem:
        say(console, collected.problem, "yellow")
    did_not_run = (SKIPPED, NOT_IMPLEMENTED, NOT_RUN)
    report_findings(console, found, sum(verdict.status not in did_not_run for verdict in verdicts))
    if write:
        write(verdicts, found)
    good = (PASS, SKIPPED)
    return 0 if all(verdict.status in good and not verdict.findings for verdict in verdicts) else 1


def report_findings(console: Console, found: Sequence[tuple[str, Sequence[Finding]]], cases: int) -> None:
    """Prints the findings of all `cases` that ran, similar ones grouped, or that there are none."""
    groups = without_strays({"": grouped(found)})[""]
    if not cases:
        say(console, "\nNo case ran, so nothing was looked at.")
        return
    if not groups:
        console.print(f"\n[green]No findings[/] in {counted(cases, 'case')}.", highlight=False)
        return
    with_some = len({case for case, findings in found if findings})
    console.print(
        f"\n[red]{counted(len(groups), 'finding')}[/] in {with_some} of {counted(cases, 'case')}:", highlight=False
    )
    print_findings(console, groups)


def representatives(cases: Sequence[Case], seed: int) -> list[Case]:
    """For each part and operator, the small case with the most input elements."""
    best: dict[tuple[str, str], tuple[int, Case]] = {}
    for case in cases:
        size = small_size(case, seed)
        operator = first_operator(case, seed) if size is not None else ""
        if operator and size > best.get((case.part, operator), (-1,))[0]:
            best[case.part, operator] = size, case
    return [case for _, case in best.values()]


def profile_cases(
    console: Console, cases: Sequence[Case], caller: Caller, seed: int
) -> list[tuple[Case, Verdict, list[KernelProfile]]]:
    """Runs each case once; returns its verdict and its kernels' profiles."""
    collected = Collected(caller)
    kernels: list[list[KernelProfile]] = []

    def profile_one(case: Case) -> Verdict:
        verdict = judging.judge(replace(case, draws=1), caller, seed)
        kernels.append(collected.kernels())
        return verdict

    verdicts = run_cases(cases, caller, console, profile_one)
    return list(zip(cases, verdicts, kernels, strict=False))
