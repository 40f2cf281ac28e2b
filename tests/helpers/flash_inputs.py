"""Inputs for the tests of the fast attention kernels, and the expected results."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor

from common.reference import oracle as reference
from common.reference.bounds import max_error_of, running_sum_floor

ALIGNMENTS = {"full": {}, "upper left": {"causal": True}, "lower right": {"causal": True, "lower_right": True}}
BATCH, HEADS, S_Q, S_K = 2, 3, 21, 37  # all sizes differ, so a wrong stride is caught


def tensors(
    ops,
    dtype: torch.dtype,
    seq_q: int = S_Q,
    seq_k: int = S_K,
    head_dim: int = 16,
    batch: int = BATCH,
    heads: int = HEADS,
    kv_heads: int | None = None,
    sharpness: float = 1.5,
    mean_value: float = 2,
) -> list[Tensor]:
    """query, key, value and a gradient of the output, normally distributed; the same sizes give the same tensors.

    With the defaults, the weights are peaked and the mean of the values is far from 0, so nothing passes by luck.

    Args:
        ops: determines the device.
        dtype: of all four.
        seq_q, seq_k, head_dim, batch, heads, kv_heads: the sizes; kv_heads defaults to heads.
        sharpness: standard deviation of query and key.
        mean_value: mean of the elements of value.
    """
    generator = torch.Generator().manual_seed(seq_q + 1000 * seq_k + head_dim)

    def normal(heads: int, seq: int) -> Tensor:
        return torch.randn(batch, heads, seq, head_dim, generator=generator)

    kv_heads = kv_heads or heads
    query, key = sharpness * normal(heads, seq_q), sharpness * normal(kv_heads, seq_k)
    value, grad_out = mean_value + normal(kv_heads, seq_k), normal(heads, seq_q)
    return [x.to(ops.device, dtype) for x in (query, key, value, grad_out)]


def spoil(x: Tensor, where, bad: float) -> Tensor:
    """A copy with `bad` in two columns of the rows `where`. Two infinities make scores infinite and NaN."""
    x = x.clone()
    x[..., where, 3:5] = bad
    return x


# (S_q, S_k, key_step, key_offset): strided keys under a causal mask. The first key at, after or before the first query;
# sizes on both sides of a tile boundary; queries that see no key, keys that no query sees
POSITIONS = [(70, 35, 2, 0), (200, 67, 3, 2), (133, 17, 8, 5), (40, 90, 2, -31), (150, 150, 3, 100), (65, 65, 8, 0)]


def position_mask(seq_q: int, seq_k: int, key_step: int, key_offset: int, device) -> Tensor:
    """bool [seq_q, seq_k]: True where key j, at position key_offset + j * key_step, is at or before query i."""
    return key_offset + key_step * torch.arange(seq_k, device=device) <= torch.arange(seq_q, device=device)[:, None]


def lists_of(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Counts and columns of a block mask [heads, q_blocks, k_blocks]: compress_block_mask in PyTorch."""
    order = torch.where(blocks, torch.arange(blocks.size(2), device=blocks.device), blocks.size(2)).sort(-1).values
    return blocks.sum(-1, dtype=torch.int32), order.where(order < blocks.size(2), -1).int().contiguous()


def operators_of(ops):
    """The raw operators, as in torch.ops."""
    return getattr(torch.ops, ops.libraries[0].name)


def scores(query: Tensor, key: Tensor, **options) -> Tensor:
    """[batch, heads, S_q, S_k], masked; key may have fewer heads than query."""
    return reference.scores(query, key.repeat_interleave(query.size(1) // key.size(1), 1), **options)


def in_pieces(function, query: Tensor, *others: Tensor, mask: Tensor | None = None, largest=2**26, **options) -> Tensor:
    """function(query, *others, mask=..., **options), one key head at a time if it would compute more scores than
    `largest`: workers share one GPU's memory."""
    options |= {} if mask is None else {"mask": mask}
    shape = (*query.shape[:3], others[0].size(2))
    if math.prod(shape) <= largest:
        return function(query, *others, **options)
    group = query.size(1) // others[0].size(1)
    parts = []
    for batch in range(shape[0]):
        for head in range(others[0].size(1)):
            rows = slice(head * group, (head + 1) * group)
            if mask is not None:
                options["mask"] = mask.expand(shape)[batch : batch + 1, rows]
            parts.append(
                function(
                    query[batch : batch + 1, rows], *(x[batch : batch + 1, head : head + 1] for x in others), **options
                )
            )
    whole = torch.cat(parts, 1)
    return whole.view(*shape[:2], *whole.shape[2:])


def attention(dtype: torch.dtype, query: Tensor, key: Tensor, value: Tensor, **options) -> Tensor:
    """PyTorch in the kernels' precision, then in float64: scores and softmax in at least float32, the weights and
    the output in dtype."""
    return in_pieces(partial(_attention, dtype), query, key, value, **options)


def lse_of(query: Tensor, key: Tensor, **options) -> Tensor:
    """The logarithm of each row's sum of exponentials, in float64."""
    return in_pieces(
        lambda *inputs, **given: scores(*inputs, **given).logsumexp(-1), query.double(), key.double(), **options
    )


def _attention(dtype: torch.dtype, query: Tensor, key: Tensor, value: Tensor, **options) -> Tensor:
    if (mask := options.get("mask")) is not None and mask.is_floating_point():
        options["mask"] = mask.to(torch.promote_types(dtype, torch.float32))
    exact = [x.to(torch.promote_types(dtype, torch.float32)) for x in (query, key)]
    weights = reference.softmax(scores(*exact, **options)).to(dtype)
    return (weights @ value.to(dtype).repeat_interleave(query.size(1) // value.size(1), 1)).double()


def assert_as_exact(
    out: Tensor, exact: Tensor, same: Tensor, dtype: torch.dtype, floor: float, roundings: int = 1, name: str = ""
) -> None:
    """As close to float64 as common/testing/judging.py requires; the floor also covers roundings of out to its dtype.

    Args:
        out: the kernel's result.
        exact, same: PyTorch's, in float64 and in dtype.
    """
    if dtype != torch.float32:
        floor += roundings * torch.finfo(dtype).eps / 2 * float(exact.abs().max())
    error, noise = max_error_of(out, exact), max_error_of(same, exact)
    assert error <= 2 * noise + floor, (name, error, noise, floor)


def assert_near(
    out: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    spread: float = 1.5**2,
    lse_bound: float | None = None,
    **options,
) -> None:
    """Checks that out and lse are as close to float64 as common/testing/judging.py requires of every kernel.

    The floor is that of common/testing/cases/attention.py for scores and sum, plus one rounding to dtype of the weights
    and one of out: a kernel need not subtract the exact maximum, so the weight of a lone key, 1 in PyTorch, is
    rounded too.

    Args:
        out, lse: the kernel's results for query, key and value.
        query, key, value: as passed to the kernel.
        spread: the standard deviation of the scaled scores.
        lse_bound: the error allowed in lse if larger than 1e-5 of its size.
        options: causal, lower_right, mask, scale.
    """
    dtype = query.dtype
    assert out.shape == query.shape and out.dtype == dtype and out.is_contiguous()
    assert lse.shape == query.shape[:-1] and lse.dtype == torch.float32
    exact, same = (attention(precision, query, key, value, **options) for precision in (torch.float64, dtype))
    assert_as_exact(out, exact, same, dtype, 1e-5 * spread + running_sum_floor(key.size(2), 4), roundings=2)
    lse64 = lse_of(query, key, **options)
    size = float(lse64[lse64.isfinite()].abs().max()) if bool(lse64.isfinite().any()) else 0.0
    error = max_error_of(lse, lse64)  # equal where lse is -inf
    assert error <= (1e-5 * (1 + size) if lse_bound is None else lse_bound), (error, size)
    assert bool((out[lse64 == -math.inf] == 0).all())


def kernels_of(call) -> str:
    """The names of the kernels that the call runs on a GPU."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return " ".join(event.key for event in profile.key_averages())


def same_every_time(run, times: int) -> bool:
    """Whether repeated calls of run() give bitwise identical tensors."""
    first = run()
    return all(torch.equal(x, y) for _ in range(times) for x, y in zip(run(), first, strict=True))


def hopper_only() -> None:
    """Skips a test, or the tests of a fixture, on other GPUs."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")


def packed(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """The three as slices of one [batch, S, 3, heads, head_dim] tensor, as a single linear layer returns."""
    whole = torch.stack([query, key, value]).permute(1, 3, 0, 2, 4).contiguous()
    return [x.transpose(1, 2) for x in whole.unbind(2)]


def rows_first(*inputs: Tensor) -> list[Tensor]:
    """Stored as [batch, S, heads, head_dim]."""
    return [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]


def gaps(*inputs: Tensor, before: int = 0, behind: int) -> list[Tensor]:
    """Rows that start `before` elements into memory rows of head_dim + before + behind elements."""
    return [
        torch.nn.functional.pad(x, (before, behind), value=math.nan)[..., before : x.size(-1) + before] for x in inputs
    ]


LAYOUTS = {
    "packed": packed,
    "rows first": rows_first,
    "rows 16-byte aligned, gaps between them": partial(gaps, behind=8),
    "rows of odd length": partial(gaps, behind=1),
    "rows that begin anywhere": partial(gaps, before=1, behind=7),
    "every second row": lambda *inputs: [x.repeat_interleave(2, 2)[:, :, ::2] for x in inputs],
    "every second head": lambda *inputs: [x.repeat_interleave(2, 1)[:, ::2] for x in inputs],
}


def lse_bound_3xfp16(query: Tensor, key: Tensor, scale: float | None = None) -> float:
    """The allowed error in lse when scores are 3xFP16 sums accumulated in the tensor cores.

    With u = 2^-23 and M the largest sum of |scale q k| over the D columns: tensor cores truncate each of the D / 16
    sums of large products by at most u M. The two splits, the omitted product of small parts, scale * log2(e) and the
    float32 steps from score to exponent add less than 8 u M. Sums of S_k weights, a quarter of them per lane, have a
    relative error of (S_k / 4 + 8) u / 2, which the logarithm makes absolute.
    """
    group, u = query.size(1) // key.size(1), 2.0**-23
    sums = query.double().abs() @ key.double().abs().repeat_interleave(group, 1).transpose(-1, -2)
    largest = float(sums.max()) * abs(query.size(-1) ** -0.5 if scale is None else scale)
    return u * ((query.size(-1) / 16 + 8) * largest + (key.size(2) / 4 + 8) / 2)
