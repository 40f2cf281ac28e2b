"""The linear layers around multi-head self-attention: AttentionLayer, whose subclasses write the attention itself.

    x -> qkv_projection -> query, key, value -> attention, head by head -> merge_heads -> out_projection

Block is a Transformer's block around such a layer.

Source: "Attention Is All You Need" (Vaswani et al. 2017), section 3.2.2 and figure 2.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", bound="AttentionLayer")


class AttentionLayer(nn.Module):
    """The weights of multi-head self-attention, laid out as in torch.nn.MultiheadAttention.

    Args:
        hidden_dim: width of the input and the output; a multiple of num_heads.
        num_heads: number of heads; head_dim = hidden_dim / num_heads.
        causal: position i attends to positions j <= i only.
        device: device of the weights.

    Raises:
        ValueError: hidden_dim or num_heads below 1, or hidden_dim not a multiple of num_heads.
    """

    def __init__(self, hidden_dim: int, num_heads: int, causal: bool, device: torch.device | str | None = None) -> None:
        super().__init__()
        if num_heads < 1:
            raise ValueError(f"num_heads is {num_heads}; it must be at least 1")
        if hidden_dim < 1 or hidden_dim % num_heads:
            raise ValueError(f"hidden_dim is {hidden_dim}; it must be a positive multiple of num_heads = {num_heads}")
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.head_dim = hidden_dim // num_heads
        self.causal = causal
        # one matmul instead of three: the first hidden_dim rows of the weight make the queries, the next
        # the keys, the last the values
        self.qkv_projection = nn.Linear(hidden_dim, 3 * hidden_dim, device=device)
        self.out_projection = nn.Linear(hidden_dim, hidden_dim, device=device)

    @classmethod
    def from_multihead_attention(cls: type[Layer], module: nn.MultiheadAttention, causal: bool, **options) -> Layer:
        """A layer with a copy of the module's weights.

        Args:
            module: its batch_first is ignored: forward() always takes [batch, seq_len, hidden_dim]. Its dropout is also
                ignored, as in the module itself after eval().
            causal: see the class; in torch the mask is an argument of forward() instead.
            options: other arguments of the class: device, or the operators that it uses.

        Raises:
            ValueError: module has kdim, vdim, bias_k/bias_v or add_zero_attn, which AttentionLayer does not support.
        """
        if module.in_proj_weight is None:
            raise ValueError(
                f"module has kdim = {module.kdim}, vdim = {module.vdim}; both must equal {module.embed_dim}"
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise ValueError("module has add_bias_kv or add_zero_attn; both must be False")
        layer = cls(module.embed_dim, module.num_heads, causal, **options)
        with torch.no_grad():
            for ours, weight, bias in (
                (layer.qkv_projection, module.in_proj_weight, module.in_proj_bias),
                (layer.out_projection, module.out_proj.weight, module.out_proj.bias),
            ):
                ours.weight.copy_(weight)
                if bias is None:
                    ours.bias.zero_()
                else:
                    ours.bias.copy_(bias)
        return layer

    def check_input(self, x: Tensor) -> None:
        """Raises ValueError unless x is [batch, seq_len, hidden_dim]."""
        if x.dim() != 3 or x.size(2) != self.hidden_dim:
            raise ValueError(
                f"x has shape {list(x.shape)}; it must be [batch, seq_len, hidden_dim = {self.hidden_dim}]"
            )

    def check_heads(self, x: Tensor, **heads: Tensor) -> None:
        """Raises ValueError unless every tensor of `heads` is [batch, num_heads, seq_len, head_dim] for the input x."""
        expected = [x.size(0), self.num_heads, x.size(1), self.head_dim]
        for name, tensor in heads.items():
            if list(tensor.shape) != expected:
                raise ValueError(
                    f"{name} has shape {list(tensor.shape)}; it must be [batch, num_heads, seq_len, head_dim] = "
                    f"{expected}"
                )

    def split_heads(self, x: Tensor) -> Tensor:
        """Query, key and value of x [batch, seq_len, hidden_dim]: a view [3, batch, num_heads, seq_len, head_dim].

        Raises:
            ValueError: x has another shape.
        """
        self.check_input(x)
        qkv = self.qkv_projection(x).view(x.size(0), x.size(1), 3, self.num_heads, self.head_dim)
        return qkv.permute(2, 0, 3, 1, 4)

    def merge_heads(self, heads: Tensor) -> Tensor:
        """[batch, num_heads, seq_len, head_dim] -> [batch, seq_len, hidden_dim]: concatenates each position's heads.

        transpose() only swaps strides; reshape() moves the data.
        """
        return heads.transpose(1, 2).reshape(heads.size(0), heads.size(2), self.hidden_dim)


class Block(nn.Module):
    """Attention and a two-layer MLP, each after a norm and with a residual connection.

    Args:
        attention: [batch, tokens, hidden_dim] -> the same; has an attribute hidden_dim.
        device: device of the other weights.
    """

    def __init__(self, attention: nn.Module, device: torch.device | str | None = None) -> None:
        super().__init__()
        hidden_dim = attention.hidden_dim
        self.attention_norm = nn.LayerNorm(hidden_dim, device=device)
        self.attention = attention
        self.mlp_norm = nn.LayerNorm(hidden_dim, device=device)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_dim, 4 * hidden_dim, device=device),
            nn.GELU(),
            nn.Linear(4 * hidden_dim, hidden_dim, device=device),
        )

    def forward(self, x: Tensor, *where: int) -> Tensor:
        """[batch, tokens, hidden_dim] -> the same; where: the attention's further arguments."""
        x = x + self.attention(self.attention_norm(x), *where)
        return x + self.mlp(self.mlp_norm(x))
