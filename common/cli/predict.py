"""`--predict`: predicts kernel times on a GPU, for a benchmark's versions or for a program.

predict_benchmark(...)     python -m taskN.benchmark --predict
predict_program(...)       python -m common.run --predict FILE.cu
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from common.cli.options import EXPECTED_ERRORS
from common.compiling.load import simulated
from common.compiling.program import Program
from common.console.terminal import say, wide, working
from common.console.words import error_words
from common.inspect.source_lines import SourceLines
from common.measure import gpus
from common.measure.benchmark.problem import Benchmark, Problem, Version
from common.measure.gpus import GpuSpec
from common.measure.report import duration
from common.predict.counters import SAMPLE, read_launches
from common.predict.launches import PATIENCE, Counting, Registers, cheap_inputs
from common.predict.machine import Machine, machine_of
from common.predict.model import Prediction, predict
from common.predict.report import CAVEATS, print_predictions, total_seconds
from common.testing import results

PREDICTED, FAILED = 0, 1
DEFAULT_GPU = "H100"
MEMORY_SHARE = 0.6  # fraction of host memory allowed for a problem's inputs and outputs


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds --predict, --gpu, --sample."""
    add = parser.add_argument
    add("--predict", action="store_true", help="predict the times of our kernels without a GPU (an estimate)")
    add("--gpu", metavar="NAME", help=f"with --predict: H100, A100, T4, RTX4090, ... (default {DEFAULT_GPU})")
    words = "with --predict: run N blocks of a grid (default %(default)s)"
    add("--sample", type=int, default=SAMPLE, metavar="N", help=words)


def chosen_gpu(parser: argparse.ArgumentParser, options: argparse.Namespace) -> GpuSpec:
    """The GPU that --gpu names; exits with an error message if there is none."""
    if not options.sample >= 1:
        parser.error(f"--sample is {options.sample}; it must be at least 1")
    try:
        return gpus.find(options.gpu or DEFAULT_GPU)
    except ValueError as error:
        parser.error(f"--gpu: {error}")


def predict_benchmark(
    console: Console, parser: argparse.ArgumentParser, benchmark: Benchmark, problems: Sequence[Problem],
    options: argparse.Namespace, command: str,
) -> int:  # fmt: skip
    """Prints a table of all problems, and with --report updates Results.md. 0: predicted, 1: a version did not run."""
    gpu = chosen_gpu(parser, options)
    machine = machine_of(gpu)
    arch = gpu.arch if gpu.capability == (9, 0) else None
    called, records, failed = [], [], False
    os.environ.setdefault("SIMULATOR_TIMEOUT", PATIENCE)
    with simulated(arch) as loaded, torch.no_grad():
        try:
            with working(console, "compiling for the simulator, checked ..."):
                versions_of = benchmark.versions(options)
        except EXPECTED_ERRORS as error:
            say(console, error, "red")
            return FAILED
        counting: dict[int, Counting] = {}
        for problem in problems:
            wanted = options.versions or benchmark.labels
            chosen = {name: one for name, one in versions_of(problem).items() if one.ours and name in wanted}
            if len(loaded) not in counting:
                libraries = [library for ops in loaded for library in ops.libraries]
                counting = {len(loaded): Counting(libraries, gpu, options.sample)}
            with working(console, f"{problem.setting}, {problem.column} ..."):
                found = predict_problem(problem, chosen, counting[len(loaded)], machine)
            for name, version in chosen.items():
                launches, why = found[name]
                failed |= bool(why)
                if why:
                    say(console, f"{version.label} at {problem.column}: {why}", "yellow")
                else:
                    called.append((f"{version.label}, {problem.setting}", problem.column, launches))
                records.append((problem, version, total_seconds(launches)))
    if not called:
        say(console, "nothing to predict: these options leave no kernel of ours", "red")
        return FAILED
    print_predictions(wide(console), called, machine)
    if getattr(options, "report", False):
        name = f"{benchmark.program.split('.')[0]} predicted"
        for one in results.try_report(console, name, predicted_block(command, machine, records)):
            say(console, one, "red")
            failed = True
    return FAILED if failed else PREDICTED


def predict_problem(
    problem: Problem, versions: dict[str, Version], counting: Counting, machine: Machine
) -> dict[str, tuple[list[Prediction], str]]:
    """Version name -> (predictions of its launches, why there are none); call inside `simulated()`."""
    found: dict[str, tuple[list[Prediction], str]] = {}
    with cheap_inputs():
        inputs = problem.make_inputs("cpu")
        for name, version in versions.items():
            if version.stored_bytes > MEMORY_SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
                found[name] = [], f"needs {version.stored_bytes / 2**30:.0f} GiB, more than this machine has to spare"
                continue
            try:
                launches = counting.launches(partial(version.prepare, *inputs))
                found[name] = [predict(one, machine) for one in launches], ""
                if not launches:
                    found[name] = [], "it launched no kernel of this project"
            except (RuntimeError, ValueError, NotImplementedError, TypeError) as error:
                found[name] = [], error_words(error).splitlines()[0]
    return found


def predicted_block(
    command: str, machine: Machine, records: Sequence[tuple[Problem, Version, float | None]]
) -> results.Block:
    """The block for Results.md: a row per problem, a column per version, every time marked as predicted."""
    labels = list(dict.fromkeys(version.label for _, version, _ in records))
    rows = []
    for problem in dict.fromkeys(problem for problem, _, _ in records):
        times = {version.label: seconds for one, version, seconds in records if one == problem}
        first = next(filter(None, map(times.get, labels)), 0.0)
        speedups = {label: f", {first / one:.2f} x" if one != first else "" for label, one in times.items() if one}
        cells = [f"{duration(times[of])} (predicted{speedups[of]})" if of in speedups else "-" for of in labels]
        rows.append([problem.setting, problem.column, *cells])
    columns, words = ["setting", "size", *labels], {"for": machine.gpu.name}
    return results.Block(command, words, columns, rows, CAVEATS[:2], how="Predicted")


def predict_program(console: Console, program: Program, command: list[str], gpu: GpuSpec, sample: int) -> int:
    """Prints predictions for the program's launches; returns its exit status."""
    machine = machine_of(gpu)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        collect = {"SIMULATOR_COLLECT": "profile", "SIMULATOR_SAMPLE": str(sample), "SIMULATOR_REPORT": str(file)}
        status = subprocess.run(command, env={"SIMULATOR_TIMEOUT": PATIENCE, **os.environ, **collect}).returncode
        if not file.exists():
            say(console, f"the program ended (status {status}) before it could tell what its kernels did", "red")
            return status if status > 0 else 128 - status
        report = json.loads(file.read_text(errors="replace"))
    registers = Registers(program.sources, gpu)
    launches = [registers.known(one) for one in read_launches(report, SourceLines(program.path), program.path)]
    if not launches:
        say(console, "no kernel ran")
    else:
        print_predictions(wide(Console()), [("", "", [predict(one, machine) for one in launches])], machine)
    if status:
        why = "with --predict most blocks don't run, so its own checks may fail"
        say(console, f"the program ended with status {status}: {why}")
    return PREDICTED if launches else (status if status > 0 else 128 - status)
