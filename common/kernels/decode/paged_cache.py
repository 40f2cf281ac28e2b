"""The KV cache in pages: sequences take them from a common store as they grow, and give them back.

    cache = PagedKVCache(ops, batch=16, kv_heads=8, max_seq_len=8192, head_dim=128, pages=1100)
    cache.append(key, value)        # as KVCache of cache.py
    out = cache.attend(query)
    cache.reset(3)                  # sequence 3 has ended: its pages are free for the others

`ops` are this room's operators, `loaded("decode", device)` of common/kernels/loaded.py.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
arXiv:2309.06180.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.kernels.decode.cache import Rotary, check_room, check_sequence, check_sizes, new_tokens_of

if TYPE_CHECKING:
    from common.compiling.operators import Operators

PAGE_SIZES = (16, 32, 64, 128, 256)  # tokens
PAGE = PAGE_SIZES[0]
NO_PAGE = -1  # in the table: the kernels skip it


class PagedKVCache:
    """The keys and values that one attention layer has seen, in pages.

    Which pages belong to whom is kept on the host, where it can be checked without waiting for the device; the table
    that the kernels read follows it.

    Attributes:
        k_pages, v_pages: the store, [pages, kv_heads, page_size, head_dim].
        block_table: int32 [batch, ceil(max_seq_len / page_size)] on the device: token s of sequence b is row
            s % page_size of page block_table[b, s / page_size]. Updated in place (always the same memory).
        lengths: int32 [batch] on the device, likewise.
        free_pages: how many pages are free.
        page_size: tokens of a page.

    Args:
        ops: operators with update_cache_paged and decode_attention_paged, see above.
        batch, kv_heads, max_seq_len, head_dim: of the sequences; max_seq_len bounds each of them, not the memory.
        pages: in the store, for all sequences together.
        dtype: float32, float16 or bfloat16.
        page_size: tokens of a page, 16, 32, 64, 128 or 256. Larger ones need a shorter table, and leave more room
            unused at the end of a sequence.

    Raises:
        ValueError: a size below 1, head_dim above 128, another page_size.
    """

    def __init__(
        self,
        ops: Operators,
        batch: int,
        kv_heads: int,
        max_seq_len: int,
        head_dim: int,
        pages: int,
        dtype: torch.dtype = torch.float32,
        page_size: int = PAGE,
    ) -> None:
        check_sizes(batch=batch, kv_heads=kv_heads, max_seq_len=max_seq_len, head_dim=head_dim, pages=pages)
        if page_size not in PAGE_SIZES:
            raise ValueError(f"page_size is {page_size!r}; it must be one of {', '.join(map(str, PAGE_SIZES))}")
        self.ops = ops
        self.max_seq_len = max_seq_len
        self.page_size = page_size
        # Zeros: see KVCache
        self.k_pages = torch.zeros(pages, kv_heads, page_size, head_dim, dtype=dtype, device=ops.device)
        self.v_pages = torch.zeros_like(self.k_pages)
        table = (batch, self._pages_for(max_seq_len))
        self.block_table = torch.full(table, NO_PAGE, dtype=torch.int32, device=ops.device)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=ops.device)
        self._host_lengths = [0] * batch
        self._pages: list[list[int]] = [[] for _ in range(batch)]
        self._free = list(range(pages - 1, -1, -1))  # the next one last

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def seq_len(self) -> int:
        """The number of tokens cached for the longest sequence."""
        return max(self._host_lengths)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Writes new_tokens rows of every sequence after the ones it has, in new pages where the last one is full.

        Args:
            key, value: [batch, kv_heads, new_tokens, head_dim].

        Raises:
            ValueError: a sequence would become longer than max_seq_len, too few pages are free, or a shape, dtype or
                layout is wrong; no sequence has changed then.
        """
        new_tokens = new_tokens_of(key, value)
        check_room(self._host_lengths, new_tokens, self.max_seq_len)
        pages, free = self._pages_with([new_tokens] * len(self._pages))
        self.ops.update_cache_paged(self.k_pages, self.v_pages, key, value, self.lengths, self.block_table)
        self.lengths += new_tokens
        self._host_lengths = [length + new_tokens for length in self._host_lengths]
        self._pages, self._free = pages, free

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
        """As KVCache.append_rotary; ValueError as append's, too."""
        rotary = Rotary.of(self.ops, key, value, cos, left_padding, len(self._pages))
        rotary.check_room(self._host_lengths, self.max_seq_len)
        pages, free = self._pages_with(rotary.counts)
        tables = cos, sin, interleaved, rotary.padding_on(self.lengths.device), self.block_table
        out = self.ops.update_cache_rotary(query, self.k_pages, self.v_pages, key, value, self.lengths, *tables)
        self._host_lengths = rotary.add_to(self._host_lengths, self.lengths, tables[3])
        self._pages, self._free = pages, free
        return out

    def attend(self, query: Tensor, scale: float | None = None) -> Tensor:
        """Attention of each sequence's one query over all its cached keys -> [batch, heads, 1, head_dim].

        Append the query's own key and value first: a token sees itself. An empty sequence gives zeros.

        Raises:
            ValueError: a shape, dtype or layout that the kernel does not support.
        """
        return self.ops.decode_attention_paged(query, self.k_pages, self.v_pages, self.lengths, self.block_table, scale)

    def reset(self, sequence: int) -> None:
        """Forgets a sequence: its pages are free, and its row of the batch can be filled again.

        Raises:
            ValueError: there is no such sequence.
        """
        check_sequence(sequence, len(self._pages))
        self._free += reversed(self._pages[sequence])
        self._pages[sequence] = []
        self._host_lengths[sequence] = 0
        self.lengths[sequence] = 0
        self.block_table[sequence] = NO_PAGE

    def _pages_with(self, new_tokens: list[int]) -> tuple[list[list[int]], list[int]]:
        """Each sequence's pages with `new_tokens` more, and what is free then; the table has them already."""
        wanted = [  # how many further pages each sequence needs
            self._pages_for(length + count) - len(owned)
            for length, count, owned in zip(self._host_lengths, new_tokens, self._pages, strict=True)
        ]
        if sum(wanted) > len(self._free):
            raise ValueError(
                f"the cache is full: {max(new_tokens)} more tokens of {len(wanted)} sequences need {sum(wanted)} pages "
                f"of {self.page_size}, and {len(self._free)} of {self.k_pages.size(0)} are free; "
                "reset a sequence that has ended"
            )
        free = self._free.copy()
        pages = [owned + [free.pop() for _ in range(count)] for owned, count in zip(self._pages, wanted, strict=True)]
        if any(wanted):
            self._write_table(pages)
        return pages, free

    def _write_table(self, pages: list[list[int]]) -> None:
        width = self.block_table.size(1)
        rows = [owned + [NO_PAGE] * (width - len(owned)) for owned in pages]
        self.block_table.copy_(torch.tensor(rows, dtype=torch.int32, device="cpu"))

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)
