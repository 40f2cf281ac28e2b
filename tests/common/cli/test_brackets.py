"""Brackets are markup to rich. Those in the checkout's path and in a student's lines must be printed as they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from forked_python import run_python

LINE = "y[cols + threadIdx.x + offset] = 1.0f; // [red] a[i] [/red] [/] [bold]"
FOLDER = "[red]copy[bold]"


@pytest.fixture(scope="module")
def checkout(root, tmp_path_factory) -> Path:
    """A copy of common/ and task 3, filled, in a folder with brackets in its name."""
    copy = tmp_path_factory.mktemp("brackets") / FOLDER
    ignored = shutil.ignore_patterns("__pycache__", "build")
    for name in ("common", *(f"task{number}" for number in range(1, 8))):
        shutil.copytree(root / name, copy / name, ignore=ignored)
    for name in ("attention.py", "online_softmax.cu"):
        shutil.copy(copy / "task3" / "solution" / name, copy / "task3" / name)
    return copy


def run(checkout: Path, module: str, *arguments: str) -> tuple[int, str]:
    """(exit status, output) of python -m, run in the parent folder: printed paths are relative to it."""
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": str(checkout), "COLUMNS": "200"}
    done = run_python(["-m", module, *arguments, "--backend", "simulator"], checkout.parent, environment, 600)
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def with_line(checkout: Path, line: str) -> None:
    """Inserts a line at the start of online_softmax_kernel."""
    text = (checkout / "task3" / "solution" / "online_softmax.cu").read_text()
    head = text.index("{\n", text.index("online_softmax_kernel(")) + 2
    (checkout / "task3" / "online_softmax.cu").write_text(f"{text[:head]}    {line}\n{text[head:]}")


def test_a_line_that_does_not_compile(checkout):
    with_line(checkout, LINE)  # `offset` is undefined
    for module in ("task3.compile", "task3.test"):
        status, said = run(checkout, module)
        assert status in (1, 2) and f"{FOLDER}/task3/online_softmax.cu:" in said
        assert LINE in said and "not declared" in said


@pytest.mark.slow
def test_a_line_that_a_finding_and_a_profile_quote(checkout):
    with_line(checkout, LINE.replace("offset", "cols"))
    status, said = run(checkout, "task3.test", "--softmax", "--check", "--case", "one element")
    assert status == 1 and f"{FOLDER}/task3/online_softmax.cu:" in said
    assert LINE.replace("offset", "cols") in said, said
    with_line(checkout, LINE.replace("y[cols + threadIdx.x + offset]", "y[blockIdx.x]"))
    status, said = run(checkout, "task3.test", "--softmax", "--profile", "--case", "one element")
    assert status == 0 and "// [red] a[i] [/red] [/]" in said


def test_an_unfilled_gap(checkout):
    status, said = run(checkout, "task6.compile")
    assert status == 0 and f"{FOLDER}/task6/decode_attention.cu:" in said


def test_a_case_that_there_is_none_of(checkout):
    status, said = run(checkout, "task3.test", "--case", "[red]nothing[/]")
    assert status == 2 and "[red]nothing[/]" in said
