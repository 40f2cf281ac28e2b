""".release.json in a student edition: the hash of every file as released; `update` uses it to detect changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

NAME = ".release.json"


def hash_of(data: bytes) -> str:
    """The hash of a file's content."""
    return hashlib.sha256(data).hexdigest()


def written(files: Mapping[str, bytes]) -> bytes:
    """The record of these files, serialized."""
    return (
        json.dumps({"files": {name: hash_of(data) for name, data in sorted(files.items())}}, indent=1) + "\n"
    ).encode()


def read_record(folder: Path) -> dict[str, str]:
    """File -> hash, as released.

    Raises:
        ValueError: the folder is not a student edition.
    """
    file = folder / NAME
    try:
        files = json.loads(file.read_text(encoding="utf-8"))["files"]
        return {str(name): str(mark) for name, mark in files.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise ValueError(f"{folder} is not a release of this course: {file} is missing or not JSON") from None
