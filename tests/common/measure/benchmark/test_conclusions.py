"""What a benchmark concludes, prints, writes and draws from made-up times."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest
from made_up_times import LIMITS, Sleep, timed
from rich.console import Console

from common.measure.benchmark import files, pictures, tables
from common.measure.benchmark.goals import Goal, conclusions
from common.measure.benchmark.sample import Errors
from common.measure.timing import Timing

LONG = Sleep(80)
OVER_A = Goal("mine", ("a",), "all", lambda problem: True, mean=1.05, least=0.9)


def test_a_mean_is_geometric_and_over_common_problems_only():
    records = [
        *(timed("mine", 1.0, Sleep(1)), timed("a", 2.0, Sleep(1))),
        *(timed("mine", 1.0, Sleep(2)), timed("a", 0.5, Sleep(2))),
        *(timed("mine", 1.0, Sleep(3)), timed("a", 9.0, Sleep(4))),
    ]
    (one,) = conclusions(records, [OVER_A])
    assert (one.version, one.over, one.where, one.problems) == ("the mine", "the a", "all", 2)
    assert (one.mean, one.least, one.most) == (pytest.approx(1.0), 0.5, 2.0)
    assert one.goal == "mean 1.05, least 0.9" and one.reached is False


@pytest.mark.parametrize(("speedups", "reached"), [((1.0, 1.2), True), ((1.0, 1.0), False), ((0.89, 2.0), False)])
def test_a_goal_asks_for_mean_and_least(speedups, reached):
    records = []
    for size, speedup in enumerate(speedups, start=1):
        records += [timed("mine", 1.0, Sleep(size)), timed("a", speedup, Sleep(size))]
    (one,) = conclusions(records, [OVER_A])
    assert one.reached is reached


def test_of_several_the_fastest_counts():
    records = [timed("mine", 1.0), timed("a", 3.0), timed("b", 2.0)]
    (one,) = conclusions(records, [replace(OVER_A, over=("a", "b", "c"))])
    assert one.mean == pytest.approx(2.0) and one.over == "the better of the a, the b"


def test_a_goal_counts_for_the_problems_that_it_is_stated_for():
    records = [timed("mine", 1.0), timed("a", 3.0)]
    assert conclusions(records, [replace(OVER_A, of=lambda problem: False)]) == []
    (one,) = conclusions(records, [replace(OVER_A, stated=lambda problems: False)])
    assert one.reached is None and one.goal == "" and one.mean == pytest.approx(3.0)


def test_the_table():
    records = [
        timed("mine", 0.01),
        timed("mine", 0.02, LONG),
        timed("a", 0.02, ours=False),
        replace(timed("a", 1.0, LONG, ours=False), timing=None, left_out="memory: needs 9 GiB"),
    ]
    console = Console(file=io.StringIO(), width=140)
    console.print(tables.table(records, LIMITS))
    said = console.file.getvalue()
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in said.splitlines() if "│" in line]
    assert "asleep: TFLOP/s" in said
    assert rows[0] == ["the mine", "100", "100", "1.0e-03", "20.0 ms", "1 MiB"]
    assert rows[1] == ["the a", "50.0", "memory", "1.0e-03", "", "1 MiB"]
    assert rows[2][:3] == ["of bfloat16, 700", "14%", "14%"]
    assert rows[3][:3] == ["over the best other", "2.00 x", ""]
    assert tables.left_out_words(records) == "the a at 80: memory: needs 9 GiB"


def test_a_ladder_says_the_gain_of_each_step():
    records = [timed("1", 0.04), timed("2", 0.02), timed("a", 0.01, ours=False)]
    _, rows = tables.cells(records, ladder=True)
    assert [row[1] for row in rows] == ["25.0", "50.0  x 2.00", "100"]


def some_records():
    versions = (("mine", 1e-3, 0.0), ("math", 3e-3, 4000.0))
    records = [
        timed(name, seconds * size, Sleep(size), ours=name == "mine", stored_bytes=stored)
        for size in (20, 40)
        for name, seconds, stored in versions
    ]
    wrong = replace(timed("b", 1.0), timing=None, errors=Errors(math.nan, math.nan, 1e-3), left_out="wrong")
    return [*records, replace(timed("a", 1.0), timing=None, left_out="time: about 1.6 s per run"), wrong]


def test_json_gives_back_what_it_was_given():
    records = some_records()
    drawn = conclusions(records, [replace(OVER_A, over=("math",))])
    text = files.to_json({"gpu": "H200"}, LIMITS, "python -m task4.benchmark", "2026-03-04", records, drawn)
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    first = content["results"][0]
    assert content["command"] == "python -m task4.benchmark" and content["date"] == "2026-03-04"
    assert first["version"] == "mine" and first["median_seconds"] == pytest.approx(0.02)
    assert first["work_per_second"] == pytest.approx(first["work"] / 0.02)
    assert content["conclusions"][0]["mean"] == pytest.approx(3.0)
    back, limits, machine = files.from_json(text, Sleep)
    assert back[:-1] == records[:-1] and limits == LIMITS and machine == {"gpu": "H200"}
    assert back[-1].left_out == "wrong" and not back[-1].errors.ok  # NaN is not equal to itself


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"limits": {"copy": 1, "matmul": {}}, "results": [{}]}'])
def test_a_file_of_something_else_is_refused(text):
    with pytest.raises(ValueError):
        files.from_json(text, Sleep)


def test_the_pictures(tmp_path):
    drawn = pictures.draw(some_records(), LIMITS, {"gpu": "a GPU"}, tmp_path / "new")
    kinds = ("latency", "throughput", "speedup", "memory", "roofline")
    assert [file.name for file in drawn] == [f"asleep_{kind}.png" for kind in kinds]
    assert all(file.stat().st_size > 10_000 for file in drawn)
    assert pictures.draw([replace(one, timing=None) for one in some_records()], LIMITS, {}, tmp_path) == []


def test_versions_that_store_the_scores_move_them():
    mine, math_backend = some_records()[:2]
    one = mine.problem
    assert pictures.moved_bytes(mine) == one.least_bytes
    assert pictures.moved_bytes(math_backend) == one.least_bytes + 4 * one.scores_bytes


def test_a_record_without_memory_has_no_such_column():
    columns, rows = tables.cells([timed("mine", 1.0, memory=None)])
    assert columns == ["version", "40", "error", "time at 40"] and len(rows[0]) == 4
    assert Timing((1.0, 2.0, 9.0)).seconds == 2.0
