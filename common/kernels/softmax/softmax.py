"""Softmax over rows in float32, on the input's device.

    y = softmax(x)          y[r, :] = exp(x[r, :] - max(x[r, :])) / sum

The first call on a device builds the kernels. There are no gradients.

Source: M. Milakov, N. Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv:1805.02867, for rows that do
not fit in registers; softmax.cu.
"""

from __future__ import annotations

from torch import Tensor

from common.kernels.loaded import loaded


def softmax(x: Tensor) -> Tensor:
    """The softmax of every row. A row that is -infinity throughout gives zeros.

    Args:
        x: [rows, cols], float32, contiguous, on the CPU (the simulator) or a GPU; no size is 0. cols is at most
            2^31 - 32,768.

    Returns:
        [rows, cols], float32, contiguous.

    Raises:
        ValueError: an unsupported shape, dtype, layout or device; the message names the argument, its value and what is
            allowed.
        BuildError, ToolchainError: the kernels cannot be built here; see common.compiling.load.build.
    """
    return loaded("softmax", x.device).softmax(x)
