"""Diagnoses a wrong output: the known mistake that it matches, or where its errors are.

    diagnose(out, ref, bound, axes, mistakes, ...) -> Diagnosis

A mistake is named only if the output equals the wrong answer that it gives on these inputs, and if that answer differs
clearly from the correct one. If several known mistakes give the same answer, all are named. If none matches, the
diagnosis says so and locates the errors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from common.diagnosis.locating import (
    GPU_BITS,
    OR_UNWRITTEN,
    SEPARATION,
    UNUSED_BITS,
    edge_of_a_tile,
    holds,
    locate,
    nameless_nan,
    unwritten_mask,
    wrong_mask,
)
from common.diagnosis.mistakes.known import Inference, Mistake
from common.diagnosis.slices import BARRIER, explain_slices, moved_slices, row_factors
from common.diagnosis.stages import Table

ALSO = "On these inputs it also equals: "
UNSTEADY = "changes from run to run"
MOST_ELEMENTS = 1 << 16  # in an output, to compare it with every known answer again
MOST_BY_CHANCE = 16  # wrong numbers among NaN that may match an answer by chance
MOST_TOLD = 3  # reported known mistakes per output
MOST_SAMPLED = 64  # elements


@dataclass
class Diagnosis:
    """The diagnosis of a wrong output.

    Attributes:
        names: the known mistakes that the output matches ("scale forgotten"), or its symptoms ("unwritten outputs").
        exact: a sentence for each wrong answer that the output matches, or for an inference from it.
        possible: every known mistake whose answer the output matches, with its sentence.
        vague: those of them that are vague, see common.diagnosis.mistakes.known.Mistake.
        refuted: the known mistakes that would show on these inputs but whose answers the output does not match.
        concluded: the result is uncertain: it was inferred, or the matching output has NaN.
        tried: the line where an edit fixes the output, and that edit, see common/cli/tried_edits.py.
        tried_leads: whether that edit is reported before the matching mistakes.
        python: the first wrong result in the student's Python, and the lines that compute it.
        signs: sentences about symptoms that identify no mistake.
        where: how much is wrong and the first wrong element; then what the wrong elements have in common.
        unless_clean: other possible causes, unless the checked build has ruled them out.
        table: the stages of attention side by side, and sentences about them.
        hints: what to look at.
    """

    names: list[str] = field(default_factory=list)
    exact: list[str] = field(default_factory=list)
    possible: dict[str, str] = field(default_factory=dict)
    vague: frozenset[str] = frozenset()
    refuted: frozenset[str] = frozenset()
    concluded: bool = False
    tried: list[str] = field(default_factory=list)
    tried_leads: bool = False
    python: list[str] = field(default_factory=list)
    signs: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    unless_clean: list[str] = field(default_factory=list)
    table: Table = field(default_factory=Table)
    hints: list[str] = field(default_factory=list)

    @property
    def sentences(self) -> list[str]:
        """All sentences in printing order."""
        exact = [self.exact[0], *(ALSO + one for one in self.exact[1:])] if self.exact else []
        told = [*self.tried, *self.python, *self.signs]
        told = [*told, *exact] if self.names[:1] == [UNSTEADY] else [*exact, *told]
        return [*told, *self.where, *self.unless_clean, *self.table.lines, *self.table.says, *self.hints]

    def tell(self, name: str, sentence: str) -> None:
        """Adds an inference from the output in front, when no known mistake explains it."""
        self.names.append(name)
        self.exact.insert(0, sentence)
        self.possible = {name: sentence}
        self.concluded = True


def diagnose(
    out: Tensor,
    ref: Tensor,
    bound: float,
    axes: tuple[str, ...],
    mistakes: list[Mistake] = (),
    repeated: Tensor | None = None,
    is_softmax: bool = False,
    nan_from: Mapping[int, Tensor] | None = None,
    of_keys: bool = False,
) -> Diagnosis:
    """Explains a wrong output.

    Args:
        out: the operator's output, any shape.
        ref: the float64 oracle's answer, same shape and device.
        bound: the largest error that passes.
        axes: names of the axes of out, such as ("batch", "row", "col").
        mistakes: wrong answers to compare with; see common.diagnosis.mistakes.known.
        repeated: the output of a second call with the same inputs.
        is_softmax: the rows of ref sum to 1; look for wrong denominators.
        nan_from: see common.diagnosis.locating.locate.
        of_keys: the rows of ref are sums over keys; a row whose keys are all masked is 0.
    """
    found = Diagnosis()
    wrong = wrong_mask(out, ref, bound)
    if out.numel() <= MOST_ELEMENTS:  # cached, since they are compared with the output more than once
        mistakes = [one.remembered() for one in mistakes]
    if not bool(wrong.any()):
        return found
    # compare with a tolerance: the rounding of atomic sums depends on their order
    if repeated is not None and bool(wrong_mask(repeated, out.to(ref.dtype), bound)[~torch.isnan(out)].any()):
        found.names.append(UNSTEADY)
        found.signs.append(
            "The result changes from run to run on the same inputs: threads race (one reads what another wrote "
            "without a barrier between them, or two write the same element), or something is read that is no part of "
            "the inputs: memory that no thread wrote, a variable without a first value, what is outside an array, or "
            "what an earlier call left."
        )
    if not bool(unwritten_mask(out).any()):
        equal = matching(out, ref, bound, mistakes)
        found.possible = {mistake.name: mistake.says for mistake in reversed(equal)}
        found.vague = frozenset(mistake.name for mistake in equal if mistake.vague)
        if out.numel() <= MOST_ELEMENTS:
            shown = {one.name for one in mistakes if _would_show(one.answer(), ref, bound)}
            found.refuted = frozenset(shown - found.possible.keys())
        for mistake in equal[:MOST_TOLD]:
            if mistake.name not in found.names:
                found.names.append(mistake.name)
            found.exact.append(mistake.says)
        # An output with NaN matches many answers, so the checked build's findings are more certain. The exception is
        # NaN that identifies where it was read, among correct numbers.
        has_nan = bool((out.isnan() & ~ref.isnan()).any())
        of_numbers = int((wrong & ~out.isnan()).sum())
        is_read = bool(equal) and equal[0].reads_unused and bool(out[~wrong & ~out.isnan()].any())
        found.concluded = bool(equal) and has_nan and of_numbers < MOST_BY_CHANCE and not is_read
        if not found.names and bool(torch.isfinite(out).all()):
            inferences = (one.infer(out.to(ref.dtype), bound) for one in mistakes if isinstance(one, Inference))
            if inferred := next(filter(None, inferences), None):
                found.tell(*inferred)
    elif bool((unwritten_mask(out) & wrong).any()):
        found.names.append("unwritten outputs")
    named = bool(found.names)
    zeros_say_more = not named and not is_softmax and bool(torch.isfinite(out).any())  # softmax underflows to 0
    if zeros_say_more and (told := explain_slices(out, ref, bound, axes, of_keys)):
        found.tell(*told)
        named = True
    if is_softmax and not named:
        if factors := row_factors(out.reshape(-1, out.size(-1)), ref.reshape(-1, ref.size(-1))):
            found.names.append(factors[0])
            found.signs.append(factors[1])
            found.unless_clean.append(BARRIER)
        found.signs += _row_sums(out, ref)
    equals_known_mistake = named and found.names[-1] not in (UNSTEADY, "unwritten outputs")
    if not equals_known_mistake and (moved := moved_slices(out, ref, bound, axes)):
        name, told = moved
        found.signs.append(told)
        found.names += [name] if name and not found.names else []
    where = locate(out, ref, bound, axes, nan_from)
    found.where = where[:1] if equals_known_mistake else where
    found.hints += [] if equals_known_mistake else edge_of_a_tile(wrong, axes)
    if not equals_known_mistake and bool(nameless_nan(out, ref).any()):
        found.unless_clean.append(OR_UNWRITTEN)
    return found


def matching(out: Tensor, ref: Tensor, bound: float, mistakes: list[Mistake]) -> list[Mistake]:
    """The mistakes whose answer the output matches, closest first, vague ones last; each sentence only once."""
    found: list[tuple[float, bool, int, Mistake]] = []
    if not bool(out.any()):  # if sizes are 1, many mistakes yield zeros; that says nothing
        mistakes = [mistake for mistake in mistakes if mistake.name == "all zeros"] or mistakes
    else:  # numbers far too small, but not 0, say more
        mistakes = [mistake for mistake in mistakes if mistake.name != "all zeros"]
    read_outside = bool((holds(out, UNUSED_BITS) | holds(out, GPU_BITS)).any()) if out.dtype == torch.float32 else True
    may_match = _sampled(out, bound)
    for order, mistake in enumerate(mistakes):
        if mistake.reads_unused and bool(torch.isnan(out).any()) and not read_outside:
            continue  # the NaN in the output is not from the input
        answer = mistake.answer()
        distance = distance_to(out, ref, bound, answer) if may_match(answer) else None
        if distance is not None and mistake.vague and _is_of_nan(answer, ref, bound):
            continue
        if distance is not None and all(mistake.says != other.says for *_, other in found):
            found.append((distance, mistake.vague, order, mistake))
    return [mistake for *_, mistake in sorted(found, key=lambda entry: entry[:3])]


def _sampled(out: Tensor, bound: float) -> Callable[[Tensor], bool]:
    """A fast check of whether an output may match an answer within _tolerance, by a few of its elements."""
    flat = out.double().flatten()
    finite = torch.isfinite(flat).nonzero().flatten()
    places = finite[:: max(1, len(finite) // MOST_SAMPLED)]
    some = flat[places]
    most = 1.01 * (4 * bound + 1e-5 * float(flat[finite].abs().max())) if len(finite) else 0.0
    return lambda answer: (
        answer.numel() == out.numel() and bool(((answer.detach().flatten()[places] - some).abs() <= most).all())
    )


def _is_of_nan(answer: Tensor, ref: Tensor, bound: float) -> bool:
    """Whether an answer has NaN and hardly any other wrong numbers, so that many outputs match it by chance."""
    wrong = (answer - ref).abs() > SEPARATION * bound
    return bool(torch.isnan(answer).any()) and int(wrong.sum()) < MOST_BY_CHANCE


def _would_show(answer: Tensor, ref: Tensor, bound: float) -> bool:
    """Whether an answer differs clearly from the correct one and has finite numbers to compare."""
    finite = torch.isfinite(answer)
    if answer.shape != ref.shape or not bool(finite.any()):
        return False
    if bool((finite != torch.isfinite(ref)).any()):
        return True
    return bool(((answer - ref)[finite].abs() > SEPARATION * _tolerance(answer, finite, bound)).any())


def _tolerance(answer: Tensor, finite: Tensor, bound: float) -> float:
    """The tolerance for an output to match a known answer."""
    return 4 * bound + 1e-5 * (float(answer[finite].abs().max()) if bool(finite.any()) else 0.0)


def distance_to(out: Tensor, ref: Tensor, bound: float, answer: Tensor) -> float | None:
    """max|out - answer| in quarter tolerances, rounded down; None unless out matches answer and answer differs clearly
    from ref.

    The tolerance is 4 bounds plus 1e-5 of the answer's largest entry: the bound is about the float32 noise of the
    correct answer, and a wrong answer may be larger. Clearly means by SEPARATION times both the bound and the distance
    of out from answer. The output must be NaN or Inf exactly where the answer is; NaN versus Inf counts as a difference
    from ref only if the output has NaN in the same places.
    """
    if answer.shape != out.shape:
        return None
    out, answer, finite = out.to(ref.dtype), answer.detach(), torch.isfinite(answer)
    if not bool((torch.isfinite(out) == finite).all()) or not bool(finite.any()):
        return None
    difference = (out - answer).abs()
    distance = float(difference.max() if bool(finite.all()) else difference[finite].max())
    tolerance = _tolerance(answer, finite, bound)
    if not distance <= tolerance:
        return None
    nan = torch.isnan(answer)
    told_apart = (
        bool((finite != torch.isfinite(ref)).any())
        or bool(((answer - ref)[finite].abs() > SEPARATION * max(distance, bound)).any())
        or bool((nan != torch.isnan(ref)).any() and (nan == torch.isnan(out)).all())
    )
    return float(int(4 * distance / tolerance)) if told_apart else None


def _row_sums(out: Tensor, ref: Tensor) -> list[str]:
    """For softmax: rows with a wrong sum."""
    got, expected = out.to(ref.dtype).sum(-1), ref.sum(-1)
    bad = torch.isfinite(got) & ((got - expected).abs() > 1e-3)
    if not bool(bad.any()):
        return []
    first = tuple(bad.nonzero()[0].tolist())
    row = first[0] if len(first) == 1 else first
    return [
        f"{int(bad.sum())} rows do not sum to {float(expected[first]):.0f}; row {row} sums to {float(got[first]):.5g}."
    ]
