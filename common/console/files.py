"""Files that are written whole or not at all, and copies of what they replace."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from common.console.paths import shown_path

SHOWN: dict[Path, str] = {}  # what read_source gives for a file in place of its text


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
    """A name next to the file for what it held: x.cu.bak, or x.cu.bak2 where that is taken (by a link, too)."""
    kept, number = file.with_name(f"{file.name}.bak"), 1
    while kept.exists() or kept.is_symlink():
        number += 1
        kept = file.with_name(f"{file.name}.bak{number}")
    return kept


def keep_old(file: Path) -> Path:
    """Copies a file to a free name next to it, and returns the copy."""
    return Path(shutil.copy2(file, free_name(file)))


def write_whole(path: Path, text: str) -> bool:
    """Puts a file in its place in one step, so that a half-written file is never read; a link stays a link.

    Its folder is made if need be. A file that says the same already is left as it is, its time of change too.

    Args:
        path: of the file, new or old; an old one's permissions are kept.
        text: all of it, written as UTF-8, its line ends as they are.

    Returns:
        Whether anything was written.

    Raises:
        OSError: it cannot be written; what was there before is still there.
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
        if isinstance(error, OSError) and error.errno and not error.filename:  # a full disk does not say where
            error.filename = str(path)
        raise
    return True
