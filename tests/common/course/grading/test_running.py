"""Which folder a submission's results get, and what a killed grader leaves behind."""

from __future__ import annotations

import os
from pathlib import Path

from filelock import FileLock

from common.course.grading.outcome import Outcome
from common.course.grading.results import write_outcome
from common.course.grading.running import PREFIX, TAKEN, _clean, names_of


def test_no_submission_gets_the_place_of_another_or_of_the_class() -> None:
    sources = ["a/ann.zip", "b/ann.zip", "salt.zip", "GRADES.csv.zip", "grading-x.zip", "bob.zip"]
    names = names_of(sources)
    assert names["bob.zip"] == "bob" and len({name.lower() for name in names.values()}) == len(sources)
    assert not {name.lower() for name in names.values()} & set(TAKEN)
    assert not [name for name in names.values() if name.startswith(PREFIX) and "-" not in name.removeprefix(PREFIX)]
    squatter = f"{names['a/ann.zip']}.zip"  # has the name of the first one's folder
    again = names_of([*sources, squatter])
    assert len(set(again.values())) == len(sources) + 1 and again[squatter] == names["a/ann.zip"]


def test_a_submission_keeps_its_name_when_another_of_that_name_comes(tmp_path: Path) -> None:
    write_outcome(tmp_path / "ann", Outcome("ann", "first/ann.zip"), None)
    names = names_of(["late/ann.zip", "first/ann.zip"], tmp_path)
    assert names["first/ann.zip"] == "ann" and names["late/ann.zip"].startswith("ann-")


def test_what_a_killed_grader_left_is_taken_away_and_nothing_else(tmp_path: Path) -> None:
    for name in ("left", "used", "new"):
        (tmp_path / f"{PREFIX}{name}" / "base").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "other")
    with FileLock(tmp_path / f"{PREFIX}used" / ".lock"):
        for name in ("left", "used"):
            os.utime(tmp_path / f"{PREFIX}{name}", (0, 0))
        _clean(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{PREFIX}used", f"{PREFIX}new", f"{PREFIX}link", "other"}
