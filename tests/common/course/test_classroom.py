"""GitHub Classroom's workflow: it parses, names every task, and its test step runs the tasks that were started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.compiling.manifest import tasks
from common.console.paths import ROOT

yaml = pytest.importorskip("yaml")
FILE = ROOT / "common" / "course" / "templates" / "classroom.yml"
STUB = """#!/bin/sh
[ "$1" = -c ] && exit {begun}
echo "ran $*"
exit 1
"""


@pytest.fixture(scope="module")
def job() -> dict:
    return yaml.safe_load(FILE.read_text())["jobs"]["test"]


def step(job: dict, name: str, task: str) -> str:
    (text,) = (one["run"] for one in job["steps"] if one.get("name") == name)
    return text.replace("${{ matrix.task }}", task)


def run(command: str, cwd: Path, path: str) -> subprocess.CompletedProcess:
    """As GitHub runs a step."""
    environment = {**os.environ, "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(["bash", "-e", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True)


def test_it_has_a_job_for_every_task(job: dict) -> None:
    assert job["strategy"]["matrix"]["task"] == tasks() and job["strategy"]["fail-fast"] is False
    assert [one.get("uses", one.get("name")) for one in job["steps"]] == [
        "actions/checkout@v4",
        "actions/setup-python@v5",
        "install",
        "test",
    ]
    for line in step(job, "install", "").splitlines():
        assert line.startswith("pip install ") and line.endswith(" -c constraints.txt")


def test_a_task_that_nobody_has_begun_is_no_failure(job: dict) -> None:
    done = run(step(job, "test", "task2"), ROOT, str(Path(sys.executable).parent))
    assert (done.returncode, done.stdout) == (0, "task2 is not started: every gap is still open\n"), done.stderr


@pytest.mark.parametrize(("begun", "status", "said"), [(1, 1, "ran -m task2.test --backend simulator\n"), (0, 0, "")])
def test_what_has_been_begun_is_tested_and_its_status_counts(job: dict, tmp_path, begun, status, said) -> None:
    stub = tmp_path / "python"
    stub.write_text(STUB.format(begun=begun))
    stub.chmod(0o755)
    done = run(step(job, "test", "task2"), tmp_path, str(tmp_path))
    assert done.returncode == status and (done.stdout == said if begun else "is not started" in done.stdout)
