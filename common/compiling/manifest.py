"""taskN/task.json: a task's student files, and the folders of common/kernels with its tuned versions.

    {"files": ["attention_kernel.cu"], "tuned": ["softmax", "gemm"], "points": 3}

`files` are names in the task's folder. The filled version of a file with gaps is in solution/, from which
common.skeleton generates the student's; a file without gaps (task 4's tiles.h) exists once. `points` is the maximum
score of the task's test. "workspace": false means that its launchers allocate no device memory.
Standard library only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from common.console.paths import ROOT


@dataclass(frozen=True)
class Manifest:
    """A task.

    Attributes:
        task: "task2".
        files: names of the student's files in the task's folder.
        tuned: names of the folders in common/kernels that together provide the task's tuned operators.
        points: the maximum score of the task's test.
        workspace: whether launchers may allocate device memory.
    """

    task: str
    files: tuple[str, ...]
    tuned: tuple[str, ...] = ()
    points: float = 0.0
    workspace: bool = True

    @property
    def folder(self) -> Path:
        """task2/ in the checkout."""
        return ROOT / self.task

    @property
    def with_gaps(self) -> list[str]:
        """The names of the files whose filled version is in solution/."""
        return [name for name in self.files if (self.folder / "solution" / name).is_file()]

    @property
    def kernels(self) -> list[str]:
        """The names of the .cu files."""
        return sorted(name for name in self.files if name.endswith(".cu"))


def tasks() -> list[str]:
    """All tasks that have a task.json, in order."""
    return sorted(file.parent.name for file in ROOT.glob("task*/task.json"))


def has_solutions() -> bool:
    """Whether this checkout includes solutions; the student edition does not."""
    return any(ROOT.glob("task*/solution"))


def read_manifest(task: str) -> Manifest:
    """The manifest of a task.

    Raises:
        ValueError: there is no such task, or its task.json is invalid.
    """
    if task not in tasks():
        raise ValueError(f"task is {task!r}; it must be one of {', '.join(tasks())}")
    file = ROOT / task / "task.json"
    name = file.relative_to(ROOT)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{name} is no JSON: {error}") from None
    lists = [content.get(key, []) for key in ("files", "tuned")] if isinstance(content, dict) else [None]
    for entries in lists:
        if not isinstance(entries, list) or not all(isinstance(one, str) and one == Path(one).name for one in entries):
            raise ValueError(f'{name} must hold {{"files": [...], "tuned": [...]}}, lists of names without a folder')
    points = content.get("points", 0)
    if not isinstance(points, int | float):
        raise ValueError(f"{name}: points is {points!r}; it must be a number")
    return Manifest(task, *map(tuple, lists), float(points), content.get("workspace", True) is not False)
