"""A call of attention: its options, its checked arguments, and its tensors as the kernels take them.

    options = Options(is_causal=True, softcap=50.0)
    call = Call.of(query, key, value, options)          the kernels' inputs
    call.result(out, lse)                               the caller's result

PyTorch's conventions, and what the kernels get:

    query, key, value of 2, 3, 5, ... dimensions        [batch, heads, S, head_dim]: the last batch dimension is heads
    batch dimensions that broadcast                     expanded
    enable_gqa: fewer heads of keys than of queries     kept if the kernels support grouping, otherwise repeated
    value with a different head_dim than query          padded with zeros, which change nothing; the output is sliced
    sizes of 0                                          no kernel runs

Nothing is copied where a view will do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Proxy

from common.kernels.loaded import BACKENDS
from common.reference.scale import scale_or_default

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
NO_WINDOW = (-1, -1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """The options of a call, in addition to query, key and value; see common.kernels.attention.attention.

    Raises:
        ValueError: a value that no kernel supports.
    """

    attn_mask: Tensor | CausalBias | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False
    softcap: float = 0.0
    window_size: tuple[int, int] = NO_WINDOW
    sinks: Tensor | None = None
    lower_right: bool = False
    key_stride: int = 1
    key_offset: int = 0
    seed: Tensor | None = None
    deterministic: bool = False
    return_lse: bool = False
    kernel: str | None = None

    def __post_init__(self) -> None:
        for name in ("is_causal", "lower_right"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be True or False")
        if not 0 <= self.dropout_p < 1:
            raise ValueError(f"dropout_p is {self.dropout_p}; it must be 0 or more and less than 1")
        if not 0 <= self.softcap < math.inf:
            raise ValueError(f"softcap is {self.softcap}; it must be 0 (none) or positive and finite")
        window = self.window_size
        numbers = isinstance(window, (tuple, list)) and len(window) == 2
        if not numbers or not all(isinstance(x, int) and not isinstance(x, bool) and x >= -1 for x in window):
            raise ValueError(
                f"window_size is {window!r}; it must be (left, right), integers of 0 or more, or -1: no such end"
            )
        object.__setattr__(self, "window_size", tuple(window))
        if self.key_stride < 1 or not 0 <= self.key_offset < self.key_stride:
            raise ValueError(
                f"key_stride is {self.key_stride} and key_offset {self.key_offset}; key_stride must be at least 1, and "
                "key_offset 0 .. key_stride - 1"
            )

    @property
    def used(self) -> list[str]:
        """Which of softcap, sinks, dropout_p and window_size the call uses."""
        given = self.softcap, self.sinks is not None, self.dropout_p, self.window_size != NO_WINDOW
        return [name for name, x in zip(("softcap", "sinks", "dropout_p", "window_size"), given, strict=True) if x]

    @property
    def used_words(self) -> list[str]:
        """The same with their values, for error messages only: in a graph with dynamic sizes a value has no text."""
        return ["sinks are given" if name == "sinks" else f"{name} is {getattr(self, name)}" for name in self.used]


@dataclass(frozen=True, eq=False)
class Call:
    """A call as passed to the kernels.

    Attributes:
        query: [batch, heads, S_q, head_dim]. key, value: [batch, kv_heads, S_k, head_dim]. With contiguous rows.
        attn_mask: bool or float32, four dimensions; or None.
        is_causal, lower_right: with a CausalBias resolved; lower_right is False if it makes no difference.
        scale: a number.
        options: all other options.
        scores_shape: the caller's [..., S_q, S_k].
        value_head_dim, dtype: of the result; the kernels' rows may be longer.
        gradients: whether a gradient may be requested.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None
    is_causal: bool
    lower_right: bool
    scale: float
    options: Options
    scores_shape: tuple[int, ...]
    value_head_dim: int
    dtype: torch.dtype
    gradients: bool

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, options: Options, grouped: bool = True) -> Call:
        """Checks the call and converts it. Shapes and errors: see common.kernels.attention.attention.

        Args:
            grouped: whether the kernels support fewer heads of keys than of queries.
        """
        bias = options.attn_mask if is_causal_bias(options.attn_mask) else None
        mask, sinks = None if bias is not None else options.attn_mask, options.sinks
        check_places(query=query, key=key, value=value, attn_mask=mask, sinks=sinks)
        query, key, value, mask = as_autocast(query, key, value, mask)
        check_dtypes(query, key, value, mask)
        _check_shapes(query, key, value, at_least=3 if options.enable_gqa else 2)
        gradients = torch.is_grad_enabled() and any(
            x is not None and x.requires_grad for x in (query, key, value, sinks)
        )
        if mask is not None and mask.requires_grad and torch.is_grad_enabled():
            raise ValueError("attn_mask requires a gradient, and no kernel here computes one: pass attn_mask.detach()")
        sizes, scale = (query.size(-2), key.size(-2)), scale_or_default(options.scale, max(query.size(-1), 1))
        if options.key_stride > max(sizes[1], 1):
            raise ValueError(f"key_stride is {options.key_stride}; it must be 1 .. S_k = {sizes[1]}")
        causal, lower_right = options.is_causal, options.lower_right
        if bias is not None:
            if lower_right and bias.variant.name == "UPPER_LEFT":
                raise ValueError("lower_right is True and attn_mask is causal_upper_left; only one of them may be")
            _check_bias(bias, query, key)
            causal, lower_right = True, bias.variant.name == "LOWER_RIGHT"

        group = 1  # query heads per key head
        if options.enable_gqa and not query.shape[:-2] == key.shape[:-2] == value.shape[:-2]:
            _check_heads(query, key, value)
            if grouped and key.size(-3) == value.size(-3):
                group = query.size(-3) // key.size(-3)
            else:
                key, value = (x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in (key, value))
        batch = _common_batch(query, key, value, group)  # [..., heads]
        check_sinks(sinks, batch[-1] if batch else 1)
        mask = None if mask is None else _as_mask(mask, (*batch, *sizes))
        kv_batch = (*batch[:-1], key.size(-3)) if group > 1 else batch
        value_head_dim, width = value.size(-1), max(query.size(-1), value.size(-1))
        inputs = ((query, batch), (key, kv_batch), (value, kv_batch))
        inputs = [with_rows(_as_four(padded(x, width), of)) for x, of in inputs]
        told = mask, causal, lower_right and sizes[0] != sizes[1], scale, options
        return cls(*inputs, *told, (*batch, *sizes), value_head_dim, query.dtype, gradients)

    @property
    def empty(self) -> bool:
        """Whether there are no scores, or no output, and so nothing for a kernel to do."""
        return 0 in self.scores_shape or self.value_head_dim == 0

    def result(self, out: Tensor, lse: Tensor | None) -> Tensor | tuple[Tensor, Tensor]:
        """out [batch, heads, S_q, head_dim] and lse [batch, heads, S_q] in the caller's shapes."""
        rows = self.scores_shape[:-1]
        if out.shape != (*rows, self.value_head_dim) or out.dtype != self.dtype:
            out = out[..., : self.value_head_dim].reshape(*rows, self.value_head_dim).to(self.dtype).contiguous()
        return (out, lse.reshape(rows)) if self.options.return_lse else out

    def empty_result(self) -> Tensor | tuple[Tensor, Tensor]:
        """An empty tensor, or zeros if there is no key; connected to the inputs."""
        group = self.query.size(1) // max(self.key.size(1), 1)
        key, value = (x.repeat_interleave(group, 1) if group > 1 else x for x in (self.key, self.value))
        out = self.query @ key.mT @ value
        lse = out.new_full(out.shape[:-1], -math.inf, dtype=torch.float32) if self.options.return_lse else None
        return self.result(out, lse)


def one_node(function: Callable) -> Callable:
    """Wraps a function for torch.fx and torch.jit: a leaf node in a traced graph, refused by torch.jit.script."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        for x in (*args, *kwargs.values()):
            if isinstance(x, Proxy):
                return x.tracer.create_proxy("call_function", call, args, kwargs)
        return function(*args, **kwargs)

    call.__prepare_scriptable__ = functools.partial(refuse_script, function.__name__)
    return call


def refuse_script(name: str) -> None:
    """Raises the error for torch.jit.script."""
    raise NotImplementedError(
        f"torch.jit.script does not take {name}: use torch.compile, torch.export or torch.jit.trace"
    )


def check_places(*, query: Tensor, **others: Tensor | None) -> None:
    """Refuses anything but dense tensors on one device that has kernels. attn_mask and sinks may be None."""
    for name, x in {"query": query, **others}.items():
        if x is None and name in ("attn_mask", "sinks"):
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is {x!r}; it must be a tensor")
        if x.is_nested or x.layout != torch.strided:
            raise ValueError(f"{name} is {'nested' if x.is_nested else x.layout}; it must be dense (torch.strided)")
        if query.device.type not in BACKENDS:
            raise ValueError(f"query is on the device {str(query.device)!r}; it must be on {alternatives(BACKENDS)}")
        if x.device != query.device:
            raise ValueError(f"{name} is on the device {str(x.device)!r}; it must be on query's, {str(query.device)!r}")


def check_dtypes(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> None:
    """Refuses unsupported dtypes, and different ones."""
    if query.dtype not in DTYPES:
        raise ValueError(
            f"query has dtype {query.dtype}; it must be {alternatives(DTYPES)}: convert query, key and value"
        )
    for name, x in (("key", key), ("value", value)):
        if x.dtype != query.dtype:
            raise ValueError(f"{name} has dtype {x.dtype}; it must be query's, {query.dtype}")
    if attn_mask is not None and attn_mask.dtype not in (torch.bool, torch.float32, query.dtype):
        raise ValueError(
            f"attn_mask has dtype {attn_mask.dtype}; it must be torch.bool, torch.float32 or query's, {query.dtype}"
        )


def check_head_dim(query: Tensor, key: Tensor) -> None:
    """Refuses a query and key with different head_dim."""
    if query.size(-1) != key.size(-1):
        raise ValueError(
            f"query has shape {list(query.shape)} and key {list(key.shape)}; their last sizes, head_dim, must be equal"
        )


def check_sinks(sinks: Tensor | None, heads: int) -> None:
    """Refuses sinks that are not one floating-point number per head."""
    if sinks is None:
        return
    if sinks.shape != (heads,):
        raise ValueError(f"sinks has shape {list(sinks.shape)}; it must be [heads] = [{heads}]")
    if not sinks.is_floating_point():
        raise ValueError(f"sinks has dtype {sinks.dtype}; it must be a floating-point one")


def as_autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors as cast by PyTorch's function: under autocast, floating-point ones except float64 in its dtype."""
    device = tensors[0].device.type
    if device not in BACKENDS or not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [x.to(dtype) if x is not None and x.dtype in DTYPES else x for x in tensors]


def alternatives(values) -> str:
    """'naive', 'tiled' or 'flash'"""
    *others, last = (repr(value) for value in values)
    return f"{', '.join(others)} or {last}" if others else last


def padded(x: Tensor, width: int) -> Tensor:
    """x with rows zero-padded to `width` elements."""
    return F.pad(x, (0, width - x.size(-1))) if x.size(-1) < width else x


def with_rows(x: Tensor) -> Tensor:
    """x with contiguous rows, copied only if necessary."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, at_least: int) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < at_least:
            why = " with enable_gqa, heads included" if at_least == 3 else ""
            raise ValueError(f"{name} has shape {list(x.shape)}; it must have {at_least} dimensions or more{why}")
    check_head_dim(query, key)
    if key.size(-2) != value.size(-2):
        raise ValueError(
            f"key has shape {list(key.shape)} and value {list(value.shape)}; their last sizes but one, S_k, must be "
            "equal"
        )


def _check_heads(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("key", key), ("value", value)):
        if x.size(-3) == 0 or query.size(-3) % x.size(-3):
            raise ValueError(
                f"{name} has {x.size(-3)} heads, shape {list(x.shape)}, and query {query.size(-3)}, shape "
                f"{list(query.shape)}; with enable_gqa the number of {name} must divide that of query"
            )


def is_causal_bias(mask: object) -> bool:
    """Whether an attn_mask is PyTorch's CausalBias; by name, since importing it costs every process a second."""
    return type(mask).__name__ == "CausalBias"


def _check_bias(bias: CausalBias, query: Tensor, key: Tensor) -> None:
    sizes = bias.seq_len_q, bias.seq_len_kv
    if sizes != (query.size(-2), key.size(-2)):
        raise ValueError(
            f"attn_mask is a CausalBias of {sizes[0]} queries and {sizes[1]} keys; query has shape {list(query.shape)} "
            f"and key {list(key.shape)}"
        )


def _common_batch(query: Tensor, key: Tensor, value: Tensor, group: int) -> tuple[int, ...]:
    """The broadcast batch dimensions of all three, with each head of key and value counted group times."""
    shapes = [query.shape[:-2], key.shape[:-2], value.shape[:-2]]
    grouped = [(*shape[:-1], shape[-1] * group) if group > 1 else shape for shape in shapes[1:]]
    if shapes[0] == grouped[0] == grouped[1]:
        return tuple(shapes[0])
    try:
        return tuple(torch.broadcast_shapes(shapes[0], *grouped))
    except RuntimeError:
        raise ValueError(
            f"query, key and value have the batch dimensions {', '.join(str(list(shape)) for shape in shapes)}, which "
            "do not broadcast; fewer heads of keys and values than of queries take enable_gqa=True"
        ) from None


def _as_mask(mask: Tensor, scores_shape: tuple[int, ...]) -> Tensor:
    """The mask as kernels take it: bool or float32, [batch, heads, S_q or 1, S_k or 1]."""
    try:
        mask.expand(scores_shape)
    except RuntimeError:
        raise ValueError(
            f"attn_mask has shape {list(mask.shape)}; it must broadcast to [..., S_q, S_k] = {list(scores_shape)}"
        ) from None
    if mask.dtype != torch.bool:
        mask = mask.float()
    while mask.dim() < 2:
        mask = mask[None]
    return _as_four(mask, scores_shape[:-2])


def _as_four(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """x [..., rows, cols], expanded to [*batch, rows, cols] -> [batch, heads, rows, cols]; a view if possible."""
    if x.dim() == 4 and x.shape[:2] == batch:
        return x
    x = x.expand(*batch, *x.shape[-2:])
    return x.reshape(math.prod(batch[:-1]), batch[-1] if batch else 1, *x.shape[-2:])
