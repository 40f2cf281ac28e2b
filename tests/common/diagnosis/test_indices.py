"""Wrong indices of matrix products and of attention in memory, made in PyTorch another way than the diagnosis does."""

import torch

from common.diagnosis.diagnose import diagnose
from common.diagnosis.mistakes.attention_indices import output_indices, score_indices
from common.diagnosis.mistakes.gemm import gemm_mistakes
from common.reference import oracle


def rand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tiled(a: torch.Tensor, b: torch.Tensor, wrong: bool) -> torch.Tensor:
    """A B by tiles of 32; wrong: the tiles of A begin at row first_col and not at first_row."""
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
