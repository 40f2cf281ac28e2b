"""A transformers `Cache` whose layers keep their keys and values in task 6's KVCache."""

from transformers.cache_utils import Cache, CacheLayerMixin

from task6.attention import KVCache
from task7.kernel_attention import several_new_tokens


class KernelCacheLayer(CacheLayerMixin):
    """The KV cache of one layer: room for max_seq_len tokens, written by task 6's update_cache.

    The memory is taken at the first update, when batch, heads and head_dim are known.
    """

    def __init__(self, ops, max_seq_len):
        super().__init__()
        self.ops = ops
        self.max_seq_len = max_seq_len
        self.kv_cache = None

    def lazy_initialization(self, key_states, value_states):
        batch, heads, _, head_dim = key_states.shape
        self.kv_cache = KVCache(self.ops, batch, heads, self.max_seq_len, head_dim)
        self.is_initialized = True

    def update(self, key_states, value_states, *args, **kwargs):
        """Appends [batch, heads, new_tokens, head_dim], any float dtype.

        Returns float32 views [batch, heads, seq_len, head_dim] of all that is cached; the keys carry the
        KVCache as the attribute `kv_cache`, which is how the attention function finds it.
        Raises ValueError for several new tokens on a cache that is not empty, and when the cache is full.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        cached, new_tokens = self.get_seq_length(), key_states.size(2)
        if new_tokens > 1 and cached > 0:
            raise ValueError(several_new_tokens(new_tokens, cached))
        self.kv_cache.append(key_states.float().contiguous(), value_states.float().contiguous())
        self.keys = self.kv_cache.k[:, :, : cached + new_tokens]
        self.values = self.kv_cache.v[:, :, : cached + new_tokens]
        self.keys.kv_cache = self.kv_cache
        return self.keys, self.values

    def get_seq_length(self):
        return self.kv_cache.seq_len if self.is_initialized else 0

    def get_max_length(self):
        return self.max_seq_len

    def get_mask_sizes(self, query_length):
        return self.get_seq_length() + query_length, 0

    def reset(self):
        """Empties the cache and keeps its memory."""
        if self.is_initialized:
            self.kv_cache.reset()
        self.keys = self.values = None

    def _refuse(self, *args, **kwargs):
        raise ValueError(
            "beam search, cropping and offloading are not supported by KernelCache yet: use greedy search or sampling"
        )

    reorder_cache = crop = batch_repeat_interleave = batch_select_indices = offload = prefetch = _refuse


class KernelCache(Cache):
    """One `KernelCacheLayer` per layer of `model`, to pass as `past_key_values`.

    attention: the KernelAttention that the model is attached to; its task 6 operators fill and read it.
    max_seq_len: tokens it can hold (None: the model's context length).
    """

    def __init__(self, attention, model, max_seq_len=None):
        tokens = max_seq_len or model.config.max_position_embeddings
        layers = model.config.num_hidden_layers
        super().__init__(layers=[KernelCacheLayer(attention.decode_ops, tokens) for _ in range(layers)])
