"""`python -m taskN.test --replay CASE`: writes a page that replays a small launch, access by access."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from common.cli.options import command_of
from common.cli.workers import Workers
from common.console.files import write_whole
from common.console.paths import build_root, shown_path
from common.console.terminal import say, working
from common.console.words import counted
from common.inspect.checked_library import Collected
from common.inspect.checked_run import small_size
from common.inspect.findings.model import grouped
from common.inspect.replay.limits import MOST_BYTES, MOST_EVENTS, elements, too_large
from common.testing.calling import CallFailed
from common.testing.case import NOT_IMPLEMENTED, Case
from common.testing.case_choice import full_name
from common.testing.judging import make_inputs

NOTHING_RUN = 2  # exit status, see common.cli.test


def run(
    console: Console,
    program: str,
    cases: Sequence[Case],
    every: Sequence[Case],
    options: argparse.Namespace,
    arguments: Sequence[str],
    workers: Workers,
) -> int:
    """Records one case in the checked simulator and writes the page; 0 if that succeeded without findings.

    Args:
        console: where to print.
        program: "task2.test".
        cases: the cases that --replay names; must be one.
        every: all cases of the task, to suggest a smaller one.
        options: the test's options.
        arguments: the arguments as typed.
        workers: the checked one runs it.

    Raises:
        ValueError: several cases match, or the case is too large; the message says what to do.
    """
    from common.inspect.page.replay_page import replay_page

    if len(cases) > 1:
        names = "; ".join(map(full_name, cases))
        raise ValueError(f"--replay plays one case, and {options.replay!r} names {len(cases)}: {names}")
    case = cases[0]
    if case.gpu_only:
        raise ValueError(too_large(case, "it runs only on a GPU", every, options.seed))
    if small_size(case, options.seed) is None:
        size = elements(case, options.seed)
        raise ValueError(too_large(case, f"its inputs have {size:,} elements", every, options.seed))
    checked = workers.checked
    with working(console, f"recording {full_name(case)} in the checked simulator ..."):
        checked.load()
        collected = Collected(checked)
        inputs = make_inputs(case, options.seed)
        try:
            checked.call(case, inputs)
            ended = ""
        except CallFailed as failed:
            ended = failed.words[0] if failed.words else "it failed"
            if failed.status == NOT_IMPLEMENTED:
                say(console, f"nothing to play back: {ended}", "yellow")
                return NOTHING_RUN
        launches, whole = collected.launches()
        findings = collected.findings()
    accesses = sum(launch.accesses for launch in launches)
    if not whole:
        what = "; ".join(f"{launch.kernel} in {counted(launch.blocks, 'block')}" for launch in launches)
        why = f"over {MOST_EVENTS:,} accesses to memory ({accesses:,} in {what}), the most that a page holds"
        raise ValueError(too_large(case, why, every, options.seed))
    if not any(len(launch.entry_of) for launch in launches):
        say(console, f"nothing to play back: {ended or 'no kernel ran'}", "yellow")
        return NOTHING_RUN
    problems = sum(not group.is_harmless for group in grouped([("", findings)]))
    shapes = " and ".join(f"{name} {list(x.shape)}" for name, x in inputs.items())
    about = [f"{program.split('.')[0]}, {options.variant.words}", shapes]
    about.append(f"{accesses:,} accesses to memory")
    if ended:
        about.append(f"it ended early: {ended}")
    with working(console, "writing the page ..."):
        text = replay_page(full_name(case), "; ".join(about), command_of(program, arguments), launches, findings)
    if len(text.encode()) > MOST_BYTES:
        why = f"its page would have {len(text.encode()):,} bytes; at most {MOST_BYTES:,} are written"
        raise ValueError(too_large(case, why, every, options.seed))
    file = Path(options.html) if options.html else default_file(program.split(".")[0], case)
    write_whole(file, text)
    found = f", {counted(problems, 'finding')}" if problems else ""
    say(
        console,
        f"{shown_path(file)}: {len(text.encode()):,} bytes, {accesses:,} accesses{found}. Open it in a browser.",
    )
    return int(bool(problems or ended))


def default_file(task: str, case: Case) -> Path:
    """build/replay/task2/softmax-7-x-31.html."""
    name = re.sub(r"[^a-z0-9]+", "-", full_name(case).lower()).strip("-")
    return build_root() / "replay" / task / f"{name}.html"
