"""Known wrong answers of block-sparse attention.

    lists(block_mask)                                                   counts and columns as one tensor
    list_mistakes(block_mask)                                           the lists of a block mask's true blocks
    block_mistakes(query, key, value, block_mask, block, causal, scale) attention to the listed blocks

Rows of the mask mixed up, blocks left out, the causal mask inside blocks. What a Mistake is, and
those of any attention: common/diagnosis/mistakes.
"""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import varied
from common.diagnosis.mistakes.known import Mistake, Words
from common.diagnosis.mistakes.scores import known as of_scores
from common.diagnosis.mistakes.tile_loop import Tiles
from common.reference import oracle as right
from task5.cases.strided_mistakes import B_C, of_a_mask
from task5.cases.strided_mistakes import known as of_strided
from task5.given.reference import block_sparse_mask, naive_compress_block_mask

HIDDEN = "key = k_start + lane\nquery = q_start + row\nhidden = key > query"
ROWS = 32  # rows of Q per block in block_sparse_kernel
LANES = 32
known = Words(__file__, B_C=B_C, LANES=LANES)


def lists(block_mask: Tensor) -> Tensor:
    """compress_block_mask's two outputs as one: [heads, q_blocks, 1 + k_blocks], the count before the columns."""
    counts, columns = naive_compress_block_mask(block_mask)
    return torch.cat([counts[..., None], columns], -1).double()


def list_mistakes(block_mask: Tensor) -> list[Mistake]:
    """Wrong lists, in the format of `lists`; block_mask [heads, q_blocks, k_blocks]."""
    mask = block_mask.bool()
    column = torch.arange(mask.size(-1), device=mask.device)
    found = [
        known("mask inverted", lambda: lists(~mask)),
        known("last column left out", lambda: lists(mask & (column < mask.size(-1) - 1))),
    ]
    if mask.size(-1) > LANES:
        found.append(known("only the first columns", lambda: lists(mask & (column < LANES))))
        found.append(known("counts not added up", lambda: _not_added_up(mask)))
    return found


def _not_added_up(mask: Tensor) -> Tensor:
    """Lists whose count covers only the last 32 columns, and which end after that many entries."""
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
    on, mask = Tiles(query, key, value, scale, ROWS, B_C), block_mask.bool()
    before = on.key <= on.row if causal else on.key >= 0

    def elements(mask: Tensor) -> Tensor:
        """[..., q_blocks, k_blocks] -> [..., S_q, S_k]."""
        return mask.repeat_interleave(block, -2).repeat_interleave(block, -1)

    found = [known(name, on.answer(elements(one) & before)) for name, one in _wrong_masks(mask, query.size(0))]
    if block != B_C:  # the tiles of B_c keys within a block
        inside, listed, told = on.key % block, elements(mask) & before, {"block": block, "tiles": block // B_C}
        # row r of block c is read from where it would be if blocks had B_C rows
        k, v = (x[..., on.key // block * B_C + inside, :] for x in (key, value))
        found += [
            known("only the first tile of a block", on.answer(listed & (inside < B_C)), **told),
            known("last tile of a block dropped", on.answer(listed & (inside < block - B_C))),
            known("blocks taken for tiles", lambda: right.attention(query, k, v, scale=scale, mask=listed), **told),
        ]
    found += _causal_mistakes(on, elements(mask)) if causal else []
    return found + of_a_mask(query, key, value, scale, block_sparse_mask(mask, block, causal))


def _wrong_masks(mask: Tensor, batch: int) -> list[tuple[str, Tensor]]:
    """(the mistake's name, the blocks attended to) for reading the wrong row of the mask, or wrong entries of it."""
    heads, q_blocks, k_blocks = mask.shape
    counts = mask.sum(-1, keepdim=True)
    place = mask.cumsum(-1)  # 1 for the first true block of a row, 2 for the second, ...
    found = [
        ("mask ignored", torch.ones_like(mask)),
        ("last block dropped", mask & (place < counts)),
        ("only the first block", mask & (place == 1)),
        ("n taken for the block", torch.arange(k_blocks, device=mask.device) < counts),
        ("first row of the mask", mask[:, :1].expand_as(mask)),
    ]
    if heads > 1:
        entries = torch.arange(batch, device=mask.device) % heads
        rows = torch.arange(q_blocks, device=mask.device) * heads + torch.arange(heads, device=mask.device)[:, None]
        found += [
            ("list of the wrong head", mask[:1].expand_as(mask)),
            ("list of the wrong head (head / heads)", mask[entries][:, None].expand(-1, heads, -1, -1)),
            ("row of the mask mixed up", mask.reshape(heads * q_blocks, k_blocks)[rows]),
        ]
    return found


def _causal_mistakes(on: Tiles, blocks: Tensor) -> list[Mistake]:
    """The causal mask, which cuts through the blocks on the diagonal; blocks: the listed ones, [..., S_q, S_k]."""
    row, key = on.row, on.key
    visited = blocks & (key // B_C <= row // ROWS)  # with tiles of 32 x 32
    warp_row = row // (ROWS // 4) * (ROWS // 4)
    zeros = on.scores.masked_fill(key > row, 0.0).masked_fill(~visited, -math.inf)
    places = {"k_start": key - key % B_C, "lane": key % B_C, "q_start": on.q_start, "row": row - on.q_start}
    found = [
        known("causal mask missing", on.answer(blocks)),
        known("causal ignored inside diagonal blocks", on.answer(visited)),
        known("diagonal left out", on.answer(blocks & (key // B_C < row // ROWS))),
        known("mask counted within the tile", on.answer(visited & (key % B_C <= row % ROWS))),
        of_scores("masked scores are 0", lambda: right.softmax(zeros) @ on.values),
        of_strided("mask of the warp's first row", on.answer(visited & (key <= warp_row))),
    ]
    for seen in (visited, blocks):  # a loop that ends at the diagonal, and one over all tiles
        found += varied(HIDDEN, places, lambda after, seen=seen: on.answer(seen & ~after["hidden"])())
    return found
