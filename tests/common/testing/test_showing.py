"""`--show CASE`: inputs, steps and outputs in numbers, at 80 columns."""

import io

import torch
from fake_operators import fake_operators
from rich.console import Console

from common.reference import oracle as reference
from common.testing.calling import InProcess
from common.testing.case import Case
from common.testing.cases.attention_cases import attention_case
from common.testing.cases.softmax import softmax_case
from common.testing.judging import make_inputs
from common.testing.showing import show_case


def shown(case: Case, others: list[Case] = (), **operators) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=80)
    right = show_case(console, case, InProcess(fake_operators(**operators)), 0, [case, *others])
    return right, console.file.getvalue()


def block(text: str, title: str) -> list[list[str]]:
    """The rows of numbers below a title."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(title)) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("  "):
            break
        rows.append([word for word in line.split()[1:] if word != ".."])
    return rows


def test_a_small_case_in_numbers():
    case = softmax_case("softmax", "softmax", "2 x 3", 2, 3)
    x = make_inputs(case, 0)["x"]
    right, text = shown(case, softmax=reference.softmax)
    assert right and "softmax: 2 x 3, first inputs" in text and "0 of 6 elements differ" in text
    assert block(text, "x  2x3") == [[f"{value:.4g}" for value in row] for row in x.tolist()]
    assert block(text, "right: the row's maximum") == [[f"{value:.4g}"] for value in x.amax(1).tolist()]
    sums = torch.exp(x.double() - x.double().amax(1, keepdim=True)).sum(1)
    assert block(text, "right: their sum") == [[f"{value:.4g}"] for value in sums.tolist()]
    assert block(text, "came") == block(text, "right: the output")


def test_what_is_wrong_is_marked():
    def wrong(x):
        y = reference.softmax(x)
        y[1, 2] += 0.5
        return y

    right, text = shown(softmax_case("softmax", "softmax", "2 x 3", 2, 3), softmax=wrong)
    came = block(text, "came")
    assert not right and came[1][2].endswith("*") and sum(word.endswith("*") for row in came for word in row) == 1
    assert "1 of 6 elements differ" in text and "the first is at row 1, col 2" in text


def test_of_a_big_case_the_first_corner_and_the_name_of_a_smaller_one():
    big, small = (softmax_case("softmax", "softmax", name, rows, rows) for name, rows in (("big", 100), ("small", 4)))
    _, text = shown(big, [small], softmax=reference.softmax)
    assert "10,000 numbers: only the first corner of each tensor; a smaller case: --show 'softmax: small'" in " ".join(
        text.split()
    )
    assert max(map(len, text.splitlines())) <= 80
    assert len(block(text, "x  100x100")) == 9  # eight rows, and a line that says there are more


def test_the_stages_of_attention_and_of_its_tiles():
    case = attention_case("attention", "attention", "two tiles", 1, 1, 2, 5, 3, causal=True, tiles=(2, 3))
    _, text = shown(case, attention=reference.attention)
    inputs = {name: x.double() for name, x in make_inputs(case, 0).items()}
    s = reference.scores(inputs["query"], inputs["key"], True)[0, 0]
    m = [[s[row, :3].amax(), s[row].amax()] for row in range(2)]
    assert block(text, "right: m after each tile of 3 keys") == [[f"{float(one):.4g}" for one in row] for row in m]
    l = torch.exp(s[1] - s[1].amax()).sum()  # noqa: E741
    assert block(text, "right: l after each tile of 3 keys")[1][1] == f"{float(l):.4g}"
    assert block(text, "right: S, the scaled and masked scores")[0][1] == "-inf"


def test_what_is_not_written_yet_is_said_below_the_right_numbers():
    def gap(x):
        raise NotImplementedError("task2 softmax is not implemented yet: task2/attention_kernel.cu:90")

    right, text = shown(softmax_case("softmax", "softmax", "2 x 3", 2, 3), softmax=gap)
    assert not right and "right: the output" in text and "attention_kernel.cu:90" in text
