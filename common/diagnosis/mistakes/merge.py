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
from common.diagnosis.mistakes.known import Inference, Mistake
from common.diagnosis.mistakes.softmax_formulas import merge_formulas
from common.diagnosis.mistakes.weights import explain_weights
from common.reference import oracle as right

LANES = 32
MOST_READ = 1 << 14  # elements of outs, for wrong indices


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
    too_large = (
        "The weights are exp(lse) without the maximum subtracted: exp(lse) overflows float32 from lse = 88.7 on, and "
        "inf / inf is NaN."
    )

    def first(count: int) -> Tensor:
        return merge_states(outs[:count], lse[:count])[0]

    def by_numbers() -> Tensor:
        return (single[..., None] * outs.float().masked_fill(empty[..., None], 0.0)).sum(0) / single.sum(0)[:, None]

    found = [
        Mistake(
            "plain average",
            "The outputs are averaged, each part with the same weight. A part counts by what its scores weigh: "
            "exp(lse - m) / l.",
            lambda: weighted(torch.full_like(lse, 1 / parts), outs, lse),
        ),
        Mistake(
            "plain sum",
            "The outputs are added up without weights: every part weighs 1. Either its weight is forgotten, or each "
            "lane made it with a maximum and a sum of its own part alone, which were never merged.",
            lambda: weighted(torch.ones_like(lse), outs, lse),
        ),
        Mistake(
            "weights not normalized",
            "The weights are exp(lse - m) and are not divided by their sum.",
            lambda: weighted(e, outs, lse),
        ),
        Mistake(
            "weights from the rounded lse",
            "The weights are exp(lse - merged_lse). merged_lse is rounded to float32, by up to 0.0005 at 10,000: the "
            "weights do not sum to 1. Use exp(lse - m) / l.",
            lambda: weighted(torch.exp(lse - rounded), outs, lse),
        ),
        Mistake("no max subtraction", too_large, lambda: by_numbers().to(outs.dtype)),
        Mistake(
            "no max subtraction",
            too_large,
            lambda: torch.where(single.sum(0)[:, None] == 0, 0.0, by_numbers()).to(outs.dtype),
        ),
        Mistake(
            "last part only",
            "The output is that of the last part: each part overwrites the one before.",
            lambda: weighted(torch.ones_like(lse[-1:]), outs[-1:], lse[-1:]),
        ),
        Mistake(
            "empty part read",
            "A part with lse = -inf is read: its output may be NaN (no thread wrote it), and 0 * NaN is NaN. Skip a "
            "part whose weight is 0.",
            lambda: (right.softmax(lse.T).T[..., None] * outs).sum(0),
        ),
        Mistake(
            "empty part is NaN",
            "Rows with an empty part give NaN: its lse is -inf, and -inf - (-inf) is NaN. Such a part contributes "
            "nothing.",
            lambda: torch.where(empty.any(0)[:, None], math.nan, merge_states(outs, lse)[0]),
        ),
        Mistake(
            "row without keys is NaN",
            "Rows whose parts are all empty give NaN: -inf - (-inf) is NaN, and so is 0 / 0. They must give zeros.",
            lambda: torch.where((m == -math.inf)[:, None], math.nan, merge_states(outs, lse)[0]),
        ),
    ]
    if parts > LANES:
        stops = f"each lane takes one part and stops. It must go on in steps of {LANES}."
        found += [
            Mistake(
                "first 32 parts only",
                f"Only the first {LANES} of {parts} parts count: {stops}",
                lambda: first(LANES),
            ),
            Mistake(
                "first 32 parts only",
                f"The sum that divides the weights holds only the first {LANES} of {parts} parts: {stops}",
                lambda: weighted(torch.exp(lse - torch.logsumexp(lse[:LANES], 0)), outs, lse),
            ),
        ]
    if parts > 1:
        found += [
            Mistake("first part only", "The output is that of the first part.", lambda: first(1)),
        ]
    if parts > 1 and rows > 1:
        found.append(
            Mistake(
                "lse read as [rows, parts]",
                "lse is read as if it lay in memory as [rows, parts]; it is [parts, rows]: lse[part * rows + row].",
                lambda: weighted(right.softmax(lse.reshape(rows, parts)).T, outs, lse),
            )
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
        Mistake(
            "empty part is NaN",
            "Rows with an empty part give NaN: its lse is -inf, and -inf - (-inf) is NaN. Such a part contributes "
            "nothing.",
            lambda: torch.where((lse == -math.inf).any(0), math.nan, m + torch.log(l)),
        ),
        Mistake("only the maximum", "The merged lse is the largest lse; it is m + log(l).", lambda: m),
        Mistake("maximum left out", "The merged lse is log(l) alone; it is m + log(l).", lambda: torch.log(l)),
        Mistake("plain sum", "The merged lse is the sum of the parts' lse; it is m + log(l).", lambda: lse.sum(0)),
        Mistake("logarithm left out", "The merged lse is m + l; it is m + log(l).", lambda: m + l),
        Mistake(
            "no max subtraction",
            "The merged lse is log(sum of exp(lse)): exp(lse) overflows float32 from lse = 88.7 on. It is m + log(l).",
            lambda: torch.log(torch.exp(lse.float()).sum(0)).to(lse.dtype),
        ),
        Mistake(
            "row without keys is NaN",
            "Rows whose parts are all empty give NaN; their lse is -inf.",
            lambda: torch.where(m == -math.inf, math.nan, m + torch.log(l)),
        ),
        Mistake(
            "row without keys is 0",
            "Rows whose parts are all empty give 0; their lse is -inf, the logarithm of 0.",
            lambda: torch.where(m == -math.inf, 0.0, m + torch.log(l)),
        ),
        *merge_formulas(torch.zeros_like(lse[..., None]), lse, "lse_new"),
        *misread(
            "lse",
            "part * rows + row",
            lse,
            {"part": torch.arange(lse.size(0))[:, None], "row": torch.arange(lse.size(1)), "rows": lse.size(1)},
            lambda read: torch.logsumexp(read, 0),
        ),
    ]
