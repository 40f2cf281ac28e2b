"""Which folder a submission's results get, and what a killed grader leaves behind."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path

import pytest
from filelock import FileLock

from common.course.grading.outcome import Outcome
from common.course.grading.results import read_outcome, write_outcome
from common.course.grading.running import MARK, PREFIX, TAKEN, _clean, _told, _written, names_of
from common.course.grading.submissions import Submission
from common.course.grading.workshop import Workshop, course_hash


def test_no_submission_gets_the_place_of_another_or_of_the_class() -> None:
    sources = ["a/ann.zip", "b/ann.zip", "salt.zip", "GRADES.csv.zip", "bob.zip"]
    names = names_of(sources)
    assert names["bob.zip"] == "bob" and len({name.lower() for name in names.values()}) == len(sources)
    assert not {name.lower() for name in names.values()} & set(TAKEN)
    squatter = f"{names['a/ann.zip']}.zip"  # has the name of the first one's folder
    again = names_of([*sources, squatter])
    assert len(set(again.values())) == len(sources) + 1 and again[squatter] == names["a/ann.zip"]


def test_a_submission_keeps_its_name_when_another_of_that_name_comes(tmp_path: Path) -> None:
    write_outcome(tmp_path / "ann", Outcome("ann", "first/ann.zip"), None)
    names = names_of(["late/ann.zip", "first/ann.zip"], tmp_path)
    assert names["first/ann.zip"] == "ann" and names["late/ann.zip"].startswith("ann-")


def test_an_error_of_one_submission_is_its_outcome(tmp_path: Path) -> None:
    future = Future()
    future.set_exception(ValueError("\udcff\x1b"))
    outcome, new = _told(future, "ann", "in/\udcff", tmp_path)
    assert outcome.name == "ann" and outcome.problem.startswith("The grader failed: ValueError") and new
    assert read_outcome(tmp_path / "ann") == outcome and outcome.source.isprintable() and outcome.problem.isprintable()
    lost = _written(tmp_path / "bob", Outcome("bob", "b", flags=["\udcff"]))
    assert "The grader failed" in lost.problem and read_outcome(tmp_path / "bob") == lost


def test_a_resumed_class_keeps_no_stale_remarks() -> None:
    shop = Workshop(*[Path()] * 4, "", bytes(32), "", ())
    made = [Submission("a", {}), Submission("a", {}, {"x": "why"}), Submission("a", {}, notes=["y"])]
    assert len({shop.key(one) for one in made}) == 3


def test_a_changed_rule_regrades_a_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.course.grading.workshop.ROOT", tmp_path)
    rules = ["common/course/grading/one.py", "task3/solution/attention.py", "task3/cases/hidden.py"]
    found = [course_hash(tmp_path / "base")]
    for name in (*rules, "common/course/README.md", "common/__pycache__/one.pyc", "task3/build/one.o"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
        found.append(course_hash(tmp_path / "base"))
    assert len(set(found)) == 1 + len(rules)


def test_what_a_killed_grader_left_is_taken_away_and_nothing_else(tmp_path: Path) -> None:
    for name in ("left", "used", "new"):
        (tmp_path / f"{PREFIX}{name}" / "base").mkdir(parents=True)
        (tmp_path / f"{PREFIX}{name}" / MARK).touch()
    for name in ("2026", "ann"):  # a class, and a submission's results in one
        write_outcome(tmp_path / f"{PREFIX}{name}", Outcome(name, ""), None)
        (tmp_path / f"{PREFIX}{name}" / ".lock").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "other")
    with FileLock(tmp_path / f"{PREFIX}used" / ".lock"):
        for name in ("left", "used", "2026", "ann"):
            os.utime(tmp_path / f"{PREFIX}{name}", (0, 0))
        _clean(tmp_path)
    kept = {f"{PREFIX}{name}" for name in ("used", "new", "link", "2026", "ann")}
    assert {path.name for path in tmp_path.iterdir()} == kept | {"other"}
