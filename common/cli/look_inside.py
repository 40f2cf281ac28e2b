"""`python -m taskN.test --check` and `--profile`: selects the tool and the cases.

The simulator uses its checked build (common/inspect/checked_run.py); a GPU uses NVIDIA's compute-sanitizer and Nsight
Compute (findings/compute_sanitizer.py and profile/ncu.py there). Both produce the same reports.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress, TimeElapsedColumn

from common.cli.options import say_backend
from common.cli.workers import Workers
from common.compiling import toolchain
from common.compiling.gaps import find_gaps
from common.compiling.nvcc import compile_only
from common.compiling.places import places_of
from common.compiling.report import KernelResources
from common.compiling.result import BuildError
from common.console.files import write_whole
from common.console.paths import build_root, shown_path
from common.console.terminal import say, wide, working
from common.inspect import checked_run, gpu_tools
from common.inspect.findings import compute_sanitizer
from common.inspect.findings.model import Finding
from common.inspect.profile import ncu, pictures
from common.inspect.profile.model import KernelProfile, with_registers
from common.inspect.profile.report import print_kernel, print_legend
from common.inspect.profile.roofline import bounds
from common.inspect.worth_it import apart, kernels_of, worth_it
from common.measure import gpus
from common.measure.gpus import GpuSpec
from common.testing import report
from common.testing.case import SKIPPED, Case, Verdict
from common.testing.case_choice import full_name
from common.testing.failures import failed
from common.testing.judging import judge
from common.testing.run import run_cases
from common.testing.worker.here import Here
from common.testing.worker.worker import Worker


def run(
    console: Console,
    task: str,
    cases: Sequence[Case],
    options: argparse.Namespace,
    workers: Workers,
    command: str,
) -> int:
    """Runs the tool and returns the exit status, see common.cli.test.test_main. `command` is the command as typed."""
    gpu = gpus.chosen(options.gpu)
    say_backend(console, options.backend)
    if toolchain.choose_backend(options.backend).name == "cuda":
        return _on_gpu(console, task, cases, options, gpu, workers.plain, command)
    checked = workers.checked
    with working(console, f"compiling {task} ({options.variant.words}), checked ..."):
        checked.load()
    if "clang" in toolchain.host_compiler().name:
        say(console, "built with clang++: lines may be missing, and counts a little too high; g++ is exact", "yellow")
    title = f"{task}, {options.variant.words}, checked simulator"
    if options.check:
        cases = cases if options.cases else checked_run.small_cases(console, cases, options.seed)
        page = partial(_write_check, console, options.html, title, command) if options.html else None
        return checked_run.check_cases(console, title, cases, checked, options.seed, page)
    if not options.cases:
        cases = _representatives(console, cases, options.seed)
    found = checked_run.profile_cases(console, cases, checked, options.seed)
    if any(kernels for _, _, kernels in found):
        registers = _registers(console, sources_of(task, options), gpu)
        found = [
            (case, verdict, [with_registers(kernel, registers) for kernel in kernels])
            for case, verdict, kernels in found
        ]
    if options.html:
        _write_profile(console, options.html, title, command, found, gpu)
    return report_profiles(console, task, title, found, gpu, options.picture)


def _representatives(console: Console, cases: Sequence[Case], seed: int) -> list[Case]:
    chosen = checked_run.representatives(cases, seed)
    say(
        console,
        "one case per part and operator, the largest that is quick (--case NAME chooses others): "
        f"{'; '.join(map(full_name, chosen))}",
    )
    return chosen


def _registers(console: Console, sources: Sequence[Path], gpu: GpuSpec) -> list[KernelResources]:
    """ptxas's resource usage of the kernels on this GPU; [] without nvcc."""
    kernels = [source for source in sources if source.suffix == ".cu"]
    if toolchain.find_nvcc() is None or find_gaps(kernels):
        return []
    try:
        with working(console, f"asking nvcc for the registers on {gpu.name} ..."):
            return compile_only(kernels, gpu.arch).kernels
    except BuildError:  # the simulator's compiler accepted it: show the profile anyway
        return []


def report_profiles(
    console: Console,
    task: str,
    title: str,
    found: Sequence[tuple[Case, Verdict, list[KernelProfile]]],
    gpu: GpuSpec,
    picture_folder: str | None,
    measured: bool = False,
) -> int:
    """Prints all kernels of all cases, costliest first, and draws the plots. Returns 0 if every case passed."""
    console = wide(console)
    say(console, f"\n{title}: profile")
    for case, verdict, kernels in found:
        console.print(f"\n[bold underline]{escape(full_name(case))}[/]  {escape(verdict.shapes)}", highlight=False)
        if not verdict.ok:
            first = verdict.diagnosis[0] if verdict.diagnosis else ""
            console.print(f"[red]{verdict.status}[/] {escape(first)}", highlight=False)
        elif not kernels:
            say(console, "no kernel ran")
        for kernel in sorted(kernels, key=lambda one: _least_time(one, gpu), reverse=True):
            print_kernel(console, kernel, gpu)
    every = [kernel for _, _, kernels in found for kernel in kernels]
    if every:
        print_legend(console, gpu, measured)
        folder = Path(picture_folder) if picture_folder else build_root() / "profile" / task
        for file in pictures.draw(every, gpu, folder):
            say(console, f"picture: {shown_path(file)}")
    return 0 if all(verdict.ok or verdict.status == SKIPPED for _, verdict, _ in found) else 1


def _write_check(
    console: Console,
    file: str,
    title: str,
    command: str,
    verdicts: Sequence[Verdict],
    found: Sequence[tuple[str, Sequence[Finding]]],
) -> None:
    from common.inspect.page.look_page import check_page

    named = [(full_name(one.case), one) for one in verdicts]
    write_page(console, Path(file), check_page(f"{title}: check", command, named, found))


def _write_profile(
    console: Console,
    file: str,
    title: str,
    command: str,
    found: Sequence[tuple[Case, Verdict, list[KernelProfile]]],
    gpu: GpuSpec,
    measured: bool = False,
) -> None:
    from common.inspect.page.look_page import profile_page

    named = [(full_name(case), verdict, kernels) for case, verdict, kernels in found]
    write_page(console, Path(file), profile_page(f"{title}: profile", command, named, gpu, measured))


def write_page(console: Console, file: Path, text: str) -> None:
    """Writes a page and prints its path and size."""
    write_whole(file, text)
    say(console, f"page: {shown_path(file)}, {len(text.encode()):,} bytes")


def _least_time(kernel: KernelProfile, gpu: GpuSpec) -> float:
    found = bounds(kernel, gpu)
    return found[0].seconds if found else 0.0


def sources_of(task: str, options: argparse.Namespace) -> list[Path]:
    """The .cu files selected by the options."""
    return [kernel for place in places_of(task, options.variant) for kernel in place.kernels]


def _on_gpu(
    console: Console,
    task: str,
    cases: Sequence[Case],
    options: argparse.Namespace,
    gpu: GpuSpec,
    plain: Worker | Here,
    command: str,
) -> int:
    """Tests the cases first; then the tool reruns selected ones in separate processes."""
    name = "compute-sanitizer" if options.check else "Nsight Compute"
    tool = gpu_tools.find("compute-sanitizer" if options.check else "ncu")
    with working(console, f"compiling {task} ({options.variant.words}) ..."):
        plain.load()
    sources = sources_of(task, options)
    title = f"{task}, {options.variant.words}, {name}"
    if not options.cases and options.check:
        cases = checked_run.small_cases(console, cases, options.seed)
    elif not options.cases and options.all:
        cases = _representatives(console, cases, options.seed)
    verdicts = run_cases(cases, plain, console, lambda case: judge(case, plain, options.seed))
    looked_at, reach = list(cases), kernels_of(places_of(task, options.variant))
    if not (options.cases or options.all):
        looked_at = worth_it(cases, verdicts, reach, options.seed)
        why = "the smallest that fail" if any(failed(one) for one in verdicts) else "the smallest for each kernel"
        say(console, f"{name} looks at {why} (--all: at more): {'; '.join(map(full_name, looked_at)) or 'none'}")
    if options.check:
        report.print_report(console, title, verdicts, points=False)
        found = _sanitized(console, tool, gpu_tools.child(task, options, looked_at), sources) if looked_at else []
        checked_run.report_findings(wide(console), found, len(looked_at))
        if options.html:
            _write_check(console, options.html, title, command, verdicts, found)
        return 0 if all(verdict.ok for verdict in verdicts) and not any(findings for _, findings in found) else 1
    of_case = {full_name(one.case): one for one in verdicts}
    profiles = []
    groups = apart(looked_at, reach, options.seed)
    with _progress(console) as progress:
        bar = progress.add_task(name, total=len(groups))
        for group in groups:
            together = [case for case, _ in group]
            progress.update(bar, description=f"{name}: {'; '.join(map(full_name, together))}")
            found = ncu.profile(tool, gpu_tools.child(task, options, together), sources)
            for case, names in group:
                own = [one for one in found if len(group) == 1 or one.kernel.split("<")[0] in names]
                profiles.append((case, of_case[full_name(case)], own))
            progress.advance(bar)
    if options.html:
        _write_profile(console, options.html, title, command, profiles, gpu, measured=True)
    return report_profiles(console, task, title, profiles, gpu, options.picture, measured=True)


def _sanitized(
    console: Console, tool: Path, command: Sequence[str], sources: Sequence[Path]
) -> list[tuple[str, list[Finding]]]:
    """Findings of compute-sanitizer's tools, with a progress bar that shows which are still running."""
    running = list(compute_sanitizer.TOOLS)
    with _progress(console) as progress:
        bar = progress.add_task(f"compute-sanitizer: {', '.join(running)}", total=len(running))

        def done(name: str) -> None:
            running.remove(name)
            progress.update(bar, advance=1, description=f"compute-sanitizer: {', '.join(running)}")

        return compute_sanitizer.findings_of(tool, command, sources, done)


def _progress(console: Console) -> Progress:
    return Progress(
        *Progress.get_default_columns()[:-1],
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
