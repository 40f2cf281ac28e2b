"""Copies the checkout with all gaps filled, plants mistakes in the copy, and runs commands there.

folder = copy_with_gaps_filled(Path(scratch, "course"))
with planted(folder, [Edit("task2/attention_kernel.cu", "x - shift", "x")]):
    text = printed(folder, "task2.test --softmax", width=100)
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from common.compiling.skeletons import fill_gaps

_NOT_COPIED = shutil.ignore_patterns("__pycache__", "build", "*.bak*", ".git", ".venv", "venv", "docs")


class Edit(NamedTuple):
    """A mistake: replaces the one occurrence of `right` in this file by `wrong`."""

    file: str
    right: str
    wrong: str


def copy_with_gaps(folder: Path) -> Path:
    """Copies the checkout, as students get it, without builds."""
    shutil.copytree(ROOT, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
    return folder


def copy_with_gaps_filled(folder: Path) -> Path:
    """Copies the checkout, without builds, and fills its gaps."""
    copy_with_gaps(folder)
    fill_gaps(folder)
    return folder


@contextlib.contextmanager
def planted(folder: Path, edits: Iterable[Edit]) -> Iterator[None]:
    """Applies the edits within the `with` block. Raises ValueError if a text doesn't occur exactly once in its file."""
    texts: dict[Path, str] = {}
    try:
        for file, right, wrong in edits:
            path = folder / file
            text = path.read_text("utf-8")
            if text.count(right) != 1:
                raise ValueError(f"{file} holds {right!r} {text.count(right)} times; it must hold it once")
            texts.setdefault(path, text)
            path.write_text(text.replace(right, wrong), "utf-8")
        yield
    finally:
        for path, text in texts.items():
            path.write_text(text, "utf-8")


def printed(folder: Path, command: str, width: int, colors: bool = False) -> str:
    """The stdout of `python COMMAND`, `python -m COMMAND` or `torchrun ...` there.

    Spinners and progress bars are turned off, and the folder is removed from paths. Raises RuntimeError if the command
    ends with a traceback.
    """
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "COLUMNS": str(width),
        "TTY_INTERACTIVE": "0",
        "HF_HUB_OFFLINE": "1",
        "ATTENTION_BUILD_DIR": str(folder / "build"),
    }
    if colors:
        environment["FORCE_COLOR"] = "1"
    words = shlex.split(command)
    if words[0] == "torchrun":
        words = ["torch.distributed.run", *words[1:]]
    done = subprocess.run(
        [sys.executable, *([] if words[0].endswith(".py") else ["-m"]), *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        timeout=1800,
    )
    if "Traceback" in done.stderr:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout.replace(f"{folder}/", "")
