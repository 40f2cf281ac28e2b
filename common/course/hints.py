"""The hints of a task, taskN/given/hints.json: three for every gap, and one for each mistake that the test may name.

    {"gaps": [{"gap": "block_reduce", "parts": ["softmax"], "hints": ["...", "...", "..."]}, ...],
     "mistakes": {"last tile dropped": {"gap": "gemm_nn_kernel", "hint": "..."}, ...}}

The gaps are in the order in which they are worked on, under the names that common.compiling.student_gaps gives them.
"optional": true marks those that earn no points. A hint holds no line of the solution; tests hold the files to that.
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
        parts: of the test, those that run it.
        hints: STAGES of them.
        optional: it earns no points.
    """

    gap: str
    parts: tuple[str, ...]
    hints: tuple[str, ...]
    optional: bool = False


@dataclass(frozen=True)
class MistakeHint:
    """What to look at when the test knows what is wrong, and in which gap."""

    gap: str
    hint: str


@dataclass(frozen=True)
class TaskHints:
    """All hints of a task: of its gaps in the order of work, and by the name of a mistake."""

    gaps: Mapping[str, GapHints]
    mistakes: Mapping[str, MistakeHint]


def hints_of(task: str) -> TaskHints:
    """The hints of a task.

    Raises:
        FileNotFoundError: it has none.
        ValueError: the file is not as it must be; the message names it.
    """
    file = ROOT / task / "given" / "hints.json"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        gaps = [
            GapHints(one["gap"], tuple(one["parts"]), tuple(one["hints"]), one.get("optional", False))
            for one in content["gaps"]
        ]
        mistakes = {name: MistakeHint(**one) for name, one in content["mistakes"].items()}
    except FileNotFoundError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file.relative_to(ROOT)} is malformed: {error!r}") from None
    return TaskHints({one.gap: one for one in gaps}, mistakes)
