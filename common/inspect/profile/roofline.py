"""The roofline estimate: the minimum time that each resource of a GPU needs for a kernel's work.

bounds(kernel, gpu)     -> [Bound("DRAM", "8,380,416 bytes", 1.7e-6), ...], the longest first
"""

from __future__ import annotations

from dataclasses import dataclass

from common.inspect.profile.instruction_counts import NOTHING
from common.inspect.profile.model import KernelProfile
from common.measure.gpus import GpuSpec


@dataclass(frozen=True)
class Bound:
    """A resource, the amount that the kernel needs (in words), and the minimum time for it."""

    resource: str
    amount: str
    seconds: float


def leaves_most_idle(kernel: KernelProfile, gpu: GpuSpec) -> bool:
    """Whether the grid occupies fewer than half of the SMs; no bound below then predicts the kernel's speed."""
    return 2 * kernel.blocks < gpu.sms


def bounds(kernel: KernelProfile, gpu: GpuSpec) -> list[Bound]:
    """The minimum time for each resource if all SMs kept it busy all the time; longest first.

    Ignored: latencies and how well other warps hide them, the L1 and L2 caches, integer and address arithmetic,
    instruction issue, the launch, a grid too small for the GPU. So a kernel takes longer than the longest bound.
    """
    operations = kernel.operations or NOTHING
    work = (
        ("DRAM", kernel.dram, "bytes", gpu.bandwidth),
        ("shared memory", kernel.wavefronts, "wavefronts", gpu.wavefronts),
        ("float32", operations.flops, "operations", gpu.fp32),
        ("special functions", operations.special, "of them", gpu.special),
        ("tensor cores", kernel.tensor_flops, "operations", gpu.fp16_tensor),
    )
    found = [Bound(name, f"{amount:,.0f} {unit}", amount / rate) for name, amount, unit, rate in work if amount]
    return sorted(found, key=lambda bound: bound.seconds, reverse=True)
