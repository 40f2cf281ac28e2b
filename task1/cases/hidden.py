"""Task 1's hidden cases."""

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
    with_ladder,
)
from common.reference.bounds import running_sum_floor
from common.testing.case import Case
from task1.cases.kernels import output_case

# Parts in PyTorch, which must not use PyTorch's own attention.
IN_PYTORCH = ("layer",)
HEAD_DIM = 16  # of the layer's case "as SDPA, causal"


def hidden(random: Random, cases: Mapping[str, Case]) -> list[HiddenCase]:
    """Each kernel, the three together, and the layer, at sizes beyond the handout's."""
    size = random.randint
    batch, heads, seq_q, seq_k, head_dim = size(2, 3), size(2, 4), size(50, 80), size(81, 110), size(20, 40)
    rows, cols = size(150, 260), size(150, 400)
    tokens = size(70, 110)

    def layer(generator: torch.Generator) -> dict[str, torch.Tensor]:
        """With a ladder in head 0."""
        made = cases["layer: as SDPA, causal"].inputs(generator)
        width = made["x"].size(2)
        x, weight, bias = torch.randn(batch + 1, tokens, width, generator=generator), made["in_weight"], made["in_bias"]
        with_ladder(x[..., :1], x[..., 1:2], generator)
        weight[:, :2] = 0.0  # head 0's queries and keys alone are made of these channels, each of one
        for start, channel, factor in ((0, 0, HEAD_DIM**0.5), (width, 1, 1.0)):
            weight[start : start + HEAD_DIM], bias[start : start + HEAD_DIM] = 0.0, 0.0
            weight[start, channel] = factor
        return {**made, "x": x}

    def query_and_key(generator: torch.Generator) -> dict[str, torch.Tensor]:
        made = attention_inputs(batch, heads, seq_q, seq_k, head_dim, largest=0)(generator)
        return {"query": made["query"], "key": made["key"]}

    of_query, of_key = f"{batch}x{heads}x{seq_q}x{head_dim}", f"{batch}x{heads}x{seq_k}x{head_dim}"
    sizes = f"{of_query}, {of_key}"
    inputs, floor = attention_inputs(batch, heads, seq_q, seq_k, head_dim), attention_floor(seq_k)
    scores_floor = 1e-6 + head_dim**-0.5 * running_sum_floor(head_dim, 10 * head_dim**0.5)
    output = output_case("", batch, heads, seq_q, seq_k, head_dim)
    return [
        like(cases, "layer: as SDPA, causal", f"layer, {tokens} tokens, causal", layer),
        like(cases, "scores: Q K^T, 13 queries, 47 keys", sizes, query_and_key, scores_floor),
        like(cases, "softmax: 7 x 31", f"{rows} x {cols}", softmax_inputs(rows, cols), softmax_floor(cols)),
        like(cases, "output: P V, 13 queries, 47 keys", sizes, output.inputs, output.floor),
        like(cases, "attention: full", sizes, inputs, floor),
        like(cases, "attention: causal", f"{sizes}, causal", inputs, floor),
    ]
