"""Attention with options, on the device of the tensors, forward and backward: float32, float16 and bfloat16.

    options_attention(query, key, value, causal=True, softcap=50.0)            [batch, heads, S_q, head_dim]
    options_attention(query, key, value, causal=True, sinks=sinks)
    options_attention(query, key, value, window_size=(100, 20))
    packed_attention(query, key, value, cu_seqlens, causal=True)               [total, heads, head_dim]
    block_attention(query, key, value, counts, columns, block=64)              listed blocks of keys
    dropout_mask(seed, dropout_p, batch, heads, S_q, S_k)                      what dropout keeps

The first call on a device builds the kernels. All three are differentiable and go through torch.compile without a graph
break. block_attention gives the same bits every time, the others with deterministic=True. torch.func's grad and vmap
work; forward mode and second derivatives are refused.

Sources: FlashAttention-2 (Dao 2023, arXiv:2307.08691); softcap: Gemma 2 (Riviere et al. 2024, arXiv:2408.00118);
sinks: OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025, arXiv:2508.10925); dropout: Srivastava et al. 2014, on the
weights after the softmax as PyTorch's scaled_dot_product_attention has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import torch
from torch import Tensor

from common.compiling.derivatives import refuse_forward_mode
from common.compiling.operators import Operators
from common.kernels.flash.transforms import transforming
from common.kernels.flash_options.options_transforms import (
    NO_MASK_GRADIENT,
    NO_SECOND_DERIVATIVE,
    PLACES,
    WHAT,
    Forward,
    Plain,
    fixed_order,
)
from common.kernels.loaded import loaded

MAX_HEAD_DIM = 256
NO_WINDOW = (-1, -1)
_registered: set[str] = set()  # namespaces of torch.ops
_operators: dict[str, object] = {}  # by the kind of device; a plain dictionary: torch.compile sees through it


def options_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    lower_right: bool = False,
    mask: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    deterministic: bool = False,
) -> Tensor:
    """dropout(softmax(scores, a sink among them)) @ value, scores = softcap * tanh(scale * query @ key^T / softcap).

    Memory grows with S_q + S_k; scores, softmax and sums are float32. Nothing is copied, but a 16-bit mask and 16-bit
    sinks, which are converted to float32. Hidden keys may hold anything, NaN and infinity included.

    Args:
        query: [batch, heads, S_q, head_dim], float32, float16 or bfloat16, on the CPU (the simulator) or a GPU;
            head_dim is 1 .. 256. Any strides whose rows are contiguous.
        key, value: [batch, kv_heads, S_k, head_dim], of query's dtype, likewise; heads is a multiple of kv_heads.
        causal: query i sees the keys j <= i, or j <= i + S_k - S_q with lower_right.
        scale: what the products are multiplied by, without unit; 1 / sqrt(head_dim) when None.
        mask: bool (True: attend) or floating-point (added to the capped scores), broadcasts to
            [batch, heads, S_q, S_k]. With causal both hold. It gets no gradient.
        softcap: scores stay between -softcap and softcap; 0: none.
        sinks: [heads], floating-point: a score of each head that belongs to no key. It joins the softmax's denominator.
        dropout_p: the probability with which a weight becomes 0, 0 or more and less than 1. The kernels round it to a
            multiple of 1 / 256 (quantized_dropout) and multiply the other weights by 1 / (1 - that).
        seed: [1], int64, on query's device: with the same one the same weights are left out. None: drawn from PyTorch's
            generator for that device, so that torch.manual_seed makes it reproducible.
        window_size: (left, right), in keys: query i sees the keys i - left ... i + right, or with lower_right the keys
            i + S_k - S_q - left ... i + S_k - S_q + right; -1: no such end. With causal and a mask all hold.
        deterministic: the gradient of query has the same bits every time. Without it, and unless
            torch.use_deterministic_algorithms(True) holds in the backward pass, its last bits may vary from run to run
            on Hopper GPUs. All other results have the same bits anyway.

    Returns:
        [batch, heads, S_q, head_dim] of query's dtype, contiguous; zeros for a query that may see no key. Gradients
        flow to query, key, value and sinks.

    Raises:
        ValueError: an argument that the kernels do not take; the message names it, its value and what is allowed.
        NotImplementedError: forward mode (torch.func.jvp).
        BuildError, ToolchainError: the kernels cannot be built here; see common.compiling.load.build.
    """
    _check_mask(mask)
    mask = mask.float() if mask is not None and mask.dtype in (torch.float16, torch.bfloat16) else mask
    operators, sinks, seed = _prepared(query, key, value, sinks, dropout_p, seed, mask=mask)
    window = checked_window(window_size)
    options = causal, scale, lower_right, mask, softcap, sinks, dropout_p, seed, *window, deterministic
    return _run(operators, "options_attention", query, key, value, *options)


def packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    lower_right: bool = True,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: Tensor | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    deterministic: bool = False,
) -> Tensor:
    """options_attention of sequences of different lengths that stand one behind the other, without padding.

    Where the sequences begin is read on the device: nothing waits for it, and no longest length is asked for.

    Args:
        query: [total_q, heads, head_dim], see options_attention.
        key, value: [total_k, kv_heads, head_dim].
        cu_seqlens_q: [batch + 1], int32, on query's device: sequence b has the rows cu_seqlens_q[b] ...
            cu_seqlens_q[b + 1] - 1; 0 in front, total_q at the end. On a GPU this is not looked at: other numbers give
            wrong results, though nothing outside the tensors is read or written.
        cu_seqlens_k: the same of key and value; None: cu_seqlens_q.
        causal: query i of a sequence sees its keys j <= i + its keys - its rows, or j <= i without lower_right.
        scale, softcap, sinks, dropout_p, seed: as of options_attention.
        window_size: as of options_attention, within each sequence.
        deterministic: as of options_attention.

    Returns:
        [total_q, heads, head_dim] of query's dtype, contiguous; zeros for a query that may see no key. Gradients flow
        to query, key, value and sinks.

    Raises:
        As options_attention.
    """
    cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
    boundaries = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    if query.device.type == "cpu" and not torch.compiler.is_compiling():  # a GPU would have to be waited for
        _check_boundaries("cu_seqlens_q", cu_seqlens_q, "query", query)
        _check_boundaries("cu_seqlens_k", cu_seqlens_k, "key", key)
    operators, sinks, seed = _prepared(query, key, value, sinks, dropout_p, seed, **boundaries)
    window = checked_window(window_size)
    options = causal, scale, lower_right, softcap, sinks, dropout_p, seed, *window, deterministic
    return _run(operators, "packed_attention", query, key, value, cu_seqlens_q, cu_seqlens_k, *options)


def block_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    counts: Tensor,
    columns: Tensor,
    block: int,
    causal: bool = False,
    scale: float | None = None,
    forward: Callable | None = None,
) -> Tensor:
    """softmax(scale * query @ key^T) @ value where a block of queries sees the blocks of keys in its list.

    What is in no list is not read, forward and backward. The lists are looked at by the kernels alone: numbers that are
    no block of keys, or do not ascend, hide keys at will, but nothing outside the tensors is read.

    Args:
        query: [batch, heads, S_q, head_dim], see options_attention; head_dim is 1 .. 128. S_q and S_k are multiples of
            block.
        key, value: [batch, kv_heads, S_k, head_dim], likewise.
        counts: int32 [heads, S_q / block]: how many blocks of keys a block of queries sees.
        columns: int32 [heads, S_q / block, S_k / block]: their numbers, ascending; what is behind counts is not read.
            (compress_block_mask of common/kernels/sparse makes both of a mask.)
        block: rows and keys of a block: 32, 64, 96 or 128.
        causal: query i sees of these keys those at positions j <= i as well.
        scale: as of options_attention.
        forward: what computes (out, lse) of the arguments before it, in place of this room's kernel, unless
            torch.compile does. None: that kernel.

    Returns:
        [batch, heads, S_q, head_dim] of query's dtype, contiguous; zeros for a query that sees no key. Gradients flow
        to query, key and value; they have the same bits every time.

    Raises:
        As options_attention.
    """
    operators, *_ = _prepared(query, key, value, None, 0.0, None, counts=counts, columns=columns)
    if forward is not None and not torch.compiler.is_compiling():
        backward = operators.block_attention_backward
        operators = SimpleNamespace(block_attention=forward, block_attention_backward=backward)
    return _run(operators, "block_attention", query, key, value, counts, columns, block, causal, scale)


def dropout_mask(seed: Tensor, dropout_p: float, batch: int, heads: int, seq_q: int, seq_k: int) -> Tensor:
    """Which weights the two functions above keep with this seed and probability.

    Element (b, h, i, j) belongs to query i and key j, both counted from the beginning of sequence b, whatever the other
    sizes are.

    Args:
        seed: [1], int64, on the CPU (the simulator) or a GPU.
        dropout_p: more than 0 and less than 1.
        batch, heads, seq_q, seq_k: 1 or more.

    Returns:
        bool [batch, heads, seq_q, seq_k]: False with the probability quantized_dropout(dropout_p).

    Raises:
        ValueError: as said above.
    """
    return _operators_of(seed.device).dropout_mask(seed, dropout_p, batch, heads, seq_q, seq_k)


def quantized_dropout(dropout_p: float) -> float:
    """The probability that the kernels use: the nearest multiple of 1 / 256, at least 1 / 256 where dropout_p is not 0,
    at most 255 / 256."""
    return 0.0 if dropout_p == 0 else min(max(math.floor(256 * dropout_p + 0.5), 1), 255) / 256


def new_seed(device: torch.device) -> Tensor:
    """A seed from PyTorch's generator for this device: int64 [1]. Nothing waits for the device."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=device)


def kernel_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool = False,
    scale: float | None = None,
    lower_right: bool = False,
    mask: Tensor | None = None,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    window_size: tuple[int, int] = NO_WINDOW,
) -> str:
    """Which kernel computes options_attention of the same arguments, forward. Runs none.

    Returns:
        "options wgmma" (float16 and bfloat16 on Hopper GPUs), "options mma" (float16 and bfloat16, on tensor cores) or
        "options fp32".

    Raises:
        As options_attention.
    """
    mask = mask.float() if mask is not None and mask.dtype in (torch.float16, torch.bfloat16) else mask
    seed = torch.zeros(1, dtype=torch.int64, device=query.device) if dropout_p > 0 else None
    operators, sinks, seed = _prepared(query, key, value, sinks, dropout_p, seed, mask=mask)
    options = causal, scale, lower_right, mask, softcap, sinks, dropout_p, seed, *checked_window(window_size)
    return f"options {operators.options_attention_kernel(query, key, value, *options)}"


def loaded_operators() -> list[torch._ops.OpOverload]:
    """The forward operators that calls have loaded so far."""
    names = "options_attention", "packed_attention"
    return [getattr(operators, name).default for operators in _operators.values() for name in names]


def _check_mask(mask: Tensor | None) -> None:
    if mask is not None and mask.requires_grad and torch.is_grad_enabled():
        raise ValueError(NO_MASK_GRADIENT)


def checked_window(window_size: tuple[int, int]) -> tuple[int, int]:
    """window_size, refused where it is not two numbers of -1 or more."""
    numbers = isinstance(window_size, (tuple, list)) and len(window_size) == 2
    if not numbers or not all(isinstance(x, int) and not isinstance(x, bool) and x >= -1 for x in window_size):
        raise ValueError(
            f"window_size is {window_size!r}; it must be (left, right), integers of 0 or more, or -1: no such end"
        )
    return tuple(window_size)


def _check_boundaries(name: str, cu_seqlens: Tensor, rows_name: str, rows: Tensor) -> None:
    """Refuses numbers that are no boundaries of sequences; other shapes and dtypes the operator refuses."""
    if rows.dim() != 3 or cu_seqlens.dim() != 1 or cu_seqlens.size(0) < 2 or cu_seqlens.dtype != torch.int32:
        return
    numbers = cu_seqlens.tolist()
    if numbers[0] != 0:
        raise ValueError(f"{name}[0] is {numbers[0]}; the first sequence begins at 0")
    for i, (one, other) in enumerate(pairwise(numbers)):
        if one > other:
            raise ValueError(f"{name}[{i}] is {one} and {name}[{i + 1}] is {other}; they must not fall")
    if numbers[-1] != rows.size(0):
        raise ValueError(
            f"{name}[{len(numbers) - 1}] is {numbers[-1]}; it must be the number of rows of {rows_name}, {rows.size(0)}"
        )


def _run(operators, name: str, *arguments) -> Tensor:
    if torch.compiler.is_compiling():
        return getattr(operators, name)(*arguments)[0]
    return (Forward if transforming() else Plain).apply(operators, name, *arguments)[0]


def _prepared(query, key, value, sinks, dropout_p, seed, **others):
    """The operators; sinks in float32; a seed where one is needed."""
    tensors = {"query": query, "key": key, "value": value, "sinks": sinks, "seed": seed, **others}
    refuse_forward_mode(WHAT, [x for x in tensors.values() if x is not None])
    for name, x in tensors.items():
        if x is not None and x.device.type != query.device.type:
            raise ValueError(f"{name} is on {x.device.type!r}; it must be on query's, {query.device.type!r}")
    if sinks is not None and not sinks.is_floating_point():
        raise ValueError(f"sinks has dtype {sinks.dtype}; it must be a floating-point one")
    sinks = None if sinks is None else sinks.float().contiguous()
    return _operators_of(query.device), sinks, new_seed(query.device) if dropout_p > 0 and seed is None else seed


def _operators_of(device: torch.device):
    if device.type not in _operators:
        ops = loaded("flash_options", device)
        register(ops)
        _operators[device.type] = getattr(torch.ops, ops.libraries[0].name)
    return _operators[device.type]


def register(ops: Operators) -> None:
    """Tells PyTorch the gradients of these operators; once is enough, more does no harm."""
    namespace = ops.libraries[0].name
    if namespace in _registered:
        return
    operators = getattr(torch.ops, namespace)

    def remember_as(leading: int, mask_at: int | None):
        def remember(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
            tensors, options = inputs[:leading], list(inputs[leading:])
            if mask_at is not None and inputs[mask_at] is not None and ctx.needs_input_grad[mask_at]:
                raise ValueError(NO_MASK_GRADIENT)
            kept = [i for i, x in enumerate(options) if isinstance(x, Tensor)]
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(*tensors, *output, *(options[i] for i in kept))
            ctx.kept, ctx.leading = kept, leading
            ctx.options = [None if i in kept else x for i, x in enumerate(options)]

        return remember

    def backward_of(name: str):
        def backward(ctx, grad_out: Tensor, *_) -> tuple:
            saved = ctx.saved_tensors
            query, key, value, *boundaries = saved[: ctx.leading]
            out, lse, *kept = saved[ctx.leading :]
            options = list(ctx.options)
            for i, x in zip(ctx.kept, kept, strict=True):
                options[i] = x
            if grad_out.stride(-1) != 1:  # the gradient of a sum is one number, expanded
                grad_out = grad_out.contiguous()
            arguments = grad_out, query, key, value, out, lse, *boundaries, *fixed_order(name, options)
            grads = getattr(operators, f"{name}_backward")(*arguments)
            return PLACES[name].with_sinks(grads, [*boundaries, *options])

        return backward

    def no_second_derivative(ctx, *_) -> None:
        raise NotImplementedError(NO_SECOND_DERIVATIVE)

    for name, at in PLACES.items():
        backward, remember = backward_of(name), remember_as(at.leading, at.mask)
        torch.library.register_autograd(f"{namespace}::{name}", backward, setup_context=remember)
        torch.library.register_autograd(f"{namespace}::{name}_backward", no_second_derivative)
    _registered.add(namespace)
