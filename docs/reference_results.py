"""Fills in one machine's part of docs/reference-results.md with the results of the --report commands.

    python docs/reference_results.py simulator
    python docs/reference_results.py gpu          on a machine with a GPU
    python docs/reference_results.py gpu --only task4,task7 --page COPY.md
    python docs/reference_results.py gpu --merge COPY.md OTHER.md     copies their sections

Every command runs in a copy of the checkout, so your Results.md isn't touched. A part is the text between the markers
<!-- BEGIN simulator --> and <!-- END simulator -->.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from solved_copy import copy_with_gaps, printed

from common.console.files import write_whole
from common.testing.results import markers, replaced

PAGE = Path(__file__).with_name("reference-results.md")
POINTS = r"(?m)^  \w[^\n]* of [\d.]+[^\n]*$|^Points: [^\n]*$"  # the last lines of a test's output


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        command: the command, after python -m.
        block: the name of the block that it writes into Results.md; "" if it writes none.
        keep: regular expression for the output lines to keep; "" for none.
        of: the machines that it runs on.
    """

    command: str
    block: str = ""
    keep: str = ""
    of: tuple[str, ...] = ("simulator", "gpu")


GPU = ("gpu",)
STEPS: dict[str, list[Step]] = {
    "task1": [Step("task1.test --solution", keep=POINTS)],
    "task2": [
        Step("task2.test --solution", keep=POINTS),
        Step("task2.benchmark --steps", keep=r"(?s).*", of=GPU),
    ],
    "task3": [Step("task3.test --solution", keep=POINTS), Step("task3.memory --solution", keep=r"(?s).*")],
    "task4": [
        Step("task4.test --full --causal --solution", keep=POINTS),
        Step("task4.test --speed --report --solution", "task4 speedups", of=GPU),
        Step("task4.test --speed --report --tuned", "task4 speedups", of=GPU),
        Step("task4.tune --solution", keep=r"(?s).*", of=GPU),
    ],
    "task5": [
        Step("task5.test --mode=correctness --solution", keep=POINTS),
        Step("task5.test --mode=benchmark --report --solution", "task5 benchmark", of=GPU),
        Step("task5.test --mode=benchmark --report --tuned", "task5 benchmark", of=GPU),
        Step("task5.train --solution", keep=r"(?m)^(?!backend|compiling|picture).+$"),
    ],
    "task6": [
        Step("task6.test --solution --update --decode --generate --split --ring", keep=POINTS),
        Step("task6.test --pipeline --report --solution", "task6 pipeline"),
        Step("task6.test --speed --report --solution", "task6 speedups", of=GPU),
        Step("task6.test --speed --report --tuned", "task6 speedups", of=GPU),
    ],
    "task7": [
        Step("task7.test --solution", keep=POINTS),
        Step("task7.inference --compare --report --solution", "task7 compare"),
        Step("task7.inference --compare --report --tuned --dtype fp16 --held-out 16", "task7 compare", of=GPU),
    ],
}


def said(folder: Path, step: Step, backend: str) -> list[str]:
    """The step's results in Markdown. A command that fails is reported as failed, with the end of its output."""
    flags = f" --backend {backend}" if backend == "simulator" and "memory" not in step.command else ""
    command = step.command + flags
    environment = os.environ | {"PYTHONPATH": str(folder), "COLUMNS": "110"}
    words = [sys.executable, "-m", *command.split()]
    before = (folder / "Results.md").read_text(encoding="utf-8")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment)
    print(f"python -m {command}: exit status {done.returncode}", flush=True)
    lines = [f"`python -m {command}`", ""]
    untouched = step.block and (folder / "Results.md").read_text(encoding="utf-8") == before
    if done.returncode not in (0, 1) or "Traceback" in done.stderr or untouched:
        return [*lines, "failed:", "", *fenced((done.stdout + done.stderr).strip().split("\n")[-8:]), ""]
    if step.block:
        return [*block(folder / "Results.md", step.block), ""]
    kept = done.stdout if step.keep == r"(?s).*" else "\n".join(re.findall(step.keep, done.stdout))
    return [*lines, *fenced(kept.strip("\n").split("\n")), ""]


def fenced(lines: Sequence[str]) -> list[str]:
    """The lines as a code block."""
    return ["```text", *(line.rstrip() for line in lines), "```"]


def block(file: Path, name: str) -> list[str]:
    """The lines between a block's markers."""
    begin, end = markers(name)
    text = file.read_text(encoding="utf-8")
    return text[text.index(begin) + len(begin) : text.index(end)].strip("\n").split("\n")


def machine(folder: Path) -> list[str]:
    """The doctor's report on this machine, without paths."""
    wanted = ("Python", "torch", "GPU", "nvcc ", "C++ compiler", "backend")
    report = printed(folder, "common.doctor", width=200)
    lines = [line for line in report.split("\n") if any(f" {word}" in line for word in wanted)]
    return [re.sub(r" ?\(/[^)]*\)", "", line).rstrip() for line in lines]


def title(task: str, machine: str) -> str:
    """The title of a section of the page."""
    return f"### {task.replace('task', 'Task ')}, {machine}"


def sections(text: str, machine: str) -> dict[str, list[str]]:
    """A machine's sections of a page: "machine" and each task -> lines. Empty if not filled in yet."""
    begin, end = markers(machine)
    lines = text[text.index(begin) + len(begin) : text.index(end)].strip("\n").split("\n")
    names = {title(task, machine): task for task in STEPS}
    found: dict[str, list[str]] = {}
    name = "machine"
    for line in lines:
        name = names.get(line, name)
        found.setdefault(name, []).append(line)
    return found if len(found) > 1 else {}


def measured(where: str, chosen: Sequence[str]) -> Iterator[dict[str, list[str]]]:
    """Measures these tasks and yields their sections, one at a time."""
    backend = "simulator" if where == "simulator" else "cuda"
    with tempfile.TemporaryDirectory() as scratch:
        folder = copy_with_gaps(Path(scratch, "course"))
        yield {"machine": [f"On {datetime.date.today()}:", "", *fenced(machine(folder)), ""]}
        for task in chosen:
            steps = [step for step in STEPS[task] if where in step.of]
            lines = [line for step in steps for line in said(folder, step, backend)]
            yield {task: [title(task, where), "", *lines]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("machine", choices=("simulator", "gpu"))
    parser.add_argument("--only", metavar="TASKS", help="for example task4,task7: only these tasks")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="run nothing: take these pages' sections")
    parser.add_argument("--page", type=Path, default=PAGE, metavar="FILE", help="default: docs/reference-results.md")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(STEPS)
    if unknown := [name for name in chosen if name not in STEPS]:
        parser.error(f"--only: {unknown[0]!r} is no task; there are {', '.join(STEPS)}")
    text = (options.page if options.page.is_file() else PAGE).read_text(encoding="utf-8")
    found = sections(text, options.machine)
    pages = options.merge or []
    news = (sections(page.read_text(encoding="utf-8"), options.machine) for page in pages)
    for new in news if pages else measured(options.machine, chosen):  # written after each: the run may be interrupted
        found |= new
        lines = [line for name in ("machine", *STEPS) for line in found.get(name, [])]
        write_whole(options.page, replaced(text, options.machine, ["", *lines]))
    print(options.page)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
