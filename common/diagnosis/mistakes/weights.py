"""What the weights of attention tell that were read off its output: weights_told(got, right).

They are compared with the right ones row by row. Each sentence says what is so in the rows that could be read; what
cannot be said of all of them is not said.
"""

from __future__ import annotations

import re
from itertools import pairwise

import torch
from torch import Tensor

SAME = 2e-3  # relative
NOTHING = 1e-6  # a weight below this is none
LEAST = 3  # rows, or entries, that a conclusion needs
ENOUGH = 16  # ratios that are equal, so that they are not by chance
LIGHT = 1e-4  # a right weight below this may well come out as 0
MOST_TIMES = 8  # that a key counts
HEAVY = 1e-3  # weights that are compared one by one


def weights_told(
    got: Tensor, right: Tensor | None, of: str = "key", scores: Tensor | None = None
) -> tuple[str, str] | None:
    """(a name, what to tell the student), or None.

    Args:
        got: [..., rows, keys], what each key's row of V was multiplied by; NaN in rows that could not be read.
        right: the right weights, the same shape; None if they are not known.
        of: what has a weight: "key" of attention, "part" of a merge, "column" of a softmax.
        scores: what the right weights are the softmax of; None if that is not known.
    """
    if right is None or right.shape != got.shape:
        return None
    readable = ~got.isnan().any(-1)
    got, right = got[readable], right[readable]  # [rows, keys]
    wrong = (got - right).abs().amax(-1) > 1e-4 + max(SAME, _rounding(got)) * right.amax(-1)
    if int(wrong.sum()) < 1 or not bool(torch.isfinite(got).all()):
        return None
    if scores is not None and scores.shape == readable.shape + scores.shape[-1:]:
        scores = scores[readable][wrong]
        if told := _more_in_the_sum(got[wrong], right[wrong], scores):
            return told
    got, right = got[wrong], right[wrong]
    of_rows = (_nothing, _uniform, _hidden_seen, _left_out, _one_factor, _some_equal, _counted, _steps, _power, _moved)
    for look in of_rows:
        if told := look(got, right):
            name, says = told
            return (name, says) if of == "key" else (name, _renamed(says, of))
    return None


def _rounding(got: Tensor) -> float:
    """By how much the type of the output may change a weight, relative: of bfloat16 it shows in the weights' bits."""
    return torch.finfo(torch.bfloat16).eps if bool((got == got.bfloat16()).all()) else 0.0


def _renamed(says: str, of: str) -> str:
    """The sentence about parts or columns in place of keys."""
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
    places = touched.nonzero().flatten().tolist()
    first, last, count = places[0], places[-1], len(places)
    if count == 1:
        return f"key {first}"
    if count == last - first + 1:
        return f"keys {first} to {last}"
    steps = {b - a for a, b in pairwise(places)}
    if len(steps) == 1:
        return f"every {steps.pop()}th key from {first} to {last}"
    return f"{count} keys ({', '.join(map(str, places[:4]))}, ...)"


def _nothing(got: Tensor, right: Tensor) -> tuple[str, str] | None:
    empty = got.abs().amax(-1) < NOTHING
    if bool(empty.all()):
        return (
            "no key counts",
            "No key has a weight: nothing of V reaches the output. Are the scores all -infinity, does the loop over "
            "the keys run at all, and is what it adds up kept?",
        )
    return None


def _uniform(got: Tensor, right: Tensor) -> tuple[str, str] | None:
    seen = right > 0
    spread = (got.amax(-1) - torch.where(seen, got, torch.inf).amin(-1)).abs()
    sums_to_one = (got.sum(-1) - 1).abs() < SAME
    if right.size(-1) >= 4 and bool((spread < SAME * got.amax(-1)).all()) and bool(sums_to_one.all()):
        return (
            "equal weights",
            "In every row the keys have equal weights, as if all their scores were the same.",
        )
    return None


def _shares_right(got: Tensor, right: Tensor, among: Tensor) -> bool:
    """Whether, in every row, got is right times one factor among some keys, and two of them or more count."""
    one, other = torch.where(among, got, 0.0), torch.where(among, right, 0.0)
    total = other.sum(-1, keepdim=True)
    factor = one.sum(-1, keepdim=True) / total.clamp(min=1e-30)
    fits = ((one - other * factor).abs() <= 1e-4 + SAME * one.abs().amax(-1, keepdim=True)).all()
    return bool(fits) and bool(((other > HEAVY).sum(-1) >= 2).any()) and bool((factor > 0)[total > HEAVY].all())


def _hidden_seen(got: Tensor, right: Tensor) -> tuple[str, str] | None:
    extra = (got > HEAVY) & (right == 0)
    if not bool(extra.any()) or not _shares_right(got, right, right > 0):
        return None
    row = int(extra.any(-1).nonzero()[0])
    return (
        "hidden keys count",
        f"Keys have a weight that their query must not see: in the first such row {_keys(extra[row])}. The keys that "
        "it sees have the right shares among them. Look at the comparison that hides keys, and at the positions that "
        "it compares.",
    )


def _left_out(got: Tensor, right: Tensor) -> tuple[str, str] | None:
    missing = (got.abs() < NOTHING) & (right > LIGHT)
    if not bool((missing & (right > HEAVY)).any()) or not _shares_right(got, right, got.abs() >= NOTHING):
        return None
    columns = missing.any(0)
    if bool((columns & (got > HEAVY)).any()):  # some rows have them: tell of one row
        columns = missing[int(missing.any(-1).nonzero()[0])]
    return (
        "keys left out",
        f"Keys have no weight that should have some: {_keys(columns)}. The others have the right shares among them. "
        "They were hidden, never loaded, never added up, or what they had added was multiplied by 0 later.",
    )


def _ratio(got: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """got / right where both count, and where that is."""
    used = (right > HEAVY) & (got > 0)
    return torch.where(used, got / right, 1.0), used


def _one_factor(got: Tensor, right: Tensor) -> tuple[str, str] | None:
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
        return (
            "all weights times one factor",
            f"All weights are {float(factors[0]):.4g} times what they should be, the same factor in every row: "
            "after the softmax something is multiplied or divided, or products are added up, once too often or too "
            "little.",
        )
    row = int((got[many].sum(-1) - right[many].sum(-1)).abs().argmax())
    sums = float(got[many][row].sum())
    size = "smaller" if bool((factors > 1).all()) else "larger" if bool((factors < 1).all()) else "other"
    return (
        "rows not normalised",
        f"Within each row the weights have the right shares, but they sum to other numbers than 1, such as {sums:.6g}: "
        f"the sum that divides the row is {size} than that of its weights. Look at what is added to it, at its first "
        "value, and at how it is rescaled.",
    )


def _more_in_the_sum(got: Tensor, right: Tensor, scores: Tensor) -> tuple[str, str] | None:
    """Right shares, and a sum that holds exp(0 - m) besides, once or several times: keys that do not exist."""
    ratio, used = _ratio(got, right)
    if int(used.sum()) < LEAST or bool((((right > HEAVY) & ~used) | ((right == 0) & (got.abs() > NOTHING))).any()):
        return None
    low = torch.where(used, ratio, torch.inf).amin(-1)
    high = torch.where(used, ratio, -torch.inf).amax(-1)
    if not bool(((high - low) < 5 * SAME * high).all()):
        return None
    heavy = torch.where(used, right, 0.0)
    factor = (torch.where(used, got, 0.0).sum(-1) / heavy.sum(-1)).clamp(min=1e-30)
    largest = scores.amax(-1).clamp(min=0)  # of all that is summed up
    besides = torch.exp(scores - largest[:, None]).sum(-1) * (1 / factor - 1) / torch.exp(-largest)
    clear = (1 - factor) > 0.005  # in other rows a sum is too little wrong to tell by how much
    count = besides[clear]
    spread = float(scores[clear].amax(-1).max() - scores[clear].amax(-1).min()) if bool(clear.any()) else 0.0
    if count.numel() < 2 or spread < 0.5 or float(count.min()) < 0.9:
        return None
    if bool(((count - count.round()).abs() > 0.05 * count.clamp(min=1)).any()):
        return None
    least, most = int(count.round().min()), int(count.round().max())
    many = f"{least}" if least == most else f"{least} to {most}"
    return (
        "keys that do not exist",
        f"Within each row the weights have the right shares, but their sum is too large by what {many} "
        f"{'key' if most == 1 else 'keys'} with the score 0 would add: keys behind the last one, whose places hold 0, "
        "count as well. Their scores must be -infinity.",
    )


def _some_equal(got: Tensor, right: Tensor) -> tuple[str, str] | None:
    """Some keys have equal weights in every row, and the others have the right shares."""
    keys = right.size(-1)
    for key in {0, keys // 2, keys - 1}:
        same = ((got - got[:, key : key + 1]).abs() <= SAME * got[:, key : key + 1].abs() + NOTHING).all(0)
        some = 4 <= int(same.sum()) <= keys - 2 and bool((got[:, key] > HEAVY).any())
        if some and _shares_right(got, right, ~same.expand_as(got)):
            return (
                "keys without a score",
                f"The weights of {_keys(same)} are equal in every row, as if their scores were never computed; the "
                "other keys have the right shares among them.",
            )
    return None


def _counted(got: Tensor, right: Tensor) -> tuple[str, str] | None:
    """Keys that count several times: in every row their weights are 2, 3, ... times what the others' are."""
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
    return (
        "keys count several times",
        f"Keys are added up {'twice' if most == 2 else f'up to {most} times'}, numerator and sum alike: in every row "
        f"that sees them {_keys(count > 1)}. The others count once, with the right shares. Tiles overlap, or threads "
        "do the same keys: look at the steps of the loop over the keys, and at where a tile begins.",
    )


def _steps(got: Tensor, right: Tensor) -> tuple[str, str] | None:
    """The ratio is constant over runs of keys, and jumps between them."""
    keys = right.size(-1)
    ratio, used = _ratio(got, right)
    if bool(((right > HEAVY) & ~used).any()):  # keys without a weight: another mistake
        return None
    for width in (128, 96, 64, 48, 32, 16, 8):  # the widest runs that fit are the tiles
        if width >= keys:
            continue
        rows = equal = 0
        fits = True
        for row in range(min(len(got), 64)):
            runs = [ratio[row, at : at + width][used[row, at : at + width]] for at in range(0, keys, width)]
            runs = [one for one in runs if one.numel()]
            fits &= all(float(one.max() - one.min()) <= 5 * SAME * float(one.max()) for one in runs)
            rows += int(sum(one.numel() > 1 for one in runs) > 1)  # one run alone may be right by chance
            equal += sum(one.numel() - 1 for one in runs)
            if not fits:
                break
        if fits and rows > 1 and equal >= ENOUGH:
            return (
                "tiles do not fit together",
                f"Within each run of {width} keys the weights have the right shares, but the runs do not fit "
                "together, as if what earlier tiles added and what later ones add were relative to different maxima: "
                "look at the rescaling of the sums and of the output, exp(m_old - m_new).",
            )
    return None


def _power(got: Tensor, right: Tensor) -> tuple[str, str] | None:
    """log got is a multiple of log right: the scores are multiplied by something."""
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
        return (
            "sign of the exponent",
            "The largest scores have the smallest weights: the exponent has the wrong sign; it is score minus maximum.",
        )
    return (
        "scores times a factor",
        f"The weights are those of scores that are {slopes[0]:.4g} times the right ones: look at the scale, and at "
        "the base of the exponential.",
    )


def _moved(got: Tensor, right: Tensor) -> tuple[str, str] | None:
    """The weights of a row are the right ones, on other keys."""
    same = (got.sort(-1)[0] - right.sort(-1)[0]).abs().amax(-1) <= 1e-4 + SAME * right.amax(-1)
    if int(same.sum()) < LEAST or not bool(same.all()):
        return None
    row = 0
    key = int((got[row] - right[row]).abs().argmax())
    source = int((right[row] - got[row, key]).abs().argmin())
    return (
        "weights on other keys",
        f"Each row has the right weights, but on other keys: V of key {key} gets the weight of key {source}. Look at "
        "where P is stored and read, and at the row of V that it meets.",
    )
