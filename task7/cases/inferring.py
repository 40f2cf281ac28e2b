"""What a wrong layernorm tells that equals no known wrong answer: which moments it was made with.

Where the inputs are known a row is a straight line over x + residual: its slope is 1 / standard deviation, its zero the
mean.
"""

from __future__ import annotations

from torch import Tensor

from common.diagnosis.mistakes.known import Words

known = Words(__file__)

SAME = 2e-3  # relative
LEAST = 4  # columns
Told = tuple[str, str] | None


def layernorm_told(out: Tensor, total: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Told:
    """(a name, what to tell), or None. out [2, rows, width], the normalized rows and the sums; total [rows, width],
    x + residual; weight, bias [width]; all float64."""
    out, sums = out
    if bool(((sums - total).abs() > 1e-5 + 1e-5 * total.abs()).any()):
        return None
    # each row is a straight line over total, once bias and weight are taken off
    width = total.size(-1)
    used = weight.abs() > 1e-3
    if int(used.sum()) < LEAST:
        return None
    line = ((out - bias) / weight)[:, used]
    its = total[:, used]
    spread = its - its.mean(-1, keepdim=True)
    slope = (spread * line).sum(-1) / (spread**2).sum(-1).clamp(min=1e-30)
    offset = line.mean(-1) - slope * its.mean(-1)
    error = (slope[:, None] * its + offset[:, None] - line).abs().amax(-1)
    fits = error <= SAME * (line.abs().amax(-1) + 1e-6)
    fits &= spread.abs().amax(-1) > 1e-3
    if not bool(fits.all()) or not bool((slope != 0).all()):
        return None
    mean, variance = total.mean(-1), total.var(-1, unbiased=False)
    got_mean, got_variance = -offset / slope, slope**-2 - eps
    size = total.abs().amax(-1)
    mean_wrong = (got_mean - mean).abs() > SAME * size
    variance_wrong = (got_variance - variance).abs() > 2 * SAME * (variance + eps)
    if not bool(mean_wrong.any() or variance_wrong.any()):
        return None
    row = int((mean_wrong | variance_wrong).nonzero()[0])
    if bool(mean_wrong.any()):
        relation = _relation(got_mean, mean, width, "sum")
        return known.says("wrong mean", row=row, got=float(got_mean[row]), right=float(mean[row]), relation=relation)
    relation = _relation(got_variance, variance, width, "sum of squares")
    return known.says(
        "wrong variance", row=row, got=float(got_variance[row]), right=float(variance[row]), relation=relation
    )


def _relation(got: Tensor, right: Tensor, width: int, what: str) -> str:
    """How the wrong number is made from the right one, if all rows agree."""
    more = (got - right) * width
    if float((more - more[0]).abs().max()) < 10 * SAME * (float(more[0].abs()) + 1e-3) and float(more[0].abs()) > 0.05:
        return f" In every row the {what} is too large by {float(more.mean()):.3g}." if float(more[0]) > 0 else ""
    ratio = got / right
    if float((ratio - ratio[0]).abs().max()) < SAME * float(ratio[0].abs()) and len(ratio) > 1:
        is_width = " (the width)" if abs(float(ratio[0]) - width) < 0.01 * width else ""
        return f" In every row it is {float(ratio[0]):.4g} times the right one{is_width}."
    return ""
