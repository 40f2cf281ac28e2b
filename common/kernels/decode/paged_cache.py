"""The paged KV cache: sequences allocate pages from a common pool as they grow, and release them.

    cache = PagedKVCache(ops, batch=16, kv_heads=8, max_seq_len=8192, head_dim=128, pages=1100)
    cache.append(key, value)        # this and the rest as in KVCache
    out = cache.attend(query)
    cache.reset(3)                  # sequence 3 has ended: its pages are free for the others

`ops` are this folder's operators, `loaded("decode", device)` of common/kernels/loaded.py.

Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023,
arXiv:2309.06180.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from common.kernels.decode.cache import KVCache, check_sizes

if TYPE_CHECKING:
    from common.compiling.operators import Operators

PAGE_SIZES = (16, 32, 64, 128, 256)  # tokens
PAGE = PAGE_SIZES[0]
NO_PAGE = -1  # in the table: the kernels skip it


class PagedKVCache(KVCache):
    """The keys and values that one attention layer has seen, in pages.

    Page ownership is tracked on the host, where it can be checked without synchronization; the block table that the
    kernels read is updated to match. append also raises ValueError if too few pages are free.

    Attributes:
        k, v: the pool, [pages, kv_heads, page_size, head_dim].
        block_table: int32 [batch, ceil(max_seq_len / page_size)] on the device: token s of sequence b is row
            s % page_size of page block_table[b, s / page_size]. Updated in place (always the same memory).
        free_pages: how many pages are free.
        page_size: tokens per page.

    Args:
        ops: operators with update_cache_paged and decode_attention_paged, see above.
        batch, kv_heads, max_seq_len, head_dim: of the sequences; max_seq_len bounds each of them, not the memory.
        pages: in the pool, for all sequences together.
        dtype: float32, float16 or bfloat16.
        page_size: tokens per page, 16, 32, 64, 128 or 256. Larger pages need a shorter table but waste more room at the
            end of a sequence.

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
        self._allocate(ops, batch, max_seq_len, (pages, kv_heads, page_size, head_dim), dtype)
        self.page_size = page_size
        table = (batch, self._pages_for(max_seq_len))
        self.block_table = torch.full(table, NO_PAGE, dtype=torch.int32, device=ops.device)
        self._pages: list[list[int]] = [[] for _ in range(batch)]
        self._free = list(range(pages - 1, -1, -1))  # the next one last

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def attend(self, query: Tensor, scale: float | None = None) -> Tensor:
        """Like KVCache.attend."""
        return self.ops.decode_attention_paged(query, self.k, self.v, self.lengths, self.block_table, scale)

    def reset(self, sequence: int | None = None) -> None:
        """Like KVCache.reset; the pages become free."""
        super().reset(sequence)
        for b in range(len(self._pages)) if sequence is None else [sequence]:
            self._free += reversed(self._pages[b])
            self._pages[b] = []
            self.block_table[b] = NO_PAGE

    def _reserve(self, new_tokens: list[int]) -> None:
        wanted = [  # how many more pages each sequence needs
            self._pages_for(length + count) - len(owned)
            for length, count, owned in zip(self._host_lengths, new_tokens, self._pages, strict=True)
        ]
        if sum(wanted) > len(self._free):
            raise ValueError(
                f"the cache is full: {max(new_tokens)} more tokens of {len(wanted)} sequences need {sum(wanted)} pages "
                f"of {self.page_size}, and {len(self._free)} of {self.k.size(0)} are free; "
                "reset a sequence that has ended"
            )
        free = self._free.copy()
        pages = [owned + [free.pop() for _ in range(count)] for owned, count in zip(self._pages, wanted, strict=True)]
        if any(wanted):
            self._write_table(pages)
        self._reserved = pages, free  # assigned when the tokens are written

    def _update(self, key: Tensor, value: Tensor) -> None:
        self.ops.update_cache_paged(self.k, self.v, key, value, self.lengths, self.block_table)

    def _grow(self, new_tokens: list[int]) -> None:
        super()._grow(new_tokens)
        self._pages, self._free = self._reserved

    def _write_table(self, pages: list[list[int]]) -> None:
        width = self.block_table.size(1)
        rows = [owned + [NO_PAGE] * (width - len(owned)) for owned in pages]
        self.block_table.copy_(torch.tensor(rows, dtype=torch.int32, device="cpu"))

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.page_size)
