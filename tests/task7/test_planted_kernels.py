"""Mistakes planted in task 7's kernels: each is detected and, where possible, named."""

import pytest
from planted import Planted, all_pass

from common.testing.case import FAIL
from common.testing.judging import judge
from task7.cases import cases

VARIANCE = "rsqrtf(«warp_sum(squares) / width + eps»)"

TASK7 = Planted(
    "task7",
    {
        # row_moments
        "no_eps": [(VARIANCE, "warp_sum(squares) / width")],
        "eps_of_its_own": [(VARIANCE, "warp_sum(squares) / width + 1e-5f")],
        "eps_outside_the_root": [(VARIANCE, "powf(sqrtf(warp_sum(squares) / width) + eps, 2.0f)")],
        "n_minus_1": [(VARIANCE, "warp_sum(squares) / (width - 1) + eps")],
        "one_pass_variance": [
            ("«(row[col] - moments.mean) * (row[col] - moments.mean)»;", "row[col] * row[col]"),
            (VARIANCE, "warp_sum(squares) / width - moments.mean * moments.mean + eps"),
        ],
        "variance_of_32_columns": [("«col < width»; col += 32)\n        squares", "col < 32 && col < width")],
        # layernorm_kernel
        "no_residual": [("residual == nullptr ? x[i] : x[i] + residual[i]", "x[i]")],
        "weight_forgotten": [("moments.inverse_std * «weight[col]»", "1.0f")],
        "last_row_unwritten": [("if («row >= rows») return;", "row >= rows - (rows > 1)")],
        "moments_of_x": [("row_moments(«sum» + row", "x")],
        "x_normalized": [("«sum[row * width + col]» - moments.mean) *", "x[row * width + col]")],
        "moments_of_the_residual": [("row_moments(«sum» + row", "(residual == nullptr ? x : residual)")],
        # gelu, bias_gelu_kernel
        "erf": [
            (
                "0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)))",
                "0.5f * x * (1.0f + erff(0.70710678f * x))",
            )
        ],
        "no_bias": [("gelu(«x[i] + bias[i % width]»)", "x[i]")],
        "bias_of_the_row": [("bias[«i % width»]", "i / width % width")],
    },
)

# (mistake, case, the mistake's name or None)
PLANTED = [
    ("no_eps", "layernorm: rows of equal values", "no eps"),
    ("no_eps", "layernorm: values of 0.001", "no eps"),
    ("eps_of_its_own", "layernorm: an eps of 0.1", "eps of its own"),
    ("eps_outside_the_root", "layernorm: values of 0.001", "eps outside the root"),
    ("n_minus_1", "layernorm: 31 columns", "variance over width - 1"),
    ("one_pass_variance", "layernorm: a mean of 1,000", None),
    ("variance_of_32_columns", "layernorm: 33 rows of 100", "wrong variance"),
    ("no_residual", "layernorm: 768 columns", "residual not added"),
    ("weight_forgotten", "layernorm: 1,600 columns", "weight forgotten"),
    ("moments_of_x", "layernorm: 768 columns", "moments of an addend"),
    ("x_normalized", "layernorm: 768 columns", "y = (x - mean) * inverse_std * weight + bias"),
    ("x_normalized", "layernorm: one large value", "y = (x - mean) * inverse_std * weight + bias"),
    ("moments_of_the_residual", "layernorm: 31 columns", "moments of an addend"),
    ("last_row_unwritten", "layernorm: 33 rows of 100", None),
    ("erf", "gelu: below 0", "erf instead of tanh"),
    ("no_bias", "gelu: 31 columns", "bias forgotten"),
    ("bias_of_the_row", "gelu: 113 x 203", "bias by row"),
]


CASES = {f"{case.part}: {case.name}": case for case in cases()}


@pytest.mark.parametrize(("planted", "case", "name"), PLANTED)
def test_a_mistake_is_caught(backend, planted, case, name):
    verdict = judge(CASES[case], TASK7.operators(planted, backend))
    assert verdict.status == FAIL and name in (None, *verdict.mistakes[:1]), verdict.diagnosis


test_the_solution_passes_everything = all_pass("task7", cases())
