"""The roofline estimate: the minimum time that each resource of a GPU needs for a kernel's work.

bounds(kernel, gpu)     -> [Bound("DRAM", "8,380,416 bytes", 1.7e-6), ...], the longest first
"""

from __future__ import annotations

from dataclasses import dataclass

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
    found = []
    if kernel.dram:
        found.append(Bound("DRAM", f"{kernel.dram:,.0f} bytes", kernel.dram / gpu.bandwidth))
    if kernel.wavefronts:
        found.append(Bound("shared memory", f"{kernel.wavefronts:,} wavefronts", kernel.wavefronts / gpu.wavefronts))
    if kernel.operations and kernel.operations.flops:
        flops = kernel.operations.flops
        found.append(Bound("float32", f"{flops:,} operations", flops / gpu.fp32))
    if kernel.operations and kernel.operations.special:
        special = kernel.operations.special
        found.append(Bound("special functions", f"{special:,} of them", special / gpu.special))
    if kernel.tensor_flops:
        found.append(
            Bound("tensor cores", f"{kernel.tensor_flops:,} operations", kernel.tensor_flops / gpu.fp16_tensor)
        )
    return sorted(found, key=lambda bound: bound.seconds, reverse=True)
