"""Mistakes planted in task 7's kernels: every one is caught, and where it can be, named."""

import pytest
from planted import Planted, all_pass, assert_told

from common.testing.judging import judge
from task7.cases import cases

VARIANCE = "rsqrtf(«warp_sum(squares) / width + eps»)"

TASK7 = Planted(
    "task7",
    {
        # row_moments
        "no_eps": [(VARIANCE, "warp_sum(squares) / width", 1)],
        "eps_outside_the_root": [(VARIANCE, "powf(sqrtf(warp_sum(squares) / width) + eps, 2.0f)", 1)],
        "n_minus_1": [(VARIANCE, "warp_sum(squares) / (width - 1) + eps", 1)],
        "one_pass_variance": [
            ("«(row[col] - moments.mean) * (row[col] - moments.mean)»;", "row[col] * row[col]", 1),
            (VARIANCE, "warp_sum(squares) / width - moments.mean * moments.mean + eps", 1),
        ],
        "variance_of_32_columns": [("«col < width»; col += 32)\n        squares", "col < 32 && col < width", 1)],
        # layernorm_kernel
        "no_residual": [("residual == nullptr ? x[i] : x[i] + residual[i]", "x[i]", 1)],
        "weight_forgotten": [("moments.inverse_std * «weight[col]»", "1.0f", 1)],
        "last_row_unwritten": [("if («row >= rows») return;", "row >= rows - (rows > 1)", 1)],
        "moments_of_x": [("row_moments(«sum» + row", "x", 1)],
        # gelu, bias_gelu_kernel
        "erf": [
            (
                "0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)))",
                "0.5f * x * (1.0f + erff(0.70710678f * x))",
                1,
            )
        ],
        "no_bias": [("gelu(«x[i] + bias[i % width]»)", "x[i]", 1)],
        "bias_of_the_row": [("bias[«i % width»]", "i / width % width", 1)],
    },
)

# (mistake, case, the mistake's name or None)
PLANTED = [
    ("no_eps", "rows of equal values", "no eps"),
    ("no_eps", "values of 0.001", "no eps"),
    ("eps_outside_the_root", "values of 0.001", "eps outside the root"),
    ("n_minus_1", "31 columns", "variance over width - 1"),
    ("one_pass_variance", "a mean of 1,000", None),
    ("variance_of_32_columns", "33 rows of 100", "wrong variance"),
    ("no_residual", "768 columns", "residual not added"),
    ("weight_forgotten", "1,600 columns", "weight forgotten"),
    ("moments_of_x", "768 columns", "moments of x"),
    ("last_row_unwritten", "33 rows of 100", None),
    ("erf", "below 0", "erf instead of tanh"),
    ("erf", "3,072 columns, gelu", "erf instead of tanh"),
    ("no_bias", "31 columns, gelu", "bias forgotten"),
    ("bias_of_the_row", "113 x 203", "bias by row"),
]


def case_of(name):
    if name.endswith(", gelu"):
        return next(case for case in cases() if case.part == "gelu" and case.name == name.removesuffix(", gelu"))
    return next(case for case in cases() if case.name == name)


@pytest.mark.parametrize(("planted", "case", "name"), PLANTED)
def test_a_mistake_is_caught(backend, planted, case, name):
    verdict = judge(case_of(case), TASK7.operators(planted, backend))
    assert_told(verdict, ".")
    if name:
        assert verdict.mistakes[:1] == [name], verdict.diagnosis


test_the_solution_passes_everything = all_pass("task7", cases())
