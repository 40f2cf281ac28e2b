"""Other right solutions: variants of a kernel, all of a task's compiled into one library next to the solution.

    TASK2 = Variants("task2", ["task2_softmax", "task2_gemm_nt"])
    ops = TASK2.operators("task2_softmax/warp_per_row", "simulator")     # or operators(None, ...): the solution

A variant is a file tests/variants/<folder>/<name>.cu that defines one or more of the task's launchers, and what they
need. Each gets its own namespace; at the start of the solution's launcher of the same name, a number chosen at run time
dispatches the call:

    void softmax(const float* x, ...) {     switch (chosen_variant) { case 1: return variant_1::softmax(x, ...); } ...

Another variant therefore costs no further build, and everything else in the task's file is the solution's.

    KERNELS = {"task2_softmax": Kernel(TASK2, parts=("softmax", "attention"), checked=("7 x 31", ...)), ...}

says which of the task's cases the variants in a folder run; the tests in variant_tests.py run them.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planting import changed_sources

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.request import BuildRequest
from common.console.paths import ROOT, build_root
from common.testing.case import Case

FOLDER = ROOT / "tests" / "variants"
_INCLUDE = re.compile(r"^#include .*\n", re.MULTILINE)
# `void name(arguments) {` at the start of a line: a launcher, whatever precedes `void`
_LAUNCHER = re.compile(r"^void (\w+)\(([^()]*)\) \{", re.MULTILINE)

SWITCH = """\
// Written by tests/helpers/variants.py: which of the variants below runs, 0 for the solution.
static int chosen_variant = 0;
extern "C" __attribute__((visibility("default"))) void choose_variant(int number) { chosen_variant = number; }
"""


def variants_of(folder: str) -> list[str]:
    """The variants in a folder, as "folder/name"."""
    return [f"{folder}/{file.stem}" for file in sorted((FOLDER / folder).glob("*.cu"))]


def launchers(text: str) -> dict[str, tuple[list[str], int]]:
    """What a source defines: a launcher's name -> (its parameter names, where its body starts)."""
    found: dict[str, tuple[list[str], int]] = {}
    for match in _LAUNCHER.finditer(text):
        name, parameters = match[1], match[2].split(",")
        assert name not in found, f"{name} is defined twice"
        found[name] = [parameter.split()[-1] for parameter in parameters], match.end()
    return found


def text_with_variants(solution: Path, variants: Sequence[Path]) -> str:
    """The solution's text preceded by the variants; choose_variant(1) selects the first."""
    includes, spaces, text = [], [], solution.read_text()
    known = launchers(text)
    calls: dict[str, list[str]] = {}
    for number, variant in enumerate(variants, 1):
        body = variant.read_text()
        provided = [name for name in launchers(body) if name in known]
        assert provided, f"{variant} defines none of {', '.join(known)}"
        for name in provided:
            passed = ", ".join(known[name][0])
            calls.setdefault(name, []).append(f"case {number}: return variant_{number}::{name}({passed});")
        includes += _INCLUDE.findall(body)
        body = _INCLUDE.sub("\n", body)
        spaces.append(f'namespace variant_{number} {{\n#line 1 "{variant}"\n{body}\n}}  // namespace\n')
    for name, cases in sorted(calls.items(), key=lambda call: -known[call[0]][1]):
        at = known[name][1]
        text = f"{text[:at]} switch (chosen_variant) {{ {' '.join(cases)} default: break; }}{text[at:]}"
    return "".join([SWITCH, *dict.fromkeys(includes), *spaces, f'#line 1 "{solution}"\n', text])


class Variants:
    """The variants of a task's kernels.

    Args:
        task: "task2", ...
        folders: in tests/variants, each with the variants of one of this task's kernels.
        file: part of the name of the .cu file with these kernels, if the task has several.
    """

    def __init__(self, task: str, folders: Sequence[str], file: str = "") -> None:
        self.task = task
        self.file = file
        self.names = [name for folder in folders for name in variants_of(folder)]

    def operators(self, name: str | None, backend: str, checked: bool = False) -> Operators:
        """The operators with this variant ("folder/name"; None: the solution), valid until the next call."""
        ops, choose = self._built(backend, checked)
        choose(0 if name is None else 1 + self.names.index(name))
        return ops

    def write(self, folder: Path) -> list[Path]:
        """Writes the changed sources into a folder; returns all .cu files of the task."""
        variants = [FOLDER / f"{name}.cu" for name in self.names]
        return changed_sources(
            self.task,
            self.file,
            folder,
            lambda files: [*(one.read_text() for one in files[:-1]), text_with_variants(files[-1], variants)],
        )

    @functools.cache  # noqa: B019 - bounded by the number of tasks
    def _built(self, backend: str, checked: bool) -> tuple[Operators, ctypes._NamedFuncPointer]:
        sources = self.write(build_root() / "variants" / self.task)
        ops = load(BuildRequest(self.task, backend=backend, sources=sources, checked=checked, label="variants"))
        return ops, ctypes.CDLL(str(ops.libraries[0].path)).choose_variant


@dataclass(frozen=True)
class Kernel:
    """Which cases the variants in a folder run.

    Attributes:
        variants: all variants of the task, a library.
        parts: the parts of the task's cases that the variants affect.
        checked: names of the cases for the checked build, small ones.
        product: prefix of the names of the cases in part "gemm" that the variants affect.
    """

    variants: Variants
    parts: tuple[str, ...]
    checked: tuple[str, ...]
    product: str = ""

    def cases(self) -> Iterator[Case]:
        for case in importlib.import_module(f"{self.variants.task}.cases").cases():
            if case.part in self.parts and (case.part != "gemm" or case.name.startswith(self.product)):
                yield case


def variants_in(kernels: Mapping[str, Kernel]) -> list[str]:
    """All variants of these kernels, which are keyed by folder."""
    return [name for folder in kernels for name in variants_of(folder)]
