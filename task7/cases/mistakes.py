"""Known wrong answers of the kernels between GPT-2's GEMMs.

layernorm(...)               both outputs, right, in the precision of the arguments
layernorm_mistakes(...)      both outputs, wrong
bias_gelu, bias_gelu_mistakes
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import Values, computed, varied
from common.diagnosis.mistakes.known import Inference, Mistake, Words

known = Words(__file__)

SAME = 2e-3  # relative
LEAST = 4  # columns

# --------------------------------------------------------------------------------------------------------- layernorm

GELU = """\
x = x + bias
cube = x * x * x
y = 0.5 * x * (1.0 + tanh(sqrt(2.0 / pi) * (x + 0.044715 * cube)))
"""
MOMENTS = """\
mean = rowmean(sum)
squares = rowmean(square(sum - mean))
"""
LAYERNORM = f"""\
{MOMENTS}inverse_std = rsqrt(squares + eps)
y = (sum - mean) * inverse_std * weight + bias
"""


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None, *, eps: float) -> Tensor:
    """[2, rows, width]: layernorm(x + residual), and x + residual."""
    total = x if residual is None else x + residual
    return torch.stack([_normalized(total, weight, bias, eps), total])


def _normalized(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    distance = x - x.mean(-1, keepdim=True)
    return distance / torch.sqrt((distance**2).mean(-1, keepdim=True) + eps) * weight + bias


def layernorm_mistakes(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None, *, eps: float
) -> list[Mistake]:
    """Wrong [2, rows, width] for `layernorm`."""
    width, total = x.size(1), x if residual is None else x + residual
    values = {"x": x, "residual": residual, "sum": x, "weight": weight, "bias": bias, "eps": eps}
    text = LAYERNORM if residual is None else f"sum = x + residual\n{LAYERNORM}"

    def of(after: Values) -> Tensor:
        return torch.stack([after["y"], after["sum"]])

    def edited(old: str, new: str) -> Callable[[], Tensor]:
        return lambda: of(computed(text.replace(old, new), values))

    found = [
        known("no eps", edited("squares + eps", "squares")),
        *([known("eps of its own", edited("squares + eps", "squares + 1e-5"))] if eps != 1e-5 else []),
        known("eps outside the root", edited("rsqrt(squares + eps)", "1 / (squares**0.5 + eps)")),
        known("variance over width - 1", edited("squares + eps", f"squares * {width} / {max(1, width - 1)} + eps")),
        known("weight forgotten", edited(" * weight", "")),
        known("bias forgotten", edited(" + bias", "")),
    ]
    if residual is not None:
        alone, both = _normalized(x, weight, bias, eps), _normalized(total, weight, bias, eps)
        found += [
            known("residual not added", lambda: torch.stack([alone, x])),
            known("residual not in sum", lambda: torch.stack([both, x])),
            known("residual not normalized", lambda: torch.stack([alone, total])),
        ]
        for name in ("x", "residual"):
            moments = f"mean = rowmean({name})\nsquares = rowmean(square({name} - mean))\n"
            found.append(known("moments of an addend", edited(MOMENTS, moments), name=name))
    addends = () if residual is None else (("sum", "x", "residual"),)
    found += varied(text, values, of, addends)
    return [*found, Inference(lambda out, bound: _layernorm_told(out, total, weight, bias, eps))]


def _layernorm_told(out: Tensor, total: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[str, str] | None:
    """Diagnoses a wrong layernorm that equals no known wrong answer: (a name, an explanation) from the moments that it
    used, or None. Each row is linear in `total`: the slope is 1 / standard deviation, the zero is the mean.

    out [2, rows, width]: the normalized rows and the sums; total [rows, width]: x + residual; weight, bias [width].
    """
    out, sums = out
    if bool(((sums - total).abs() > 1e-5 + 1e-5 * total.abs()).any()):
        return None
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
    """How the wrong number is related to the right one, if all rows agree."""
    more = (got - right) * width
    if float((more - more[0]).abs().max()) < 10 * SAME * (float(more[0].abs()) + 1e-3) and float(more[0].abs()) > 0.05:
        return f" In every row the {what} is too large by {float(more.mean()):.3g}." if float(more[0]) > 0 else ""
    ratio = got / right
    if float((ratio - ratio[0]).abs().max()) < SAME * float(ratio[0].abs()) and len(ratio) > 1:
        is_width = " (the width)" if abs(float(ratio[0]) - width) < 0.01 * width else ""
        return f" In every row it is {float(ratio[0]):.4g} times the right one{is_width}."
    return ""


# --------------------------------------------------------------------------------------------------------- bias + gelu


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias) with the tanh approximation, as in GPT-2."""
    return _tanh_gelu(x + bias)


def _tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def bias_gelu_mistakes(x: Tensor, bias: Tensor) -> list[Mistake]:
    """Wrong [rows, width] for `bias_gelu`."""
    y = x + bias
    by_row = bias[torch.arange(x.size(0)) % x.size(1)][:, None]
    wrong = [
        known("erf instead of tanh", lambda: 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))),
        known("bias forgotten (GELU)", lambda: _tanh_gelu(x)),
        known("bias by row", lambda: _tanh_gelu(x + by_row)),
    ]
    formulas = varied(GELU, {"x": x, "bias": bias}, lambda after: after["y"])
    return [*wrong, *formulas]
