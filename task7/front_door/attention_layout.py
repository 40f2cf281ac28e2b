"""Attention inputs of any shape that PyTorch takes -> the [batch, heads, S, head_dim] that kernels take, and back.

    PyTorch                                                      kernels
    query, key, value of 2, 3, 5, ... dimensions                 the last batch dimension is heads, the others are one
    batch dimensions that broadcast                              expanded
    enable_gqa: fewer heads of keys than of queries              repeated, or left alone where the kernels group
    value with another head_dim than query                       zeros appended: they change no product, and what they
                                                                 add to the output is cut off again
    sizes of 0                                                   no kernel: see empty_result

Nothing is copied where a view will do.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


class KernelLayout:
    """One call's inputs.

    Args:
        query: [..., S_q, head_dim].
        key, value: [..., S_k, head_dim] and [..., S_k, value_head_dim].
        enable_gqa: see task7.front_door.sdpa.scaled_dot_product_attention.
        grouped: the kernels take key and value with fewer heads themselves.

    Raises:
        ValueError: shapes that do not fit together.
    """

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, grouped: bool) -> None:
        _check_shapes(query, key, value, at_least=3 if enable_gqa else 2)
        self.group = 1  # heads of query that share one of key
        if enable_gqa:
            _check_heads(query, key, value)
            if grouped and key.size(-3) == value.size(-3) < query.size(-3):
                self.group = query.size(-3) // key.size(-3)
            else:
                key, value = (x.repeat_interleave(query.size(-3) // x.size(-3), -3) for x in (key, value))
        self.query, self.key, self.value = query, key, value
        self.batch = _common_batch(query, key, value, self.group)  # [..., heads]
        self.scores_shape = (*self.batch, query.size(-2), key.size(-2))
        self.value_head_dim = value.size(-1)
        self.width = max(query.size(-1), self.value_head_dim)  # of the rows that the kernels get

    @property
    def empty(self) -> bool:
        """Whether there are no scores, or no output, so that there is nothing for a kernel to do."""
        return 0 in self.scores_shape or self.value_head_dim == 0

    def inputs(self) -> list[Tensor]:
        """query [batch, heads, S_q, width], key and value [batch, kv_heads, S_k, width]."""
        kv_batch = (*self.batch[:-1], self.key.size(-3)) if self.group > 1 else self.batch
        inputs = ((self.query, self.batch), (self.key, kv_batch), (self.value, kv_batch))
        return [_as_four(self._padded(x), batch) for x, batch in inputs]

    def mask(self, attn_mask: Tensor) -> Tensor:
        """The mask as kernels take it: bool or float32, [batch, heads, S_q or 1, S_k or 1].

        Raises:
            ValueError: it does not broadcast to the scores.
        """
        try:
            attn_mask.expand(self.scores_shape)
        except RuntimeError:
            raise ValueError(
                f"attn_mask has shape {list(attn_mask.shape)}; it must broadcast to [..., S_q, S_k] = "
                f"{list(self.scores_shape)}"
            ) from None
        if attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.float()
        while attn_mask.dim() < 2:
            attn_mask = attn_mask[None]
        return _as_four(attn_mask, self.batch)

    def result(self, out: Tensor) -> Tensor:
        """out [batch, heads, S_q, width], of a kernel -> [..., S_q, value_head_dim]."""
        return out[..., : self.value_head_dim].reshape(*self.scores_shape[:-1], self.value_head_dim).contiguous()

    def empty_result(self) -> Tensor:
        """[..., S_q, value_head_dim] without an element, or zeros where there is no key; connected to the inputs."""
        key, value = (x.repeat_interleave(self.group, -3) if self.group > 1 else x for x in (self.key, self.value))
        return self.query @ key.mT @ value

    def _padded(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, self.width - x.size(-1))) if x.size(-1) < self.width else x


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, at_least: int) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        if x.dim() < at_least:
            why = " with enable_gqa, heads included" if at_least == 3 else ""
            raise ValueError(f"{name} has shape {list(x.shape)}; it must have {at_least} dimensions or more{why}")
    if query.size(-1) != key.size(-1):
        raise ValueError(
            f"query has shape {list(query.shape)} and key {list(key.shape)}; their last sizes, head_dim, must be equal"
        )
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


def _common_batch(query: Tensor, key: Tensor, value: Tensor, group: int) -> tuple[int, ...]:
    """The batch dimensions that those of all three broadcast to, each head of key and value counted group times."""
    shapes = [query.shape[:-2], key.shape[:-2], value.shape[:-2]]
    grouped = [(*shape[:-1], shape[-1] * group) if group > 1 else shape for shape in shapes[1:]]
    try:
        return tuple(torch.broadcast_shapes(shapes[0], *grouped))
    except RuntimeError:
        raise ValueError(
            f"query, key and value have the batch dimensions {', '.join(str(list(shape)) for shape in shapes)}, which "
            "do not broadcast; fewer heads of keys and values than of queries take enable_gqa=True"
        ) from None


def _as_four(x: Tensor, batch: tuple[int, ...]) -> Tensor:
    """x [..., rows, cols], expanded to [*batch, rows, cols] -> [batch, heads, rows, cols]; a view if possible."""
    x = x.expand(*batch, *x.shape[-2:])
    return x.reshape(math.prod(batch[:-1]), batch[-1] if batch else 1, *x.shape[-2:])
