"""A control group enforces its limits, or there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from common.course.grading.cgroup import ControlGroup

FORKS = """
import os, sys
sys.stdin.read()  # until it is in the group
started = []
try:
    for _ in range(40):
        process = os.fork()
        if not process:
            os.read(0, 1)
            import time; time.sleep(60)
        started.append(process)
except OSError as error:
    print(len(started), error)
for process in started:
    os.kill(process, 9)
    os.waitpid(process, 0)
"""


def test_the_kernel_refuses_what_is_beyond() -> None:
    group = ControlGroup.made("grading-test", threads=10, memory=1 << 30)
    if group is None:
        pytest.skip("no control group can be made here")
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        group.enter(process.pid)
        said, _ = process.communicate(timeout=60)
        assert said.startswith("9 ") and "temporarily unavailable" in said
    finally:
        group.close()
    again = ControlGroup.made("grading-test", threads=10, memory=1 << 30)  # the name is free: nothing was left behind
    assert again is not None
    again.close()


def test_where_none_can_be_made_there_is_none(tmp_path: Path) -> None:
    assert ControlGroup.made("grading-test", 10, 1 << 30, root=tmp_path / "nothing") is None
    (tmp_path / "cgroup.controllers").write_text("memory")  # version 2, but a new folder has no pids.max
    assert ControlGroup.made("grading-test", 10, 1 << 30, root=tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.controllers"]
    ControlGroup.made("gone", 10, 1 << 30, root=tmp_path / "nothing")
    ControlGroup([tmp_path / "gone"]).close()
