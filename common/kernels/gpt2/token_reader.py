"""Copies the tokens of past steps to the host while the GPU continues with the next ones.

    reader.follow(step)      after launching a step: starts copying its tokens
    reader.tokens(step)      waits for them: a list of int, one per sequence

The copy runs on a separate stream, after the step that produced the tokens, and concurrently with later steps.
"""

from __future__ import annotations

import torch
from torch import Tensor


class TokenReader:
    """history: int32 [steps, batch], on any device; see DecodeState."""

    def __init__(self, history: Tensor) -> None:
        self.history = history
        self.on_gpu = history.is_cuda
        if self.on_gpu:
            self.host = torch.empty(history.shape, dtype=history.dtype, device="cpu", pin_memory=True)
            self.stream = torch.cuda.Stream()
            self.arrived: dict[int, torch.cuda.Event] = {}

    def follow(self, step: int) -> None:
        """Requests the tokens of `step`, whose kernels are already launched. Returns immediately."""
        if not self.on_gpu:
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.host[step].copy_(self.history[step], non_blocking=True)
            self.arrived[step] = torch.cuda.Event()
            self.arrived[step].record()

    def tokens(self, step: int) -> list[int]:
        """The tokens of a step passed to follow()."""
        if not self.on_gpu:
            return self.history[step].tolist()
        self.arrived.pop(step).synchronize()
        return self.host[step].tolist()
