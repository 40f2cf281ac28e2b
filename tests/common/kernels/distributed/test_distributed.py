"""Attention over several ranks: gloo and the simulator's kernels, against float64 attention over the whole sequence."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import in_ranks

from common.kernels.distributed import ring, shards
from common.kernels.distributed.attention import sequence_parallel_attention
from common.kernels.distributed.ring import step_of
from common.kernels.distributed.transfers import RankLost

BATCH, HEAD_DIM = 2, 8
# method, causal, heads, kv_heads, tokens per rank, dtype
SETTINGS = [
    ("ring", True, 4, 2, 6, torch.float32),
    ("ring", False, 3, 3, 4, torch.float32),
    ("ring", True, 2, 1, 10, torch.bfloat16),
    ("ulysses", True, 12, 4, 4, torch.float32),
    ("ulysses", False, 12, 12, 6, torch.float16),
    ("auto", True, 5, 5, 2, torch.float32),
]
UNIT = {torch.float16: 2**-11, torch.bfloat16: 2**-8}


def inputs(heads: int, kv_heads: int, tokens: int, dtype: torch.dtype) -> list[torch.Tensor]:
    """query, key, value and the output's gradient for the whole sequence; the same on every rank."""
    generator = torch.Generator().manual_seed(heads + 100 * tokens)
    shapes = [(BATCH, h, tokens, HEAD_DIM) for h in (heads, kv_heads, kv_heads, heads)]
    return [1.5 * torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def expected(query, key, value, grad_out, causal: bool) -> list[torch.Tensor]:
    """out and the gradients of query, key and value for the whole sequence, by PyTorch in the inputs' dtype."""
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    group = query.size(1) // key.size(1)
    wide = [x.repeat_interleave(group, 1) for x in leaves[1:]]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        out = F.scaled_dot_product_attention(leaves[0], *wide, is_causal=causal)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]


def whole(rank: int, ranks: int, settings) -> list[list[list]]:
    """Per setting: out and the gradients, reassembled from all ranks, as lists of numbers."""
    results = []
    ring.MOST_ROWS = 4  # longer ones are processed in parts
    for method, causal, heads, kv_heads, tokens, dtype in settings:
        query, key, value, grad_out = (shards.shard(x) for x in inputs(heads, kv_heads, tokens * ranks, dtype))
        leaves = [x.requires_grad_() for x in (query, key, value)]
        out = sequence_parallel_attention(*leaves, causal=causal, method=method)
        assert out.dtype == dtype and out.is_contiguous() and out.shape == query.shape
        parts = [out.detach(), *torch.autograd.grad(out, leaves, grad_out)]
        results.append([shards.unshard(x).float().tolist() for x in parts])
    return results


@pytest.mark.parametrize("ranks", [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 3, 4))])
def test_out_and_gradients_of_every_rank_are_those_of_one(ranks):
    settings = [one for one in SETTINGS if one[0] != "ulysses" or one[2] % ranks == 0]
    assert len(settings) == len(SETTINGS)
    answers = in_ranks(ranks, whole, settings)
    for answer in answers[1:]:
        assert answer == answers[0]  # all ranks have the same whole
    assert not isinstance(answers[0], Exception), answers[0]
    for (method, causal, heads, kv_heads, tokens, dtype), results in zip(settings, answers[0], strict=True):
        given = inputs(heads, kv_heads, tokens * ranks, dtype)
        exact = expected(*(x.double() for x in given), causal)
        peer = expected(*given, causal)
        for result, right, same_precision in zip(results, exact, peer, strict=True):
            error = (torch.tensor(result) - right).abs().max()
            # the kernels' bound (tests/common/kernels/flash), and for 16 bits one rounding per part
            floor = 1e-5 + (ranks * UNIT[dtype] * right.abs().max() if dtype != torch.float32 else 0)
            bound = 2 * (same_precision.double() - right).abs().max() + floor
            assert error <= bound, (method, causal, dtype, error, bound)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_shards_hold_every_token_once_and_share_the_work(ranks):
    places = [shards.positions(20 * ranks, rank, ranks) for rank in range(ranks)]
    assert torch.equal(torch.cat(places).sort().values, torch.arange(20 * ranks))
    assert len({int((one + 1).sum()) for one in places}) == 1  # each rank's number of visible keys if causal
    x = torch.arange(40.0 * ranks).view(1, 20 * ranks, 2)
    by_rank = shards.by_rank(x, ranks, 1)
    for rank, one in enumerate(by_rank):
        assert torch.equal(one, x[:, places[rank]])
    assert torch.equal(shards.in_order(by_rank, 1), x)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_steps_compute_every_visible_pair_once(ranks):
    """What the steps of all ranks compute, marked in a matrix of queries and keys: the causal mask, each entry once."""
    half, seen = 2, torch.zeros(4 * ranks, 4 * ranks, dtype=torch.int64)
    places = [shards.positions(4 * ranks, rank, ranks) for rank in range(ranks)]
    for rank in range(ranks):
        work = []
        for owner in range(ranks):
            step = step_of(rank, owner, half, causal=True)
            rows, cols = places[rank][step.queries], places[owner][step.keys]
            pairs = torch.ones(len(rows), len(cols), dtype=torch.int64)
            pairs = pairs.tril() if step.causal else pairs
            seen[rows[:, None], cols] += pairs
            work.append(int(pairs.sum()))
        assert len({amount for owner, amount in enumerate(work) if owner != rank}) == 1
    assert torch.equal(seen, torch.ones_like(seen).tril())


# ---- faults --------------------------------------------------------------------------------------


def call(rank: int, ranks: int, faults: dict[int, dict]):
    arguments = dict(zip(("query", "key", "value"), inputs(4, 2, 4, torch.float32)[:3], strict=True))
    try:
        sequence_parallel_attention(**arguments | faults.get(rank, {}))
    except ValueError as error:
        return str(error)


def other(heads: int = 4, tokens: int = 4, dtype: torch.dtype = torch.float32, head_dim: int = HEAD_DIM):
    return torch.zeros(BATCH, heads, tokens, head_dim, dtype=dtype)


def everywhere(**arguments) -> dict[int, dict]:
    return {0: arguments, 1: arguments}


REFUSED = "refused its arguments; its own error says why"
HALF, META = other(dtype=torch.float16), torch.zeros(2, 2, 4, 8, device="meta")
ALL_HALF = {"query": HALF, "key": HALF[:, :2], "value": HALF[:, :2]}
FAULTS = [  # rank -> arguments, rank 0's message, rank 1's message (None: the same)
    ({1: {"query": other(tokens=6)}}, "the shape of query must be the same on every rank; it is [2, 4, 4, 8] on", None),
    ({1: {"causal": True}}, "causal must be the same on every rank; it is False on rank 0, True on rank 1", None),
    ({1: {"method": "ring"}}, "method must be the same on every rank; it is auto on rank 0, ring on rank 1", None),
    ({0: {"scale": 2.0}}, "scale must be the same on every rank; it is 2.0 on rank 0, None on rank 1", None),
    ({0: {"query": other().requires_grad_()}}, "a gradient must be the same on every rank; it is True on rank 0", None),
    ({0: {"query": HALF}}, "key has dtype torch.float32; all must be float32", f"rank 0 {REFUSED}"),
    (
        {1: ALL_HALF},
        "the dtype of query must be the same on every rank; it is torch.float32 on rank 0, torch.float16",
        None,
    ),
    (everywhere(query=META, key=META, value=META), "query is on 'meta', and the process group's backend 'gloo'", None),
    ({1: {"query": META, "key": META, "value": META}}, f"rank 1 {REFUSED}", "backend 'gloo' serves 'cpu'"),
    ({1: {"query": None}}, f"rank 1 {REFUSED}", "query is None; it must be a tensor [batch, heads"),
    ({1: {"value": torch.zeros(3, 4)}}, f"rank 1 {REFUSED}", "value has 2 dimensions, shape [3, 4]; it must be [batch"),
    ({1: {"key": META}}, f"rank 1 {REFUSED}", "key is on the device 'meta', query on 'cpu'"),
    ({0: {"method": "star"}}, "method is 'star'; it must be 'ring', 'ulysses' or 'auto'", f"rank 0 {REFUSED}"),
    ({0: {"query": other(heads=3), "method": "ulysses"}}, "query has 3 heads", f"rank 0 {REFUSED}"),
    (everywhere(query=other(tokens=3)), "query has 3 tokens on this rank; it must be an even number", None),
    (everywhere(query=other(tokens=0)), "query has shape [2, 4, 0, 8]; no size may be 0", None),
    (everywhere(query=other(head_dim=4)), "batch and head_dim must be equal", None),
    (everywhere(query=other(tokens=6), causal=True), "query has 6 tokens on this rank, key 4; with causal", None),
    (everywhere(query=other(heads=5)), "query has 5 heads, key 2; query's must be a multiple", None),
]


def all_faults(rank: int, ranks: int) -> list[str]:
    return [call(rank, ranks, faults) for faults, *_ in FAULTS]


def test_faults_are_told_on_every_rank_and_the_group_lives_on():
    answers = in_ranks(2, all_faults)
    for rank, messages in enumerate(answers):
        assert not isinstance(messages, Exception), messages
        for message, (_, first, second) in zip(messages, FAULTS, strict=True):
            words = second if rank == 1 and second else first
            assert message is not None and words in message, (rank, message, words)


def alone(rank: int, ranks: int) -> list:
    """A group of one accepts what others cannot: an odd number of tokens, heads that two ranks could not split."""
    given = inputs(3, 3, 5, torch.float32)[:3]
    outs = [sequence_parallel_attention(*given, causal=True, method=method) for method in ("ring", "ulysses", "auto")]
    try:
        sequence_parallel_attention(*given, method="star")
    except ValueError as error:
        return [*(out.tolist() for out in outs), str(error)]


def test_a_group_of_one_computes_alone_and_refuses_for_itself():
    *outs, refused = in_ranks(1, alone)[0]
    right = expected(*(x.double() for x in inputs(3, 3, 5, torch.float32)), causal=True)[0]
    assert outs[0] == outs[1] == outs[2] and (torch.tensor(outs[0]) - right).abs().max() < 1e-5
    assert refused == "method is 'star'; it must be 'ring', 'ulysses' or 'auto'"


def one_ends(rank: int, ranks: int, when: str):
    arguments = [x.requires_grad_() for x in inputs(2, 2, 4, torch.float32)[:3]]
    if rank == 1 and when == "before":
        os._exit(0)
    out = sequence_parallel_attention(*arguments, causal=True, method="ring")
    if rank == 1:
        os._exit(0)
    out.sum().backward()


@pytest.mark.parametrize("when", ["before", "between forward and backward"])
def test_a_rank_that_ends_is_an_error_on_the_others_in_time(when):
    first, second = in_ranks(2, one_ends, when, timeout=10)
    assert isinstance(second, EOFError)
    assert isinstance(first, RankLost) and "rank 0 of 2" in str(first) and "did not come" in str(first)


def stays_away(rank: int, ranks: int):
    if rank == 1:
        import time

        time.sleep(6)
        return None
    return sequence_parallel_attention(*inputs(2, 2, 4, torch.float32)[:3])


@pytest.mark.slow
def test_a_rank_that_never_comes_is_an_error_within_the_timeout():
    first, _ = in_ranks(2, stays_away, timeout=2)
    assert isinstance(first, RankLost) and "every rank's call did not come" in str(first)


def test_without_a_process_group():
    assert not dist.is_initialized()
    with pytest.raises(RuntimeError, match="there is no process group"):
        sequence_parallel_attention(*inputs(2, 2, 4, torch.float32)[:3])


@pytest.mark.parametrize(
    ("seq_len", "rank", "words"),
    [
        (10, 0, "the sequence has 10 tokens; with 2 ranks it must be a multiple of 2 .* = 4"),
        (8, 2, "rank is 2; it must"),
    ],
)
def test_what_does_not_divide(seq_len, rank, words):
    with pytest.raises(ValueError, match=words):
        shards.positions(seq_len, rank, 2)
