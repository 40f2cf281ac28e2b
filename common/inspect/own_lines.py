"""Finds the lines that a student wrote: own_lines(file), the lines that the released file does not have."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from pathlib import Path

from common.compiling.manifest import read_manifest, tasks
from common.compiling.student_gaps import GapError, given_out
from common.console.files import read_source
from common.console.paths import ROOT
from common.inspect.source_lines import Place
from common.simulator.text import blanked


@functools.cache
def own_lines(file: str) -> frozenset[int] | None:
    """The numbers of these lines; empty for a provided file; None if the released version is unknown.

    Args:
        file: a student's file, or another version of it: a solution, or one with planted mistakes.
    """
    path = Path(file)
    task = next((one for one in tasks() if one in path.parts), None)
    if task is None:
        return frozenset() if path.parts[-3:-1] == ("common", "cuda") else None
    if path.name not in read_manifest(task).files or "given" in path.parts:
        return frozenset()
    try:
        given = _code(given_out(ROOT / task / path.name))
        now = _code(read_source(path))
    except (GapError, OSError, ValueError):
        return None
    own = set(range(1, len(now) + 1))
    for block in difflib.SequenceMatcher(None, given, now, autojunk=False).get_matching_blocks():
        own -= set(range(block.b + 1, block.b + block.size + 1))
    return frozenset(number for number in own if len(now[number - 1]) > 1)


def owned(places: Iterable[Place]) -> list[Place]:
    """The places in lines that the student wrote, in order; all places of a file without a released version."""
    return [one for one in places if (own := own_lines(one.file)) is None or one.line in own]


def _code(text: str) -> list[str]:
    return [" ".join(line.split()) for line in blanked(text).split("\n")]
