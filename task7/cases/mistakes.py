"""Wrong answers that the kernels between GPT-2's products are known to give.

layernorm(...)               both outputs, right, in the precision of the arguments
layernorm_mistakes(...)      both outputs, wrong
bias_gelu, bias_gelu_mistakes
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from common.diagnosis.mistakes.formulas import varied
from common.diagnosis.mistakes.known import Inference, Mistake, last_tile_starts
from task7.cases.inferring import bias_gelu_told, layernorm_told

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
    rows, width = x.shape
    total = x if residual is None else x + residual
    right = _normalized(total, weight, bias, eps)
    mean = total.mean(-1, keepdim=True)
    distance = total - mean
    variance = (distance**2).mean(-1, keepdim=True)

    def from_moments(mean: Tensor, inverse_std: Tensor) -> Tensor:
        return torch.stack([(total - mean) * inverse_std * weight + bias, total])

    def one_pass() -> Tensor:
        single = total.float()
        square = (single**2).mean(-1, keepdim=True) - single.mean(-1, keepdim=True) ** 2
        return from_moments(mean, torch.rsqrt(square + eps).to(mean.dtype))

    def of_columns(count: int) -> Tensor:
        first = total[:, :count]
        its_mean = first.mean(-1, keepdim=True)
        return from_moments(its_mean, torch.rsqrt(((first - its_mean) ** 2).mean(-1, keepdim=True) + eps))

    def over_rows() -> Tensor:
        its_distance = total - total.mean(0)
        return torch.stack(
            [its_distance / torch.sqrt((its_distance**2).mean(0) + eps) * weight + bias, total],
        )

    found = [
        ("no eps", "eps is not added to the variance: rows of equal values give 0 / 0.", torch.rsqrt(variance)),
        (
            "eps outside the root",
            "eps is added to the standard deviation; it belongs to the variance, under the root.",
            1 / (torch.sqrt(variance) + eps),
        ),
        (
            "not divided by the standard deviation",
            "The mean is subtracted, but the rows are not divided by their standard deviation.",
            torch.ones_like(variance),
        ),
        (
            "divided by the variance",
            "The rows are divided by their variance; it must be its root, the standard deviation.",
            1 / (variance + eps),
        ),
        (
            "variance not divided by width",
            "The sum of the squared distances is taken for the variance; it must be divided by width.",
            torch.rsqrt(variance * width + eps),
        ),
        (
            "root mean square",
            "The rows are divided by the root of the mean of their squares; the mean must be subtracted before "
            "squaring.",
            torch.rsqrt((total**2).mean(-1, keepdim=True) + eps),
        ),
    ]
    mistakes = [Mistake(name, says, lambda by=by: from_moments(mean, by)) for name, says, by in found]
    if width > 1:
        mistakes.append(
            Mistake(
                "variance over width - 1",
                "The variance is divided by width - 1; layernorm divides by width.",
                lambda: from_moments(mean, torch.rsqrt(variance * width / (width - 1) + eps)),
            )
        )
    mistakes += [
        Mistake(
            "variance from the mean of squares",
            "The variance is computed as mean of squares minus square of the mean. Where the mean is large, float32 "
            "cannot hold the difference: subtract the mean first, then square.",
            one_pass,
        ),
        Mistake(
            "mean not subtracted",
            "The mean is not subtracted from what is written to out.",
            lambda: from_moments(torch.zeros_like(mean), torch.rsqrt(variance + eps)),
        ),
        Mistake(
            "weight forgotten",
            "out is not multiplied by weight.",
            lambda: torch.stack([_normalized(total, torch.ones_like(weight), bias, eps), total]),
        ),
        Mistake(
            "bias forgotten",
            "bias is not added to out.",
            lambda: torch.stack([_normalized(total, weight, torch.zeros_like(bias), eps), total]),
        ),
        Mistake(
            "sum holds the normalised rows",
            "sum holds the same as out; it must be x + residual, not normalised.",
            lambda: torch.stack([right, right]),
        ),
    ]
    if rows > 1:
        mistakes.append(
            Mistake(
                "normalised over the rows",
                "Mean and variance are those of the columns; they must be those of each row.",
                over_rows,
            )
        )
    if residual is not None:
        alone = _normalized(x, weight, bias, eps)
        mistakes += [
            Mistake(
                "residual not added",
                "residual is not added: out and sum are those of x alone.",
                lambda: torch.stack([alone, x]),
            ),
            Mistake(
                "residual not in sum",
                "out is right, but sum holds x alone: the next layer would lack the residual.",
                lambda: torch.stack([right, x]),
            ),
            Mistake(
                "residual not normalised",
                "sum is right, but out is the layernorm of x alone.",
                lambda: torch.stack([alone, total]),
            ),
        ]
    for count in sorted({n for n in (*last_tile_starts(width), 32) if 0 < n < width}):
        mistakes.append(
            Mistake(
                "moments of the first columns only",
                f"Mean and variance are those of the first {count} of {width} columns: each lane must walk on through "
                "the row in steps of 32, up to its end.",
                lambda count=count: of_columns(count),
            )
        )
    formulas = varied(
        LAYERNORM,
        {"sum": total, "weight": weight, "bias": bias, "eps": eps},
        lambda after: torch.stack([after["y"], total]),
    )
    return [*mistakes, *formulas, Inference(lambda out, bound: layernorm_told(out, x, weight, bias, residual, eps))]


# --------------------------------------------------------------------------------------------------------- bias + gelu


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """gelu(x + bias) with tanh, as GPT-2 has it."""
    return _tanh_gelu(x + bias)


def _tanh_gelu(x: Tensor, cubic: float = 0.044715, factor: float = math.sqrt(2 / math.pi)) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(factor * (x + cubic * x**3)))


def bias_gelu_mistakes(x: Tensor, bias: Tensor) -> list[Mistake]:
    """Wrong [rows, width] for `bias_gelu`."""
    y = x + bias
    rows, width = x.shape

    def by_row() -> Tensor:
        return _tanh_gelu(x + bias[torch.arange(rows) % width][:, None])

    wrong: list[tuple[str, str, Callable[[], Tensor]]] = [
        (
            "erf instead of tanh",
            "It is the exact GELU, with erf. GPT-2 was trained with the approximation by tanh.",
            lambda: 0.5 * y * (1 + torch.erf(y / math.sqrt(2))),
        ),
        (
            "sigmoid approximation",
            "It is x * sigmoid(1.702 x), another approximation of GELU; GPT-2 has the one with tanh.",
            lambda: y * torch.sigmoid(1.702 * y),
        ),
        ("bias forgotten", "bias is not added.", lambda: _tanh_gelu(x)),
        ("bias added afterwards", "bias is added to the result; it belongs to x.", lambda: _tanh_gelu(x) + bias),
        ("bias by row", "The bias is that of the element's row; it must be that of its column.", by_row),
        ("no cubic term", "0.044715 x^3 is missing inside tanh.", lambda: _tanh_gelu(y, cubic=0.0)),
        (
            "2 / pi without the root",
            "The factor inside tanh is 2 / pi; it must be its root.",
            lambda: _tanh_gelu(y, factor=2 / math.pi),
        ),
        ("1 / 2 forgotten", "The result is twice what it must be: x / 2 (1 + tanh(...)).", lambda: 2 * _tanh_gelu(y)),
        ("no activation", "The result is x + bias: no activation at all.", lambda: y),
        ("ReLU", "It is ReLU, max(x, 0).", lambda: torch.relu(y)),
    ]
    formulas = varied(GELU, {"x": x, "bias": bias}, lambda after: after["y"])
    return [*(Mistake(*one) for one in wrong), *formulas, Inference(lambda out, bound: bias_gelu_told(out, x, bias))]
