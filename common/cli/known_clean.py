"""Which kernels the checked build has found nothing in, so that it need not look at the same ones again.

mark = mark_of(libraries, names, seed)      of these kernels in these cases
if not is_known(mark): ...                  look
remember(mark)                              where nothing was found
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from common.console.files import write_whole
from common.console.paths import build_root
from common.simulator import rewriter

MOST = 100  # marks that are kept, the latest


def mark_of(libraries: Iterable[Path], names: Iterable[str], seed: int) -> str:
    """Of the libraries' contents, of the simulator that checks them, and of the cases.

    Args:
        libraries: the plain builds.
        names: of the cases that were run.
        seed: of their inputs.
    """
    simulator = [*rewriter.HERE.rglob("*.py"), *rewriter.HERE.rglob("*.cpp"), *rewriter.HERE.rglob("*.h")]
    whole = hashlib.sha256(json.dumps([seed, *names]).encode())
    for file in (*libraries, *sorted(simulator)):
        whole.update(file.read_bytes())
    return whole.hexdigest()


def is_known(mark: str) -> bool:
    """Whether nothing was found."""
    return mark in _marks()


def remember(mark: str) -> None:
    """Keeps it; if that cannot be, the checked build will look again."""
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
