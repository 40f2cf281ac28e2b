"""Prompts of different lengths in one batch: padding, in terms that the kernels have.

A batch of prompts is filled up with padding to a rectangle, and an attention mask says where it is:

    mask      0 0 1 1 1        tokens on the right, as transformers' generate() wants them
              1 1 1 1 1
              0 1 1 0 1        (any other pattern will do as well)

The kernels take no such mask, and need none. Attention asks in which order tokens come only for the causal mask (their
positions are in the queries and keys already), so all padding may be moved after the tokens:

    prefill   a causal mask then hides it from every token that counts
    decode    lengths[b] tokens of sequence b are read, and what is after them is not
    chunk     the new tokens of sequence b are the last ones of its lengths[b]

What padding itself attends to is not what it would be with the mask, and does not matter; but for the last place of a
prompt that ends in padding: generate() takes its first token from there (`at_the_end`).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


class Padding:
    """Where the tokens of a padded batch are.

    Args:
        mask: bool [batch, all_tokens], False where there is padding.
        new_tokens: how many of these are not in the cache yet; None: all.

    Attributes:
        mask: as given.
        lengths: int32 [batch], how many tokens are none. On the mask's device, like the order: neither waits for a
            GPU.
        before, among_new: whether there is any padding among the cached tokens, and among the new ones. Known on the
            host, like the next: these wait for a GPU.
        at_the_end: whether any sequence ends in padding.
        order: int64 [batch, all_tokens], the places of a sequence's tokens, then those of its padding.
    """

    def __init__(self, mask: Tensor, new_tokens: int | None = None) -> None:
        self.mask = mask
        self.new_tokens = mask.size(1) if new_tokens is None else new_tokens
        self.lengths = mask.sum(-1, dtype=torch.int32)
        parts = mask[:, : -self.new_tokens], mask[:, -self.new_tokens :], mask[:, -1]
        self.before, self.among_new, self.at_the_end = torch.stack([~part.all() for part in parts]).tolist()
        self.order = torch.argsort(mask.to(torch.uint8), dim=-1, descending=True, stable=True)
        self._back = torch.argsort(self.order, dim=-1)

    @cached_property
    def new(self) -> Padding:
        """The new tokens alone."""
        return self if self.new_tokens == self.mask.size(1) else Padding(self.mask[:, -self.new_tokens :])

    def to_the_end(self, x: Tensor) -> Tensor:
        """[batch, heads, all_tokens, head_dim] with each sequence's padding moved after its tokens; contiguous."""
        return _gathered(x, self.order)

    def restored(self, x: Tensor) -> Tensor:
        """Undoes to_the_end."""
        return _gathered(x, self._back)


def _gathered(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(2, order[:, None, :, None].expand_as(x))
