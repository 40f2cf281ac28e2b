"""The feature table in the simulator's README: each row is a program, and its status is what happens when it runs."""

import re
import subprocess
from pathlib import Path

import pytest

from common.compiling.program import build_program
from common.compiling.result import BuildError

FOLDER = Path(__file__).resolve().parent / "features"
README = Path(__file__).resolve().parents[3] / "common" / "simulator" / "README.md"
ROW = re.compile(
    r"^\| (?P<feature>[^|]+) \| (?P<state>yes|no)(?:: (?P<said>[^|]+))? \| \[(?P<program>\w+\.cu)\]", re.MULTILINE
)
ROWS = [match.groupdict() for match in ROW.finditer(README.read_text())]
RUNS = [row["program"] for row in ROWS if row["state"] == "yes"]
FIRST = ("language.cu", "hopper.cu")  # the others, each compiled separately, are slow
REFUSED = [row for row in ROWS if row["state"] == "no"]


def test_the_table_names_every_program():
    assert sorted(row["program"] for row in ROWS) == sorted(file.name for file in FOLDER.glob("*.cu"))
    assert len(RUNS) >= 9 and len(REFUSED) >= 4


@pytest.mark.parametrize("backend", ["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "program", [pytest.param(one, marks=[] if one in FIRST else pytest.mark.slow) for one in RUNS], ids=RUNS
)
def test_it_runs(program, backend):
    done = subprocess.run([build_program(FOLDER / program, backend).path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row["program"])
def test_it_says_that_it_is_not_there(row):
    try:
        program = build_program(FOLDER / row["program"], "simulator")
        done = subprocess.run([program.path], capture_output=True, text=True, timeout=120)
        assert done.returncode == 1
        said = done.stderr
    except BuildError as error:
        said = str(error)
    assert row["said"].strip("`") in said and f"{row['program']}:" in said
