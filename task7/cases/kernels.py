"""Test cases for task 7's own kernels, layernorm and bias_gelu, against a float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from common.reference.bounds import running_sum_floor
from common.testing.case import Case
from task7.cases import mistakes

EPS = 1e-5  # GPT-2's


def layernorm_case(
    name: str,
    rows: int,
    width: int,
    change: Callable[[Tensor], Tensor] = lambda x: x,
    residual: bool = True,
    size: float = 4.0,
    eps: float = EPS,
    **options,
) -> Case:
    """A case for both outputs, stacked: [2, rows, width].

    change: a further change to x. size: the magnitude of a row's numbers, in standard deviations.
    """

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator)

        x = change(normal(rows, width))
        given = {"x": x, "weight": 1 + 0.3 * normal(width), "bias": 0.5 * normal(width)}
        if residual:
            # as large as x, so that leaving it out is noticed; exact where x is exact
            given["residual"] = x.flip(0) * (1 if rows > 1 else 2)
        return given

    return Case(
        name,
        "layernorm",
        inputs,
        partial(normalized, eps=eps),
        partial(mistakes.layernorm, eps=eps),
        floor=running_sum_floor(width, size),
        axes=("output", "row", "col"),
        mistakes=partial(mistakes.layernorm_mistakes, eps=eps),
        steps=partial(_layernorm_steps, eps=eps),
        **options,
    )


def layernorm_cases() -> list[Case]:
    """Sizes, and rows that are difficult for the mean and the variance."""
    case = layernorm_case

    def large_mean(x: Tensor) -> Tensor:
        return x + 1000.0

    def equal_values(x: Tensor) -> Tensor:
        """Each row repeats one integer: the mean is exact, and the deviations are 0."""
        return torch.arange(float(len(x)))[:, None].expand_as(x) + 1

    def one_flat_row(x: Tensor) -> Tensor:
        """The middle row: its variance is around 1e-5."""
        x[1] *= 3e-3
        return x

    def peaked(x: Tensor) -> Tensor:
        x[:, 0] += 1e4
        return x

    return [
        case("768 columns", 3, 768, points=0.03, required=True),
        case("31 columns", 5, 31, points=0.02, required=True),
        case("1,600 columns", 2, 1600, points=0.02),
        case("1 column", 4, 1, points=0.01),
        case("33 rows of 100", 33, 100, points=0.01),
        case("no residual", 3, 96, residual=False, points=0.01),
        case("a mean of 1,000", 4, 768, large_mean, size=1000.0, points=0.02),
        case("rows of equal values", 3, 65, equal_values, points=0.01),
        case("values of 0.001", 3, 768, lambda x: 1e-3 * x, points=0.01),
        case("an eps of 0.1", 3, 96, one_flat_row, eps=0.1, required=True),
        case("one large value", 2, 203, peaked, size=100.0, points=0.01),
        case("16,384 rows of 1,600", 16_384, 1600, gpu_only=True, draws=1),
    ]


def normalized(ops, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None, *, eps: float) -> Tensor:
    """Both outputs of the operator, stacked."""
    return torch.stack(ops.layernorm(x, residual, weight, bias, eps))


def _layernorm_steps(
    x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None = None, *, eps: float
) -> dict[str, Tensor]:
    whole = x if residual is None else x + residual
    mean = whole.mean(-1, keepdim=True)
    variance = (whole - mean).square().mean(-1, keepdim=True)
    return {"the row's mean": mean, "its variance": variance, "1 / sqrt(variance + eps)": (variance + eps).rsqrt()}


def gelu_case(name: str, rows: int, width: int, scale: float = 2.0, negative: bool = False, **options) -> Case:
    """A case for bias_gelu; `scale`: the standard deviation of x; `negative`: everything is below 0."""

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(*shape: int) -> Tensor:
            x = torch.randn(*shape, generator=generator)
            return -x.abs() if negative else x

        return {"x": scale * normal(rows, width), "bias": normal(width)}

    return Case(
        name,
        "gelu",
        inputs,
        lambda ops, x, bias: ops.bias_gelu(x, bias),
        mistakes.bias_gelu,
        floor=4 * 2.0**-24 * 4 * scale,  # a few rounding errors at this magnitude
        axes=("row", "col"),
        mistakes=mistakes.bias_gelu_mistakes,
        steps=lambda x, bias: {"x + bias": x + bias},
        **options,
    )


def gelu_cases() -> list[Case]:
    """Inputs around 0, where gelu bends, and far from 0, where it is 0 or x."""
    case = gelu_case
    return [
        case("3,072 columns", 3, 3072, points=0.05, required=True),
        case("31 columns", 5, 31, points=0.02),
        case("below 0", 5, 64, negative=True, points=0.02),  # small outputs, which distinguish two kinds of gelu
        case("1 element", 1, 1, points=0.01),
        case("40 rows of 1", 40, 1, points=0.01),
        case("113 x 203", 113, 203, points=0.02),
        case("far from 0", 4, 300, scale=100.0, points=0.02),
        case("16,384 rows of 6,400", 16_384, 6400, gpu_only=True, draws=1),
    ]
