"""The attention layer of a model that generates text, and split-KV decoding.

    customAttention          a layer with its own KV cache; forward() does prefill or decode                (gap 7)
    decode_attention_split   split-KV decoding: this task's kernel, merged by task 3's                (gap 10, optional)

KVCache, update_cache and decode_attention are in cache.py and can be imported from here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.kernels.decode.cache import KVCache, decode_attention, update_cache
from task6.given.attention_layer import CachedAttentionLayer

if TYPE_CHECKING:
    from common.compiling.operators import Operators

__all__ = ["KVCache", "customAttention", "decode_attention", "decode_attention_split", "update_cache"]


class customAttention(CachedAttentionLayer):
    """Causal self-attention with a KV cache: pass the prompt in one call, then one token per call.

        layer = customAttention(64, 4, 2, 1, 100, ops, flash_ops)
        layer(prompt, 0)            [1, 10, 64]: prefill
        layer(token, 10)            [1, 1, 64]: decode; the token attends to the 10 tokens before it, and itself
        layer(token, 11)

    Args:
        hidden_dim, num_heads, num_kv_heads, batch, max_seq_len: see CachedAttentionLayer; head_dim is at most 128.
        ops: the operators of task 6; weights and cache are on ops.device.
        flash_ops: those of task 4.

    Attributes:
        cache: a KVCache with room for max_seq_len tokens of each sequence.

    Raises:
        ValueError: inconsistent sizes.
    """

    def __init__(
        self,
        hidden_dim: int,
        num_heads: int,
        num_kv_heads: int,
        batch: int,
        max_seq_len: int,
        ops: Operators,
        flash_ops: Operators,
    ) -> None:
        super().__init__(hidden_dim, num_heads, num_kv_heads, batch, max_seq_len, ops.device)
        self.flash_ops = flash_ops
        self.cache = KVCache(ops, batch, num_kv_heads, max_seq_len, self.head_dim)

    @torch.no_grad()
    def forward(self, x: Tensor, position: int) -> Tensor:
        """Causal attention of the new tokens to themselves and all earlier tokens.

        Args:
            x: [batch, new_tokens, hidden_dim], float32 on the device of the weights.
            position: the number of tokens of each sequence before x. 0: x is a prompt of any length, and anything still
                in the cache belongs to an earlier prompt. Otherwise x is one token.

        Returns:
            [batch, new_tokens, hidden_dim]; no gradient.

        Raises:
            ValueError: see CachedAttentionLayer.check_call.
            NotImplementedError: a kernel of task 4 or 6 has an unfilled gap.
        """
        self.check_call(x, position, self.cache.seq_len)
        # BEGIN SOLUTION 7 (11 lines): self.project makes query [batch, num_heads, new_tokens, head_dim], key and value
        #     [batch, num_kv_heads, new_tokens, head_dim]. A prompt empties the cache, is appended as a whole, and
        #     attends to itself with task 4's operator, self.flash_ops.flash_attention(query, key, value, causal), which
        #     needs one K/V head per query head: repeat each K/V head for its group of adjacent query heads. A single
        #     token is appended to the cache and then attends to all of it. In both cases the result, [batch, num_heads,
        #     new_tokens, head_dim], goes through self.merge.
        query, key, value = self.project(x)
        if position == 0:
            self.cache.reset()
            self.cache.append(key, value)
            group = self.num_heads // self.num_kv_heads
            keys, values = (rows.repeat_interleave(group, dim=1) for rows in (key, value))
            heads = self.flash_ops.flash_attention(query, keys, values, True)
        else:
            self.cache.append(key, value)
            heads = self.cache.attend(query)
        return self.merge(heads)
        # END SOLUTION


def decode_attention_split(
    ops: Operators,
    merge_ops: Operators,
    query: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    splits: int,
    scale: float | None = None,
) -> Tensor:
    """decode_attention with each sequence's keys split into parts that are processed in parallel.

    Args:
        ops: the operators of task 6.
        merge_ops: those of task 3: merge_states(outs [parts, rows, head_dim], lse [parts, rows]) -> (out [rows,
            head_dim], lse [rows]).
        query: [batch, heads, 1, head_dim].
        k_cache, v_cache: [batch, kv_heads, max_seq_len, head_dim].
        lengths: int32 [batch], clamped to 0 .. max_seq_len.
        splits: the number of parts, 1 .. max_seq_len.
        scale: factor applied to the scores; default 1 / sqrt(head_dim).

    Returns:
        [batch, heads, 1, head_dim]; zeros where the length is 0.

    Raises:
        ValueError: splits out of range; an unsupported shape, dtype or layout.
        NotImplementedError: a kernel of task 3 or 6 has an unfilled gap.
    """
    # BEGIN SOLUTION 10 (3 lines): the operator decode_attention_split returns (outs, lse) in the shapes that
    #     merge_states takes; a row is one query head of one sequence. Give the merged rows the shape of query.
    outs, lse = ops.decode_attention_split(query, k_cache, v_cache, lengths, splits, scale)
    out, _ = merge_ops.merge_states(outs, lse)
    return out.view(query.shape)
    # END SOLUTION
