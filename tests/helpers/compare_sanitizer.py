"""python tests/helpers/compare_sanitizer.py --out comparison.md: the checked simulator compared with compute-sanitizer.

Needs a GPU, nvcc and compute-sanitizer, and g++ for the simulator. Builds the cases as one program (driver.cu), runs
each under memcheck, racecheck, initcheck and synccheck, and writes a table: what each tool found, whether both sides
agree, and which is right.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
from checked_cases import CASES, SOURCES, Case
from checked_kernels import CaseLibrary
from simulator_library import ROOT, compile_library

from common.compiling import toolchain
from common.inspect.findings.compute_sanitizer import read_output

HOPPER = "-gencode=arch=compute_90a,code=sm_90a"  # for wgmma; these cases need such a GPU
HERE = ROOT / "tests" / "common" / "simulator" / "checked"
TOOLS = {
    "memcheck": ["--leak-check", "full", "--report-api-errors", "explicit"],
    "racecheck": [],
    "initcheck": ["--initcheck-address-space", "all"],
    "synccheck": [],
}
_HOST = (  # host-code mistakes, which the course's `--check` leaves out
    (re.compile(r"Leaked [\d,]+ bytes"), "leak"),
    (re.compile(r"Program hit \w+ \(error \d+\).* on CUDA API call to"), "API error"),
    (re.compile(r"Uninitialized access at"), "uninitialized"),
)
_LINE = re.compile(r"(\w+\.cu):(\d+)")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK|LEAK) SUMMARY: (\d+)")


@dataclass
class Verdict:
    """One side's verdict on a case: the count of each kind of mistake, and the lines of *.cu that it names.

    trouble: why there is no verdict ("no end in 30 s"); "" if there is one.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    lines: set[tuple[str, int]] = field(default_factory=set)
    trouble: str = ""

    @property
    def shown(self) -> str:
        """As a table cell."""
        found = ", ".join(kind if count == 1 else f"{kind} ({count})" for kind, count in self.kinds.items())
        return "; ".join(part for part in (found, self.trouble) if part) or "-"


def read_report(text: str) -> Verdict:
    """Parses the verdict from a tool's output. A stopped kernel leaks, and later calls fail: neither is counted."""
    verdict = Verdict()
    for one in read_output(text, SOURCES):
        verdict.kinds[one.kind] += 1
    for pattern, kind in () if verdict.kinds else _HOST:
        if number := len(pattern.findall(text)):
            verdict.kinds[kind] = number
    verdict.lines = {(file, int(number)) for file, number in _LINE.findall(text)}
    summaries = [int(number) for number in _SUMMARY.findall(text)]
    if not summaries:
        verdict.trouble = "no summary: " + (text.strip().splitlines() or ["no output"])[-1].lstrip("= ")
    elif max(summaries) and not verdict.kinds:
        verdict.kinds["other"] = max(summaries)
    return verdict


def run_killable(command: Sequence[str | Path], seconds: float) -> tuple[str, bool]:
    """A command's output, and whether it had to be killed along with everything it started."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = subprocess.Popen(command, **options, start_new_session=True)
    try:
        return process.communicate(timeout=seconds)[0], False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=10)[0] or "", True
    except subprocess.TimeoutExpired:  # stuck in the driver
        return "", True


def build_program(folder: Path, nvcc: str | Path, jobs: int, sources: Sequence[Path]) -> Path:
    """Builds the cases in these files as one program for the local GPU."""

    def compile_one(source: Path) -> Path:
        result = folder / f"{source.stem}.o"
        target = HOPPER if source.name.startswith("hopper_") else "-arch=native"
        command = [nvcc, "-std=c++20", "-lineinfo", f"-I{ROOT}", target, "-c", source, "-o", result]
        subprocess.run(command, check=True)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, [HERE / "driver.cu", *sources]))
    program = folder / "cases"
    subprocess.run([nvcc, "-arch=native", "-Xcompiler=-rdynamic", *objects, "-ldl", "-o", program], check=True)
    return program


def wrong_results(program: Path, seconds: float, cases: Sequence[Case]) -> list[str]:
    """The right cases whose GPU results differ from checked_cases.py."""
    cases = [case for case in cases if case.result is not None]
    text, killed = run_killable([program, "--results", *(case.name for case in cases)], seconds)
    rows = {words[0]: np.array(words[1:], np.float32) for words in map(str.split, text.splitlines()) if len(words) > 99}
    if killed:
        return [f"no end in {seconds:.0f} s"]
    return [case.name for case in cases if case.name not in rows or not case.is_result(rows[case.name])]


def ours(cases: Sequence[Case], folder: Path) -> dict[str, Verdict]:
    """The checked simulator's verdicts."""
    library = CaseLibrary(compile_library(SOURCES, folder, checked=True))
    verdicts = {}
    for case in cases:
        outcome = library.outcome(case)
        kinds = Counter(found.kind for found in outcome.found)
        lines = {place for found in outcome.found for place in found.places}
        if outcome.error and not kinds:
            kinds[title_of(outcome.error)] += 1
            lines = {(file, int(number)) for file, number in _LINE.findall(outcome.error)}
        verdicts[case.name] = Verdict(kinds, lines)
    return verdicts


def title_of(error: str) -> str:
    """The first words of a launch's error text, without the locations: "deadlock", "barrier divergence"."""
    line = re.sub(r"^\S+:\d+: ", "", error.splitlines()[0].removeprefix("undefined operation: "))
    return re.split(r"[,(]|: (?:in|this) ", re.sub(r" at \S+:\d+", "", line))[0].strip()


def theirs(cases: Sequence[Case], tool: str, program: Path, seconds: float, jobs: int) -> dict[str, dict[str, Verdict]]:
    """case -> tool -> compute-sanitizer's verdict. Cases that may hang come last."""

    def judge(asked: tuple[Case, str]) -> Verdict:
        case, name = asked
        limit = seconds / 2 if case.hangs else seconds
        text, killed = run_killable([tool, "--tool", name, *TOOLS[name], program, case.name], limit)
        verdict = read_report(text)
        verdict.trouble = f"no end in {limit:.0f} s" if killed else verdict.trouble
        return verdict

    every = list(product(sorted(cases, key=lambda case: case.hangs), TOOLS))
    verdicts: dict[str, dict[str, Verdict]] = {case.name: {} for case in cases}
    with ThreadPoolExecutor(jobs) as pool:
        for (case, name), verdict in zip(every, pool.map(judge, every), strict=True):
            verdicts[case.name][name] = verdict
    return verdicts


def row(case: Case, mine: Verdict, tools: dict[str, Verdict]) -> list[str]:
    """case, mistake, ours, the four tools, agree, right, why"""
    we, they = bool(mine.kinds), any(one.kinds for one in tools.values())
    right = (we == case.is_wrong, they == case.is_wrong)
    who = {(True, True): "both", (True, False): "ours", (False, True): "NVIDIA", (False, False): "neither"}[right]
    shown = [mine.shown, *(tools[name].shown if name in tools else "not run" for name in TOOLS)]
    agree = "yes" if we == they else "no"
    return [case.name, "yes" if case.is_wrong else "no", *shown, agree, who, "" if who == "both" else case.remark]


def summary(cases: Sequence[Case], who: str, verdicts: dict[str, list[Verdict]]) -> str:
    """How many mistakes one side found, how many false alarms it raised, and how often it named all lines."""
    wrong, right = ([case for case in cases if case.is_wrong == is_wrong] for is_wrong in (True, False))
    found, alarms = (sum(any(one.kinds for one in verdicts[case.name]) for case in group) for group in (wrong, right))
    whole = known = 0
    for case in wrong:
        comments = [comment for finding in case.findings for comment in finding.lines] + [*case.error_lines]
        expected = {(case.file, case.line(comment)) for comment in comments}
        telling = [one.lines for one in verdicts[case.name] if one.kinds]
        if expected and telling:
            known += 1
            whole += expected <= set().union(*telling)
    return (
        f"- {who}: {found} of {len(wrong)} mistakes found, {alarms} false alarms on {len(right)} right cases; "
        f"all lines named in {whole} of {known}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/helpers/compare_sanitizer.py")
    parser.add_argument("--out", type=Path, required=True, help="the table, as Markdown")
    parser.add_argument("--jobs", type=int, default=12, help="processes at a time (default: 12)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for one run (default: 30)")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases only")
    parser.add_argument("--hopper", action="store_true", help="the cases in hopper_*.cu only (they need sm_90a)")
    options = parser.parse_args(argv)
    chosen = [case for case in CASES if not options.only or case.name in options.only]
    cases = [case for case in chosen if not options.hopper or case.file.startswith("hopper_")]
    nvcc = toolchain.nvcc_for_build()
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(nvcc.home / "bin"))
    if tool is None or not cases:
        parser.error("no such case" if tool else f"compute-sanitizer was not found on PATH or in {nvcc.home / 'bin'}")
    with tempfile.TemporaryDirectory() as folder:
        sources = [source for source in SOURCES if source.name in {case.file for case in cases}]
        program = build_program(Path(folder), nvcc.path, options.jobs, sources)
        wrong = wrong_results(program, options.timeout, cases)
        tools = theirs(cases, tool, program, options.timeout, options.jobs)
        mine = ours(cases, Path(folder) / "simulator")
    sides = {"the checked simulator": {name: [one] for name, one in mine.items()}}
    sides["compute-sanitizer, all tools"] = {name: list(by_tool.values()) for name, by_tool in tools.items()}
    sides |= {tool: {name: [by_tool[tool]] for name, by_tool in tools.items()} for tool in TOOLS}
    rows = [row(case, mine[case.name], tools[case.name]) for case in cases]
    head = ["case", "mistake", "ours", *TOOLS, "agree", "right", "why"]
    told = [[cell.replace("|", "\\|") for cell in one] for one in rows if one[-2] != "both"]
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout
    number = re.search(r"Version ([\d.]+)", version)
    text = [
        f"# The checked simulator compared with compute-sanitizer {number[1] if number else ''}",
        "",
        f"{toolchain.driver_gpu_name()}, CUDA {'.'.join(map(str, nvcc.version))}; {len(cases)} cases:",
        "`python tests/helpers/compare_sanitizer.py --out ...`",
        "",
        *(summary(cases, who, verdicts) for who, verdicts in sides.items()),
        f"- right cases whose numbers on the GPU are not those of checked_cases.py: {', '.join(wrong) or 'none'}",
        "",
        "Cases in which one of the two is wrong:",
        "",
        *(f"| {' | '.join(one)} |" for one in (head, ["---"] * len(head), *told)),
    ]
    options.out.write_text("\n".join(text) + "\n")
    print("\n".join(text))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
