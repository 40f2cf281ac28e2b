"""Attention over some of the keys and attention over the others is attention over all, merged by the logsumexp.

With (O_a, L_a) and (O_b, L_b), the outputs over two sets of keys and the logsumexp of their scores:

    L = log(exp(L_a) + exp(L_b))        O = exp(L_a - L) O_a + exp(L_b - L) O_b

Source: task 3's merge_states; FlashAttention-2 (Dao 2023, arXiv:2307.08691), section 3.1.
"""

from __future__ import annotations

import torch
from torch import Tensor


def merge_into(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Merges a part into what there is, in place.

    Args:
        out: [batch, heads, rows, head_dim], float32. lse: [batch, heads, rows], float32. Any strides.
        part, part_lse: the same of other keys; part may have 16 bits. A row that saw no key has -inf, and counts for
            nothing.
    """
    both = torch.logaddexp(lse, part_lse)
    nothing = both == -torch.inf
    kept, added = ((one - both).exp_().masked_fill_(nothing, 0.0).unsqueeze(-1) for one in (lse, part_lse))
    out.mul_(kept).addcmul_(part.float(), added)
    lse.copy_(both)
