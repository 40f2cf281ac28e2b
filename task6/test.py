"""Tests task 6: the cache update bit for bit, attention and the layer around it against a float64 reference.

python -m task6.test [--update] [--decode] [--generate] [--split] [--pipeline] [--speed] [--report] [--solution] ...

--pipeline also lets the model generate, and --speed times the decode kernel (on a GPU); see pipeline.py and speed.py.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from common import build, check_report, cli
from common.checking import Case
from common.cli import test_main
from common.gaps import find_gaps
from common.timed_part import NOTHING_RUN
from task6 import pipeline, speed
from task6.kernel_cases import decode_cases, generate_cases, split_cases, update_cases
from task6.pipeline_cases import pipeline_cases

PARTS = {
    "update": "test update_cache only",
    "decode": "test decode_attention only",
    "generate": "test both together: a prompt, then token after token",
    "split": "test decode_attention_split only (optional)",
    "pipeline": "test customAttention only; then the model generates, and its times are shown",
}


def cases() -> list[Case]:
    """All test cases; update is worth 1 point, decode 1.5, generate 0.5, pipeline 1, and split none."""
    return update_cases() + decode_cases() + generate_cases() + split_cases() + pipeline_cases()


NO_TIMES = {"--list", "--check", "--profile", "--under-tool", "--case", "-h", "--help"}


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: common.cli.test_main runs the cases; then come the times that were asked for.

    Returns:
        The exit status: that of the cases, or 1 if what was measured is wrong.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    mine, others = _own_parser().parse_known_args(given)
    if {"-h", "--help"} & set(others):
        print(_own_parser().format_help())
    chosen = _build_parser().parse_known_args(others)[0]
    no_times = [argument for argument in others if argument.split("=")[0] in NO_TIMES]
    console = Console()
    status = 0
    if refused := _refused(mine, chosen, no_times):
        console.print(refused, highlight=False, soft_wrap=True)
        return NOTHING_RUN
    if chosen.parts or no_times or not mine.speed:
        named = any(argument.startswith(("--case", "--list")) for argument in no_times)
        made, left_out = (cases(), "") if named else _without_optional(cases(), chosen)
        status = test_main("task6", PARTS, made, others)
        if left_out and not no_times:
            check_report.wide(console).print(left_out, markup=False, highlight=False)
    if no_times or status == NOTHING_RUN:
        return status
    try:
        ops = build.load("task6", chosen.solution, chosen.backend, chosen.arch, tuned=chosen.tuned)
    except cli.EXPECTED_ERRORS as error:
        console.print(str(error), markup=False, highlight=False, soft_wrap=True)
        return NOTHING_RUN
    command = shlex.join(["python", "-m", "task6.test", *given])
    if "pipeline" in (chosen.parts or ()):
        status = max(status, pipeline.run(console, ops, mine, command))
    if mine.speed or not chosen.parts:
        timed = speed.run(console, ops, mine.report, command)
        status = max(status, 0 if timed == NOTHING_RUN and not mine.speed else timed)
    return status


def _refused(mine: argparse.Namespace, chosen: argparse.Namespace, no_times: Sequence[str]) -> str:
    """Why the options do not go together; "" if they do."""
    if mine.speed and no_times:
        return f"{no_times[0]} is about test cases, and --speed has none: leave one of the two out"
    timed = not no_times and (mine.speed or not chosen.parts or "pipeline" in chosen.parts)
    if mine.report and not timed:
        return "--report writes times, and nothing here is timed: add --speed or --pipeline, or name no part"
    if mine.size and "pipeline" not in (chosen.parts or ()):
        return "--size chooses the model of --pipeline; add that"
    return ""


def _own_parser() -> argparse.ArgumentParser:
    """The options that test_main does not have."""
    parser = argparse.ArgumentParser(prog="python -m task6.test", add_help=False, allow_abbrev=False)
    parser.add_argument("--speed", action="store_true", help="time the decode kernel only, on a GPU")
    parser.add_argument("--report", action="store_true", help="write the times into Results.md")
    pipeline.add_arguments(parser)
    return parser


def _build_parser() -> argparse.ArgumentParser:
    """Those of test_main's that say what is built, and which parts are chosen."""
    parser = argparse.ArgumentParser(add_help=False)
    cli.add_build_arguments(parser)
    parser.add_argument("--tuned", action="store_true")
    for part in PARTS:
        parser.add_argument(f"--{part}", action="append_const", dest="parts", const=part)
    return parser


def _without_optional(made: list[Case], chosen: argparse.Namespace) -> tuple[list[Case], str]:
    """Without the optional part while nobody has begun it or asks for it: (the cases, what to say of it)."""
    if chosen.parts or chosen.solution or chosen.tuned:
        return made, ""
    gaps = [str(gap) for gap in find_gaps(build.kernel_sources("task6")) if gap.function == "split_kernel"]
    if not gaps:
        return made, ""
    said = f"split (optional): not filled yet, so not tested: {'; '.join(gaps)}. --split tests it"
    return [case for case in made if case.part != "split"], said


if __name__ == "__main__":
    raise SystemExit(main())
