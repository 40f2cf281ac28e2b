"""Cases for the stages of task 4's kernel, one device function and one tile each: stage_cases().

The sizes are those of task4/given/stages.h. The stages carry no points; they help find mistakes before the kernel is
complete.
"""

import math

import torch
from torch import Tensor

from common.reference.bounds import running_sum_floor
from common.testing.case import Case
from task4.cases.stage_mistakes import (
    load_mistakes,
    mask_mistakes,
    output_mistakes,
    scores_mistakes,
    softmax_mistakes,
    store_mistakes,
)
from task4.cases.stage_steps import B_C, B_R, LANES, D, masked, softmax_step

STAGES = ("load", "scores", "mask", "softmax", "output", "store")


def stage_cases() -> list[Case]:
    """All of them, in the order of the gaps."""
    return [
        _load("load_tile: a full tile", B_C, D, 1.0),
        _load("load_tile: 37 rows, head_dim 40", 37, 40, 0.25),
        _scores("compute_scores"),
        _mask("mask_scores: nothing hidden", B_C, B_C),
        _mask("mask_scores: 41 keys left", 41, B_C),
        _mask("mask_scores: diagonal 20", B_C, 20),
        _mask("mask_scores: diagonal -5", B_C, -5),
        _mask("mask_scores: 30 keys left, diagonal 25", 30, 25),
        *(_softmax(f"online_softmax: {name}", index, name) for index, name in enumerate(("P", "m", "l", "O"))),
        _output("accumulate_output"),
        _store("store_output: 12 rows", B_R, D),
        _store("store_output: 9 rows, head_dim 40", 9, 40),
    ]


def _load(name: str, rows: int, head_dim: int, factor: float) -> Case:
    def reference(source: Tensor) -> Tensor:
        return torch.nn.functional.pad(source * factor, (0, D - head_dim, 0, B_C - rows))

    return Case(
        name,
        "load",
        lambda generator: {"source": torch.randn(rows, head_dim, generator=generator)},
        lambda ops, source: ops.load_stage(source, factor),
        reference,
        floor=1e-6,
        axes=("row", "col"),
        mistakes=lambda source: load_mistakes(source, factor, B_C),
        hint="Each warp takes every WARPS-th row, each lane every 32nd column, up to TILE_ROWS and T::D.",
    )


def _scores(name: str) -> Case:
    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        return {"q": torch.randn(B_R, D, generator=generator), "k": torch.randn(B_C, D, generator=generator)}

    return Case(
        name,
        "scores",
        inputs,
        lambda ops, q, k: ops.scores_stage(q, k),
        lambda q, k: q @ k.T,
        floor=running_sum_floor(D, 3 * math.sqrt(D)),
        axes=("row", "key"),
        mistakes=scores_mistakes,
        hint="s[r][c] is the product of row first_row + r of Q and row lane + 32 * c of K.",
    )


def _mask(name: str, keys_left: int, diagonal: int) -> Case:
    return Case(
        name,
        "mask",
        lambda generator: {"s": torch.randn(B_R, B_C, generator=generator)},
        lambda ops, s: ops.mask_stage(s, keys_left, diagonal),
        lambda s: masked(s, keys_left, diagonal),
        floor=1e-6,
        axes=("row", "key"),
        mistakes=lambda s: mask_mistakes(s, keys_left, diagonal),
        hint=f"Here keys_left is {keys_left} and diagonal {diagonal}; a warp has {B_R // 4} rows.",
    )


def _softmax(name: str, index: int, output: str) -> Case:
    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        s, o = 2 * torch.randn(B_R, B_C, generator=generator), torch.randn(B_R, D, generator=generator)
        m = torch.full((B_R,), -math.inf)
        l = torch.rand(B_R, generator=generator) + 1  # noqa: E741
        m[4:8], m[8:] = -3.0, s[8:].amax(-1) + 1.5  # the tile raises the maximum of rows 4 to 7, not that of rows 8 on
        s[8:, 40:] = -math.inf
        o[:4], l[:4] = 0, 0  # these have seen no key yet; row 0 sees none in this tile either
        s[0] = -math.inf
        return {"s": s, "m": m, "l": l, "o": o}

    return Case(
        name,
        "softmax",
        inputs,
        lambda ops, s, m, l, o: ops.softmax_stage(s, m, l, o)[index],  # noqa: E741
        lambda s, m, l, o: softmax_step(s, m, l, o)[index],  # noqa: E741
        floor=1e-5,
        axes={"P": ("row", "key"), "O": ("row", "col")}.get(output, ("row",)),
        mistakes=lambda s, m, l, o: softmax_mistakes(output, s, m, l, o),  # noqa: E741
        hint="Rows 0 to 3 have seen no key before this tile (row 0 sees none of it either); the tile raises the "
        "maximum of rows 4 to 7 and not of rows 8 to 11.",
    )


def _output(name: str) -> Case:
    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        p = torch.rand(B_R, B_C, generator=generator)
        return {"p": p, "v": torch.randn(B_C, D, generator=generator), "o": torch.randn(B_R, D, generator=generator)}

    return Case(
        name,
        "output",
        inputs,
        lambda ops, p, v, o: ops.output_stage(p, v, o),
        lambda p, v, o: o + p @ v,
        floor=running_sum_floor(B_C, 3 * math.sqrt(B_C)),
        axes=("row", "col"),
        mistakes=output_mistakes,
        hint="o[r][c] gains row first_row + r of P times column lane + 32 * c of V.",
    )


def _store(name: str, rows: int, head_dim: int) -> Case:
    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        l = torch.rand(B_R, LANES, generator=generator) + 0.1  # noqa: E741
        l[2] = 0  # a row that saw no key
        o = torch.randn(B_R, D, generator=generator)
        o[2] = 0
        return {"o": o, "l": l}

    def reference(o: Tensor, l: Tensor) -> Tensor:  # noqa: E741
        total = l.sum(-1, keepdim=True)
        return torch.where(total == 0, 0.0, o / total)[:rows, :head_dim]

    return Case(
        name,
        "store",
        inputs,
        lambda ops, o, l: ops.store_stage(o, l, rows, head_dim),  # noqa: E741
        reference,
        floor=1e-6,
        axes=("row", "col"),
        mistakes=lambda o, l: store_mistakes(o, l, rows, head_dim),  # noqa: E741
        hint="Row first_row + r of out begins at (first_row + r) * head_dim.",
    )
