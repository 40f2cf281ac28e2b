"""Prompts of different lengths in one batch: padding, in terms that the kernels have.

A batch of prompts is filled up with padding to a rectangle, and an attention mask says where it is:

    mask      0 0 1 1 1        tokens on the right, as transformers' generate() wants them
              1 1 1 1 1
              0 1 1 0 1        (any other pattern will do as well)

The kernels take no such mask, and need none. Attention asks in which order tokens come only for the causal mask (their
positions are in the queries and keys already), so all padding may be moved behind the tokens:

    prefill   a causal mask then hides it from every token that counts
    decode    lengths[b] tokens of sequence b are read, and what lies behind them is not

What padding itself attends to is not what it would be with the mask, and does not matter; but for the last place of a
prompt that ends in padding: generate() takes its first token from there (`at_the_end`).
"""

from __future__ import annotations

import torch
from torch import Tensor


class Padding:
    """Where the tokens of a padded batch are.

    Args:
        mask: bool [batch, all_tokens], False where there is padding.

    Attributes:
        mask: as given.
        lengths: int32 [batch], how many tokens are none. On the mask's device, like the order: neither waits for a
            GPU.
        at_the_end: whether any sequence ends in padding. Known on the host: this one does wait for a GPU.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.lengths = mask.sum(-1, dtype=torch.int32)
        self.at_the_end = not bool(mask[:, -1].all())
        self._order = torch.argsort(mask.to(torch.uint8), dim=-1, descending=True, stable=True)  # tokens, then padding
        self._back = torch.argsort(self._order, dim=-1)

    def to_the_end(self, x: Tensor) -> Tensor:
        """[batch, heads, all_tokens, head_dim] with each sequence's padding moved behind its tokens; contiguous."""
        return _gathered(x, self._order)

    def restored(self, x: Tensor) -> Tensor:
        """Undoes to_the_end."""
        return _gathered(x, self._back)


def _gathered(x: Tensor, order: Tensor) -> Tensor:
    return x.gather(2, order[:, None, :, None].expand_as(x))
