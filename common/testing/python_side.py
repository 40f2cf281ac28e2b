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
    """The module that belongs to the operators: the student's beside the student's, else the solution's."""
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
        words = [f"{where}: {type(error).__name__}: {error}", *_worked_with(*frames[-1])]
        raise RuntimeError("\n".join(words)) from error


def _worked_with(frame: FrameType, line: int) -> list[str]:
    """The lines that what a line works with comes from, and what that is."""
    try:
        source = inspect.getsource(frame.f_code)
    except (OSError, TypeError):
        return []
    names = names_at(source, frame.f_code.co_firstlineno, line)
    known = {name: said for name in names if (said := _said(frame.f_locals.get(name)))}
    told = [f"There {', '.join(f'{name} is {said}' for name, said in known.items())}."] if known else []
    lines = made_of(source, frame.f_code.co_firstlineno, line, most=MOST_LINES)
    told += ["What that line works with, and whether it runs, is decided in:"] if lines else []
    return told + [f"{number:>5}  {text}" for number, text in lines]


def _said(value: object) -> str:
    """A tensor's shape, a number; "" of anything else."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    return str(value) if isinstance(value, bool | int | float) else ""
