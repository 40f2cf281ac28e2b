"""Infinity or NaN in an input that reaches a result which is NaN and does not depend on it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from common.inspect.findings.model import Finding
from common.inspect.flow.needs import Needs
from common.inspect.flow.reached import mask_of, reached
from common.inspect.flow.run import Run, finding_of, spread
from common.testing.case import Case


def not_needed(run: Run, out: Tensor, case: Case) -> Finding | None:
    """The first thread with a NaN to which such an element comes; None if one comes to a right result as well.

    What a result depends on is asked with finite numbers in their places: a key whose score is -infinity is needed.
    """
    finite = {
        name: x.nan_to_num(nan=0.5, posinf=0.5, neginf=0.5) if x.is_floating_point() else x
        for name, x in run.inputs.items()
    }
    wild = {
        name: (~torch.isfinite(run.inputs[name]).reshape(-1)).numpy()
        for name in run.sources.names
        if run.inputs[name].is_floating_point()
    }
    # a tile of queries has those of all its rows
    of_keys = {case.keys, case.values, *((case.scores.keys, case.scores.values) if case.scores else ())} - {""}
    wild = {name: one for name, one in wild.items() if one.any() and name in (of_keys or wild)}
    nan = run.wrong & torch.isnan(out.cpu().reshape(-1)).numpy()
    reach = reached(run.trace, run.sources, run.threads) if wild and nan.any() and not run.sources.unknown else None
    if reach is None:
        return None
    needs = Needs(case.reference, finite)

    def extra(thread: int) -> dict[str, np.ndarray]:
        here, found = mask_of(reach[thread], run.sources.count), {}
        for name, needed in needs.of(run.stored_by(thread)).items():
            if name in wild and (more := wild[name] & here[run.slice_of(name)] & ~needed.numpy()).any():
                found[name] = more
        return found

    if any(extra(thread) for thread in spread(run.right)):
        return None
    for thread in spread([one for one in run.wrong_threads if nan[run.wrong_of(one)].any()]):
        for name, more in extra(thread).items():
            return _reported(run, thread, name, more, nan)
    return None


def _reported(run: Run, thread: int, name: str, more: np.ndarray, nan: np.ndarray) -> Finding | None:
    elements = run.wrong_of(thread)
    first = elements[nan[elements]][:1]
    here = run.slice_of(name)
    wanted = np.flatnonzero(more) + here.start
    reads = np.flatnonzero(np.isin(run.sources.of_read, wanted) & (run.trace.memory == run.sources.memory_of[name]))
    block = run.trace.block[run.writer[first[0]]]
    own = reads[run.trace.block[reads] == block]
    if not own.size:
        return None
    text = (
        f"{run.out_said(first)} is NaN. It depends on no element of {run.said(name, more)}; they are infinite or NaN, "
    )
    text += "and are read for it anyway. 0 times infinity is NaN: a weight of 0 does not make up for it."
    return finding_of(run, "not_needed", int(own[0]), "read", text)
