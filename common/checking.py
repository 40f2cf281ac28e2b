"""Runs a task's test cases against a float64 oracle: check(case, ops) for one, run(title, cases, ops) for all.

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from common import check_report
from common.diagnosis import diagnose
from common.gaps import shown_path
from common.known_mistakes import Mistake, any_mistakes

GUARD = 4096  # elements of NaN before and after every input
GPU_REPEATS = 3  # a race does not show on every run

PASS, FAIL, NOT_IMPLEMENTED = "pass", "FAIL", "not implemented"
ERROR, NOT_RUN, SKIPPED = "error", "not run", "skipped"
ENDLESS = "endless loop"  # in the simulator's message on a kernel that makes no progress


def running_sum_floor(terms: int, size: float) -> float:
    """A floor for an output that is a float32 sum of `terms` numbers, added one after another.

    Every addition rounds by up to 2^-24 of the sum so far, so the result is off by about 2^-24 sqrt(terms) size
    (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, chapter 4), and by a few times that
    where small terms meet a large sum. Libraries that add in pieces do better; a kernel need not.

    Args:
        terms: how many numbers are added.
        size: how large the sum becomes.
    """
    return 4 * 2.0**-24 * math.sqrt(terms) * size


@dataclass(frozen=True)
class Case:
    """One test case. The functions take the inputs by name, as `inputs` made them.

    Attributes:
        name: unique within the task; it also seeds the inputs.
        part: "softmax", "gemm", ...: what the command line chooses by.
        inputs: makes {"x": tensor, ...} on the CPU, float32 or integers, from a generator.
        call: call(ops, **inputs) -> the output; the inputs are on ops.device.
        reference: the same mathematics in plain PyTorch, in the precision of its inputs.
        floor: the stated floor of the bound.
        axes: the names of the output's axes, such as ("batch", "row", "col").
        points: what passing earns.
        required: the part earns no points unless this case passes.
        mistakes: mistakes(**inputs) -> known wrong answers; see common.known_mistakes.
        stages: stages(**inputs) -> the right S, P, O, to show beside a wrong output.
        is_softmax: the output's rows are a softmax; wrong denominators are looked for.
        hint: what to look at when the output is wrong and no known mistake explains it.
        in_place: names of inputs that the operator writes to.
        draws: how many different inputs it runs with.
        gpu_only: too large for the simulator; skipped there, so it cannot carry points.
    """

    name: str
    part: str
    inputs: Callable[[torch.Generator], dict[str, Tensor]]
    call: Callable[..., Tensor]
    reference: Callable[..., Tensor]
    floor: float
    axes: tuple[str, ...]
    points: float = 0.0
    required: bool = False
    mistakes: Callable[..., list[Mistake]] | None = None
    stages: Callable[..., dict[str, Tensor]] | None = None
    is_softmax: bool = False
    hint: str = ""
    in_place: tuple[str, ...] = ()
    draws: int = 2
    gpu_only: bool = False

    def __post_init__(self) -> None:
        if self.gpu_only and self.points:
            raise ValueError(
                f"case {self.name!r} runs on a GPU only and carries {self.points} points; it must carry none"
            )


@dataclass
class Verdict:
    """What became of one case.

    Attributes:
        status: PASS, FAIL, NOT_IMPLEMENTED, ERROR (it raised), NOT_RUN (the GPU is lost) or SKIPPED (needs a GPU).
        max_error, bound: of the worst draw; max_error is NaN if the output holds NaN or Inf that it should not.
        shapes: of the inputs, "2x3x40x16, 2x3x47x16"; shapes that are equal stand once.
        mistakes: names of the known mistakes that the output equals.
        diagnosis: what to tell the student, a sentence or a line of a small table each.
        file_line: "file.cu:57" where the message names one.
        findings: what --check found in this case: races, bad accesses, ...
    """

    case: Case
    status: str
    shapes: str = ""
    max_error: float | None = None
    bound: float | None = None
    mistakes: list[str] = field(default_factory=list)
    diagnosis: list[str] = field(default_factory=list)
    file_line: str | None = None
    findings: int = 0

    @property
    def ok(self) -> bool:
        return self.status == PASS


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


def max_error_of(out: Tensor, ref: Tensor) -> float:
    """max|out - ref|; NaN if out is not finite where ref is, or differs from ref where ref is infinite."""
    out, finite = out.to(ref.dtype), torch.isfinite(ref)
    if not bool(torch.isfinite(out[finite]).all()) or not bool((out[~finite] == ref[~finite]).all()):
        return math.nan
    return float((out - ref)[finite].abs().max()) if bool(finite.any()) else 0.0


def check(case: Case, ops, seed: int = 0, bare: bool = False) -> Verdict:
    """Runs one case: every draw of its inputs, up to the first that fails.

    Args:
        case: the case.
        ops: anything with the operators as attributes and `.device`; see common.build.Operators.
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


def gpu_is_lost() -> bool:
    """Whether an earlier CUDA error sticks to this process: after an illegal access every later call fails as well."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _stopped_by(verdict: Verdict, ops, parts: Sequence[str]) -> dict[str, str]:
    """The parts that cannot go on after this verdict, each with the reason."""
    if verdict.status != ERROR:
        return {}
    if ops.device.type == "cuda" and gpu_is_lost():
        why = "The GPU refuses all work after the error above: correct that one, then run again."
        return dict.fromkeys(parts, why)
    if any(ENDLESS in line for line in verdict.diagnosis):
        return {
            verdict.case.part: "A kernel of this part did not end, see above; every further case would take as long."
        }
    return {}


def chosen_parts(cases: Sequence[Case], parts: Sequence[str] | None) -> list[Case]:
    """The cases of these parts, all if none is named. ValueError if there are none."""
    chosen = [case for case in cases if not parts or case.part in parts]
    if not chosen:
        raise ValueError(
            f"no test case for parts {list(parts or [])}; there are {sorted({case.part for case in cases})}"
        )
    return chosen


def run(
    title: str,
    cases: Sequence[Case],
    ops,
    seed: int = 0,
    parts: Sequence[str] | None = None,
    console: Console | None = None,
    points: bool = True,
) -> int:
    """Runs the cases and prints the table, what each failure is, and the points.

    Args:
        title: of the table.
        cases: a task's cases.
        ops: see check.
        seed: of the inputs.
        parts: run only the cases of these parts; None or empty runs all.
        console: where to print; by default the terminal.
        points: whether the run earns any; single cases do not.

    Returns:
        The exit status: 0 if every case passed (cases that need a GPU may have been skipped), else 1.
    """
    chosen = chosen_parts(cases, parts)
    console = console or Console()
    verdicts = run_cases(chosen, ops, console, lambda case: check(case, ops, seed))
    check_report.print_report(console, title, verdicts, points)
    return 0 if all(verdict.status in (PASS, SKIPPED) for verdict in verdicts) else 1


def run_cases(cases: Sequence[Case], ops, console: Console, check_one: Callable[[Case], Verdict]) -> list[Verdict]:
    """The verdict on each case, with a progress bar; what cannot go on (a lost GPU, an endless kernel) is not run."""
    verdicts: list[Verdict] = []
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("testing", total=len(cases))
        stopped: dict[str, str] = {}  # part -> why the rest of it is not run
        for case in cases:
            progress.update(bar, description=f"{case.part}: {case.name}")
            if why := stopped.get(case.part):
                verdicts.append(Verdict(case, NOT_RUN, diagnosis=[why]))
            else:
                verdicts.append(check_one(case))
                stopped |= _stopped_by(verdicts[-1], ops, [one.part for one in cases])
            progress.advance(bar)
    return verdicts
