"""Attention of a sequence distributed over several processes: the two ideas of ring attention.

    pieces_of       which tokens a rank holds, so that all ranks have the same work under a causal mask   (gap 11)
    merge           what a rank knows so far, and what it found in the next keys, become one              (gap 12)

Both are optional. given/ring_steps.py does the rest, and this shows it, with one process for each rank:

    torchrun --nproc-per-node 4 -m task6.ring
"""

from __future__ import annotations

import torch


def pieces_of(rank: int, ranks: int) -> tuple[int, int]:
    """The two pieces of the sequence that a rank holds.

    The sequence is cut into 2 * ranks equal pieces, 0, 1, ... from its beginning on. A rank computes the attention of
    the queries in its two pieces; under a causal mask a late query sees many keys, and an early one few.

    Args:
        rank: 0 .. ranks - 1.
        ranks: how many there are.

    Returns:
        Two numbers, 0 .. 2 * ranks - 1. Over all ranks every piece comes exactly once.
    """
    # TODO 11 (about 1 line): the zigzag order. Rank 0 holds the first piece and the last one, rank 1 the second and
    #     the last but one, and so on: rank r holds number r from the front, and number r from the end.
    raise NotImplementedError("TODO")
    # END TODO


def merge(
    out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the keys so far and attention over some further keys become attention over both.

    Args:
        out: [batch, heads, rows, head_dim], float32: the attention over the keys so far.
        lse: [batch, heads, rows], float32: the logsumexp of their scores, to base e. -infinity for a row that has seen
            no key yet; its `out` is zeros.
        part, part_lse: the same of the further keys; part may be float16 or bfloat16.

    Returns:
        (out, lse) over both, float32. A row that has seen no key in either has zeros and -infinity.
    """
    # TODO 12 (about 7 lines): merge_states of task 3 for two parts, in PyTorch. Each side counts as much as the sum
    #     of its exponentials, exp(lse): taken relative to the larger of the two, so that nothing overflows. Where both
    #     are -infinity, their difference is NaN: take 0 for the larger one there, then both weights come out as 0.
    raise NotImplementedError("TODO")
    # END TODO


if __name__ == "__main__":
    from task6.tools.ring import main

    raise SystemExit(main())
