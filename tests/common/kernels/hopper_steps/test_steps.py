"""The programs that teach wgmma, TMA and warp roles: right in the simulator and on a GPU, short, caught if broken."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.compiling.program import build_program

FOLDER = Path(__file__).resolve().parents[4] / "common" / "kernels" / "hopper_steps"
STEPS = sorted(FOLDER.glob("step*.cu"))


@pytest.mark.parametrize("backend", ["simulator", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.stem)
def test_it_is_right(step, backend):
    program = build_program(step, backend).path
    for k in [[]] if "step1" in step.name else [["64"], ["200"], ["576"]]:
        done = subprocess.run([program, *k], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "(right)" in done.stdout, done.stdout + done.stderr


def test_each_is_short():
    assert len(STEPS) == 3
    assert all(len(step.read_text().splitlines()) < 120 for step in STEPS)


WAIT = "        wgmma_wait<0>();\n        keep_order(d);\n        if"
EXPECT, EMPTY = "mbarrier_expect(full, 2 * TILE_BYTES)", "mbarrier_init(stages.empty[stage], 4)"
EARLY, OVERWRITTEN = "copy not waited for", "overwritten while it is being read"
BROKEN = [
    ("step1_wgmma.cu", "    fence_proxy_async();  //", "    //", "missing proxy fence"),
    ("step1_wgmma.cu", "    wgmma_wait<0>();  //", "    write_accumulators(c, d);  //", "accumulator touched before"),
    ("step2_tma.cu", "mbarrier_wait(full, step % 2)", "mbarrier_wait(full, (step + 1) % 2)", EARLY),
    ("step2_tma.cu", EXPECT, "mbarrier_expect(full, TILE_BYTES)", EARLY),
    ("step2_tma.cu", EXPECT, "mbarrier_expect(full, 3 * TILE_BYTES)", "8192 more byte(s)"),
    ("step2_tma.cu", "        __syncthreads();  // no thread", "        // no thread", OVERWRITTEN),
    ("step3_roles.cu", WAIT, "        if", OVERWRITTEN),
    ("step3_roles.cu", "ring.parity() ^ 1", "ring.parity()", "is the parity one off?"),
    ("step3_roles.cu", EMPTY, EMPTY.replace("4", "5"), "misses 1 of 5 arrival(s)"),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "text", "instead", "said"), BROKEN)
def test_broken_ones_are_told(tmp_path, name, text, instead, said):
    source = (FOLDER / name).read_text()
    assert source.count(text) == 1
    broken = tmp_path / name
    broken.write_text(source.replace(text, instead))
    command = [sys.executable, "-m", "common.run", "--check", "--backend", "simulator", broken]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "COLUMNS": "400"})
    assert done.returncode == 1
    assert said in done.stdout + done.stderr, done.stdout + done.stderr
