"""`python -m taskN.test --check` and `--profile`: which tool looks at the kernels, and at which cases.

In the simulator its checked build does (common/checked_run.py), on a GPU NVIDIA's compute-sanitizer and Nsight Compute
(common/sanitizer.py, common/ncu.py). Both ways end in the same reports.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from common import (
    build,
    check_report,
    checked_run,
    checking,
    cli,
    gpu_tools,
    gpus,
    ncu,
    profile_pictures,
    sanitizer,
    toolchain,
)
from common.case_choice import full_name
from common.checking import SKIPPED, Case
from common.gaps import find_gaps, shown_path
from common.gpus import GpuSpec
from common.kernel_profile import KernelProfile, with_registers
from common.profile_report import print_kernel, print_legend
from common.roofline import bounds

DEFAULT_GPU = "H200"


def run(console: Console, task: str, cases: Sequence[Case], options: argparse.Namespace) -> int:
    """The exit status, see common.cli.test_main."""
    gpu = chosen_gpu(options.gpu)
    cli.say_backend(console, options.backend)
    if toolchain.choose_backend(options.backend).name == "cuda":
        return _on_gpu(console, task, cases, options, gpu)
    with cli.working(console, f"compiling {task} ({cli.variant(options)}), checked ..."):
        ops = build.load(task, options.solution, "simulator", options.arch, tuned=options.tuned, checked=True)
    if "clang" in toolchain.host_compiler().name:
        console.print("[yellow]made by clang++: lines may be missing, and counts a little too high; g++ is exact[/]")
    title = f"{task}, {cli.variant(options)}, checked simulator"
    if options.check:
        cases = cases if options.cases else checked_run.small_cases(console, cases, options.seed)
        return checked_run.check_cases(console, title, cases, ops, options.seed)
    if not options.cases:
        cases = _representatives(console, cases, options.seed)
    found = checked_run.profile_cases(console, cases, ops, options.seed)
    if any(kernels for _, _, kernels in found):
        registers = _registers(console, ops.sources, gpu)
        found = [
            (case, verdict, [with_registers(kernel, registers) for kernel in kernels])
            for case, verdict, kernels in found
        ]
    return report_profiles(console, task, title, found, gpu, options.picture)


def _representatives(console: Console, cases: Sequence[Case], seed: int) -> list[Case]:
    chosen = checked_run.representatives(cases, seed)
    console.print(
        "one case per part and operator, the largest that is quick (--case NAME chooses others): "
        f"{escape('; '.join(map(full_name, chosen)))}",
        highlight=False,
        soft_wrap=True,
    )
    return chosen


def chosen_gpu(name: str | None) -> GpuSpec:
    """The GPU named, else the one that is present if its data sheet is known, else DEFAULT_GPU."""
    if name:
        return gpus.find(name)
    present = toolchain.find_gpu()
    try:
        return gpus.find(present.name if present else DEFAULT_GPU)
    except ValueError:
        return gpus.find(DEFAULT_GPU)


def _registers(console: Console, sources: Sequence[Path], gpu: GpuSpec) -> list[build.KernelResources]:
    """What ptxas says of the kernels for this GPU; nothing without nvcc."""
    kernels = [source for source in sources if source.suffix == ".cu"]
    if toolchain.find_nvcc() is None or find_gaps(kernels):
        return []
    try:
        with cli.working(console, f"asking nvcc for the registers on {gpu.name} ..."):
            return build.compile_only(kernels, gpu.arch).kernels
    except build.BuildError:  # the simulator's compiler took it: the profile is worth showing all the same
        return []


def report_profiles(
    console: Console,
    task: str,
    title: str,
    found: Sequence[tuple[Case, checked_run.Verdict, list[KernelProfile]]],
    gpu: GpuSpec,
    picture_folder: str | None,
    measured: bool = False,
) -> int:
    """Prints all kernels of all cases, costliest first, and draws the pictures. 0 if every case passed."""
    wide = check_report.wide(console)
    wide.print(f"\n{escape(title)}: profile", highlight=False)
    for case, verdict, kernels in found:
        wide.print(f"\n[bold underline]{escape(full_name(case))}[/]  {escape(verdict.shapes)}", highlight=False)
        if not verdict.ok:
            first = verdict.diagnosis[0] if verdict.diagnosis else ""
            wide.print(f"[red]{verdict.status}[/] {escape(first)}", highlight=False)
        elif not kernels:
            wide.print("no kernel ran")
        for kernel in sorted(kernels, key=lambda one: _least_time(one, gpu), reverse=True):
            print_kernel(wide, kernel, gpu)
    every = [kernel for _, _, kernels in found for kernel in kernels]
    if every:
        print_legend(wide, gpu, measured)
        folder = Path(picture_folder) if picture_folder else build.build_root() / "profile" / task
        _draw(wide, every, gpu, folder)
    return 0 if all(verdict.ok or verdict.status == SKIPPED for _, verdict, _ in found) else 1


def _least_time(kernel: KernelProfile, gpu: GpuSpec) -> float:
    found = bounds(kernel, gpu)
    return found[0].seconds if found else 0.0


def _draw(console: Console, kernels: Sequence[KernelProfile], gpu: GpuSpec, folder: Path) -> None:
    try:
        files = profile_pictures.draw(kernels, gpu, folder)
    except ImportError:
        console.print(f"no pictures: matplotlib is missing; install it: {profile_pictures.INSTALL}", highlight=False)
        return
    for file in files:
        console.print(f"picture: {shown_path(file)}", highlight=False, soft_wrap=True)


def _on_gpu(console: Console, task: str, cases: Sequence[Case], options: argparse.Namespace, gpu: GpuSpec) -> int:
    """The verdicts of this process first, then the tool, which runs the cases once more in processes of its own."""
    tool = gpu_tools.find("compute-sanitizer" if options.check else "ncu")
    with cli.working(console, f"compiling {task} ({cli.variant(options)}) ..."):
        ops = build.load(task, options.solution, "cuda", options.arch, tuned=options.tuned)
    title = f"{task}, {cli.variant(options)}, {'compute-sanitizer' if options.check else 'Nsight Compute'}"
    if not options.cases:
        cases = (
            checked_run.small_cases(console, cases, options.seed)
            if options.check
            else _representatives(console, cases, options.seed)
        )
    verdicts = checking.run_cases(cases, ops, console, lambda case: checking.check(case, ops, options.seed))
    command = gpu_tools.child(task, options, cases if options.check else ())
    if options.check:
        check_report.print_report(console, title, verdicts, points=False)
        with cli.working(console, "running compute-sanitizer: memcheck, racecheck, initcheck, synccheck ..."):
            found = sanitizer.findings_of(tool, command, ops.sources)
        checked_run.report_findings(check_report.wide(console), found, len(cases))
        return 0 if all(verdict.ok for verdict in verdicts) and not any(findings for _, findings in found) else 1
    profiles = []
    for case, verdict in zip(cases, verdicts, strict=True):
        with cli.working(console, f"running Nsight Compute: {full_name(case)} ..."):
            kernels = ncu.profile(tool, gpu_tools.child(task, options, [case]), ops.sources)
        profiles.append((case, verdict, kernels))
    return report_profiles(console, task, title, profiles, gpu, options.picture, measured=True)
