"""What goes wrong first in a student's Python: told(case, recorded, inputs) -> sentences.

A function with a gap is described in the handout, so that what it must return follows from what it is given, and so do
numbers on its way that have a name there. A case that knows these (Case.python) is called again, with what each
function was given and gave recorded (watching.py). The first function to return that returned something else is where
it went wrong: all that it called was right. Told are the lines that the wrong number is made of, but for those that
make a number which is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from common.testing.case import Call, Case
from common.testing.python_lines import calls_alone, made_of
from common.testing.watching import read

CLOSE = 1e-3  # of the largest number, or of 1: how far a number in float32 may be away
RETURNED = "returned"
_NEW = ("view", "reshape", "permute", "expand", "repeat_interleave", "softmax")  # with no name that ends in _
NEAREST = 4  # lines that are shown; of the others the numbers
MADE_IN = "The wrong value is computed in:"


@dataclass(frozen=True)
class WrongCall:
    """The first call that returned something wrong.

    Attributes:
        says: which, and how wrong.
        lines: the numbers and the texts of the lines that this is made of.
        nearest: the numbers of those that are nearest to what is returned.
    """

    says: str
    lines: tuple[tuple[int, str], ...]
    nearest: frozenset[int] = frozenset()

    @property
    def shown(self) -> list[str]:
        """The nearest lines, and the numbers of the others."""
        more = ", ".join(str(number) for number, _ in self.lines if number not in self.nearest)
        near = [f"{number:>5}  {text}" for number, text in self.lines if number in self.nearest]
        return [*near, f"  and in lines {more}"] if more else near


def told(case: Case, recorded: Sequence[Mapping], inputs: Mapping[str, Tensor]) -> WrongCall | None:
    """The first wrong call, None if every one is right, or nothing is known.

    Args:
        case: with `python`.
        recorded: what Watched.calls held.
        inputs: of the case, in float64, on the CPU.
    """
    try:
        return first_wrong(case, recorded, inputs)
    except (ArithmeticError, AttributeError, KeyError, IndexError, RuntimeError, TypeError, ValueError):
        return None  # of sizes that go with nothing, nothing is known


def first_wrong(case: Case, recorded: Sequence[Mapping], inputs: Mapping[str, Tensor]) -> WrongCall | None:
    """The same; it raises what comes of calls that nothing is known of."""
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
            nearest = frozenset(number for number, _ in made_of(*source, known=known, most=NEAREST))
            return WrongCall(says, tuple(made_of(*source, known=known)), nearest)
    return None


def _by_name(came: object, right: object) -> dict[str, object]:
    """What was returned, part by part; "" where there is one."""
    if isinstance(right, Mapping):
        return came if isinstance(came, Mapping) and list(came) == list(right) else dict.fromkeys(right)
    return {"": came}


def _part(right: object, name: str) -> object:
    return right[name] if name else right


def _same(came: object, right: Tensor) -> bool:
    """Whether a number or a tensor is the right one, up to rounding; NaN is never right."""
    off = _off(came, right)
    return off is not None and not bool(off.any())


def _off(came: object, right: Tensor) -> Tensor | None:
    """Where the two differ; None where they are not of one shape."""
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
    """What is right by name, the parts of what must be returned as well."""
    parts = right[RETURNED] if isinstance(right[RETURNED], Mapping) else {}
    return {**parts, **{name: one for name, one in right.items() if name != RETURNED}}


def _right_ones(values: Mapping[str, object], right: Mapping[str, object], came: Mapping[str, object]) -> list[str]:
    """The names of the parts that came which are right, and of those values: the one of that name, or, under a name of
    the student's own, one that no other value has the name of."""
    known = _known(right)
    found = [name for name in came if name and _same(came[name], known[name])]
    for name, value in values.items():
        among = [known[name]] if name in known else [known[other] for other in known if other not in values]
        found += [name] if any(_same(value, one) for one in among) else []
    return found


def _exchanged(values: Mapping[str, object], right: Mapping[str, object]) -> str:
    """ "`value` holds what `key` should." of the first that does; "" if none does."""
    known = _known(right)
    for name, value in values.items():
        for other in known if name in known and not _same(value, known[name]) else ():
            if other in values and _same(value, known[other]):
                return f" `{name}` holds what `{other}` should."
    return ""


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
    if good := list(dict.fromkeys(good)):
        says += f" {_listed(good)} {'are' if len(good) > 1 else 'is'} right."
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
