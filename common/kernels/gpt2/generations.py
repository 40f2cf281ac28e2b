"""The result of a generation: the new tokens of every prompt, why they end, and how long they took."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence


class Generations:
    """Token ids and times, filled step by step.

    Args:
        batch: number of prompts.
        stop_token: a sequence ends where it produces this token (None: never).
        on_token: called as on_token(sequence, token) for every new token except stop_token, in order.

    Attributes:
        tokens: for each prompt its new token ids, without stop_token.
        stopped_by: for each prompt "max_new_tokens" or "end of text".
        ttft_ms: time to first token, from the call to the first tokens (of all prompts) on the host.
        tbt_ms: times between tokens: between the arrivals of a step's tokens on the host, one for each step after the
            first, up to the last that any sequence needed.
    """

    def __init__(
        self, batch: int, stop_token: int | None = None, on_token: Callable[[int, int], None] | None = None
    ) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(batch)]
        self.stopped_by = ["max_new_tokens"] * batch
        self.ttft_ms = float("nan")
        self.tbt_ms: list[float] = []
        self._stop_token, self._on_token = stop_token, on_token
        self._open = list(range(batch))

    def add_step(self, tokens: Sequence[int], milliseconds: float) -> bool:
        """Hands out the tokens of one step, one per prompt. Returns whether any sequence continues."""
        if math.isnan(self.ttft_ms):
            self.ttft_ms = milliseconds
        else:
            self.tbt_ms.append(milliseconds)
        for sequence in list(self._open):
            token = tokens[sequence]
            if token == self._stop_token:
                self.stopped_by[sequence] = "end of text"
                self._open.remove(sequence)
                continue
            self.tokens[sequence].append(token)
            if self._on_token is not None:
                self._on_token(sequence, token)
        return bool(self._open)

    @property
    def tokens_per_s(self) -> float:
        """Tokens produced, including end-of-text, over the time from the call to the last of them."""
        produced = sum(len(one) + (why == "end of text") for one, why in zip(self.tokens, self.stopped_by, strict=True))
        return produced / (self.ttft_ms + sum(self.tbt_ms)) * 1e3
