"""FlashAttention-3 (Shah et al. 2024, arXiv:2407.08608) as a peer, on Hopper GPUs with its package installed.

The package is built from the folder `hopper` of the repository Dao-AILab/flash-attention; its module is
flash_attn_interface. This project does not require or install it.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable

from torch import Tensor

from common.compiling import toolchain
from common.measure.benchmark.problem import Version
from common.measure.benchmarks.sdpa import timed

NAME, LABEL = "fa3", "FlashAttention-3"
MODULE = "flash_attn_interface"


def is_installed() -> bool:
    return importlib.util.find_spec(MODULE) is not None


def require() -> None:
    """Checks for the package when it is requested by name.

    Raises:
        toolchain.ToolchainError: the package is not installed.
    """
    if not is_installed():
        raise toolchain.ToolchainError(
            f"--versions {NAME} needs FlashAttention-3, and there is no module {MODULE}: "
            "install the folder hopper of the repository Dao-AILab/flash-attention"
        )


def flash3_version(direction: str, causal: bool) -> dict[str, Version]:
    """{name: version}; {} if it is not installed.

    Args:
        direction: "forward", "backward" or "training".
        causal: key j is masked for query i if j > i.
    """
    if not is_installed():
        return {}
    attention = importlib.import_module(MODULE).flash_attn_func

    def forward(*inputs: Tensor) -> Callable[[], Tensor]:
        """inputs: query, key, value [batch, seq_len, heads, head_dim], the package's layout."""

        def call() -> Tensor:
            out = attention(*inputs, causal=causal)
            return out[0] if isinstance(out, tuple) else out  # older versions also return lse

        return call

    def prepare(*inputs: Tensor) -> Callable:
        """inputs: query, key, value, grad_out [batch, heads, seq_len, head_dim]; converted by copying, untimed."""
        call = timed(direction, forward, *(x.transpose(1, 2).contiguous() for x in inputs))
        if direction == "forward":
            return lambda: call().transpose(1, 2)
        return lambda: tuple(gradient.transpose(1, 2) for gradient in call())

    return {NAME: Version(LABEL, prepare)}
