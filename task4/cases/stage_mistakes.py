"""Wrong answers that the stages of task 4's kernel are known to give; what a Mistake is: common/diagnosis/mistakes."""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import misread, varied
from common.diagnosis.mistakes.known import Mistake
from task4.cases.stage_sizes import B_C, B_R, K_STRIDE, KEYS, LANES, ROWS, D
from task4.cases.stage_steps import masked, softmax_step

# One step of the online softmax in base 2, O without the tile's own part, which another stage adds
STEP = """\
m_new = maximum(m, rowmax(s))
p = exp2(s - shift_of(m_new))
rescale = exp2(m - shift_of(m_new))
l = rescale * l + rowsum(p)
O = rescale * O
m = m_new
"""
RESULT = {"P": "p", "m": "m", "l": "l", "O": "O"}
MASK = "hidden = (key >= keys_left) | (key > row + diagonal)"
STORE = "total = rowsum(l)\nout = divided(O, total)"
OUTPUT = "O = O + P @ V"


def _lanes_side_by_side(x: Tensor, per_lane: int) -> Tensor:
    """The entry that a lane takes along the last axis if it has neighbours in place of lane, lane + 32, ..."""
    at = torch.arange(x.size(-1), device=x.device)
    return x[..., at % LANES * per_lane + at // LANES]


def _of_the_first_warp(x: Tensor) -> Tensor:
    """Every warp's rows are those of warp 0: first_row is left out."""
    return x[torch.arange(B_R, device=x.device) % ROWS]


def load_mistakes(source: Tensor, factor: float, tile_rows: int) -> list[Mistake]:
    """Wrong tiles [tile_rows, D] of source [rows, head_dim]."""
    rows, head_dim = source.shape

    def tile(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, D - x.size(1), 0, tile_rows - x.size(0)))

    found = []
    if factor != 1:
        found.append(
            Mistake(
                "factor ignored",
                f"The factor {factor} is not applied: load_tile multiplies what it loads.",
                lambda: tile(source),
            )
        )
    found.append(
        Mistake(
            "tile transposed",
            "The tile is transposed: row r of the source belongs in row r of the tile.",
            lambda: tile(source * factor).T.contiguous(),
        )
    )
    if head_dim < D:
        at = torch.arange(rows, device=source.device)[:, None] * D + torch.arange(head_dim, device=source.device)
        flat = torch.nn.functional.pad(source.flatten() * factor, (0, rows * D - source.numel()), value=math.nan)
        found.append(
            Mistake(
                "rows of D floats",
                f"The source is read as if its rows had T::D = {D} floats; they have head_dim = {head_dim}.",
                lambda: tile(flat[at]),
            )
        )
    return found


def scores_mistakes(q: Tensor, k: Tensor) -> list[Mistake]:
    """Wrong scores [B_R, B_C]."""
    s = q @ k.T

    row, key, d = (torch.arange(size, device=s.device) for size in (B_R, B_C, D))
    of_q = {"row": row[:, None], "d": d - d % 4, "D": D}  # a float4 at a time
    of_k = {"key": key[:, None], "d": d - d % 4, "K_STRIDE": K_STRIDE}
    padded = torch.nn.functional.pad(k, (0, K_STRIDE - D))

    def with_rows_of_d() -> Tensor:
        flat = torch.nn.functional.pad(k, (0, K_STRIDE - D)).flatten()
        return q @ flat[: B_C * D].view(B_C, D).T

    return [
        Mistake(
            "Q rows of the first warp",
            "Every warp computes the scores of warp 0's rows: its first row of Q is first_row, not 0.",
            lambda: _of_the_first_warp(s),
        ),
        Mistake(
            "neighbouring keys per lane",
            "A lane has taken neighbouring keys (lane * KEYS + c): its keys are lane, lane + 32, ...",
            lambda: _lanes_side_by_side(s, KEYS),
        ),
        Mistake(
            "first key of each lane only",
            "Every lane uses its first key for all of them: key c of a lane is lane + 32 * c.",
            lambda: s[:, torch.arange(B_C, device=s.device) % LANES],
        ),
        Mistake(
            "K read with rows of D floats",
            f"K is read as if its rows had T::D = {D} floats; in the K tile they have T::K_STRIDE = {K_STRIDE}.",
            with_rows_of_d,
        ),
        Mistake(
            "first four columns only",
            "Only the columns 0 to 3 are used in every step: the float4 must be taken at column d.",
            lambda: q[:, :4] @ k[:, :4].T * (D // 4),
        ),
        Mistake(
            "last four columns only",
            "Only the last four columns count (= for +=): add_dot takes the sum so far as its first argument.",
            lambda: q[:, -4:] @ k[:, -4:].T,
        ),
        *misread("q_tile", "row * D + d", q, of_q, lambda read: read @ k.T, d % 4),
        *misread("k_tile", "key * K_STRIDE + d", padded, of_k, lambda read: q @ read.T, d % 4),
    ]


def mask_mistakes(s: Tensor, keys_left: int, diagonal: int) -> list[Mistake]:
    """Wrong masked scores [B_R, B_C]."""
    row, key = torch.arange(B_R, device=s.device)[:, None], torch.arange(B_C, device=s.device)
    hidden = (key >= keys_left) | (key > row + diagonal)
    return [
        Mistake("nothing masked", "Nothing is masked: every key keeps its score.", lambda: masked(s, B_C, B_C)),
        Mistake(
            "diagonal ignored",
            "The keys behind the diagonal are seen: row may see a key when key <= row + diagonal.",
            lambda: masked(s, keys_left, B_C),
        ),
        Mistake(
            "keys_left ignored",
            f"The keys from keys_left = {keys_left} on do not exist and must be hidden, too.",
            lambda: masked(s, B_C, diagonal),
        ),
        Mistake(
            "diagonal hidden",
            "The diagonal is hidden, too: key = row + diagonal is seen.",
            lambda: masked(s, keys_left, diagonal - 1),
        ),
        Mistake(
            "one key ahead",
            "One key too many is seen: key = row + diagonal + 1 is hidden.",
            lambda: masked(s, keys_left, diagonal + 1),
        ),
        Mistake(
            "one key behind the end",
            "The key keys_left is seen: the keys that exist are 0 .. keys_left - 1.",
            lambda: masked(s, keys_left + 1, diagonal),
        ),
        Mistake(
            "masked scores are 0", "Hidden scores become 0: it must be -INFINITY.", lambda: s.masked_fill(hidden, 0)
        ),
        Mistake(
            "mask inverted",
            "The mask is turned round: what may be seen is hidden.",
            lambda: s.masked_fill(~hidden, -math.inf),
        ),
        Mistake(
            "row counted within the warp",
            "Every warp masks as warp 0 does: the row of s[r] is first_row + r.",
            lambda: s.masked_fill((key >= keys_left) | (key > row % ROWS + diagonal), -math.inf),
        ),
        Mistake(
            "every key is the lane's first",
            "All keys of a lane are masked as its first one: key c of a lane is lane + 32 * c.",
            lambda: s.masked_fill((key % LANES >= keys_left) | (key % LANES > row + diagonal), -math.inf),
        ),
        *varied(
            MASK,
            {"row": row, "key": key, "keys_left": keys_left, "diagonal": diagonal},
            lambda after: s.masked_fill(after["hidden"], -math.inf),
        ),
    ]


def softmax_mistakes(output: str, s: Tensor, m: Tensor, l: Tensor, o: Tensor) -> list[Mistake]:  # noqa: E741
    """Wrong values of one output ("P", "m", "l", "O") of a step of the online softmax."""
    p, m_new, _, o_new = softmax_step(s, m, l, o)
    shift = torch.where(m_new == -math.inf, 0.0, m_new)
    rescale = torch.exp2(m - shift)
    index = "PmlO".index(output)
    found = [
        Mistake(
            "no key yet",
            "A row that has seen no key has the maximum -infinity, and -inf - (-inf) is NaN: subtract 0 there.",
            lambda: softmax_step(s, m, l, o, guarded=False)[index],
        ),
        Mistake(
            "maximum of the tile",
            "The new maximum is the tile's alone: it is the larger one of the old maximum and the tile's.",
            lambda: softmax_step(s, m, l, o, new_maximum=lambda old, tile: tile)[index],
        ),
        Mistake(
            "expf for exp2f",
            "Powers of e, not of 2: the scores are multiplied by log2(e) already, so use exp2f.",
            lambda: softmax_step(s, m, l, o, exponential=torch.exp)[index],
        ),
    ]
    of_output = {
        "P": [
            (
                "maximum not subtracted",
                "The maximum is not subtracted: p is exp2f(s - maximum).",
                lambda: torch.exp2(s),
            ),
            ("scores stored", "The scores themselves are stored in p_tile: p is exp2f(s - maximum).", lambda: s),
        ],
        "m": [("maximum not kept", "The maximum stays what it was: state.m[r] takes the new one.", lambda: m)],
        "l": [
            ("l not rescaled", "l is not multiplied by exp2f(m - m_new) before p is added.", lambda: l + p.sum(-1)),
            ("l of this tile only", "The sum of the older tiles is lost: = for +=?", lambda: p.sum(-1)),
            ("p not added", "The tile's own p is not added to l.", lambda: l * rescale),
            ("l unchanged", "l is what it was before the tile.", lambda: l),
            (
                "factor upside down",
                "The factor is upside down: it is exp2f(m - m_new), at most 1.",
                lambda: l / rescale + p.sum(-1),
            ),
            (
                "first key of each lane only",
                "Only the lane's first key is added: a lane has KEYS keys.",
                lambda: l * rescale + p[:, :LANES].sum(-1),
            ),
            (
                "last key of each lane only",
                "l holds the p of the lane's last key and nothing else (= for +=).",
                lambda: p[:, -LANES:].sum(-1),
            ),
        ],
        "O": [
            ("O not rescaled", "O is not multiplied by exp2f(m - m_new).", lambda: o),
            (
                "factor upside down",
                "The factor is upside down: it is exp2f(m - m_new), at most 1.",
                lambda: o / rescale[:, None],
            ),
            (
                "O of the first columns only",
                "Only the lane's first column of O is rescaled: a lane has COLS of them.",
                lambda: torch.cat([o_new[:, :LANES], o[:, LANES:]], -1),
            ),
        ],
    }[output]
    shape = softmax_step(s, m, l, o)[index].shape
    values = {"s": s, "m": m[:, None], "l": l[:, None], "O": o}
    wrong = varied(STEP, values, lambda after: after[RESULT[output]].reshape(shape))
    return found + [Mistake(*one) for one in of_output] + wrong


def output_mistakes(p: Tensor, v: Tensor, o: Tensor) -> list[Mistake]:
    """Wrong O [B_R, D] after O += P V."""
    product = p @ v
    four = torch.arange(B_C, device=v.device).view(-1, 4)

    def with_rows(*rows: int) -> Tensor:
        """These rows of V in place of the rows j, j + 1, j + 2, j + 3 of every group of four."""
        return o + p @ v[four[:, list(rows)].flatten()]

    def taken_for(first: int, second: int) -> Tensor:
        return with_rows(*(second if row == first else row for row in range(4)))

    def exchanged(first: int, second: int) -> Tensor:
        return with_rows(*({first: second, second: first}.get(row, row) for row in range(4)))

    row, key, col = (torch.arange(size, device=p.device) for size in (B_R, B_C, D))
    of_p = {"row": row[:, None], "j": key - key % 4, "B_c": B_C}  # a float4 at a time
    of_v = {"j": (key - key % 4)[:, None], "col": col, "D": D}
    return [
        *misread("p_tile", "row * B_c + j", p, of_p, lambda read: o + read @ v, key % 4),
        *misread("v_tile", "j * D + col", v, of_v, lambda read: o + p @ read, (key % 4 * D)[:, None]),
        *varied(OUTPUT, {"P": p, "V": v, "O": o}, lambda after: after["O"]),
        Mistake("O overwritten", "What O held before the tile is lost.", lambda: product),
        Mistake(
            "last four keys only",
            "Only the last four keys count (= for +=): add_dot takes o[r][c] as its first argument.",
            lambda: p[:, -4:] @ v[-4:],
        ),
        Mistake("nothing added", "O is what it was before: nothing is added.", lambda: o),
        Mistake(
            "P rows of the first warp",
            "Every warp uses the rows of P of warp 0: its first row is first_row.",
            lambda: o + _of_the_first_warp(product),
        ),
        Mistake(
            "first column of each lane only",
            "Every lane uses its first column of V for all of them: column c of a lane is lane + 32 * c.",
            lambda: o + product[:, torch.arange(D, device=p.device) % LANES],
        ),
        Mistake(
            "neighbouring columns per lane",
            "A lane has taken neighbouring columns of V: its columns are lane, lane + 32, ...",
            lambda: o + _lanes_side_by_side(product, D // LANES),
        ),
        Mistake(
            "first four keys only",
            "Only the keys 0 to 3 are used in every step: P and V must be taken at key j.",
            lambda: o + p[:, :4] @ v[:4] * (B_C // 4),
        ),
        Mistake(
            "one row of V for four keys",
            "The same row of V serves four keys: they are j, j + 1, j + 2 and j + 3, T::D floats apart.",
            lambda: with_rows(0, 0, 0, 0),
        ),
        *(
            Mistake(
                "rows of V exchanged",
                f"The rows j + {first} and j + {second} of V are exchanged in the float4.",
                lambda first=first, second=second: exchanged(first, second),
            )
            for first in range(4)
            for second in range(first + 1, 4)
        ),
        *(
            Mistake(
                "a row of V twice",
                f"Row j + {second} of V stands in the float4 where row j + {first} belongs.",
                lambda first=first, second=second: taken_for(first, second),
            )
            for first in range(4)
            for second in range(4)
            if first != second
        ),
    ]


def store_mistakes(o: Tensor, l: Tensor, rows: int, head_dim: int) -> list[Mistake]:  # noqa: E741
    """Wrong outputs [rows, head_dim]; l [B_R, LANES]."""
    total = l.sum(-1, keepdim=True)
    lane = torch.arange(D, device=o.device) % LANES

    def part(x: Tensor) -> Tensor:
        return x[:rows, :head_dim]

    return [
        Mistake("not normalised", "O is written as it is: divide by l.", lambda: part(o)),
        Mistake(
            "l of one lane",
            "Each output is divided by one lane's part of l: the 32 parts must be added up (warp_sum) first.",
            lambda: part(torch.where(total == 0, 0.0, o / l[:, lane])),
        ),
        Mistake(
            "0 / 0",
            "A row that saw no key has l = 0 and gives NaN: it must give zeros.",
            lambda: part(o / total),
        ),
        Mistake("multiplied by l", "O is multiplied by l: divide by it.", lambda: part(o * total)),
        *varied(STORE, {"l": l, "O": o}, lambda after: part(after["out"])),
    ]
