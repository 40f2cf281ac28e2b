"""The roofline estimate: the time that each resource of a GPU needs at least for what a kernel did.

bounds(kernel, gpu)     -> [Bound("DRAM", "8,380,416 bytes", 1.7e-6), ...], the longest first
"""

from __future__ import annotations

from dataclasses import dataclass

from common.inspect.profile.model import KernelProfile
from common.measure.gpus import GpuSpec


@dataclass(frozen=True)
class Bound:
    """A resource, how much of it the kernel needs (in words), and the time that this takes at least."""

    resource: str
    amount: str
    seconds: float


def leaves_most_idle(kernel: KernelProfile, gpu: GpuSpec) -> bool:
    """Whether the grid occupies fewer than half of the SMs: then no bound below tells how fast the kernel can be."""
    return 2 * kernel.blocks < gpu.sms


def bounds(kernel: KernelProfile, gpu: GpuSpec) -> list[Bound]:
    """The least time for each resource, as if all SMs were busy with it all the time; the longest first.

    Left out: latencies and how well other warps hide them, the L1 and L2 caches, integer and address arithmetic,
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
