"""Wrong answers of merge_states(outs, lse) -> (out, lse): partial results of attention put together.

    merge_mistakes(outs, lse)       wrong out [rows, head_dim]; outs [parts, rows, head_dim], lse [parts, rows]
    merged_lse_mistakes(lse)        wrong lse [rows]

The right answer is a softmax over the parts' lse, and with these weights the sum of their outputs. A part whose lse is
-inf has seen no key, and its output may hold anything. See common.diagnosis.mistakes.known for what a Mistake is.
"""

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import misread
from common.diagnosis.mistakes.known import Inference, Mistake, Words
from common.diagnosis.mistakes.softmax_formulas import merge_formulas
from common.diagnosis.mistakes.weights import explain_weights
from common.reference import oracle as right

LANES = 32
MOST_READ = 1 << 14  # elements of outs, for wrong indices

known = Words(__file__, LANES=LANES)


def merge_states(outs: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The right answer, (out, lse), in the precision of the inputs."""
    return weighted(right.softmax(lse.T).T, outs, lse), torch.logsumexp(lse, 0)


def weighted(weights: Tensor, outs: Tensor, lse: Tensor) -> Tensor:
    """The sum over the parts of weight * output; empty parts are not read. weights [parts, rows]."""
    return (weights[..., None] * outs.masked_fill((lse == -math.inf)[..., None], 0.0)).sum(0)


def merge_mistakes(outs: Tensor, lse: Tensor) -> list[Mistake]:
    """Wrong out; see the head of the file."""
    parts, rows, _ = outs.shape
    empty = lse == -math.inf
    m = lse.amax(0)
    e = torch.exp(lse - torch.where(m == -math.inf, 0.0, m))
    single = torch.exp(lse.float())
    rounded = (m.float() + e.sum(0).float().log()).to(lse.dtype)

    def first(count: int) -> Tensor:
        return merge_states(outs[:count], lse[:count])[0]

    def by_numbers() -> Tensor:
        return (single[..., None] * outs.float().masked_fill(empty[..., None], 0.0)).sum(0) / single.sum(0)[:, None]

    found = [
        known("plain average", lambda: weighted(torch.full_like(lse, 1 / parts), outs, lse)),
        known("plain sum", lambda: weighted(torch.ones_like(lse), outs, lse)),
        known(
            "weight of lane 0",
            lambda: weighted(
                right.softmax(lse.T).T[torch.arange(parts, device=lse.device) // LANES * LANES], outs, lse
            ),
        ),
        known("weights not normalized", lambda: weighted(e, outs, lse)),
        known("weights from the rounded lse", lambda: weighted(torch.exp(lse - rounded), outs, lse)),
        known("no max subtraction (in the weights)", lambda: by_numbers().to(outs.dtype)),
        known(
            "no max subtraction (in the weights)",
            lambda: torch.where(single.sum(0)[:, None] == 0, 0.0, by_numbers()).to(outs.dtype),
        ),
        known("last part only", lambda: weighted(torch.ones_like(lse[-1:]), outs[-1:], lse[-1:])),
        known("empty part read", lambda: (right.softmax(lse.T).T[..., None] * outs).sum(0)),
        known("empty part is NaN", lambda: torch.where(empty.any(0)[:, None], math.nan, merge_states(outs, lse)[0])),
        known(
            "row without keys is NaN",
            lambda: torch.where((m == -math.inf)[:, None], math.nan, merge_states(outs, lse)[0]),
        ),
    ]
    if parts > LANES:
        found += [
            known("first 32 parts only", lambda: first(LANES), parts=parts),
            known(
                "first 32 parts only (in the sum)",
                lambda: weighted(torch.exp(lse - torch.logsumexp(lse[:LANES], 0)), outs, lse),
                parts=parts,
            ),
        ]
    if parts > 1:
        found.append(known("first part only", lambda: first(1)))
    if parts > 1 and rows > 1:
        found.append(
            known("lse read as [rows, parts]", lambda: weighted(right.softmax(lse.reshape(rows, parts)).T, outs, lse))
        )
    found += merge_formulas(outs, lse) + _misread(outs, lse)
    return [*found, Inference(lambda out, bound: _read_weights(out, outs, lse))]


def _misread(outs: Tensor, lse: Tensor) -> list[Mistake]:
    """Wrong out, where lse or outs are read at a wrong index."""
    _, rows, head_dim = outs.shape
    if outs.numel() > MOST_READ:
        return []
    part, row, col = (torch.arange(size, device=outs.device) for size in outs.shape)
    places = {"part": part[:, None], "row": row, "rows": rows}
    of_outs = {"part": part[:, None, None], "row": row[:, None], "col": col, "rows": rows, "head_dim": head_dim}
    index = "part * rows + row"

    def sum_of(read: Tensor) -> Tensor:
        """The sum alone is made of what was read."""
        return weighted(torch.exp(lse - torch.logsumexp(read, 0)), outs, lse)

    return [
        *misread("lse", index, lse, places, lambda read: weighted(right.softmax(read.T).T, outs, lse)),
        *misread("lse", index, lse, places, sum_of),
        *misread(
            "lse", index, lse, places, lambda read: weighted(torch.exp(read - torch.logsumexp(lse, 0)), outs, lse)
        ),
        *misread(
            "outs",
            f"({index}) * head_dim + col",
            outs,
            of_outs,
            lambda read: weighted(right.softmax(lse.T).T, read, lse),
        ),
    ]


def _read_weights(out: Tensor, outs: Tensor, lse: Tensor) -> tuple[str, str] | None:
    """What the weights of the parts say. They are read off each row, which is the sum of weight * part."""
    parts, _, head_dim = outs.shape
    if parts >= head_dim or not bool(torch.isfinite(outs).all()) or not bool(torch.isfinite(out).all()):
        return None
    rows = outs.permute(1, 2, 0)  # [rows, head_dim, parts]
    read = torch.linalg.lstsq(rows, out[..., None]).solution
    explained = (rows @ read - out[..., None]).abs().amax((1, 2)) <= 1e-4 * (1 + out.abs().amax(1))
    weights = torch.where(explained[:, None], read[..., 0], torch.nan)
    return explain_weights(weights, right.softmax(lse.T), "part") if bool(explained.any()) else None


def merged_lse_mistakes(lse: Tensor) -> list[Mistake]:
    """Wrong lse; see the head of the file."""
    m = lse.amax(0)
    l = torch.exp(lse - torch.where(m == -math.inf, 0.0, m)).sum(0)  # noqa: E741
    return [
        known("empty part is NaN", lambda: torch.where((lse == -math.inf).any(0), math.nan, m + torch.log(l))),
        known("only the maximum", lambda: m),
        known("maximum left out", lambda: torch.log(l)),
        known("plain sum (of the lse)", lambda: lse.sum(0)),
        known("logarithm left out", lambda: m + l),
        known("no max subtraction", lambda: torch.log(torch.exp(lse.float()).sum(0)).to(lse.dtype)),
        known("row without keys is NaN (the lse)", lambda: torch.where(m == -math.inf, math.nan, m + torch.log(l))),
        known("row without keys is 0", lambda: torch.where(m == -math.inf, 0.0, m + torch.log(l))),
        *merge_formulas(torch.zeros_like(lse[..., None]), lse, "lse_new"),
        *misread(
            "lse",
            "part * rows + row",
            lse,
            {"part": torch.arange(lse.size(0))[:, None], "row": torch.arange(lse.size(1)), "rows": lse.size(1)},
            lambda read: torch.logsumexp(read, 0),
        ),
    ]
