"""Explains builds that fail because a disk is full: no_space(log, folder)."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from common.compiling.report import diagnostics
from common.console.paths import shown_path

ENOUGH = 16 << 20  # bytes that a task's build needs
_SAID = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))


def no_space(log: str, folder: Path) -> str:
    """Names the full disk if that is why this build failed, else "".

    The log may be truncated, as it is on the same disk. So if it has no errors in the sources, the free space is
    checked. (gcc reports a file that it cannot write as an error in the source's last line.)

    Args:
        log: the compilers' output.
        folder: the build folder.
    """
    errors = [one.text for one in diagnostics(log) if one.is_error and not one.text.endswith(_SAID)]
    if errors or "undefined " in log:
        return ""
    said = next((words for words in _SAID if words in log), "")
    for place in (folder, Path(tempfile.gettempdir())):
        free = shutil.disk_usage(place).free
        if free < ENOUGH:
            return (
                f"The disk with {shown_path(place)} is full: {free / 2**20:.1f} MiB are free there, too little "
                "for a build. Make room and run the same command again."
            )
    return f"The compiler could not write its output: {said}. The build is in {shown_path(folder)}." if said else ""
