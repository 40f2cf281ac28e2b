"""What was seen of mutants, kept in build/mutants by content: an edit makes the program run again what it may "
"change."""

from __future__ import annotations

import functools
import hashlib
import json

from common.console.files import write_whole
from common.console.paths import ROOT, build_root
from common.mutants.mutation import Mutant
from common.mutants.observing import Observation

# What decides what a report says, besides the task's own files
_SOURCES = ("testing", "diagnosis", "inspect", "reference", "simulator", "cuda", "cli", "compiling")


@functools.cache
def _digest(task: str) -> str:
    """Of everything that the observations of a task depend on."""
    folders = [ROOT / "common" / name for name in _SOURCES] + [ROOT / task]
    files = [ROOT / "common" / "mutants" / name for name in ("observing.py", "building.py")]
    for folder in folders:
        files += [file for file in folder.rglob("*") if file.suffix in (".py", ".cu", ".cuh", ".h", ".cpp")]
    whole = hashlib.sha256()
    for file in sorted(files):
        whole.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return whole.hexdigest()


class Remembered:
    """The observations of a task's mutants.

    Args:
        task: "task2".
    """

    def __init__(self, task: str) -> None:
        self._file = build_root() / "mutants" / task / "observations.json"
        self._known: dict[str, dict] = json.loads(self._file.read_text()) if self._file.exists() else {}
        self._digest = _digest(task)

    def get(self, mutant: Mutant) -> Observation | None:
        """What was seen of it, unless something has changed since."""
        known = self._known.get(mutant.key)
        return Observation.of_json(known["seen"]) if known and known["digest"] == self._digest else None

    def keep(self, mutant: Mutant, seen: Observation) -> None:
        """Keeps it, in the file as well."""
        self._known[mutant.key] = {"digest": self._digest, "seen": seen.as_json()}
        write_whole(self._file, json.dumps(self._known, indent=1))
