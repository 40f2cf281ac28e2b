"""The tiles that `python -m task4.tune` tries, why some are impossible, and one build of all the others.

    candidates = grid(head_dims, b_rs, b_cs, warps, gpu, shared_kb)     every combination, with any problems
    tuning = compile_candidates(candidates, variant, shared_kb)         all possible ones in one library
    tuning.choose(candidate)                                            ops.flash_attention uses its tiles from now on

The library consists of files generated here, which include the student's flash_attention.cu unchanged: each
instantiates launch_flash_attention for some of the tiles, so that they compile in parallel.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common.compiling.gaps import find_gaps
from common.compiling.load import build, load
from common.compiling.operators import Operators
from common.compiling.places import places_of
from common.compiling.report import KernelResources
from common.compiling.request import BuildRequest
from common.compiling.variant import Variant
from common.console.files import write_whole
from common.console.paths import build_root
from common.measure.gpus import GpuSpec
from task4.given.tiles import TileSizes
from task4.tools.tuning.tile_plan import TilePlan

B_RS = (16, 32, 48, 64, 96, 128)
B_CS = (32, 64, 96, 128)
WARPS = (2, 4, 8)

ARGUMENTS = """const float* query, const float* key, const float* value, float* out, int64_t batch_heads, int64_t S_q,
    int64_t S_k, int head_dim, float scale, bool causal, int64_t diagonal, cudaStream_t stream"""

# The included file's host function is not called, and must not clash with that of another part
PART = """\
// Written by python -m task4.tune.
#define TUNING_SHARED_KB {shared_kb}
#define custom_flash_attention not_tuned_{number}
#include "{source}"
#undef custom_flash_attention

void launch_part_{number}(int chosen, {arguments}) {{
    using Launch = decltype(&launch_flash_attention<{first}>);
    static const Launch launches[] = {{
{launches}
    }};
    launches[chosen](query, key, value, out, batch_heads, S_q, S_k, head_dim, scale * LOG2_E,
                     causal ? diagonal : NOT_CAUSAL, stream);
}}
"""
CHOICE = """\
// Written by python -m task4.tune.
#include "task4/given/flash_attention.h"

static int part = 0, chosen = 0;
extern "C" __attribute__((visibility("default"))) void choose_tiles(int new_part, int number) {{
    part = new_part;
    chosen = number;
}}

{declarations}
void custom_flash_attention({arguments}) {{
    using Launch = decltype(&launch_part_0);
    static const Launch parts[] = {{{parts}}};
    parts[part](chosen, query, key, value, out, batch_heads, S_q, S_k, head_dim, scale, causal, diagonal, stream);
}}
"""


@dataclass(frozen=True)
class Candidate:
    """Tiles for one padded head_dim, and why they are impossible ("" if they are possible)."""

    head_dim: int
    tiles: TileSizes
    problems: tuple[str, ...] = ()

    @property
    def kernel(self) -> str:
        """The kernel's name in ptxas's report."""
        return f"flash_attention_kernel<{self.arguments}>"

    @property
    def arguments(self) -> str:
        """The arguments of the templates in flash_attention.cu."""
        return f"{self.tiles.B_r}, {self.tiles.B_c}, {self.head_dim}, {self.tiles.warps}"


def grid(
    head_dims: Sequence[int],
    b_rs: Sequence[int],
    b_cs: Sequence[int],
    warps: Sequence[int],
    gpu: GpuSpec,
    shared_kb: int,
) -> list[Candidate]:
    """Every combination, in order."""
    found = []
    for D, B_r, B_c, count in itertools.product(head_dims, b_rs, b_cs, warps):
        tiles = TileSizes(B_r, B_c, count)
        found.append(Candidate(D, tiles, tuple(TilePlan(tiles, D).problems(gpu, shared_kb))))
    return found


@dataclass
class TuningBuild:
    """The library with all possible candidates.

    Attributes:
        ops: its operators, with ops.flash_attention.
        places: candidate -> (part, number within it).
        kernels: ptxas's report on each kernel; empty in the simulator.
    """

    ops: Operators
    places: dict[Candidate, tuple[int, int]]
    kernels: list[KernelResources] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._choose = ctypes.CDLL(str(self.ops.libraries[0].path)).choose_tiles

    def choose(self, candidate: Candidate) -> None:
        """From now on ops.flash_attention uses these tiles, whatever the head_dim."""
        self._choose(*self.places[candidate])

    def spills(self, candidate: Candidate) -> int:
        """Bytes that each thread of its kernel spills to memory, stores and loads together."""
        mine = [kernel for kernel in self.kernels if kernel.name == candidate.kernel]
        return sum(kernel.spill_stores + kernel.spill_loads for kernel in mine)


def write_sources(candidates: Sequence[Candidate], source: Path, folder: Path, shared_kb: int) -> list[Path]:
    """Writes the .cu files of a library with all these candidates, one per part (see parts_of)."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = parts_of(candidates)
    texts = {}
    for number, part in enumerate(parts):
        launches = ",\n".join(f"        launch_flash_attention<{one.arguments}>" for one in part)
        texts[f"part_{number}.cu"] = PART.format(
            shared_kb=shared_kb,
            number=number,
            source=source,
            arguments=ARGUMENTS,
            first=part[0].arguments,
            launches=launches,
        )
    texts["choice.cu"] = CHOICE.format(
        declarations="\n".join(f"void launch_part_{i}(int chosen, {ARGUMENTS});" for i in range(len(parts))),
        arguments=ARGUMENTS,
        parts=", ".join(f"launch_part_{i}" for i in range(len(parts))),
    )
    for name, text in texts.items():
        write_whole(folder / name, text)
    return [folder / name for name in texts]


def parts_of(candidates: Sequence[Candidate]) -> list[list[Candidate]]:
    """Distributes the candidates over one file per processor, with at least four candidates per file."""
    count = max(1, min(os.cpu_count() or 1, len(candidates) // 4))
    return [list(candidates[start::count]) for start in range(count)]


def compile_candidates(
    candidates: Sequence[Candidate], variant: Variant, shared_kb: int, backend: str = "cuda"
) -> TuningBuild:
    """Compiles the candidates that are possible.

    Args:
        candidates: see grid.
        variant: whose kernel, the student's or the solution's.
        shared_kb: the shared memory limit per block.
        backend: "cuda", or "simulator" for tests.

    Raises:
        ValueError: none of them is possible, or the kernel has unfilled gaps.
        BuildError: the kernel does not compile with these tiles.
    """
    possible = [one for one in candidates if not one.problems]
    if not possible:
        raise ValueError("none of these tiles is possible; python -m task4.tune lists the reasons")
    (source,) = places_of("task4", variant)[0].kernels
    if gaps := find_gaps([source]):
        raise ValueError(f"{gaps[0]} is not implemented yet: tune when `python -m task4.test` passes")
    label = f"tune_{variant}"
    sources = write_sources(possible, source, build_root() / "tune" / label, shared_kb)
    request = BuildRequest("task4", backend=backend, sources=sources, label=label)
    [result] = build(request)
    ops = load(request)
    places = {one: (part, i) for part, members in enumerate(parts_of(possible)) for i, one in enumerate(members)}
    return TuningBuild(ops, places, result.kernels)
