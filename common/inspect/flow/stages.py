"""Finds the first launch with wrong scores, for attention that materializes them: first_wrong(...).

Between launches, an array of that size holds the scores or the weights. Its contents after each launch are compared
with Q K^T, the masked scores and the weights, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from common.inspect.flow.trace import Trace
from common.testing.case import Case

CLOSE = 1e-4  # float32 tolerance, relative to the largest number
ENOUGH = 0.05  # fraction of matching elements needed to identify the intended stage


@dataclass(frozen=True)
class WrongStage:
    """A launch after which an array matches none of the stages.

    Attributes:
        launch, memory: their indices.
        before: the stage it held until then, in words; "" if none.
        meant: the closest stage, in words; "" if unknown.
        right: that stage's correct values, flat; None if unknown.
        held: the actual values, flat.
        function: computes that stage from the inputs; None if unknown.
    """

    launch: int
    memory: int
    before: str
    meant: str
    right: Tensor | None
    held: Tensor
    function: Callable[..., Tensor] | None


def first_wrong(trace: Trace, case: Case, inputs: Mapping[str, Tensor], outputs: Sequence[int]) -> WrongStage | None:
    """The first launch after which an array that held a stage, or was empty, matches no stage; None if there is none.

    Args:
        trace: trace of the whole call.
        case, inputs: define the stages.
        outputs: the memories of the output, whose contents are arbitrary until the end.
    """
    if case.stages is None or len(trace.launches) < 2 or "query" not in inputs or case.keys not in inputs:
        return None
    doubles = {name: x.double() if x.is_floating_point() else x for name, x in inputs.items()}
    functions = {
        "Q K^T": lambda **given: given["query"] @ _by_head(given["query"], given[case.keys]).transpose(-2, -1),
        "the scaled and masked scores": lambda **given: case.stages(**given)["S"],
        "the weights": lambda **given: case.stages(**given)["P"],
    }
    stages = {name: function(**doubles) for name, function in functions.items()}
    size = stages["the weights"].numel()
    for number, memory in enumerate(trace.memories):
        of_stages = memory.unit == 4 and memory.array.bytes == 4 * size and memory.initial is not None  # None if shared
        launches = _writers(trace, number) if of_stages and number not in outputs else []
        if len(launches) < 2:
            continue
        reached, held = -1, memory.initial.astype(np.uint32)
        for launch in launches:
            mine = np.flatnonzero((trace.memory == number) & trace.is_write & (trace.launch == launch))
            held[trace.element[mine]] = trace.value[mine].astype(np.uint32)
            now = torch.from_numpy(held.view(np.float32).copy()).double()
            equal = [i for i, right in enumerate(stages.values()) if i >= reached and bool(_same(now, right).all())]
            if equal:
                reached = equal[0]
                continue
            names, shares = list(stages), [_share(now, right) for right in stages.values()]
            best = max(range(min(reached + 1, len(names) - 1), len(names)), key=shares.__getitem__)
            meant = names[best] if shares[best] >= ENOUGH and best != reached else ""
            before = names[reached] if reached >= 0 else ""
            right = stages[meant].reshape(-1) if meant else None
            return WrongStage(int(launch), number, before, meant, right, now, functions.get(meant))
    return None


def _writers(trace: Trace, memory: int) -> list[int]:
    return np.unique(trace.launch[(trace.memory == memory) & trace.is_write]).tolist()


def _by_head(query: Tensor, key: Tensor) -> Tensor:
    return key.repeat_interleave(query.size(1) // key.size(1), 1)


def _share(now: Tensor, right: Tensor) -> float:
    """The fraction of equal elements, ignoring 0 and infinity, which occur in several stages."""
    telling = torch.isfinite(right) & (right != 0)
    return float(_same(now, right)[telling.reshape(-1)].double().mean()) if bool(telling.any()) else 0.0


def _same(now: Tensor, right: Tensor) -> Tensor:
    """Mask of the equal elements, flat."""
    right = right.reshape(-1)
    finite = torch.isfinite(right)
    largest = float(right[finite].abs().max()) if bool(finite.any()) else 0.0
    return (now == right) | ((now - right).abs() <= CLOSE * max(1.0, largest))
