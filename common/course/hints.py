"""A task's hints, taskN/given/hints.json: three per gap, and one for each mistake that the test can identify.

    {"gaps": [{"gap": "block_reduce", "parts": ["softmax"], "hints": ["...", "...", "..."]}, ...],
     "mistakes": {"last tile dropped": {"gap": "gemm_nn_kernel", "hint": "..."}, ...}}

The gaps are in working order, under the names that common.compiling.student_gaps gives them. "optional": true marks
gaps that earn no points. No hint contains a line of the solution; tests enforce that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from common.console.paths import ROOT

STAGES = 3


@dataclass(frozen=True)
class GapHints:
    """A gap's hints, from a question to a plan in words.

    Attributes:
        gap: its name.
        parts: the parts of the test that run it.
        hints: STAGES of them.
        optional: the gap earns no points.
    """

    gap: str
    parts: tuple[str, ...]
    hints: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class MistakeHint:
    """What to look at when the test has identified the mistake, and in which gap."""

    gap: str
    hint: str


@dataclass(frozen=True)
class TaskHints:
    """All hints of a task: by gap, in working order, and by mistake name."""

    gaps: Mapping[str, GapHints]
    mistakes: Mapping[str, MistakeHint]


def hints_of(task: str) -> TaskHints:
    """Reads the hints of a task.

    Raises:
        FileNotFoundError: the task has no hints.
        ValueError: the file is malformed; the message names it.
    """
    file = ROOT / task / "given" / "hints.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        gaps = [
            GapHints(one["gap"], tuple(one["parts"]), tuple(one["hints"]), one.get("optional", False))
            for one in content["gaps"]
        ]
        mistakes = {name: MistakeHint(**one) for name, one in content["mistakes"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file.relative_to(ROOT)} is malformed: {error!r}") from None
    return TaskHints({one.gap: one for one in gaps}, mistakes)
