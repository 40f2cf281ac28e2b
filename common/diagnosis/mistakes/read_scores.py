"""What the scores say that the weights of attention were made of: explain_scores(weights, scores), explain_sums(...).

The logarithm of a row's weights is the row's scores, up to a number that is the same for all keys of the row. Without
that number they can be compared with the right ones: whether a row has the scores of another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from common.diagnosis.mistakes.known import Words

known = Words(__file__)

LEAST_WEIGHT = 1e-7  # below it float32 tells little of the logarithm
SAME = 0.02  # of a score's difference
MOST_ROWS = 64
SAME_SUM = 2e-5  # of a row of weights: how far float32 may be away
CLEAR = 0.05  # how far from a whole number of keys
LEAST_ROWS = 4  # whose sums hold keys too many
Told = tuple[str, str] | None


def explain_scores(got: Tensor, scores: Tensor) -> Told:
    """(a name, what the report says), or None.

    Args:
        got: the weights that were read, [..., rows, keys]; NaN in rows that could not be read.
        scores: the right ones, scaled, -inf where hidden, the same shape.
    """
    if got.shape != scores.shape:
        return None
    used = (got > LEAST_WEIGHT) & torch.isfinite(scores) & ~got.isnan().any(-1, keepdim=True)
    count = used.sum(-1, keepdim=True)
    if int((count >= 3).sum()) < 3:
        return None
    used &= count >= 3
    log = torch.where(used, got.clamp(min=1e-30).log(), 0.0)
    centered = _centered(log, used)
    if float((centered - _centered(torch.where(used, scores, 0.0), used)).abs().max()) < SAME:
        return None  # the scores are right
    return _explain_rows(centered, used, scores)


def explain_sums(got: Tensor, scores: Tensor) -> Told:
    """(a name, what the report says) where rows are divided by a sum that holds exp(0) some whole times too often."""
    used = torch.isfinite(scores) & ~got.isnan().any(-1, keepdim=True)
    if got.shape != scores.shape or bool(((got > LEAST_WEIGHT) & ~used).any()):
        return None
    total = torch.where(used, scores, -torch.inf).exp().sum(-1)
    times = total / got.sum(-1) - total  # the sum of the exponentials that divides a row is total / got.sum(-1)
    exact = used.any(-1) & (total * SAME_SUM < CLEAR) & (got.sum(-1) > LEAST_WEIGHT)
    shares = torch.where(used, scores, -torch.inf).softmax(-1) * got.sum(-1, keepdim=True)
    if not bool(((got - shares).abs() <= SAME_SUM)[exact].all()):
        return None
    times = times[exact]
    whole = times.round()
    if bool(((times - whole).abs() > CLEAR).any()) or bool((whole < 0).any()) or int((whole > 0).sum()) < LEAST_ROWS:
        return None
    return known.says("keys with score 0", count=int(whole[whole > 0][0]))


def _centered(x: Tensor, used: Tensor) -> Tensor:
    """x minus its mean over the used keys of the row; 0 elsewhere."""
    mean = torch.where(used, x, 0.0).sum(-1, keepdim=True) / used.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(used, x - mean, 0.0)


def _explain_rows(centered: Tensor, used: Tensor, scores: Tensor) -> Told:
    """Whether wrong rows have the scores of other rows of the same head."""
    rows, keys = scores.shape[-2:]
    flat, used, right = (x.reshape(-1, rows, keys) for x in (centered, used, scores))
    pairs = []
    for head in range(min(flat.size(0), 4)):
        for row in range(min(rows, MOST_ROWS)):
            here = used[head, row]
            if int(here.sum()) < 4:
                continue
            finite = torch.isfinite(right[head]) | ~here
            others = _centered(torch.where(here & finite, right[head], 0.0), here.expand(rows, keys))
            distance = (others - flat[head, row]).abs().amax(-1).masked_fill(~finite.all(-1), torch.inf)
            if float(distance[row]) < SAME:
                continue
            best = int(distance.argmin())
            if float(distance[best]) > SAME:
                return None
            pairs.append((row, best))
    if len(pairs) < 3:
        return None
    shown = "; ".join(f"row {row} those of row {best}" for row, best in pairs[:3])
    return known.says("rows with the weights of others", shown=shown)
