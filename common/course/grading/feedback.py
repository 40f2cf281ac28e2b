"""feedback.html: a page for the student. It shows what Gradescope shows, so nothing hidden."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from common.course.grading.outcome import Outcome
from common.course.grading.results import STYLE, gradescope

if TYPE_CHECKING:
    from common.course.grading.gradebook import Adjustment, Settings


def feedback(outcome: Outcome, by_hand: Adjustment, settings: Settings) -> str:
    """The page as HTML.

    Args:
        outcome: of grading the student's submission.
        by_hand: late days, points and comments.
        settings: the class's settings.
    """
    told, total = gradescope(outcome), by_hand.total(outcome.earned, settings)
    title = escape(f"{outcome.name}: {total:g}" + f" of {outcome.possible:g}" * bool(outcome.tasks) + " points")
    body = [f"<h1>{title}</h1>"]
    sums = [f"The tests give {outcome.earned:g} points."]
    if by_hand.late_days:
        free, share = settings.free_late_days, by_hand.late_share(settings)
        sums.append(f"Days late: {by_hand.late_days:g} ({free:g} free): {share:.0%} less.")
    if by_hand.points:
        sums.append(f"Points given by hand: {by_hand.points:+g}.")
    body += [f"<p>{escape(' '.join(sums))}</p>"] if len(sums) > 1 else []
    body += [f"<div class=look><p>{escape(comment)}</p></div>" for comment in by_hand.comments]
    body += [f"<p>{escape(line)}</p>" for line in told["output"].splitlines()]
    body += ["<table><tr><th>part<th>points<th>of</tr>"] if told["tests"] else []
    for test in told["tests"]:
        name, state = escape(test["name"]), "pass" if test["status"] == "passed" else "FAIL"
        body.append(f"<tr><td class={state}>{name}<td>{test['score']:g}<td>{test['max_score']:g}</tr>")
    body.append("</table>")
    body += [f"<h2>{escape(test['name'])}</h2><pre>{escape(test['output'])}</pre>" for test in told["tests"]]
    return f"<!doctype html><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>\n" + "\n".join(body) + "\n"
