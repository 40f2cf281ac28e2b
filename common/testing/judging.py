"""Runs one test case against a float64 oracle: judge(case, ops).

An output passes if

    max|out - ref64| <= 2 * max|ref32 - ref64| + floor

where ref64 and ref32 are the case's plain PyTorch reference in float64 and float32: at most twice PyTorch's error in
the same precision (the rule of FlashAttention's own tests), plus a floor defined by the case. NaN and Inf never pass
where ref64 is finite. So that nothing passes by luck, calls run in poisoned and guarded memory (calling.py), and every
case runs again with new inputs of the same shapes and a different fill of fresh shared memory; on a GPU it also repeats
the same inputs several times.

Points are earned case by case, but a part earns nothing until all of its `required` cases pass, so that a kernel that
is correct only for a 1 x 1 matrix earns nothing.
"""

import contextlib
import math
import zlib
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from common.diagnosis.diagnose import UNSTEADY, Diagnosis, diagnose, matching
from common.diagnosis.locating import GUARD_BITS, UNUSED_BITS, holds, nameless_nan, wrong_mask
from common.diagnosis.mistakes.known import Words, any_mistakes, layout_mistakes
from common.diagnosis.stages import show_stages
from common.measure.limits import float32_precision
from common.reference.bounds import max_error_of
from common.testing.calling import BARE, Around, Called, Caller, CallFailed, caller_of
from common.testing.case import ERROR, FAIL, PASS, SKIPPED, Case, Verdict
from common.testing.probing import again, nan_told, weights_of
from common.testing.python_lines import MOST as MOST_LINES
from common.testing.python_values import MADE_IN
from common.testing.python_values import told as python_told

known = Words(__file__)

NOT_WRITTEN = "Does the grid cover the whole output, and does every thread store what it computed?"
FEW_LINES = 4  # of student Python shown next to a known mistake
GPU_REPEATS = 3  # a race does not show up in every run


def make_inputs(case: Case, seed: int, draw: int = 0) -> dict[str, Tensor]:
    """The inputs of one draw, on the CPU; they depend on seed, case name and draw only."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {case.name} {draw}".encode()))
    return case.inputs(generator)


def size_of(inputs: dict[str, Tensor]) -> tuple[int, int]:
    """(total number of input elements, the largest first dimension)."""
    return sum(x.numel() for x in inputs.values()), max((x.size(0) for x in inputs.values() if x.dim() > 1), default=0)


def oracle(case: Case, inputs: dict[str, Tensor]) -> tuple[Tensor, float]:
    """(ref64, the bound on max|out - ref64|)."""
    with float32_precision("highest"), torch.no_grad():
        ref = case.reference(**_as(inputs, torch.float64))
        same_precision = case.reference(**_as(inputs, torch.float32)).to(torch.float64)
    finite = torch.isfinite(ref)
    noise = float((same_precision - ref)[finite].abs().max()) if bool(finite.any()) else 0.0
    if not math.isfinite(noise):
        raise ValueError(f"case {case.name!r}: its float32 reference is not finite where the float64 one is")
    return ref, 2 * noise + case.floor


def _as(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


def judge(case: Case, ops, seed: int = 0, bare: bool = False, explain_later: bool = False) -> Verdict:
    """Runs one case: all draws of its inputs, up to the first failure.

    Args:
        case: the case.
        ops: a Caller, or any object with the operators as attributes and `.device`; see
            common.compiling.operators.Operators.
        seed: seed of the inputs.
        bare: for tools that check memory themselves: a single run, no guards around the inputs, no filling.
        explain_later: in the simulator, a wrong output is diagnosed when the verdict's `found` is first read, which may
            call the operator again.
    """
    caller = caller_of(ops)
    if case.gpu_only and caller.device.type != "cuda":
        return Verdict(case, SKIPPED, said=["It is too large for the simulator."])
    verdict = Verdict(case, PASS)
    previous: Tensor | None = None
    for draw in range(1 if bare else case.draws):
        inputs = {name: x.to(caller.device) for name, x in make_inputs(case, seed, draw).items()}
        verdict.shapes = ", ".join(dict.fromkeys("x".join(map(str, x.shape)) for x in inputs.values()))
        verdict.elements, verdict.matrices = size_of(inputs)
        verdict.sizes = tuple(size for x in inputs.values() for size in x.shape)
        ref, bound = oracle(case, inputs)
        around = BARE if bare else Around(large=draw % 2 == 1)
        repeats = GPU_REPEATS if caller.device.type == "cuda" and draw == 0 and not bare else 1
        for _ in range(repeats):
            try:
                called = caller.call(case, inputs, around)
            except CallFailed as failed:
                verdict.status, verdict.said = failed.status, failed.words
                verdict.file_line, verdict.ended = failed.file_line, failed.ended
                verdict.is_endless = failed.is_endless
                verdict.max_error = verdict.bound = None
                if case.python and failed.status == ERROR and not failed.ended:
                    verdict.said += _python_told(verdict, caller, inputs, around)
                return verdict
            out, problems = called.out, called.problems
            if wrong_form := _wrong_form(called, ref, caller.device):
                verdict.status, verdict.said = FAIL, [wrong_form, *problems]
                verdict.max_error = verdict.bound = None
                verdict.said += _python_told(verdict, caller, inputs, around) if case.python else []
                return verdict
            max_error = max_error_of(out, ref)
            if not max_error <= bound:
                verdict.status, verdict.max_error, verdict.bound = FAIL, max_error, bound
                verdict.said = problems
                explain = partial(_explain, verdict, caller, inputs, out, ref, previous, around)
                later = explain_later and not case.python and caller.device.type == "cpu"
                if later:
                    verdict.explain = explain
                else:
                    verdict.found = explain()
                return verdict
            if verdict.max_error is None or max_error / bound > verdict.max_error / verdict.bound:
                verdict.max_error, verdict.bound = max_error, bound
            if problems:
                verdict.status, verdict.said = FAIL, problems
                return verdict
        previous = ref
    return verdict


def _wrong_form(called: Called, ref: Tensor, device: torch.device) -> str:
    """Why an output cannot be compared at all; "" if it can."""
    out = called.out
    if out is None:
        return f"The operator returned {called.returned}; it must return a tensor."
    if out.shape != ref.shape:
        return f"The output has shape {list(out.shape)}; it must be {list(ref.shape)}."
    if out.dtype != torch.float32:
        return f"The output has dtype {out.dtype}; it must be torch.float32."
    if not called.device.startswith(device.type):
        return f"The output is on {called.device}; it must be on {device}, where the inputs are."
    return ""


def _nan_from(
    caller: Caller, case: Case, inputs: dict[str, Tensor], out: Tensor, ref: Tensor, around: Around
) -> dict[int, Tensor] | None:
    """Finds the origin of NaN whose bits do not identify it: repeats the call with finite numbers, place by place.

    Returns:
        Bits of the NaN normally in that place -> mask of the elements that are no longer NaN. None if inconclusive.
    """
    nameless = nameless_nan(out, ref)
    if not bool(nameless.any()):
        return None
    places = {GUARD_BITS: replace(around, finite=True)}
    if any(bool(holds(x, UNUSED_BITS).any()) for x in inputs.values() if x.dtype == torch.float32):
        places[UNUSED_BITS] = replace(around, unused=True)
    found = {}
    for bits, other in places.items():
        finite = again(caller, case, inputs, out, other)
        if finite is None:
            return None
        found[bits] = nameless & ~torch.isnan(finite)
    return found


def _python_told(
    verdict: Verdict, caller: Caller, inputs: dict[str, Tensor], around: Around, most: int = MOST_LINES
) -> list[str]:
    """The first wrong call in the student's Python, with its lines unless there are more than `most`."""
    with contextlib.suppress(CallFailed):
        caller.call(verdict.case, inputs, replace(around, watched=True))
    on_cpu = {name: x.cpu() for name, x in _as(inputs, torch.float64).items()}
    wrong = python_told(verdict.case, getattr(caller, "more", {}).get("python", []), on_cpu)
    if wrong is None:
        return []
    verdict.in_python = True
    if not 0 < len(wrong.lines) <= most:
        return [wrong.says]
    verdict.python_lines = [(f"{verdict.case.python.module}.py", number) for number, _ in wrong.lines]
    return [f"{wrong.says} {MADE_IN}", *wrong.shown]


def _explain(
    verdict: Verdict,
    caller: Caller,
    inputs: dict[str, Tensor],
    out: Tensor,
    ref: Tensor,
    previous: Tensor | None,
    around: Around,
) -> Diagnosis:
    """Diagnoses a wrong output."""
    case, doubles = verdict.case, _as(inputs, torch.float64)
    mistakes = any_mistakes(ref) + (case.mistakes(**doubles) if case.mistakes else [])
    if previous is not None and previous.shape == ref.shape:
        mistakes.append(known("stale output", lambda: previous))
    repeated = again(caller, case, inputs, out, around)
    nan_from = _nan_from(caller, case, inputs, out, ref, around)
    found = diagnose(
        out, ref, verdict.bound, case.axes, mistakes, repeated, case.is_softmax, nan_from, bool(case.values)
    )
    numbers = wrong_mask(out, ref, verdict.bound) & torch.isfinite(out)  # NaN alone would match many layouts
    layouts = layout_mistakes(doubles, case.reference) if not found.names and bool(numbers.any()) else []
    if equal := matching(out, ref, verdict.bound, layouts):
        found.names, found.exact = [equal[0].name], [equal[0].says]
        found.possible = {one.name: one.says for one in equal}
    if case.stages:
        steady = UNSTEADY not in found.names
        weights = weights_of(caller, case, inputs, out, around) if steady else None
        foreign = any(bool(one.any()) for one in (nan_from or {}).values())
        if not found.names and not foreign and (told := nan_told(caller, case, inputs, out, ref, around)):
            found.signs.append(told)
        found.table = show_stages(case.stages(**doubles), out, ref, verdict.bound, case.axes, weights)
    few = FEW_LINES if found.exact else MOST_LINES  # fewer lines next to a known mistake
    if case.python:
        found.python = _python_told(verdict, caller, inputs, around, few)
    elif "unwritten outputs" in found.names:
        found.hints.append(NOT_WRITTEN)
    if not found.names:
        found.hints += [hint for hint in (case.hint, case.nan_hint if bool(torch.isnan(out).any()) else "") if hint]
    return found
