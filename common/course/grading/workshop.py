"""Workshop: what all submissions of a class share; course_hash(): what decides grades beside submission and salt."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from common.compiling.manifest import read_manifest, tasks
from common.course.grading.salt import mark_of
from common.course.grading.sandbox import Limits
from common.course.grading.submissions import Submission


@dataclass(frozen=True)
class Workshop:
    """What all submissions of a class share.

    Attributes:
        folder: a temporary one that other users may enter; base and runtime lie in it.
        base: the clean tree, see clean_tree.py.
        runtime: the simulator's compiled runtime.
        runner: the program that runs kernels, see common/testing/runner.
        kind: of sandbox.
        salt: the class's secret.
        course: a hash of all that decides a grade beside the submission.
        tasks: those that are graded.
        parts: of their parts, only these; None: all.
        limits: see sandbox.Limits.
        speed: speed points are given, too; needs a GPU.
    """

    folder: Path
    base: Path
    runtime: Path
    runner: Path
    kind: str
    salt: bytes
    course: str
    tasks: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    parts: tuple[str, ...] | None = None
    speed: bool = False

    def key(self, submission: Submission) -> str:
        """Two gradings with the same key give the same points."""
        digest = hashlib.sha256(f"{mark_of(self.salt)} {self.course} {self.tasks}{' speed' * self.speed}".encode())
        for name, text in sorted(submission.files.items()):
            digest.update(f"{name} {len(text)} ".encode() + text.encode())
        return digest.hexdigest()[:24]


def course_hash(base: Path) -> str:
    """Of the clean tree and the hidden cases: what decides grades beside submission and salt."""
    digest = hashlib.sha256()
    for file in sorted(path for path in base.rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(base)).encode() + file.read_bytes())
    for task in tasks():
        with contextlib.suppress(OSError):
            digest.update((read_manifest(task).folder / "cases" / "hidden.py").read_bytes())
    return digest.hexdigest()
