"""Outputs made from an outcome: JSON and back, Gradescope's format, the page, a class."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from rich.console import Console

from common.console.paths import ROOT
from common.course.grading.feedback import feedback
from common.course.grading.gathered import failed_most, histogram, print_class
from common.course.grading.gradebook import Adjustment, Settings, write_grades
from common.course.grading.outcome import CaseOutcome, Outcome, PartOutcome, TaskOutcome
from common.course.grading.results import gradescope, page, read_outcome, write_outcome
from common.course.grading.submissions import Submission
from common.testing.case import FAIL

SECRET = "hidden: 131 x 77"


def outcome(name: str = "ann", earned: float = 0.5) -> Outcome:
    cases = [
        CaseOutcome("7 x 31", "pass", 0.5, True, False, [], 1e-7, 1e-6),
        CaseOutcome("<script>alert(1)</script>", "FAIL", 0.5, False, False, ["[red]wrong[/] & <b>bad</b>"], None, 1e-6),
        CaseOutcome(SECRET, "pass", 0.0, True, True, [], 1e-7, 1e-6),
    ]
    part = PartOutcome("softmax", earned, 1.0, "", {"launches": 1, "threads": 64, "read_back": 0}, cases)
    task = TaskOutcome("task2", [part], "", "log <x>", {"task2/tiles.h": "The file is missing."})
    return Outcome(name, f"/in/{name}", [task], not_graded={"task4 speed": (2.0, "no GPU")}, flags=["<i>dlsym</i>"])


def test_json_comes_back_as_it_was() -> None:
    made = outcome()
    assert Outcome.from_json(json.loads(json.dumps(made.as_json()))) == made
    with pytest.raises(ValueError, match="version"):
        Outcome.from_json({**made.as_json(), "version": 0})


@pytest.mark.parametrize("made", [outcome(), Outcome("x", "y", problem="cannot be read")])
def test_gradescope_gets_its_documented_form(made: Outcome) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "common/course/grading/gradescope.schema.json").read_text())
    told = gradescope(made)
    jsonschema.Draft202012Validator(schema).validate(told)
    assert told["score"] == made.earned == sum(test["score"] for test in told["tests"])
    assert SECRET not in json.dumps(told) and "dlsym" not in json.dumps(told)
    wrong = any(case.status == FAIL for task in made.tasks for part in task.parts for case in part.cases)
    assert ("run that test with --check" in told["output"].lower()) is wrong
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate({**told, "visibility": "everybody"})


def test_the_page_escapes_what_a_submission_says() -> None:
    text = page(outcome("<ann>"))
    assert "<script>alert" not in text and "<b>bad" not in text and "<i>dlsym" not in text and "log &lt;x&gt;" in text
    assert SECRET in text  # the instructor's copy


def test_the_feedback_page_holds_nothing_hidden_and_what_was_added_by_hand() -> None:
    text = feedback(outcome("<ann>"), Adjustment(2.5, -0.1, ["<well> done"]), Settings("x", 1, 25))
    assert SECRET not in text and "dlsym" not in text and "log &lt;x&gt;" not in text
    assert "execution_time" not in gradescope(outcome())  # code that sleeps in hidden cases could reveal their size
    assert "<script>alert" not in text and "&lt;ann&gt;: 0.15 of 1 points" in text and "&lt;well&gt; done" in text
    assert "Days late: 2.5 (1 free): 50% less. Points given by hand: -0.1." in text


def test_the_feedback_tells_of_hidden_cases_only_whether_all_passed() -> None:
    def told(*statuses: str, why: str = "") -> str:
        hidden = [CaseOutcome(SECRET, one, 0.0, True, True, [one]) for one in statuses]
        cases = [CaseOutcome("7 x 31", "pass", 1.0, True), *hidden]
        part = PartOutcome("softmax", 0.0 if why or {*statuses} != {"pass"} else 1.0, 1.0, why, {}, cases, bool(why))
        return json.dumps(gradescope(Outcome("ann", "/in/ann", [TaskOutcome("task2", [part])])))

    wrong = [told("pass", status) for status in ("error", FAIL, "not run", "not implemented")]
    wrong += [told("error", "pass"), told("pass", "pass", why="No kernel was launched.")]
    assert len(set(wrong)) == 1 and "not passed  hidden cases" in wrong[0]
    assert "not passed" not in told("pass", "pass") and "No kernel" not in wrong[-1]


def test_what_several_cases_say_is_said_once() -> None:
    gap = ["not implemented: x.cu:5"]
    cases = [CaseOutcome(str(number), "not implemented", 0.1, diagnosis=gap) for number in range(10)]
    parts = [PartOutcome("one", 0, 1, "", {}, cases), *(PartOutcome(name, 0, 1, "No <build>") for name in "ab")]
    made = Outcome("ann", "/in/ann", [TaskOutcome("task2", parts)])
    for text in (page(made), feedback(made, Adjustment(), Settings())):
        assert text.count(gap[0]) == 1 and "(10 cases say this.)" in text
        assert text.count("No &lt;build&gt;") == 1 and "The same as for a." in text


def test_files_are_written_and_read_again(tmp_path: Path) -> None:
    write_outcome(tmp_path, outcome(), Submission("ann", {"task2/attention_kernel.cu": "// x\n"}))
    assert read_outcome(tmp_path) == outcome()
    assert (tmp_path / "files/task2/attention_kernel.cu").read_text() == "// x\n"
    write_outcome(tmp_path, outcome(), Submission("ann", {}))  # a later submission lacks the file
    assert not (tmp_path / "files").exists()
    (tmp_path / "result.json").write_text('{"version": 1}')
    assert read_outcome(tmp_path) is None


def test_a_class_is_a_table_a_histogram_and_what_fails_most(tmp_path: Path) -> None:
    every = [outcome("ann"), outcome("=cmd()", 1.0), Outcome("bob", "/in/bob", problem="cannot be read")]
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_class(console, every, ["task2"])
    write_grades(tmp_path / "grades.csv", every, ["task2"], {"bob": Adjustment(points=0.25)}, Settings())
    rows = list(csv.DictReader((tmp_path / "grades.csv").open()))
    told = [(row["submission"], row["points"], row["total"]) for row in rows]
    assert told == [("'=cmd()", "1.0", "1.0"), ("ann", "0.5", "0.5"), ("bob", "0", "0.25")]
    assert failed_most(every) == [(("task2", "softmax", "<script>alert(1)</script>"), 2)]
    bars = histogram([0.5, 1.0, 0.0], 1.0)
    assert [line.split()[3] for line in bars[2:]] == ["1", "0", "0", "0", "1", "0", "0", "0", "0", "1"]
