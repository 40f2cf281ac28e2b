"""Diagnosis from attention weights that were read off an output, compared row by row with the correct ones.

explain_weights(got, right)     which are missing, extra, or off by a factor
explain_scores(got, scores)     whether rows have the scores of other rows
explain_sums(got, scores)       whether the row sums (denominators) include extra keys with score 0

Each sentence holds for all rows that could be read; nothing is reported that does not.
"""

from __future__ import annotations

import re
from itertools import pairwise

import torch
from torch import Tensor

from common.diagnosis.locating import indices_of
from common.diagnosis.mistakes.known import Words

known = Words(__file__)

SAME = 2e-3  # relative
NOTHING = 1e-6  # a weight below this counts as 0
LEAST = 3  # rows or entries required for a conclusion
ENOUGH = 16  # equal ratios required to rule out chance
LIGHT = 1e-4  # a correct weight below this may legitimately become 0
MOST_TIMES = 8  # multiplicity of a key
HEAVY = 1e-3  # weights above this are compared individually
LEAST_WEIGHT = 1e-7  # below this, the logarithm is inaccurate in float32
SAME_SCORE = 0.02  # tolerance for score differences
MOST_ROWS = 64
SAME_SUM = 2e-5  # float32 tolerance for the sum of a row of weights
CLEAR = 0.05  # tolerance for a whole number of keys
LEAST_ROWS = 4  # rows whose sums include extra keys
Told = tuple[str, str] | None


def explain_weights(got: Tensor, right: Tensor | None, of: str = "key") -> Told:
    """(a name, what the report says), or None.

    Args:
        got: [..., rows, keys], the factor of each key's row of V; NaN in rows that could not be read.
        right: the correct weights, same shape; None if unknown.
        of: what the weights belong to: "key" of attention, "part" of a merge, "column" of a softmax.
    """
    if right is None or right.shape != got.shape:
        return None
    readable = ~got.isnan().any(-1)
    got, right = got[readable], right[readable]  # [rows, keys]
    wrong = (got - right).abs().amax(-1) > 1e-4 + max(SAME, _rounding(got)) * right.amax(-1)
    if int(wrong.sum()) < 1 or not bool(torch.isfinite(got).all()):
        return None
    got, right = got[wrong], right[wrong]
    for look in (_nothing, _uniform, _hidden_seen, _left_out, _one_factor, _counted, _power):
        if told := look(got, right):
            name, says = told
            return (name, says) if of == "key" else (name, _renamed(says, of))
    return None


def _rounding(got: Tensor) -> float:
    """Relative rounding error of the weights due to the output's dtype; bfloat16 is recognized by the weights' bits."""
    return torch.finfo(torch.bfloat16).eps if bool((got == got.bfloat16()).all()) else 0.0


def _renamed(says: str, of: str) -> str:
    """The sentence with "key" replaced by "part" or "column"."""
    for old, new in (
        ("of V that it meets", "that it meets"),
        ("V of key", "key"),
        ("nothing of V", "nothing"),
        ("Keys", f"{of.capitalize()}s"),
    ):
        says = says.replace(old, new)
    return re.sub(r"\bkey(s?)\b", rf"{of}\1", says)


def _keys(touched: Tensor) -> str:
    """ "0 to 31", "every 32nd from 3 on", or the first few; touched [keys] bool."""
    places, without_gap = indices_of(touched)
    first, last = places[0], places[-1]
    if without_gap:
        return f"key {first}" if first == last else f"keys {first} to {last}"
    steps = {b - a for a, b in pairwise(places)}
    if len(steps) == 1:
        return f"every {steps.pop()}th key from {first} to {last}"
    return f"{len(places)} keys ({', '.join(map(str, places[:4]))}, ...)"


def _nothing(got: Tensor, right: Tensor) -> Told:
    empty = got.abs().amax(-1) < NOTHING
    if bool(empty.all()):
        return known.says("no key counts")
    return None


def _uniform(got: Tensor, right: Tensor) -> Told:
    seen = right > 0
    spread = (got.amax(-1) - torch.where(seen, got, torch.inf).amin(-1)).abs()
    sums_to_one = (got.sum(-1) - 1).abs() < SAME
    if right.size(-1) >= 4 and bool((spread < SAME * got.amax(-1)).all()) and bool(sums_to_one.all()):
        return known.says("equal weights")
    return None


def _shares_right(got: Tensor, right: Tensor, among: Tensor) -> bool:
    """Whether, in every row, got is a multiple of right on the keys `among`, at least two of which carry weight."""
    one, other = torch.where(among, got, 0.0), torch.where(among, right, 0.0)
    total = other.sum(-1, keepdim=True)
    factor = one.sum(-1, keepdim=True) / total.clamp(min=1e-30)
    fits = ((one - other * factor).abs() <= 1e-4 + SAME * one.abs().amax(-1, keepdim=True)).all()
    return bool(fits) and bool(((other > HEAVY).sum(-1) >= 2).any()) and bool((factor > 0)[total > HEAVY].all())


def _hidden_seen(got: Tensor, right: Tensor) -> Told:
    extra = (got > HEAVY) & (right == 0)
    if not bool(extra.any()) or not _shares_right(got, right, right > 0):
        return None
    row = int(extra.any(-1).nonzero()[0])
    return known.says("hidden keys count", keys=_keys(extra[row]))


def _left_out(got: Tensor, right: Tensor) -> Told:
    least = NOTHING * got.abs().sum(-1, keepdim=True).clamp(max=1.0)  # a factor may shrink all of a row's weights
    missing = (got.abs() < least) & (right > LIGHT)
    if not bool((missing & (right > HEAVY)).any()) or not _shares_right(got, right, got.abs() >= least):
        return None
    columns = missing.any(0)
    if bool((columns & (got > HEAVY)).any()):  # not missing in all rows: report one row
        columns = missing[int(missing.any(-1).nonzero()[0])]
    return known.says("keys left out", keys=_keys(columns))


def _ratio(got: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """got / right where both are significant, and the mask of where they are."""
    used = (right > HEAVY) & (got > 0)
    return torch.where(used, got / right, 1.0), used


def _one_factor(got: Tensor, right: Tensor) -> Told:
    ratio, used = _ratio(got, right)
    if int(used.sum()) < LEAST or bool((((right > HEAVY) & ~used) | ((right == 0) & (got != 0))).any()):
        return None
    low = torch.where(used, ratio, torch.inf).amin(-1)
    high = torch.where(used, ratio, -torch.inf).amax(-1)
    many = used.sum(-1) >= 2
    if int(many.sum()) < 2 or not bool(((high - low)[many] < 5 * SAME * high[many]).all()):
        return None
    factors = low[many]
    if float((factors - factors[0]).abs().max()) < 5 * SAME * float(factors[0]):
        return known.says("all weights times one factor", factor=float(factors[0]), inverse=1 / float(factors[0]))
    row = int((got[many].sum(-1) - right[many].sum(-1)).abs().argmax())
    sums = float(got[many][row].sum())
    size = "smaller" if bool((factors > 1).all()) else "larger" if bool((factors < 1).all()) else "other"
    return known.says("rows not normalized", sums=sums, size=size)


def _counted(got: Tensor, right: Tensor) -> Told:
    """Keys that are counted several times: in every row, their weights are 2, 3, ... times those of other keys."""
    ratio, used = _ratio(got, right)
    if bool(((right > HEAVY) & ~used).any()):
        return None
    several = used.sum(-1) >= 2
    ratio, used = ratio[several], used[several]
    if not len(ratio):
        return None
    times = ratio / torch.where(used, ratio, torch.inf).amin(-1, keepdim=True)
    whole = times.round()
    fits = ((times - whole).abs() <= 5 * SAME * whole) & (whole <= MOST_TIMES)
    if not bool(fits[used].all()):
        return None
    count = torch.where(used, whole, 0.0).amax(0)
    alike = (whole == count) | ~used
    telling = (whole > 1) & used
    if not bool(alike.all()) or int(telling.sum()) < ENOUGH or int(telling.any(-1).sum()) < 2:
        return None
    most = int(count.max())
    return known.says(
        "keys count several times", times="twice" if most == 2 else f"up to {most} times", keys=_keys(count > 1)
    )


def _power(got: Tensor, right: Tensor) -> Told:
    """log got is a multiple of log right: the scores are off by a factor."""
    used = (right > 1e-5) & (got > 1e-5)
    if bool(((right > HEAVY) & (got <= 0)).any()):
        return None
    slopes = []
    for row in range(min(len(got), 64)):
        here = used[row]
        if int(here.sum()) < 4:
            continue
        x, y = right[row][here].log(), got[row][here].log()
        x, y = x - x.mean(), y - y.mean()
        if float((x * x).sum()) < 1e-3:
            continue
        slope = float((x * y).sum() / (x * x).sum())
        if float((y - slope * x).abs().max()) > 0.02 * (1 + float(y.abs().max())):
            return None
        slopes.append(slope)
    if (
        len(slopes) < 2
        or min(map(abs, slopes)) < 0.05
        or abs(slopes[0] - 1) < 0.05
        or max(slopes) - min(slopes) > 0.02 * (1 + abs(slopes[0]))
    ):
        return None
    if slopes[0] < 0:
        return known.says("sign of the exponent")
    return known.says("scores times a factor", factor=slopes[0])


# ---- the underlying scores: the logarithm of a row's weights, up to a constant per row


def explain_scores(got: Tensor, scores: Tensor) -> Told:
    """(a name, what the report says), or None.

    Args:
        got: the weights read off, [..., rows, keys]; NaN in rows that could not be read.
        scores: the correct scores, scaled, -inf where masked, same shape.
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
    if float((centered - _centered(torch.where(used, scores, 0.0), used)).abs().max()) < SAME_SCORE:
        return None  # the scores are correct
    return _explain_rows(centered, used, scores)


def explain_sums(got: Tensor, scores: Tensor) -> Told:
    """(a name, what the report says) if row sums include exp(0) a whole number of extra times."""
    used = torch.isfinite(scores) & ~got.isnan().any(-1, keepdim=True)
    if got.shape != scores.shape or bool(((got > LEAST_WEIGHT) & ~used).any()):
        return None
    total = torch.where(used, scores, -torch.inf).exp().sum(-1)
    times = total / got.sum(-1) - total  # the actual denominator of a row is total / got.sum(-1)
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
            if float(distance[row]) < SAME_SCORE:
                continue
            best = int(distance.argmin())
            if float(distance[best]) > SAME_SCORE:
                return None
            pairs.append((row, best))
    if len(pairs) < 3:
        return None
    shown = "; ".join(f"row {row} those of row {best}" for row, best in pairs[:3])
    return known.says("rows with the weights of others", shown=shown)
