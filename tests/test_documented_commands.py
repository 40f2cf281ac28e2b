"""Every command and Python snippet printed in a handout or README, run in a checkout with its gaps filled.

They are read from the documents, so a new one is tested automatically. Plain `pytest` skips them:

    pytest -m slow      those that take seconds, included in .ci/run. Commands that measure must report the missing GPU
    pytest -m long      those that take minutes; on a machine with a GPU also all that measure, marked gpu as well
"""

from __future__ import annotations

import os
import re
import shlex
import textwrap
from pathlib import Path

import pytest
from filled_checkout import copy_of_the_checkout
from forked_python import run_python

from common.compiling.locking import locked
from common.compiling.toolchain import choose_backend

ROOT = Path(__file__).resolve().parents[1]
ON_A_GPU = choose_backend("auto").name == "cuda"
DOCUMENTS = ("README.md", "Results.md", "docs/*.md", "common/**/*.md", "task*/**/*.md")
FENCED = r"(?ms)^( *)```%s\n(.*?)^\1```$"
PLACEHOLDER = re.compile(r"taskN|\bN\b|\bNAME|FOLDER|FILE|GAP|SUBMISSION|\bDIR")
MEASURES = re.compile(r"\.benchmark(?! verdict)(?!.*--predict)|\.tune|prefill_profile|--speed|--mode=benchmark")
COMMAND = r"(?:python -m|course) "
WRITES = ("common.skeleton", "course reset")  # modify the student's files
ELSEWHERE = ("course watch", "course attack")  # wait or take long: they have their own tests
NEEDS_THE_HUB = "--model gpt2"
LONG = (
    "benchmark verdict",
    "--predict",
    "--held-out 16",
    "task4.test --check",
    "task5.test --check",
    "task5.test --profile",
    "task5.train",
    "task6.test --check",
    "task7.tools.training",
)


def is_elsewhere(command: str) -> bool:
    return any(name in command for name in ELSEWHERE)


def documented() -> list[str]:
    """The commands in all documents: on their own lines, without comments, and within a sentence."""
    found: dict[str, None] = {}
    for file in sorted(file for pattern in DOCUMENTS for file in ROOT.glob(pattern)):
        text = re.sub(r"<!-- OUTPUT.*?<!-- END OUTPUT -->", "", file.read_text(), flags=re.DOTALL)
        for _, block in re.findall(FENCED % "console", text):
            for line in re.findall(rf"(?m)^ *({COMMAND}[^\n]*)$", block):
                found[re.split(r" {2,}", line)[0]] = None
        found |= dict.fromkeys(re.findall(rf"`({COMMAND}[^`]*)`", re.sub(r"\n *", " ", text)))
    return [command for command in found if not (PLACEHOLDER.search(command) or is_elsewhere(command))]


def distinct(commands: list[str]) -> list[str]:
    """Without a GPU a command selects the simulator itself, so `--backend simulator` makes no difference."""
    return commands if ON_A_GPU else [*{one.replace(" --backend simulator", ""): one for one in commands}.values()]


def snippets() -> dict[str, str]:
    """The Python blocks in docs/ and the handouts that start with an import: "task4/README.md:120" -> its text."""
    found = {}
    for file in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("task*/*.md")]):
        text = re.sub(
            r"<!-- OUTPUT.*?<!-- END OUTPUT -->",
            lambda block: "\n" * block[0].count("\n"),
            file.read_text(),
            flags=re.S,
        )
        for block in re.finditer(FENCED % "python", text):
            if re.match(r" *(import|from) \w", block[2]):
                line = text.count("\n", 0, block.start(2)) + 1
                found[f"{file.relative_to(ROOT)}:{line}"] = textwrap.dedent(block[2])
    return found


def marked(command: str):
    """The command with its marks; `pytest -n auto --dist loadgroup` keeps a task's commands together."""
    measures = ON_A_GPU and MEASURES.search(command)
    marks = [pytest.mark.long if measures or any(one in command for one in LONG) else pytest.mark.slow]
    marks += [pytest.mark.gpu] if measures else []
    marks += [pytest.mark.xdist_group(re.search(r"task\d|$", command)[0])]  # one process builds each task, once
    return pytest.param(command, marks=marks, id=command.removeprefix("python -m "))


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    """One build root for all processes of the run, so they share builds."""
    mine = tmp_path_factory.getbasetemp()
    folder = (mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "filled"
    with locked(folder):
        if not (folder / "common").exists():
            copy_of_the_checkout(folder)
    return folder


def test_the_documents_are_read():
    assert len(snippets()) >= 7
    commands = documented()
    assert len(distinct(commands)) > 70 and "python -m task4.plan --br 48 --bc 64 --head-dim 64" in commands
    assert 'python -m task7.inference --prompt "The old dragon" --temperature 0.8 --top-k 40 --seed 7' in commands


def marked_snippet(where: str, code: str):
    """The snippet with its marks: those that time something need a GPU."""
    marks = [pytest.mark.slow, pytest.mark.xdist_group(where[:5])]
    marks += [pytest.mark.skipif(not ON_A_GPU, reason="times a GPU")] if "Timer" in code else []
    return pytest.param(code, marks=marks, id=where)


@pytest.mark.parametrize("code", [marked_snippet(*one) for one in snippets().items()])
def test_a_snippet_runs_as_it_is_printed(code, filled):
    environment = os.environ | {"PYTHONPATH": str(filled), "HF_HUB_OFFLINE": "1"}
    done = run_python(["-c", code], filled, environment, 1500)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command", [marked(command) for command in distinct(documented())])
def test_a_command_runs_as_it_is_printed(command, filled, tmp_path):
    writes = any(name in command for name in WRITES)
    folder = copy_of_the_checkout(tmp_path) if writes else filled
    command = re.sub(r"^course ", "python -m common.course ", command)
    _, *arguments = shlex.split(command)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    done = run_python(arguments, folder, environment, 1500)
    said = done.stdout + done.stderr
    assert "Traceback" not in said, said
    if NEEDS_THE_HUB in command:
        assert done.returncode in (0, 2) and (done.returncode == 0 or "gpt2" in said), said
    elif MEASURES.search(command) and not ON_A_GPU:
        assert done.returncode in (0, 1, 2) and "GPU" in said, said
    else:
        assert done.returncode == 0, said
    assert "not implemented" not in said, said
