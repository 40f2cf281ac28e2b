"""Task 7's hidden cases."""

from collections.abc import Mapping
from random import Random

from common.course.grading.hidden import HiddenCase, like
from common.testing.case import Case
from task7.cases.kernels import gelu_case, layernorm_case

# Cases that run a model go through Python: the parts that they build on must have been verified to run in kernels.
MODEL = ("task4 causal", "task6 update", "task6 decode", "task7 layernorm", "task7 gelu")
RESTS_ON = {"text": MODEL[:3], "engine": MODEL, "perplexity": MODEL[:1]}


def hidden(random: Random, cases: Mapping[str, Case]) -> list[HiddenCase]:
    """Both kernels at sizes beyond the handout's."""
    size = random.randint
    rows, width = size(41, 90), size(800, 1500)
    eps = 10 ** random.uniform(-3, 0)

    layernorm, gelu = layernorm_case("", rows, width, eps=eps), gelu_case("", rows, width)
    sizes = f"{rows} x {width}"
    return [
        like(
            cases,
            "layernorm: 33 rows of 100",
            sizes,
            layernorm.inputs,
            layernorm.floor,
            call=layernorm.call,
            reference=layernorm.reference,
            steps=None,
        ),
        like(cases, "gelu: 113 x 203", sizes, gelu.inputs),
    ]
