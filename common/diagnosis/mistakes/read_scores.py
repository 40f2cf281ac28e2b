"""What the scores of attention tell that its weights were made of: scores_told(weights, scores, query, key).

The logarithm of a row's weights is the row's scores, up to a number that is the same for all keys of the row. Without
that number they can be compared with the right ones: which product along head_dim counts how often, and whether a row
has the scores of another.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_WEIGHT = 1e-7  # below it float32 tells little of the logarithm
SAME = 0.02  # of a score's difference
MOST_ROWS = 64
Told = tuple[str, str] | None


def scores_told(got: Tensor, scores: Tensor, query: Tensor, key: Tensor) -> Told:
    """(a name, what to tell the student), or None.

    Args:
        got: the weights that were read, [..., rows, keys]; NaN in rows that could not be read.
        scores: the right ones, scaled, -inf where hidden, the same shape.
        query, key: [..., rows, head_dim] and [..., keys, head_dim], the leading dimensions those of got.
    """
    if got.shape != scores.shape or query.shape[:-1] != got.shape[:-1] or key.size(-2) != got.size(-1):
        return None
    used = (got > LEAST_WEIGHT) & torch.isfinite(scores) & ~got.isnan().any(-1, keepdim=True)
    count = used.sum(-1, keepdim=True)
    if int((count >= 3).sum()) < 3:
        return None
    used &= count >= 3
    log = torch.where(used, got.clamp(min=1e-30).log(), 0.0)
    centred = _centred(log, used)
    if float((centred - _centred(torch.where(used, scores, 0.0), used)).abs().max()) < SAME:
        return None  # the scores are right
    return _rows_told(centred, used, scores) or _counts_told(centred, used, scores, query, key)


def _centred(x: Tensor, used: Tensor) -> Tensor:
    """x minus its mean over the used keys of the row; 0 elsewhere."""
    mean = torch.where(used, x, 0.0).sum(-1, keepdim=True) / used.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(used, x - mean, 0.0)


def _rows_told(centred: Tensor, used: Tensor, scores: Tensor) -> Told:
    """Whether wrong rows have the scores of other rows of the same head."""
    rows, keys = scores.shape[-2:]
    flat, used, right = (x.reshape(-1, rows, keys) for x in (centred, used, scores))
    pairs = []
    for head in range(min(flat.size(0), 4)):
        for row in range(min(rows, MOST_ROWS)):
            here = used[head, row]
            if int(here.sum()) < 4:
                continue
            finite = torch.isfinite(right[head]) | ~here
            others = _centred(torch.where(here & finite, right[head], 0.0), here.expand(rows, keys))
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
    return (
        "rows with the weights of others",
        f"Rows have the weights that belong to other rows: {shown}; and so on. Look at the index of the row where Q is "
        "read, and where weights are stored and read again: what is its offset?",
    )


def _counts_told(centred: Tensor, used: Tensor, scores: Tensor, query: Tensor, key: Tensor) -> Told:
    """How often each product along head_dim counts, if that is the same for all scores."""
    width = query.size(-1)
    if width < 2 or width > 128:
        return None
    places = used.nonzero()[: 40 * width + 200]
    index = tuple(places.T)
    products = query[index[:-1]] * key[(*index[:-2], index[-1])]  # [places, head_dim]
    rows = torch.unique(places[:, :-1], dim=0, return_inverse=True)[1]
    number = int(rows.max()) + 1
    if len(places) < width + number + 8:
        return None
    sizes = rows.bincount(minlength=number).to(products.dtype)

    def without_mean(x: Tensor) -> Tensor:
        total = x.new_zeros(number, *x.shape[1:]).index_add_(0, rows, x)
        return x - (total / sizes.view(-1, *[1] * (x.dim() - 1)))[rows]

    left, target = without_mean(products), without_mean(centred[index])
    scale = without_mean(scores[index])
    unit = float((left.sum(-1) * scale).sum() / (left.sum(-1) ** 2).sum())  # the scale, as the right scores have it
    found = torch.linalg.lstsq(left * unit, target[:, None]).solution.flatten()
    if float((left * unit @ found - target).abs().max()) > SAME * (1 + float(target.abs().max())):
        return None
    whole = found.round()
    if float((found - whole).abs().max()) > 0.05 or bool((whole == 1).all()):
        return None
    wrong = (whole != 1).nonzero().flatten().tolist()
    told = ", ".join(f"d = {d}: {int(whole[d])} times" for d in wrong[:3])
    ends = f", ..., d = {wrong[-1]}: {int(whole[wrong[-1]])} times" if len(wrong) > 3 else ""
    return (
        "products counted wrongly",
        f"Each score is a sum of the right products q[d] * k[d], but they do not count once each ({told}{ends}; "
        f"{len(wrong)} of {width} in all): look at the loop over head_dim, where it begins and ends, at its step, and "
        "whether products are added up (+=) or overwritten (=).",
    )
