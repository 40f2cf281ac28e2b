"""The linear layers around grouped-query attention with a cache: CachedAttentionLayer. Given.

    x -> project -> query, key, value -> attention over the cache -> merge -> [batch, new_tokens, hidden_dim]

Two subclasses implement the attention in between: customAttention (attention.py, on the kernels of tasks 4 and 6) and
TorchAttention (torch_attention.py, PyTorch's own), with the same weights under the same names.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CachedAttentionLayer(nn.Module):
    """The weights of causal multi-head self-attention whose K/V heads are shared by groups of query heads.

    Args:
        hidden_dim: width of input and output; a multiple of num_heads.
        num_heads: query heads; head_dim = hidden_dim / num_heads.
        num_kv_heads: K/V heads; num_heads is a multiple of it. Query head h reads K/V head h // (num_heads /
            num_kv_heads).
        batch: the number of sequences.
        max_seq_len: the number of tokens of each that the cache can hold.
        device: of the weights.

    Raises:
        ValueError: a size is below 1, or not a multiple as required above.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        num_kv_heads: int,
        batch: int,
        max_seq_len: int,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        sizes = {"hidden_dim": hidden_dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
        for name, size in {**sizes, "batch": batch, "max_seq_len": max_seq_len}.items():
            if size < 1:
                raise ValueError(f"{name} is {size}; it must be at least 1")
        if hidden_dim % num_heads:
            raise ValueError(f"hidden_dim is {hidden_dim}; it must be a multiple of num_heads = {num_heads}")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads is {num_heads}; it must be a multiple of num_kv_heads = {num_kv_heads}")
        self.hidden_dim = hidden_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = hidden_dim // num_heads
        self.batch = batch
        self.max_seq_len = max_seq_len
        # one GEMM instead of three: first the rows for the queries, then those for the keys and the values
        self.qkv_projection = nn.Linear(hidden_dim, (num_heads + 2 * num_kv_heads) * self.head_dim, device=device)
        self.out_projection = nn.Linear(hidden_dim, hidden_dim, device=device)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [batch, new_tokens, hidden_dim] -> query [batch, num_heads, new_tokens, head_dim], key and value
        [batch, num_kv_heads, new_tokens, head_dim], all contiguous."""
        heads = (self.num_heads, self.num_kv_heads, self.num_kv_heads)
        split = self.qkv_projection(x).unflatten(-1, (-1, self.head_dim)).split(heads, dim=2)
        query, key, value = (part.transpose(1, 2).contiguous() for part in split)
        return query, key, value

    def merge(self, heads: Tensor) -> Tensor:
        """[batch, num_heads, new_tokens, head_dim] -> [batch, new_tokens, hidden_dim], by the output projection."""
        return self.out_projection(heads.transpose(1, 2).flatten(-2))

    def check_call(self, x: Tensor, position: int, cached: int) -> None:
        """Checks the arguments of forward(x, position) when the cache holds `cached` tokens of each sequence.

        Raises:
            ValueError: x is not [batch, new_tokens, hidden_dim], or not of the weights' dtype and device; position is
                neither 0 nor `cached`; there are several new tokens but position is not 0; the tokens do
                not fit into max_seq_len.
        """
        if x.dim() != 3 or x.size(0) != self.batch or x.size(1) < 1 or x.size(2) != self.hidden_dim:
            raise ValueError(
                f"x has shape {list(x.shape)}; it must be [batch = {self.batch}, new_tokens, hidden_dim = "
                f"{self.hidden_dim}]"
            )
        weight = self.out_projection.weight
        if x.dtype != weight.dtype or x.device != weight.device:
            raise ValueError(f"x is {x.dtype} on {x.device}; the weights are {weight.dtype} on {weight.device}")
        new_tokens = x.size(1)
        if position < 0 or position + new_tokens > self.max_seq_len:
            raise ValueError(
                f"position is {position} and there are {new_tokens} new tokens; all must be in 0 .. max_seq_len - 1 = "
                f"{self.max_seq_len - 1}"
            )
        if position not in (0, cached):
            raise ValueError(
                f"position is {position}, but the cache holds {cached} tokens. Every token must be appended to it "
                "once, and a prompt (position 0) begins with an empty cache"
            )
        if position > 0 and new_tokens > 1:
            raise ValueError(
                f"x holds {new_tokens} new tokens and position is {position}; after a prompt they come one by one"
            )
