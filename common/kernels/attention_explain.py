"""Which kernel a call of attention gets, why not a faster one, what it copies and how much it computes.

What keeps a call from a faster kernel is found by trial, not deduction: the same call, with one thing changed at a
time, is checked for which kernel it would get. Called through common.kernels.attention.explain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from common.kernels.attention_call import NO_WINDOW, Call, Options
from common.kernels.attention_gradients import operators_of
from common.kernels.attention_kernels import FLASH_HEAD_DIM, choice, flash_arguments, passed_over

# The kernels of common/kernels/flash, the fastest first
RANKS = {"wgmma": 0, "mma": 1, "wgmma 3xfp16": 2, "3xfp16": 3, "fp32": 4, "plain": 5}
WORDS = {
    "wgmma": "wgmma (Hopper's tensor cores, 16 bits)",
    "mma": "mma (tensor cores, 16 bits)",
    "wgmma 3xfp16": "wgmma 3xfp16 (Hopper's tensor cores, float32 as the sum of two halves)",
    "3xfp16": "3xfp16 (tensor cores, float32 as the sum of two halves)",
    "fp32": "fp32 (no tensor cores)",
    "plain": "plain (every type, option and layout, one tile at a time)",
    "sparse": "sparse (tensor cores, 16 bits; windows and strides, forward)",
}


NOTHING = "there is nothing to explain: the call has no query, no key or no element, and runs no kernel"


@dataclass(frozen=True)
class Explanation:
    """The result of explain; str() formats it.

    Attributes:
        kernel: "wgmma", "mma", "wgmma 3xfp16", "3xfp16", "fp32" or "plain" of common/kernels/flash, or "sparse" of
            common/kernels/sparse.
        reasons: which kernels do not support the call, and why.
        copies: what is copied or converted before the kernel runs.
        faster: which changes would lead to which faster kernel.
        operations: 4 * head_dim per visible pair of query and key; a mask tensor's contents are not counted.
        least_bytes: query, key, value, mask and output, each read or written once.
    """

    kernel: str
    reasons: tuple[str, ...]
    copies: tuple[str, ...]
    faster: tuple[str, ...]
    operations: float
    least_bytes: float

    def __str__(self) -> str:
        lines = [f"kernel    {WORDS.get(self.kernel, self.kernel)}"]
        lines += [f"because   {words}" for words in self.reasons]
        lines += [f"copied    {words}" for words in self.copies]
        lines += [f"faster    {words}" for words in self.faster]
        return "\n".join([*lines, f"work      {self.operations:.3g} operations, {self.least_bytes:.3g} bytes at least"])


def explained(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Explanation:
    """Explains attention with these arguments. Runs nothing."""
    if options.dropout_p and options.seed is None:  # keeps the generator's state
        options = replace(options, seed=torch.zeros(1, dtype=torch.int64, device=query.device))
    call = Call.of(query, key, value, options)
    if call.empty:
        raise ValueError(NOTHING)
    chosen = choice(call)
    if chosen == "sparse":
        kernel, faster = "sparse", ()
    else:
        kernel = _flash_kernel(call)
        faster = _faster(call, kernel)
    reasons = (f"{name} does not take it: {why}" for name, why in passed_over(call).items())
    return Explanation(kernel, tuple(reasons), *counted(call, (query, key, value), tuple(faster)))


def counted(call: Call, given: tuple[Tensor, ...], faster: tuple[str, ...]) -> tuple:
    """copies, faster, operations and least_bytes of an Explanation.   given: the caller's query, key and value"""
    return tuple(_copies(call, *given)), faster, _operations(call), _least_bytes(call)


def _flash_kernel(call: Call) -> str:
    operators = operators_of("flash", call.query.device)
    return operators.flash_attention_kernel(*flash_arguments(call))


def _copies(call: Call, *given: Tensor) -> Iterator[str]:
    """Which of query, key and value the kernel cannot read in place, and why."""
    for name, x, read in zip(("query", "key", "value"), given, (call.query, call.key, call.value), strict=True):
        if read.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            continue
        reasons = []
        if x.dtype != read.dtype:
            reasons.append(f"{x.dtype} to {read.dtype}".replace("torch.", ""))
        if read.numel() // read.size(-1) > x.numel() // x.size(-1):
            reasons.append("its heads repeated, or its batch broadcast")
        if read.size(-1) > x.size(-1):
            reasons.append(f"head_dim filled up with zeros to {read.size(-1)}")
        what = "it" if x.stride(-1) == 1 else "its rows"
        yield f"{name}: {', '.join(reasons) or f'strides {list(x.stride())}, and {what} must be contiguous'}"


def _operations(call: Call) -> float:
    options, (batch, heads, seq_q, head_dim), seq_k = call.options, call.query.shape, call.key.size(2)
    left, right = options.window_size
    shift = seq_k - seq_q if call.lower_right else 0
    at = torch.arange(shift, shift + seq_q, device="cpu")  # the position of each query among the keys
    begin, end = torch.zeros_like(at), torch.full_like(at, seq_k)
    if left >= 0:
        begin = (at - left).clamp(0, seq_k)
    if right >= 0:
        end = (at + right + 1).clamp(0, seq_k)
    if call.is_causal:
        end = end.minimum((at + 1).clamp(0, seq_k))
    begin, end = (-((options.key_offset - x) // options.key_stride) for x in (begin, end))  # in strided keys
    return 4.0 * batch * heads * int((end - begin).clamp(min=0).sum()) * head_dim


def _least_bytes(call: Call) -> float:
    tensors = [x for x in (call.query, call.key, call.value, call.query, call.attn_mask) if x is not None]
    return float(sum(_distinct(x) * x.element_size() for x in tensors))


def _distinct(x: Tensor) -> int:
    """The number of distinct elements in memory: an expanded dimension counts once."""
    return math.prod(size for size, stride in zip(x.shape, x.stride(), strict=True) if stride or size == 1)


def _faster(call: Call, kernel: str) -> Iterator[str]:
    """Each single change that would lead to a faster kernel."""

    def fresh(head_dim: int, dtype: torch.dtype) -> Call:
        made = {name: x.new_empty((*x.shape[:-1], head_dim), dtype=dtype) for name, x in inputs.items()}
        return replace(call, **made)

    head_dim, dtype, scale = call.query.size(-1), call.query.dtype, call.scale
    rounded = -(-head_dim // 8) * 8
    options, inputs = call.options, {name: getattr(call, name) for name in ("query", "key", "value")}
    plain = replace(options, softcap=0.0, sinks=None, dropout_p=0.0, window_size=NO_WINDOW)
    dense = [f"without {', '.join(options.used)}"] if options.used else []
    if head_dim > FLASH_HEAD_DIM:
        dense.append(f"with head_dim up to {FLASH_HEAD_DIM}")
    narrow = {name: x[..., :FLASH_HEAD_DIM] for name, x in inputs.items()}
    changes: dict[str, Callable[[], Call]] = {}
    if dense:
        changes[" and ".join(dense)] = lambda: replace(call, options=plain, **narrow)
    changes |= {
        "without attn_mask": lambda: replace(call, attn_mask=None),
        "with a positive scale": lambda: replace(call, scale=abs(scale) or 1.0),
        "with contiguous inputs whose memory begins at a multiple of 16 bytes": lambda: fresh(head_dim, dtype),
        f"with contiguous inputs of head_dim {rounded}, filled up with zeros and with the same scale": lambda: fresh(
            rounded, dtype
        ),
        "in float16 or bfloat16": lambda: fresh(head_dim, torch.bfloat16),
    }
    for words, changed in changes.items():
        found = _flash_kernel(changed())
        if RANKS[found] < RANKS[kernel]:
            yield f"{words}: {WORDS[found]}"
