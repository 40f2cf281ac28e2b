"""Task 2's hidden cases."""

from collections.abc import Mapping
from random import Random

from common.course.grading.hidden import (
    HiddenCase,
    attention_floor,
    attention_inputs,
    like,
    softmax_floor,
    softmax_inputs,
)
from common.testing.case import Case
from task2.cases.gemm import pair
from task2.cases.row_sums import row_sum_case


def hidden(random: Random, cases: Mapping[str, Case]) -> list[HiddenCase]:
    """Row sums, the softmax, both GEMMs, and attention, at sizes beyond the handout's."""
    size = random.randint
    rows, cols = size(130, 300), size(400, 900)
    batch, m, n, k = size(2, 3), size(115, 150), size(70, 120), size(205, 260)
    seq_q, seq_k, head_dim = size(70, 100), size(101, 140), size(24, 72)

    nt, nn = pair("", batch, m, n, k)
    sizes = f"2x3x{seq_q}x{head_dim}, 2x3x{seq_k}x{head_dim}"
    inputs = attention_inputs(2, 3, seq_q, seq_k, head_dim)
    sums = row_sum_case("", rows, cols)
    return [
        like(cases, "row-sums: sums of 113 x 1023", f"sums of {rows} x {cols}", sums.inputs, sums.floor),
        like(cases, "softmax: 7 x 31", f"{rows} x {cols}", softmax_inputs(rows, cols), softmax_floor(cols)),
        like(cases, "gemm: A B^T, 63 x 65 x 64", f"A B^T, {batch} x {m} x {n} x {k}", nt.inputs, nt.floor),
        like(cases, "gemm: A B, 63 x 65 x 64", f"A B, {batch} x {m} x {n} x {k}", nn.inputs, nn.floor),
        like(cases, "attention: full", sizes, inputs, attention_floor(seq_k)),
        like(cases, "attention: causal", f"{sizes}, causal", inputs, attention_floor(seq_k)),
    ]
