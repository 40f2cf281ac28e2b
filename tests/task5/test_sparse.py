"""Task 5's second half: sliding window and block-sparse attention, block lists, references, bad arguments."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.reference.bounds import running_sum_floor
from common.testing.judging import oracle
from task5.cases import cases
from task5.cases.sparse import NO_BLOCKS, block_cases, no_blocks, stale, window_cases
from task5.given.reference import (
    block_sparse_mask,
    naive_block_sparse_attention,
    naive_compress_block_mask,
    naive_sliding_window_attention,
    sliding_window_mask,
)

ROUNDING = 1e-5  # float32 scores of size 1, as passed on by the softmax; see common/testing/cases/attention.py


def dense(query: Tensor, key: Tensor, value: Tensor, see: Tensor) -> Tensor:
    """Attention over all keys with a bool mask, in float64 by PyTorch."""
    out = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), attn_mask=see)
    return out.masked_fill(~see.any(-1, keepdim=True), 0.0)  # PyTorch gives NaN to a query that sees no key


def window_seen(seq_q: int, seq_k: int, window: int, causal: bool, device) -> Tensor:
    """The mask, key by key."""
    see = [[i - window < j <= i if causal else i - window < j < i + window for j in range(seq_k)] for i in range(seq_q)]
    return torch.tensor(see, device=device)


def blocks_seen(lists: list[list[list[int]]], seq_q: int, seq_k: int, block: int, causal: bool, device) -> Tensor:
    """The mask, key by key, from the block indices of every row of every head."""
    see = [
        [[j // block in rows[i // block] and (j <= i or not causal) for j in range(seq_k)] for i in range(seq_q)]
        for rows in lists
    ]
    return torch.tensor(see, device=device)


def heads(seq_q: int, seq_k: int, head_dim: int, device=None) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seq_q + 1000 * seq_k)
    shapes = ((2, 3, seq, head_dim) for seq in (seq_q, seq_k, seq_k))
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("seq_q", "seq_k", "window"), [(50, 50, 1), (110, 110, 17), (40, 100, 33), (110, 30, 20), (60, 60, 999), (1, 1, 1)]
)
def test_window_reference_and_kernel_are_dense_attention_under_the_mask(solution, seq_q, seq_k, window, causal):
    ops = solution("task5")
    inputs = heads(seq_q, seq_k, 16, ops.device)
    right = dense(*inputs, window_seen(seq_q, seq_k, window, causal, ops.device))
    reference = naive_sliding_window_attention(*(x.double() for x in inputs), window, causal)
    torch.testing.assert_close(reference, right, rtol=0, atol=1e-13)
    out = ops.sliding_window_attention(*inputs, window, causal).double()
    assert (out - right).abs().max() <= ROUNDING + running_sum_floor(seq_k, 4)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("block", "lists"),
    [
        (32, [[[0], [], [0, 2, 3]], [[1, 3], [0, 1, 2, 3], []], [[3], [1], [2]]]),
        (64, [[[1], [0]], [[], [0, 1]], [[0, 1], []]]),
        (96, [[[0, 1]], [[1]], [[]]]),
        (128, [[[0]], [[]], [[0]]]),
    ],
)
def test_block_reference_and_kernels_are_dense_attention_under_the_mask(solution, block, lists, causal):
    ops = solution("task5")
    k_blocks = {32: 4, 64: 2, 96: 2, 128: 1}[block]
    seq_q, seq_k = block * len(lists[0]), block * k_blocks
    mask = torch.tensor([[[n in row for n in range(k_blocks)] for row in rows] for rows in lists], device=ops.device)
    inputs = heads(seq_q, seq_k, 16, ops.device)
    right = dense(*inputs, blocks_seen(lists, seq_q, seq_k, block, causal, ops.device))
    reference = naive_block_sparse_attention(*(x.double() for x in inputs), mask, block, causal)
    torch.testing.assert_close(reference, right, rtol=0, atol=1e-13)

    counts, columns = ops.compress_block_mask(mask)
    assert counts.dtype == columns.dtype == torch.int32
    assert counts.tolist() == [[len(row) for row in rows] for rows in lists]
    assert columns.tolist() == [[row + [-1] * (k_blocks - len(row)) for row in rows] for rows in lists]
    out = ops.block_sparse_attention(*inputs, counts, columns, block, causal).double()
    assert (out - right).abs().max() <= ROUNDING + running_sum_floor(seq_k, 4)


@pytest.mark.parametrize("k_blocks", [1, 31, 32, 33, 64, 100])
def test_lists_of_any_length(solution, k_blocks):
    ops = solution("task5")
    mask = torch.rand(3, 5, k_blocks, generator=torch.Generator().manual_seed(k_blocks)) < 0.4
    mask[0, 0], mask[1, 1] = True, False
    counts, columns = (x.cpu() for x in ops.compress_block_mask(mask.to(ops.device)))
    assert torch.equal(counts.long(), mask.sum(-1))
    for row, count, numbers in zip(mask.flatten(0, 1), counts.flatten(), columns.flatten(0, 1), strict=True):
        assert numbers[:count].tolist() == row.nonzero().flatten().tolist() and bool((numbers[count:] == -1).all())
    assert all(torch.equal(a, b) for a, b in zip(naive_compress_block_mask(mask), (counts, columns), strict=True))


def test_the_default_arguments_are_those_of_the_references(solution):
    ops = solution("task5")
    inputs = heads(64, 32, 8, ops.device)
    doubles = [x.double() for x in inputs]
    bound = ROUNDING + running_sum_floor(32, 4)
    right = naive_sliding_window_attention(*doubles, 5)
    assert torch.equal(right, naive_sliding_window_attention(*doubles, 5, causal=True))
    assert (ops.sliding_window_attention(*inputs, 5).double() - right).abs().max() <= bound
    scaled = naive_sliding_window_attention(*doubles, 5, scale=0.1)
    assert (ops.sliding_window_attention(*inputs, 5, scale=0.1).double() - scaled).abs().max() <= bound

    mask = torch.tensor([[[True], [False]]] * 3, device=ops.device)
    lists = ops.compress_block_mask(mask)
    right = naive_block_sparse_attention(*doubles, mask, 32)
    assert (ops.block_sparse_attention(*inputs, *lists, 32).double() - right).abs().max() <= bound
    assert not ops.block_sparse_attention(*inputs, *lists, 32)[:, :, 32:].any()


def test_masks():
    one, zero = True, False
    assert sliding_window_mask(3, 4, 2).tolist() == [
        [one, zero, zero, zero],
        [one, one, zero, zero],
        [zero, one, one, zero],
    ]
    assert sliding_window_mask(1, 4, 2, causal=False).tolist() == [[one, one, zero, zero]]
    blocks = torch.tensor([[[0, 1], [1, 1]]], dtype=torch.uint8)
    assert block_sparse_mask(blocks, 1).tolist() == [[[zero, one], [one, one]]]
    assert block_sparse_mask(blocks, 2, causal=True)[0, 2].tolist() == [one, one, one, zero]


def test_numbers_that_are_no_blocks_are_passed_over(solution):
    """Whatever the lists contain, no key outside the tensors is read: the guards' NaN would show."""
    ops = solution("task5")
    generator = torch.Generator().manual_seed(0)
    whole = torch.full((3, 2, 3, 64, 8), math.nan)
    whole[1] = torch.randn(2, 3, 64, 8, generator=generator)
    key = value = whole.to(ops.device)[1]
    query = key.clone()
    counts = torch.tensor([[-5, 2**31 - 1], [7, 2], [0, -(2**31)]], dtype=torch.int32, device=ops.device)
    columns = torch.randint(-(2**31), 2**31 - 1, (3, 2, 2), generator=generator).int().to(ops.device)
    columns[1, 1, 1] = 1
    out = ops.block_sparse_attention(query, key, value, counts, columns, 32)
    sees = torch.zeros(3, 2, 2, dtype=torch.bool, device=ops.device)
    sees[1, 1, 1] = True
    right = naive_block_sparse_attention(query.double(), key.double(), value.double(), sees, 32)
    assert (out.double() - right).abs().max() <= ROUNDING + running_sum_floor(32, 4)


def of(*shape, dtype=torch.int32):
    return torch.zeros(shape, dtype=dtype)


def test_bad_arguments_of_the_references():
    query, key, value = (torch.randn(2, seq, 4) for seq in (64, 96, 96))
    with pytest.raises(ValueError, match="window is 0; it must be at least 1"):
        naive_sliding_window_attention(query, key, value, 0)
    with pytest.raises(
        ValueError, match=r"block_mask has shape \[2, 3\]; it must be \[heads, S_q / block, S_k / block\]"
    ):
        naive_block_sparse_attention(query, key, value, of(2, 3), 32)
    with pytest.raises(ValueError, match="block is 0; it must be at least 1"):
        naive_block_sparse_attention(query, key, value, of(2, 2, 3), 0)
    with pytest.raises(ValueError, match=r"with block = 64 it must be .* heads = 2, S_q = 64, S_k = 96"):
        naive_block_sparse_attention(query, key, value, of(2, 2, 3), 64)


def test_the_cases_say_what_they_do():
    """Every case's oracle is finite, and the parts are worth the points in the handout."""
    generator = torch.Generator().manual_seed(0)
    for part in (window_cases(), block_cases()):
        assert math.isclose(sum(case.points for case in part), 0.75)
        assert sum(case.required for case in part) >= 2
    for name in ("infinity where no query looks", "infinity in unlisted blocks"):
        case = next(case for case in window_cases() + block_cases() if case.name == name)
        inputs = case.inputs(generator)
        assert (
            inputs["key"].isinf().any() and inputs["value"].isinf().any() and oracle(case, inputs)[0].isfinite().all()
        )
    case = next(case for case in block_cases() if case.name == "rows without a block")
    inputs = case.inputs(generator)
    assert (inputs["block_mask"].sum(-1) == 0).any() and (oracle(case, inputs)[0] == 0).all(-1).any()


def test_the_cases_of_the_tuned_operators_are_in_half():
    """Inputs representable in float16, half tensors for the operator, a floor that allows for a rounded output."""
    given = []

    class Ops:
        def sliding_window_attention(self, query, key, value, **arguments):
            given.extend((query, key, value))
            return query

    made = cases(Variant.TUNED)
    assert {case.name for case in window_cases() + block_cases()} - {case.name for case in made} == {NO_BLOCKS}
    case, before = (next(one for one in some if one.name == "64 tokens, window 16") for some in (made, window_cases()))
    inputs = case.inputs(torch.Generator().manual_seed(0))
    assert all(torch.equal(x.half().float(), x) for x in inputs.values())
    assert case.call(Ops(), **inputs).dtype == torch.float32 and {x.dtype for x in given} == {torch.float16}
    assert case.floor == before.floor + 8 * 2.0**-11


def test_spoiled_lists():
    mask = torch.tensor([[[False, True, False, True, False]]])
    counts, columns = stale(mask)
    assert counts.tolist() == [[2]] and columns.tolist() == [[[1, 3, 0, 2, 4]]]
    counts, columns = no_blocks(mask)
    first, *blocks, fourth, fifth = columns[0, 0].tolist()
    assert counts.item() > 5 and blocks == [1, 3]
    assert all(n < 0 or n >= 5 for n in (first, fourth, fifth))


@pytest.mark.gpu
def test_lists_and_attention_in_a_graph():
    """Nothing waits for the GPU: both can be captured, and a replay of the graph uses a changed mask."""
    ops = load(BuildRequest("task5", "solution", "cuda"))
    inputs = heads(128, 128, 32, ops.device)
    mask = torch.rand(3, 4, 4, device=ops.device) < 0.5
    out = torch.empty_like(inputs[0])

    def attend() -> None:
        out.copy_(ops.block_sparse_attention(*inputs, *ops.compress_block_mask(mask), 32))

    attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend()
    for seed in range(3):
        mask.copy_(torch.rand(3, 4, 4, generator=torch.Generator().manual_seed(seed)) < 0.5)
        graph.replay()
        right = naive_block_sparse_attention(*(x.double() for x in inputs), mask, 32)
        assert (out.double() - right).abs().max() <= ROUNDING + running_sum_floor(128, 4)
