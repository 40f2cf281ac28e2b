"""PyTorch's scaled_dot_product_attention as a peer: one of its backends, or its own choice."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
HALF = ("fp16", "bf16")
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
LABELS = {"flash": "SDPA flash", "cudnn": "SDPA cuDNN", "efficient": "SDPA efficient", "math": "SDPA math"}


class AttentionProblem:
    """What problems of attention in one dtype have in common: compared with that dtype's matmul, without the sizes for
    the plots of memory and roofline."""

    dtype: str

    unit = "TFLOP/s"
    scores_bytes = tensor_bytes = least_bytes = 0

    @property
    def limit(self) -> str:
        return "float32" if self.dtype == "fp32" else "bfloat16"


def sdpa(backend: str | None, query: Tensor, key: Tensor, value: Tensor, **options) -> Callable[[], Tensor]:
    """A call of PyTorch's function on one of BACKENDS, or (None) on its own choice."""
    grouped = query.size(1) != key.size(1)

    def call() -> Tensor:
        if backend is None:
            return F.scaled_dot_product_attention(query, key, value, enable_gqa=grouped, **options)
        with sdpa_kernel(BACKENDS[backend]):
            return F.scaled_dot_product_attention(query, key, value, enable_gqa=grouped, **options)

    return call


def gradients(forward: Callable[..., Callable[[], Tensor]], grad_out: Tensor, *inputs: Tensor) -> Callable[[], tuple]:
    """A call of the backward pass of `forward(*inputs)()`; the forward pass runs now."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    with torch.enable_grad():
        out = forward(*leaves)()
    return lambda: torch.autograd.grad(out, leaves, grad_out, retain_graph=True)


def timed(direction: str, forward: Callable[..., Callable[[], Tensor]], *inputs: Tensor) -> Callable:
    """The call to time for a pass of `forward(query, key, value)()`: "forward", "backward" or "training".

    inputs: query, key, value, and the gradient of the output.
    """
    *given, grad_out = inputs
    if direction == "forward":
        return forward(*given)
    return (training if direction == "training" else gradients)(forward, grad_out, *given)


def training(forward: Callable[..., Callable[[], Tensor]], grad_out: Tensor, *inputs: Tensor) -> Callable[[], tuple]:
    """A call of `forward(*inputs)()` and its backward pass, as in a training step."""
    leaves = [x.detach().requires_grad_() for x in inputs]

    def call() -> tuple:
        with torch.enable_grad():
            return torch.autograd.grad(forward(*leaves)(), leaves, grad_out)

    return call
