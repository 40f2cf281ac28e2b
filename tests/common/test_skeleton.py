"""The student files are the solutions with their gaps emptied, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from common import skeleton
from common.compiling import manifest, skeletons

SOLUTION = """\
void kernel() {
    int before = 1;
    // BEGIN SOLUTION 7 (3 lines): Add one, in words.
    //     A second line of the hint.
    // a comment of the code itself
    before += 1;

    use(before);
    // END SOLUTION
    done();
}
"""
STUDENT = """\
void kernel() {
    int before = 1;
    // TODO 7 (about 3 lines): Add one, in words.
    //     A second line of the hint.
    NOT_IMPLEMENTED();
    // END TODO
    done();
}
"""


def test_a_gap_becomes_a_todo_that_reports_itself():
    assert skeletons.skeleton_of(SOLUTION, "kernel.cu") == STUDENT


def test_python_gaps():
    text = "def f(x):\n    # BEGIN SOLUTION (1 line): Return x.\n    return x\n    # END SOLUTION\n"
    student = skeletons.skeleton_of(text, "f.py")
    assert student == (
        'def f(x):\n    # TODO (about 1 line): Return x.\n    raise NotImplementedError("TODO")\n    # END TODO\n'
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("// BEGIN SOLUTION (2 lines): x\ncode\n", "without END"),
        ("code\n// END SOLUTION\n", "without BEGIN"),
        ("// BEGIN SOLUTION (2 lines): x\n// END SOLUTION\n", "empty gap"),
        ("// BEGIN SOLUTION: x\ncode\n// END SOLUTION\n", "name:1"),
        ("// BEGIN SOLUTION (2 lines): x\n// BEGIN SOLUTION (2 lines): y\n", "name:2"),
    ],
)
def test_malformed_markers_are_refused_with_their_place(text, words):
    with pytest.raises(skeletons.SkeletonError, match=words):
        skeletons.parse(text, "name")


def test_the_hint_does_not_give_the_code_away():
    for solution in skeletons.solution_files():
        for part in skeletons.parse(solution.read_text(), solution.name):
            lines = [line.strip().rstrip(";") for line in part.lines]
            code = {line for line in lines if len(line) > 16 and not line.startswith("#pragma")}
            assert not [line for line in part.hint if any(one in line for one in code)], solution


def test_the_gaps_of_a_task_are_numbered_from_1_on():
    for task in manifest.tasks():
        files = skeletons.solution_files(task)
        numbers = [[gap.number for gap in skeletons.parse(file.read_text(), file.name) if gap.is_gap] for file in files]
        assert all(of_file == sorted(of_file) for of_file in numbers), task
        every = sorted(number for of_file in numbers for number in of_file)
        assert every == list(range(1, len(every) + 1)), task


def test_student_files_are_in_step_with_the_solutions(root):
    done = subprocess.run(
        [sys.executable, "-I", str(root / "common" / "skeleton.py"), "--compare"],
        capture_output=True,
        text=True,
        cwd=root,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "up to date" in done.stdout


def test_filling_the_gaps_is_all_that_solving_takes():
    """Replacing each TODO with its gap's code gives the solution back, except for the markers."""
    for solution in skeletons.solution_files():
        parts = skeletons.parse(solution.read_text(), solution.name)
        gaps = iter([part for part in parts if part.is_gap])
        rebuilt, skipping = [], False
        for line in skeletons.student_file(solution).read_text().split("\n"):
            if re.match(r"\s*(//|#) TODO \d+ \(about", line):
                rebuilt += next(gaps).lines
                skipping = True
            elif line.strip() in ("// END TODO", "# END TODO"):
                skipping = False
            elif not skipping:
                rebuilt.append(line)
        assert rebuilt == [line for part in parts for line in part.lines], solution
        assert next(gaps, None) is None


def test_overwriting_keeps_the_students_work(tmp_path, monkeypatch):
    folder = tmp_path / "task9" / "solution"
    folder.mkdir(parents=True)
    (folder / "kernel.cu").write_text(SOLUTION)
    student = tmp_path / "task9" / "kernel.cu"
    (tmp_path / "task9" / "task.json").write_text('{"files": ["kernel.cu"]}')
    for module in (skeleton, manifest):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    assert skeleton.main(["task9"]) == 0 and student.read_text() == STUDENT
    for work in ("first", "second"):
        student.write_text(work)
        assert skeleton.main(["--compare", "task9"]) == 1 and student.read_text() == work
        assert skeleton.main(["task9"]) == 0 and student.read_text() == STUDENT
    assert (tmp_path / "task9" / "kernel.cu.bak").read_text() == "first"
    assert (tmp_path / "task9" / "kernel.cu.bak2").read_text() == "second"
