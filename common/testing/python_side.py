"""A task's attention.py, or another of its Python files, as the tests see it.

python_module(task, variant)    the student's module or the solution's
python_side(ops)                the same, whichever the operators belong to
naming_the_line(module)         errors inside name their line in it
"""

import importlib
import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType

from torch import Tensor

from common.console.paths import shown_path
from common.testing.python_lines import made_of, names_at

MOST_LINES = 6  # that an error's line works with


def python_module(task: str, variant: str, name: str = "attention") -> ModuleType:
    """The module taskN.attention, or another, for "student", or that of the solution."""
    whose = "" if variant == "student" else "solution."
    return importlib.import_module(f"{task}.{whose}{name}")


def python_side(ops, name: str = "attention") -> ModuleType:
    """The module that belongs to the operators: the student's for the student's, else the solution's.

    Never in the process that tests: a case that wants it says so, see Case.python, and runs in a worker.
    """
    if hasattr(ops, "memory"):
        raise RuntimeError(f"{ops.task}.{name}: the case that runs it does not say so: it has no `python`")
    return python_module(ops.task, ops.variant, name)


@contextmanager
def naming_the_line(module: ModuleType) -> Iterator[None]:
    """An error inside that comes from the module's source names its file and line."""
    try:
        yield
    except NotImplementedError:  # a gap: the checks say where it is
        raise
    except Exception as error:
        file = Path(module.__file__)
        frames = [one for one in traceback.walk_tb(error.__traceback__) if Path(one[0].f_code.co_filename) == file]
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
        if not places:
            raise
        *outer, last = places
        called = ", ".join(f"line {frame.lineno} in {frame.name}" for frame in reversed(outer))
        where = f"{shown_path(file)}:{last.lineno} in {last.name}" + (f", called from {called}" if called else "")
        words = [f"{where}: {type(error).__name__}: {error}", *_worked_with(frames)]
        raise RuntimeError("\n".join(words)) from error


def _worked_with(frames: list[tuple[FrameType, int]]) -> list[str]:
    """What the line of the error works with, and the lines that this comes from: of the innermost function that has
    any, those that are called last first."""
    told = []
    for frame, line in reversed(frames):
        try:
            source = inspect.getsource(frame.f_code)
        except (OSError, TypeError):
            return told
        first = frame.f_code.co_firstlineno
        known = {name: said for name in names_at(source, first, line) if (said := _said(frame.f_locals.get(name)))}
        if known and not told:
            told.append(f"There {', '.join(f'{name} is {said}' for name, said in known.items())}.")
        if lines := made_of(source, first, line, most=MOST_LINES):
            told.append(f"What line {line} works with, and whether it runs, is decided in:")
            return told + [f"{number:>5}  {text}" for number, text in lines]
    return told


def _said(value: object) -> str:
    """A tensor's shape, a number; "" of anything else."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    return str(value) if isinstance(value, bool | int | float) else ""
