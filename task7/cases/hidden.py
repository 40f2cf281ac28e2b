"""Task 7's hidden cases."""

from collections.abc import Mapping
from functools import partial
from random import Random

import torch

from common.course.grading.hidden import HiddenCase, like
from common.reference.bounds import running_sum_floor
from common.testing.case import Case
from task7.cases import mistakes
from task7.cases.kernels import normalized

# Cases that run a model go through Python: the parts that they build on must have been verified to run in kernels.
MODEL = ("task4 causal", "task6 update", "task6 decode", "task7 layernorm", "task7 gelu")
RESTS_ON = {"text": MODEL[:3], "engine": MODEL, "perplexity": MODEL[:1]}


def hidden(random: Random, cases: Mapping[str, Case]) -> list[HiddenCase]:
    """Both kernels at sizes beyond the handout's."""
    size = random.randint
    rows, width = size(41, 90), size(800, 1500)
    eps = 10 ** random.uniform(-3, 0)

    def layernorm(generator: torch.Generator) -> dict[str, torch.Tensor]:
        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        x = normal(rows, width)
        return {"x": x, "weight": 1 + 0.3 * normal(width), "bias": 0.5 * normal(width), "residual": x.flip(0)}

    def gelu(generator: torch.Generator) -> dict[str, torch.Tensor]:
        x = 2 * torch.randn(rows, width, generator=generator)
        return {"x": x, "bias": torch.randn(width, generator=generator)}

    sizes = f"{rows} x {width}"
    return [
        like(
            cases,
            "layernorm: 33 rows of 100",
            sizes,
            layernorm,
            running_sum_floor(width, 4.0),
            call=partial(normalized, eps=eps),
            reference=partial(mistakes.layernorm, eps=eps),
            steps=None,
        ),
        like(cases, "gelu: 113 x 203", sizes, gelu),
    ]
