"""Workshop: what all submissions of a class share. course_hash(): hash of everything else that affects grades."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from common.compiling.manifest import tasks
from common.console.paths import ROOT
from common.course.grading.salt import mark_of
from common.course.grading.sandbox import Limits
from common.course.grading.submissions import Submission

_NO_RULE = re.compile(r"(^|/)(__pycache__|build|tests)/|\.bak|\.(md|png|svg)$")


@dataclass(frozen=True)
class Workshop:
    """What all submissions of a class share.

    Attributes:
        folder: a temporary folder that other users can enter; contains base and runtime.
        base: the clean tree, see clean_tree.py.
        runtime: the simulator's compiled runtime.
        runner: the program that runs kernels, see common/testing/runner.
        kind: the kind of sandbox.
        salt: the class's secret.
        course: a hash of everything that affects a grade apart from the submission and the salt.
        tasks: the graded tasks.
        parts: grade only these of their parts; None: all.
        limits: see sandbox.Limits.
        speed: whether to grade speed too; needs a GPU.
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
        """A key for caching: two gradings with the same key give the same points and remarks."""
        digest = hashlib.sha256(f"{mark_of(self.salt)} {self.course} {self.tasks}{' speed' * self.speed}".encode())
        for name, text in sorted(submission.files.items()):
            digest.update(f"{name} {len(text)} ".encode() + text.encode())
        digest.update(json.dumps([submission.problems, submission.notes], sort_keys=True).encode())
        return digest.hexdigest()[:24]


def course_hash(base: Path) -> str:
    """Hash of the clean tree, and of all other files of the course except tests, caches, builds, and handouts: what
    affects grades apart from submission and salt."""
    digest = hashlib.sha256()
    for root, folders in ((base, [""]), (ROOT, ["common", *tasks()])):
        for file in sorted(path for one in folders for path in (root / one).rglob("*") if path.is_file()):
            name = file.relative_to(root).as_posix()
            if root == base or not _NO_RULE.search(name):
                digest.update(name.encode() + file.read_bytes())
    return digest.hexdigest()
