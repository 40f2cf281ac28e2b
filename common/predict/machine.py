"""Properties of GPUs beyond their data sheets, for predictions: caches, latencies, achievable rates.

    machine_of(find("H100"))      -> Machine
    H100_MEASURED                 output of `python -m common.benchmark machine`

Sources, by letter:
L  latencies of Hopper, Ada and Ampere: Luo et al., Benchmarking and Dissecting the Nvidia Hopper GPU Architecture
   through Microbenchmarking, arXiv:2402.13499, the table of latencies (H100 PCIe, A100 PCIe, RTX 4090).
J  of Turing and Volta: Jia et al., Dissecting the NVidia Turing T4 GPU via Microbenchmarking, arXiv:1903.07486.
P  peak L2 bandwidth in table 3 of PMC10448217 (V100 3.13, A100 7.22, H100 8.99 TB/s), times 0.69, the fraction
   of the peak that Jia et al. measured on a V100 (2.155 TB/s).
R  measured in this repository: copies reach 3.03 of 3.35 TB/s on an H100 and 4.25 of 4.80 on an H200
   (common/kernels/softmax/README.md).
E  an estimate: no measurement, scaled from the nearest GPU above.

M  measured in this repository on one H100 80GB, by `python -m common.benchmark machine`; L1 and tensor cores as in L.

Cache sizes are from NVIDIA's white papers. The other figures (barrier, launch, block, arithmetic, the clock under
load) are the H100's for every GPU on which the microbenchmarks have not run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from common.measure.gpus import GpuSpec

KB, MB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Machine:
    """One GPU.

    Attributes:
        gpu: its data sheet.
        clock: clock under load, Hz.
        l1_bytes: L1 cache and shared memory of an SM together.
        l2_bytes: size of the L2 cache.
        l2_bandwidth: L2 read bandwidth of all SMs together, bytes per second.
        dram_share, tensor_share: achievable fractions of the data sheet's bandwidth and dense mma rate.
        l1, l2, dram: load latencies in cycles.
        arithmetic: latency of a dependent FMA in cycles.
        barrier: cycles of a __syncthreads().
        launch: seconds for an empty kernel, between two events.
        block: cycles from the end of a block to the start of the next one in its place.
        block_rate: blocks that the whole GPU starts per second.
        sources: letters of this file's list, for latencies, L2, DRAM.
    """

    gpu: GpuSpec
    clock: float
    l1_bytes: int
    l2_bytes: int
    l2_bandwidth: float
    dram_share: float
    tensor_share: float
    l1: float
    l2: float
    dram: float
    arithmetic: float = 4.2
    barrier: float = 28.0
    launch: float = 3.1e-6
    block: float = 300.0
    block_rate: float = 1.65e9
    sources: str = "E"

    @property
    def origin(self) -> str:
        """The sources of the latencies and rates."""
        estimated = "estimated" if "E" in self.sources else "published by others"
        return f"{'measured by this project' if self.sources == 'M' else estimated} (common/predict/machine.py)."

    @property
    def dram_bandwidth(self) -> float:
        return self.gpu.bandwidth * self.dram_share

    @property
    def tensor(self) -> float:
        """Achievable operations per second of mma instructions with 16-bit inputs."""
        return self.gpu.fp16_tensor * self.tensor_share


# By capability (L2 sizes and bandwidths are per GPU): L1 + shared memory, latencies. mma.sync reaches about 62% of the
# dense rate on Hopper, whose tensor cores need wgmma (L), and nearly all of it elsewhere.
_LATENCIES = {
    (7, 0): (128 * KB, 28, 193, 400, 0.85, "J"),
    (7, 5): (96 * KB, 32, 188, 296, 0.85, "J"),
    (8, 0): (192 * KB, 37.9, 261.5, 466.3, 0.9, "L"),
    (8, 6): (128 * KB, 37.9, 261.5, 466.3, 0.9, "E"),
    (8, 9): (128 * KB, 43.4, 273.0, 541.5, 0.9, "L"),
    (9, 0): (256 * KB, 40.7, 263.0, 478.8, 0.62, "L"),
    (12, 0): (128 * KB, 43.4, 273.0, 541.5, 0.9, "E"),
}
# name: L2 bytes, L2 bandwidth, clock under load / boost clock, fraction of DRAM bandwidth, sources of both
_GPUS = {
    "H100 SXM": (50 * MB, 6.2e12, 0.886, 0.905, "PR"),
    "H200": (50 * MB, 6.2e12, 0.886, 0.885, "PR"),
    "A100 80GB": (40 * MB, 4.98e12, 1.0, 0.9, "PE"),
    "A100 40GB": (40 * MB, 4.98e12, 1.0, 0.9, "PE"),
    "V100": (6 * MB, 2.155e12, 1.0, 0.9, "JE"),
    "T4": (4 * MB, 1.27e12, 0.7, 0.8, "JE"),
    "RTX 4090": (72 * MB, 5.0e12, 1.0, 0.92, "EE"),
}
# H100 SXM: python -m common.benchmark machine
H100_MEASURED = {
    "l2": 282.2, "dram": 689.1, "arithmetic": 4.19, "barrier": 28.04,
    "launch": 3.04e-06, "block_rate": 1.664e09, "block": 296.2, "dram_share": 0.9003, "l2_bandwidth": 6.56e12,
    "clock": 1.951e09,
}  # fmt: skip


def machine_of(gpu: GpuSpec) -> Machine:
    """The model of a GPU; values without a source are scaled from the H100 by SMs and clock."""
    l1_bytes, l1, l2, dram, tensor_share, latencies = _LATENCIES[gpu.capability]
    h100 = 6.2e12 / (132 * 1.98e9)
    l2_bytes, l2_bandwidth, clock, dram_share, sources = _GPUS.get(
        gpu.name, (32 * MB, h100 * gpu.sms * gpu.clock, 0.95, 0.9, "EE")
    )
    found = Machine(
        gpu, gpu.clock * clock, l1_bytes, l2_bytes, l2_bandwidth, dram_share, tensor_share, l1, l2, dram,
        sources=latencies + sources,
    )  # fmt: skip
    return replace(found, **H100_MEASURED, sources="M") if gpu.name == "H100 SXM" else found
