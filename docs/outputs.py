"""Updates the command output shown in the handouts: python docs/outputs.py [--stale] [--gpu] [TEXT ...]

A block is fenced text between two comments; the first says where its output comes from:

    OUTPUT: python -m task2.test --gemm                            a checkout with all gaps filled
    OUTPUT: python -m task2.test --gemm (unfilled)                 a checkout as students get it
    OUTPUT: python -m task2.test --gemm (words of PLANTED)         the solved checkout with that mistake
    OUTPUT: python tests/helpers/time_checked.py (times)           numbers differ in every run: never stale
    OUTPUT: torchrun --nproc-per-node 4 -m task6.ring              run by torchrun
    OUTPUT: ... (one NVIDIA H200, ...)                             on a GPU: --gpu updates these, and only these

For a failing run, a block holds the output after the table, plus the points if it had them before; of a test's table,
the first three cases. Handouts must not reveal solutions: where a report quotes a line of a gap, the block has
"(your line)" instead. TEXT: only blocks whose comment contains one of these. --stale writes nothing, lists blocks that
differ in more than times, and exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track
from shown_mistakes import PLANTED
from solved_copy import ROOT, copy_with_gaps, copy_with_gaps_filled, planted, printed

from common.compiling.skeletons import parse, solution_files, student_file

WIDTH = 116  # columns
LONG = 20  # characters that identify a line that was cut off
SHOWN_CASES = 3  # of a test's table
DOCUMENTS = ("task*/*.md", "docs/*.md", "common/simulator/README.md")
_BLOCK = re.compile(
    r"<!-- OUTPUT: (?:python (?:-m )?)?(?P<command>[^(\n]*?)(?P<gpu>, on one NVIDIA \w+)?"
    r"(?: \((?P<how>[^\n]*)\))? -->\n\n```text\n"
    r"(?P<body>(?:(?!<!-- ).)*?)\n```\n\n<!-- END OUTPUT -->",
    re.DOTALL,
)
_TROUBLE = re.compile(r"(The checked build|\d+\. [\w ']+ in |[\w-]+: .*  (FAIL|error|not implemented))")
_FINDINGS = re.compile(r"\d+ findings? in|\w+  grid \(")
_PROGRESS = (
    "compiling ",
    "looking inside",
    "recording ",
    "writing the page",
)  # status lines that a terminal shows temporarily
_POINTS = re.compile(r"  [\w-]+ +[\d.]+ of|Points:")
_QUOTED = re.compile(r"( {4,}(?:(?:[\w.]+:)?\d+  )?)(\S.*)")  # a source line in a report, with its number in a listing
_NUMBERED = re.compile(r" +(?:[\w.]+:)?\d+  \S")
_TIME = re.compile(
    r"[\d.,]+(?= *(ms|us|s|x|GB|MB)\b| and [\d.,]+ ms)|[\d.]+ \.\. [\d.]+|(?<=│) *[\d.,]+ *(?=│)| +|[─━]+"
)


class Block(NamedTuple):
    """One block of a document: `head` is its first line, `how` the part in parentheses, `body` the output shown."""

    file: Path
    head: str
    command: str
    how: str
    on_gpu: bool
    body: str

    @property
    def name(self) -> str:
        return f"{self.file.relative_to(ROOT)}: {self.head[len('<!-- OUTPUT: ') : -len(' -->')]}"

    @property
    def mistake(self) -> str:
        """The key in PLANTED, or "": `how` without the part that only says which lines are shown."""
        return re.sub(r"; the first case$", "", self.how) if self.how not in ("unfilled", "the end", "times") else ""


def blocks(text: str, file: Path) -> Iterator[Block]:
    """The blocks of a document, in order."""
    for match in _BLOCK.finditer(text):
        how = match["how"] or ""
        on_gpu = bool(match["gpu"]) or "NVIDIA" in how + match["body"]
        on_gpu |= "tune" in match["command"] or "--speed" in match["command"]
        yield Block(file, match[0].split("\n")[0], match["command"], how, on_gpu, match["body"])


def all_blocks() -> list[Block]:
    """The blocks of all documents."""
    files = sorted(file for pattern in DOCUMENTS for file in ROOT.glob(pattern))
    return [block for file in files for block in blocks(file.read_text("utf-8"), file)]


def shown(block: Block, text: str) -> str:
    """The part of the output that the block shows."""
    lines = [line.rstrip() for line in text.rstrip("\n").split("\n") if not line.startswith(_PROGRESS)]
    begin, end = 0, len(lines)
    held = block.body.split("\n")
    if block.on_gpu or block.how == "the end":
        begin = next((i for i, line in enumerate(lines) if line[:9] == held[0].strip()[:9]), 0)
    elif block.how and block.how != "times":
        opening = _FINDINGS if _FINDINGS.match(held[0].strip()) else _TROUBLE
        begin = next((i for i, line in enumerate(lines) if opening.match(line)), 0)
        if not any(_POINTS.match(line) for line in held):
            end = next((i for i, line in enumerate(lines) if i > begin and _POINTS.match(line)), end)
        if block.how.endswith("the first case"):
            end = next((i for i, line in enumerate(lines) if i > begin and "The same holds" in line), end)
    return "\n".join(_first_cases(lines[begin:end])).strip("\n")


def _first_cases(lines: list[str]) -> list[str]:
    """The lines with a test's table cut to its first cases, followed by the number of the others."""
    head = next((i for i, line in enumerate(lines) if line.startswith("┃ part")), None)
    if head is None:
        return lines
    end = next(i for i, line in enumerate(lines) if line.startswith("└"))
    cases = [i for i in range(head + 2, end) if lines[i].split("│")[1].strip()]  # not continuations of a row
    if len(cases) <= SHOWN_CASES:
        return lines
    left = f"... and {len(cases) - SHOWN_CASES} more cases"
    return [*lines[: cases[SHOWN_CASES]], lines[end], left, *lines[end + 1 :]]


def gap_lines(files: Iterable[Path]) -> set[str]:
    """Lines that occur in gaps of these solved files and nowhere else in them, stripped."""
    parts = [part for file in files for part in parse(file.read_text("utf-8"), file.name)]
    inside = {line.strip() for part in parts if part.is_gap for line in part.lines}
    given = {line.strip() for part in parts if not part.is_gap for line in part.lines}
    return inside - given


def without(lines: set[str], text: str) -> str:
    """A report's text with quotes of these lines, and their continuations, replaced by "(your line)".

    A wrapped statement continues on the next screen line without a number, indented further.
    """
    told: list[str] = []
    hidden = -1  # the indentation of the preceding line if that was replaced
    for line in text.split("\n"):
        indentation = len(line) - len(line.lstrip())
        if hidden >= 0 and indentation > hidden and not _NUMBERED.match(line):
            continue
        found = _QUOTED.fullmatch(line)
        hidden = indentation if found and _is_of(found[2].strip(), lines | {"(your line)"}) else -1
        told.append(f"{found[1]}(your line)" if hidden >= 0 else line)
    return "\n".join(told)


def _is_of(quoted: str, lines: set[str]) -> bool:
    """Whether a quoted text is one of these lines, or the beginning of one that was cut off or wrapped."""
    begin = quoted.removesuffix("...").strip()
    long = [one for one in lines if len(one) > LONG] if len(begin) > LONG else []
    return quoted in lines or any(one.startswith(begin) or begin.startswith(one) for one in long)


def run(block: Block, given: Path, solved: Path) -> str:
    """The full current output of the block's command."""
    if block.how == "unfilled":
        return printed(given, block.command, WIDTH)
    with planted(solved, PLANTED[block.mistake] if block.mistake and not block.on_gpu else ()):
        text = printed(solved, block.command, WIDTH)
        if not block.file.parent.name.startswith("task"):
            return text
        files = solution_files(block.file.parent.name)
        return without(gap_lines(solved / student_file(file).relative_to(ROOT) for file in files), text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("text", nargs="*", help="only blocks whose comment contains one of these")
    parser.add_argument(
        "--stale", action="store_true", help="write nothing; list the blocks that differ and exit with 1"
    )
    parser.add_argument("--gpu", action="store_true", help="the blocks printed on a GPU, and only these")
    options = parser.parse_args()
    chosen = [
        block
        for block in all_blocks()
        if block.on_gpu == options.gpu
        and (not options.text or any(one in block.name for one in options.text))
        and not (options.stale and block.how == "times")
    ]
    differ = 0
    with tempfile.TemporaryDirectory() as scratch:
        given, solved = copy_with_gaps(Path(scratch, "given")), copy_with_gaps_filled(Path(scratch, "solved"))
        for block in track(chosen, "blocks", console=Console(stderr=True)):
            body = shown(block, run(block, given, solved))
            if block.how != "times" and _TIME.sub("", body) != _TIME.sub("", block.body):
                differ += 1
                print(block.name, flush=True)
            if not options.stale:
                text = block.file.read_text("utf-8")
                old, new = (f"{block.head}\n\n```text\n{one}\n```\n" for one in (block.body, body))
                assert text.count(old) == 1, block.name
                block.file.write_text(text.replace(old, new), "utf-8")
    if not differ:
        print("all as before, but for times")
    return 1 if options.stale and differ else 0


if __name__ == "__main__":
    sys.exit(main())
