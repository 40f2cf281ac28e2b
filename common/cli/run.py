"""python -m common.run FILE.cu [args]: the command line around build_program.

Options come before FILE or right after it; everything else, and everything after `--`, is passed to the program.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from common.cli.options import EXPECTED_ERRORS, command_of, say_backend
from common.compiling import toolchain
from common.compiling.nvcc import compile_only
from common.compiling.program import Program, build_program
from common.compiling.result import BuildError
from common.console.paths import shown_path
from common.console.terminal import say, wide
from common.console.words import counted

NOTHING_RUN = 2  # exit status if the program did not run


def run_main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line. Exit status: the program's; 1 if --check found something; 2 if nothing ran."""
    parser = parser_of()
    options = parser.parse_args(_own_first(parser, list(sys.argv[1:] if argv is None else argv)))
    if options.html is not None and not (options.check or options.profile):
        parser.error("--html is for --check and --profile: add one of them")
    options.command = command_of("common.run", argv)
    console = Console(stderr=True)
    try:
        if options.predict:
            return _predicted(console, options)
        if options.gpu or options.profile:
            from common.measure import gpus

            options.gpu = gpus.chosen(options.gpu)
        say_backend(console, options.backend)
        on_gpu = toolchain.choose_backend(options.backend).name == "cuda"
        if on_gpu and toolchain.find_gpu() is None and not toolchain.driver_gpu_name():
            raise toolchain.ToolchainError(
                "--backend cuda runs the program on a GPU, and there is none; without it the simulator runs it"
            )
        inside = options.check or options.profile
        include = [Path(folder) for folder in options.include]
        program = build_program(Path(options.file), options.backend, options.arch, inside and not on_gpu, include)
        for warning in program.warnings:
            say(console, warning, "yellow")
        command = [str(program.path), *options.arguments]
        if not inside:
            return _shell_status(subprocess.run(command).returncode)
        return (_on_gpu if on_gpu else _in_simulator)(console, program, command, options)
    except EXPECTED_ERRORS as error:
        say(console, error, "red")
        return NOTHING_RUN


def _predicted(console: Console, options: argparse.Namespace) -> int:
    """Handles --predict: always in the simulator, with a few blocks of each grid."""
    from common.cli.predict import DEFAULT_GPU, predict_program
    from common.measure import gpus
    from common.predict.counters import SAMPLE

    gpu = gpus.find(options.gpu or DEFAULT_GPU)
    include = [Path(folder) for folder in options.include]
    program = build_program(Path(options.file), "simulator", options.arch, True, include)
    for warning in program.warnings:
        say(console, warning, "yellow")
    return predict_program(console, program, [str(program.path), *options.arguments], gpu, SAMPLE)


def parser_of() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m common.run", description="Build and run a CUDA program, on the GPU or in the simulator."
    )
    add = parser.add_argument
    add("--backend", choices=("auto", *toolchain.BACKENDS), default="auto", help="default: the GPU if it can be used")
    add("--arch", metavar="sm_XX", help="nvcc's target, for example sm_80 (default: the GPU present)")
    add("--include", metavar="FOLDER", action="append", default=[], help="another folder with headers")
    inside = parser.add_mutually_exclusive_group()
    inside.add_argument(
        "--check", action="store_true", help="report races, out-of-bounds accesses, reads of uninitialized memory"
    )
    inside.add_argument("--profile", action="store_true", help="count memory transactions, bank conflicts, arithmetic")
    inside.add_argument("--predict", action="store_true", help="predict the time of each launch on a GPU (an estimate)")
    add(
        "--gpu",
        metavar="NAME",
        help="the GPU to compare with (--profile, default H200) or to predict for (--predict, default H100)",
    )
    add("--picture", metavar="FOLDER", help="with --profile: draw the pictures there")
    add("--html", metavar="FILE", help="with --check and --profile: write a page there")
    add("file", metavar="FILE.cu", help="the program: a .cu file with a main()")
    add("arguments", nargs=argparse.REMAINDER, help="arguments for the program")
    return parser


def _own_first(parser: argparse.ArgumentParser, arguments: list[str]) -> list[str]:
    """Moves the options right after FILE in front of it."""
    takes_value = {name: action.nargs != 0 for action in parser._actions for name in action.option_strings}
    i = 0
    while i < len(arguments) and arguments[i].startswith("-"):
        i += 1 + (takes_value.get(arguments[i], False))
    end = i + 1
    while (
        end < len(arguments) and arguments[end].split("=")[0] in takes_value and arguments[end] not in ("-h", "--help")
    ):
        end += 1 + (takes_value[arguments[end].split("=")[0]] and "=" not in arguments[end])
    own, rest = arguments[:i] + arguments[i + 1 : end], arguments[i : i + 1] + arguments[end:]
    if len(rest) > 1 and rest[1] == "--":
        del rest[1]
    return [*own, *rest]


def _shell_status(status: int) -> int:
    """A process's exit status as in a shell: 128 + n if signal n ended it."""
    return status if status >= 0 else 128 - status


def _in_simulator(console: Console, program: Program, command: list[str], options: argparse.Namespace) -> int:
    from common.inspect.findings.model import read_findings
    from common.inspect.profile.model import read_kernels, with_registers
    from common.inspect.source_lines import SourceLines

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        collect = {"SIMULATOR_COLLECT": "check" if options.check else "profile", "SIMULATOR_REPORT": str(file)}
        status = _shell_status(subprocess.run(command, env={**os.environ, **collect}).returncode)
        if not file.exists():
            say(console, f"the program ended (status {status}) before it could report what was found", "red")
            return status or NOTHING_RUN
        report = json.loads(file.read_text(errors="replace"))
    lines = SourceLines(program.path)
    if lines.problem:
        say(console, lines.problem, "yellow")
    if options.check:
        return _print_findings(read_findings(report, lines), options, status)
    kernels = read_kernels(report, lines, program.path)
    if kernels and toolchain.find_nvcc():
        try:
            found = compile_only([program.sources[0]], options.gpu.arch).kernels
            kernels = [with_registers(kernel, found) for kernel in kernels]
        except BuildError:  # the simulator's compiler accepted it: show the profile anyway
            pass
    return _print_profiles(kernels, options, status)


def _on_gpu(console: Console, program: Program, command: list[str], options: argparse.Namespace) -> int:
    from common.inspect import gpu_tools
    from common.inspect.findings import compute_sanitizer
    from common.inspect.profile import ncu

    tool = gpu_tools.find("compute-sanitizer" if options.check else "ncu")
    status = _shell_status(subprocess.run(command).returncode)
    if options.check:
        found = compute_sanitizer.findings_of(tool, command, program.sources)
        return _print_findings([one for _, findings in found for one in findings], options, status)
    return _print_profiles(ncu.profile(tool, command, program.sources), options, status, measured=True)


def _print_findings(findings: list, options: argparse.Namespace, status: int) -> int:
    from common.inspect.findings.model import grouped
    from common.inspect.findings.report import print_findings

    console, groups = wide(Console()), grouped([("", findings)])
    say(console, f"\n{counted(len(groups), 'finding')}{':' if groups else ''}", "red" if groups else "green")
    print_findings(console, groups)
    if options.html:
        from common.cli.look_inside import write_page
        from common.inspect.page.look_page import check_page

        name = shown_path(Path(options.file))
        write_page(console, Path(options.html), check_page(f"{name}: check", options.command, [], [("", findings)]))
    return status or int(any(not group.is_harmless for group in groups))


def _print_profiles(kernels: list, options: argparse.Namespace, status: int, measured: bool = False) -> int:
    from common.inspect.profile import pictures
    from common.inspect.profile.report import print_kernel, print_legend

    console = wide(Console())
    for kernel in kernels:
        print_kernel(console, kernel, options.gpu)
    if not kernels:
        say(console, "no kernel ran")
    else:
        print_legend(console, options.gpu, measured)
    if kernels and options.picture:
        for file in pictures.draw(kernels, options.gpu, Path(options.picture)):
            say(console, f"picture: {shown_path(file)}")
    if options.html:
        from common.cli.look_inside import write_page
        from common.inspect.page.look_page import profile_page

        name = shown_path(Path(options.file))
        found = [("the program", None, kernels)]
        text = profile_page(f"{name}: profile", options.command, found, options.gpu, measured)
        write_page(console, Path(options.html), text)
    return status
