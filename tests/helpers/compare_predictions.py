"""Predicted against measured times: python tests/helpers/compare_predictions.py [--measure] [--no-nvcc] [--only TEXT]

--measure    on a GPU: times the course's kernels and the programs in tests/common/predict/kernels (three sizes), gets
             the programs' bottlenecks from Nsight Compute, and writes tests/common/predict/measured.json
otherwise    predicts the same cases for that GPU and compares; needs no GPU

The figures in common/predict/README.md come from here. `--no-nvcc` predicts with estimated register counts.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from common.cli.benchmark import parser_of
from common.cli.predict import predict_problem
from common.compiling.load import simulated
from common.compiling.program import build_program
from common.inspect import gpu_tools
from common.inspect.source_lines import SourceLines
from common.measure import gpus
from common.measure.benchmark.problem import Problem, Version
from common.measure.report import duration
from common.measure.timing import measure
from common.predict import model
from common.predict.counters import SAMPLE, read_launches
from common.predict.launches import Counting, Registers
from common.predict.machine import machine_of
from common.predict.report import bound_words, total_seconds

PROGRAMS = Path(__file__).resolve().parents[1] / "common" / "predict" / "kernels"
MEASURED = PROGRAMS.with_name("measured.json")
GROUPS = ("planted", "held_out")
SIZES = (1 << 20, 1 << 22, 1 << 24)
# group: (the task whose benchmark runs, its arguments)
COURSE = {
    "ladders": ("task2", "--steps"),
    "softmax and GEMM": ("task2", "--versions taught tuned"),
    "attention": (
        "task4",
        "--dtype fp32 --head-dim 64 128 --seq 512 2048 4096 --pass forward --versions naive tiled taught ffma",
    ),
    "gradients": ("task4", "--dtype fp32 --head-dim 64 --seq 2048 --pass backward --versions ffma"),
    "sparse": ("task5", "--solution --versions solution --seq 4096"),
    "decode": ("task6", "--dtype fp32 --context 1024 8192 --versions taught"),
}
BUSY = 60  # percent of peak at which Nsight Compute calls a resource the bottleneck
SECTIONS = ("SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis")
METRICS = {  # the model's resources -> ncu metric, without .avg.pct_of_peak_sustained_elapsed
    model.DRAM: "gpu__dram_throughput",
    model.L2: "lts__t_sectors",
    model.L1: "l1tex__data_pipe_lsu_wavefronts",  # shared memory uses the same data path
    model.FLOAT32: "sm__pipe_fma_cycles_active",
    model.ALU: "sm__pipe_alu_cycles_active",
    model.SPECIAL: "sm__inst_executed_pipe_xu",
    model.ISSUE: "sm__inst_issued",
}
# resources without an ncu metric: ncu reports the shared data path, or nothing busy
AS_NCU = {model.SHARED: model.L1, model.BLOCKS: model.LATENCY, model.PARTIAL: model.LATENCY}
# (slower, faster) variants of one kernel
PLANTED = (
    ("copy_uncoalesced", "copy"), ("copy_small_blocks", "copy"), ("copy_low_occupancy", "copy"),
    ("copy_one_block", "copy"),
    ("transpose_uncoalesced", "transpose"), ("transpose_conflicts", "transpose"), ("matmul_8", "matmul_32"),
    ("row_sum_barriers", "row_sum"),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One kernel or call at one size. Times in seconds; predicted: None if not modeled. resource: the bound's name."""

    group: str
    name: str
    size: str
    measured: float
    predicted: float | None
    bound: str
    resource: str = ""

    @property
    def ratio(self) -> float | None:
        return self.predicted / self.measured if self.predicted else None


def of_course(only: str) -> Iterator[tuple[str, Problem, dict[str, Version]]]:
    """(group, problem, the project's versions) for the tasks' benchmarks."""
    for group, (task, words) in COURSE.items():
        if only not in group:
            continue
        benchmark = importlib.import_module(f"{task}.tools.benchmark").BENCHMARK
        options = parser_of(benchmark).parse_args(words.split())
        versions_of = benchmark.versions(options)
        for problem in benchmark.problems(options):
            wanted = options.versions or benchmark.labels
            ours = {name: one for name, one in versions_of(problem).items() if one.ours and name in wanted}
            yield group, problem, ours


def key(group: str, name: str, size: str) -> str:
    return f"{group} | {name} | {size}"


def size_of(problem: Problem) -> str:
    return f"{problem.setting}, {problem.column}"


def measure_all(only: str) -> dict:
    """The contents of measured.json: the GPU, seconds by `key`, the programs' Nsight Compute metrics (largest size)."""
    times = {}
    for group, problem, versions in of_course(only):
        for name, version in versions.items():
            try:
                prepared = partial(_prepared, version, problem)
                timing = measure({"": lambda call: call()}, prepared, rounds=7)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                print(group, name, size_of(problem), error, file=sys.stderr)
                continue
            times[key(group, name, size_of(problem))] = timing[""].seconds
        torch.cuda.empty_cache()
    metrics = {}
    for group in (group for group in GROUPS if only in group):
        program = build_program(PROGRAMS / f"{group}.cu", "cuda").path
        for size in SIZES:
            timed = subprocess.run([program, str(size), "time"], capture_output=True, text=True, check=True).stdout
            for name, seconds in (line.split() for line in timed.splitlines()):
                times[key(group, name, f"{size:,}")] = float(seconds)
        metrics |= ncu_metrics(program)
    return {"gpu": torch.cuda.get_device_name(), "seconds": times, "metrics": metrics}


def _prepared(version: Version, problem: Problem) -> tuple:
    return (version.prepare(*problem.make_inputs("cuda")),)


def ncu_metrics(program: Path) -> dict[str, dict[str, float]]:
    """Kernel -> metric -> percent of peak, at a program's largest size."""
    sections = [f"--section={name}" for name in SECTIONS]
    command = [gpu_tools.find("ncu"), "--csv", "--page", "raw", "--clock-control", "none", *sections]
    printed = gpu_tools.output_of([*command, program, str(SIZES[-1])])
    rows = list(csv.DictReader(printed[printed.index('"ID"') :].splitlines()))
    percent = {name: f"{metric}.avg.pct_of_peak_sustained_elapsed" for name, metric in METRICS.items()}
    return {
        row["Kernel Name"].split("(")[0]: {name: float(row[metric]) for name, metric in percent.items()}
        for row in rows[1:]
    }


def bound_by_ncu(percent: dict[str, float]) -> str:
    """The busiest resource; latency if none reaches NVIDIA's threshold."""
    name = max(percent, key=percent.__getitem__)
    return name if percent[name] >= BUSY else model.LATENCY


def predicted_program(file: Path, size: int, gpu: gpus.GpuSpec, use_nvcc: bool) -> dict[str, model.Prediction]:
    """Kernel -> its prediction, for a program in tests/common/predict/kernels."""
    program = build_program(file, "simulator", None, True, [])
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        collect = {"SIMULATOR_COLLECT": "profile", "SIMULATOR_SAMPLE": str(SAMPLE), "SIMULATOR_REPORT": str(report)}
        collect["SIMULATOR_TIMEOUT"] = "60"  # a single block may copy everything
        subprocess.run([str(program.path), str(size)], env={**os.environ, **collect}, check=True)
        raw = json.loads(report.read_text())
    registers = Registers([file], gpu, use_nvcc)
    launches = read_launches(raw, SourceLines(program.path), program.path)
    return {one.kernel.kernel: model.predict(registers.known(one), machine_of(gpu)) for one in launches}


def predict_all(measured: dict, use_nvcc: bool, only: str) -> Iterator[Row]:
    """A row for every entry in measured.json."""
    gpu, seconds = gpus.find(measured["gpu"]), measured["seconds"]
    machine = machine_of(gpu)
    with simulated() as loaded, torch.no_grad():
        counting: dict[int, Counting] = {}
        for group, problem, versions in of_course(only):
            known = {name: v for name, v in versions.items() if key(group, name, size_of(problem)) in seconds}
            if len(loaded) not in counting:
                libraries = [library for ops in loaded for library in ops.libraries]
                counting = {len(loaded): Counting(libraries, gpu, SAMPLE, use_nvcc)}
            for name, (found, why) in predict_problem(problem, known, counting[len(loaded)], machine).items():
                longest = max(found, key=lambda each: each.seconds or 0, default=None)
                of = key(group, name, size_of(problem))
                words = bound_words(longest) if longest else why
                yield Row(group, name, size_of(problem), seconds[of], total_seconds(found), words)
    for group in GROUPS:
        for size in SIZES if only in group else ():
            for name, one in predicted_program(PROGRAMS / f"{group}.cu", size, gpu, use_nvcc).items():
                of = seconds[key(group, name, f"{size:,}")]
                resource = "" if one.not_modeled or size != SIZES[-1] else one.bound.resource
                yield Row(group, name, f"{size:,}", of, one.seconds, bound_words(one), AS_NCU.get(resource, resource))


def summary(rows: list[Row], metrics: dict) -> Iterator[str]:
    """How close the predictions are, by group and overall; the order of variants; the bounds."""
    for group in [*dict.fromkeys(row.group for row in rows), ""]:
        of_group = [row for row in rows if group in ("", row.group)]
        ratios = [row.ratio for row in of_group if row.ratio]
        if ratios:
            near = sum(1 / 1.5 <= ratio <= 1.5 for ratio in ratios) / len(ratios)
            yield (
                f"{group or 'all'}: {len(of_group)} times, {len(of_group) - len(ratios)} not modeled; median error "
                f"{statistics.median(abs(ratio - 1) for ratio in ratios):.0%}, within 1.5 x {near:.0%}"
            )
    pairs = [(a, b) for a in rows for b in rows if (a.name, b.name) in PLANTED and a.size == b.size]
    steps = [row for row in rows if row.group == "ladders"]
    pairs += [(a, b) for a in steps for b in steps if a.size == b.size and a.name < b.name]
    differ = [
        (a, b) for a, b in pairs
        if a.predicted and b.predicted and max(a.measured, b.measured) > 1.15 * min(a.measured, b.measured)
    ]  # fmt: skip
    if differ:
        right = sum((a.predicted > b.predicted) == (a.measured > b.measured) for a, b in differ)
        yield f"order of two variants that differ by more than 15%: {right} of {len(differ)} right"
    bounds = [(row, bound_by_ncu(metrics[row.name])) for row in rows if row.resource]
    if bounds:
        yield f"bound as by Nsight Compute: {sum(row.resource == ncu for row, ncu in bounds)} of {len(bounds)}"
        for row, ncu in bounds:
            if row.resource != ncu:
                yield f"  {row.name}: {row.resource}; Nsight Compute: {ncu}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--no-nvcc", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    options = parser.parse_args()
    os.environ.setdefault("SIMULATOR_TIMEOUT", "600")
    if options.measure:
        if not torch.cuda.is_available():
            parser.error("--measure needs a GPU, and torch sees none; without it none is needed")
        found = measure_all(options.only)
        if options.only:  # keep the others
            before = json.loads(MEASURED.read_text())
            found = found | {name: before[name] | found[name] for name in ("seconds", "metrics")}
        MEASURED.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    measured = json.loads(MEASURED.read_text())
    print("| group | kernel | size | predicted | measured | ratio | bound by |\n|---|---|---|---|---|---|---|")
    rows = []
    for row in predict_all(measured, not options.no_nvcc, options.only):
        rows.append(row)
        predicted = duration(row.predicted) if row.predicted else "not modeled"
        ratio = f"{row.ratio:.2f}" if row.ratio else ""
        cells = (row.group, row.name, row.size, predicted, duration(row.measured), ratio, row.bound)
        print("|", " | ".join(cells), "|", flush=True)
    print("\n" + "\n".join(summary(rows, measured["metrics"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
