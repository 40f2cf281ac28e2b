"""Known wrong answers of the stages of task 4's kernel; for Mistake see common/diagnosis/mistakes.

Most are derived from a stage's formulas and read indices, with one thing wrong.
"""

import math
from functools import partial
from itertools import permutations

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import computed, misread, varied
from common.diagnosis.mistakes.known import Mistake, Words
from task4.cases.stage_steps import B_C, B_R, K_STRIDE, KEYS, LANES, ROWS, D, masked

known = Words(__file__)

LOAD = "tile = source * factor"
MASK = """\
row = first_row + r
key = lane + 32 * c
hidden = (key >= keys_left) | (key > row + diagonal)
"""
# One step of the online softmax in base 2; O excludes the tile's own contribution, which another stage adds
STEP = """\
m_new = maximum(m, rowmax(s))
p = exp2(s - shift_of(m_new))
rescale = exp2(m - shift_of(m_new))
l = rescale * l + rowsum(p)
O = rescale * O
m = m_new
"""
RESCALE, INVERSE = "exp2(m - shift_of(m_new))", "exp2(shift_of(m_new) - m)"
MAXIMUM = "m = maximum(m, rowmax(s))"  # the stored m only; with a wrong m_new, P would be wrong, too
RESULT = {"P": "p", "m": "m", "l": "l", "O": "O"}
OUTPUT = "O = O + P @ V"
STORE = "total = rowsum(l)\nout = divided(O, total)"


def _rows(device: torch.device) -> dict[str, Tensor]:
    """The values of first_row and r for each row of a tile, [B_R, 1]."""
    row = torch.arange(B_R, device=device)[:, None]
    return {"first_row": row - row % ROWS, "r": row % ROWS}


def _columns(size: int, device: torch.device) -> dict[str, Tensor]:
    """The values of lane and c for each column of a tile: column lane + 32 * c."""
    column = torch.arange(size, device=device)
    return {"lane": column % LANES, "c": column // LANES}


def load_mistakes(source: Tensor, factor: float, tile_rows: int) -> list[Mistake]:
    """Wrong tiles [tile_rows, D] of source [rows, head_dim]."""
    rows, head_dim = source.shape

    def tile(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, D - x.size(1), 0, tile_rows - x.size(0)))

    found = varied(LOAD, {"source": source, "factor": factor}, lambda after: tile(after["tile"] + 0 * source))
    if head_dim < D:
        at = torch.arange(rows, device=source.device)[:, None] * D + torch.arange(head_dim, device=source.device)
        flat = torch.nn.functional.pad(source.flatten() * factor, (0, rows * D - source.numel()), value=math.nan)
        found.append(known("rows of D floats", lambda: tile(flat[at]), D=D, head_dim=head_dim))
    return found


def scores_mistakes(q: Tensor, k: Tensor) -> list[Mistake]:
    """Wrong scores [B_R, B_C]."""
    s = q @ k.T
    d = torch.arange(D, device=s.device)
    at_once = {"d": d - d % 4, "D": D}  # a float4 at a time
    key = {name: x[:, None] for name, x in _columns(B_C, s.device).items()}
    padded = torch.nn.functional.pad(k, (0, K_STRIDE - D))
    index = "(lane + 32 * c) * K_STRIDE + d"
    neighbor = torch.arange(B_C, device=s.device)
    return [
        known("neighboring keys per lane", lambda: s[:, neighbor % LANES * KEYS + neighbor // LANES]),
        known("last four columns only", lambda: q[:, -4:] @ k[:, -4:].T),
        *misread("q_tile", "(first_row + r) * D + d", q, _rows(s.device) | at_once, lambda read: read @ k.T, d % 4),
        *misread("k_tile", index, padded, key | at_once | {"K_STRIDE": K_STRIDE}, lambda read: q @ read.T, d % 4),
    ]


def mask_mistakes(s: Tensor, keys_left: int, diagonal: int) -> list[Mistake]:
    """Wrong masked scores [B_R, B_C]."""
    sizes = {"keys_left": keys_left, "diagonal": diagonal, "per_lane": KEYS}
    places = _rows(s.device) | _columns(B_C, s.device) | sizes
    return [
        known("nothing masked", lambda: s),
        known("masked scores are 0", lambda: masked(s, keys_left, diagonal, 0.0)),
        *varied(MASK, places, lambda after: s.masked_fill(after["hidden"], -math.inf)),
    ]


def softmax_mistakes(output: str, s: Tensor, m: Tensor, l: Tensor, o: Tensor) -> list[Mistake]:  # noqa: E741
    """Wrong values of one output ("P", "m", "l", "O") of a step of the online softmax."""
    shape = {"P": s, "m": m, "l": l, "O": o}[output].shape
    values = {"s": s, "m": m[:, None], "l": l[:, None], "O": o}

    def of(after: dict) -> Tensor:
        return after[RESULT[output]].reshape(shape)

    no_key_yet, upside_down = STEP.replace("shift_of(m_new)", "m_new"), STEP.replace(RESCALE, INVERSE)
    found = [known("no key yet", lambda: of(computed(no_key_yet, values)))]
    if output in "lO":
        found.append(known("factor upside down", lambda: of(computed(upside_down, values))))
    if output == "l":
        found.append(known("last key of each lane only", lambda: computed(STEP, values)["p"][:, -LANES:].sum(-1)))
    return found + varied(MAXIMUM if output == "m" else STEP, values, of)


def output_mistakes(p: Tensor, v: Tensor, o: Tensor) -> list[Mistake]:
    """Wrong O [B_R, D] after O += P V."""
    key = torch.arange(B_C, device=p.device)
    four = {"j": key - key % 4}  # a float4 at a time
    of_p = _rows(p.device) | four | {"B_c": B_C}
    of_v = {"j": four["j"][:, None], "D": D} | _columns(D, p.device)

    def with_row(first: int, second: int) -> Tensor:
        """Row j + second of V in place of row j + first, in every group of four."""
        return o + p @ v[torch.where(key % 4 == first, key + second - first, key)]

    return [
        *misread("p_tile", "(first_row + r) * B_c + j", p, of_p, lambda read: o + read @ v, key % 4),
        *misread("v_tile", "j * D + lane + 32 * c", v, of_v, lambda read: o + p @ read, (key % 4 * D)[:, None]),
        *varied(OUTPUT, {"P": p, "V": v, "O": o}, lambda after: after["O"]),
        known("last four keys only", lambda: p[:, -4:] @ v[-4:]),
        *(
            known("a row of V twice", partial(with_row, first, second), second=second, first=first)
            for first, second in permutations(range(4), 2)
        ),
    ]


def store_mistakes(o: Tensor, l: Tensor, rows: int, head_dim: int) -> list[Mistake]:  # noqa: E741
    """Wrong outputs [rows, head_dim]; l [B_R, LANES]."""
    total = l.sum(-1, keepdim=True)
    lane = torch.arange(D, device=o.device) % LANES

    def part(x: Tensor) -> Tensor:
        return x[:rows, :head_dim]

    return [
        known("not normalized", lambda: part(o)),
        known("l of one lane", lambda: part(torch.where(total == 0, 0.0, o / l[:, lane]))),
        known("0 / 0", lambda: part(o / total)),
        *varied(STORE, {"l": l, "O": o}, lambda after: part(after["out"])),
    ]
