"""The handouts: how long their prose is, and that the gaps and pictures they mention exist.

python tests/test_handouts.py        prints each one's word count
"""

from __future__ import annotations

import importlib.util
import re

import pytest

from common.compiling import skeletons
from common.compiling.manifest import tasks
from common.console.paths import ROOT

MOST_WORDS = 1900  # in prose
MOST_PRINTED = 6000  # printed by commands, in all handouts together
_OUTPUT = re.compile(r"<!-- OUTPUT.*?<!-- END OUTPUT -->", re.DOTALL)


def prose(text: str) -> str:
    """A Markdown text without command output, code blocks, link addresses and table rows."""
    without_code = re.sub(r"(?ms)^( *)```.*?^\1```$|^[|\-: ]+$", "", _OUTPUT.sub("", text))
    return re.sub(r"\]\([^)]*\)", "]", without_code)


def words(text: str) -> int:
    """The number of words in its prose: tokens with a letter or a digit."""
    return sum(bool(re.search(r"\w", word)) for word in prose(text).split())


def test_what_counts_as_prose():
    paragraph, code = "Two words.\n", "\n```python\ncode is not\ncounted\n```\n"
    item, table = "\n1. One item\n   goes on\n\n   ```\n   its code\n   ```\n", "\n| a | b |\n|---|---|\n"
    assert words(paragraph + code + item + table) == 2 + 0 + 5 + 2
    assert words("a\n<!-- OUTPUT: python -m x -->\n\n    b c\n\n<!-- END OUTPUT -->\n[d](e/f.md)") == 2


@pytest.mark.parametrize("task", tasks())
def test_the_prose_is_short(task):
    assert words((ROOT / task / "README.md").read_text()) <= MOST_WORDS


def test_what_is_printed_is_cut_to_what_is_read():
    texts = [(ROOT / task / "README.md").read_text() for task in tasks()]
    assert sum(len(block.split()) for text in texts for block in _OUTPUT.findall(text)) <= MOST_PRINTED


def gaps_named(text: str) -> set[int]:
    """The gaps mentioned in a handout: "gap 3", "gaps 4 to 6", "gaps 8 and 9", and items such as "7. **`load`**"."""
    named = {int(number) for number in re.findall(r"(?m)^ *(\d+)\. \*\*", text)}
    for first, word, last in re.findall(r"[Gg]aps? (\d+)(?: (to|and|or) (\d+))?", text):
        named |= set(range(int(first), int(last) + 1)) if word == "to" else {int(first), int(last or first)}
    return named


@pytest.mark.parametrize("task", tasks())
def test_a_handout_has_the_numbers_of_its_gaps(task):
    files = skeletons.solution_files(task)
    parts = [part for file in files for part in skeletons.parse(file.read_text(), file.name) if part.is_gap]
    assert gaps_named(_OUTPUT.sub("", (ROOT / task / "README.md").read_text())) == {part.number for part in parts}


def pictures():
    """The module that draws the pictures."""
    spec = importlib.util.spec_from_file_location("handout_pictures", ROOT / "docs" / "pictures" / "handouts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("task", tasks())
def test_a_handout_opens_with_its_picture(task):
    title, _, image, *_ = (ROOT / task / "README.md").read_text().split("\n")
    assert title.startswith(f"# Task {task[-1]}: ") and re.fullmatch(rf"!\[.+\]\(../docs/pictures/{task}.svg\)", image)
    drawn = getattr(pictures(), task)().svg()
    assert (ROOT / "docs" / "pictures" / f"{task}.svg").read_text() == drawn, (
        "python docs/pictures/handouts.py draws it"
    )


@pytest.mark.parametrize("name", ["task6_ring", "task7_step"])
def test_a_further_picture_is_drawn_as_it_is(name):
    drawn = getattr(pictures(), name)().svg()
    assert (ROOT / "docs" / "pictures" / f"{name}.svg").read_text() == drawn, "python docs/pictures/handouts.py"
    assert f"(../docs/pictures/{name}.svg)" in (ROOT / name[:5] / "README.md").read_text()


if __name__ == "__main__":
    for task in tasks():
        print(task, words((ROOT / task / "README.md").read_text()))
