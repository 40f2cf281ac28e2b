"""A transformers `Cache` whose layers keep their keys and values in task 6's KVCache."""

from __future__ import annotations

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from common.kernels.decode.cache import KVCache
from task7.front_door.padding import Padding

# Attribute that marks the keys returned by a KernelCache
OF_KERNEL_CACHE = "of_kernel_cache"


class LayerKVCache(KVCache):
    """Task 6's KV cache, which can leave out the padding of prompts.

    Attributes:
        padded: whether any tokens came with padding, which is not in the cache. Then `lengths` counts each sequence's
            tokens without padding, and `seq_len` includes the padding, as transformers counts.
    """

    def __init__(self, *sizes, **options) -> None:
        super().__init__(*sizes, **options)
        self.padded = False

    def drop_padding(self, padding: Padding) -> None:
        """Rewrites the newest tokens with their padding after them, where the next token overwrites it.

        padding: covers only these tokens.
        """
        before = self.lengths - padding.new_tokens
        slots = (before[:, None] + padding.order)[:, None, :, None].expand(-1, self.k.size(1), -1, self.k.size(3))
        self.ops.update_cache(self.k, self.v, self.k.gather(2, slots), self.v.gather(2, slots), before)
        self.lengths.copy_(before + padding.lengths)
        self.padded = True

    def reset(self, sequence=None) -> None:
        """Forgets every sequence, or only the given one."""
        super().reset(sequence)
        self.padded = self.padded and sequence is not None


class KernelCacheLayer(CacheLayerMixin):
    """The KV cache of one layer: room for max_seq_len tokens, written by task 6's update_cache.

    Memory is allocated at the first update, when batch, heads, head_dim and dtype are known, and registered with the
    attention. With tuned operators the cache has the keys' dtype; otherwise float32.
    """

    def __init__(self, attention, max_seq_len):
        super().__init__()
        self.attention = attention
        self.max_seq_len = max_seq_len
        self.kv_cache = None

    def lazy_initialization(self, key_states, value_states):
        batch, heads, _, head_dim = key_states.shape
        dtype = key_states.dtype if self.attention.tuned else torch.float32
        ops = self.attention.decode_ops
        self.kv_cache = LayerKVCache(ops, batch, heads, self.max_seq_len, head_dim, dtype=dtype)
        self.attention.adopt(self.kv_cache)
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        """Appends [batch, kv_heads, new_tokens, head_dim], any float dtype.

        Returns views [batch, kv_heads, seq_len, head_dim] of all cached keys and values, in the cache's dtype.
        Raises ValueError if the cache is full, and under torch.compile.
        """
        if torch.compiler.is_compiling():
            raise ValueError(
                "KernelCache is not supported under torch.compile, which could not tell whether the prompt was padded: "
                "leave past_key_values out, or pass transformers' DynamicCache or StaticCache"
            )
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        seq_len = self.get_seq_length() + key_states.size(2)
        self.kv_cache.append(*(x.to(self.kv_cache.k.dtype).contiguous() for x in (key_states, value_states)))
        self.keys = self.kv_cache.k[:, :, :seq_len]
        setattr(self.keys, OF_KERNEL_CACHE, True)
        self.values = self.kv_cache.v[:, :, :seq_len]
        return self.keys, self.values

    def get_seq_length(self):
        return self.kv_cache.seq_len if self.is_initialized else 0

    def get_max_length(self):
        return self.max_seq_len

    def get_mask_sizes(self, query_length):
        return self.get_seq_length() + query_length, 0

    def reset(self):
        """Empties the cache but keeps its memory."""
        if self.is_initialized:
            self.kv_cache.reset()
        self.keys = self.values = None

    def _refuse(self, *args, **kwargs):
        raise ValueError(
            "beam search, cropping and offloading are not supported by KernelCache: use greedy search or sampling"
        )

    reorder_cache = crop = batch_repeat_interleave = batch_select_indices = offload = prefetch = _refuse


class KernelCache(Cache):
    """One `KernelCacheLayer` per layer of `model`, to pass as `past_key_values`.

    attention: the KernelAttention that the model is attached to; its task 6 operators write and read the cache.
    max_seq_len: capacity in tokens, padding included (None: the model's context length).
    """

    def __init__(self, attention, model, max_seq_len=None):
        tokens = max_seq_len or model.config.max_position_embeddings
        layers = model.config.num_hidden_layers
        super().__init__(layers=[KernelCacheLayer(attention, tokens) for _ in range(layers)])
