"""Measured peak rates of the machine, with which a kernel's rate is compared.

measure_limits()            measures copy bandwidth and matmul rates
float32_precision("high")   inside, PyTorch's float32 matmuls use TF32; "highest": they do not
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from common.measure.timing import CudaStopwatch, Stopwatch, measure

COPY_BYTES = 2 * 2**30
MATMUL_SIZE = 8192


@dataclass(frozen=True)
class Limits:
    """Measured rates of one GPU.

    Attributes:
        copy: bytes per second of a copy within GPU memory, read plus written.
        matmul: floating-point operations per second of PyTorch's matmul of square matrices, by kind of arithmetic:
            "float32" (no TF32), "tf32", "bfloat16".
    """

    copy: float
    matmul: dict[str, float]

    def of(self, kind: str) -> float:
        """The rate of "copy" or of a kind of matmul."""
        return self.copy if kind == "copy" else self.matmul[kind]


@contextmanager
def float32_precision(precision: str) -> Iterator[None]:
    """Inside, float32 matmuls have this precision: "highest" (float32 throughout) or "high" (TF32)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def measure_limits(
    matmul: tuple[str, ...] = ("float32", "tf32", "bfloat16"),
    rounds: int = 10,
    stopwatch: Stopwatch | None = None,
    device: str = "cuda",
) -> Limits:
    """Times copies of 2 GiB and matmuls of 8192 x 8192 matrices; random data, medians.

    Args:
        matmul: the matmul rates to measure, from "float32", "tf32" and "bfloat16".
        rounds: number of runs of each.
        stopwatch: see common.measure.timing.
        device: the device.

    Raises:
        ValueError: an unknown kind of arithmetic.
        RuntimeError: torch sees no GPU.
    """
    if unknown := set(matmul) - {"float32", "tf32", "bfloat16"}:
        raise ValueError(f"matmul holds {sorted(unknown)}; it may hold float32, tf32 and bfloat16")
    stopwatch = stopwatch or CudaStopwatch()
    copy = _copy_rate(rounds, stopwatch, device)
    rates = {}
    for kind in matmul:
        dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32

        def matrices(dtype: torch.dtype = dtype) -> tuple[torch.Tensor, torch.Tensor]:
            return tuple(torch.randn(MATMUL_SIZE, MATMUL_SIZE, device=device, dtype=dtype) for _ in range(2))

        with float32_precision("high" if kind == "tf32" else "highest"):
            timing = measure({kind: torch.mm}, matrices, rounds, stopwatch=stopwatch)[kind]
        rates[kind] = 2 * MATMUL_SIZE**3 / timing.seconds
    return Limits(copy, rates)


def _copy_rate(rounds: int, stopwatch: Stopwatch, device: str) -> float:
    target = torch.empty(COPY_BYTES // 4, device=device)
    timings = measure({"copy": target.copy_}, lambda: (torch.randn_like(target),), rounds, stopwatch=stopwatch)
    return 2 * COPY_BYTES / timings["copy"].seconds
