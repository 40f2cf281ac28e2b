"""`--show CASE`: a case in numbers, for comparison with a calculation by hand: show_case(console, case, ...)."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from torch import Tensor

from common.console.terminal import say
from common.diagnosis.locating import place, wrong_mask
from common.testing.calling import Caller, CallFailed
from common.testing.case import Case
from common.testing.case_choice import full_name
from common.testing.judging import make_inputs, oracle, size_of

MOST_ROWS = 8
CELL, LABEL = 10, 6  # widths of a number and of a row label
BY_HAND = 2048  # input elements; beyond this, calculating a case by hand is hopeless


def show_case(console: Console, case: Case, caller: Caller, seed: int, others: Sequence[Case]) -> bool:
    """Prints the inputs, the correct intermediate steps, the correct output and the actual one; returns whether it is
    correct.

    Args:
        console: where to print.
        case: the case.
        caller: calls its operator.
        seed: seed of the inputs.
        others: the task's cases, to suggest a smaller one.
    """
    inputs = make_inputs(case, seed)
    console.print()
    say(console, f"{full_name(case)}, first inputs", "bold")
    numbers, _ = size_of(inputs)
    if numbers > BY_HAND:
        smaller = _smallest(case, others, seed)
        instead = f"; a smaller case: --show {full_name(smaller)!r}" if smaller is not case else ""
        say(console, f"{numbers:,} numbers: only the first corner of each tensor{instead}", "dim", indent=0)
    ref, bound = oracle(case, inputs)
    failed, called = None, None
    try:
        called = caller.call(case, {name: x.to(caller.device) for name, x in inputs.items()})
    except CallFailed as error:
        failed = error
    out = called.out.cpu() if called and called.out is not None else None
    comparable = out is not None and out.shape == ref.shape
    wrong = wrong_mask(out, ref, bound) if comparable else None
    matrix = tuple(wrong.nonzero()[0].tolist())[:-2] if comparable and bool(wrong.any()) else ()
    for name, x in inputs.items():
        _show(console, name, x, _same_matrix(matrix, x, ref))
    doubles = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    between = case.steps or case.stages
    for name, x in (between(**doubles) if between else {}).items():
        if name != "O":
            _show(console, f"right: {name}", x, _same_matrix(matrix, x, ref))
    _show(console, "right: the output", ref, matrix)
    if failed:
        console.print()
        for line in failed.words:
            say(console, line, "yellow")
        return False
    if not comparable:
        say(console, f"came: {called.returned if out is None else list(out.shape)}", "red")
        return False
    _show(console, "came", out, matrix, wrong)
    count = int(wrong.sum())
    first = f"; * marks them, the first is at {place(wrong.nonzero()[0].tolist(), case.axes)}" if count else ""
    say(
        console,
        f"{count} of {wrong.numel()} elements differ by more than {bound:.1e}{first}",
        "red" if count else "green",
    )
    return not count


def _same_matrix(matrix: tuple[int, ...], x: Tensor, ref: Tensor) -> tuple[int, ...]:
    """The index of x's matrix for that matrix of the output: the same batch entry and head, if x has as many."""
    if x.dim() != ref.dim():
        return ()
    return tuple(at if x.size(dim) == ref.size(dim) else 0 for dim, at in enumerate(matrix))


def _smallest(case: Case, others: Sequence[Case], seed: int) -> Case:
    """The smallest case of the same part with more than one output element."""
    alike = [one for one in others if one.part == case.part and not one.gpu_only]

    def size(one: Case) -> int:
        return size_of(make_inputs(one, seed))[0]

    return min((one for one in alike if size(one) > 4), key=size, default=case)


def _show(console: Console, name: str, x: Tensor, matrix: tuple[int, ...] = (), wrong: Tensor | None = None) -> None:
    """Prints the upper left corner of one matrix of a tensor: the one that `matrix` selects."""
    shape = "x".join(map(str, x.shape)) or "one number"
    if x.dim() < 2:
        x, wrong = x.reshape(1, -1), None if wrong is None else wrong.reshape(1, -1)
    matrix = (matrix + (0,) * x.dim())[: x.dim() - 2]
    of = f", [{', '.join(map(str, matrix))}] of it" if any(size > 1 for size in x.shape[:-2]) else ""
    part, marks = x[matrix], None if wrong is None else wrong[matrix]
    rows, cols = min(part.size(0), MOST_ROWS), min(part.size(1), max(1, (console.width - LABEL - 3) // CELL))
    say(console, f"{name}  {shape}{of}")
    says = [" " * LABEL + "".join(f"{col:>{CELL}}" for col in range(cols))]
    for row in range(rows):
        cells = []
        for col in range(cols):
            value = part[row, col].item()
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            cells.append(f"{text + ('*' if marks is not None and bool(marks[row, col]) else ''):>{CELL}}")
        says.append(f"{row:>{LABEL}}" + "".join(cells) + (" .." if cols < part.size(1) else ""))
    if rows < part.size(0):
        says.append(f"{'..':>{LABEL}}")
    for line in says:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
