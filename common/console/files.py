"""Atomically written files, and backups of what they replace."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from common.console.paths import shown_path

SHOWN: dict[Path, str] = {}  # overrides: read_source returns this instead of the file's text


def read_source(path: Path) -> str:
    """A source file's text.

    Raises:
        ValueError: it is not UTF-8; the message names the line.
    """
    if path in SHOWN:
        return SHOWN[path]
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{shown_path(path)}:{line}: byte 0x{data[error.start]:02x} is not UTF-8: save the file in that encoding "
            "(`iconv -f latin1 -t utf-8` converts most)"
        ) from None


def free_name(file: Path) -> Path:
    """An unused backup name next to the file: x.cu.bak, or x.cu.bak2 if that exists (even as a broken link)."""
    kept, number = file.with_name(f"{file.name}.bak"), 1
    while kept.exists() or kept.is_symlink():
        number += 1
        kept = file.with_name(f"{file.name}.bak{number}")
    return kept


def keep_old(file: Path) -> Path:
    """Copies a file to an unused name next to it and returns the copy."""
    return Path(shutil.copy2(file, free_name(file)))


def write_whole(path: Path, text: str) -> bool:
    """Writes a file atomically, so that a half-written file is never visible; symbolic links are preserved.

    Its folder is created if needed. A file that already has this text is not touched, nor is its modification time.

    Args:
        path: the file, new or existing; an existing one's permissions are kept.
        text: the whole text, written as UTF-8 with its line endings unchanged.

    Returns:
        Whether anything was written.

    Raises:
        OSError: it cannot be written; the old file is unchanged.
    """
    path, new = path.resolve(), text.encode()
    if path.is_file() and path.read_bytes() == new:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with unfinished.open("wb") as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, unfinished)
        unfinished.replace(path)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and not error.filename:  # the error for a full disk names no file
            error.filename = str(path)
        raise
    return True
