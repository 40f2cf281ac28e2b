"""Attention over a sequence distributed across several processes: the two core steps of ring attention.

    pieces_of       which tokens a rank holds, so that all ranks have the same work under a causal mask   (gap 11)
    merge           combines a rank's result so far with its result over the next keys                    (gap 12)

Both are optional. given/ring_steps.py does the rest; to see it run, with one process per rank:

    torchrun --nproc-per-node 4 -m task6.ring
"""

from __future__ import annotations

import torch


def pieces_of(rank: int, ranks: int) -> tuple[int, int]:
    """The two pieces of the sequence that a rank holds.

    The sequence is cut into 2 * ranks equal pieces, numbered 0, 1, ... from the start. A rank computes the attention of
    the queries in its two pieces; under a causal mask a late query sees many keys, and an early one few.

    Args:
        rank: 0 .. ranks - 1.
        ranks: the number of ranks.

    Returns:
        Two piece numbers, 0 .. 2 * ranks - 1. Over all ranks, every piece occurs exactly once.
    """
    # BEGIN SOLUTION 11 (1 line): the zigzag order. Rank 0 holds the first piece and the last, rank 1 the second and the
    #     second to last, and so on: rank r holds number r from the front and number r from the end.
    return rank, 2 * ranks - 1 - rank
    # END SOLUTION


def merge(
    out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges attention over the keys so far with attention over further keys.

    Args:
        out: [batch, heads, rows, head_dim], float32: the attention over the keys so far.
        lse: [batch, heads, rows], float32: the logsumexp of their scores, in base e. -infinity for a row that has seen
            no key yet; its `out` is zeros.
        part, part_lse: the same for the further keys; part may be float16 or bfloat16.

    Returns:
        (out, lse) over both, float32. A row that has seen no key in either has zeros and -infinity.
    """
    # BEGIN SOLUTION 12 (7 lines): merge_states of task 3 for two parts, in PyTorch. Each side is weighted by the sum of
    #     its exponentials, exp(lse), taken relative to the larger of the two so that nothing overflows. Where both
    #     are -infinity, their difference is NaN: use 0 as the larger one there, and both weights come out as 0.
    largest = torch.maximum(lse, part_lse)
    shift = largest.masked_fill(largest == -torch.inf, 0.0)
    old, new = torch.exp(lse - shift), torch.exp(part_lse - shift)
    total = old + new  # 1 or more in a row that has seen a key, else 0
    inverse = 1 / total.clamp(min=1.0)
    merged = (old * inverse).unsqueeze(-1) * out + (new * inverse).unsqueeze(-1) * part
    return merged, shift + torch.log(total)
    # END SOLUTION


if __name__ == "__main__":
    from task6.tools.ring import main

    raise SystemExit(main())
