"""Named GPUs: their peak rates, and occupancy: how many blocks of a kernel fit on an SM.

    gpu = find("h200")                        tolerant of case and spelling; accepts torch's device names
    chosen(None)                              the GPU of this machine, if it is known
    occupancy(gpu, threads=256, shared_bytes=32 << 10, registers=64)    -> blocks per SM and what limits them

Sources. Limits of an SM: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the allocation
units are those of NVIDIA's cuda_occupancy.h, against which the tests compare. SMs, boost clocks, bandwidths and tensor
core rates: NVIDIA's data sheets and architecture white papers (Volta, Turing, Ampere GA100 and GA102, Ada, Hopper,
Blackwell); tensor core rates are dense and accumulate in float32. The float32 rate is not stored: it is
SMs * lanes * 2 * clock. These are theoretical peaks; no kernel reaches them.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from common.compiling import toolchain

DEFAULT = "H200"
KB = 1024
WARP = 32
MAX_THREADS_PER_BLOCK = 1024
MAX_REGISTERS_PER_THREAD = 255
REGISTERS_PER_SM = 64 * KB  # 32-bit registers
REGISTER_UNIT = 256  # a warp's registers are allocated in multiples of this
SCHEDULERS = 4  # an SM's warps and registers are divided among four
SPECIAL_PER_CLOCK = 16  # results per SM and clock of exp2, log2, rsqrt, sin, ...


@dataclass(frozen=True)
class Capability:
    """The limits of one SM, which depend only on the compute capability.

    Attributes:
        threads, blocks: maximum resident per SM.
        shared_per_sm: bytes.
        shared_per_block: bytes, with cudaFuncAttributeMaxDynamicSharedMemorySize (48 KiB without).
        shared_reserved: bytes reserved by the driver per block.
        shared_unit: a block's shared memory is allocated in multiples of this.
        float_lanes: float32 operations issued per SM and clock.
    """

    threads: int
    blocks: int
    shared_per_sm: int
    shared_per_block: int
    shared_reserved: int
    shared_unit: int
    float_lanes: int


CAPABILITIES = {
    (7, 0): Capability(2048, 32, 96 * KB, 96 * KB, 0, 256, 64),
    (7, 5): Capability(1024, 16, 64 * KB, 64 * KB, 0, 256, 64),
    (8, 0): Capability(2048, 32, 164 * KB, 163 * KB, 1 * KB, 128, 64),
    (8, 6): Capability(1536, 16, 100 * KB, 99 * KB, 1 * KB, 128, 128),
    (8, 9): Capability(1536, 24, 100 * KB, 99 * KB, 1 * KB, 128, 128),
    (9, 0): Capability(2048, 32, 228 * KB, 227 * KB, 1 * KB, 128, 128),
    (12, 0): Capability(1536, 24, 100 * KB, 99 * KB, 1 * KB, 128, 128),
}


@dataclass(frozen=True)
class GpuSpec:
    """One GPU's data sheet.

    Attributes:
        name: its usual name.
        capability: compute capability, (9, 0).
        sms: number of SMs.
        clock: boost clock, Hz.
        bandwidth: memory bandwidth, bytes per second.
        fp16_tensor, tf32_tensor: operations per second of the tensor cores, accumulating in float32; before Ampere tf32
            is None.
        also: alternative names.
    """

    name: str
    capability: tuple[int, int]
    sms: int
    clock: float
    bandwidth: float
    fp16_tensor: float
    tf32_tensor: float | None
    also: tuple[str, ...] = ()

    @property
    def limits(self) -> Capability:
        return CAPABILITIES[self.capability]

    @property
    def arch(self) -> str:
        """nvcc's target, "sm_90a"."""
        return toolchain.Gpu(self.name, self.capability).arch

    @property
    def fp32(self) -> float:
        """float32 operations per second outside the tensor cores; a fused multiply-add counts as two."""
        return self.sms * self.limits.float_lanes * 2 * self.clock

    @property
    def special(self) -> float:
        """Special functions per second."""
        return self.sms * SPECIAL_PER_CLOCK * self.clock

    @property
    def wavefronts(self) -> float:
        """Passes over the 32 banks of shared memory per second, over all SMs."""
        return self.sms * self.clock


def _gpu(name, capability, sms, mhz, gigabytes, fp16, tf32, *also) -> GpuSpec:
    """Clock in MHz, bandwidth in GB/s, tensor core rates in TFLOP/s."""
    tf32 = tf32 and tf32 * 1e12
    return GpuSpec(name, capability, sms, mhz * 1e6, gigabytes * 1e9, fp16 * 1e12, tf32, also)


GPUS = (
    _gpu("V100", (7, 0), 80, 1530, 900, 125, None, "V100 SXM2", "V100-SXM2-16GB", "V100-SXM2-32GB", "V100-SXM3-32GB"),
    _gpu("T4", (7, 5), 40, 1590, 320, 65, None),
    _gpu("RTX 2080 Ti", (7, 5), 68, 1545, 616, 53.8, None),
    _gpu("A100 40GB", (8, 0), 108, 1410, 1555, 312, 156, "A100-SXM4-40GB", "A100-PCIE-40GB"),
    _gpu("A100 80GB", (8, 0), 108, 1410, 2039, 312, 156, "A100", "A100-SXM4-80GB", "A100 80GB PCIe"),
    _gpu("A10", (8, 6), 72, 1695, 600, 125, 62.5),
    _gpu("RTX A6000", (8, 6), 84, 1800, 768, 154.8, 77.4, "A6000"),
    _gpu("RTX 3080", (8, 6), 68, 1710, 760, 59.5, 29.8),
    _gpu("RTX 3090", (8, 6), 82, 1695, 936, 71, 35.6),
    _gpu("L4", (8, 9), 58, 2040, 300, 121, 60),
    _gpu("L40S", (8, 9), 142, 2520, 864, 362, 183),
    _gpu("RTX 4080", (8, 9), 76, 2505, 717, 97.5, 48.7),
    _gpu("RTX 4090", (8, 9), 128, 2520, 1008, 165.2, 82.6),
    _gpu("H100 PCIe", (9, 0), 114, 1755, 2000, 756, 378),
    _gpu("H100 SXM", (9, 0), 132, 1980, 3350, 989, 494, "H100", "H100 SXM5", "H100 80GB HBM3"),
    _gpu("H200", (9, 0), 132, 1980, 4800, 989, 494, "H200 SXM", "H200 NVL"),
    _gpu("RTX 5090", (12, 0), 170, 2407, 1792, 209.5, 104.8),
)


def _key(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())


_BY_KEY = {_key(name): gpu for gpu in GPUS for name in (gpu.name, *gpu.also)}


def find(name: str) -> GpuSpec:
    """The GPU with this name: "h200", "rtx-4090", "NVIDIA A100-SXM4-80GB".

    Raises:
        ValueError: unknown name; the message lists the names.
    """
    if gpu := _BY_KEY.get(_key(name)):
        return gpu
    near = difflib.get_close_matches(_key(name), _BY_KEY, n=1, cutoff=0.5)
    perhaps = f"did you mean {_BY_KEY[near[0]].name}? " if near else ""
    raise ValueError(f"GPU is {name!r}; {perhaps}known are {', '.join(gpu.name for gpu in GPUS)}")


@dataclass(frozen=True)
class Occupancy:
    """The occupancy of an SM by a kernel.

    Attributes:
        blocks, warps: resident on one SM; 0 if not even one block fits.
        fraction: warps / maximum resident warps.
        limiter: the limiting resource: "threads", "blocks", "shared memory" or "registers".
    """

    blocks: int
    warps: int
    fraction: float
    limiter: str


def chosen(name: str | None) -> GpuSpec:
    """The GPU with this name; None: this machine's if its data sheet is known, otherwise DEFAULT.

    Raises:
        ValueError: see find.
    """
    if name:
        return find(name)
    present = toolchain.find_gpu()
    try:
        return find(present.name if present else DEFAULT)
    except ValueError:
        return find(DEFAULT)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(gpu: GpuSpec, threads: int, shared_bytes: int, registers: int | None = None) -> Occupancy:
    """The blocks that fit on one SM at a time, given the hardware's allocation units.

    Args:
        gpu: see find.
        threads: per block.
        shared_bytes: static and dynamic shared memory of a block.
        registers: per thread, as reported by ptxas; None ignores them.

    Raises:
        ValueError: threads outside 1 .. 1024, or a negative number of bytes or registers.
    """
    if not 1 <= threads <= MAX_THREADS_PER_BLOCK:
        raise ValueError(f"threads is {threads}; a block has 1 to {MAX_THREADS_PER_BLOCK}")
    if shared_bytes < 0 or (registers or 0) < 0:
        raise ValueError(f"shared_bytes is {shared_bytes} and registers is {registers}; neither can be negative")
    limits = gpu.limits
    warps = -(-threads // WARP)
    allowed = {"blocks": limits.blocks, "threads": limits.threads // WARP // warps}

    shared = _round_up(shared_bytes + limits.shared_reserved, limits.shared_unit)
    if shared > limits.shared_per_block + limits.shared_reserved:
        allowed["shared memory"] = 0
    elif shared:
        allowed["shared memory"] = limits.shared_per_sm // shared

    if registers:
        per_warp = _round_up(registers * WARP, REGISTER_UNIT)
        # a launch fails if the block's warps, rounded up to all four schedulers, need too many registers
        refused = per_warp * _round_up(warps, SCHEDULERS) > REGISTERS_PER_SM or registers > MAX_REGISTERS_PER_THREAD
        resident_warps = REGISTERS_PER_SM // SCHEDULERS // per_warp * SCHEDULERS
        allowed["registers"] = 0 if refused else resident_warps // warps

    limiter = min(allowed, key=allowed.__getitem__)
    blocks = allowed[limiter]
    return Occupancy(blocks, blocks * warps, blocks * warps * WARP / limits.threads, limiter)
