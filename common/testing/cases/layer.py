"""Test cases for a multi-head self-attention layer in Python, and known wrong answers of such a layer.

layer_case(make, "layer", name, batch, seq_len, hidden_dim, heads, causal)
layer_mistakes(query, key, value, heads, causal, project)
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from common.diagnosis.mistakes.attention import attention_mistakes
from common.diagnosis.mistakes.known import Mistake, Words
from common.reference import oracle as reference
from common.testing.case import Case

known = Words(__file__)


def layer_case(
    make: Callable[..., nn.Module],
    part: str,
    name: str,
    batch: int,
    seq_len: int,
    hidden_dim: int,
    heads: int,
    causal: bool,
    like: str = "MultiheadAttention",
    sharpness: float = 1.5,
    **options,
) -> Case:
    """A case for a multi-head self-attention layer, [batch, seq_len, hidden_dim] -> the same.

    Args:
        make: make(ops, torch_module, causal) -> the layer with the weights of that torch.nn.MultiheadAttention.
        part, name: see common.testing.case.Case, which also takes `options`.
        batch, seq_len, hidden_dim, heads: hidden_dim is a multiple of heads.
        causal: whether position i attends only to positions j <= i.
        like: the reference: "MultiheadAttention" (of torch.nn) or "scaled_dot_product_attention" (of
            torch.nn.functional, between the layer's projections).
        sharpness: the scaled scores have a standard deviation of about sharpness^2.
    """
    head_dim = hidden_dim // heads

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator)

        return {
            "x": normal(batch, seq_len, hidden_dim),
            "in_weight": sharpness * hidden_dim**-0.5 * normal(3 * hidden_dim, hidden_dim),
            "in_bias": normal(3 * hidden_dim) + 1,
            "out_weight": hidden_dim**-0.5 * normal(hidden_dim, hidden_dim),
            "out_bias": normal(hidden_dim),
        }

    def as_torch_module(x: Tensor, **weights: Tensor) -> Tensor:
        hidden = ~reference.causal_mask(x.size(1), x.size(1), x.device) if causal else None
        return torch_module(heads, x, **weights)(x, x, x, attn_mask=hidden, need_weights=False)[0]

    def as_torch_function(
        x: Tensor, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor, out_bias: Tensor
    ) -> Tensor:
        projected = F.linear(x, in_weight, in_bias).view(*x.shape[:2], 3, heads, head_dim).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(*projected, is_causal=causal)
        return F.linear(out.transpose(1, 2).reshape(x.shape), out_weight, out_bias)

    def mistakes(x: Tensor, in_weight: Tensor, in_bias: Tensor, out_weight: Tensor, out_bias: Tensor):
        query, key, value = F.linear(x, in_weight, in_bias).chunk(3, dim=-1)
        return layer_mistakes(query, key, value, heads, causal, lambda out: F.linear(out, out_weight, out_bias))

    return Case(
        name,
        part,
        inputs,
        lambda ops, x, **weights: make(ops, torch_module(heads, x, **weights), causal)(x),
        {"MultiheadAttention": as_torch_module, "scaled_dot_product_attention": as_torch_function}[like],
        floor=1.35e-5 * sharpness**2,  # rounding of the scores as in attention_case, after one more matmul
        axes=("batch", "position", "channel"),
        mistakes=mistakes,
        **options,
    )


def torch_module(heads: int, x: Tensor, **weights: Tensor) -> nn.MultiheadAttention:
    """PyTorch's module with the weights of a layer case, for inputs like x; in eval mode."""
    names = {"in_weight": "in_proj_weight", "in_bias": "in_proj_bias"}
    names |= {"out_weight": "out_proj.weight", "out_bias": "out_proj.bias"}
    module = nn.MultiheadAttention(x.size(-1), heads, batch_first=True, device=x.device, dtype=x.dtype)
    module.load_state_dict({names[name]: weight for name, weight in weights.items()})
    return module.eval()


def layer_mistakes(
    query: Tensor, key: Tensor, value: Tensor, heads: int, causal: bool, project: Callable[[Tensor], Tensor]
) -> list[Mistake]:
    """Known wrong answers of a multi-head attention layer.

    Args:
        query, key, value: the projected input, [batch, seq_len, hidden_dim] each, not yet split into heads.
        heads: number of heads.
        causal: see attention_mistakes.
        project: the output projection, [batch, seq_len, hidden_dim] -> the same.
    """
    batch, seq_len, hidden_dim = query.shape
    head_dim = hidden_dim // heads

    def split(x: Tensor) -> Tensor:
        return x.reshape(batch, seq_len, heads, head_dim).transpose(1, 2)

    def merge(out: Tensor) -> Tensor:
        return out.transpose(1, 2).reshape(batch, seq_len, hidden_dim)

    def layer(split: Callable[[Tensor], Tensor]) -> Tensor:
        return project(merge(reference.attention(split(query), split(key), split(value), causal)))

    return [
        *(
            one.then(lambda out: project(merge(out)))
            for one in attention_mistakes(split(query), split(key), split(value), causal)
        ),
        known("heads not transposed", lambda: layer(lambda x: x.reshape(batch, heads, seq_len, head_dim))),
        known(
            "heads interleaved", lambda: layer(lambda x: x.reshape(batch, seq_len, head_dim, heads).permute(0, 3, 1, 2))
        ),
        known(
            "output projection missing",
            lambda: merge(reference.attention(split(query), split(key), split(value), causal)),
        ),
    ]
