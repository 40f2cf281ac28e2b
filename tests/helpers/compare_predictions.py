"""Predicted against measured times: python tests/helpers/compare_predictions.py [--gpu] [--no-nvcc] [--only TEXT]

Without --gpu: the times that this repository's READMEs give, all of one H200, against the model's. With it: times the
kernels of those tables and the programs of tests/common/predict/kernels (three sizes), on this machine's GPU.

Figures for common/predict/README.md come from here. `--no-nvcc` predicts with estimated registers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from common.compiling.load import load, simulated
from common.compiling.program import build_program
from common.compiling.request import BuildRequest
from common.inspect.source_lines import SourceLines
from common.measure import gpus
from common.measure.benchmark.problem import Problem
from common.measure.benchmarks.flash import Problem as Attention
from common.measure.benchmarks.flash import forward_of
from common.measure.benchmarks.gemm import GemmProblem
from common.measure.benchmarks.softmax import SoftmaxProblem
from common.measure.timing import measure
from common.predict.counters import SAMPLE, read_launches
from common.predict.launches import Counting, Registers, cheap_inputs
from common.predict.machine import machine_of
from common.predict.model import predict
from common.predict.report import bound_words, duration, total_seconds

PROGRAMS = Path(__file__).resolve().parents[1] / "common" / "predict" / "kernels"
SIZES = (1 << 20, 1 << 22, 1 << 24)
# slower, faster: of one kernel
PLANTED = (
    ("copy_uncoalesced", "copy"), ("copy_small_blocks", "copy"), ("copy_low_occupancy", "copy"),
    ("copy_one_block", "copy"),
    ("transpose_uncoalesced", "transpose"), ("transpose_conflicts", "transpose"), ("matmul_8", "matmul_32"),
    ("row_sum_barriers", "row_sum"),
)  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A time of an H200 that a README states.

    Attributes:
        group: "gemm": the model was built with these at hand. "attention": held out until it was finished.
        request, prepare: the build, and prepare(operators) -> a function of the problem's inputs that gives the call.
        seconds: what the README says.
    """

    group: str
    name: str
    problem: Problem
    request: BuildRequest
    prepare: Callable
    seconds: float


def _operator(name: str, *more) -> Callable:
    return lambda ops: lambda *inputs: partial(getattr(ops, name), *inputs, *more)


def published() -> Iterator[Published]:
    """common/kernels/gemm, common/kernels/softmax, common/kernels/flash/notes/measured.md."""
    taught, room = BuildRequest("task2", "solution"), BuildRequest("gemm")
    for kind, times in (("gemm_nn", (8.42, 4.07, 3.63, 3.45, 2.87)), ("gemm_nt", (9.19, 4.76, 3.95, 3.56, 2.89))):
        problem = GemmProblem(kind, 1, 4096, 4096, 4096)
        for step, ms in enumerate(times):
            prepare = _operator(f"{kind}_step", step) if step else _operator(kind)
            yield Published("gemm", f"{kind} {f'step {step}' if step else 'taught'}", problem, room if step else taught,
                            prepare, 1e-3 * ms)  # fmt: skip
    for size, times in (((65536, 4096), (573, 589, 550, 525)), ((4096, 65536), (1190, 821, 767, 624))):
        for step, us in enumerate(times):
            prepare = _operator("softmax_step", step) if step else _operator("softmax")
            request = BuildRequest("softmax") if step else taught
            name = f"softmax {f'step {step}' if step else 'taught'}"
            yield Published("softmax", name, SoftmaxProblem(*size), request,
                            prepare, 1e-6 * us)  # fmt: skip
    rates = {  # TFLOP/s at 512, 2048 and 16384, then causal; head_dim 64, then 128
        ("taught in task 4", "task4"): ((25.3, 27.3, 27.3, 20.1, 25.2, 27.3), (25.0, 27.1, 27.3, 20.7, 24.5, 26.5)),
        ("flash_attention_fp32.cu", "ffma"): (
            (40.0, 41.8, 41.5, 30.5, 37.9, 40.7),
            (39.1, 40.4, 41.2, 29.5, 34.7, 38.0),
        ),
        ("flash_attention_mma.cuh", "mma"): ((291, 351, 362, 198, 300, 356), (328, 372, 391, 227, 323, 374)),
    }
    for (name, kind), of_dims in rates.items():
        for dim, row in zip((64, 128), of_dims, strict=True):
            for i, rate in enumerate(row):
                seq, causal = (512, 2048, 16384)[i % 3], i >= 3
                problem = Attention(
                    "forward", "bf16" if kind == "mma" else "fp32", dim, causal, seq, 16384 // seq, 2048 // dim
                )
                if kind == "task4":
                    request, prepare = (
                        BuildRequest("task4", "solution"),
                        lambda ops, c=causal: forward_of(ops.flash_attention, c),
                    )
                else:
                    cores = {} if kind == "mma" else {"tensor_cores": False}
                    request = BuildRequest("flash", arch="sm_89")
                    prepare = lambda ops, c=causal, m=cores: forward_of(ops.flash_attention, c, **m)  # noqa: E731
                yield Published("attention", name, problem, request, prepare, problem.work / (1e12 * rate))


def predicted_program(file: Path, size: int, gpu, use_nvcc: bool) -> dict:
    """Kernel -> its prediction, of a program of tests/common/predict/kernels."""
    program = build_program(file, "simulator", None, True, [])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        collect = {"SIMULATOR_COLLECT": "profile", "SIMULATOR_SAMPLE": str(SAMPLE), "SIMULATOR_REPORT": str(report)}
        collect["SIMULATOR_TIMEOUT"] = "60"  # one block alone may copy everything
        subprocess.run([str(program.path), str(size)], env={**os.environ, **collect}, check=True)
        raw = json.loads(report.read_text())
    registers = Registers([file], gpu, use_nvcc)
    launches = read_launches(raw, SourceLines(program.path), program.path)
    return {one.kernel.kernel: predict(registers.known(one), machine_of(gpu)) for one in launches}


def rows_of_programs(gpu, use_nvcc: bool, only: str) -> list[tuple]:
    """(group, name, size, predicted, measured, bound) of both programs, measured on the GPU of this machine."""
    rows = []
    for group in ("planted", "held_out"):
        file = PROGRAMS / f"{group}.cu"
        for size in SIZES:
            command = [str(build_program(file, "cuda").path), str(size), "time"]
            timed = subprocess.run(command, capture_output=True, text=True,
                                   check=True)  # fmt: skip
            measured = {name: float(s) for name, s in (line.split() for line in timed.stdout.splitlines())}
            for name, one in predicted_program(file, size, gpu, use_nvcc).items():
                if only in name:
                    rows.append((group, name, f"{size:,}", one.seconds, measured[name], bound_words(one)))
    return rows


def rows_of_published(gpu, use_nvcc: bool, only: str, on_gpu: bool) -> list[tuple]:
    """The same of the published tables; measured: by the README, or now."""
    rows = []
    for one in published():
        if only not in f"{one.group} {one.name} {one.problem.setting} {one.problem.column}":
            continue
        measured = one.seconds
        if on_gpu:
            call = one.prepare(load(BuildRequest(one.request.task, one.request.variant, "cuda")))
            inputs = partial(one.problem.make_inputs, "cuda")
            measured = measure({"it": lambda *x, call=call: call(*x)()}, inputs, rounds=10)["it"].seconds
        with simulated(), cheap_inputs(), torch.no_grad():
            ops = load(one.request)
            counting = Counting(ops.libraries, gpu, SAMPLE, use_nvcc)
            found = [
                predict(each, machine_of(gpu))
                for each in counting.launches(one.prepare(ops)(*one.problem.make_inputs("cpu")))
            ]
        longest = max(found, key=lambda each: each.seconds or 0)
        size = f"{one.problem.setting}, {one.problem.column}"
        rows.append((one.group, one.name, size, total_seconds(found), measured, bound_words(longest)))
        print("|", " | ".join(_cells(rows[-1])), "|", flush=True)
    return rows


def _cells(row: tuple) -> list[str]:
    group, name, size, predicted, measured, bound = row
    times = [duration(predicted) if predicted else "not modeled", duration(measured)]
    return [group, name, size, *times, f"{predicted / measured:.2f}" if predicted else "", bound]


def bars(rows: list[tuple]) -> Iterator[str]:
    """How near, of each group and all."""
    for group in [*dict.fromkeys(row[0] for row in rows), ""]:
        of_group = [row for row in rows if group in ("", row[0])]
        ratios = [row[3] / row[4] for row in of_group if row[3]]
        if ratios:
            near = sum(1 / 1.5 <= ratio <= 1.5 for ratio in ratios) / len(ratios)
            yield (
                f"{group or 'all'}: {len(of_group)} times, {len(of_group) - len(ratios)} not modeled; median error "
                f"{statistics.median(abs(ratio - 1) for ratio in ratios):.0%}, within 1.5 x {near:.0%}"
            )
    by_size: dict[tuple, tuple] = {row[1:3]: row for row in rows}
    right = wrong = 0
    pairs = [((a, size), (b, size)) for a, b in PLANTED for size in {row[2] for row in rows}]
    for first in rows:  # steps of a ladder
        pairs += [(first[1:3], second[1:3]) for second in rows if first[0] != "attention" and first[0] == second[0]
                  and first[0] in ("gemm", "softmax") and first[2] == second[2] and first[1] < second[1]]  # fmt: skip
    for a, b in pairs:
        if a in by_size and b in by_size and by_size[a][3] and by_size[b][3]:
            (_, _, _, predicted_a, measured_a, _), (_, _, _, predicted_b, measured_b, _) = by_size[a], by_size[b]
            if max(measured_a, measured_b) > 1.15 * min(measured_a, measured_b):
                agree = (predicted_a > predicted_b) == (measured_a > measured_b)
                right, wrong = right + agree, wrong + (not agree)
    if right + wrong:
        yield f"order of two variants that differ by more than 15%: {right} of {right + wrong} right"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--no-nvcc", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    options = parser.parse_args()
    os.environ.setdefault("SIMULATOR_TIMEOUT", "600")
    if options.gpu and not torch.cuda.is_available():
        parser.error("--gpu needs a GPU, and torch sees none; without it none is needed")
    gpu = gpus.find(torch.cuda.get_device_name() if options.gpu else "H200")
    print("| group | kernel | size | predicted | measured | ratio | bound by |\n|---|---|---|---|---|---|---|")
    rows = rows_of_published(gpu, not options.no_nvcc, options.only, options.gpu)
    if options.gpu:
        rows += rows_of_programs(gpu, not options.no_nvcc, options.only)
        print("\n".join("| " + " | ".join(_cells(row)) + " |" for row in rows if row[0] in ("planted", "held_out")))
    print("\n" + "\n".join(bars(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
