"""The checkout's paths, and how a path is shown.

ROOT               the checkout
build_root()       where builds and pictures go
shown_path(file)   the path as a user would type it
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def build_root() -> Path:
    """build/ in the checkout, or $ATTENTION_BUILD_DIR.

    Raises:
        ValueError: its path holds a character that ninja and the compilers take for something else.
    """
    root = Path(os.environ.get("ATTENTION_BUILD_DIR") or ROOT / "build").resolve()
    if bad := [c for c in "$\n\"'`" if c in str(root)]:
        raise ValueError(
            f"the build folder is {str(root)!r}; its path must not hold {bad[0]!r}: $ATTENTION_BUILD_DIR moves it"
        )
    return root


def shown_path(file: Path) -> str:
    """The path relative to the working directory or to the checkout, where it lies in one of them."""
    for base in (Path.cwd(), ROOT):
        if file.resolve().is_relative_to(base):
            return str(file.resolve().relative_to(base))
    return str(file)
