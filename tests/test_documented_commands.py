"""Every command that a handout or a README names, as it is printed there, in a checkout whose gaps are filled.

The commands are read from the documents: a new one is tested without a word here. Plain `pytest` leaves them out:

    pytest -m cpu       those that take seconds, which .ci/run adds. What measures has to say that it needs a GPU
    pytest -m long      those that take minutes; on a machine with a GPU all that measure, marked gpu as well
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from filled_checkout import copy_of_the_checkout

from common.compiling.toolchain import choose_backend

ROOT = Path(__file__).resolve().parents[1]
ON_A_GPU = choose_backend("auto").name == "cuda"
PLACEHOLDER = re.compile(r"taskN|\.NAME|FOLDER|FILE")
MEASURES = re.compile(r"\.benchmark|\.tune|--speed|--mode=benchmark")
WRITES = ("common.skeleton",)  # into the student's files
NEEDS_THE_HUB = "--model gpt2"
LONG = (
    "common.mutants",
    "--held-out 16",
    "task4.test --check",
    "task5.test --check",
    "task5.test --profile",
    "task5.train",
    "task6.test --check",
)


def documented() -> list[str]:
    """The commands of all documents: lines of their own, without what is said of them, and those within a sentence."""
    found: dict[str, None] = {}
    for file in sorted([*ROOT.glob("*.md"), *ROOT.glob("common/**/*.md"), *ROOT.glob("task*/**/*.md")]):
        text = re.sub(r"<!-- OUTPUT.*?<!-- END OUTPUT -->", "", file.read_text(), flags=re.DOTALL)
        for line in re.findall(r"(?m)^ {4,}(python -m [^\n]*)$", text):
            found[re.split(r" {2,}", line)[0]] = None
        found |= dict.fromkeys(re.findall(r"`(python -m [^`]*)`", re.sub(r"\n *", " ", text)))
    return [command for command in found if not PLACEHOLDER.search(command)]


def marked(command: str):
    """The command with its marks; `pytest -n auto --dist loadgroup` keeps a task's commands together."""
    measures = ON_A_GPU and MEASURES.search(command)
    marks = [pytest.mark.long if measures or any(one in command for one in LONG) else pytest.mark.cpu]
    marks += [pytest.mark.gpu] if measures else []
    marks += [pytest.mark.xdist_group(re.search(r"task\d|$", command)[0])]  # one process builds a task, and once
    return pytest.param(command, marks=marks, id=command.removeprefix("python -m "))


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    return copy_of_the_checkout(tmp_path_factory.mktemp("filled"))


def test_the_documents_are_read():
    commands = documented()
    assert len(commands) > 70 and "python -m task4.plan --br 48 --bc 64 --head-dim 64" in commands
    assert 'python -m task7.inference --prompt "The old dragon" --temperature 0.8 --top-k 40 --seed 7' in commands


@pytest.mark.parametrize("command", [marked(command) for command in documented()])
def test_a_command_runs_as_it_is_printed(command, filled, tmp_path):
    writes = any(name in command for name in WRITES)
    folder = copy_of_the_checkout(tmp_path) if writes else filled
    _, *arguments = shlex.split(command)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, env=environment, timeout=1500
    )
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    if NEEDS_THE_HUB in command:
        assert done.returncode in (0, 2) and (done.returncode == 0 or "gpt2" in said), said
    elif MEASURES.search(command) and not ON_A_GPU:
        assert done.returncode in (0, 1, 2) and "GPU" in said, said
    else:
        assert done.returncode == 0, said
    assert "not implemented" not in said, said
