"""Wrong answers of merge_states(outs, lse) -> (out, lse), which merges partial results of attention.

    merge_mistakes(outs, lse)       wrong out [rows, head_dim]; outs [parts, rows, head_dim], lse [parts, rows]
    merged_lse_mistakes(lse)        wrong lse [rows]

The correct answer is the sum of the parts' outputs weighted by the softmax over their lse. A part with lse -inf has
seen no key, and its output may contain anything.
"""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import divided, misread, shift_of, varied
from common.diagnosis.mistakes.known import Mistake, Words
from common.reference import oracle as right

MERGE = """\
m = partmax(lse)
weight = exp(lse - shift_of(m))
l = partsum(weight)
out = partsum(divided(weight, l) * outs)
lse_new = m + log(l)
"""
LANES = 32
MOST_READ = 1 << 14  # elements of outs, for trying wrong indices
INDEX = "part * rows + row"  # index into lse

known = Words(__file__, LANES=LANES)


def merge_states(outs: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The correct answer, (out, lse), in the precision of the inputs."""
    return weighted(right.softmax(lse.T).T, outs, lse), torch.logsumexp(lse, 0)


def weighted(weights: Tensor, outs: Tensor, lse: Tensor) -> Tensor:
    """The sum over parts of weight * output; empty parts are not read. weights [parts, rows]."""
    return (weights[..., None] * outs.masked_fill((lse == -math.inf)[..., None], 0.0)).sum(0)


def _formulas(outs: Tensor, lse: Tensor, result: str = "out") -> list[Mistake]:
    """Wrong out [rows, head_dim] or lse_new [rows] from one wrong line of MERGE."""
    outs = outs.masked_fill((lse == -math.inf)[..., None], 0.0)

    def of(after: dict) -> Tensor:
        return after[result].squeeze(-1) if result == "lse_new" else torch.broadcast_to(after["out"], outs.shape[1:])

    return varied(MERGE, {"outs": outs, "lse": lse[..., None]}, of)


def merge_mistakes(outs: Tensor, lse: Tensor) -> list[Mistake]:
    """Wrong out; see the module docstring."""
    parts, rows, _ = outs.shape
    empty, m = lse == -math.inf, lse.amax(0)
    no_keys = (m == -math.inf)[:, None]
    e, weights = torch.exp(lse - shift_of(m)), right.softmax(lse.T).T
    single = torch.exp(lse.float())
    rounded = (m.float() + e.sum(0).float().log()).to(lse.dtype)

    def by(weights: Tensor) -> Tensor:
        return weighted(weights, outs, lse)

    def first(count: int) -> Tensor:
        return merge_states(outs[:count], lse[:count])[0]

    def by_numbers() -> tuple[Tensor, Tensor]:
        return weighted(single, outs.float(), lse), single.sum(0)[:, None]

    found = [
        known("plain average", lambda: by(torch.full_like(lse, 1 / parts))),
        known("plain sum", lambda: by(torch.ones_like(lse))),
        known("weight of lane 0", lambda: by(weights[torch.arange(parts, device=lse.device) // LANES * LANES])),
        known("weights not normalized", lambda: by(e)),
        known("weights from the rounded lse", lambda: by(torch.exp(lse - rounded))),
        known("no max subtraction (in the weights)", lambda: torch.div(*by_numbers()).to(outs.dtype)),
        known("no max subtraction (in the weights)", lambda: divided(*by_numbers()).to(outs.dtype)),
        known("last part only", lambda: weighted(torch.ones_like(lse[-1:]), outs[-1:], lse[-1:])),
        known("empty part read", lambda: (weights[..., None] * outs).sum(0)),
        known("empty part is NaN", lambda: torch.where(empty.any(0)[:, None], math.nan, by(weights))),
        known("row without keys is NaN", lambda: torch.where(no_keys, math.nan, by(weights))),
    ]
    if parts > LANES:
        of_lanes = torch.exp(lse - torch.logsumexp(lse[:LANES], 0))
        found.append(known("first 32 parts only", lambda: first(LANES), parts=parts))
        found.append(known("first 32 parts only (in the sum)", lambda: by(of_lanes), parts=parts))
    if parts > 1:
        found.append(known("first part only", lambda: first(1)))
    if parts > 1 and rows > 1:
        found.append(known("lse read as [rows, parts]", lambda: by(right.softmax(lse.reshape(rows, parts)).T)))
    return found + _formulas(outs, lse) + _misread(outs, lse)


def _misread(outs: Tensor, lse: Tensor) -> list[Mistake]:
    """Wrong out from lse or outs read at a wrong index."""
    _, rows, head_dim = outs.shape
    if outs.numel() > MOST_READ:
        return []
    part, row, col = (torch.arange(size, device=outs.device) for size in outs.shape)
    places = {"part": part[:, None], "row": row, "rows": rows}
    of_outs = {"part": part[:, None, None], "row": row[:, None], "col": col, "rows": rows, "head_dim": head_dim}
    weights_of = (  # misread values used everywhere, only in the sum, and everywhere but in the sum
        lambda read: right.softmax(read.T).T,
        lambda read: torch.exp(lse - torch.logsumexp(read, 0)),
        lambda read: torch.exp(read - torch.logsumexp(lse, 0)),
    )
    found = [misread("lse", INDEX, lse, places, lambda read, of=of: weighted(of(read), outs, lse)) for of in weights_of]
    of_read = misread(
        "outs",
        f"({INDEX}) * head_dim + col",
        outs,
        of_outs,
        lambda read: weighted(right.softmax(lse.T).T, read, lse),
    )
    return [one for several in [*found, of_read] for one in several]


def merged_lse_mistakes(lse: Tensor) -> list[Mistake]:
    """Wrong lse; see the module docstring."""
    m = lse.amax(0)
    l = torch.exp(lse - shift_of(m)).sum(0)  # noqa: E741
    merged, no_keys = m + torch.log(l), m == -math.inf
    places = {"part": torch.arange(lse.size(0))[:, None], "row": torch.arange(lse.size(1)), "rows": lse.size(1)}
    return [
        known("empty part is NaN", lambda: torch.where((lse == -math.inf).any(0), math.nan, merged)),
        known("only the maximum", lambda: m),
        known("maximum left out", lambda: torch.log(l)),
        known("plain sum (of the lse)", lambda: lse.sum(0)),
        known("logarithm left out", lambda: m + l),
        known("no max subtraction", lambda: torch.log(torch.exp(lse.float()).sum(0)).to(lse.dtype)),
        known("row without keys is NaN (the lse)", lambda: torch.where(no_keys, math.nan, merged)),
        known("row without keys is 0", lambda: torch.where(no_keys, 0.0, merged)),
        *_formulas(torch.zeros_like(lse[..., None]), lse, "lse_new"),
        *misread("lse", INDEX, lse, places, lambda read: torch.logsumexp(read, 0)),
    ]
