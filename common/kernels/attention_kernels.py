"""Which kernel computes a call of attention.

    attend(query, key, value, Options(is_causal=True))      runs the chosen kernel
    choice(call), passed_over(call)                         its name, and why faster ones do not support the call

KERNELS lists them, the fastest first; unless Options.kernel is given, the first that supports the call is chosen. A
call is examined once: _ready has the operator for later calls like it. With short sequences host time dominates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from common.compiling.derivatives import refuse_forward_mode
from common.kernels.attention_call import (
    NO_WINDOW,
    Call,
    Options,
    alternatives,
    as_autocast,
    check_dtypes,
    check_head_dim,
    check_places,
    check_sinks,
    padded,
    with_rows,
)
from common.kernels.attention_gradients import RULES, below_autograd, operators_of, run, transforming
from common.kernels.loaded import BACKENDS
from common.reference.scale import scale_or_default

FLASH_HEAD_DIM, MAX_HEAD_DIM = 128, 256
MOST_READY = 1024
_ready: dict[tuple, tuple] = {}  # by _signature: folder, operator, its arguments after value, whether for a gradient


@dataclass(frozen=True)
class Kernel:
    """Attributes:
    refuses: why it does not support a call; "" if it does.
    operator: how to compute a call: a folder of common/kernels, the operator's name there, its arguments.
    """

    refuses: Callable[[Call], str]
    operator: Callable[[Call], tuple[str, str, tuple]]


def attend(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor | tuple[Tensor, Tensor]:
    """Attention by the chosen kernel. Arguments, result and errors: common.kernels.attention.attention."""
    signature = _signature(query, key, value, options)
    if found := signature and _ready.get(signature):
        room, name, others, gradients = found
        out, lse = _launched(room, name, (query, key, value, *others), gradients)
        return (out, lse) if options.return_lse else out
    call = Call.of(query, key, value, options)
    refuse_forward_mode("attention", [x for x in (query, key, value, options.sinks) if x is not None])
    if call.empty:
        return call.empty_result()
    room, name, arguments = KERNELS[choice(call)].operator(call)
    if signature and arguments[0] is query and arguments[1] is key and arguments[2] is value:
        if len(_ready) >= MOST_READY:
            _ready.clear()
        _ready[signature] = room, name, arguments[3:], call.gradients
    return call.result(*_launched(room, name, arguments, call.gradients))


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, options: Options
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention within packed sequences. See common.kernels.attention.attention_varlen."""
    boundaries = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}
    check_places(query=query, key=key, value=value, sinks=options.sinks, **boundaries)
    for name, x in boundaries.items():
        if x.is_floating_point() or x.is_complex():
            raise ValueError(f"{name} has dtype {x.dtype}; it must be an integer one")
    query, key, value = as_autocast(query, key, value)
    check_dtypes(query, key, value)
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() != 3:
            raise ValueError(f"{name} has shape {list(x.shape)}; it must be [total, heads, head_dim]")
    check_head_dim(query, key)
    check_sinks(options.sinks, query.size(1))
    numbers = [x.int().contiguous() for x in boundaries.values()]
    if query.device.type == "cpu" and not torch.compiler.is_compiling():  # on a GPU this would synchronize
        for (name, rows), x in zip((("query", query), ("key", key)), numbers, strict=True):
            _check_boundaries(f"cu_seqlens_{name[0]}", x, name, rows)
    refuse_forward_mode("attention", [x for x in (query, key, value, options.sinks) if x is not None])
    value_head_dim, scale = value.size(-1), scale_or_default(options.scale, max(query.size(-1), 1))
    width = max(query.size(-1), value_head_dim)
    rows = [with_rows(padded(x, width)) for x in (query, key, value)]
    asked = options.is_causal, scale, options.lower_right, options.deterministic, *_last(options, query.device)
    needed = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*rows, options.sinks))
    out, lse = _launched("flash", "packed_attention", (*rows, *numbers, *asked), needed)
    out = out[..., :value_head_dim].contiguous()
    return (out, lse) if options.return_lse else out


def choice(call: Call) -> str:
    """The name of the kernel, one of KERNELS.

    Raises:
        ValueError: no such kernel, or none that supports the call.
    """
    wanted = call.options.kernel
    if wanted is not None and wanted not in KERNELS:
        raise ValueError(f"kernel is {wanted!r}; it must be None (the fastest that can) or {alternatives(KERNELS)}")
    names = CHOSEN_FROM if wanted is None else (wanted,)
    reasons = []
    for name in names:
        why = KERNELS[name].refuses(call)
        if not why:
            return name
        reasons.append(f"{name!r} ({why})")
    raise ValueError(f"no kernel takes this call: {', '.join(reasons)}")


def passed_over(call: Call) -> dict[str, str]:
    """The kernels before the chosen one, and why they do not support the call; "sparse" only if there is a pattern."""
    names = CHOSEN_FROM[: CHOSEN_FROM.index(choice(call))] if call.options.kernel is None else ()
    sparse = call.options.key_stride > 1 or call.options.window_size != NO_WINDOW
    return {name: KERNELS[name].refuses(call) for name in names if sparse or name != "sparse"}


def flash_arguments(call: Call) -> tuple:
    """The arguments for the operators of common/kernels/flash."""
    options, strided = call.options, slice(call.options.key_offset, None, call.options.key_stride)
    key, value = (x[:, :, strided] if options.key_stride > 1 else x for x in (call.key, call.value))
    positions = (options.key_stride, options.key_offset) if call.is_causal else (1, 0)
    asked = call.is_causal, call.scale, call.lower_right, call.attn_mask
    dense = call.query, key, value, *asked, options.kernel != "flash_fp32", *positions, options.deterministic
    return (*dense, *_last(options, call.query.device)) if options.used else dense


def new_seed(device: torch.device) -> Tensor:
    """A seed from PyTorch's generator for this device: int64 [1]. Does not synchronize with the device."""
    return torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=device)


def _flash_refuses(call: Call) -> str:
    options = call.options
    if options.key_stride > 1 and (options.used or call.attn_mask is not None or call.lower_right):
        others = "lower_right" if call.lower_right else "attn_mask"
        return f"key_stride is {options.key_stride} with {options.used[0] if options.used else others}"
    return _wide(call, MAX_HEAD_DIM)


def _flash_fp32_refuses(call: Call) -> str:
    return _flash_refuses(call) or (call.options.used_words or (_wide(call, FLASH_HEAD_DIM),))[0]


def _flash_operator(call: Call) -> tuple[str, str, tuple]:
    returns_lse = call.options.used or call.options.return_lse or call.gradients or transforming()
    return "flash", "flash_attention_forward" if returns_lse else "flash_attention", flash_arguments(call)


def _sparse_refuses(call: Call) -> str:
    options, (left, right) = call.options, call.options.window_size
    if options.key_stride == 1 and (left < 0 or not (call.is_causal or left == right)):
        return "it has keys at a stride, and windows that are causal or equally wide to both sides"
    if options.key_stride > 1 and options.window_size != NO_WINDOW:
        return f"key_stride is {options.key_stride} with window_size"
    others = [words for words in options.used_words if not words.startswith("window_size")]
    if others or call.attn_mask is not None:
        return (others or ["attn_mask is given"])[0]
    if call.lower_right:
        return "lower_right is True"
    if call.query.dtype == torch.float32:
        return "query has dtype torch.float32"
    if call.gradients or transforming():
        return "a gradient may be asked for"
    return _wide(call, FLASH_HEAD_DIM)


def _sparse_operator(call: Call) -> tuple[str, str, tuple]:
    options = call.options
    if options.key_stride > 1:
        name, asked = "strided_attention", (options.key_stride, options.key_offset, call.is_causal)
    else:
        name, asked = "sliding_window_attention", (options.window_size[0] + 1, call.is_causal)
    name = f"{name}_forward" if options.return_lse else name
    return "sparse", name, (call.query, call.key, call.value, *asked, call.scale)


KERNELS = {
    "sparse": Kernel(_sparse_refuses, _sparse_operator),
    "flash": Kernel(_flash_refuses, _flash_operator),
    "flash_fp32": Kernel(_flash_fp32_refuses, _flash_operator),  # float32 without tensor cores
}
CHOSEN_FROM = ("sparse", "flash")


def _signature(query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple | None:
    """Everything that determines the operator for these tensors and its other arguments; None: examine a Call."""
    forward_mode = getattr(forward_ad, "_current_level", 0) >= 0  # a private name of torch; without it, examine a Call
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or transforming() or forward_mode:
        return None
    tensors = not (options.attn_mask is options.sinks is options.seed is None) or isinstance(options.scale, Tensor)
    if tensors or options.dropout_p:  # its seed is new each time
        return None
    given = tuple(vars(options).values())
    for x in (query, key, value):
        if type(x) is not Tensor or x.is_nested or x.layout is not torch.strided or x.dim() != 4:
            return None
        given += x.shape, x.stride(3), x.dtype, x.device, x.requires_grad
    kind = query.device.type
    cast = kind in BACKENDS and torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind)
    return *given, cast, torch.is_grad_enabled()


def _launched(room: str, name: str, arguments: tuple, gradients: bool) -> tuple[Tensor, Tensor | None]:
    """(out, lse) of an operator; lse is None where it returns none."""
    operators = operators_of(room, arguments[0].device)
    if (name in RULES and gradients) or transforming():
        return run(operators, name, arguments, gradients)
    compiling = torch.compiler.is_compiling()  # uses the autograd formula
    out = getattr(operators, name)(*arguments) if compiling else below_autograd(operators, name, *arguments)
    return out if isinstance(out, tuple) else (out, None)


def _wide(call: Call, most: int) -> str:
    width = call.query.size(-1)
    return f"head_dim is {width}, over {most}" if width > most else ""


def _last(options: Options, device: torch.device) -> tuple:
    """The arguments of the operators of common/kernels/flash from softcap on."""
    sinks = None if options.sinks is None else options.sinks.float().contiguous()
    seed = new_seed(device) if options.dropout_p > 0 and options.seed is None else options.seed
    return options.softcap, sinks, options.dropout_p, seed, *options.window_size


def _check_boundaries(name: str, numbers: Tensor, rows_name: str, rows: Tensor) -> None:
    """Refuses values that are not sequence boundaries; the operator refuses other shapes."""
    if numbers.dim() != 1 or numbers.size(0) < 2:
        return
    at = numbers.tolist()
    if at[0] != 0:
        raise ValueError(f"{name}[0] is {at[0]}; the first sequence begins at 0")
    for i in range(1, len(at)):
        if at[i - 1] > at[i]:
            raise ValueError(f"{name}[{i - 1}] is {at[i - 1]} and {name}[{i}] is {at[i]}; they must not fall")
    if at[-1] != rows.size(0):
        raise ValueError(
            f"{name}[{len(at) - 1}] is {at[-1]}; it must be the number of rows of {rows_name}, {rows.size(0)}"
        )
