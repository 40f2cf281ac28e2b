"""Wrong lines of formulas, and wrong indices: which exist, and that an output made by one is named after it."""

import pytest
import torch

from common.diagnosis.diagnose import diagnose
from common.diagnosis.mistakes.attention import output_indices
from common.diagnosis.mistakes.formulas import misread, variations, varied
from common.diagnosis.mistakes.gemm import gemm_mistakes
from common.diagnosis.mistakes.merge import merge_mistakes, merge_states
from common.diagnosis.mistakes.scores import score_indices
from common.diagnosis.mistakes.softmax import row_formulas, tile_formulas
from common.reference import oracle


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("rescale = exp(m - m_new)", "rescale = exp(m_new - m)"),
        ("rescale = exp(m - m_new)", "rescale = exp(m + m_new)"),
        ("rescale = exp(m - m_new)", "rescale = exp2(m - m_new)"),
        ("l = rescale * l + rowsum(P)", "l = l + rowsum(P)"),
        ("l = rescale * l + rowsum(P)", "l = rowsum(P)"),
        ("l = rescale * l + rowsum(P)", "l = rescale * l"),
        ("l = rescale * l + rowsum(P)", ""),
        ("m_new = maximum(m, rowmax(S))", "m_new = minimum(m, rowmax(S))"),
        ("m_new = maximum(m, rowmax(S))", "m_new = rowmax(S)"),
        ("m = m_new", ""),
    ],
)
def test_a_line_goes_wrong_in_the_ways_that_students_know(right: str, wrong: str) -> None:
    assert (right, wrong) in [(one, other) for one, other, _ in variations(right)]


def test_the_other_lines_stay_as_they_are() -> None:
    for _, wrong, whole in variations("a = x + 1\nb = a - x"):
        assert len(whole.splitlines()) == 2 and (wrong or "pass") in whole


def test_each_line_is_told_with_what_is_right() -> None:
    x = rand(3, 5)
    (told,) = [one for one in varied("y = exp(x)", {"x": x}, lambda values: values["y"]) if one.name == "y = x"]
    assert told.says == "The output matches `y = x`; it should be `y = exp(x)`."
    assert told.vague and torch.equal(told.answer(), x)


def test_what_fits_no_shape_or_is_nan_has_no_answer() -> None:
    mistakes = varied("y = x @ z\nw = log(y)", {"x": rand(3, 5), "z": rand(5, 2)}, lambda values: values["w"])
    assert all(one.answer().numel() == 0 for one in mistakes if one.name == "w = log(y)")
    assert {one.answer().shape for one in mistakes} <= {(3, 2), (0,), (3, 5), (5, 2)}


def test_a_softmax_of_the_wrong_sign_is_told_by_its_line() -> None:
    x = rand(7, 40)
    out = torch.softmax(-x, -1).float()
    found = diagnose(out, oracle.softmax(x), 1e-6, ("row", "col"), row_formulas(x), is_softmax=True)
    assert found.names == ["e = exp(shift_of(m) - x)"]


@pytest.mark.parametrize("tile", [8, 16])
def test_a_sum_that_is_not_rescaled_in_a_loop_over_tiles_is_told_by_its_line(tile: int) -> None:
    s, value = 3 * rand(2, 2, 9, 40), rand(2, 2, 40, 6, seed=1)
    ref = oracle.softmax(s) @ value
    mistakes = {one.name: one for one in tile_formulas(s, value, tile)}
    out = mistakes["l = l + rowsum(P)"].answer().float()
    found = diagnose(out, ref, 1e-5, ("batch", "head", "row", "col"), [*mistakes.values()])
    assert found.names[0] == "l = l + rowsum(P)"
    right = diagnose(ref.float(), ref, 1e-5, ("batch", "head", "row", "col"), [*mistakes.values()])
    assert right.names == []


def test_a_maximum_that_only_shifts_is_no_mistake() -> None:
    """O / l does not depend on what is subtracted: such a line must not be named."""
    s, value = rand(1, 1, 9, 40), rand(1, 1, 40, 6, seed=1)
    ref = oracle.softmax(s) @ value
    for one in tile_formulas(s, value, 8):
        if one.name == "m_new = maximum(m, rowmin(S))":
            assert torch.allclose(one.answer(), ref)


def test_an_index_without_its_stride_is_told() -> None:
    memory = rand(6, 4)
    row, col = torch.arange(6)[:, None], torch.arange(4)
    places = {"row": row, "col": col, "cols": 4}
    mistakes = misread("x", "row * cols + col", memory, places, lambda read: 2 * read)
    out = 2 * memory.flatten()[row + col]
    found = diagnose(out.float(), 2 * memory, 1e-5, ("row", "col"), mistakes)
    says = "The output matches what you get if x is read at `row + col`; it should be `row * cols + col`."
    assert found.sentences[0] == says


def test_what_an_index_finds_outside_is_nan() -> None:
    memory, places = rand(4), {"i": torch.arange(4), "none": 0}
    mistakes = {one.name: one for one in misread("x", "i - none", memory, places, lambda read: read.nan_to_num(7.0))}
    assert mistakes["x[none - i]"].answer().tolist() == [float(memory[0]), 7, 7, 7]
    assert torch.equal(mistakes["x[none - none]"].answer(), memory[[0, 0, 0, 0]])


def test_lse_of_the_first_row_is_told() -> None:
    outs, lse = rand(5, 7, 16), 2 * rand(5, 7, seed=1)
    ref = merge_states(outs, lse)[0]
    wrong = merge_states(outs, lse[:, :1].expand_as(lse))[0].float()
    found = diagnose(wrong, ref, 1e-6, ("row", "col"), merge_mistakes(outs, lse))
    assert found.names[0] == "lse[part * rows]"


# ---- indices of matrix products and of attention in memory, computed independently of the diagnosis


def tiled(a: torch.Tensor, b: torch.Tensor, wrong: bool) -> torch.Tensor:
    """A B in tiles of 32; wrong: the tiles of A start at row first_col instead of first_row."""
    (m, k), n = a.shape, b.size(1)
    big = torch.zeros(96, 96, dtype=a.dtype)
    big[:m, :k] = a
    out = torch.zeros(m, n, dtype=a.dtype)
    for row in range(0, m, 32):
        for col in range(0, n, 32):
            top = col if wrong else row
            tile = big[top : top + min(32, m - row), :k]
            out[row : row + 32, col : col + 32] = tile @ b[:, col : col + 32]
    return out


def test_a_tile_from_the_wrong_place_is_told_with_both_places() -> None:
    a, b = rand(50, 41), rand(41, 70, seed=1)
    assert torch.allclose(tiled(a, b, False), a @ b)
    out = tiled(a, b, True)[None].float()
    found = diagnose(out, (a @ b)[None], 1e-5, ("batch", "row", "col"), gemm_mistakes(a[None], b[None], False))
    assert "loaded with `row = first_col + r`; it should be `row = first_row + r`" in found.sentences[0]


def test_a_stride_that_is_missing_is_told() -> None:
    query, key = rand(1, 2, 9, 8), rand(1, 2, 12, 8, seed=1)
    flat, at = query.flatten(), torch.arange(2)[:, None, None] * 9 + torch.arange(9)[:, None] + torch.arange(8)
    out = oracle.scores(flat[at][None], key)
    found = diagnose(
        out.float(),
        oracle.scores(query, key),
        1e-5,
        ("batch", "head", "query", "key"),
        score_indices(query, key, oracle.scores),
    )
    says = "query is read at `batch_head * S_q + q + d`; it should be `(batch_head * S_q + q) * head_dim + d`"
    assert says in found.sentences[0]


def test_v_of_another_row_is_told() -> None:
    weights, value = torch.softmax(rand(1, 2, 9, 12), -1), rand(1, 2, 12, 8, seed=1)
    out = weights @ value[:, :1].expand_as(value)
    mistakes = output_indices(weights, value)
    found = diagnose(out.float(), weights @ value, 1e-5, ("batch", "head", "row", "col"), mistakes)
    assert "value is read at `k * head_dim + d`" in found.sentences[0]
