"""Runs one test case against a float64 oracle: judge(case, ops).

An output passes if

    max|out - ref64| <= 2 * max|ref32 - ref64| + floor

where ref64 and ref32 are the case's plain PyTorch reference in float64 and float32: at most twice the error that
PyTorch makes in the same precision (the rule of FlashAttention's own tests), plus a floor that the case states. NaN and
Inf never pass where ref64 is finite. So that nothing passes by luck:

- outputs and workspaces are filled with NaN before the call, by PyTorch's allocator;
- inputs lie between guards of NaN: a read past an input shows as NaN, a write past it is reported;
- inputs must be unchanged after the call, unless the case names them in `in_place`;
- every case runs again with fresh inputs of the same shapes, and on a GPU several times with the same inputs.

Points: each case carries some. A part's points are earned case by case, but none of them until all of the part's
`required` cases pass, so that a kernel that is right for a 1 x 1 matrix only earns nothing.
"""

import math
import re
import traceback
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from common.console.paths import shown_path
from common.diagnosis.diagnose import diagnose
from common.diagnosis.mistakes.known import Mistake, any_mistakes
from common.reference.bounds import max_error_of
from common.testing.case import ERROR, FAIL, NOT_IMPLEMENTED, PASS, SKIPPED, Case, Verdict

GUARD = 4096  # elements of NaN before and after every input
GPU_REPEATS = 3  # a race does not show on every run


class Guarded:
    """A copy of an input that lies between two guards, and whether it or they were written to."""

    def __init__(self, value: Tensor, device: torch.device, guard: int = GUARD) -> None:
        fill = math.nan if value.is_floating_point() else torch.iinfo(value.dtype).min
        self._buffer = torch.full((value.numel() + 2 * guard,), fill, dtype=value.dtype, device=device)
        self._parts = (slice(guard), slice(guard, guard + value.numel()), slice(guard + value.numel(), None))
        self.tensor = self._buffer[self._parts[1]].view(value.shape)
        self.tensor.copy_(value)
        self._before = self._buffer.clone()

    def changed(self) -> bool:
        """Whether the input itself was written to."""
        return not self._same(1)

    def overrun(self) -> bool:
        """Whether something before or behind the input was written to."""
        return not (self._same(0) and self._same(2))

    def _same(self, part: int) -> bool:
        where = self._parts[part]
        return _same_bits(self._buffer[where], self._before[where])


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, every tensor that PyTorch allocates is filled with NaN (the largest value, for integers)."""
    mode, fill = torch.get_deterministic_debug_mode(), torch.utils.deterministic.fill_uninitialized_memory
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            # as use_deterministic_algorithms(True, warn_only=True), without its import of torch._inductor: seconds
            torch.set_deterministic_debug_mode("warn")
            torch.utils.deterministic.fill_uninitialized_memory = True
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fill


@contextmanager
def _full_precision() -> Iterator[None]:
    """float32 matrix products without TF32, whatever the process has set."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def make_inputs(case: Case, seed: int, draw: int = 0) -> dict[str, Tensor]:
    """The inputs of one draw, on the CPU; they depend on seed, case name and draw only."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {case.name} {draw}".encode()))
    return case.inputs(generator)


def oracle(case: Case, inputs: dict[str, Tensor]) -> tuple[Tensor, float]:
    """(ref64, the bound on max|out - ref64|)."""
    with _full_precision(), torch.no_grad():
        ref = case.reference(**_as(inputs, torch.float64))
        same_precision = case.reference(**_as(inputs, torch.float32)).to(torch.float64)
    finite = torch.isfinite(ref)
    noise = float((same_precision - ref)[finite].abs().max()) if bool(finite.any()) else 0.0
    if not math.isfinite(noise):
        raise ValueError(f"case {case.name!r}: its float32 reference is not finite where the float64 one is")
    return ref, 2 * noise + case.floor


def _as(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in inputs.items()}


def judge(case: Case, ops, seed: int = 0, bare: bool = False) -> Verdict:
    """Runs one case: every draw of its inputs, up to the first that fails.

    Args:
        case: the case.
        ops: anything with the operators as attributes and `.device`; see common.compiling.operators.Operators.
        seed: of the inputs.
        bare: for tools that watch the memory themselves: once, with no guards around the inputs and nothing filled.
    """
    if case.gpu_only and ops.device.type != "cuda":
        return Verdict(case, SKIPPED, diagnosis=["It is too large for the simulator."])
    verdict = Verdict(case, PASS)
    previous: Tensor | None = None
    for draw in range(1 if bare else case.draws):
        inputs = {name: x.to(ops.device) for name, x in make_inputs(case, seed, draw).items()}
        verdict.shapes = ", ".join(dict.fromkeys("x".join(map(str, x.shape)) for x in inputs.values()))
        ref, bound = oracle(case, inputs)
        repeats = GPU_REPEATS if ops.device.type == "cuda" and draw == 0 and not bare else 1
        for _ in range(repeats):
            try:
                out, problems = _call(case, ops, inputs, bare)
            except Exception as error:
                return _raised(case, verdict.shapes, error)
            if wrong_form := _wrong_form(out, ref, ops.device):
                return Verdict(case, FAIL, verdict.shapes, diagnosis=[wrong_form, *problems])
            max_error = max_error_of(out, ref)
            if not max_error <= bound:
                verdict.status, verdict.max_error, verdict.bound = FAIL, max_error, bound
                verdict.diagnosis = problems
                _explain(verdict, ops, inputs, out, ref, previous)
                return verdict
            if verdict.max_error is None or max_error / bound > verdict.max_error / verdict.bound:
                verdict.max_error, verdict.bound = max_error, bound
            if problems:
                verdict.status, verdict.diagnosis = FAIL, problems
                return verdict
        previous = ref
    return verdict


def _call(case: Case, ops, inputs: dict[str, Tensor], bare: bool = False) -> tuple[Tensor, list[str]]:
    """(the output, what the call did to its inputs that it should not)."""
    guarded = {name: Guarded(x, ops.device, 0 if bare else GUARD) for name, x in inputs.items()}
    with nullcontext() if bare else poisoned_memory(), torch.no_grad():
        out = case.call(ops, **{name: x.tensor for name, x in guarded.items()})
        if ops.device.type == "cuda":
            torch.cuda.synchronize()
    changed = [name for name, x in guarded.items() if name not in case.in_place and x.changed()]
    overrun = [name for name, x in guarded.items() if x.overrun()]
    problems = [f"The input {name} was changed; the operator must only read it." for name in changed]
    problems += [
        f"Memory before or behind the input {name} was written to: an index is out of bounds." for name in overrun
    ]
    if case.in_place and isinstance(out, Tensor):
        out = out.clone()
    return out, problems


def _wrong_form(out, ref: Tensor, device: torch.device) -> str:
    """What is wrong with an output that cannot even be compared; "" if nothing."""
    if not isinstance(out, Tensor):
        return f"The operator returned {type(out).__name__}; it must return a tensor."
    if out.shape != ref.shape:
        return f"The output has shape {list(out.shape)}; it must be {list(ref.shape)}."
    if out.dtype != torch.float32:
        return f"The output has dtype {out.dtype}; it must be torch.float32."
    if out.device.type != device.type:
        return f"The output is on {out.device}; it must be on {device}, where the inputs are."
    return ""


def _explain(
    verdict: Verdict, ops, inputs: dict[str, Tensor], out: Tensor, ref: Tensor, previous: Tensor | None
) -> None:
    """Adds the diagnosis to a failed verdict."""
    case, doubles = verdict.case, _as(inputs, torch.float64)
    mistakes = any_mistakes(doubles, ref) + (case.mistakes(**doubles) if case.mistakes else [])
    if previous is not None and previous.shape == ref.shape:
        mistakes.append(
            Mistake(
                "stale output",
                "The output is the one that belongs to the previous call's inputs: a result is kept from call to call.",
                lambda: previous,
            )
        )
    try:
        repeated = _call(case, ops, inputs)[0]
    except Exception:  # the first call did not raise: what matters is its output
        repeated = None
    stages = (lambda: case.stages(**doubles)) if case.stages else None
    found = diagnose(out, ref, verdict.bound, case.axes, mistakes, repeated, stages, case.is_softmax)
    verdict.mistakes = found.names
    verdict.diagnosis = verdict.diagnosis + found.sentences + ([] if found.names or not case.hint else [case.hint])


def _raised(case: Case, shapes: str, error: Exception) -> Verdict:
    """The verdict on a case whose call raised: a gap, or an error of the simulator, CUDA or the binding."""
    words = re.split(r"\nException raised from|\nC\+\+ CapturedTraceback|\nCUDA kernel errors might be", str(error))[0]
    words = words.replace(f"{Path.cwd()}/", "")
    status = NOT_IMPLEMENTED if isinstance(error, NotImplementedError) else ERROR
    place = re.search(r"[\w./-]+\.(?:cuh?|py|cpp|h):\d+", words)
    file_line = place[0] if place else None
    if status == NOT_IMPLEMENTED and not place:  # a gap in Python: `raise NotImplementedError` on its own
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file_line = f"{shown_path(Path(frame.filename))}:{frame.lineno}"
        words = f"{frame.name} is not implemented yet: {file_line}"
    if status == ERROR and not isinstance(error, (RuntimeError, ValueError)):
        words = f"{type(error).__name__}: {words}"
    return Verdict(case, status, shapes, diagnosis=words.strip().splitlines(), file_line=file_line)
