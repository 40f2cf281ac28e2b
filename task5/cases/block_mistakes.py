"""Wrong answers that block-sparse attention is known to give.

    lists(block_mask)                                                   counts and columns as one tensor
    list_mistakes(block_mask)                                           the lists of a block mask's blocks
    block_mistakes(query, key, value, block_mask, block, causal, scale) attention to listed blocks

Rows of the mask mixed up, blocks left out, the causal mask inside blocks. What a Mistake is, and
those of any attention: common/diagnosis/mistakes.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.attention import attention_mistakes
from common.diagnosis.mistakes.formulas import varied
from common.diagnosis.mistakes.known import Mistake, Words
from common.diagnosis.mistakes.scores import known as of_scores
from common.diagnosis.mistakes.tile_loop import Tiles
from common.reference import oracle as right
from task5.cases.strided_mistakes import B_C, OF_A_MASK_ARGUMENT
from task5.cases.strided_mistakes import known as of_strided
from task5.given.reference import block_sparse_mask, naive_compress_block_mask

HIDDEN = "key = k_start + lane\nquery = q_start + row\nhidden = key > query"
ROWS = 32  # rows of Q per block in block_sparse_kernel
LANES = 32
known = Words(__file__, B_C=B_C, LANES=LANES)


def lists(block_mask: Tensor) -> Tensor:
    """compress_block_mask's two outputs as one: [heads, q_blocks, 1 + k_blocks], the count in front of the columns."""
    counts, columns = naive_compress_block_mask(block_mask)
    return torch.cat([counts[..., None], columns], -1).double()


def list_mistakes(block_mask: Tensor) -> list[Mistake]:
    """Wrong lists, as `lists` gives them; block_mask [heads, q_blocks, k_blocks]."""
    mask = block_mask.bool()
    without_last = torch.arange(mask.size(-1), device=mask.device) < mask.size(-1) - 1
    found = [
        known("mask inverted", lambda: lists(~mask)),
        known("last column left out", lambda: lists(mask & without_last)),
    ]
    if mask.size(-1) > LANES:
        found += [
            known(
                "only the first columns",
                lambda: lists(mask & (torch.arange(mask.size(-1), device=mask.device) < LANES)),
            ),
            known("counts not added up", lambda: _not_added_up(mask)),
        ]
    return found


def _not_added_up(mask: Tensor) -> Tensor:
    """Lists whose count is that of the last 32 columns, and which end after as many numbers."""
    answer = torch.full((*mask.shape[:-1], 1 + mask.size(-1)), -1.0, dtype=torch.double, device=mask.device)
    for line, row in zip(answer.flatten(0, 1), mask.flatten(0, 1), strict=True):
        count = 0
        for start in range(0, len(row), LANES):
            held = start + row[start : start + LANES].nonzero().flatten()
            line[1 + count : 1 + count + len(held)] = held.double()
            count = len(held)
        line[1 + count :] = -1
        line[0] = count
    return answer


def block_mistakes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: Tensor,
    block: int,
    causal: bool = False,
    scale: float | None = None,
) -> list[Mistake]:
    """Wrong outputs [..., S_q, head_dim]; arguments as in task5.given.reference.naive_block_sparse_attention."""
    listed = _Listed(query, key, value, block_mask.bool(), block, causal, scale)
    found = _list_reading_mistakes(listed, query.size(0)) + _tile_mistakes(listed, query, key, value, scale)
    if causal:
        found += _causal_mistakes(listed)
    see = block_sparse_mask(listed.mask, block, causal)
    general = attention_mistakes(query, key, value, False, scale, mask=see)
    return found + [one for one in general if one.name not in OF_A_MASK_ARGUMENT]


class _Listed(Tiles):
    """Attention to the blocks of a mask [heads, q_blocks, k_blocks], right or with one thing wrong."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor,
        block: int,
        causal: bool,
        scale: float | None,
    ) -> None:
        super().__init__(query, key, value, scale, ROWS, B_C)
        self.mask, self.block = mask, block
        self.before = self.key <= self.row if causal else self.key >= 0

    def elements(self, mask: Tensor) -> Tensor:
        """[..., q_blocks, k_blocks] -> [..., S_q, S_k]."""
        return mask.repeat_interleave(self.block, -2).repeat_interleave(self.block, -1)

    def listing(self, mask: Tensor) -> Callable[[], Tensor]:
        """The output if the lists were those of this mask, [..., heads, q_blocks, k_blocks]."""
        return self.answer(self.elements(mask) & self.before)


def _list_reading_mistakes(listed: _Listed, batch: int) -> list[Mistake]:
    """The wrong row of the mask, or the wrong numbers of it."""
    mask = listed.mask
    heads, q_blocks, k_blocks = mask.shape
    counts = mask.sum(-1, keepdim=True)
    place = mask.cumsum(-1)  # 1 for the first true block of a row, 2 for the second, ...
    found = [
        known("mask ignored", listed.listing(torch.ones_like(mask))),
        known("last block dropped", listed.listing(mask & (place < counts))),
        known("only the first block", listed.listing(mask & (place == 1))),
        known("n taken for the block", listed.listing(torch.arange(k_blocks, device=mask.device) < counts)),
        known("first row of the mask", listed.listing(mask[:, :1].expand_as(mask))),
    ]
    if heads > 1:
        found.append(known("list of the wrong head", listed.listing(mask[:1].expand_as(mask))))
        entries = torch.arange(batch, device=mask.device) % heads
        found.append(
            known(
                "list of the wrong head (head / heads)",
                listed.listing(mask[entries][:, None].expand(-1, heads, -1, -1)),
            )
        )
        interleaved = mask.reshape(heads * q_blocks, k_blocks)
        rows = torch.arange(q_blocks, device=mask.device) * heads + torch.arange(heads, device=mask.device)[:, None]
        found.append(known("row of the mask mixed up", listed.listing(interleaved[rows])))
    return found


def _tile_mistakes(listed: _Listed, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> list[Mistake]:
    """The tiles of B_C keys within a block."""
    if listed.block == B_C:
        return []
    inside = listed.key % listed.block
    block_elements = listed.elements(listed.mask) & listed.before
    # row r of block c is read where row r would be if blocks had B_C rows
    misread = listed.key // listed.block * B_C + inside
    return [
        known(
            "only the first tile of a block",
            listed.answer(block_elements & (inside < B_C)),
            block=listed.block,
            tiles=listed.block // B_C,
        ),
        known("last tile of a block dropped", listed.answer(block_elements & (inside < listed.block - B_C))),
        known(
            "blocks taken for tiles",
            lambda: right.attention(
                query, key[..., misread, :], value[..., misread, :], scale=scale, mask=block_elements
            ),
            block=listed.block,
        ),
    ]


def _causal_mistakes(listed: _Listed) -> list[Mistake]:
    """The causal mask, which cuts through the blocks on the diagonal."""
    blocks = listed.elements(listed.mask)
    row, key = listed.row, listed.key
    visited = blocks & (key // B_C <= row // ROWS)  # with tiles of 32 x 32
    warp_row = row // (ROWS // 4) * (ROWS // 4)
    zeros = listed.scores.masked_fill(key > row, 0.0).masked_fill(~visited, -math.inf)
    return [
        known("causal mask missing", listed.answer(blocks)),
        known("causal ignored inside diagonal blocks", listed.answer(visited)),
        known("diagonal left out", listed.answer(blocks & (key // B_C < row // ROWS))),
        known("mask counted within the tile", listed.answer(visited & (key % B_C <= row % ROWS))),
        of_scores("masked scores are 0", lambda: right.softmax(zeros) @ listed.values),
        of_strided("mask of the warp's first row", listed.answer(visited & (key <= warp_row))),
        *(
            one
            for seen in (visited, blocks)  # a loop that ends at the diagonal, and one that goes through all tiles
            for one in varied(
                HIDDEN,
                {"k_start": key - key % B_C, "lane": key % B_C, "q_start": listed.q_start, "row": row - listed.q_start},
                lambda after, seen=seen: listed.answer(seen & ~after["hidden"])(),
            )
        ),
    ]
