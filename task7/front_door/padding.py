"""Prompts of different lengths in one batch: expresses padding by what the kernels support.

Prompts in a batch are padded to a common length, and an attention mask marks the padding:

    mask      0 0 1 1 1        left padding, as transformers' generate() expects
              1 1 1 1 1
              0 1 1 0 1        (any other pattern works, too)

The kernels neither take such a mask nor need one. Token order matters to attention only for the causal mask (positions
are already encoded in the queries and keys), so all padding can be moved after the tokens:

    prefill   a causal mask then hides the padding from all tokens
    decode    only lengths[b] tokens of sequence b are read
    chunk     the new tokens of sequence b are the last ones of its lengths[b]

Padding then attends to other keys than with the mask. That doesn't matter, except in the last place of a prompt that
ends in padding: generate() takes its first token from there (`at_the_end`).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor


class Padding:
    """Where the tokens of a padded batch are.

    Args:
        mask: bool [batch, all_tokens], False for padding.
        new_tokens: how many of these are not in the cache yet; None: all.

    Attributes:
        mask: as passed.
        lengths: int32 [batch], each sequence's tokens that are not padding. On the mask's device, like order; neither
            synchronizes.
        before, among_new: whether there is any padding among the cached tokens, and among the new ones. On the host,
            like at_the_end; these synchronize with the GPU.
        at_the_end: whether any sequence ends in padding.
        order: int64 [batch, all_tokens], the indices of each sequence's tokens, then those of its padding.
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
        """The padding of the new tokens only."""
        return self if self.new_tokens == self.mask.size(1) else Padding(self.mask[:, -self.new_tokens :])

    def to_the_end(self, x: Tensor) -> Tensor:
        """[batch, heads, all_tokens, head_dim] with each sequence's padding moved after its tokens; contiguous."""
        return _gathered(x, self.order)

    def restored(self, x: Tensor) -> Tensor:
        """Undoes to_the_end."""
        return _gathered(x, self._back)


def _gathered(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(2, order[:, None, :, None].expand_as(x))
