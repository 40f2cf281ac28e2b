"""The course as seen by the process that runs student code: no solutions, no hidden cases, no oracle.

    base = make_base(folder)                    once per class
    tree = with_submission(base, folder, files) once per submission

Left out: solution/ and hidden.py of every task, the files that students write, tests, grading, and of C++ and Python
what the released files don't include or import, except the simulator and the bindings. Other Python that the sandboxes
run is in modules_of(base), which student code can't open; there, attention() and stages() of the oracle raise.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from common.compiling.manifest import read_manifest, tasks
from common.compiling.places import places_of
from common.compiling.variant import Variant
from common.console.paths import ROOT
from common.course.grading.build import LINE_NUMBERS
from common.simulator.rewriter import HERE as SIMULATOR
from common.simulator.rewriter import local_sources
from common.simulator.text import blank

NOT_COPIED = ("__pycache__", "build", "solution", "hidden.py", "README.md", "*.bak*", "*.png", "*.svg")
CPP = (".cu", ".cuh", ".h", ".cpp")
STUB = """

def _absent(*_, **__):
    raise RuntimeError("the oracle is not here: the grader keeps it")


stages = attention = _absent
"""
# The simulator stands in for a GPU: code that tests for it takes the branch it would take on a GPU. Other ways to tell
# the two apart are rejected, see build.py.
ASKS_FOR_SIMULATOR, ASKS_IN_VAIN = re.compile(r"\bCUDA_SIMULATOR\b"), "CUDA_SIMULATOR_of_the_grader"
# An unpaired quote and the rest of its line. Only skipped text may have one (an apostrophe under #if 0), and it is
# blanked, since g++ -fdirectives-only (see build.py) rejects it. The other alternatives may contain quotes.
_LONE_QUOTE = re.compile(
    r"""//(?:\\\n|[^\n])* | /\*.*?(?:\*/|\Z) | (?:u8|[uUL])?R"(?P<end>[^()\\\s]{0,16})\(.*?(?:\)(?P=end)"|\Z)
    | \.?\d(?:'?\w|\.)* | [^\W\d]\w* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' | (?P<lone>["'](?:\\\n|[^\n])*)""",
    re.DOTALL | re.VERBOSE,
)
# Printing at compile time, which g++ -fdirectives-only can't do
_MESSAGE = re.compile(r"^([^\S\n]*#[^\S\n]*pragma[^\S\n]+)message\b", re.MULTILINE)


def modules_of(base: Path) -> Path:
    """The file with the Python modules that are not in the tree, see modules.py; only its owner can read it."""
    return base.with_name("modules.json")


def make_base(folder: Path) -> Path:
    """Writes the tree shared by all submissions, and modules_of(folder)."""
    skip = _but_included(shutil.ignore_patterns(*NOT_COPIED))
    _copy(ROOT / "common", folder / "common", ignore=_but_grading(skip))
    for task in tasks():
        theirs = {ROOT / task / name for name in read_manifest(task).files}

        def ignored(place: str, names: list[str], theirs: set[Path] = theirs) -> set[str]:
            return set(skip(place, names)) | {name for name in names if Path(place) / name in theirs}

        _copy(ROOT / task, folder / task, ignore=ignored)
    oracle = folder / "common" / "reference" / "oracle.py"
    oracle.write_text(oracle.read_text(encoding="utf-8") + STUB, encoding="utf-8")
    used = [ROOT / task / name for task in tasks() for name in ("__init__.py", *read_manifest(task).files)]
    used += [ROOT / "common" / "course" / "grading" / name for name in ("modules.py", "torch_handles.py")]
    kept = {folder / one.relative_to(ROOT) for one in _imported(one for one in used if one.suffix == ".py")}
    others = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.py") if path not in kept}
    modules = modules_of(folder)
    modules.touch(0o600)
    modules.write_text(json.dumps({str(path.relative_to(folder)): text for path, text in others.items()}))
    for path in others:
        path.unlink()
    return folder


def _imported(files: Iterable[Path]) -> set[Path]:
    """These Python files and what they import from the course, except under an `if`, as for type checking."""
    found: set[Path] = set()
    todo = list(files)
    while todo:
        file = todo.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        todo += [folder / "__init__.py" for folder in file.parents if folder.is_relative_to(ROOT)]
        nodes: list[ast.AST] = [ast.parse(file.read_text(encoding="utf-8"))]
        while nodes:
            node = nodes.pop()
            nodes += [one for one in ast.iter_child_nodes(node) if not isinstance(one, ast.If)]
            names = [one.name for one in getattr(node, "names", ()) if isinstance(one, ast.alias)]
            if isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{name}" for name in names)]
            todo += [ROOT / f"{name.replace('.', '/')}{end}" for name in names for end in (".py", "/__init__.py")]
    return found


def _copy(source: Path, target: Path, function: Callable = shutil.copy2, ignore: Callable | None = None) -> None:
    """Like shutil.copytree, but raises the first error unchanged instead of a list of all errors."""
    errors: list[OSError] = []

    def copied(*names: str) -> None:
        try:
            function(*names)
        except OSError as error:
            errors.append(error)
            raise

    try:
        shutil.copytree(source, target, copy_function=copied, ignore=ignore)
    except shutil.Error:
        raise errors[0] from None


def _but_included(skip):
    """Ignores what is left out, and C++ that no released file includes, so that no course kernel is available."""
    places = [place for task in tasks() for place in places_of(task, Variant.SOLUTION)]
    sources = [source for place in places for source in (*place.kernels, place.binding)]
    known = {one for source in sources for one in local_sources(source, [ROOT])}

    def ignored(place: str, names: list[str]) -> set[str]:
        others = set() if Path(place).is_relative_to(SIMULATOR) else {n for n in names if n.endswith(CPP)}
        return set(skip(place, names)) | {name for name in others if Path(place, name) not in known}

    return ignored


def _but_grading(skip):
    """Ignores the parts of common that are left out."""
    kept_of_course = {"__init__.py", "grading"}
    kept_of_grading = {
        "__init__.py",
        "build.py",
        "elf.py",
        "handle_server.py",
        "inside.py",
        "modules.py",
        "system_calls.py",
        "timed.py",
        "torch_handles.py",
    }

    def ignored(place: str, names: list[str]) -> set[str]:
        here = Path(place).relative_to(ROOT / "common")
        left_out = set(skip(place, names))
        if here.parts[:2] == ("course", "grading"):
            left_out |= set(names) - kept_of_grading
        elif here.parts[:1] == ("course",):
            left_out |= set(names) - kept_of_course
        return left_out

    return ignored


def _as_error(one: re.Match[str]) -> str:
    """A line marker as a directive that ends compilation, but does nothing in a comment or string."""
    return re.sub("#|%:", "#error Graded code has no line markers: ", one[0], count=1)


def with_submission(base: Path, folder: Path, files: Mapping[str, str], copy: bool = False) -> Path:
    """Writes a copy of the base with a submission's files added.

    Args:
        base: the tree written by make_base.
        folder: a new folder on the same disk.
        files: "task2/attention_kernel.cu" -> text.
        copy: copy the base's files instead of linking them: needed if student code could write to them.
    """
    _copy(base, folder, shutil.copy2 if copy else os.link)
    for name, text in files.items():
        path = folder / name
        if path.suffix in CPP:
            text = _LONE_QUOTE.sub(lambda one: blank(one[0]) if one["lone"] else one[0], text)
            text = LINE_NUMBERS.sub(_as_error, _MESSAGE.sub(r"\1mark", text))
        path.write_text(ASKS_FOR_SIMULATOR.sub(ASKS_IN_VAIN, text), encoding="utf-8")
        path.chmod(0o644)
    return folder
