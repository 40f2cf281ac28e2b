"""The KV cache in Python: one layer's preallocated buffers, and attention of new tokens over them.

    KVCache                  the buffers and how much of them is filled, tracked on the host
    update_cache             the operators themselves, for your own positions and lengths, with their values checked
    decode_attention
    check_sizes              refuses unsupported sizes
    Rotary                   the arguments of update_cache_rotary: new tokens without padding

`ops` are operators of task 6, `load(BuildRequest("task6"))` of common.compiling, or this folder's, `loaded("decode",
device)` of common/kernels/loaded.py. Shapes:

    query       [batch, heads, 1, head_dim]                  the newest token of every sequence
    key, value  [batch, kv_heads, new_tokens, head_dim]      the tokens to cache
    caches      [batch, kv_heads, max_seq_len, head_dim]     the memory, allocated once
    lengths     [batch], int32                               how many tokens of each sequence are cached

Floats are float32 (this folder's operators also support float16 and bfloat16), heads is a multiple of kv_heads,
head_dim is at most 128.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from common.compiling.operators import Operators

MAX_HEAD_DIM = 128


class KVCache:
    """The keys and values that one attention layer has seen, in buffers of a fixed size.

    Nothing is ever moved or reallocated: a step writes its few new rows and reads the rest. Each sequence's length is
    kept twice: in `lengths` on the device, where the kernels read it, and in a list on the host, so that the check for
    a full cache does not synchronize with the device.

        cache = KVCache(ops, batch=2, kv_heads=4, max_seq_len=1024, head_dim=64)
        cache.append(key, value)        # the prompt: many tokens at once
        cache.append(key, value)        # then one token per step ...
        out = cache.attend(query)       # ... whose query attends to everything cached, itself included

    Attributes:
        k, v: the full buffers, [batch, kv_heads, max_seq_len, head_dim]. Slots at or past a sequence's length
            hold whatever was in memory; nothing reads them.
        lengths: int32 tensor [batch] on the device, updated in place (always the same memory).
        block_table: None; see PagedKVCache.

    Args:
        ops: operators with update_cache and decode_attention, see above.
        batch, kv_heads, max_seq_len, head_dim: of the buffers.
        dtype: of the buffers; task 6's operators support float32 only.

    Raises:
        ValueError: a size below 1, or head_dim above 128.
    """

    block_table: Tensor | None = None

    def __init__(
        self,
        ops: Operators,
        batch: int,
        kv_heads: int,
        max_seq_len: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        check_sizes(batch=batch, kv_heads=kv_heads, max_seq_len=max_seq_len, head_dim=head_dim)
        self._allocate(ops, batch, max_seq_len, (batch, kv_heads, max_seq_len, head_dim), dtype)

    def _allocate(
        self, ops: Operators, batch: int, max_seq_len: int, shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        self.ops = ops
        self.max_seq_len = max_seq_len
        # Zeros: a NaN in a hidden slot would send its rows to the slow path, which rounds differently
        self.k = torch.zeros(shape, dtype=dtype, device=ops.device)
        self.v = torch.zeros(shape, dtype=dtype, device=ops.device)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=ops.device)
        self._host_lengths = [0] * batch

    @property
    def seq_len(self) -> int:
        """The number of tokens cached for the longest sequence."""
        return max(self._host_lengths)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Appends new_tokens rows to every sequence.

        Raises:
            ValueError: a sequence has no room for them, or a shape, dtype or layout is wrong; then nothing has changed.
        """
        new_tokens = new_tokens_of(key, value)
        counts = [new_tokens] * len(self._host_lengths)
        check_room(self._host_lengths, counts, self.max_seq_len)
        self._reserve(counts)
        self._update(key, value)
        self.lengths += new_tokens
        self._grow(counts)

    def append_rotary(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cos: Tensor,
        sin: Tensor,
        interleaved: bool = False,
        left_padding: Sequence[int] | None = None,
    ) -> Tensor:
        """append with rotary embedding, skipping the left padding of prompts; one kernel does everything.

        A sequence's first token has position 0; padding has none and is not cached, whatever it holds.

        Args:
            query: [batch, heads, new_tokens, head_dim], of the cache's dtype, not yet rotated.
            key, value: [batch, kv_heads, new_tokens, head_dim], of the same dtype.
            cos, sin: float32 [longest, rotary_dim / 2]: of the angle of each position and pair of elements. Those of a
                transformers model have every column twice: use cos[:, : rotary_dim // 2].
            interleaved: False: elements i and i + rotary_dim / 2 are a pair (Llama). True: 2 i and 2 i + 1 (GPT-J).
            left_padding: how many of each sequence's first new tokens are padding; numbers on the host, [batch]. None:
                no padding.

        Returns:
            The rotated queries, [batch, heads, new_tokens, head_dim], contiguous; zeros for padding. attend takes the
            last one of each sequence.

        Raises:
            ValueError: a sequence has no room for its tokens, or cos and sin have no row for them; left_padding is not
                one number in 0 .. new_tokens per sequence; the operators have no update_cache_rotary (those of this
                folder do); a shape, dtype or layout is wrong. Then nothing has changed.
        """
        rotary = Rotary.of(self.ops, key, value, cos, left_padding, len(self._host_lengths))
        rotary.check_room(self._host_lengths, self.max_seq_len)
        self._reserve(rotary.counts)
        padding = rotary.padding_on(self.lengths.device)
        tables = cos, sin, interleaved, padding, self.block_table
        out = self.ops.update_cache_rotary(query, self.k, self.v, key, value, self.lengths, *tables)
        rotary.add_to(self.lengths, padding)
        self._grow(rotary.counts)
        return out

    def attend(self, query: Tensor, scale: float | None = None) -> Tensor:
        """Attention of each sequence's one query over all its cached keys -> [batch, heads, 1, head_dim].

        Append the query's own key and value first: a token sees itself. An empty sequence gives zeros.

        Raises:
            ValueError: a shape, dtype or layout that the kernel does not support.
        """
        return self.ops.decode_attention(query, self.k, self.v, self.lengths, scale)

    def reset(self, sequence: int | None = None) -> None:
        """Forgets every sequence, or only the given one, so that its slots can be refilled.

        Raises:
            ValueError: there is no such sequence.
        """
        if sequence is None:
            self._host_lengths = [0] * len(self._host_lengths)
            self.lengths.zero_()
            return
        batch = len(self._host_lengths)
        if not isinstance(sequence, int) or not 0 <= sequence < batch:
            raise ValueError(f"sequence is {sequence!r}; it must be 0 .. batch - 1 = {batch - 1}")
        self._host_lengths[sequence] = 0
        self.lengths[sequence] = 0

    def _reserve(self, new_tokens: list[int]) -> None:
        """Allocates memory for the new tokens of each sequence; here it already is."""

    def _update(self, key: Tensor, value: Tensor) -> None:
        self.ops.update_cache(self.k, self.v, key, value, self.lengths)

    def _grow(self, new_tokens: list[int]) -> None:
        """Called after the new tokens are written."""
        self._host_lengths = [length + count for length, count in zip(self._host_lengths, new_tokens, strict=True)]


def check_sizes(**sizes: int) -> None:
    """Raises ValueError for a size of a cache below 1, and for a head_dim above MAX_HEAD_DIM."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    if sizes["head_dim"] > MAX_HEAD_DIM:
        raise ValueError(f"head_dim is {sizes['head_dim']}; the decode kernel supports at most {MAX_HEAD_DIM}")


def check_room(lengths: Sequence[int], new_tokens: Sequence[int], max_seq_len: int) -> None:
    """Raises ValueError for the first sequence that would exceed max_seq_len with its new tokens."""
    for sequence, (length, count) in enumerate(zip(lengths, new_tokens, strict=True)):
        if length + count > max_seq_len:
            raise ValueError(
                f"the cache is full: sequence {sequence} holds {length} tokens and {count} more "
                f"do not fit into max_seq_len = {max_seq_len}"
            )


def new_tokens_of(key: Tensor, value: Tensor) -> int:
    """new_tokens of [batch, kv_heads, new_tokens, head_dim]; 0 for another rank, which the operator itself refuses.

    Raises ValueError for anything but tensors.
    """
    for name, x in (("key", key), ("value", value)):
        if not isinstance(x, Tensor):
            raise ValueError(f"{name} is {x!r}; it must be a tensor [batch, kv_heads, new_tokens, head_dim]")
    return key.size(2) if key.dim() == 4 else 0


@dataclass(frozen=True)
class Rotary:
    """New tokens for update_cache_rotary.

    Attributes:
        counts: how many tokens of each sequence are not padding.
        padding: how many are, or None: there is no padding at all.
        longest: rows of cos and sin; None if they are not 2-dimensional, which the operator refuses.
    """

    counts: list[int]
    padding: list[int] | None
    longest: int | None

    @classmethod
    def of(
        cls, ops: Operators, key: Tensor, value: Tensor, cos: Tensor, left_padding: Sequence[int] | None, batch: int
    ) -> Rotary:
        """Checks and converts the arguments of append_rotary; see there."""
        if not hasattr(ops, "update_cache_rotary"):
            raise ValueError(
                "the cache's ops have no update_cache_rotary, only the fast kernels do: make the cache with "
                'ops=loaded("decode", device) of common.kernels.loaded'
            )
        new_tokens = new_tokens_of(key, value)
        longest = cos.size(0) if isinstance(cos, Tensor) and cos.dim() == 2 else None
        if left_padding is None:
            return cls([new_tokens] * batch, None, longest)
        numbers = isinstance(left_padding, Sequence) and len(left_padding) == batch
        if not numbers or not all(isinstance(x, int) and 0 <= x <= new_tokens for x in left_padding):
            raise ValueError(
                f"left_padding is {left_padding!r}; it must be batch = {batch} integers of 0 .. new_tokens = "
                f"{new_tokens}"
            )
        return cls([new_tokens - x for x in left_padding], list(left_padding), longest)

    def check_room(self, lengths: Sequence[int], max_seq_len: int) -> None:
        """Like the function of this name; also raises ValueError if cos and sin end before a token's position."""
        check_room(lengths, self.counts, max_seq_len)
        for sequence, (length, count) in enumerate(zip(lengths, self.counts, strict=True)):
            if self.longest is not None and length + count > self.longest:
                raise ValueError(
                    f"cos has {self.longest} rows; sequence {sequence} holds {length} tokens and {count} more need "
                    f"{length + count}"
                )

    def padding_on(self, device: torch.device) -> Tensor | None:
        """int32 [batch] on the device, without synchronization."""
        if self.padding is None:
            return None
        numbers = torch.tensor(self.padding, dtype=torch.int32, device="cpu")
        return numbers if device.type == "cpu" else numbers.pin_memory().to(device, non_blocking=True)

    def add_to(self, lengths: Tensor, padding: Tensor | None) -> None:
        """Adds the new tokens to the lengths on the device.   padding: from padding_on"""
        lengths += self.counts[0] if padding is None else self.counts[0] + self.padding[0] - padding


def update_cache(
    ops: Operators, k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, positions: Tensor
) -> None:
    """Writes the new tokens of sequence b into slots positions[b], positions[b] + 1, ... of its caches, in place.

    The operator of the same name skips a sequence whose tokens do not fit; this function raises an error. To do so it
    reads the positions, which synchronizes with the device. (KVCache tracks its lengths on the host and need not.)

    Args:
        ops: operators with update_cache, see above.
        k_cache, v_cache: [batch, kv_heads, max_seq_len, head_dim].
        key, value: [batch, kv_heads, new_tokens, head_dim].
        positions: int32 [batch], 0 .. max_seq_len - new_tokens.

    Raises:
        ValueError: a position out of range; a shape, dtype or layout that the kernel does not support. Then nothing has
            been written.
    """
    if k_cache.dim() == 4 and key.dim() == 4 and key.size(2) <= k_cache.size(2):  # the operator refuses all else
        _check_values("positions", positions, k_cache.size(2) - key.size(2), "max_seq_len - new_tokens")
    ops.update_cache(k_cache, v_cache, key, value, positions)


def decode_attention(
    ops: Operators, query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None = None
) -> Tensor:
    """softmax(scale * query @ K^T) @ V over the first lengths[b] keys of each sequence's cache.

    The operator of the same name clamps lengths that are out of range; this function raises an error, for which it
    synchronizes with the device, see update_cache.

    Args:
        ops: operators with decode_attention, see above.
        query: [batch, heads, 1, head_dim]. Query head h reads K/V head h // (heads // kv_heads).
        k_cache, v_cache: [batch, kv_heads, max_seq_len, head_dim].
        lengths: int32 [batch], 0 .. max_seq_len.
        scale: the factor on the scores; 1 / sqrt(head_dim) if None.

    Returns:
        [batch, heads, 1, head_dim]; zeros where the length is 0.

    Raises:
        ValueError: a length out of range; a shape, dtype or layout that the kernel does not support.
    """
    if k_cache.dim() == 4:
        _check_values("lengths", lengths, k_cache.size(2), "max_seq_len")
    return ops.decode_attention(query, k_cache, v_cache, lengths, scale)


def _check_values(name: str, values: Tensor, largest: int, meaning: str) -> None:
    """Raises ValueError for the first of these numbers that is outside 0 .. largest."""
    for sequence, number in enumerate(values.flatten().tolist()):
        if not 0 <= number <= largest:
            raise ValueError(f"{name}[{sequence}] is {number}; it must be 0 .. {meaning} = {largest}")
