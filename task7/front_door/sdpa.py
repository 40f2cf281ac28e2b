"""The front door to the kernels of tasks 1, 2 and 4: in place of torch.nn.functional.scaled_dot_product_attention.

    scaled_dot_product_attention(query, key, value, is_causal=True, mode="tiled")
    CUDAAttention(is_causal=True, mode="flash", variant="tuned")(query, key, value)      the same as a module

    mode      kernels             variants                     masks       computes in            head_dim
    naive     task 1              student, solution            any         float32                any
    tiled     task 2              student, solution            any         float32                any
    flash     task 4              student, solution            is_causal   float32                up to 128
    flash     task 4              tuned: has gradients         any         the inputs' dtype      up to 256

Without a variant it is the solution's kernels; for what those of flash cannot do, masks, gradients, softcap, sinks,
dropout and windows, the tuned ones. These have kernels of their own for the last four, and for head_dim over 128
(common/kernels/flash_options).
The tensors' device chooses the backend: the simulator for the CPU, nvcc's kernels for a GPU. The operators are built
and loaded when they are first asked for, and kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.attention.bias import CausalBias, CausalVariant

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.kernels.flash import flash
from common.kernels.flash_options import flash_options
from common.reference.oracle import scale_or_default
from task7.front_door.attention_layout import KernelLayout

BACKENDS = {"cpu": "simulator", "cuda": "cuda"}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Kernels:
    """What the kernels behind a mode can do.

    Attributes:
        task, operator: "task1", "naive_attention": see common/README.md.
        masks: whether they take a mask.
        lower_right: whether they align a causal mask to the lower right.
        sixteen_bit: whether they read float16 and bfloat16; otherwise float32 only.
        tuned: whether they are the tuned ones, with gradients, any strides and fewer heads of keys than of queries.
        max_head_dim: None for no limit.
    """

    task: str
    operator: str
    masks: bool = True
    lower_right: bool = False
    sixteen_bit: bool = False
    tuned: bool = False
    max_head_dim: int | None = None


MODES = {
    "naive": Kernels("task1", "naive_attention", sixteen_bit=True),
    "tiled": Kernels("task2", "attention"),
    "flash": Kernels("task4", "flash_attention", masks=False, lower_right=True, max_head_dim=128),
}
VARIANTS = tuple(one.value for one in Variant)  # torch.compile does not follow iteration over the enumeration itself
TUNED_MODES = {
    "flash": Kernels("task4", "flash_attention", lower_right=True, sixteen_bit=True, tuned=True, max_head_dim=256)
}
NO_WINDOW = flash_options.NO_WINDOW
FASTEST_HEAD_DIM = 128  # up to which common/kernels/flash has tuned kernels


def scaled_dot_product_attention(
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
    deterministic: bool = False,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
    window_size: tuple[int, int] = NO_WINDOW,
    lower_right: bool = False,
) -> Tensor:
    """softmax(query @ key^T * scale + attn_mask) @ value by the kernels of a task, as PyTorch's function of this name.

    Takes what torch.nn.functional.scaled_dot_product_attention takes, with the same results, or refuses it: the error
    says what to do instead. Under torch.autocast the inputs are cast as PyTorch casts them. Under torch.compile and
    torch.export there is no graph break once the kernels are loaded: call it once before. torch.func.grad and vmap work
    with the tuned kernels, vmap in one launch; with the others vmap loops over the samples, of which PyTorch warns.
    softcap, sinks, dropout, windows and head_dim over 128 have tuned kernels of their own, where vmap goes from sample
    to sample with sinks or dropout.
    NaN and infinity at hidden keys reach the rows that do not see them in no result and no gradient of tuned kernels.
    In results of the other variants they do, as 0 times NaN.

    Before the kernels run, these are copied: inputs that are not contiguous, broadcast ones included (tuned: those
    whose rows are not contiguous); float16 and bfloat16 inputs of the modes tiled and flash, converted to float32, and
    their result converted back (not tuned); keys and values repeated for enable_gqa (not tuned); rows that get zeros
    because value_head_dim is not head_dim; with over four dimensions what cannot be viewed as four.

    Args:
        query: [..., S_q, head_dim], float32, float16 or bfloat16, on the CPU or a GPU, of any strides. Any number of
            batch dimensions, none included; the last of them are the heads. Those of query, key and value broadcast.
        key: [..., S_k, head_dim], of query's dtype and on its device, like value.
        value: [..., S_k, value_head_dim].
        attn_mask: bool (True: attend), or float32 or query's dtype (added to the scaled scores); of any shape that
            broadcasts to [..., S_q, S_k]. Not together with is_causal. Or PyTorch's
            causal_lower_right(S_q, S_k): query i sees the keys j <= i + S_k - S_q; or its causal_upper_left, which is
            is_causal.
        dropout_p: the probability with which a weight becomes 0, 0 or more and less than 1, also in inference, as in
            PyTorch. Random numbers come from PyTorch's generator, though not the same weights are left out as there.
            In mode "flash" only, tuned.
        is_causal: query i sees the keys j <= i, counted from the first key also where S_q != S_k.
        scale: what the scores are multiplied by, without unit; 1 / sqrt(head_dim) when None.
        enable_gqa: key and value may have fewer heads than query, a divisor of its number; each of theirs serves
            several of query's, one after another.
        mode: "naive", "tiled" or "flash".
        variant: "student" (the task's .cu file), "solution" or "tuned" (flash only); None: "solution", but "tuned" for
            a mask or a gradient with mode "flash".
        deterministic: gradients have the same bits every time; without it query's may differ in the last ones, unless
            torch.use_deterministic_algorithms(True) holds in the backward pass. The result has them anyway.
        softcap: scores become softcap * tanh(score / softcap), before attn_mask is added; 0: as they are. In mode
            "flash" only, tuned. PyTorch's function has no such argument, and none for sinks.
        sinks: [heads], floating-point, a score of each head that belongs to no key and joins the softmax's denominator;
            or None. It may require a gradient. As softcap.
        window_size: (left, right), in keys, as FlashAttention has it: query i sees the keys i - left ... i + right; -1:
            no such end. With is_causal and a mask all hold. As softcap.
        lower_right: counts is_causal and window_size from the last key, not the first: from i + S_k - S_q on in place
            of i. (FlashAttention does.) attn_mask=causal_lower_right(S_q, S_k) is is_causal with lower_right.

    Returns:
        [..., S_q, value_head_dim] of query's dtype; zeros for a query that may see no key. Gradients flow to query,
        key, value and sinks with mode="flash", unless variant is "student" or "solution".

    Raises:
        ValueError: an argument that is not supported; the message names it, its value and what is allowed.
        TypeError: query, key, value, attn_mask or sinks is no tensor.
        RuntimeError: attn_mask together with is_causal, as in PyTorch.
        NotImplementedError: a student's kernel with unfilled gaps; torch.func where it is refused.
        common.compiling.result.BuildError, common.compiling.toolchain.ToolchainError: the kernels cannot be built.
    """
    others = softcap, sinks, window_size, lower_right
    call = prepared(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, mode, variant, *others)
    if call.layout.empty:
        return call.layout.empty_result()
    if call.options is not None:
        out = flash_options.options_attention(
            *call.inputs,
            call.causal,
            call.scale,
            call.lower_right,
            call.mask,
            **call.options,
            deterministic=deterministic,
        )
        return call.layout.result(out)
    ops = operators(mode, call.variant, BACKENDS[query.device.type])
    if call.kernels.tuned:
        out = flash.flash_attention(
            ops,
            *call.inputs,
            call.causal,
            call.scale,
            lower_right=call.lower_right,
            mask=call.mask,
            deterministic=deterministic,
        )
    else:
        last = [call.mask] if call.kernels.masks else [call.lower_right]
        out = getattr(ops, call.kernels.operator)(*call.inputs, call.causal, call.scale, *last)
    return call.layout.result(out.to(call.dtype))


@dataclass(frozen=True)
class Call:
    """A call as the kernels get it.

    Attributes:
        kernels, variant: what runs.
        layout: how the inputs become four-dimensional, and the output what it should be.
        inputs: query, key, value, [batch, heads, rows, width], in the dtype and layout that the kernels read.
        causal, lower_right: of flash_attention's.
        mask: bool or float32, four-dimensional; None for none.
        scale: what the scores are multiplied by.
        dtype: of the result.
        options: softcap, sinks, dropout_p and window_size, for the kernels that have them; None where others do.
    """

    kernels: Kernels
    variant: str
    layout: KernelLayout
    inputs: list[Tensor]
    causal: bool
    lower_right: bool
    mask: Tensor | None
    scale: float
    dtype: torch.dtype
    options: dict[str, object] | None


def prepared(
    query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, mode, variant, softcap, sinks, window_size,
    lower_right,
) -> Call:  # fmt: skip
    """Everything that scaled_dot_product_attention does before a kernel runs. Arguments and errors: see there."""
    check_flags(dropout_p, is_causal, softcap, lower_right)
    if attn_mask is not None and is_causal:
        raise RuntimeError(
            "attn_mask is given and is_causal is True; only one of them may be: put the causal mask into attn_mask, "
            "for a bool one attn_mask & torch.ones(S_q, S_k, dtype=torch.bool).tril()"
        )
    window_size = flash_options.checked_window(window_size)
    options = {"softcap": softcap, "sinks": sinks, "dropout_p": dropout_p, "window_size": window_size}
    asked = asked_of(options)
    bias = attn_mask if isinstance(attn_mask, CausalBias) else None
    attn_mask = None if bias is not None else attn_mask
    if variant is None:
        variant = _default_variant(mode, query, key, value, attn_mask, asked)
    kernels = kernels_of(mode, variant)
    if asked and not kernels.tuned:
        raise ValueError(
            f"{_given(options, asked[0])}, and mode {mode!r} with variant {variant!r} has no {asked[0]}: use "
            "mode='flash' with variant='tuned'"
        )
    check_places(query=query, key=key, value=value, attn_mask=attn_mask, sinks=sinks)
    query, key, value, attn_mask = as_autocast(query, key, value, attn_mask)
    check_dtypes(query, key, value, attn_mask)
    layout = KernelLayout(query, key, value, enable_gqa, grouped=kernels.tuned)
    shift = key.size(-2) - query.size(-2)
    if bias is not None:
        if lower_right and bias.variant == CausalVariant.UPPER_LEFT:
            raise ValueError("lower_right is True and attn_mask is causal_upper_left; only one of them may be")
        is_causal, lower_right = True, _is_lower_right(bias, query, key)
    lower_right = lower_right and shift != 0
    if is_causal and lower_right and not kernels.lower_right:
        attn_mask = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril(shift)
        is_causal = lower_right = False
    mask = None if attn_mask is None else layout.mask(attn_mask)
    _check_kernels(kernels, f"mode {mode!r} with variant {variant!r}", layout, attn_mask)
    check_sinks(sinks, layout.batch[-1] if layout.batch else 1)
    # the kernels may see a larger head_dim: value's
    scale = scale_or_default(scale, max(query.size(-1), 1))
    inputs = []
    if not layout.empty:
        inputs = [x if kernels.sixteen_bit else x.float() for x in layout.inputs()]
        inputs = [x if kernels.tuned and x.stride(-1) == 1 else x.contiguous() for x in inputs]
    if not asked and not (kernels.tuned and layout.width > FASTEST_HEAD_DIM):
        options = None
    return Call(kernels, variant, layout, inputs, is_causal, lower_right, mask, scale, query.dtype, options)


def asked_of(options: dict[str, object]) -> list[str]:
    """Which of softcap, sinks, dropout and window_size a call asks for, in words."""
    nothing = {"softcap": 0, "dropout_p": 0, "window_size": NO_WINDOW}
    asked = [name for name, x in options.items() if (x is not None if name == "sinks" else x != nothing[name])]
    return ["dropout" if name == "dropout_p" else name for name in asked]


def _given(options: dict[str, object], asked: str) -> str:
    """ "dropout_p is 0.1" """
    if asked == "sinks":
        return "sinks are given"
    name = "dropout_p" if asked == "dropout" else asked
    return f"{name} is {options[name]}"


class CUDAAttention(nn.Module):
    """scaled_dot_product_attention as a module, without parameters: CUDAAttention(is_causal=True, mode="tiled").

    Args:
        is_causal, scale, enable_gqa, mode, variant, deterministic, softcap, window_size, lower_right: see
            scaled_dot_product_attention.
        dropout_p: the same, while the module is in training mode; after eval() there is no dropout.

    Raises:
        ValueError: no such mode or variant.
    """

    def __init__(
        self,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        *,
        mode: str = "flash",
        variant: str | None = None,
        deterministic: bool = False,
        softcap: float = 0.0,
        dropout_p: float = 0.0,
        window_size: tuple[int, int] = NO_WINDOW,
        lower_right: bool = False,
    ) -> None:
        super().__init__()
        kernels_of(mode, "solution" if variant is None else variant)
        self.options = {
            "is_causal": is_causal,
            "scale": scale,
            "enable_gqa": enable_gqa,
            "mode": mode,
            "variant": variant,
            "deterministic": deterministic,
            "softcap": softcap,
            "window_size": window_size,
            "lower_right": lower_right,
        }
        self.dropout_p = dropout_p

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Shapes, result and errors: see scaled_dot_product_attention."""
        dropout_p = self.dropout_p if self.training else 0.0
        return scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, sinks=sinks, **self.options)

    def extra_repr(self) -> str:
        options = self.options | {"dropout_p": self.dropout_p}
        return ", ".join(f"{name}={option!r}" for name, option in options.items())


def _default_variant(mode: str, query, key, value, attn_mask, asked: list[str]) -> str:
    """ "tuned" where the taught kernels cannot do it and tuned ones can, else "solution"."""
    gradients = torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in (query, key, value))
    return "tuned" if mode in TUNED_MODES and (attn_mask is not None or gradients or asked) else "solution"


def kernels_of(mode: str, variant: str) -> Kernels:
    """What is behind a mode and a variant. ValueError if there is nothing."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; it must be {_alternatives(MODES)}")
    if variant not in VARIANTS:
        raise ValueError(f"variant is {variant!r}; it must be {_alternatives(VARIANTS)}")
    modes = TUNED_MODES if variant == "tuned" else MODES
    if mode not in modes:
        raise ValueError(
            f"variant is 'tuned' with mode {mode!r}; only mode {_alternatives(TUNED_MODES)} has tuned kernels for the "
            "whole of attention"
        )
    return modes[mode]


_loaded: dict[tuple[str, str, str], Operators] = {}  # a plain dictionary: torch.compile sees through it


def operators(mode: str, variant: str, backend: str) -> Operators:
    """The operators behind a mode and a variant, built and loaded once. Errors: see common.compiling.load.load."""
    chosen = mode, variant, backend
    if chosen not in _loaded:
        if variant == "tuned":
            _loaded[chosen] = flash.load(backend)
        else:
            _loaded[chosen] = load(BuildRequest(MODES[mode].task, variant, backend))
    return _loaded[chosen]


def loaded_operators() -> dict[tuple[str, str, str], Operators]:
    """Those that calls have loaded so far, by mode, variant and backend."""
    return dict(_loaded)


def as_autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors as PyTorch's function gets them: under autocast, floating-point ones but float64 in its dtype."""
    device = tensors[0].device.type
    if device not in BACKENDS or not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [x.to(dtype) if x is not None and x.dtype in DTYPES else x for x in tensors]


def check_flags(dropout_p: float, is_causal: bool, softcap: float, lower_right: bool = False) -> None:
    """Refuses what is neither True nor False, no probability, and no cap."""
    for name, x in (("is_causal", is_causal), ("lower_right", lower_right)):
        if not isinstance(x, bool):
            raise ValueError(f"{name} is {x!r}; it must be True or False")
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p is {dropout_p}; it must be 0 or more and less than 1")
    if not 0 <= softcap < math.inf:
        raise ValueError(f"softcap is {softcap}; it must be 0 (none) or positive and finite")


def check_sinks(sinks: Tensor | None, heads: int) -> None:
    """Refuses sinks that are not one floating-point number for each head."""
    if sinks is None:
        return
    if sinks.shape != (heads,):
        raise ValueError(f"sinks has shape {list(sinks.shape)}; it must be [heads] = [{heads}]")
    if not sinks.is_floating_point():
        raise ValueError(f"sinks has dtype {sinks.dtype}; it must be a floating-point one")


def check_places(*, query: Tensor, **others: Tensor | None) -> None:
    """Refuses what is no dense tensor on a device with kernels, all on the same one; None but for query, key, value."""
    for name, x in {"query": query, **others}.items():
        if x is None and name not in ("query", "key", "value"):
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is {x!r}; it must be a tensor")
        if x.is_nested or x.layout != torch.strided:
            raise ValueError(f"{name} is {'nested' if x.is_nested else x.layout}; it must be dense (torch.strided)")
        if query.device.type not in BACKENDS:
            raise ValueError(f"query is on the device {str(query.device)!r}; it must be on {_alternatives(BACKENDS)}")
        if x.device != query.device:
            raise ValueError(f"{name} is on the device {str(x.device)!r}; it must be on query's, {str(query.device)!r}")


def _is_lower_right(bias: CausalBias, query: Tensor, key: Tensor) -> bool:
    """Whether the bias is causal_lower_right, not causal_upper_left. ValueError if its sizes are not the scores'."""
    sizes = bias.seq_len_q, bias.seq_len_kv
    if query.dim() < 2 or key.dim() < 2 or sizes != (query.size(-2), key.size(-2)):
        raise ValueError(
            f"attn_mask is a CausalBias of {sizes[0]} queries and {sizes[1]} keys; query has shape {list(query.shape)} "
            f"and key {list(key.shape)}"
        )
    return bias.variant == CausalVariant.LOWER_RIGHT and sizes[0] != sizes[1]


def check_dtypes(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> None:
    """Refuses dtypes that no kernel here takes, and different ones."""
    if query.dtype not in DTYPES:
        raise ValueError(
            f"query has dtype {query.dtype}; it must be {_alternatives(DTYPES)}: convert query, key and value"
        )
    for name, x in (("key", key), ("value", value)):
        if x.dtype != query.dtype:
            raise ValueError(f"{name} has dtype {x.dtype}; it must be query's, {query.dtype}")
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise ValueError(
            f"attn_mask has dtype {attn_mask.dtype}; it must be torch.bool, torch.float32 or query's, {query.dtype}"
        )


def _check_kernels(kernels: Kernels, chosen: str, layout: KernelLayout, attn_mask: Tensor | None) -> None:
    """Refuses what the chosen kernels cannot do."""
    if attn_mask is not None and not kernels.masks:
        raise ValueError(
            f"attn_mask is given, and {chosen} takes none: use variant='tuned', or mode='naive' or mode='tiled'; for a "
            "causal mask is_causal=True"
        )
    if kernels.max_head_dim is not None and layout.width > kernels.max_head_dim:
        raise ValueError(
            f"head_dim is {layout.width} (query has shape {list(layout.query.shape)}, value "
            f"{list(layout.value.shape)}); {chosen} takes up to {kernels.max_head_dim}: use mode='naive' or "
            "mode='tiled'"
        )
    if not torch.is_grad_enabled():
        return
    if attn_mask is not None and attn_mask.requires_grad:
        raise ValueError("attn_mask requires a gradient, and no kernel here computes one: pass attn_mask.detach()")
    for name in ("query", "key", "value"):
        if getattr(layout, name).requires_grad and not kernels.tuned:
            raise ValueError(
                f"{name} requires a gradient, and {chosen} has no backward pass: use mode='flash' with "
                "variant='tuned', or call under torch.no_grad()"
            )


def _alternatives(values) -> str:
    """'naive', 'tiled' or 'flash'"""
    *others, last = (repr(value) for value in values)
    return f"{', '.join(others)} or {last}" if others else last
