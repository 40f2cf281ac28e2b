"""Generates docs/colab.ipynb from task 1's handout and its gaps: python docs/colab.py [--compare]

The story comes first, then the handout: its sections become text cells, and each part is followed by its gaps, one cell
each, and its tests. This script repeats no text of the handout. --compare writes nothing, and exits with 1 if the
notebook is out of date.
"""

from __future__ import annotations

import argparse
import base64
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common.compiling.student_gaps import StudentGap, gaps_of, given_out
from common.console.files import write_whole
from common.course.hints import hints_of

NOTEBOOK = Path(__file__).with_suffix(".ipynb")
TASK = "task1"
GAPS_AFTER = {"Part 1": "attention.py", "Part 2": "naive_attention.cu"}  # title prefix -> whose gaps follow
LEFT_OUT = ("Start here",)  # about the shell and the editor

ABOUT = """\
# Task 1 as a notebook

The same handout, files, and tests as in a shell, with the gaps as cells: fill one in, run it, then run the test below
it. To use a T4, choose Runtime, Change runtime type; without a GPU the kernels run in the course's simulator.
`docs/set-up.md` lists what a T4 can't run.
"""
BEGIN = """\
# The address of your course's repository, as for `git clone`
REPOSITORY = ""

import shutil, sys
from pathlib import Path

class Stop(Exception):  # ends "Run all" with its message and no traceback
    def _render_traceback_(self):
        return [str(self)]


here = [Path.cwd(), *Path.cwd().parents]
root = next((folder for folder in here if (folder / "task1" / "task.json").is_file()), None)
if root is None and not REPOSITORY:
    raise Stop("Write the address of your course's repository between the quotes of REPOSITORY, then run all again.")
if root is None:
    !git clone -q {REPOSITORY} course
    root = Path("course")
%cd -q {root}
if "google.colab" in sys.modules:  # minutes: torch in the version of the course, and on a GPU the compiler
    extra = "[cuda]" if shutil.which("nvidia-smi") else ""
    %pip install -q -e ".{extra}" -c constraints.txt
sys.path.insert(0, str(Path.cwd()))
%load_ext common.course.notebook
!python -m common.doctor
"""
PLAYED_CASE = "attention: causal"
PLAYED = """\
## Look inside

Your three kernels, played back access by access: who reads and who writes, line by line. `launch` chooses the kernel;
click a thread to follow it.
"""
STORY = """\
## First, a story

This is where the course ends: a small GPT-2 writes with CUDA kernels. Here they are the reference solution's; by
task 7 they are yours.
"""


def text_cell(text: str) -> dict:
    """A Markdown cell. Embeds the handout's pictures; relative links, which don't work in a notebook, become text."""

    def copied(match: re.Match) -> str:
        picture = base64.b64encode((ROOT / TASK / match[2]).read_bytes()).decode()
        return f"![{match[1]}](data:image/svg+xml;base64,{picture})"

    words = re.sub(r"!\[([^\]]+)\]\(([^)]*\.svg)\)", copied, text.strip("\n"))
    words = re.sub(r"(?<!!)\[([^\]]+)\]\((?!http)[^)]*\)", r"\1", words)
    return {"cell_type": "markdown", "metadata": {}, "source": words.splitlines(keepends=True)}


def code_cell(code: str) -> dict:
    """A code cell that has not run."""
    lines = code.strip("\n").splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines}


def gap_cells(gap: StudentGap) -> list[dict]:
    """The gap's instructions, and the cell to fill in."""
    hint = [line.strip().lstrip("/#").strip() for line in gap.todo]
    marker = next(number for number, line in enumerate(hint) if line == "NOT_IMPLEMENTED();" or "raise" in line)
    about = " ".join(hint[:marker])
    code = f"%%gap {TASK} {gap.name}\n{hint[marker]}"
    return [text_cell(f"**{gap.name}**, `{gap.file.name}`: {about}"), code_cell(code)]


def sections(text: str) -> list[tuple[str, str]]:
    """(title, text) of each ## section of a handout; the text before the first has the title ""."""
    parts = re.split(r"(?m)^## ", text)
    return [("", parts[0]), *((part.split("\n", 1)[0], "## " + part) for part in parts[1:])]


def cells() -> list[dict]:
    """The notebook's cells.

    Raises:
        LookupError: the handout has no section for a file's gaps.
    """
    text = (ROOT / TASK / "README.md").read_text(encoding="utf-8")
    gaps, parts = gaps_of(TASK), {one.gap: one.parts for one in hints_of(TASK).gaps.values()}
    made, placed = [text_cell(ABOUT), code_cell(BEGIN)], set()
    made += [text_cell(STORY), code_cell("!python -m task7.inference --solution")]
    for title, section in sections(text):
        if title in LEFT_OUT:
            continue
        made.append(text_cell(section))
        for begins, file in GAPS_AFTER.items():
            if title.startswith(begins):
                placed.add(file)
                of_file = [gap for gap in gaps if gap.file.name == file]
                given = given_out(of_file[0].file)
                what = f"## The gaps of `{file}`\n\nWhat is around them can be read in `{TASK}/{file}`."
                made.append(text_cell(what + f" It has {len(given.splitlines())} lines."))
                tested: list[str] = []
                for place, gap in enumerate(of_file):
                    made += gap_cells(gap)
                    tested += [part for part in parts[gap.name] if part not in tested]
                    rest = {part for later in of_file[place + 1 :] for part in parts[later.name]}
                    if done := [part for part in tested if part not in rest]:
                        made.append(code_cell(f"!python -m {TASK}.test {' '.join(f'--{part}' for part in done)}"))
                        tested = [part for part in tested if part in rest]
    if missing := set(GAPS_AFTER.values()) - placed:
        raise LookupError(f"{TASK}/README.md has no section for the gaps of {missing.pop()}: see GAPS_AFTER")
    made.append(code_cell(f"!python -m {TASK}.test\n!python -m common.course progress"))
    made += [
        text_cell(PLAYED),
        code_cell(f'!python -m {TASK}.test --replay "{PLAYED_CASE}" --html replay.html'),
        code_cell("%page replay.html"),
    ]
    return made


def notebook() -> str:
    """The notebook file's content."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    content = {"cells": cells(), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    for number, cell in enumerate(content["cells"]):
        cell["id"] = f"cell-{number}"
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--compare", action="store_true", help="write nothing; exit 1 if it is out of date")
    options = parser.parse_args()
    new = notebook()
    same = NOTEBOOK.is_file() and NOTEBOOK.read_text(encoding="utf-8") == new
    if options.compare:
        print(f"docs/{NOTEBOOK.name}: {'up to date' if same else 'out of date: python docs/colab.py'}")
        return 0 if same else 1
    write_whole(NOTEBOOK, new)
    print(f"docs/{NOTEBOOK.name}: {'up to date' if same else 'written'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
