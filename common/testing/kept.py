"""The results of a test's last runs, stored in build/course/taskN.json for other commands.

    keep("task2", {"gemm": ...})   after a run: replaces the stored results of its parts
    kept("task2")                  -> {part: KeptPart}

A result is valid for the files that were tested: compare `digests` of the student's files to see if it still is.
Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.console.files import write_whole
from common.console.paths import build_root


@dataclass(frozen=True)
class Failure:
    """One failing case: its name and diagnosis.

    Attributes:
        is_unfilled: it fails only because a gap is unfilled.
        mistakes: names of the known mistakes that the output matches.
        says: the test's sentences. Both empty except in a part's first failure.
        names_mistake: whether the first sentence names the mistake, as opposed to where and by how much the output is
            wrong.
        file_line: "task2/attention_kernel.cu:57" for an error.
    """

    case: str
    status: str
    is_unfilled: bool = False
    mistakes: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    names_mistake: bool = True
    file_line: str = ""


@dataclass(frozen=True)
class KeptPart:
    """The result of the last run of one part.

    Attributes:
        earned, possible: points; earned is None if the run stopped at the first failing case.
        why: why points are missing.
        passed, cases: counts, excluding cases that this backend skips.
        failures: the first failures.
        backend: "simulator" or "cuda".
        date: date of the run, "2026-05-04 13:37".
        files: name -> digest of each of the student's files.
    """

    earned: float | None
    possible: float
    why: str = ""
    passed: int = 0
    cases: int = 0
    failures: tuple[Failure, ...] = ()
    backend: str = ""
    date: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def still_holds(self, files: Mapping[str, str]) -> bool:
        """Whether the student's files are the ones that were tested."""
        return dict(self.files) == dict(files)


def digests(files: Sequence[Path]) -> dict[str, str]:
    """Name -> digest of the content; "" for a missing file."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "" for file in files}


def _file(task: str) -> Path:
    return build_root() / "course" / f"{task}.json"


def kept(task: str) -> dict[str, KeptPart]:
    """The stored results of a task by part; {} if the file is missing or not in this format."""
    try:
        content = json.loads(_file(task).read_text(encoding="utf-8"))["parts"]
        return {name: _part(one) for name, one in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _part(one: dict) -> KeptPart:
    texts = ("mistakes", "says")
    failures = (Failure(**each | {name: tuple(each[name]) for name in texts}) for each in one["failures"])
    return KeptPart(**{**one, "failures": tuple(failures)})


def keep(task: str, parts: Mapping[str, KeptPart]) -> None:
    """Replaces the stored results of these parts.

    Raises:
        OSError: the file cannot be written.
    """
    every = kept(task) | dict(parts)
    content = {"task": task, "parts": {name: asdict(one) for name, one in every.items()}}
    write_whole(_file(task), json.dumps(content, indent=1) + "\n")
