"""The files written from an outcome, in the submission's folder.

result.json    everything, as plain data (outcome.py)
feedback.html  for the student, see feedback.py; written with the class's files
results.json   Gradescope's: https://gradescope-autograders.readthedocs.io/en/latest/specs/
report.html    a page for the instructor
build.log      the compilers' output
files/         the graded files
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from html import escape
from pathlib import Path

from common.console.files import write_whole
from common.course.grading.at_work import at_work, at_work_in_block
from common.course.grading.outcome import CaseOutcome, Outcome, PartOutcome, TaskOutcome
from common.course.grading.submissions import Submission
from common.testing.case import FAIL, NOT_RUN, PASS

SHOWN = "visible"
HIDDEN = (  # the same whatever happens there: what differs would tell their sizes
    "In a hidden case the output is wrong, the code ends with an error, or the kernels do not do the work: none is "
    "launched, fewer than 32 threads run, one of them does nearly everything, data is copied to the host, or device "
    "memory is allocated that the handout forbids."
)
SHOWN_COUNTS = ("launches", "threads", "read_back")
RACES = (
    "A case that fails here and passes in your own test? Run that test with --check. Here a thread is held up before a "
    "store now and then, as it may be on a GPU, so that a missing barrier or atomic shows."
)
MOST_OUTPUT = 20_000  # characters in one test's output
FAILED = "The grader failed"


def write_outcome(folder: Path, outcome: Outcome, submission: Submission | None) -> None:
    """Writes all of them; result.json last, since its presence marks the submission as done."""
    if submission is not None:
        shutil.rmtree(folder / "files", ignore_errors=True)  # left from an earlier submission
        for name, text in submission.files.items():
            write_whole(folder / "files" / name, text)
    logs = [f"--- {task.task}\n{task.log}" for task in outcome.tasks if task.log]
    write_whole(folder / "build.log", "\n".join(logs) + "\n")
    write_whole(folder / "results.json", json.dumps(gradescope(outcome), indent=1) + "\n")
    write_whole(folder / "report.html", page(outcome))
    write_whole(folder / "result.json", json.dumps(outcome.as_json(), indent=1) + "\n")


def read_outcome(folder: Path) -> Outcome | None:
    """Reads the outcome from a folder; None if there is none or it cannot be read."""
    try:
        return Outcome.from_json(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def gradescope(outcome: Outcome) -> dict:
    """results.json: a test for each part. It omits the sizes of hidden cases, the flags for a human, and the grading
    time: through it, code that sleeps could leak hidden cases."""
    tests = []
    for task in outcome.tasks:
        for part, why in _whys(task):
            tests.append(
                {
                    "name": f"{task.task}: {part.part}",
                    "score": part.earned,
                    "max_score": part.possible,
                    "status": "passed" if part.earned >= part.possible else "failed",
                    "output": _told(part, why)[:MOST_OUTPUT],
                    "output_format": "text",
                    "visibility": SHOWN,
                }
            )
    failed = outcome.problem.startswith(FAILED)  # the rest is internal to the grader
    said = [f"{FAILED}; this is not your fault. Please tell your instructor." if failed else outcome.problem]
    said = [*filter(None, said), *outcome.notes]
    problems: dict[str, list[str]] = {}
    for name, why in (one for task in outcome.tasks for one in task.files.items()):
        problems.setdefault(why, []).append(name)
    said += [f"{', '.join(names)}: {why}" for why, names in problems.items()]
    said += [
        f"{name} ({points:g} points) is not graded here: {why}." for name, (points, why) in outcome.not_graded.items()
    ]
    shown = [case for task in outcome.tasks for part in task.parts for case in part.cases if not case.hidden]
    if any(case.status == FAIL for case in shown):
        said.append(RACES)
    return {
        "score": outcome.earned,
        "output": "\n".join(said)[:MOST_OUTPUT],
        "output_format": "text",
        "visibility": SHOWN,
        "stdout_visibility": "hidden",
        "tests": tests,
    }


def _whys(task: TaskOutcome) -> list[tuple[PartOutcome, str]]:
    """Each part with why it lost points; a reason shared by several is given at the first."""
    found, at = [], {}
    for part in task.parts:
        first = at.setdefault((part.why, part.why_is_hidden), part.part)
        same = part.why and first != part.part
        found.append((part, f"The same as for {first}." if same else part.why))
    return found


def _has_run(part: PartOutcome) -> bool:
    return not part.why or any(case.status != NOT_RUN for case in part.cases)


def _diagnoses(cases: Sequence[CaseOutcome]) -> list[tuple[CaseOutcome, list[str]]]:
    """Each case with its diagnosis; one shared by several is given at the first, with their count."""
    number = Counter(tuple(case.diagnosis) for case in cases if case.status != "pass" and case.diagnosis)
    found = []
    for case in cases:
        said = tuple(case.diagnosis) if case.status != "pass" else ()
        times = number.pop(said, 0)
        found.append((case, [*said, f"({times} cases say this.)"][: len(said) + (times > 1)] if times else []))
    return found


def _told(part: PartOutcome, why: str) -> str:
    """The text about a part that the student sees."""
    lines = [why] if why and not part.why_is_hidden else []
    if not _has_run(part):
        return why
    for case, said in _diagnoses([one for one in part.cases if not one.hidden]):
        star = " *" if case.required else ""
        lines.append(f"{case.status:>16}  {case.title}{star}" + (f"  ({case.points:g})" if case.points else ""))
        lines += [f"                  {line}" for line in said]
    if hidden := [case.status for case in part.cases if case.hidden]:
        passed = set(hidden) == {PASS} and not part.why_is_hidden
        lines.append(f"{PASS if passed else 'not passed':>16}  hidden cases: other shapes, other numbers *")
        lines += [] if passed else [f"                  {HIDDEN}"]
    if part.why_is_hidden or any(case.required and case.status != "pass" for case in part.cases):
        lines.append("The part earns nothing before every case marked * passes.")
    return "\n".join(lines)


STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #1b1b1b; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; padding: .15rem .7rem .15rem 0; vertical-align: top; }
tr { border-bottom: 1px solid #e3e3e3; }
pre { background: #f5f5f5; padding: .7rem; overflow-x: auto; white-space: pre-wrap; }
.pass { color: #17692b; } .FAIL, .error { color: #a11818; } .look { background: #fff5d6; padding: .2rem .8rem; }
@media (prefers-color-scheme: dark) {
 body { background: #16181b; color: #e4e4e4; } tr { border-color: #333; } pre { background: #1f2226; }
 .pass { color: #69c47f; } .FAIL, .error { color: #f08080; } .look { background: #3a3319; }
}
"""


def page(outcome: Outcome) -> str:
    """report.html: everything known, for the instructor only."""
    body = [f"<h1>{escape(outcome.name)}: {outcome.earned:g} of {outcome.possible:g}</h1>"]
    body.append(
        f"<p>{escape(outcome.source)}. Sandbox: {escape(outcome.sandbox or 'none')}. "
        f"{outcome.cpu_seconds:.0f} s of CPU, {outcome.wall_seconds:.0f} s, {outcome.peak_bytes / 2**20:.0f} MiB.</p>"
    )
    if outcome.problem:
        body.append(f"<p class=error>{escape(outcome.problem)}</p>")
    if outcome.flags:
        items = "".join(f"<li>{escape(flag)}</li>" for flag in outcome.flags)
        body.append(
            f"<div class=look><h2>For a human to look at</h2><p>No points depend on these.</p><ul>{items}</ul></div>"
        )
    for name, (points, why) in outcome.not_graded.items():
        body.append(f"<p>{escape(name)}: {points:g} points are not graded here: {escape(why)}.</p>")
    for task in outcome.tasks:
        body.append(f"<h2>{escape(task.task)}: {task.earned:g} of {task.possible:g}</h2>")
        body += [f"<p class=error>{escape(name)}: {escape(why)}</p>" for name, why in task.files.items()]
        for part, why in _whys(task):
            body.append(f"<h3>{escape(part.part)}: {part.earned:g} of {part.possible:g}</h3>")
            body += [f"<pre class=error>{escape(why)}</pre>"] if why else []
            if part.kernel:
                counted = ", ".join(f"{name.replace('_', ' ')} {part.kernel.get(name, 0):,}" for name in SHOWN_COUNTS)
                working = (
                    f"{at_work(part.kernel):,.0f} at work at a time, {at_work_in_block(part.kernel):,.0f} of a block"
                )
                body.append(f"<p>With inputs that only kernels can see: {escape(counted)}; threads: {working}.</p>")
            if not _has_run(part):
                continue
            body.append("<table><tr><th>case<th>verdict<th>points<th>max error<th>bound</tr>")
            for case, said in _diagnoses(part.cases):
                numbers = "".join(f"<td>{'' if x is None else f'{x:.1e}'}" for x in (case.max_error, case.bound))
                star = " *" if case.required else ""
                points = f"{case.points:g}" if case.points else ""
                verdict = f"<td class='{escape(case.status.split()[0])}'>{escape(case.status)}"
                body.append(f"<tr><td>{escape(case.title)}{star}{verdict}<td>{points}{numbers}</tr>")
                if said:
                    body.append(f"<tr><td colspan=5><pre>{escape(chr(10).join(said))}</pre></tr>")
            body.append("</table>")
        if task.log:
            body.append(f"<details><summary>What the compilers said</summary><pre>{escape(task.log)}</pre></details>")
    title = escape(f"{outcome.name}: {outcome.earned:g} of {outcome.possible:g}")
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\n" + "\n".join(body) + "\n"
