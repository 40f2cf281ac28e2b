"""Cases for task 1's layer in PyTorch."""

from dataclasses import replace
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from common.reference import oracle as reference
from common.testing.case import Call, Case, Python
from common.testing.cases.layer import layer_case
from common.testing.python_side import naming_the_line, python_side


def multi_head_attention(ops, module: nn.MultiheadAttention, causal: bool):
    """MultiHeadAttention with the module's weights; an error in it names its line in attention.py."""
    python = python_side(ops)
    layer = python.MultiHeadAttention.from_multihead_attention(module, causal, device=ops.device)

    def call(x: Tensor) -> Tensor:
        with naming_the_line(python):
            return layer(x)

    return call


def _stages(call: Call, heads: int, causal: bool) -> dict[str, Tensor]:
    """What MultiHeadAttention.forward must return, and its intermediate results."""
    given = call.inputs
    query, key, value = (
        one.unflatten(-1, (heads, -1)).transpose(1, 2)
        for one in F.linear(given["x"], given["in_weight"], given["in_bias"]).chunk(3, -1)
    )
    scores = reference.scores(query, key, causal)
    weights = reference.softmax(scores)
    merged = (weights @ value).transpose(1, 2).flatten(2)
    own = {
        "query": query,
        "key": key,
        "value": value,
        "scores": scores,
        "before the mask": reference.scores(query, key),
    }
    own |= {"weights": weights, "heads": weights @ value, "future": ~reference.causal_mask(*scores.shape[-2:])}
    return {"returned": F.linear(merged, given["out_weight"], given["out_bias"]), **own}


def layer_cases() -> list[Case]:
    """The layer in PyTorch, compared with torch.nn.MultiheadAttention and with F.scaled_dot_product_attention."""

    def case(name: str, batch: int, seq_len: int, hidden_dim: int, heads: int, causal: bool, **options) -> Case:
        made = layer_case(multi_head_attention, "layer", name, batch, seq_len, hidden_dim, heads, causal, **options)
        return replace(made, python=Python("attention", {"forward": partial(_stages, heads=heads, causal=causal)}))

    function = partial(case, like="scaled_dot_product_attention")
    return [
        case("as MultiheadAttention", 2, 21, 24, 3, causal=False, points=0.15, required=True),
        case("as MultiheadAttention, causal", 2, 21, 24, 3, causal=True, points=0.15, required=True),
        function("as SDPA", 3, 31, 40, 5, causal=False, points=0.1),
        function("as SDPA, causal", 2, 65, 32, 2, causal=True, points=0.1),
        case("1 token", 2, 1, 16, 4, causal=True, points=0.1),
        case("1 head", 1, 7, 5, 1, causal=True, points=0.1),
        case("head_dim 1", 2, 7, 6, 6, causal=False, points=0.1),
        case("113 tokens, causal", 1, 113, 64, 4, causal=True, points=0.1),
        case("scores beyond 88", 1, 24, 32, 2, causal=True, sharpness=7.0, points=0.1),
        function("1023 tokens", 2, 1023, 768, 12, causal=True, gpu_only=True),
    ]
