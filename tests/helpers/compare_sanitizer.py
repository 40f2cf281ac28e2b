"""python tests/helpers/compare_sanitizer.py --out comparison.md: the checked simulator beside compute-sanitizer.

Needs a GPU, nvcc and compute-sanitizer; g++ for the simulator's half. Builds the cases as one program (driver.cu), runs
each under memcheck, racecheck, initcheck and synccheck, and writes a table: what each tool found, whether both sides
agree, who is right. Right cases are tried several at a time and one by one only where a tool objects.
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
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from checked_cases import CASES, SOURCES, Case
from checked_kernels import CheckedLibrary
from simulator_library import ROOT, compile_library

from common.compiling import toolchain

HOPPER = "-gencode=arch=compute_90a,code=sm_90a"  # for wgmma; their cases need such a GPU
HERE = ROOT / "tests" / "common" / "simulator" / "checked"
TOOLS = {
    "memcheck": ["--leak-check", "full", "--report-api-errors", "explicit"],
    "racecheck": [],
    "initcheck": ["--initcheck-address-space", "all"],
    "synccheck": [],
}
# What these two mean together: a kernel was stopped, and every call after it fails and frees nothing.
ACCESS_ERRORS = ("out of bounds", "misaligned", "invalid access")
CONSEQUENCES = ("leak", "API error")


@dataclass
class Verdict:
    """What one tool said of one run.

    Attributes:
        kinds: how often each kind of mistake was reported, in the order of their first appearance.
        lines: the lines of *.cu that the reports name.
        trouble: why there is no verdict ("no end in 30 s"); "" if there is one.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    lines: set[tuple[str, int]] = field(default_factory=set)
    trouble: str = ""

    @property
    def shown(self) -> str:
        """For a cell of the table."""
        found = ", ".join(kind if count == 1 else f"{kind} ({count})" for kind, count in self.kinds.items())
        return "; ".join(part for part in (found, self.trouble) if part)


_REPORTS = [  # a line of a tool's output, and the kind of mistake that it reports
    (re.compile(r"Leaked [\d,]+ bytes"), "leak"),
    (re.compile(r"Program hit \w+ \(error \d+\).* on CUDA API call to (\w+)"), "API error"),
    (re.compile(r"\b(Error|Warning|ERROR|WARNING): Race reported between"), "race"),
    (re.compile(r"Uninitialized (?:__(\w+)__ memory read|access at)"), "uninitialized"),
    (re.compile(r"Barrier error detected\. ?(.*?)\.?$"), "barrier"),
]
_INVALID = re.compile(r"Invalid __\w+__ (?:read|write|atomic)")
_ADDRESS = re.compile(r"Address 0x[0-9a-f]+ is (misaligned|out of bounds)")
_LINE = re.compile(r"(\w+\.cu):(\d+)")
_SUMMARY = re.compile(r"(?:ERROR|RACECHECK|LEAK) SUMMARY: (\d+)")


def read_report(text: str) -> Verdict:
    """The verdict in a tool's output."""
    verdict = Verdict()
    lines = [line.lstrip("=").strip() for line in text.splitlines() if line.startswith("========")]
    open_access = False  # "Invalid ... read" is followed by a line that says what is wrong with the address
    for line in lines:
        if _INVALID.search(line):
            verdict.kinds["invalid access"] += 1
            open_access = True
        elif (address := _ADDRESS.search(line)) and open_access:
            verdict.kinds["invalid access"] -= 1
            verdict.kinds[address[1]] += 1
            open_access = False
        for pattern, kind in _REPORTS:
            if match := pattern.search(line):
                detail = (match[1] or "").strip() if match.groups() else ""
                verdict.kinds[f"{kind}: {detail}" if detail else kind] += 1
        for file, number in _LINE.findall(line):
            verdict.lines.add((file, int(number)))
    if any(verdict.kinds[kind] for kind in ACCESS_ERRORS):
        for kind in [kind for kind in verdict.kinds if kind.startswith(CONSEQUENCES)]:
            del verdict.kinds[kind]
    verdict.kinds = +verdict.kinds
    summaries = [int(match[1]) for match in map(_SUMMARY.search, lines) if match]
    if not summaries:
        verdict.trouble = "no summary: " + (lines[-1] if lines else text.strip()[-200:] or "no output")
    elif max(summaries) and not verdict.kinds:
        verdict.kinds["other"] = max(summaries)
    return verdict


def run_killable(command: list[str | Path], seconds: float) -> tuple[str, bool]:
    """A command's output, and whether it had to be killed, with all that it started."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True
    )
    try:
        return process.communicate(timeout=seconds)[0], False
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        try:
            return process.communicate(timeout=10)[0] or "", True
        except subprocess.TimeoutExpired:  # held by the driver
            return "", True


class Sanitizer:
    """compute-sanitizer on the built program."""

    def __init__(self, program: Path, executable: str, seconds: float) -> None:
        self.program, self.executable, self.seconds = program, executable, seconds
        self.version = subprocess.run([executable, "--version"], capture_output=True, text=True).stdout
        known = subprocess.run(
            [executable, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ).stdout
        self.options = {tool: options if not options or options[0] in known else [] for tool, options in TOOLS.items()}

    def run(self, tool: str, cases: Sequence[Case]) -> Verdict:
        """One tool's verdict on a run of these cases."""
        names = [cases[0].name] if len(cases) == 1 else ["--results", *(case.name for case in cases)]
        command = [self.executable, "--tool", tool, *self.options[tool], self.program, *names]
        seconds = self.seconds / 2 if cases[0].hangs else self.seconds
        text, killed = run_killable(command, seconds)
        verdict = read_report(text)
        if killed:
            verdict.trouble = f"no end in {seconds:.0f} s"
        return verdict


def build_program(
    folder: Path, nvcc: str | Path, arch: str, jobs: int, sources: Sequence[Path] = tuple(SOURCES)
) -> Path:
    """The cases of these files as one program for the GPU."""
    flags = ["-std=c++20", "-lineinfo", f"-I{ROOT}"]

    def compile_one(source: Path) -> Path:
        result = folder / f"{source.stem}.o"
        target = [HOPPER] if source.name.startswith("hopper_") else [f"-arch={arch}"]
        done = subprocess.run([nvcc, *flags, *target, "-c", source, "-o", result], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{source.name}: {done.stdout}{done.stderr}")
        print(done.stderr, end="", file=sys.stderr)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        objects = list(pool.map(compile_one, [HERE / "driver.cu", *sources]))
    program = folder / "cases"
    subprocess.run([nvcc, f"-arch={arch}", "-Xcompiler=-rdynamic", *objects, "-ldl", "-o", program], check=True)
    return program


def wrong_results(program: Path, seconds: float, all_cases: Sequence[Case] = tuple(CASES)) -> list[str]:
    """The right cases that do not compute on the GPU what cases.py says."""
    cases = [case for case in all_cases if case.result is not None]
    text, killed = run_killable([program, "--results", *(case.name for case in cases)], seconds)
    rows = {words[0]: np.array(words[1:], np.float32) for words in map(str.split, text.splitlines()) if len(words) > 99}
    if killed:
        return [f"no end in {seconds:.0f} s"]
    return [case.name for case in cases if case.name not in rows or not case.is_result(rows[case.name])]


def ours(cases: Sequence[Case], folder: Path) -> dict[str, Verdict]:
    """The checked simulator's verdicts."""
    library = CheckedLibrary(compile_library(SOURCES, folder, checked=True))
    verdicts = {}
    for case in cases:
        outcome = library.run(case)
        verdict = verdicts[case.name] = Verdict()
        for found in outcome.found:
            verdict.kinds[found.kind] += 1
            verdict.lines |= found.places
        if outcome.error and not verdict.kinds:
            verdict.kinds[title_of(outcome.error)] += 1
            verdict.lines |= {(file, int(number)) for file, number in _LINE.findall(outcome.error)}
    return verdicts


def title_of(error: str) -> str:
    """What a launch's error text says first, without the places: "deadlock", "barrier divergence"."""
    line = re.sub(r"^\S+:\d+: ", "", error.splitlines()[0].removeprefix("undefined operation: "))
    return re.split(r"[,(]|: (?:in|this) ", re.sub(r" at \S+:\d+", "", line))[0].strip()


def theirs(cases: Sequence[Case], sanitizer: Sanitizer, jobs: int, batch: int) -> dict[str, dict[str, Verdict]]:
    """case -> tool -> verdict. Cases that may hang come last."""
    verdicts: dict[str, dict[str, Verdict]] = {case.name: {} for case in cases}
    right = [case for case in cases if not case.is_wrong]
    wrong = sorted((case for case in cases if case.is_wrong), key=lambda case: case.hangs)
    groups = [right[i : i + batch] for i in range(0, len(right), batch)] + [[case] for case in wrong]

    def judge(tool: str, group: list[Case]) -> list[Case]:
        verdict = sanitizer.run(tool, group)
        if len(group) > 1 and verdict.shown:
            return group  # who of them? once more, one by one
        for case in group:
            verdicts[case.name][tool] = verdict
        return []

    with ThreadPoolExecutor(jobs) as pool:
        first: list[tuple[str, Future]] = [(tool, pool.submit(judge, tool, g)) for g in groups for tool in TOOLS]
        again = [pool.submit(judge, tool, [case]) for tool, future in first for case in future.result()]
        for future in again:
            future.result()
    return verdicts


# ---- the table


def found_by(verdict: Verdict | None) -> bool:
    return bool(verdict and verdict.kinds)


def row(case: Case, mine: Verdict | None, tools: dict[str, Verdict]) -> list[str]:
    """case, mistake, ours, the four tools, agree, right, why"""
    we, they = found_by(mine), any(map(found_by, tools.values()))
    if mine is None:
        agree = who = ""
    else:
        agree = "yes" if we == they else "no"
        who = {(True, True): "both", (True, False): "ours", (False, True): "NVIDIA", (False, False): "neither"}[
            (we == case.is_wrong, they == case.is_wrong)
        ]
    remark = case.remark if agree != "yes" or who != "both" else ""
    cells = [tools[tool].shown or "-" if tool in tools else "not run" for tool in TOOLS]
    shown = (mine.shown or "-") if mine else "not run"
    return [case.name, "yes" if case.is_wrong else "no", shown, *cells, agree, who, remark]


def named_lines(cases: Sequence[Case], verdicts: dict[str, list[Verdict]]) -> tuple[int, int]:
    """Of the wrong cases that were found and whose lines are known: how many had all of them named, and how many."""
    whole = known = 0
    for case in cases:
        expected = {(case.file, case.line(comment)) for finding in case.findings for comment in finding.lines}
        expected |= {(case.file, case.line(comment)) for comment in case.error_lines}
        found = [verdict for verdict in verdicts.get(case.name, []) if found_by(verdict)]
        if not expected or not found:
            continue
        known += 1
        whole += expected <= set().union(*(verdict.lines for verdict in found))
    return whole, known


def table(rows: list[list[str]]) -> str:
    head = ["case", "mistake", "ours", *TOOLS, "agree", "right", "why"]
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in one] for one in rows)]
    return "\n".join("| " + " | ".join(one) + " |" for one in lines)


def summary(cases: Sequence[Case], mine: dict[str, Verdict], tools: dict[str, dict[str, Verdict]]) -> list[str]:
    """Who found how many mistakes, who raised how many false alarms."""
    wrong = [case for case in cases if case.is_wrong]
    right = [case for case in cases if not case.is_wrong]
    lines = []
    everyone = {"compute-sanitizer, all tools": {name: list(by_tool.values()) for name, by_tool in tools.items()}}
    for tool in TOOLS:
        everyone[tool] = {name: [by_tool[tool]] for name, by_tool in tools.items() if tool in by_tool}
    if mine:
        everyone = {"the checked simulator": {name: [verdict] for name, verdict in mine.items()}} | everyone
    for who, verdicts in everyone.items():
        found = sum(any(map(found_by, verdicts.get(case.name, []))) for case in wrong)
        alarms = sum(any(map(found_by, verdicts.get(case.name, []))) for case in right)
        whole, known = named_lines(wrong, verdicts)
        lines.append(
            f"- {who}: {found} of {len(wrong)} mistakes found, {alarms} false alarms on {len(right)} right cases; "
            f"all lines named in {whole} of {known}"
        )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python tests/helpers/compare_sanitizer.py", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--out", type=Path, required=True, help="the table, as Markdown")
    parser.add_argument("--jobs", type=int, default=12, help="processes at a time (default: 12)")
    parser.add_argument("--timeout", type=float, default=30, help="seconds for one run (default: 30)")
    parser.add_argument("--batch", type=int, default=12, help="right cases per run (default: 12)")
    parser.add_argument("--arch", default="native", help="nvcc's target (default: the GPU that is present)")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases only")
    parser.add_argument("--hopper", action="store_true", help="the cases in hopper_*.cu only (they need sm_90a)")
    options = parser.parse_args(argv)
    unknown = set(options.only or ()) - {case.name for case in CASES}
    if unknown:
        parser.error(f"--only: no such case: {', '.join(sorted(unknown))}")
    cases = [
        case
        for case in CASES
        if (not options.only or case.name in options.only) and (not options.hopper or case.file.startswith("hopper_"))
    ]

    nvcc = next(toolchain.all_nvccs(), None)
    if nvcc is None:
        parser.error("nvcc was not found")
    executable = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(nvcc.home / "bin"))
    if executable is None:
        parser.error(f"compute-sanitizer was not found on PATH or in {nvcc.home / 'bin'}")

    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as background:
        simulator = None
        if shutil.which(os.environ.get("CXX", "c++")):
            simulator = background.submit(ours, cases, Path(folder) / "simulator")
        files = {case.file for case in cases}
        sources = [source for source in SOURCES if source.name in files]
        program = build_program(Path(folder), nvcc.path, options.arch, options.jobs, sources)
        print(f"{time.monotonic() - start:5.0f} s: built", flush=True)
        wrong = wrong_results(program, options.timeout, cases)
        sanitizer = Sanitizer(program, executable, options.timeout)
        tools = theirs(cases, sanitizer, options.jobs, options.batch)
        print(f"{time.monotonic() - start:5.0f} s: compute-sanitizer is done", flush=True)
        mine = {}
        try:
            mine = simulator.result() if simulator else {}
        except RuntimeError as error:
            print(f"the simulator's half is missing: {error}", file=sys.stderr)
    seconds = time.monotonic() - start

    version = re.search(r"Version ([\d.]+)", sanitizer.version)
    gpu = toolchain.driver_gpu_name() or "unknown GPU"
    rows = [row(case, mine.get(case.name), tools[case.name]) for case in cases]
    text = "\n".join(
        [
            "# The checked simulator beside compute-sanitizer",
            "",
            f"{gpu}, CUDA {'.'.join(map(str, nvcc.version))}, compute-sanitizer "
            f"{version[1] if version else 'unknown'}; {len(cases)} cases in {seconds:.0f} s:",
            "`python tests/helpers/compare_sanitizer.py --out ...`",
            "",
            *summary(cases, mine, tools),
            f"- right cases whose numbers on the GPU are not those of cases.py: {', '.join(wrong) or 'none'}",
            "",
            "Cases in which one of the two is wrong:",
            "",
            table([one for one in rows if one[-3:-1] != ["yes", "both"]]),
            "",
        ]
    )
    options.out.write_text(text)
    print(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
