"""Suggests what to do next, in a line or two below a report: print_next(...)."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console

from common.console.terminal import say
from common.testing.case import PASS, SKIPPED, Verdict
from common.testing.case_choice import full_name


def print_next(
    console: Console,
    program: str,
    verdicts: Sequence[Verdict],
    wrong: Sequence[Verdict],
    inside: Mapping[str, Collection],
    chosen: bool,
) -> None:
    """Prints the flags to try next.

    Args:
        console: where to print.
        program: the text after `python -m`, including the variant's flag.
        verdicts: the verdicts of all cases.
        wrong: those with a wrong output or an error in a kernel.
        inside: parts that were automatically run in the checked build -> its findings.
        chosen: whether the cases were selected by name.
    """
    if wrong:
        first = next((one for one in wrong if one.case.part in inside), wrong[0])
        one = shlex.quote(full_name(first.case))
        steps = [] if chosen else [f"python -m {program} --case {one} runs one case"]
        ends = not first.is_endless
        if ends:  # otherwise there is no output to show
            steps.append(
                f"--show {one} prints its numbers" if steps else f"python -m {program} --show {one} prints numbers"
            )
        if not inside and ends:
            steps = [f"python -m {program} --check --case {one} looks inside: races, out-of-bounds accesses", *steps]
        elif inside and not any(inside.values()):
            steps.append("--check looks inside all cases")
        if steps:
            console.print()
            say(console, f"Next: {'; '.join(steps)}.", "dim")
    elif all(one.status in (PASS, SKIPPED) for one in verdicts) and any(one.ok for one in verdicts) and not chosen:
        say(
            console,
            f"Next: python -m {program} --check looks for races and bad accesses that didn't show up; --profile counts "
            "what the kernels do to memory.",
            "dim",
        )
