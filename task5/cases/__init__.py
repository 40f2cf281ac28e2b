"""Task 5's test cases: strided attention, sliding windows, blocks from a mask."""

from dataclasses import replace

import torch
from torch import Tensor

from common.compiling.variant import Variant
from common.testing.case import Case
from task5.cases.sparse import NO_BLOCKS, block_cases, window_cases
from task5.cases.strided import causal_cases, full_cases

PARTS = {
    "full": "test only strided attention without a causal mask",
    "causal": "test only causal strided attention",
    "window": "test only sliding window attention",
    "blocks": "test only block-sparse attention and the lists of blocks",
}


def in_half(case: Case) -> Case:
    """The case with query, key, value and out in float16."""

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        made = case.inputs(generator)
        return {name: x.half().float() if x.is_floating_point() else x for name, x in made.items()}

    def call(ops, **inputs: Tensor) -> Tensor:
        halves = {name: x.half() if x.is_floating_point() else x for name, x in inputs.items()}
        return case.call(ops, **halves).float()

    # outputs, 8 at most, are rounded to float16
    return replace(case, inputs=inputs, call=call, floor=case.floor + 8 * torch.finfo(torch.float16).eps / 2)


def cases(variant: Variant = Variant.STUDENT) -> list[Case]:
    """All test cases; the four parts are worth 0.75 points each.

    The tuned operators take float16, and their behavior for invalid block indices is unspecified.
    """
    made = full_cases() + causal_cases() + window_cases() + block_cases()
    return [in_half(case) for case in made if case.name != NO_BLOCKS] if variant == Variant.TUNED else made
