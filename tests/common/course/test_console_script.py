"""The console script `course`: pyproject.toml names it, and it starts `python -m taskN.test`."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import EntryPoint

import pytest


@pytest.fixture
def course(root):
    """The function that the script calls."""
    line = re.search(r'(?m)^\[project\.scripts\]\ncourse = "([^"]+)"$', (root / "pyproject.toml").read_text())
    return EntryPoint("course", line[1], "console_scripts").load()


@pytest.mark.parametrize(
    "typed, started",
    [
        (["test", "2"], ["task2.test"]),
        (["test", "task2", "--softmax"], ["task2.test", "--softmax"]),
        (["check", "7", "--gelu"], ["task7.test", "--check", "--gelu"]),
    ],
)
def test_it_starts_a_tasks_test(course, monkeypatch, typed, started):
    calls = []
    monkeypatch.setattr(os, "execv", lambda file, words: calls.append((file, words)))
    course(typed)
    assert calls == [(sys.executable, [sys.executable, "-m", *started])]


def test_the_other_commands_take_a_number_too(course, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(tmp_path))
    assert course(["progress", "3"]) == 0 and course(["hint", "3"]) == 0
    with pytest.raises(SystemExit, match="2"):
        course(["hint", "9"])
    assert "invalid choice: 'task9'" in capsys.readouterr().err
