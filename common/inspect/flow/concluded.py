"""Finds where the elements used for a wrong output differ from those that it depends on.

followed(case, caller, ...)     runs a failing case with every access recorded, and analyzes the data flow
concluded(case, inputs, ...)    the same for a recorded call

The finding is the first of these that applies. It reports only what was recorded:

    not_stored       output elements that no thread wrote
    other_element    a thread's result depends on one element, but it uses another one of the same input
    not_read         a thread's result depends on elements read neither by it nor by a thread whose results it read
    not_needed       infinity or NaN that the result does not depend on reaches a result that is NaN
    stored_elsewhere the value written to an element is the correct answer for another one
    wrong_value      none of these: the value itself, and the lines that compute it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from common.diagnosis.locating import wrong_mask
from common.inspect.checked_library import Collected
from common.inspect.findings.model import Finding
from common.inspect.flow.reached import Needs, threads_of
from common.inspect.flow.reads import not_needed, not_read, other_element
from common.inspect.flow.run import Run
from common.inspect.flow.sources import Sources, sources_of
from common.inspect.flow.stages import CLOSE, WrongStage, first_wrong
from common.inspect.flow.stores import needlessly_stored, not_stored, stored_elsewhere
from common.inspect.flow.trace import Trace
from common.inspect.flow.wrong_value import wrong_value
from common.inspect.replay.recording import Launch
from common.reference.bounds import max_error_of
from common.testing.calling import POISONED, Caller, CallFailed
from common.testing.case import Case
from common.testing.judging import make_inputs, oracle

MOST_ACCESSES = 1_200_000


def followed(case: Case, caller: Caller, collected: Collected, seed: int) -> list[Finding]:
    """At most one finding, for the first draw of the inputs that fails.

    Empty if the case passes, gives no output, or is too large to record.

    Args:
        case: the failed case.
        caller: a CheckedCaller, or a Worker around one.
        collected: reads the caller's reports.
        seed: seed of the inputs.
    """
    for draw in range(case.draws):
        inputs = make_inputs(case, seed, draw)
        try:
            out = caller.call(case, inputs, replace(POISONED, recorded=True)).out
        except CallFailed:
            return []
        ref, bound = oracle(case, inputs)
        if out is None or out.shape != ref.shape:
            return []
        if not max_error_of(out, ref) <= bound:
            launches, whole = collected.launches()
            return concluded(case, inputs, out, ref, bound, launches) if whole else []
    return []


def concluded(
    case: Case, inputs: Mapping[str, Tensor], out: Tensor, ref: Tensor, bound: float, launches: Sequence[Launch]
) -> list[Finding]:
    """At most one finding; empty if inconclusive.

    Args:
        case: the case that ran.
        inputs: its inputs, on the CPU.
        out, ref, bound: the actual and the expected output, and the largest allowed difference.
        launches: the call's complete recordings.
    """
    if sum(one.entry_of.size for one in launches) > MOST_ACCESSES or any(one.unshown for one in launches):
        return []
    trace = Trace.of(launches) if launches else None
    if trace is None or not trace.memories:
        return []
    sources = sources_of(trace, inputs, out)
    if stage := first_wrong(trace, case, inputs, [memory for memory, _ in sources.outputs]):
        return [_of_stage(trace.up_to(stage.launch), sources, stage, inputs, case)]
    run = _run_of(trace, sources, inputs, case.reference, 0, out, ref, bound) if sources.outputs else None
    found = run and _first(run, out, ref, bound, case)
    return [found] if found else []


def _run_of(
    trace: Trace,
    sources: Sources,
    inputs: Mapping[str, Tensor],
    reference: Callable[..., Tensor],
    launch: int,
    out: Tensor,
    ref: Tensor,
    bound: float,
) -> Run | None:
    """The Run for an output that is stored from this launch on; None if several threads add to one element."""
    if any(memory in trace.atomic for memory, _ in sources.outputs):
        return None
    wrong = wrong_mask(out.cpu(), ref.cpu(), bound).reshape(-1).numpy()
    writer = np.full(wrong.size, -1, dtype=np.int64)
    for memory, start in sources.outputs:
        stores = np.flatnonzero((trace.memory == memory) & trace.is_write & (trace.launch >= launch))
        writer[start + trace.element[stores]] = stores
    try:
        needs = Needs(reference, inputs)
    except RuntimeError:  # the reference uses integers or is not differentiable
        needs = None
    return Run(trace, sources, needs, inputs, wrong, writer, threads_of(trace), launch)


def _first(run: Run, out: Tensor, ref: Tensor, bound: float, case: Case) -> Finding | None:
    found = not_stored(run) or needlessly_stored(run, ref)
    if not found and run.needs:
        found = other_element(run, case) or not_read(run) or not_needed(run, out, case)
    return found or stored_elsewhere(run, out, ref, bound) or wrong_value(run, out, ref, case)


def _of_stage(trace: Trace, sources: Sources, stage: WrongStage, inputs: Mapping[str, Tensor], case: Case) -> Finding:
    """The finding for the first launch whose result is wrong."""
    array = trace.memories[stage.memory].array
    launch = trace.launches[stage.launch]
    held = f"held {stage.before}" if stage.before else "had not been written"
    stages = "Q K^T, the masked scores, and the weights"
    meant = f"it does not hold {stage.meant} everywhere" if stage.meant else f"it holds none of {stages}"
    text = f"Before this launch {array.name} {held}; afterward {meant}. If it should by then, look at "
    text += "what this launch is given, and at what it does."
    if stage.right is not None and stage.function is not None:
        bound = CLOSE * max(1.0, float(stage.right[torch.isfinite(stage.right)].abs().max()))
        cut = replace(
            sources,
            outputs=[(stage.memory, 0)],
            of_read=sources.of_read[: trace.launch.size],
            made_by=sources.made_by[: trace.launch.size],
            copied_from=sources.copied_from[: trace.launch.size],
        )
        sizes = stage.held, stage.right, bound
        run = _run_of(trace, cut, inputs, stage.function, stage.launch, *sizes)
        if run and (found := _first(run, *sizes, case)):
            return replace(found, detail=f"{text} {found.detail}")
    size = {"shape": array.shape, "element_bytes": array.element_bytes, "byte_offset": 0}
    return Finding("wrong_result", launch.kernel, launch.launch, variable=array.name, **size, detail=text)
