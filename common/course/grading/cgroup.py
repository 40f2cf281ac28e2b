"""A control group for a sandbox: the kernel itself then holds the number of its threads and its memory.

    group = ControlGroup.made("grading-1", threads=1024, memory=4 << 30)    None where this user may make none
    group.enter(process)
    group.close()

Version 2 of control groups, or the controllers pids and memory of version 1. It matters most to root, on whom prlimit's
number of processes is not enforced.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
V2 = {"pids.max": "threads", "memory.max": "memory"}
V1 = {"pids": {"pids.max": "threads"}, "memory": {"memory.limit_in_bytes": "memory"}}


class ControlGroup:
    """One group; a folder for each hierarchy it has a part in."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(folders)

    @classmethod
    def made(cls, name: str, threads: int, memory: int, root: Path = ROOT) -> ControlGroup | None:
        """A new group; None where none can be made that limits the threads.

        Args:
            name: of a folder.
            threads: at a time.
            memory: bytes, files in memory included.
            root: where the hierarchies are mounted.
        """
        limits = {"threads": str(threads), "memory": str(memory)}
        own = _own_groups()
        if (root / "cgroup.controllers").is_file():
            path = root / own.get("", "").lstrip("/")
            for parent in dict.fromkeys((path, path.parent if path != root else root, root)):
                if folder := _made(parent / name, V2, limits):
                    return cls([folder])
            return None
        folders = [
            _made(root / controller / own.get(controller, "").lstrip("/") / name, files, limits)
            for controller, files in V1.items()
        ]
        group = cls([folder for folder in folders if folder])
        if folders[0] is None:
            group.close()
            return None
        return group

    def enter(self, process: int) -> None:
        """Puts a process in; what it starts from then on is in it as well."""
        for folder in self._folders:
            with contextlib.suppress(OSError):  # it has ended
                (folder / "cgroup.procs").write_text(str(process))

    def close(self) -> None:
        """Takes the group away, once its processes are gone."""
        for folder in self._folders:
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # the last process is still on its way out
                    time.sleep(0.05)


def _own_groups() -> dict[str, str]:
    """Controller -> the path of this process's group; "" for version 2."""
    found = {}
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            found |= dict.fromkeys(controllers.split(","), path)
    return found


def _made(folder: Path, files: Mapping[str, str], limits: Mapping[str, str]) -> Path | None:
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        for name, limit in files.items():
            if not (folder / name).is_file():
                raise FileNotFoundError(name)
            (folder / name).write_text(limits[limit])
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    return folder
