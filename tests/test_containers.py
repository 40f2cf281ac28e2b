"""External setups: Containerfile and devcontainer, Gradescope's setup.sh, GitHub Classroom's workflow."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from common.console.paths import ROOT

CONTAINERFILE = ROOT / "Containerfile"
TEMPLATES = ROOT / "common" / "course" / "templates"
INSTALLERS = (CONTAINERFILE, TEMPLATES / "setup.sh", TEMPLATES / "classroom.yml")


def commands(file: Path) -> list[list[str]]:
    """The shell commands in a file; those joined by && are separated."""
    text = re.sub(r"\\\n", " ", file.read_text())
    lines = [line.strip().removeprefix("RUN ") for line in text.splitlines() if not line.strip().startswith("#")]
    return [shlex.split(part, comments=True) for line in lines if "install" in line for part in line.split("&&")]


@pytest.mark.parametrize("file", INSTALLERS, ids=lambda file: file.name)
def test_torch_comes_without_cuda_and_everything_in_its_pinned_version(file: Path) -> None:
    """PyTorch's index has torch but only few versions of its dependencies: those come from the default index."""
    pips = [words for words in commands(file) if words[:2] == ["pip", "install"]]
    assert all(words[words.index("-c") + 1].endswith("constraints.txt") for words in pips)
    first, *others = pips
    assert "torch" in first and "--no-deps" in first
    assert first[first.index("--index-url") + 1] == "https://download.pytorch.org/whl/cpu"
    assert others and all("-e" in words and "--index-url" not in words for words in others)


@pytest.mark.parametrize("file", INSTALLERS[:2], ids=lambda file: file.name)
def test_the_system_s_packages_are_there(file: Path) -> None:
    (packages,) = [set(words) for words in commands(file) if words[:2] == ["apt-get", "install"]]
    assert {"-y", "g++", "git", "bubblewrap"} <= packages


def test_an_image_is_made_of_files_that_exist_and_without_builds() -> None:
    copied = [words.split()[1:-1] for words in CONTAINERFILE.read_text().splitlines() if words.startswith("COPY")]
    assert copied[-1] == ["."] and all((ROOT / name).exists() for names in copied for name in names)
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {"build", ".venv", "**/__pycache__"} <= set(ignored)


def test_the_devcontainer_is_that_image() -> None:
    folder = ROOT / ".devcontainer"
    told = json.loads((folder / "devcontainer.json").read_text())
    assert (folder / told["build"]["dockerfile"]).samefile(CONTAINERFILE)
    assert (folder / told["build"]["context"]).samefile(ROOT)
    where = re.search(r"^WORKDIR (\S+)$", CONTAINERFILE.read_text(), re.MULTILINE)[1]
    assert told["workspaceFolder"] == where and f"target={where}," in told["workspaceMount"]
    assert (ROOT / f"{told['postCreateCommand'].removeprefix('python -m ').replace('.', '/')}.py").is_file()


def test_every_pin_that_has_no_version_for_an_old_python_has_another() -> None:
    text = (ROOT / "constraints.txt").read_text()
    pins = re.findall(r"(?m)^([\w-]+)==[\w.]+; python_version (>=|<) \"3\.11\"$", text)
    names = {name for name, _ in pins}
    assert {"filelock", "numpy"} <= names
    assert sorted(pins) == sorted((name, how) for name in names for how in ("<", ">="))
