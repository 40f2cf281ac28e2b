"""What an output that equals no known wrong answer reveals: other elements, other counts, wrong in some rows only."""

import pytest
import torch
from torch import Tensor

from common.diagnosis.mistakes.gemm import gemm_mistakes
from common.diagnosis.mistakes.inferring import inferred_from, product_inferences
from common.diagnosis.mistakes.known import Mistake

torch.manual_seed(1)
A, B = torch.randn(2, 2, 40, 40, dtype=torch.float64)
ROWS = torch.arange(40) // 2 * 2  # each odd row is replaced by the one before
TWICE = torch.where(torch.arange(40) < 3, 2.0, 1.0)
AXES, BOUND = ("batch", "row", "col"), 1e-4


def told(out: Tensor, transposed: bool = False) -> tuple[str, str] | None:
    b = B.mT.contiguous() if transposed else B
    return inferred_from(out.float(), A @ B, BOUND, AXES, gemm_mistakes(A, b, transposed))


@pytest.mark.parametrize(
    ("out", "transposed", "name", "words"),
    [
        (A[:, ROWS] @ B, False, "other elements of A", "A[0, 0, 0] where A[0, 1, 0] belongs"),
        (A[:, :, ROWS] @ B, False, "other elements of A", "A[0, 0, 0] where A[0, 0, 1] belongs"),
        (A @ B[:, ROWS], True, "other elements of B", "B[0, 0, 0] where B[0, 0, 1] belongs"),
        (A @ B[:, :, ROWS], False, "other elements of B", "B[0, 0, 0] where B[0, 0, 1] belongs"),
        ((A * TWICE) @ B, False, "products counted wrongly", "k = 0: 2 times, k = 1: 2 times, k = 2: 2 times"),
        ((A * (torch.arange(40) != 39)) @ B, False, "products counted wrongly", "k = 39: 0 times"),
    ],
)
def test_the_operands_are_read_off_a_product(out: Tensor, transposed: bool, name: str, words: str) -> None:
    found = told(out, transposed)
    assert found is not None and found[0] == name and words in found[1], found


def test_what_is_no_product_is_not_explained() -> None:
    assert told(torch.randn(2, 40, 40)) is None
    assert told(A @ B + 1) is None


def test_a_known_answer_in_some_rows_only() -> None:
    known = [Mistake("doubled", "Everything is doubled.", lambda: 2 * (A @ B))]
    out = A @ B
    out[:, 30:] *= 2
    found = inferred_from(out.float(), A @ B, BOUND, AXES, known)
    assert found == ("doubled", "In row 30 to 39 (of 40) only: Everything is doubled.")
    scattered = A @ B
    scattered[0, 1:] *= 2
    scattered[1, :-1] *= 2
    _, says = inferred_from(scattered.float(), A @ B, BOUND, AXES, known)
    assert says == "In part of the output, first at batch 0, row 1: Everything is doubled."
    out[0, 35, 3] += 1  # one element of these rows differs
    assert inferred_from(out.float(), A @ B, BOUND, AXES, known) is None


def test_equal_elements_are_not_told_apart() -> None:
    """Weights of rows that see one key are 1 and 0: any of them could have been used."""
    a = (A > 0).double()
    out = a[:, ROWS] @ B
    assert inferred_from(out.float(), a @ B, BOUND, AXES, product_inferences(a, B)) is None


def test_operands_that_hold_infinity_are_left_alone() -> None:
    """They are where nothing may be read, and no equation can be solved."""
    b = B.clone()
    b[0, 3] = torch.inf
    ref = A @ B
    assert inferred_from(ref + torch.randn_like(ref), ref, BOUND, AXES, product_inferences(A, b)) is None
