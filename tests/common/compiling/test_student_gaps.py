"""Gaps in a student's file: found filled, unfilled or rewritten; one is reset to a TODO and nothing else changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from common.compiling import manifest, skeletons, student_gaps

SOLUTION = """\
// two kernels
__global__ void first(float* x) {
    // BEGIN SOLUTION (1 line): add one
    x[0] += 1.0f;
    // END SOLUTION
    x[1] = 0.0f;
    // BEGIN SOLUTION (2 lines): double,
    //     twice
    x[2] *= 2.0f;
    x[3] *= 2.0f;
    // END SOLUTION
}

__global__ void second(float* y) {
    // BEGIN SOLUTION (1 line): nothing much
    y[0] = 3.0f;
    // END SOLUTION
}
"""


@pytest.fixture
def task(tmp_path, monkeypatch) -> Path:
    """A checkout with one task; the student's file is as handed out."""
    folder = tmp_path / "task1"
    (folder / "solution").mkdir(parents=True)
    (folder / "task.json").write_text('{"files": ["kernel.cu"], "points": 2}')
    (folder / "solution" / "kernel.cu").write_text(SOLUTION)
    (folder / "kernel.cu").write_text(skeletons.skeleton_of(SOLUTION, "kernel.cu"))
    monkeypatch.setattr(manifest, "ROOT", tmp_path)
    return folder


def filled(task: Path, *numbers: int) -> str:
    """The student's text with these markers (counted from 1) replaced by code."""
    parts = (task / "kernel.cu").read_text().split("    NOT_IMPLEMENTED();\n")
    text = parts[0]
    for number, part in enumerate(parts[1:], 1):
        text += (f"    mine({number});\n" if number in numbers else "    NOT_IMPLEMENTED();\n") + part
    return text


def test_names_count_within_a_function_and_numbers_within_the_task(task):
    gaps = student_gaps.gaps_of("task1")
    assert [(gap.number, gap.name) for gap in gaps] == [("1", "first 1"), ("2", "first 2"), ("3", "second")]
    assert [gap.first for gap in gaps] == [3, 7, 14] and not any(gap.filled for gap in gaps)


def test_a_number_in_the_todo_is_the_gap_s_number(task):
    skeleton = (task / "kernel.cu").read_text().replace("TODO (about 1 line): add", "TODO 1.1 (about 1 line): add")
    skeleton = skeleton.replace("TODO (about 2", "TODO 1.2 (about 2")
    (task / "solution" / "kernel.cu").unlink()
    (task / "given" / "start").mkdir(parents=True)
    (task / "given" / "start" / "kernel.cu").write_text(skeleton)
    (task / "kernel.cu").write_text(skeleton)
    assert [gap.number for gap in student_gaps.gaps_of("task1")] == ["1.1", "1.2", "3"]


def test_a_filled_gap_is_known(task):
    (task / "kernel.cu").write_text(filled(task, 2))
    assert [gap.filled for gap in student_gaps.gaps_of("task1")] == [False, True, False]


def test_a_gap_with_comments_alone_is_not_filled(task):
    text = (task / "kernel.cu").read_text().replace("    NOT_IMPLEMENTED();\n", "    // later\n", 1)
    (task / "kernel.cu").write_text(text)
    assert not student_gaps.gaps_of("task1")[0].filled


def test_without_its_markers_a_gap_is_found_by_what_is_around_it(task):
    lines = [line for line in filled(task, 1, 2, 3).split("\n") if "TODO" not in line and "twice" not in line]
    (task / "kernel.cu").write_text("\n".join(lines))
    gaps = student_gaps.gaps_of("task1")
    assert all(gap.filled for gap in gaps)
    assert [lines[gap.first - 1 : gap.last] for gap in gaps] == [[f"    mine({n});"] for n in (1, 2, 3)]


@pytest.mark.parametrize("with_markers", [True, False])
def test_one_gap_is_reset_and_all_else_stays(task, with_markers):
    text = filled(task, 1, 2, 3)
    if not with_markers:
        text = "\n".join(line for line in text.split("\n") if "TODO" not in line and "twice" not in line)
    (task / "kernel.cu").write_text(text)
    gaps = student_gaps.gaps_of("task1")
    (task / "kernel.cu").write_text(student_gaps.reset(student_gaps.chosen_gap(gaps, "FIRST 2")))
    again = student_gaps.gaps_of("task1")
    assert [gap.filled for gap in again] == [True, False, True]
    text = (task / "kernel.cu").read_text()
    assert "mine(1)" in text and "mine(3)" in text and "mine(2)" not in text and "//     twice" in text


def test_a_gap_that_cannot_be_found_is_said_so(task):
    (task / "kernel.cu").write_text("int nothing_left;\n")
    gap = student_gaps.gaps_of("task1")[0]
    assert gap.first is None and not gap.filled
    with pytest.raises(student_gaps.GapError, match="Reset the whole file"):
        student_gaps.reset(gap)


def test_an_unknown_gap_is_refused_with_the_known_ones(task):
    with pytest.raises(
        student_gaps.GapError, match=r"no gap is called 'third'; there are 1 first 1, 2 first 2, 3 second"
    ):
        student_gaps.chosen_gap(student_gaps.gaps_of("task1"), "third")


def test_a_missing_start_is_said(task):
    (task / "solution" / "kernel.cu").unlink()
    with pytest.raises(student_gaps.GapError, match=r"given/start/kernel\.cu"):
        student_gaps.given_out(task / "kernel.cu")
