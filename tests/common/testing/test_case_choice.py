"""--case and --list: which of a task's cases run."""

import io

import pytest
import torch
from rich.console import Console

from common.cli import test
from common.cli.test import test_main
from common.testing.case import Case
from common.testing.case_choice import choose, print_list, shapes_of
from task2.cases import cases
from task2.test import TEST


def case(part: str, name: str, **options) -> Case:
    def inputs(generator):
        return {"x": torch.randn(3, 4, generator=generator)}

    return Case(name, part, inputs, lambda ops, x: x, lambda x: x, 0.0, ("row", "col"), **options)


CASES = [case("full", "64 tokens"), case("full", "7 x 31"), case("causal", "64 tokens"), case("causal", "164 tokens")]


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        (None, [0, 1, 2, 3]),
        ([], [0, 1, 2, 3]),
        (["64 tokens"], [0, 2]),  # the exact name; "164 tokens" contains it, too, but is another case
        (["64 TOKENS"], [0, 2]),
        (["full: 64 tokens"], [0]),
        (["4 tok"], [0, 2, 3]),
        (["causal"], [2, 3]),
        (["164", "7 x"], [1, 3]),  # in the task's order
        (["7 x 31", "7"], [1]),
    ],
)
def test_choosing(wanted, chosen):
    assert choose(CASES, wanted) == [CASES[i] for i in chosen]


def test_an_unknown_name_is_explained():
    with pytest.raises(ValueError, match=r"no case is called '7x31'; did you mean '7 x 31'"):
        choose(CASES, ["7x31"])
    with pytest.raises(ValueError, match="there are:\n  full: 64 tokens\n  full: 7 x 31\n"):
        choose(CASES, ["nothing like it"])


def test_shapes_need_no_memory_for_cases_of_a_gpu():
    huge = next(one for one in cases() if one.name == "512 rows of 65,536")
    before = torch.get_rng_state()
    assert shapes_of(huge) == "512x65536"
    assert torch.equal(before, torch.get_rng_state())
    assert shapes_of(case("full", "odd", gpu_only=True)) == "3x4"
    impossible = Case("x", "p", lambda generator: {"x": torch.ones(int(torch.ones(1).item()))}, None, None, 0.0, ())
    assert shapes_of(impossible) == ""


def test_the_list():
    text = io.StringIO()
    print_list(Console(file=text, width=120), "task2", [*CASES, case("full", "big", gpu_only=True)])
    rows = text.getvalue().splitlines()
    assert rows[0].startswith("task2: 5 cases")
    assert any("causal" in row and "164 tokens" in row and "3x4" in row for row in rows)
    assert any("big" in row and "GPU only" in row for row in rows)


def test_the_command_lists_without_building(monkeypatch, capsys):
    monkeypatch.setattr(test, "load", lambda request: pytest.fail("it must not build"))
    assert test_main(TEST, ["--list", "--gemm"]) == 0
    out = capsys.readouterr().out
    assert "A B^T, 64 x 64 x 64" in out and "one warp wide" not in out
    assert test_main(TEST, ["--list", "--case", "K = 1"]) == 0
    assert "2 cases" in capsys.readouterr().out


def test_the_command_refuses_an_unknown_case(capsys):
    assert test_main(TEST, ["--case", "seven by thirty-one"]) == 2
    out = capsys.readouterr().out
    assert "no case is called 'seven by thirty-one'" in out and "softmax: 7 x 31" in out and "nothing was run" in out


def test_the_command_refuses_an_unknown_gpu(capsys):
    assert test_main(TEST, ["--profile", "--gpu", "H20O", "--backend", "simulator"]) == 2
    assert "did you mean H200?" in capsys.readouterr().out


def test_only_the_chosen_case_runs(capsys):
    """Builds the solution for the simulator."""
    arguments = ["--solution", "--backend", "simulator", "--case", "7 x 31", "--case", "softmax: one element"]
    assert test_main(TEST, arguments) == 0
    out = capsys.readouterr().out
    assert "7 x 31" in out and "one element" in out
    assert "113 x 203" not in out and "A B" not in out
    assert "Points" not in out  # a part's points depend on all of its cases
