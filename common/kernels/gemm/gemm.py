"""GEMM in float32, on the operands' device.

    c = gemm_nn(a, b)       a @ b
    c = gemm_nt(a, b)       a @ b^T

Products and sums are float32: no TF32, no tensor cores. The first call on a device builds the kernels. There are no
gradients.

Source: gemm.cu, which lists the steps that lead to it, following S. Boehm, "How to Optimize a CUDA Matmul Kernel for
cuBLAS-like Performance", 2022.
"""

from __future__ import annotations

from torch import Tensor

from common.kernels.loaded import loaded


def gemm_nn(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for every matrix of a batch.

    Args:
        a: [batch, M, K], float32, contiguous, on the CPU (the simulator) or a GPU; no size is 0. M and K are at most
            2^31 - 128.
        b: [batch, K, N], likewise; N is at most 65,535 * 64 = 4,194,240.

    Returns:
        [batch, M, N], float32, contiguous.

    Raises:
        ValueError: an unsupported shape, dtype, layout or device; the message names the argument, its value and what is
            allowed.
        BuildError, ToolchainError: the kernels cannot be built here; see common.compiling.load.build.
    """
    return loaded("gemm", a.device).gemm_nn(a, b)


def gemm_nt(a: Tensor, b: Tensor) -> Tensor:
    """a @ b^T for every matrix of a batch: both operands are row-major along K, as Q and K are in Q K^T.

    Args:
        a: [batch, M, K], as in gemm_nn.
        b: [batch, N, K], likewise.

    Returns:
        [batch, M, N], float32, contiguous.

    Raises:
        As in gemm_nn.
    """
    return loaded("gemm", a.device).gemm_nt(a, b)
