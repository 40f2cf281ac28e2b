"""The checkout's paths, and formatting of paths.

ROOT               the checkout
build_root()       the folder for builds and plots
shown_path(file)   the path as a user would type it
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build_root() -> Path:
    """build/ in the checkout, or $ATTENTION_BUILD_DIR.

    Raises:
        ValueError: its path has a character that is special to ninja or the compilers.
    """
    named = os.environ.get("ATTENTION_BUILD_DIR") or f"{ROOT}/build"
    return _build_root(named if os.path.isabs(named) else os.path.abspath(named))


@cache  # called for every path in the object cache
def _build_root(named: str) -> Path:
    root = Path(named).resolve()
    if bad := [c for c in "$\n\"'`" if c in str(root)]:
        raise ValueError(
            f"the build folder is {str(root)!r}; its path must not hold {bad[0]!r}: $ATTENTION_BUILD_DIR moves it"
        )
    return root


def shown_path(file: Path) -> str:
    """The path relative to the working directory or the checkout, if it is in one of them."""
    for base in (Path.cwd(), ROOT):
        if file.resolve().is_relative_to(base):
            return str(file.resolve().relative_to(base))
    return str(file)
