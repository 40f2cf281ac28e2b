"""A task's attention.py, or another of its Python files, as the tests see it.

python_module(task, variant)    the student's module or the solution's
python_side(ops)                the same, whichever the operators belong to
naming_the_line(module)         errors inside name their line in it
"""

import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from common.console.paths import shown_path


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
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == file]
        if not places:
            raise
        *outer, last = places
        called = ", ".join(f"line {frame.lineno} in {frame.name}" for frame in reversed(outer))
        where = f"{shown_path(file)}:{last.lineno} in {last.name}" + (f", called from {called}" if called else "")
        raise RuntimeError(f"{where}: {type(error).__name__}: {error}") from error
