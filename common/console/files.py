"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path


def write_whole(path: Path, text: str) -> bool:
    """Puts a file in its place in one step, so that nobody ever reads half of it; a link stays a link.

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
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    return True
