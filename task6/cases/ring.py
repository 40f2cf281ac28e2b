"""Test cases for ring.py, optional and without a process group: the order of the pieces, and the merge."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import shift_of
from common.diagnosis.mistakes.known import Mistake
from common.diagnosis.mistakes.merge import merge_states
from common.kernels.distributed.shards import zigzag
from common.testing.case import Call, Case, Python
from common.testing.python_side import naming_the_line, python_side
from task6.cases.ring_mistakes import merge_lse_mistakes, merge_out_mistakes, order_mistakes
from task6.given.ring_steps import merged, two_numbers

BATCH, HEADS, HEAD_DIM = 2, 2, 8
LARGEST = 8.0  # of the outputs, about 2 + 4 standard deviations and more
NAN_HINT = (
    "Where it is NaN: -infinity was subtracted from -infinity (a row that has seen no key in either), 0 was divided "
    "by 0, or exp(lse) overflowed."
)


def ring_cases() -> list[Case]:
    """Both gaps."""
    return [
        *(order_case(ranks) for ranks in (4, 1, 2, 7)),
        merge_case("out", "merge: out", 9),
        merge_case("out", "merge: a part in bfloat16", 5, narrow=True),
        merge_case("out", "merge: out, lse beyond 88", 9, offset=200.0),
        merge_case("out", "merge: out, lse below -104", 9, offset=-200.0),
        merge_case("out", "merge: out, rows without keys", 16, empty=True),
        merge_case("lse", "merge: lse", 9),
        merge_case("lse", "merge: lse beyond 88", 9, offset=200.0),
        merge_case("lse", "merge: lse, rows without keys", 16, empty=True),
    ]


def _pieces(call: Call) -> dict[str, object]:
    right = dict(zip(("0", "1"), zigzag(call.arguments["rank"], call.arguments["ranks"]), strict=True))
    in_any_order = sorted(call.returned.values()) == sorted(right.values())
    return {"returned": call.returned if in_any_order else right}


def _merged(call: Call) -> dict[str, object]:
    out, lse, part, part_lse = (call.arguments[name] for name in ("out", "lse", "part", "part_lse"))
    largest = torch.maximum(lse, part_lse)
    old, new = (torch.exp(one - shift_of(largest)) for one in (lse, part_lse))
    merged_out, merged_lse = merge_states(*_both(out, lse, part, part_lse))
    own = {"largest": largest, "shift": shift_of(largest), "old": old, "new": new, "total": old + new}
    own["inverse"] = 1 / own["total"].clamp(min=1.0)
    return {"returned": {"0": merged_out.view(out.shape), "1": merged_lse.view(lse.shape)}, **own}


PYTHON = Python("ring", {"pieces_of": _pieces, "merge": _merged})


def order_case(ranks: int) -> Case:
    """pieces_of for every rank: [ranks, 2], each rank's pieces in ascending order."""

    def call(ops, ranks: Tensor) -> Tensor:
        python, count = python_side(ops, "ring"), int(ranks)
        with naming_the_line(python):
            held = [two_numbers(python.pieces_of(rank, count), rank, count) for rank in range(count)]
        return torch.tensor([sorted(pieces) for pieces in held], dtype=torch.float32, device=ranks.device)

    def right(ranks: Tensor) -> Tensor:
        held = [zigzag(rank, int(ranks)) for rank in range(int(ranks))]
        return torch.tensor(held, dtype=torch.float64, device=ranks.device)

    return Case(
        f"order: {ranks} rank{'s' if ranks > 1 else ''}",
        "ring",
        lambda generator: {"ranks": torch.tensor(ranks)},
        call,
        right,
        floor=1e-6,
        axes=("rank", "piece"),
        mistakes=lambda ranks: order_mistakes(int(ranks), ranks.device),
        python=PYTHON,
        draws=1,
    )


def _inputs(rows: int, offset: float, empty: bool):
    """Attention over the keys so far, and over further keys.

    The lse of every second row is around `offset`. With `empty`, one row in four has seen no key in either, one none so
    far, and one none of the further keys.
    """

    def make(generator: torch.Generator) -> dict[str, Tensor]:
        def attended(without: tuple[int, ...]) -> tuple[Tensor, Tensor]:
            out = 2 + torch.randn(BATCH, HEADS, rows, HEAD_DIM, generator=generator)
            lse = 2 * torch.randn(BATCH, HEADS, rows, generator=generator)
            lse[..., ::2] += offset
            unseen = torch.isin(torch.arange(rows) % 4, torch.tensor(without)) & empty
            return out.masked_fill(unseen[:, None], 0.0), lse.masked_fill(unseen, -math.inf)

        (out, lse), (part, part_lse) = attended((0, 1)), attended((0, 2))
        return {"out": out, "lse": lse, "part": part, "part_lse": part_lse}

    return make


def _both(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> tuple[Tensor, Tensor]:
    """The arguments of merge_states: outs [2, rows of all heads, head_dim], lse [2, rows of all heads]."""
    return torch.stack((out, part)).flatten(1, 3), torch.stack((lse, part_lse)).flatten(1)


def merge_case(
    result: str, name: str, rows: int, offset: float = 0.0, empty: bool = False, narrow: bool = False
) -> Case:
    """A case for one result of merge, "out" or "lse"; narrow: the part is bfloat16."""
    which = ("out", "lse").index(result)

    def given(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        part = inputs["part"]
        return {**inputs, "part": part.bfloat16().to(part.dtype)} if narrow else inputs

    def call(ops, part: Tensor, **inputs: Tensor) -> Tensor:
        python = python_side(ops, "ring")
        with naming_the_line(python):
            return merged(python.merge, part=part.bfloat16() if narrow else part, **inputs)[which]

    def mistakes(**inputs: Tensor) -> list[Mistake]:
        both, shape = _both(**given(inputs)), inputs[result].shape
        return merge_lse_mistakes(both[1], shape) if which else merge_out_mistakes(*both, shape)

    return Case(
        name,
        "ring",
        _inputs(rows, offset, empty),
        call,
        lambda **inputs: merge_states(*_both(**given(inputs)))[which].view(inputs[result].shape),
        # allows weights exp(lse - merged lse), where both lse have a float32 rounding error of 2^-24 relative
        floor=(1.0 if which else LARGEST) * 2.0**-23 * (abs(offset) + 16),
        axes=("batch", "head", "row") if which else ("batch", "head", "row", "col"),
        mistakes=mistakes,
        nan_hint=NAN_HINT,
        python=PYTHON,
    )
