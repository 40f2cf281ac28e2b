"""Options shared by the command lines: which variant of the kernels, which backend.

add_variant_arguments(parser)      --variant (--solution, --tuned)
add_build_arguments(parser)        the same, plus --backend, --arch
request_of("task2", options)       the BuildRequest for these options
command_of("task2.benchmark", argv)     the command as typed
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from common.compiling import toolchain
from common.compiling.manifest import has_solutions
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError
from common.compiling.variant import Variant
from common.console.terminal import say

EXPECTED_ERRORS = (BuildError, toolchain.ToolchainError, OSError, ValueError)  # OSError: read-only folder, full disk
INTERRUPTED = 130  # exit status after Ctrl-C


class _VariantFlag(argparse.Action):
    """--variant NAME, or a flag for one variant; given twice, they must agree."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        variant = Variant(self.const or values)
        said = option_string if self.const else f"{option_string} {variant}"
        before = getattr(namespace, "variant_flag", None)
        if before and namespace.variant != variant:
            parser.error(f"{before} and {said} contradict each other: leave one of the two out")
        namespace.variant, namespace.variant_flag = variant, said


def add_variant_arguments(
    parser: argparse.ArgumentParser, variants: Sequence[Variant] = tuple(Variant), default: Variant | None = None
) -> None:
    """Adds --variant, and --solution and --tuned as shorthands; `options.variant` will be a Variant.

    Args:
        parser: the parser to add them to.
        variants: the variants that the command supports.
        default: the default variant; None: the first one.
    """
    if not has_solutions():  # student edition
        variants = [variant for variant in variants if variant != Variant.SOLUTION]
    default = default or variants[0]
    parser.set_defaults(variant=default)
    words = {
        Variant.STUDENT: "your files (student)",
        Variant.SOLUTION: "the reference solution's (solution)",
        Variant.TUNED: "the fast ones of common/kernels (tuned)",
    }
    parser.add_argument(
        "--variant",
        action=_VariantFlag,
        choices=[one.value for one in variants],
        help=f"whose kernels: {', '.join(words[one] for one in variants)}; default: {default}",
    )
    for variant in variants:
        if variant != Variant.STUDENT:
            parser.add_argument(
                f"--{variant}",
                action=_VariantFlag,
                dest="variant",
                nargs=0,
                const=variant.value,
                help=f"short for --variant {variant}",
            )


def add_build_arguments(parser: argparse.ArgumentParser, variants: Sequence[Variant] = tuple(Variant)) -> None:
    """Adds the variant arguments, --backend and --arch."""
    add_variant_arguments(parser, variants)
    parser.add_argument(
        "--backend",
        choices=("auto", *toolchain.BACKENDS),
        default="auto",
        help="default: the GPU if it can be used",
    )
    parser.add_argument("--arch", metavar="sm_XX", help="nvcc's target, for example sm_80 (default: the GPU present)")


def request_of(
    task: str, options: argparse.Namespace, backend: str | None = None, checked: bool = False
) -> BuildRequest:
    """The build request for these options.

    Args:
        task: "task2".
        options: parsed options, including those of add_build_arguments.
        backend: overrides options.backend.
        checked: request the simulator's checked build.
    """
    return BuildRequest(task, options.variant, backend or options.backend, options.arch, checked)


def command_of(program: str, argv: Sequence[str] | None) -> str:
    """The command as typed, for reports: "python -m task4.benchmark --dtype bf16".

    Args:
        program: the text after python -m.
        argv: main's argument; None: the process's arguments.
    """
    return shlex.join(["python", "-m", *program.split(), *(sys.argv[1:] if argv is None else argv)])


def say_backend(console: Console, requested: str) -> None:
    """Prints which backend was chosen, and warns if a GPU is left unused."""
    backend = toolchain.choose_backend(requested)
    if backend.problem:
        say(console, backend.problem, "yellow")
    say(console, f"backend: {backend.name} ({backend.reason})")
