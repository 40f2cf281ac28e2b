"""The handouts: how long their prose is, and that gaps, steps and pictures are those that there are."""

from __future__ import annotations

import re

import pytest

from common.compiling import skeletons
from common.compiling.manifest import tasks
from common.console.paths import ROOT

MOST_WORDS = 2500
_OUTPUT = re.compile(r"<!-- OUTPUT.*?<!-- END OUTPUT -->", re.DOTALL)


def prose(text: str) -> str:
    """A Markdown text without what commands print, blocks of code, links' addresses and the lines of tables."""
    kept, in_code, blank = [], False, True
    list_indent = 0
    for line in _OUTPUT.sub("", text).split("\n"):
        if not line.strip():
            blank = True
            continue
        indent = len(line) - len(line.lstrip())
        if item := re.match(r" *([-*]|\d+\.) +", line):
            list_indent = item.end()
        elif indent < 2:
            list_indent = 0
        # code is indented by 4 more than the text around it, and follows an empty line
        in_code = indent >= list_indent + 4 and (in_code or blank)
        blank = False
        if not in_code and not re.fullmatch(r"[|\-: ]+", line):
            kept.append(line)
    return re.sub(r"\]\([^)]*\)", "]", "\n".join(kept))


def words(text: str) -> int:
    """Words of its prose: what holds a letter or a digit."""
    return sum(bool(re.search(r"\w", word)) for word in prose(text).split())


def test_what_counts_as_prose():
    text = "Two words.\n\n    code is not\n    counted\n\n1. One item\n   goes on\n\n       its code\n\n| a | b |\n|---|---|\n"
    assert words(text) == 2 + 5 + 2
    assert words("a\n<!-- OUTPUT: python -m x -->\n\n    b c\n\n<!-- END OUTPUT -->\n[d](e/f.md)") == 2


@pytest.mark.parametrize("task", tasks())
def test_the_prose_is_short(task):
    assert words((ROOT / task / "README.md").read_text()) <= MOST_WORDS


if __name__ == "__main__":
    for task in tasks():
        print(task, words((ROOT / task / "README.md").read_text()))
