"""Masks, with rows that see no key: operators against torch's scaled_dot_product_attention. Causal alignment and 16-bit
masks: tests/task7/front_door/test_sdpa.py."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from checked_findings import nothing_found
from torch import nn

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.reference import oracle as reference

OPERATORS = [("task1", "naive_attention"), ("task2", "attention")]
BATCH, HEADS, S_Q, S_K, HEAD_DIM = 2, 3, 9, 35, 8  # all sizes differ, so a wrong stride is caught
SHAPES = [
    (S_Q, S_K),
    (1, S_K),
    (S_Q, 1),
    (HEADS, S_Q, S_K),
    (HEADS, 1, S_K),
    (1, 1, S_Q, S_K),
    (BATCH, 1, 1, S_K),
    (1, HEADS, 1, S_K),
    (BATCH, 1, S_Q, 1),
    (BATCH, HEADS, 1, 1),
    (BATCH, HEADS, S_Q, S_K),
    (1, 1, 1, 1),
]
MEMORY = {
    "expanded": lambda x: x.expand(BATCH, HEADS, S_Q, S_K),
    "transposed": lambda x: x.mT.contiguous().mT,
    "every second element": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "a slice": lambda x: torch.cat([x, x], -2)[..., x.size(-2) :, :],
}


def tensors(device):
    torch.manual_seed(S_Q + S_K)
    return [torch.randn(BATCH, HEADS, seq, HEAD_DIM, device=device) for seq in (S_Q, S_K, S_K)]


def make_mask(kind, shape, device):
    torch.manual_seed(sum(shape))
    hidden = torch.rand(shape, device=device) < 0.4
    if len(shape) > 1 and shape[-2] > 1:
        hidden[..., 4, :] = True  # a query with no visible key
    return ~hidden if kind == "bool" else torch.randn(shape, device=device).masked_fill(hidden, -torch.inf)


def expected(query, key, value, **options):
    mask = options.pop("attn_mask", None)
    mask = mask.double() if type(mask) is torch.Tensor and mask.is_floating_point() else mask
    return F.scaled_dot_product_attention(query.double(), key.double(), value.double(), attn_mask=mask, **options)


def assert_close(out, wanted):
    torch.testing.assert_close(out.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("task", "operator"), OPERATORS)
def test_a_mask_broadcasts_as_in_torch(solution, task, operator, shape, kind):
    ops = solution(task)
    query, key, value = tensors(ops.device)
    mask = make_mask(kind, shape, ops.device)
    wanted = expected(query, key, value, attn_mask=mask)
    assert_close(getattr(ops, operator)(query, key, value, False, None, mask), wanted)
    assert_close(reference.attention(query.double(), key.double(), value.double(), mask=mask), wanted)


@pytest.mark.parametrize("layout", MEMORY)
@pytest.mark.parametrize("shape", [(S_Q, S_K), (BATCH, 1, 1, S_K), (BATCH, HEADS, S_Q, S_K)], ids=str)
@pytest.mark.parametrize(("task", "operator"), OPERATORS)
def test_a_mask_may_lie_in_memory_in_any_way(solution, task, operator, shape, layout):
    ops = solution(task)
    query, key, value = tensors(ops.device)
    for kind in ("bool", "float"):
        mask = MEMORY[layout](make_mask(kind, shape, ops.device))
        wanted = expected(query, key, value, attn_mask=mask)
        assert_close(getattr(ops, operator)(query, key, value, False, None, mask), wanted)


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize(("task", "operator"), OPERATORS)
def test_causal_and_a_mask_hold_together(solution, task, operator, kind):
    ops = solution(task)
    query, key, value = tensors(ops.device)
    mask = make_mask(kind, (HEADS, S_Q, S_K), ops.device)
    past = torch.ones(S_Q, S_K, dtype=torch.bool, device=ops.device).tril()
    both = mask & past if kind == "bool" else mask.masked_fill(~past, -torch.inf)
    out = getattr(ops, operator)(query, key, value, True, 0.7, mask)
    assert_close(out, expected(query, key, value, attn_mask=both, scale=0.7))


def test_the_layer_takes_a_padding_mask(solution):
    from task2.given.layer import CustomAttention

    ops = solution("task2")
    torch.manual_seed(0)
    module = nn.MultiheadAttention(24, 3, batch_first=True).eval().to(ops.device)
    x = torch.randn(2, 11, 24, device=ops.device)
    here = torch.arange(11, device=ops.device) < torch.tensor([[7], [11]], device=ops.device)
    wanted, _ = module(x, x, x, key_padding_mask=~here, need_weights=False)
    out = CustomAttention.from_multihead_attention(module, False, ops=ops)(x, mask=here[:, None, None, :])
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["expanded", "transposed", "every second element"])
def test_the_checked_build_knows_where_a_mask_lies(layout):
    ops = load(BuildRequest("task1", "solution", "simulator", checked=True))
    query, key, value = tensors("cpu")
    mask = MEMORY[layout](make_mask("float", (S_Q, S_K), "cpu"))
    with nothing_found(ops):
        out = ops.naive_attention(query, key, value, False, None, mask)
    assert_close(out, expected(query, key, value, attn_mask=mask))
