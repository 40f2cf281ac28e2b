"""The KV cache in Python: one layer's preallocated buffers, and attention of new tokens over them.

`ops` is what `common.build.load("task6")` returns. Shapes:

    query       [batch, heads, 1, head_dim]                  the newest token of every sequence
    key, value  [batch, kv_heads, new_tokens, head_dim]      the tokens to remember
    caches      [batch, kv_heads, max_seq_len, head_dim]     the memory, allocated once
    lengths     [batch], int32                               how many tokens of each sequence are remembered

All floats are float32, heads is a multiple of kv_heads, head_dim is at most 128.
"""

import torch


class KVCache:
    """The keys and values that one attention layer has seen, in buffers of a fixed size.

    Nothing is ever moved or reallocated: a step writes its few new rows and reads the rest. Each sequence's
    length is kept twice: in `lengths` on the device, because the kernels read it there, and in a list on the
    host, because the check for a full cache must not wait for the device.

        cache = KVCache(ops, batch=2, kv_heads=4, max_seq_len=1024, head_dim=64)
        cache.append(key, value)        # the prompt: many tokens at once
        cache.append(key, value)        # then one token per step ...
        out = cache.attend(query)       # ... whose query looks at everything cached, itself included

    Attributes:
        k, v: the full buffers, [batch, kv_heads, max_seq_len, head_dim]. Slots at or past a sequence's length
            hold whatever was in memory; nothing reads them.
        lengths: int32 tensor [batch] on the device, updated in place (always the same memory).
        seq_len: the longest sequence's length, a host int.
    """

    def __init__(self, ops, batch, kv_heads, max_seq_len, head_dim):
        sizes = {"batch": batch, "kv_heads": kv_heads, "max_seq_len": max_seq_len, "head_dim": head_dim}
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} is {size}; it must be at least 1")
        if head_dim > 128:
            raise ValueError(f"head_dim is {head_dim}; the decode kernel supports at most 128")
        shape = (batch, kv_heads, max_seq_len, head_dim)
        self.ops = ops
        self.max_seq_len = max_seq_len
        self.k = torch.empty(shape, dtype=torch.float32, device=ops.device)
        self.v = torch.empty(shape, dtype=torch.float32, device=ops.device)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=ops.device)
        self._host_lengths = [0] * batch

    @property
    def seq_len(self):
        """The number of tokens cached for the longest sequence."""
        return max(self._host_lengths)

    def append(self, key, value):
        """Writes new_tokens rows of every sequence behind the ones it has.

        Raises ValueError when a sequence has no room for them; no sequence has changed then.
        """
        new_tokens = key.shape[2] if key.dim() == 4 else 0  # update_cache itself refuses any other rank
        for sequence, length in enumerate(self._host_lengths):
            if length + new_tokens > self.max_seq_len:
                raise ValueError(
                    f"the cache is full: sequence {sequence} holds {length} tokens and {new_tokens} more "
                    f"do not fit into max_seq_len = {self.max_seq_len}"
                )
        self.ops.update_cache(self.k, self.v, key, value, self.lengths)
        self.lengths += new_tokens
        self._host_lengths = [length + new_tokens for length in self._host_lengths]

    def attend(self, query, scale=None):
        """Attention of each sequence's one query over all its cached keys -> [batch, heads, 1, head_dim].

        Append the query's own key and value first: a token sees itself. An empty sequence gives zeros.
        """
        return decode_attention(self.ops, query, self.k, self.v, self.lengths, scale)

    def reset(self, sequence=None):
        """Forgets every sequence, or only the given one, so that its slots can be filled again."""
        chosen = range(len(self._host_lengths)) if sequence is None else [sequence]
        for i in chosen:
            self._host_lengths[i] = 0
            self.lengths[i] = 0


def decode_attention(ops, query, k_cache, v_cache, lengths, scale=None):
    """softmax(scale * query @ K^T) @ V over the first lengths[b] keys of each sequence's cache.

    Args:
        ops: the operators of task 6.
        query: [batch, heads, 1, head_dim]. Query head h reads K/V head h // (heads // kv_heads).
        k_cache, v_cache: [batch, kv_heads, max_seq_len, head_dim].
        lengths: int32 [batch], 0 .. max_seq_len. It stays on the device, so its values are not checked here:
            the kernel treats a larger one as max_seq_len and a negative one as 0. `KVCache` never produces
            either.
        scale: what the scores are multiplied by; 1 / sqrt(head_dim) when None.

    Returns:
        [batch, heads, 1, head_dim]; zeros where the length is 0.

    Raises:
        ValueError: a shape, dtype or layout that the kernel does not support, by argument name.
    """
    return ops.decode_attention(query, k_cache, v_cache, lengths, scale)
