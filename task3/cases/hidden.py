"""Task 3's hidden cases."""

from collections.abc import Mapping
from random import Random

import torch

from common.course.grading.hidden import (
    HiddenCase,
    attention_floor,
    attention_inputs,
    like,
    softmax_floor,
    softmax_inputs,
    with_peaks,
)
from common.testing.case import Case
from common.testing.cases.attention_cases import PEAK
from task3.cases.merge import out_case

# Parts in PyTorch, which must not use PyTorch's own attention.
IN_PYTORCH = ("algorithm",)


def hidden(random: Random, cases: Mapping[str, Case]) -> list[HiddenCase]:
    """The algorithm, the online softmax, and the merge, at sizes beyond the handout's."""
    size = random.randint
    seq_q, seq_k, head_dim = size(120, 170), size(210, 280), size(17, 40)
    rows, cols = size(115, 200), size(1100, 1900)
    parts, merged, wide = size(9, 20), size(40, 90), size(65, 110)
    many, columns = size(3_000, 4_000), size(64, 80)  # whole rows don't fit

    def states(generator: torch.Generator) -> dict[str, torch.Tensor]:
        made = merge.inputs(generator)
        return {**made, "lse": with_peaks(made["lse"].T, generator).T.contiguous()}

    sizes = f"1x3x{seq_q}x{head_dim}, 1x3x{seq_k}x{head_dim}"
    inputs, floor = attention_inputs(1, 3, seq_q, seq_k, head_dim), attention_floor(seq_k)
    same, same_floor = attention_inputs(2, 2, seq_q, seq_q, head_dim), attention_floor(seq_q)
    long, merge = attention_inputs(1, 1, 4, many, columns, 1e5), out_case("", parts, merged, wide)
    x, x_floor = softmax_inputs(rows, cols), softmax_floor(cols)
    return [
        like(cases, "algorithm: 113 queries, 203 keys", sizes, inputs, floor),
        like(cases, "algorithm: causal, 96 tokens", f"causal, {seq_q} tokens", same, same_floor),
        like(cases, "algorithm: memory, many keys", f"{many} keys", long, attention_floor(many)),
        like(cases, "softmax: 113 x 203", f"{rows} x {cols}", x, x_floor),
        like(cases, "softmax: lse, 113 x 203", f"lse, {rows} x {cols}", x, x_floor + 2.0**-23 * PEAK),
        like(cases, "merge: 8 parts, head_dim 64", f"{parts} x {merged} x {wide}", states, merge.floor),
    ]
