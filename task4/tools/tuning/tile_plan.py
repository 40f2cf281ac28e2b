"""What a choice of tiles costs on paper: shared memory, registers, work per tile, and why it may be impossible.

    one = TilePlan(TileSizes(64, 32, 4), head_dim=64, dtype="fp32")
    one.shared_bytes, one.registers, one.flops, one.intensity
    one.problems(gpu, shared_kb)      why it cannot run, [] if it can
    one.occupancy(gpu)                blocks per SM, and what limits them

There are two layouts. fp32 is the kernel of this task: Q, K (rows padded by 4 floats), V and P in shared memory; a lane
owns keys of S and columns of O. fp16 and bf16 is FlashAttention-2 on tensor cores (mma.m16n8k16): Q and `stages` tiles
each of K and V in shared memory, swizzled and so without padding; a warp owns multiples of 16 rows; scores, output and
sums are float32 in registers, and P is rounded to 16 bits and also stays in registers.

The number of registers is an estimate: the arrays that are live at the same time, counted by the formulas below, plus
OTHER_REGISTERS for pointers, indices and values in flight. For the tiles of tiles.h it is within 24 of what ptxas
allocates on sm_80; on other architectures ptxas uses more. For the actual number, run `python -m task4.compile`.
"""

from __future__ import annotations

from dataclasses import dataclass

from common.measure import gpus
from common.measure.gpus import GpuSpec, Occupancy
from task4.given.tiles import TileSizes, padded_head_dim

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
OTHER_REGISTERS = 40
KB = 1024


@dataclass(frozen=True)
class TilePlan:
    """One choice of tiles.

    Attributes:
        tiles: B_r, B_c, warps.
        head_dim: 1 .. 128; the tiles are as wide as the next multiple of 32.
        dtype: "fp32", "fp16" or "bf16".
        stages: tiles of K and of V in shared memory at a time; more than one if loads overlap with computation.
    """

    tiles: TileSizes
    head_dim: int
    dtype: str = "fp32"
    stages: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in BYTES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be {', '.join(BYTES)}")
        padded_head_dim(self.head_dim)
        for name in ("B_r", "B_c", "warps"):
            if getattr(self.tiles, name) < 1:
                raise ValueError(f"{name} is {getattr(self.tiles, name)}; it must be at least 1")
        if self.stages < 1:
            raise ValueError(f"stages is {self.stages}; it must be at least 1")

    @property
    def on_tensor_cores(self) -> bool:
        return self.dtype != "fp32"

    @property
    def D(self) -> int:
        """head_dim, padded."""
        return padded_head_dim(self.head_dim)

    @property
    def threads(self) -> int:
        return 32 * self.tiles.warps

    @property
    def shared(self) -> dict[str, tuple[str, int]]:
        """Each tile in shared memory: name -> (its shape, bytes)."""
        B_r, B_c, size = self.tiles.B_r, self.tiles.B_c, BYTES[self.dtype]
        k_row = self.D if self.on_tensor_cores else self.D + 4
        times = f"{self.stages} x " if self.stages > 1 else ""
        found = {
            "Q": (f"{B_r} x {self.D}", B_r * self.D * size),
            "K": (f"{times}{B_c} x {k_row}", self.stages * B_c * k_row * size),
            "V": (f"{times}{B_c} x {self.D}", self.stages * B_c * self.D * size),
        }
        return found if self.on_tensor_cores else found | {"P": (f"{B_r} x {B_c}", B_r * B_c * size)}

    @property
    def shared_bytes(self) -> int:
        return sum(count for _, count in self.shared.values())

    @property
    def register_arrays(self) -> dict[str, int]:
        """A thread's live arrays at peak register usage: name -> 32-bit registers."""
        rows = -(-self.tiles.B_r // self.tiles.warps)
        cols, keys = self.D // 32, -(-self.tiles.B_c // 32)
        if self.on_tensor_cores:  # 32 lanes share rows x columns evenly; a lane has 2 rows of each 16
            return {
                "O": rows * cols,
                "m, l": 2 * (rows // 8),
                "S": rows * keys,
                "P": rows * keys // 2,
                "Q": rows * self.D // 64,
                "K, V": 8,
                "other": OTHER_REGISTERS,
            }
        scores, values = rows * keys + 4 * keys + 4, 4 * cols + 4  # S, K and Q; or V and P
        most = {"S": rows * keys, "K, Q": 4 * keys + 4} if scores >= values else {"V, P": values}
        return {"O": rows * cols, "m, l": 2 * rows, **most, "other": OTHER_REGISTERS}

    @property
    def registers(self) -> int:
        """Per thread, estimated."""
        return sum(self.register_arrays.values())

    @property
    def bytes_loaded(self) -> int:
        """Bytes loaded from global memory for one tile of keys: its rows of K and V, without padding."""
        return 2 * self.tiles.B_c * self.head_dim * BYTES[self.dtype]

    @property
    def flops(self) -> int:
        """FLOPs of one tile: Q K^T and P V, including padding, 2 per multiply-add."""
        return 4 * self.tiles.B_r * self.tiles.B_c * self.D

    @property
    def exponentials(self) -> int:
        """The number of exponentials of one tile."""
        return self.tiles.B_r * self.tiles.B_c

    @property
    def intensity(self) -> float:
        """Operations per byte loaded."""
        return self.flops / self.bytes_loaded

    @property
    def shared_passes(self) -> int:
        """Passes over the 32 banks of shared memory for one tile, all warps together, without bank conflicts.

        A pass serves 128 bytes. A float4 broadcast takes two, in agreement with the counters of the checked build.
        """
        B_r, B_c, warps = self.tiles.B_r, self.tiles.B_c, self.tiles.warps
        rows, keys, cols = B_r // warps, B_c // 32, self.D // 32
        if self.on_tensor_cores:  # each warp reads all of K and V (ldmatrix); they are written once (cp.async)
            return (warps + 1) * 2 * B_c * self.D * BYTES[self.dtype] // 128
        written = 2 * B_c * self.D // 32
        scores = self.D // 4 * (4 * keys + 2 * rows)  # per warp: a float4 of each lane's keys; of each row of Q
        weights = rows * keys + B_c // 4 * 2 * rows  # P: written, then read as Q is
        values = B_c * cols
        return written + warps * (scores + weights + values)

    def cycles(self, gpu: GpuSpec) -> dict[str, float]:
        """Minimum cycles on one SM for each kind of work of one tile; the largest is the bottleneck."""
        per_clock = gpu.sms * gpu.clock
        return {
            "multiplications": self.flops * per_clock / self.peak(gpu),
            "exponentials": self.exponentials * per_clock / gpu.special,
            "shared memory": float(self.shared_passes),
        }

    def occupancy(self, gpu: GpuSpec, registers: int | None = None) -> Occupancy:
        """How many blocks fit on an SM; registers: ptxas's count, or None for the estimate."""
        return gpus.occupancy(gpu, self.threads, self.shared_bytes, registers or self.registers)

    def peak(self, gpu: GpuSpec) -> float:
        """The GPU's peak operations per second in this dtype."""
        return gpu.fp16_tensor if self.on_tensor_cores else gpu.fp32

    def shape_problems(self) -> list[str]:
        """Problems on any GPU: tiles that warps or lanes cannot split evenly."""
        B_r, B_c, warps = self.tiles.B_r, self.tiles.B_c, self.tiles.warps
        rows, keys = (16 * warps, 16) if self.on_tensor_cores else (warps, 32)
        found = []
        if self.threads > gpus.MAX_THREADS_PER_BLOCK:
            found.append(f"threads: {warps} warps are {self.threads}; a block has at most {gpus.MAX_THREADS_PER_BLOCK}")
        if B_r % rows:
            each = "16 rows of a matrix instruction per warp" if self.on_tensor_cores else "whole rows per warp"
            found.append(f"does not divide: B_r = {B_r} is no multiple of {rows} ({each})")
        if B_c % keys:
            each = "the 16 keys of a matrix instruction" if self.on_tensor_cores else "one key per lane"
            found.append(f"does not divide: B_c = {B_c} is no multiple of {keys} ({each})")
        return found

    def problems(self, gpu: GpuSpec, shared_kb: int | None = None) -> list[str]:
        """Why it cannot run, or only slowly, on this GPU: "shared memory: 66.0 KB of 64". [] if it can.

        shared_kb: the shared memory limit per block; None: the GPU's maximum.
        """
        found = self.shape_problems()
        most = min(gpu.limits.shared_per_block, (shared_kb or KB) * KB)
        if self.shared_bytes > most:
            found.append(f"shared memory: {self.shared_bytes / KB:.1f} KB of {most / KB:g}")
        if self.registers > gpus.MAX_REGISTERS_PER_THREAD:
            found.append(f"registers: about {self.registers} of {gpus.MAX_REGISTERS_PER_THREAD}, the rest would spill")
        elif not found and self.occupancy(gpu).blocks == 0:
            found.append(f"registers: about {self.registers} for each of {self.threads} threads, of 65,536 in all")
        return found
