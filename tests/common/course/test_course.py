"""python -m common.course: every listed command exists, has a description and its own --help."""

from __future__ import annotations

import importlib
import sys

import pytest

from common.course import __main__ as course

COMMANDS = {**course.FOR_STUDENTS, **course.FOR_INSTRUCTORS}


def test_without_a_command_the_list(capsys):
    assert course.main([]) == 0
    printed = capsys.readouterr().out
    assert all(f"    {name} " in printed for name in COMMANDS)


def test_an_unknown_command_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit, match="2"):
        course.main(["nonsense"])
    assert "nonsense" in capsys.readouterr().err


def test_without_the_modules_of_unix_it_is_a_sentence(monkeypatch, capsys):
    for name in [one for one in sys.modules if one.startswith(("common.course.grad", "common.course.attack"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "resource", None)
    assert course.main(["grade", "somebody", "--out", "somewhere"]) == 2
    assert "common.course grade runs on Linux" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself(name, capsys):
    module = importlib.import_module(f"common.course.{name}")
    with pytest.raises(SystemExit, match="0"):
        course.main([name, "--help"])
    assert module.__doc__.split("\n")[0] in capsys.readouterr().out
