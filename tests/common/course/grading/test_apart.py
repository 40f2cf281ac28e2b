"""A function run in a separate process: its return value, its exceptions, and the limits."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from common.course.grading import apart
from common.course.grading.apart import Refused, call_apart


def test_it_returns_and_raises_as_the_function_does() -> None:
    assert call_apart("operator:add", [[1], [2]]) == [1, 2]
    with pytest.raises(Refused, match=r"^could not convert"):
        call_apart("builtins:float", ["x"])
    with pytest.raises(Refused, match=r"^an unexpected FileNotFoundError$"):  # its text may name the grader's files
        call_apart("os:listdir", ["/the/grader's"])
    with pytest.raises(ImportError, match="no_such_module"):
        call_apart("no_such_module:f", [])


def test_memory_and_time_are_limited(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"more than 2,048 MiB of memory"):
        call_apart("operator:mul", ["x", 3 << 30])
    begun = time.monotonic()
    with pytest.raises(Refused, match="more than 1 seconds"):
        call_apart("time:sleep", [60], seconds=1)
    assert time.monotonic() - begun < 30
    with pytest.raises(Refused, match="more than 3 seconds"):
        call_apart("subprocess:run", [["sh", "-c", "mktemp -d; sleep 60"]], tmp_path, seconds=3)
    assert not list(tmp_path.iterdir())


def test_a_process_that_ends_says_so() -> None:
    with pytest.raises(Refused, match=r"ended with 3$"):
        call_apart("os:_exit", [3])
    assert apart.MEMORY == 2 << 30
