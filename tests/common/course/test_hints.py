"""The hints: three for every gap of every task, none of them the code; and which hint comes next."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from common.compiling.manifest import tasks
from common.compiling.skeletons import parse, solution_files
from common.compiling.student_gaps import gaps_of
from common.course import hint, hints, standing
from common.testing.kept import Failure, KeptPart

ROOT = Path(__file__).resolve().parents[3]
LONGEST = 450  # a hint must be quick to read
LONGEST_NAME = 50  # characters in a mistake's name
SHORTEST_CODE = 12  # characters: "l += p;" may occur in any sentence


def squeezed(text: str) -> str:
    return re.sub(r"\s+|;", "", text)


def code_lines(task: str) -> list[str]:
    """Every line in a gap of the task's solutions, without spaces."""
    parts = [part for file in solution_files(task) for part in parse(file.read_text(), file.name) if part.is_gap]
    lines = [squeezed(re.sub(r"//.*|#.*", "", line)) for part in parts for line in part.lines]
    return [line for line in lines if len(line) >= SHORTEST_CODE]


@cache
def known_mistakes() -> re.Pattern:
    """The names of the mistakes that the tests know, as far as the sources contain them literally."""
    files = [*(ROOT / "common" / "diagnosis").rglob("*.py"), *ROOT.glob("task*/cases/*.py")]
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text()))]
    names = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return re.compile(
        "|".join(re.sub(r"\\\{\w+\\\}", ".+", re.escape(name)) for name in names if len(name) < LONGEST_NAME)
    )


@pytest.mark.parametrize("task", tasks())
def test_every_gap_has_three_hints(task):
    of_task = hints.hints_of(task)
    gaps = [gap.name for gap in gaps_of(task)]
    assert sorted(of_task.gaps) == sorted(gaps), "taskN/given/hints.json and the gaps of the solutions differ"
    for name, one in of_task.gaps.items():
        assert len(one.hints) == hints.STAGES and len(set(one.hints)) == hints.STAGES, name
        assert all(20 < len(text) <= LONGEST for text in one.hints), name
        assert one.parts, name


@pytest.mark.parametrize("task", tasks())
def test_no_hint_holds_a_line_of_the_solution(task):
    of_task = hints.hints_of(task)
    said = [text for one in of_task.gaps.values() for text in one.hints]
    said += [one.hint for one in of_task.mistakes.values()]
    for line in code_lines(task):
        assert not [text for text in said if line in squeezed(text)], line


def test_lines_of_solutions_would_be_found():
    """The test above can fail: a hint that quotes the code is detected."""
    assert squeezed("as in: partial[threadIdx.x] = row_max, then").find(squeezed("partial[threadIdx.x] = row_max;")) > 0
    assert squeezed("partial[threadIdx.x] = row_max;") in code_lines("task2")


@pytest.mark.parametrize("task", tasks())
def test_hints_on_mistakes_are_about_mistakes_that_the_test_names(task):
    of_task = hints.hints_of(task)
    assert of_task.mistakes
    for name, one in of_task.mistakes.items():
        assert known_mistakes().fullmatch(name), name
        assert one.gap in of_task.gaps, name


@pytest.mark.parametrize("task", tasks())
def test_the_parts_are_those_of_the_test(task):
    source = (ROOT / task / "cases" / "__init__.py").read_text()
    block = source[source.index("PARTS = {") : source.index("}", source.index("PARTS = {")) + 1]
    parts = set(ast.literal_eval(block.removeprefix("PARTS = ")))
    used = {part for one in hints.hints_of(task).gaps.values() for part in one.parts}
    assert used <= parts


def standing_with(task: str = "task2", **parts: KeptPart) -> standing.Standing:
    """The task as handed out, with these kept parts (whose files are {})."""
    found = standing.standing_of(task)
    return standing.Standing(found.task, found.gaps, found.optional, found.hints, parts, {})


def failing(*mistakes: str, unfilled: bool = False, names_mistake: bool = True, file_line: str = "") -> KeptPart:
    failure = Failure("a case", "FAIL", unfilled, mistakes, ("the test's sentence",), names_mistake, file_line)
    return KeptPart(0.0, 1.0, failures=(failure,))


def test_without_a_test_it_is_the_first_gap():
    subject = hint.subject_of(standing_with())
    assert subject.gap.name == "row_sum_kernel 1" and len(subject.hints) == 3 and not subject.known


def test_a_known_mistake_comes_first_and_leads_to_its_gap():
    subject = hint.subject_of(standing_with(gemm=failing("last tile dropped")))
    assert subject.gap.name == "gemm_nn_kernel" and subject.known == "last tile dropped"
    assert "stops early" in subject.hints[0] and len(subject.hints) == 4


def test_a_mistake_without_a_hint_of_its_own_is_told_in_the_test_s_words():
    subject = hint.subject_of(standing_with(gemm=failing("A of the first matrix")))
    assert subject.hints == ("the test's sentence",) and subject.known == "A of the first matrix"
    assert subject.gap is None and "multiply_tiles" in subject.why and "gemm_nn_kernel" in subject.why


def test_an_unknown_failure_leads_to_the_part_s_gaps():
    for part in (failing(), failing("unwritten outputs", names_mistake=False)):
        subject = hint.subject_of(standing_with(gemm=part))
        assert subject.gap.name == "multiply_tiles" and "gemm_nn_kernel" in subject.why and len(subject.hints) == 3


def test_an_error_leads_to_the_gap_that_raised_it():
    found = next(gap for gap in standing.standing_of("task2").gaps if gap.name == "gemm_nn_kernel")
    file_line = f"{found.place.split(':')[0]}:{found.first + 1}"
    subject = hint.subject_of(standing_with(gemm=failing(file_line=file_line)))
    assert subject.gap == found and "name one of them" not in subject.why


def test_a_gap_that_a_part_proves_right_is_not_suspected():
    passed = KeptPart(0.2, 0.2, passed=5, cases=5)
    assert hint.subject_of(standing_with("task1", scores=failing())).gap.name == "thread_number"
    proved = standing_with("task1", scores=failing(), softmax=passed)
    assert hint.subject_of(proved).gap.name == "scores_kernel 1" and "thread_number" not in hint.subject_of(proved).why


def test_an_unfilled_gap_is_no_mistake():
    assert not hint.subject_of(standing_with(gemm=failing(unfilled=True))).known


def test_what_no_longer_holds_is_not_hinted_at():
    stale = KeptPart(0.0, 1.0, failures=(Failure("a case", "FAIL", False, ("last tile dropped",)),), files={"a": "b"})
    assert hint.subject_of(standing_with(gemm=stale)).gap.name == "row_sum_kernel 1"
