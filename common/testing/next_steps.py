"""What to do next, in a line or two below a report: print_next(...)."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console

from common.console.terminal import say
from common.testing.case import PASS, SKIPPED, Verdict
from common.testing.case_choice import full_name
from common.testing.run import ENDLESS


def print_next(
    console: Console,
    program: str,
    verdicts: Sequence[Verdict],
    wrong: Sequence[Verdict],
    inside: Mapping[str, Collection],
    chosen: bool,
) -> None:
    """Names the flags that would help now.

    Args:
        console: where to print.
        program: what stands behind `python -m`, with the variant's flag.
        verdicts: of all cases.
        wrong: those with a wrong output or an error in a kernel.
        inside: the parts that the checked build has looked at by itself, with what it found.
        chosen: whether the cases were chosen by name.
    """
    if wrong:
        looked_at = [one for one in wrong if one.case.part in inside]
        one = shlex.quote(full_name((looked_at or wrong)[0].case))
        steps = [] if chosen else [f"python -m {program} --case {one} runs one case"]
        ends = not any(ENDLESS in line for line in wrong[0].diagnosis)
        if ends:  # an output is there to be shown
            steps.append(
                f"--show {one} prints its numbers" if steps else f"python -m {program} --show {one} prints numbers"
            )
        if not inside and ends:
            steps = [f"python -m {program} --check --case {one} looks inside: races, accesses out of bounds", *steps]
        elif inside and not any(inside.values()):
            steps.append("--check looks inside all cases")
        if steps:
            console.print()
            say(console, f"Next: {'; '.join(steps)}.", "dim")
    elif all(one.status in (PASS, SKIPPED) for one in verdicts) and any(one.ok for one in verdicts) and not chosen:
        say(
            console,
            f"Next: python -m {program} --check looks for races and accesses that did not show; --profile counts what "
            "the kernels do to memory.",
            "dim",
        )
