"""A control group for a sandbox: the kernel then enforces limits on its threads and memory.

    group = ControlGroup.made("grading-1", threads=1024, memory=4 << 30)    None if this user cannot create one
    group.enter(process)
    group.close()

Uses cgroup v2, or the controllers pids and memory of v1. It matters most under root, for which prlimit's process limit
is not enforced.
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
    """A control group; it has a folder in each hierarchy that it uses."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = list(folders)

    @classmethod
    def made(cls, name: str, threads: int, memory: int, root: Path = ROOT) -> ControlGroup | None:
        """A new group; None if no group that limits the threads can be created.

        Args:
            name: folder name.
            threads: maximum at a time.
            memory: bytes, including files in memory.
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
        """Adds a process; the processes it starts from then on belong to the group too."""
        for folder in self._folders:
            with contextlib.suppress(OSError):  # the process has ended
                (folder / "cgroup.procs").write_text(str(process))

    def close(self) -> None:
        """Removes the group once its processes are gone."""
        for folder in self._folders:
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # the last process is still exiting
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
