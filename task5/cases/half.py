"""Any case in float16: in_half(case)."""

from dataclasses import replace

import torch
from torch import Tensor

from common.testing.case import Case


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
