"""Finds the first wrong call in a student's Python: told(case, recorded, inputs) -> WrongCall.

The handout specifies each function with a gap, so its arguments determine its result and the intermediate values that
the handout names. A case that knows these (Case.python) is called again while the arguments and results of each
function are recorded (watching.py). The first function to return a wrong result contains the mistake, since everything
it called was correct. Reported are the lines that compute the wrong value, minus those that compute correct values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.testing.case import Call, Case
from common.testing.python_lines import calls_alone, made_of
from common.testing.watching import read

CLOSE = 1e-3  # float32 tolerance, relative to the largest value or to 1
RETURNED = "returned"
_NEW = ("view", "reshape", "permute", "expand", "repeat_interleave", "softmax")  # methods without an in-place variant
NEAREST = 4  # lines shown in full; for the others, only the line numbers
MADE_IN = "The wrong value is computed in:"


@dataclass(frozen=True)
class WrongCall:
    """The first call that returned something wrong.

    Attributes:
        says: which call, and how its result is wrong.
        lines: (number, text) of the lines that compute the result.
        nearest: the numbers of those nearest to the return.
    """

    says: str
    lines: tuple[tuple[int, str], ...]
    nearest: frozenset[int] = frozenset()

    @property
    def shown(self) -> list[str]:
        """The nearest lines, and the line numbers of the others."""
        more = ", ".join(str(number) for number, _ in self.lines if number not in self.nearest)
        near = [f"{number:>5}  {text}" for number, text in self.lines if number in self.nearest]
        return [*near, f"  and in lines {more}"] if more else near


def told(case: Case, recorded: Sequence[Mapping], inputs: Mapping[str, Tensor]) -> WrongCall | None:
    """The first wrong call; None if all are correct or nothing is known about them.

    Args:
        case: a case with `python`.
        recorded: the contents of Watched.calls.
        inputs: the case's inputs, float64, on the CPU.
    """
    try:
        return first_wrong(case, recorded, inputs)
    except (ArithmeticError, AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError):
        return None  # inconsistent sizes: no correct result exists


def first_wrong(case: Case, recorded: Sequence[Mapping], inputs: Mapping[str, Tensor]) -> WrongCall | None:
    """The same, but exceptions for calls with unknown results propagate."""
    for one in recorded:
        call = Call(
            str(one["function"]),
            int(one["number"]),
            {name: read(kept) for name, kept in one["arguments"].items()},
            inputs,
            read(one[RETURNED]),
        )
        right = case.python.right[call.function](call)
        if right is None:
            continue
        came = _by_name(call.returned, right[RETURNED])
        wrong = [name for name, value in came.items() if not _same(value, _part(right[RETURNED], name))]
        if wrong:
            values = {name: read(kept) for name, kept in one["values"].items()}
            good = _right_ones(values, right, came)
            says = _told(case, call, right, came, wrong, good) + _exchanged(values, right)
            known, source = [name for name in values if name in good], (str(one["source"]), int(one["first_line"]))
            says += _not_kept(*source)
            ran = frozenset(map(int, one["ran"]))
            about = {"known": known, "ran": ran, "part": wrong[0]}
            nearest = frozenset(number for number, _ in made_of(*source, most=NEAREST, **about))
            return WrongCall(says, tuple(made_of(*source, **about)), nearest)
    return None


def _by_name(came: object, right: object) -> dict[str, object]:
    """The parts of the result by name; a single part has the name ""."""
    if isinstance(right, Mapping):
        return came if isinstance(came, Mapping) and list(came) == list(right) else dict.fromkeys(right)
    return {"": came}


def _part(right: object, name: str) -> object:
    return right[name] if name else right


def _same(came: object, right: Tensor) -> bool:
    """Whether a number or tensor is correct up to rounding; NaN never is."""
    off = _off(came, right)
    return off is not None and not bool(off.any())


def _off(came: object, right: Tensor) -> Tensor | None:
    """Mask of the elements that differ; None if the shapes differ."""
    if not isinstance(came, Tensor | int | float):
        return None
    came, right = _number(came), _number(right)
    if came.shape != right.shape:
        return None
    finite = torch.isfinite(right)
    largest = float(right[finite].abs().max()) if bool(finite.any()) else 0.0
    return ~((came == right) | ((came - right).abs() <= CLOSE * max(1.0, largest)))


def _number(value: Tensor | float) -> Tensor:
    return torch.as_tensor(value).double()


def _known(right: Mapping[str, object]) -> dict[str, object]:
    """All correct values by name, including the parts of the result."""
    parts = right[RETURNED] if isinstance(right[RETURNED], Mapping) else {}
    return {**parts, **{name: one for name, one in right.items() if name != RETURNED}}


def _right_ones(values: Mapping[str, object], right: Mapping[str, object], came: Mapping[str, object]) -> list[str]:
    """Names of correct values: parts of the result, and local values that match the correct value of the same name or,
    under a name of the student's own, a correct value whose name no other local has."""
    known = _known(right)
    found = [name for name in came if name and _same(came[name], known[name])]
    for name, value in values.items():
        among = [known[name]] if name in known else [known[other] for other in known if other not in values]
        found += [name] if any(_same(value, one) for one in among) else []
    return found


def _exchanged(values: Mapping[str, object], right: Mapping[str, object]) -> str:
    """ "`value` holds what `key` should." for the first such pair; "" if there is none."""
    known = _known(right)
    for name, value in values.items():
        for other in known if name in known and not _same(value, known[name]) else ():
            if other in values and _varies(value) and _same(value, known[other]):
                return f" `{name}` holds what `{other}` should."
    return ""


def _varies(value: object) -> bool:
    """Whether a tensor has different numbers: the same one throughout, such as 0, equals others by chance."""
    return isinstance(value, Tensor) and value.numel() > 1 and not bool((value == value.flatten()[0]).all())


def _not_kept(source: str, first_line: int) -> str:
    """ " The result of line 69 is not kept: ..." of the first statement that only computes a new tensor."""
    for line, name in calls_alone(source, first_line):
        if name in _NEW or (name != "add" and hasattr(Tensor, f"{name}_") and hasattr(Tensor, name)):  # sets have add
            return f" The result of line {line} is not kept: `{name}` changes no tensor in place."
    return ""


def _told(
    case: Case,
    call: Call,
    right: Mapping[str, object],
    came: Mapping[str, object],
    wrong: Sequence[str],
    good: Sequence[str],
) -> str:
    which = f"call {call.number} of {call.function}" if call.number > 1 else f"the first call of {call.function}"
    says = f"In {case.python.module}.py, {which} returns a wrong result for correct arguments. "
    of = _quoted(wrong[0]) if wrong[0] else "What it returns"
    of = f"{of[0].upper()}{of[1:]}" if wrong[0].isdigit() else of
    says += f"{of}{_difference(came[wrong[0]], _part(right[RETURNED], wrong[0]))}."
    if more := wrong[1:]:
        says += f" {_listed(more)} {'are' if len(more) > 1 else 'is'} wrong as well."
    if good := [name for name in dict.fromkeys(good) if name not in wrong]:
        listed = _listed(good)
        says += f" {listed[0].upper()}{listed[1:]} {'are' if len(good) > 1 else 'is'} right."
    return f"{says} {case.python.but_for(call)}".strip()


def _quoted(name: str) -> str:
    return f"part {int(name) + 1} of what it returns" if name.isdigit() else f"`{name}`"


def _listed(names: Sequence[str]) -> str:
    quoted = [_quoted(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _difference(came: object, right: object) -> str:
    """ "[0, 1] is 3; it should be 2"."""
    right = _number(right)
    if not isinstance(came, Tensor | int | float):
        return " is not a tensor"
    came, off = _number(came), _off(came, right)
    if off is None:
        return f" has the shape {list(came.shape)}; it should be {list(right.shape)}"
    at = tuple(off.nonzero()[0].tolist())
    where = f" at [{', '.join(map(str, at))}]" if at else ""
    return f"{where} is {float(came[at]):.6g}; it should be {float(right[at]):.6g}"
