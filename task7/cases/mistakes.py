"""Wrong answers that the kernels between GPT-2's products are known to give.

layernorm(...)               both outputs, right, in the precision of the arguments
layernorm_mistakes(...)      both outputs, wrong
bias_gelu, bias_gelu_mistakes
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import varied
from common.diagnosis.mistakes.known import Inference, Mistake, Words
from task7.cases.inferring import layernorm_told

known = Words(__file__)

# --------------------------------------------------------------------------------------------------------- layernorm

GELU = """\
x = x + bias
cube = x * x * x
y = 0.5 * x * (1.0 + tanh(sqrt(2.0 / pi) * (x + 0.044715 * cube)))
"""
LAYERNORM = """\
mean = rowmean(sum)
squares = rowmean(square(sum - mean))
inverse_std = rsqrt(squares + eps)
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
    width = x.size(1)
    total = x if residual is None else x + residual
    mean = total.mean(-1, keepdim=True)
    variance = ((total - mean) ** 2).mean(-1, keepdim=True)
    mistakes = [
        known(name, lambda by=by: torch.stack([(total - mean) * by * weight + bias, total]))
        for name, by in (
            ("no eps", torch.rsqrt(variance)),
            ("eps outside the root", 1 / (torch.sqrt(variance) + eps)),
            ("variance over width - 1", torch.rsqrt(variance * width / max(1, width - 1) + eps)),
        )
    ]
    mistakes += [
        known("weight forgotten", lambda: torch.stack([_normalized(total, torch.ones_like(weight), bias, eps), total])),
        known("bias forgotten", lambda: torch.stack([_normalized(total, weight, torch.zeros_like(bias), eps), total])),
    ]
    if residual is not None:
        alone, both = _normalized(x, weight, bias, eps), _normalized(total, weight, bias, eps)
        for name, out, its_sum in (
            ("residual not added", alone, x),
            ("residual not in sum", both, x),
            ("residual not normalized", alone, total),
        ):
            mistakes.append(known(name, lambda out=out, its_sum=its_sum: torch.stack([out, its_sum])))
        mistakes += [
            known("moments of an addend", lambda one=one: _by_moments_of(one, total, weight, bias, eps), name=name)
            for name, one in (("x", x), ("residual", residual))
        ]
    values = {"x": x, "residual": residual, "sum": x, "weight": weight, "bias": bias, "eps": eps}
    text = LAYERNORM if residual is None else f"sum = x + residual\n{LAYERNORM}"
    addends = () if residual is None else (("sum", "x", "residual"),)
    formulas = varied(text, values, lambda after: torch.stack([after["y"], after["sum"]]), addends)
    return [*mistakes, *formulas, Inference(lambda out, bound: layernorm_told(out, total, weight, bias, eps))]


def _by_moments_of(one: Tensor, total: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean, variance = one.mean(-1, keepdim=True), one.var(-1, unbiased=False, keepdim=True)
    return torch.stack([(total - mean) * torch.rsqrt(variance + eps) * weight + bias, total])


# --------------------------------------------------------------------------------------------------------- bias + gelu


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias) with tanh, as GPT-2 has it."""
    return _tanh_gelu(x + bias)


def _tanh_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def bias_gelu_mistakes(x: Tensor, bias: Tensor) -> list[Mistake]:
    """Wrong [rows, width] for `bias_gelu`."""
    y = x + bias
    rows, width = x.shape

    def by_row() -> Tensor:
        return _tanh_gelu(x + bias[torch.arange(rows) % width][:, None])

    wrong = [
        known("erf instead of tanh", lambda: 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))),
        known("bias forgotten (GELU)", lambda: _tanh_gelu(x)),
        known("bias by row", by_row),
    ]
    formulas = varied(GELU, {"x": x, "bias": bias}, lambda after: after["y"])
    return [*wrong, *formulas]
