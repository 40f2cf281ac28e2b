"""The lines of a Python function that compute a value."""

import pytest

from common.testing.python_lines import made_of, names_at

SOURCE = """\
def attend(query, key, causal, self):
    unused = key.size(0)
    scale = query.size(-1) ** -0.5
    S = query @ key.T * scale
    if causal:
        hidden = S > 0
        S = S.masked_fill(hidden, 0.0)
    else:
        self.cache.append(key)
        self.check(key)
    total = 0
    for start in range(0, 8, 2):
        total = total + step
        step = S[start] * scale
    return total, self.cache
"""
FIRST = 11  # its first line's number


@pytest.mark.parametrize(
    ("line", "known", "lines"),
    [
        (None, (), [13, 14, 15, 16, 17, 19, 21, 22, 23, 24, 25]),
        (None, ("S",), [13, 19, 15, 21, 22, 23, 24, 25]),  # the lines that compute S are excluded
        (None, ("total",), [15, 19, 25]),
        (16, (), [13, 14, 15]),  # and whether it runs
        (19, (), [15]),
        (12, (), []),
    ],
)
def test_the_lines_that_a_value_is_made_in(line, known, lines):
    assert [number for number, _ in made_of(SOURCE, FIRST, line, known, most=20)] == sorted(lines)


def test_what_an_object_holds_may_come_from_a_call_before():
    source = "def forward(self, x):\n    self.check(x)\n    self.cache.append(x)\n    return x\n"
    assert made_of(source, 1, 2) == [(3, "self.cache.append(x)")]


@pytest.mark.parametrize(
    ("returned", "part", "lines"),
    [
        ("(a, b) if c else a", "", [2, 4]),
        ("(a, b) if c else a", "1", [3, 4]),
        ("a, b", "0", [2, 4]),
        ("a", "3", [2, 4]),
    ],
)
def test_only_what_the_wrong_part_is_made_of(returned, part, lines):
    source = f"def f(x, c):\n    a = x\n    b = x + 1\n    return {returned}\n"
    assert [number for number, _ in made_of(source, 1, part=part)] == lines


def test_at_most_so_many_the_nearest():
    assert [number for number, _ in made_of(SOURCE, FIRST, most=3)] == [19, 23, 25]


def test_the_text_stands_beside_the_number():
    assert made_of(SOURCE, FIRST, 17)[-1] == (16, "hidden = S > 0")


def test_the_names_at_a_line():
    assert names_at(SOURCE, FIRST, 14) == ["key", "query", "scale"]


@pytest.mark.parametrize("source", ["", "def (", "x = 1"])
def test_what_is_no_function_has_no_lines(source):
    assert made_of(source, 1) == [] and names_at(source, 1, 1) == []
