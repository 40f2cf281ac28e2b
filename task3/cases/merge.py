"""Cases for the merge kernel."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from common.diagnosis.mistakes.merge import merge_mistakes, merge_states, merged_lse_mistakes
from common.reference import oracle as reference
from common.reference.bounds import running_sum_floor
from common.testing.case import Case
from common.testing.cases.attention_cases import attention_case


def _inputs(parts: int, rows: int, head_dim: int, offset: float, empty: bool, peak: float = 0.0):
    """The parts' outputs and lse; those of every second row are around `offset`, one per row `peak` above."""

    def make(generator: torch.Generator) -> dict[str, Tensor]:
        outs = 2 + torch.randn(parts, rows, head_dim, generator=generator)
        lse = 2 * torch.randn(parts, rows, generator=generator)
        lse[:, ::2] += offset
        lse[torch.arange(rows) % parts, torch.arange(rows)] += peak
        if empty:  # a third; all of row 0, all but one of row 1, none of row 2; their contents must not matter
            unseen = torch.rand(parts, rows, generator=generator) < 1 / 3
            unseen[:, 0], unseen[:, 1], unseen[:, 2] = True, torch.arange(parts) != parts // 2, False
            lse[unseen] = -math.inf
            unseen[:, ::2] = False
            outs[unseen] = -math.nan
        return {"outs": outs, "lse": lse}

    return make


def out_case(name: str, parts: int, rows: int, head_dim: int, offset=0.0, empty=False, peak=0.0, **options) -> Case:
    """A case for the merged output."""
    return Case(
        name,
        "merge",
        _inputs(parts, rows, head_dim, offset, empty, peak),
        lambda ops, outs, lse: ops.merge_states(outs, lse)[0],
        lambda outs, lse: merge_states(outs, lse)[0],
        floor=1e-6 + running_sum_floor(parts, 4),
        axes=("row", "col"),
        mistakes=merge_mistakes,
        steps=lambda outs, lse: {"the parts' weights exp(lse - merged lse)": torch.softmax(lse, 0).nan_to_num()},
        **options,
    )


def lse_case(name: str, parts: int, rows: int, offset=0.0, empty=False, **options) -> Case:
    """A case for the merged logsumexp."""
    return Case(
        name,
        "merge",
        _inputs(parts, rows, 3, offset, empty),
        lambda ops, outs, lse: ops.merge_states(outs, lse)[1],
        lambda outs, lse: merge_states(outs, lse)[1],
        floor=1e-6 + 2.0**-23 * (abs(offset) + 16),
        axes=("row",),
        mistakes=lambda outs, lse: merged_lse_mistakes(lse),
        **options,
    )


def merge_cases() -> list[Case]:
    """Various numbers of parts, parts that saw no key, and the parts of an attention that was split along the keys."""
    return [
        out_case("2 parts", 2, 5, 16, points=0.1, required=True),
        out_case("8 parts, head_dim 64", 8, 13, 64, points=0.05, required=True),
        out_case("1 part", 1, 4, 8, points=0.05),
        out_case("33 parts", 33, 3, 20, points=0.05),
        out_case("100 parts, 1 row", 100, 1, 7, points=0.05),
        out_case("head_dim 1", 5, 37, 1, points=0.05),
        out_case("head_dim 200", 3, 6, 200, empty=True, points=0.05),
        out_case("empty parts", 7, 30, 24, empty=True, points=0.1),
        out_case("lse beyond 88", 6, 20, 16, offset=200.0, points=0.05, required=True),
        out_case("each part far above the others", 9, 27, 16, peak=150.0, required=True),
        out_case("lse of 10,000", 6, 20, 16, offset=1e4, points=0.05),
        lse_case("merged lse", 8, 13, points=0.05, required=True),
        lse_case("merged lse, empty parts", 7, 30, offset=100.0, empty=True, points=0.05),
        split_attention_case("attention split over the keys", 2, 2, 21, 90, 16, False, (1, 40, 17, 32), points=0.02),
        split_attention_case("causal attention, split", 2, 2, 40, 40, 16, True, (16, 16, 8), points=0.03),
        out_case("64 parts, 70,000 rows", 64, 70_000, 128, empty=True, gpu_only=True, draws=1),
    ]


def split_attention_case(name, batch, heads, seq_q, seq_k, head_dim, causal: bool, sizes: tuple[int, ...], **options):
    """Attention over several sets of keys, merged, compared with attention over all of them."""

    def call(ops, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = reference.scores(query, key, causal).split(sizes, -1)
        outs = [reference.softmax(s) @ v for s, v in zip(scores, value.split(sizes, -2), strict=True)]
        lse = [torch.logsumexp(s, -1) for s in scores]
        rows = batch * heads * seq_q
        out, _ = ops.merge_states(
            torch.stack(outs).view(len(sizes), rows, head_dim), torch.stack(lse).view(len(sizes), rows)
        )
        return out.view(query.shape)

    made = attention_case("", "merge", name, batch, heads, seq_q, seq_k, head_dim, causal, **options)
    return replace(made, call=call, mistakes=None, stages=None, steps=None, values="")
