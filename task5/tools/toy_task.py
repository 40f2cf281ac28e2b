"""A toy sequence task that needs long-range attention: recall.

    task = Recall(pairs=4, record=4)
    tokens, answers = task.batch(32, generator)     [32, task.seq_len], [32, 4]

A sequence is a list of records, each a key, its value and dots, followed by the keys again in another order, each with
its value. With 3 records of 4 tokens, keys as letters, values as digits:

    position   0  1  2  3  4  5  6  7  8  9 10 11   12 13 14 15 16
    token      c  5  .  .  a  2  .  .  f  5  .  .    a  2  f  5  c
    answer                                           2     5     5

At each key of the second half, the model has to predict its value. Keys and values are drawn anew for every sequence,
so they cannot be memorized: the model has to find the record, which takes two attention blocks. The first brings the
key and value of a record together in one position, the second finds the position whose key was queried (an "induction
head": Olsson et al. 2022, arXiv:2209.11895). The second may be strided, if each record contains one of the attended
positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

DOT = 0
SYMBOLS = 16  # the number of keys, and of values


@dataclass(frozen=True)
class Recall:
    """The task's sizes.

    Args:
        pairs: records per sequence, 1 .. SYMBOLS, with distinct keys.
        record: tokens per record, 2 or more.

    Raises:
        ValueError: pairs or record out of range.
    """

    pairs: int
    record: int

    def __post_init__(self) -> None:
        if not 1 <= self.pairs <= SYMBOLS:
            raise ValueError(f"pairs is {self.pairs}; it must be 1 .. {SYMBOLS}")
        if self.record < 2:
            raise ValueError(f"record is {self.record}; it must be at least 2: a key and its value")

    @property
    def vocab_size(self) -> int:
        """The number of tokens: the dot, the keys, the values."""
        return 1 + 2 * SYMBOLS

    @property
    def seq_len(self) -> int:
        """The length of the model's input, which excludes the last answer."""
        return self.pairs * self.record + 2 * self.pairs - 1

    @property
    def questions(self) -> slice:
        """The positions of the keys in the second half, where the model's output is compared with the answers."""
        return slice(self.pairs * self.record, None, 2)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random sequences, int64 [size, seq_len], and the answers, int64 [size, pairs]; on the generator's device."""
        device, pairs = generator.device, self.pairs

        def shuffled(count: int) -> Tensor:
            return torch.rand(size, count, generator=generator, device=device).argsort(-1)

        keys = 1 + shuffled(SYMBOLS)[:, :pairs]
        values = 1 + SYMBOLS + torch.randint(SYMBOLS, (size, pairs), generator=generator, device=device)
        order = shuffled(pairs)
        records = torch.full((size, pairs, self.record), DOT, device=device)
        records[:, :, 0], records[:, :, 1] = keys, values
        answers = values.gather(1, order)
        asked = torch.stack([keys.gather(1, order), answers], -1)
        return torch.cat([records.flatten(1), asked.flatten(1)], 1)[:, :-1], answers
