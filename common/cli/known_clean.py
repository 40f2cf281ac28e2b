"""Remembers kernels in which the checked build found nothing, so that they need not be checked again.

mark = mark_of(libraries, names, seed)      a hash of these kernels and cases
if not is_known(mark): ...                  run the checked build
remember(mark)                              if it found nothing
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from common.console.files import write_whole
from common.console.paths import build_root
from common.simulator import rewriter

MOST = 100  # the latest marks are kept


def mark_of(libraries: Iterable[Path], names: Iterable[str], seed: int) -> str:
    """A hash of the libraries, the simulator that checks them, and the cases.

    Args:
        libraries: the plain builds.
        names: names of the cases that ran.
        seed: seed of their inputs.
    """
    simulator = [*rewriter.HERE.rglob("*.py"), *rewriter.HERE.rglob("*.cpp"), *rewriter.HERE.rglob("*.h")]
    whole = hashlib.sha256(json.dumps([seed, *names]).encode())
    for file in (*libraries, *sorted(simulator)):
        whole.update(file.read_bytes())
    return whole.hexdigest()


def is_known(mark: str) -> bool:
    """Whether these are known to have no findings."""
    return mark in _marks()


def remember(mark: str) -> None:
    """Stores a mark; if that fails, the checked build will just run again."""
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        write_whole(_file(), json.dumps([*_marks(), mark][-MOST:]))
    except OSError:
        pass


def _file() -> Path:
    return build_root() / "checked" / "clean.json"


def _marks() -> list[str]:
    try:
        marks = json.loads(_file().read_text(encoding="utf-8"))
        return [mark for mark in marks if isinstance(mark, str)] if isinstance(marks, list) else []
    except (OSError, ValueError):
        return []
