"""A class's files: manual entries survive, and Canvas's roster finds its submissions."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import pytest
from filelock import FileLock

from common.course import gradebook as command
from common.course.grading.gradebook import Settings, read_adjustments, read_settings, write_class, write_gradebook
from common.course.grading.outcome import Outcome, PartOutcome, TaskOutcome
from common.course.grading.results import write_outcome

EXPORT = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Attention (77),Other (78)
    Points Possible,,,,,4,10
"Ann, A.",11,s11,ann,1,,9
"Bob, B.",12,s12,bob,1,,8
"Cid, C.",13,s13,cid,1,,7
"""


def graded(out: Path, **earned: float) -> Path:
    for name, points in earned.items():
        parts = [PartOutcome("softmax", points, 4.0)]
        write_outcome(out / name, Outcome(name, f"/in/{name}.zip", [TaskOutcome("task2", parts)]), None)
    (out / "salt").touch()
    return out


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as opened:
        return list(csv.DictReader(opened))


def test_what_is_written_by_hand_survives_a_regrade(tmp_path: Path) -> None:
    file = graded(tmp_path, ann=3.0, bob=2.0) / "adjustments.csv"
    assert write_class(tmp_path) == []
    assert file.read_text() == "submission,late_days,points,comment\nann,,,\nbob,,,\n"
    by_hand = '\ufeffcomment;submission;points;late_days\r\nwell: "done";ann;0,5;2\r\n;bob;;\r\n'
    file.write_text(by_hand, newline="")  # as a European spreadsheet saves it
    (tmp_path / "class.json").write_text('{"late_penalty": 10, "free_late_days": 1}')
    graded(tmp_path, ann=4.0, cid=1.0)
    assert write_class(tmp_path) == []
    assert file.read_bytes().decode() == by_hand + ";cid;;\n"
    assert write_class(tmp_path) == [] and file.read_bytes().decode() == by_hand + ";cid;;\n"
    assert [(row["submission"], row["points"], row["total"]) for row in rows(tmp_path / "grades.csv")] == [
        ("ann", "4.0", "4.1"), ("bob", "2.0", "2.0"), ("cid", "1.0", "1.0")
    ]  # fmt: skip
    page = (tmp_path / "ann" / "feedback.html").read_text()
    assert "4.1 of 4" in page and "well: &quot;done&quot;" in page and "10% less" in page


def test_canvas_gets_its_own_columns(tmp_path: Path) -> None:
    graded(tmp_path, ann=3.0, bobb_LATE_12_900_hw=2.0, dan=1.0)
    (tmp_path / "roster.csv").write_text(EXPORT)
    (tmp_path / "class.json").write_text('{"assignment": "Attention"}')
    said = write_class(tmp_path)
    assert rows(tmp_path / "gradebook.csv") == [
        dict(zip(["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Attention (77)"], row, strict=True))
        for row in (
            ["    Points Possible", "", "", "", "", "4.0"],
            ["Ann, A.", "11", "s11", "ann", "1", "3.0"],
            ["Bob, B.", "12", "s12", "bob", "1", "2.0"],
            ["Cid, C.", "13", "s13", "cid", "1", ""],
        )
    ]
    assert len(said) == 3 and "Canvas calls it late" in said[0] and "Cid, C. has none" in said[1]
    assert "no student there belongs to the submission dan" in said[2]
    graded(tmp_path, bob=1.0)
    told = "has several submissions: bob, bobb_LATE_12_900_hw; bob counts"
    assert any(told in one for one in write_class(tmp_path))


def test_no_other_submission_takes_a_students_cell(tmp_path: Path) -> None:
    student, cells = {"Student": "Smith, Ann", "ID": "4711", "SIS Login ID": "smith"}, []
    for names in (["smith", "hw_4711_1_", "SMITH"], ["Smith", "hw_4711_1_"], ["Smith", "SMITH"], ["hw_4711_1_"]):
        told = write_gradebook(tmp_path / "g.csv", [student], {name: i + 1 for i, name in enumerate(names)}, 9, "hw")
        assert ("several" in "".join(told)) is (len(names) > 1)
        cells.append(rows(tmp_path / "g.csv")[1]["hw"])
    assert cells == ["1", "1", "", "1"]


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("adjustments.csv", "submission,points\nann,many\n", "row 2: points is 'many'"),
        ("adjustments.csv", "submission,late_days\nann,-1\n", "late_days is '-1'; it must be a number, 0 or more"),
        ("adjustments.csv", "name,points\nann,1\n", "no column 'submission'"),
        ("adjustments.csv", "submission,points,comment\nann,,fine, but late\n", "row 2 has more cells than columns"),
        ("adjustments.csv", 'submission,comment,points\nann,"late,1\nbob,,5\n', "is a quote not closed"),
        ("adjustments.csv", f"submission,comment\nann,{'x' * 140_000}\n", "line 2: field larger than"),
        ("class.json", '{"late": 1}', "'late' is unknown; allowed are assignment, free_late_days, late_penalty"),
        ("class.json", '{"late_penalty": 200}', "late_penalty is 200; it must be a number from 0 to 100"),
        ("class.json", '{"late_penalty": "10"}', 'late_penalty is "10"; it must be a number'),
        ("class.json", '{"assignment": null}', "assignment is null; it must be its name"),
        ("class.json", "5", "not iterable"),
        ("roster.csv", "submission,Student\nann,Ann\n", "no column 'ID'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_kept(tmp_path: Path, name: str, text: str, words: str) -> None:
    (graded(tmp_path, ann=1.0) / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name}.*{words}"):
        write_class(tmp_path)
    assert (tmp_path / name).read_text() == text


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_spaces_and_line_ends_of_spreadsheets_lose_no_points(tmp_path: Path, end: str) -> None:
    lines = "submission, points, late_days, comment", "ann, 2, 0, fine", ""
    (graded(tmp_path, ann=1.0, bob=1.0) / "adjustments.csv").write_text(end.join(lines), newline="")
    for _ in range(2):
        assert write_class(tmp_path) == []
        assert [row["total"] for row in rows(tmp_path / "grades.csv")] == ["3.0", "1.0"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_rows_that_canvas_adds_are_no_students(tmp_path: Path, delimiter: str) -> None:
    table = "Student,ID,SIS Login ID,Attention", ",,,Manual Posting", "    Points Possible,,,4", "Ann,11,ann,", ""
    (graded(tmp_path, ann=1.0) / "roster.csv").write_text("\n".join(table).replace(",", delimiter))
    assert write_class(tmp_path) == []
    assert [row["Student"].strip() for row in rows(tmp_path / "gradebook.csv")] == ["Points Possible", "Ann"]


def test_the_command_says_what_to_look_at(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = argparse.Namespace(out=graded(tmp_path / "out", ann=1.0))
    assert command.run(options) == 0 and read_settings(options.out) == Settings()
    (options.out / "adjustments.csv").write_text("submission,points,late days\nanne,1,2\n")
    assert command.run(options) == 1
    printed = capsys.readouterr().out
    for words in ("no submission is called 'anne'", "column 'late days' is not read", "has no column 'late_days'"):
        assert words in printed
    assert read_adjustments(options.out)["anne"].points == 1
    with FileLock(options.out / ".lock"):
        assert command.run(options) == 2 and "grade is running there" in capsys.readouterr().out
    assert command.run(argparse.Namespace(out=tmp_path)) == 2
