"""Messages appear as they were written, at any width."""

import io

import pytest
from rich.console import Console

from common.console.terminal import say

PATH = "/a/long/[folder]/that/nobody/wants/cut/" + "x" * 60 + "/kernel.cu:57"


def said(text: object, width: int, style: str = "", **options) -> str:
    console = Console(file=io.StringIO(), width=width, **options)
    say(console, text, style)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [20, 80, 120])
def test_nothing_is_lost_and_no_word_is_cut(width):
    text = f"cannot read {PATH}: [Errno 2] no such file [/red] [bold]; " + "words " * 40
    lines = said(text, width, force_terminal=True, color_system=None).splitlines()
    assert " ".join(line.strip() for line in lines).split() == text.split()
    assert all(len(line) <= width or " " not in line.strip() for line in lines)
    assert said(text, width) == text + "\n", "in a file it stays one line"


def test_lines_of_their_own_stay():
    log = "kernel.cu(3): error: [x]\n    a[i] = " + "b + " * 40 + "c;\n           ^"
    assert said(log, 80) == log + "\n"


def test_brackets_are_no_markup_with_and_without_colors():
    text = "pip install -e '.[report]' [link=x] [/] [not a tag] \\[escaped]"
    assert said(text, 200) == text + "\n"
    colored = said(text, 200, "red", force_terminal=True, color_system="standard")
    assert text in colored and colored.startswith("\x1b[31m")
    assert said(text, 200, "red", force_terminal=True, color_system="standard", no_color=True) == text + "\n"


def test_an_indent_and_an_empty_line():
    assert said("  two words", 80) == "  two words\n" and said("", 80) == "\n"
