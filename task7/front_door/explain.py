"""Which kernel a call of scaled_dot_product_attention gets, why not a faster one, and how near to a limit it comes.

    print(explain(query, key, value, is_causal=True))

What keeps a call from a faster kernel is not deduced but tried: the same call with one thing changed at a time is asked
which kernel it would get.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from common.kernels.flash.flash import kernel_of
from common.kernels.flash_options import flash_options
from common.measure.limits import Limits, measure_limits
from common.measure.timing import measure
from task7.front_door.sdpa import (
    BACKENDS,
    FASTEST_HEAD_DIM,
    MODES,
    NO_WINDOW,
    Call,
    asked_of,
    operators,
    prepared,
    scaled_dot_product_attention,
)

# The flash room's kernels, the fastest first
RANKS = {"wgmma": 0, "mma": 1, "wgmma 3xfp16": 2, "3xfp16": 3, "fp32": 4}
WORDS = {
    "wgmma": "wgmma (Hopper's tensor cores, 16 bits)",
    "mma": "mma (tensor cores, 16 bits)",
    "wgmma 3xfp16": "wgmma 3xfp16 (Hopper's tensor cores, float32 as the sum of two halves)",
    "3xfp16": "3xfp16 (tensor cores, float32 as the sum of two halves)",
    "fp32": "fp32 (no tensor cores)",
    "options wgmma": "options wgmma (Hopper's tensor cores, 16 bits; softcap, sinks, dropout, windows, wide heads)",
    "options mma": "options mma (tensor cores, 16 bits; softcap, sinks, dropout, windows, head_dim over 128)",
    "options fp32": "options fp32 (no tensor cores; softcap, sinks, dropout, windows, head_dim over 128)",
}
KINDS = {  # what its rate is compared with
    "wgmma": "bfloat16",
    "mma": "bfloat16",
    "wgmma 3xfp16": "tf32",
    "3xfp16": "tf32",
    "fp32": "float32",
    "options wgmma": "bfloat16",
    "options mma": "bfloat16",
    "options fp32": "float32",
}
_limits: dict[int, Limits] = {}  # by device: measuring takes a second


@dataclass(frozen=True)
class Explanation:
    """What `explain` found; str() says it in lines.

    Attributes:
        kernel: "wgmma", "mma", "3xfp16" or "fp32" of common/kernels/flash, "options wgmma", "options mma" or
            "options fp32" of common/kernels/flash_options, or "task1 naive_attention" and the like.
        variant: "student", "solution" or "tuned".
        copies: what is copied or converted before it runs.
        faster: what would have to change for which kernel.
        operations: 4 per pair of a query and a key it may see and element of head_dim; a mask is not looked into.
        least_bytes: query, key, value, mask and output, each read or written once.
        seconds: the median of ten calls, copies included; None in the simulator.
        limit, share: "memory" or "arithmetic", whichever takes longer at the rates measured on this GPU, and how near
            to it the call comes, 0 .. 1; None in the simulator.
    """

    kernel: str
    variant: str
    copies: tuple[str, ...]
    faster: tuple[str, ...]
    operations: float
    least_bytes: float
    seconds: float | None = None
    limit: str | None = None
    share: float | None = None

    def __str__(self) -> str:
        lines = [f"kernel    {WORDS.get(self.kernel, self.kernel)}, variant {self.variant!r}"]
        lines += [f"copied    {words}" for words in self.copies]
        lines += [f"faster    {words}" for words in self.faster]
        lines.append(f"work      {self.operations:.3g} operations, {self.least_bytes:.3g} bytes at least")
        if self.seconds is None:
            lines.append("time      not measured: on the CPU the kernels run in the simulator")
        else:
            limit = {"memory": "a copy within the GPU's memory", "arithmetic": "a large matrix product"}[self.limit]
            lines.append(f"time      {1e3 * self.seconds:.3g} ms, {self.share:.0%} of the rate of {limit}")
        return "\n".join(lines)


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    mode: str = "flash",
    variant: str | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    lower_right: bool = False,
) -> Explanation:
    """What scaled_dot_product_attention would do with the same arguments; on a GPU it is run and timed, forward only.

    Raises: what scaled_dot_product_attention raises, and ValueError for a call without an element.
    """
    others = softcap, sinks, window_size, lower_right
    call = prepared(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, mode, variant, *others)
    if call.layout.empty:
        raise ValueError("there is nothing to explain: the call has no query, no key or no element, and runs no kernel")
    ops = operators(mode, call.variant, BACKENDS[query.device.type])
    if call.options is not None:
        kernel = flash_options.kernel_of(
            *call.inputs, call.causal, call.scale, call.lower_right, call.mask, **call.options
        )
        faster = tuple(_faster_without_options(ops, call))
    elif call.kernels.tuned:
        kernel = kernel_of(ops, *call.inputs, call.causal, call.scale, call.lower_right, call.mask)
        faster = tuple(_faster(ops, call, kernel))
    else:
        kernel = f"{MODES[mode].task} {call.kernels.operator}"
        faster = ("mode='flash' with variant='tuned' runs the fast kernels",)
    work = _operations(call), _least_bytes(call)
    told = kernel, call.variant, tuple(_copies(call, query, key, value)), faster, *work
    if query.device.type != "cuda":
        return Explanation(*told)
    options = {"scale": scale, "enable_gqa": enable_gqa, "mode": mode, "variant": variant}
    options |= {"softcap": softcap, "sinks": sinks, "window_size": window_size, "lower_right": lower_right}

    def run() -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)

    with torch.no_grad(), torch.cuda.device(query.device):
        seconds = measure({"call": run}, lambda: (), rounds=10)["call"].seconds
        limits = _limits_of(query.device)
    kind = KINDS.get(kernel, "float32")
    least = {"arithmetic": work[0] / limits.of(kind), "memory": work[1] / limits.copy}
    limit = max(least, key=least.get)
    return Explanation(*told, seconds, limit, least[limit] / seconds)


def _limits_of(device: torch.device) -> Limits:
    index = torch.cuda.current_device() if device.index is None else device.index
    if index not in _limits:
        _limits[index] = measure_limits(rounds=5)
    return _limits[index]


def _copies(call: Call, *given: Tensor) -> Iterator[str]:
    """Which of query, key and value the kernel does not read where they lie, and why."""
    layout = call.layout
    for name, x, read in zip(("query", "key", "value"), given, call.inputs, strict=True):
        if read.untyped_storage().data_ptr() == x.untyped_storage().data_ptr():
            continue
        reasons = []
        if x.dtype != read.dtype:
            reasons.append(f"{x.dtype} to {read.dtype}".replace("torch.", ""))
        if _rows(read) > _rows(x):
            reasons.append("its heads repeated, or its batch broadcast")
        if read.size(-1) > x.size(-1):
            reasons.append(f"head_dim filled up with zeros to {layout.width}")
        what = "its rows" if call.kernels.tuned else "it"
        yield f"{name}: {', '.join(reasons) or f'strides {list(x.stride())}, and {what} must be contiguous'}"


def _rows(x: Tensor) -> int:
    return x.numel() // x.size(-1)


def _operations(call: Call) -> float:
    query, key, _ = call.inputs
    batch, heads, seq_q, head_dim = query.shape
    seq_k = key.size(2)
    left, right = NO_WINDOW if call.options is None else call.options["window_size"]
    at = torch.arange(seq_q) + (seq_k - seq_q if call.lower_right else 0)  # the key that stands beside each query
    begin, end = torch.zeros_like(at), torch.full_like(at, seq_k)
    if left >= 0:
        begin = (at - left).clamp(0, seq_k)
    if right >= 0:
        end = (at + right + 1).clamp(0, seq_k)
    if call.causal:
        end = end.minimum((at + 1).clamp(0, seq_k))
    pairs = int((end - begin).clamp(min=0).sum())
    return 4.0 * batch * heads * pairs * head_dim


def _least_bytes(call: Call) -> float:
    tensors = [*call.inputs, call.inputs[0]] + ([] if call.mask is None else [call.mask])
    return float(sum(_distinct(x) * x.element_size() for x in tensors))


def _distinct(x: Tensor) -> int:
    """How many elements of memory it has: those of an expanded dimension are one."""
    return math.prod(size for size, stride in zip(x.shape, x.stride(), strict=True) if stride or size == 1)


def _faster_without_options(ops, call: Call) -> Iterator[str]:
    """What would lead to one of the kernels without options; none of those with them has been timed."""
    changes, inputs = [], call.inputs
    if asked := asked_of(call.options):
        changes.append(f"without {', '.join(asked)}")
    if call.layout.width > FASTEST_HEAD_DIM:
        changes.append(f"with head_dim up to {FASTEST_HEAD_DIM}")
        inputs = [x[..., :FASTEST_HEAD_DIM] for x in inputs]
    kernel = kernel_of(ops, *inputs, call.causal, call.scale, call.lower_right, call.mask)
    yield f"presumably {' and '.join(changes)}: {WORDS[kernel]}"


def _faster(ops, call: Call, kernel: str) -> Iterator[str]:
    """Every single change that would lead to a faster kernel."""

    def asked(inputs: list[Tensor], scale: float, mask: Tensor | None) -> str:
        return kernel_of(ops, *inputs, call.causal, scale, call.lower_right, mask)

    def fresh(x: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
        return torch.empty((*x.shape[:-1], head_dim), dtype=dtype, device=x.device)

    inputs, head_dim, dtype = call.inputs, call.inputs[0].size(-1), call.inputs[0].dtype
    rounded = -(-head_dim // 8) * 8
    changes: dict[str, Callable[[], str]] = {
        "without attn_mask": lambda: asked(inputs, call.scale, None),
        "with a positive scale": lambda: asked(inputs, abs(call.scale) or 1.0, call.mask),
        "with contiguous inputs whose memory begins at a multiple of 16 bytes": lambda: asked(
            [fresh(x, head_dim, dtype) for x in inputs], call.scale, call.mask
        ),
        f"with contiguous inputs of head_dim {rounded}, filled up with zeros and with the same scale": lambda: asked(
            [fresh(x, rounded, dtype) for x in inputs], call.scale, call.mask
        ),
        "in float16 or bfloat16": lambda: asked(
            [fresh(x, head_dim, torch.bfloat16) for x in inputs], call.scale, call.mask
        ),
    }
    for words, ask in changes.items():
        found = ask()
        if RANKS[found] < RANKS[kernel]:
            yield f"{words}: {WORDS[found]}"
