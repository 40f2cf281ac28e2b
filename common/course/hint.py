"""The next hint for the first gap that is unfilled or fails, or for the gap that you name.

Each gap has three hints. If the last test identified your mistake and your files have not changed since, a hint about
that mistake comes first. Each call gives one more hint; --again starts over. No hint contains the code.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from common.compiling.student_gaps import StudentGap, chosen_gap
from common.console.files import write_whole
from common.console.paths import build_root
from common.console.terminal import say
from common.course.arguments import EXPECTED, add_task, refused
from common.course.standing import Standing, standing_of
from common.testing.kept import Failure

GIVEN = 0  # exit status; arguments.BAD_INPUT is the other


@dataclass(frozen=True)
class Subject:
    """The subject of the hints.

    Attributes:
        gap: where to look; None if it could be any of several.
        why: a sentence saying why this gap was chosen.
        hints: in order.
        known: the mistake's name, if the test identified it.
    """

    gap: StudentGap | None
    why: str
    hints: tuple[str, ...]
    known: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the task, the gap and --again."""
    add_task(parser)
    parser.add_argument("gap", nargs="*", metavar="GAP", help="its number or function; see `course progress N`")
    parser.add_argument("--again", action="store_true", help="start over with the first hint")


def run(options: argparse.Namespace) -> int:
    """Prints one hint and returns the exit status."""
    console = Console()
    try:
        standing = standing_of(options.task)
        wanted = " ".join(options.gap)
        subject = _asked_for(standing, wanted) if wanted else subject_of(standing)
        if subject is None:
            say(console, _nothing(standing))
            return GIVEN
        _print(console, subject, _next_stage(standing.task, subject, options.again))
    except EXPECTED as error:
        return refused(error)
    return GIVEN


def subject_of(standing: Standing) -> Subject | None:
    """A failed case of the last run, if the run is still current; otherwise the first unfilled gap."""
    for part, result in standing.failing.items():
        wrong = next(one for one in result.failures if not one.is_unfilled)
        if subject := _of_failure(standing, part, wrong):
            return subject
    gap = standing.next_gap
    if gap is None:
        return None
    left = "optional, and all that is left" if gap.name in standing.optional else "the first gap that is not filled"
    return Subject(gap, left, _of_gap(standing, gap))


def _asked_for(standing: Standing, wanted: str) -> Subject:
    gap = chosen_gap(list(standing.gaps), wanted)
    return Subject(gap, "the gap you named", _of_gap(standing, gap))


def _of_gap(standing: Standing, gap: StudentGap) -> tuple[str, ...]:
    return standing.hints.gaps[gap.name].hints if gap.name in standing.hints.gaps else ()


def _of_failure(standing: Standing, part: str, wrong: Failure) -> Subject | None:
    """The mistake's own hint, then the hints for its gap.

    If the mistake is not tied to a gap and the part runs several: the test's message and the list of gaps. If no
    mistake was identified: the hints for the gap that raised the error, or for the first gap that no other part
    proves correct.
    """
    by_name = {gap.name: gap for gap in standing.gaps}
    why = f"{part}: {wrong.case} was wrong in the last test"
    for name in wrong.mistakes:
        hint = standing.hints.mistakes.get(name)
        if hint and hint.gap in by_name and part in standing.hints.gaps[hint.gap].parts:
            gap = by_name[hint.gap]
            return Subject(gap, why, (hint.hint, *_of_gap(standing, gap)), name)
    of_part = [name for name, one in standing.hints.gaps.items() if part in one.parts and name in by_name]
    file, _, line = wrong.file_line.rpartition(":")
    in_file = [gap for gap in standing.gaps if file and gap.place.startswith(f"{file}:")]
    raised = [gap.name for gap in in_file if gap.first <= int(line) <= gap.last]
    suspects = raised or [name for name in of_part if not _is_proved(standing, name)] or of_part
    if not suspects:
        return None
    gap = by_name[suspects[0]]
    if len(suspects) > 1:
        listed = ", ".join(f"{by_name[name].number} ({name})" for name in suspects)
        why += f"; it runs gaps {listed}: name one of them for its own hints"
    if not wrong.mistakes or not wrong.names_mistake:
        return Subject(gap, why, _of_gap(standing, gap))
    if len(suspects) > 1:
        return Subject(None, why, wrong.says[:1], wrong.mistakes[0])
    return Subject(gap, why, (*wrong.says[:1], *_of_gap(standing, gap)), wrong.mistakes[0])


def _is_proved(standing: Standing, name: str) -> bool:
    """Whether a part that runs this gap passed its last test. Most edits made since then do not change that."""
    parts = [standing.parts[one] for one in standing.hints.gaps[name].parts if one in standing.parts]
    return any(0 < part.cases == part.passed for part in parts)


def _nothing(standing: Standing) -> str:
    if not standing.parts or not all(map(standing.holds, standing.parts.values())):
        return f"Every gap of {standing.task} is filled: `python -m {standing.task}.test` says whether they are right."
    return f"Every gap of {standing.task} is filled, and no case was wrong in the last test: no hints needed."


def _next_stage(task: str, subject: Subject, again: bool) -> int:
    """The number of hints already given on this subject; also counts this one. The last hint repeats."""
    file = build_root() / "course" / "hints.json"
    key = " | ".join([task, subject.gap.name if subject.gap else "", subject.known])
    try:
        counts = json.loads(file.read_text(encoding="utf-8"))
        before = 0 if again else int(counts.get(key, 0))
    except (OSError, ValueError, AttributeError, TypeError):
        counts, before = {}, 0
    stage = min(before, len(subject.hints) - 1)
    write_whole(file, json.dumps(counts | {key: stage + 1}, indent=1) + "\n")
    return stage


def _print(console: Console, subject: Subject, stage: int) -> None:
    gap = subject.gap
    where = f"gap {gap.number}  {gap.place}  " if gap else ""
    console.print(Text.assemble((where, "bold"), f"({subject.why})"))
    if subject.known:
        console.print(Text(f"the test recognized this mistake: {subject.known}", "yellow"))
    if not subject.hints:
        say(console, "there are no hints for this gap; the comment at its TODO says what it needs")
        return
    console.print(Padding(Text(subject.hints[stage]), (1, 0, 1, 2)))
    left = len(subject.hints) - stage - 1
    more = f"repeat the command for the next one, {left} left" if left else "this was the last one; --again starts over"
    console.print(Text(f"hint {stage + 1} of {len(subject.hints)}: {more}", "dim"))
