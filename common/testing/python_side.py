"""Access to a task's attention.py, or another of its Python files, for the tests.

python_module(task, variant)    the student's or the solution's module
python_side(ops)                the module that goes with these operators
running_as(module, text)        runs its functions as another text of its file has them
naming_the_line(module)         makes errors name their line in the module
"""

import importlib
import inspect
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType

from torch import Tensor

from common.console.paths import shown_path
from common.testing.python_lines import made_of, names_at

MOST_LINES = 6  # lines shown that compute what the error's line uses


def python_module(task: str, variant: str, name: str = "attention") -> ModuleType:
    """The module taskN.`name` for variant "student", otherwise the solution's."""
    whose = "" if variant == "student" else "solution."
    return importlib.import_module(f"{task}.{whose}{name}")


def python_side(ops, name: str = "attention") -> ModuleType:
    """The module that goes with the operators: the student's for student operators, otherwise the solution's.

    Never call it in the test's own process: a case that needs it sets Case.python and runs in a worker.
    """
    if hasattr(ops, "memory"):
        raise RuntimeError(f"{ops.task}.{name}: the case that runs it does not say so: it has no `python`")
    return python_module(ops.task, ops.variant, name)


@contextmanager
def running_as(module: ModuleType, text: str) -> Iterator[None]:
    """Inside, the module's functions and methods run as they are in `text`, an edited text of its file.

    Raises:
        SyntaxError: the text does not compile. ValueError: an edited function has other free variables.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        codes = {one.co_qualname: one for one in _codes(compile(text, module.__file__, "exec"))}
    before: list[tuple[FunctionType, CodeType]] = []
    try:
        for function in _functions(module):
            if code := codes.get(function.__code__.co_qualname):
                before.append((function, function.__code__))
                function.__code__ = code
        yield
    finally:
        for function, code in before:
            function.__code__ = code


def _codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _codes(one)


def _functions(module: ModuleType) -> Iterator[FunctionType]:
    """The functions and methods that the module's file defines."""
    own = [one for one in vars(module).values() if getattr(one, "__module__", None) == module.__name__]
    members = [member for one in own if isinstance(one, type) for member in vars(one).values()]
    for one in map(inspect.unwrap, filter(callable, [*own, *members])):
        if isinstance(one, FunctionType) and one.__code__.co_filename == module.__file__:
            yield one


@contextmanager
def naming_the_line(module: ModuleType) -> Iterator[None]:
    """Inside, errors raised from the module's source name their file and line."""
    try:
        yield
    except NotImplementedError:  # a gap: the checks report where it is
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
    """The values used in the line of the error and the lines that compute them, for the innermost function that has
    any; innermost frames first."""
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
            before = min(lines)[0] < line
            is_decided = ", and whether it runs, is decided in:" if before else " was left by earlier calls, in:"
            told.append(f"What line {line} works with{is_decided}")
            return told + [f"{number:>5}  {text}" for number, text in lines]
    return told


def _said(value: object) -> str:
    """Describes a tensor by its shape, a number by its value; "" for anything else."""
    if isinstance(value, Tensor):
        return str(list(value.shape))
    return str(value) if isinstance(value, bool | int | float) else ""
