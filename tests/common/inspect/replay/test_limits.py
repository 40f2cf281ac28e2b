"""What is too large to replay, and the message for it; what --replay and --html reject."""

import os

import pytest
from forked_python import run_python

import task2.cases
from common.inspect.replay.limits import smaller_than, too_large

CASES = {f"{case.part}: {case.name}": case for case in task2.cases.cases()}


def test_a_smaller_case_of_the_same_operator_is_named():
    every = list(CASES.values())
    small = smaller_than(CASES["softmax: 1023 x 1024"], every, 0)
    assert small.name == "1025 columns"  # 2,050 elements: the largest small case
    assert smaller_than(CASES["gemm: A B, batch 70,000"], every, 0).name.startswith("A B,")
    assert smaller_than(CASES["softmax: one element"], every, 0) is None
    said = too_large(CASES["softmax: 1023 x 1024"], "it makes 7 accesses", every, 0)
    assert said == (
        "softmax: 1023 x 1024 is too large to play back: it makes 7 accesses. A smaller case: --replay "
        "'softmax: 1025 columns'"
    )
    assert too_large(CASES["softmax: one element"], "so it is", every, 0).endswith("so it is.")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--html", "x.html"), "--html is for --check, --profile and --replay: add one of them"),
        pytest.param(
            ("--check", "--html", "tests"), "--html is 'tests', a folder; name a file in it", marks=pytest.mark.slow
        ),
        pytest.param(
            ("--replay", "softmax: 7 x 31", "--list"),
            "--replay names its case itself: leave --case, --show and --list",
            marks=pytest.mark.slow,
        ),
        pytest.param(("--replay", "softmax: 7 x 31", "--check"), "not allowed with argument", marks=pytest.mark.slow),
        pytest.param(("--replay", "A B^T"), "--replay plays one case, and 'A B^T' names", marks=pytest.mark.slow),
        (("--replay", "7 by 31"), "no case is called '7 by 31'"),
        pytest.param(
            ("--replay", "softmax: 100,000 rows"),
            "it runs only on a GPU. A smaller case: --replay 'softmax: ",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_refused_is_said(root, arguments, words):
    done = run_python(["-m", "task2.test", *arguments], root, {**os.environ, "COLUMNS": "200"}, 300)
    assert done.returncode == 2
    assert words in done.stdout + done.stderr and "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_the_command_writes_a_page_and_refuses_a_large_launch(root, tmp_path):
    page = tmp_path / "page.html"
    command = ["-m", "task2.test", "--solution", "--backend", "simulator"]
    done = run_python([*command, "--replay", "softmax: 7 x 31", "--html", str(page)], root, os.environ, 600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "18,746 accesses. Open it in a browser." in done.stdout
    assert "Replay of softmax: 7 x 31" in page.read_text()
    done = run_python([*command, "--replay", "softmax: 1023 x 1024", "--html", str(page)], root, os.environ, 600)
    assert done.returncode == 2 and "too large to play back: over 1,500,000 accesses to memory" in done.stdout
    assert "6,802,950 in softmax_kernel in 1,023 blocks" in done.stdout
    assert "Replay of softmax: 7 x 31" in page.read_text()  # the previous page is kept
