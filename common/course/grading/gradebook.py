"""The files of a class; an instructor's edits survive every regrade.

    write_class(out, tasks)     writes all files from the results in `out`; returns warnings for the instructor

adjustments.csv  submission, late_days, points, comment: edited by hand; every submission gets a row
class.json       the settings: the assignment's name in Canvas, free late days, percent lost per further day
roster.csv       optional: Canvas's gradebook export, or a CSV with the columns submission, Student, ID
grades.csv       a row for each submission
gradebook.csv    for import into Canvas, if there is a roster
NAME/feedback.html  for the student, see feedback.py
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from common.console.files import write_whole
from common.course.grading.feedback import feedback
from common.course.grading.outcome import Outcome
from common.course.grading.results import read_outcome

BY_HAND = ["submission", "late_days", "points", "comment"]
CANVAS = ["Student", "ID", "SIS User ID", "SIS Login ID", "Section"]
IDENTITY = ["submission", *CANVAS[1:4]]  # columns of the roster
MOST = {"free_late_days": 1000, "late_penalty": 100}  # the least is 0
FILE_OF_CANVAS = re.compile(r"[^_]+_(LATE_)?(\d+)_\d+_")  # Canvas's names for downloaded files


@dataclass(frozen=True)
class Settings:
    """class.json. late_penalty: percent of the graded points lost per started day beyond the free ones."""

    assignment: str = "Attention assignment"
    free_late_days: float = 0
    late_penalty: float = 0


@dataclass
class Adjustment:
    """The combined rows of a submission."""

    late_days: float = 0.0
    points: float = 0.0
    comments: list[str] = field(default_factory=list)

    def late_share(self, settings: Settings) -> float:
        """The fraction of the graded points lost to lateness: 0 to 1."""
        days = max(0, math.ceil(self.late_days - settings.free_late_days))
        return min(1.0, days * settings.late_penalty / 100)

    def total(self, earned: float, settings: Settings) -> float:
        """The final points."""
        return round(max(0.0, earned * (1 - self.late_share(settings)) + self.points), 4)


def read_settings(out: Path) -> Settings:
    """Reads class.json; raises ValueError if it is malformed."""
    file = out / "class.json"
    if not file.exists():
        write_whole(file, json.dumps(asdict(Settings()), indent=1) + "\n")
    try:
        found = dict(json.loads(file.read_text(encoding="utf-8-sig")))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}") from None
    for key, value in found.items():
        if key == "assignment":
            must = "" if isinstance(value, str) and value else "its name in Canvas, in quotes"
        elif key in MOST:
            must = "" if type(value) in (int, float) and 0 <= value <= MOST[key] else f"a number from 0 to {MOST[key]}"
        else:
            raise ValueError(f"{file}: {key!r} is unknown; allowed are {', '.join(asdict(Settings()))}")
        if must:
            raise ValueError(f"{file}: {key} is {json.dumps(value)}; it must be {must}")
    return Settings(**found)


def read_adjustments(out: Path) -> dict[str, Adjustment]:
    """Submission -> the manual adjustment; {} if there is no file yet.

    Raises:
        ValueError: a row cannot be read; the message names the line.
    """
    file, found = out / "adjustments.csv", {}
    for number, row in enumerate(_rows(file, "submission"), 2):
        of_name = found.setdefault(row["submission"].removeprefix("'"), Adjustment())
        for column in ("late_days", "points"):
            text = row.get(column) or "0"
            try:
                value = float(text.replace(",", "."))
                if not math.isfinite(value) or (column == "late_days" and value < 0):
                    raise ValueError
            except ValueError:
                must = "a number, 0 or more" if column == "late_days" else "a number"
                raise ValueError(f"{file}, row {number}: {column} is {text!r}; it must be {must}") from None
            setattr(of_name, column, getattr(of_name, column) + value)
        if row.get("comment"):
            of_name.comments.append(row["comment"])
    return found


def read_roster(out: Path) -> list[dict[str, str]]:
    """The students in roster.csv, without the rows that Canvas adds; [] if there is no file. ValueError: see _rows."""
    return [row for row in _rows(out / "roster.csv", "ID") if _identity(row)]


def _rows(file: Path, *needed: str) -> list[dict[str, str]]:
    """The rows of a CSV file written by a spreadsheet, with commas, semicolons or tabs; [] if there is no file.

    Raises:
        ValueError: it is no such file, a column that is needed is missing, or a row has more cells than columns.
    """
    if not file.is_file():
        return []
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not UTF-8: save it as CSV UTF-8") from None
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    try:
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        found = list(reader)
    except csv.Error as error:
        words = f"{file}, line {reader.reader.line_num}: {error}: is a quote not closed, or is it no CSV?"
        raise ValueError(words) from None
    if missing := [name for name in needed if name not in reader.fieldnames]:
        raise ValueError(f"{file} has no column {missing[0]!r}")
    for number, row in enumerate(found, 2):
        if any(row.pop(None, ())):
            raise ValueError(f"{file}, row {number} has more cells than columns: put quotes around text with commas")
    return [{name: (value or "").strip() for name, value in row.items() if name} for row in found]


def _delimiter(text: str) -> str:
    return max(",;\t", key=_head(text).count)


def _head(text: str) -> str:
    return next(io.StringIO(text, newline=None), "").strip("\r\n\ufeff")


def write_class(out: Path, tasks: Sequence[str] = ()) -> list[str]:
    """Writes the class's files from all results in a folder, from whichever run; returns warnings.

    Args:
        out: the output folder of `grade`.
        tasks: tasks that get a column in addition to those graded.

    Raises:
        ValueError: one of the instructor's files is malformed. OSError: a file cannot be written.
    """
    settings, by_hand, roster = read_settings(out), read_adjustments(out), read_roster(out)
    columns = [*next(iter(_rows(out / "adjustments.csv")), BY_HAND)]
    every = [one for folder in sorted(out.iterdir()) if folder.is_dir() and (one := read_outcome(folder))]
    said = [f"adjustments.csv: the column {name!r} is not read" for name in columns if name not in BY_HAND]
    said += [f"adjustments.csv has no column {name!r}" for name in BY_HAND if name not in columns]
    said += [
        f"adjustments.csv: no submission is called {name!r}" for name in by_hand.keys() - {one.name for one in every}
    ]
    _add_rows(out / "adjustments.csv", [one.name for one in every if one.name not in by_hand])
    by_hand = {one.name: by_hand.get(one.name, Adjustment()) for one in every}
    for one in every:
        write_whole(out / one.name / "feedback.html", feedback(one, by_hand[one.name], settings))
        if (marked := FILE_OF_CANVAS.match(one.name)) and marked[1] and not by_hand[one.name].late_days:
            said.append(f"{one.name}: Canvas calls it late, and adjustments.csv does not say how many days")
    columns = sorted({*tasks, *(task.task for one in every for task in one.tasks)})
    write_grades(out / "grades.csv", every, columns, by_hand, settings)
    if roster:
        totals = {one.name: by_hand[one.name].total(one.earned, settings) for one in every}
        possible = max((one.possible for one in every), default=0)
        said += write_gradebook(out / "gradebook.csv", roster, totals, possible, settings.assignment)
    return said


def _add_rows(file: Path, names: Iterable[str]) -> None:
    """Adds rows to fill in; existing content is preserved byte for byte."""
    text = file.read_bytes().decode("utf-8") if file.exists() else ",".join(BY_HAND) + "\n"
    delimiter = _delimiter(text)
    columns = [name.strip() for name in next(csv.reader([_head(text)], delimiter=delimiter))]
    more = "".join(
        delimiter.join(str(_plain(name)) if column == "submission" else "" for column in columns) + "\n"
        for name in names
    )
    write_whole(file, text + ("" if text.endswith("\n") or not more else "\n") + more)


def write_grades(
    file: Path,
    outcomes: Sequence[Outcome],
    tasks: Sequence[str],
    by_hand: Mapping[str, Adjustment],
    settings: Settings,
) -> None:
    """grades.csv: a row for each submission, with the points of every task, and the total."""
    rows = [["submission", *tasks, "points", "possible", "late_days", "by_hand", "total", "look", "problem", "source"]]
    for one in sorted(outcomes, key=lambda outcome: outcome.name):
        earned, added = {task.task: round(task.earned, 4) for task in one.tasks}, by_hand.get(one.name, Adjustment())
        row = [one.name, *(earned.get(task, 0) for task in tasks), one.earned, one.possible, added.late_days]
        rows.append([*row, added.points, added.total(one.earned, settings), len(one.flags), one.problem, one.source])
    write_csv(file, rows)


def write_gradebook(
    file: Path, roster: Sequence[Mapping[str, str]], totals: Mapping[str, float], possible: float, assignment: str
) -> list[str]:
    """Writes the file that Canvas imports; returns warnings about what does not fit into it.

    A student without a submission, or with one that cannot be identified, gets an empty cell, which changes nothing in
    Canvas.
    """
    known = [name for name in roster[0] if re.fullmatch(rf"{re.escape(assignment)} \(\d+\)", name)]
    rows = [[*CANVAS, known[0] if known else assignment], ["    Points Possible", "", "", "", "", possible]]
    said, left = [], set(totals)
    for student in roster:
        fits = {name: fit for name in sorted(totals) if (fit := _fit(name, student))}
        names = [name for name, fit in fits.items() if fit == max(fits.values())]
        left -= set(fits)
        who = student.get("Student") or student.get("submission") or student.get("ID", "")
        if len(fits) != 1:
            counts = f"; {names[0]} counts" if len(names) == 1 else ""
            several = f"several submissions: {', '.join(fits)}{counts}"
            said.append(f"roster.csv: {who} has " + (several if fits else "none"))
        total = totals[names[0]] if len(names) == 1 else ""
        rows.append([who, *(student.get(column, "") for column in CANVAS[1:]), total])
    write_csv(file, rows)
    return said + [f"roster.csv: no student there belongs to the submission {name}" for name in sorted(left)]


def _identity(student: Mapping[str, str]) -> set[str]:
    return {unicodedata.normalize("NFC", student.get(one, "")) for one in IDENTITY} - {""}


def _fit(name: str, student: Mapping[str, str]) -> int:
    """3 if the submission is named like the student, 2 if only in other case, 1 if its name contains the ID, or 0."""
    name, ids = unicodedata.normalize("NFC", name), _identity(student)
    if name.lower() in map(str.lower, ids):
        return 2 + (name in ids)
    from_canvas = FILE_OF_CANVAS.match(name)
    return int(bool(from_canvas and from_canvas[2] == student.get("ID")))


def write_csv(file: Path, rows: Iterable[Sequence[object]]) -> None:
    """Writes a CSV file that a spreadsheet treats as data only."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([[_plain(value) for value in row] for row in rows])
    write_whole(file, text.getvalue())


def _plain(value: object) -> object:
    """Prefixes an apostrophe to text that a spreadsheet would treat as a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value
