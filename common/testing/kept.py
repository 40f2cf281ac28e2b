"""What the last runs of a test said, kept in build/course/taskN.json, so that others need not run it again.

    keep("task2", {"gemm": ...})   after a run: its parts replace what was kept of them
    kept("task2")                  -> {part: KeptPart}

A part holds for the files it was tested with: `digests` of the student's files tell whether it still does.
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
    """One failing case: what it is called, and what the test knows of it.

    Attributes:
        is_unfilled: nothing is wrong except that a gap is unfilled.
        mistakes: the names of known mistakes that the output equals.
        says: the test's sentences.
        names_mistake: whether the first of them is about the mistake, not about where and how much is wrong.
        file_line: "task2/attention_kernel.cu:57" of an error.
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
    """What the last run of one part said.

    Attributes:
        earned, possible: points; earned is None where the run ended at the first failing case.
        why: why not more.
        passed, cases: how many, without those that this backend leaves out.
        failures: the first of them.
        backend: "simulator" or "cuda".
        date: of the run, "2026-05-04 13:37".
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

    @property
    def is_full(self) -> bool:
        """Whether there is nothing more to earn, and nothing fails."""
        return self.earned is not None and self.earned >= self.possible and not self.failures

    def still_holds(self, files: Mapping[str, str]) -> bool:
        """Whether the student's files are those that were tested."""
        return dict(self.files) == dict(files)


def digests(files: Sequence[Path]) -> dict[str, str]:
    """Name -> digest of the content; "" for a file that is not there."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "" for file in files}


def _file(task: str) -> Path:
    return build_root() / "course" / f"{task}.json"


def kept(task: str) -> dict[str, KeptPart]:
    """What is known of a task, part by part; nothing if the file is missing or is none of ours."""
    try:
        content = json.loads(_file(task).read_text(encoding="utf-8"))["parts"]
        return {name: _part(one) for name, one in content.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _part(one: dict) -> KeptPart:
    failures = (Failure(**{**each, **_tuples(each, "mistakes", "says")}) for each in one["failures"])
    return KeptPart(**{**one, "failures": tuple(failures)})


def _tuples(one: dict, *names: str) -> dict:
    return {name: tuple(one[name]) for name in names}


def keep(task: str, parts: Mapping[str, KeptPart]) -> None:
    """Replaces what was kept of these parts.

    Raises:
        OSError: the file cannot be written.
    """
    every = kept(task) | dict(parts)
    content = {"task": task, "parts": {name: asdict(one) for name, one in every.items()}}
    write_whole(_file(task), json.dumps(content, indent=1) + "\n")
