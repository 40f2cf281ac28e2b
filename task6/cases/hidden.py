"""Task 6's hidden cases."""

from collections.abc import Mapping
from random import Random

import torch

from common.course.grading.hidden import HiddenCase, like, with_ladder
from common.reference.bounds import running_sum_floor
from common.testing.case import Case
from task6.cases.kernels import generate_case, update_case

# Parts whose calls go through Python: the parts that they build on must have been verified to run in kernels.
RESTS_ON = {"generate": ("task6 update", "task6 decode"), "pipeline": ("task6 update", "task6 decode", "task4 causal")}
SLOTS, NEW = 64, 37  # of the public case with this call


def hidden(random: Random, cases: Mapping[str, Case]) -> list[HiddenCase]:
    """The cache, attention over it, and both together, at sizes beyond the handout's."""
    size = random.randint
    batch, kv_heads, head_dim = size(3, 5), size(2, 4), size(33, 80)
    positions = [size(0, SLOTS - NEW) for _ in range(batch)]
    lengths = [size(40, 260) for _ in range(3)]
    slots, group = max(lengths) + size(1, 9), size(2, 3)

    def decode(generator: torch.Generator) -> dict[str, torch.Tensor]:
        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(len(lengths), *shape, head_dim, generator=generator)

        query, keys = 1.5 * normal(group * kv_heads, 1), 1.5 * normal(kv_heads, slots)
        with_ladder(query, keys, generator)
        return {
            "query": query,
            "k_cache": keys,
            "v_cache": 2 + normal(kv_heads, slots),
            "lengths": torch.tensor(lengths, dtype=torch.int32),
        }

    def generated(generator: torch.Generator) -> dict[str, torch.Tensor]:
        made = generate.inputs(generator)
        with_ladder(made["query"], made["key"], generator)
        return made

    update = update_case("", positions, kv_heads, SLOTS, NEW, head_dim)
    generate = generate_case("", 3, kv_heads, 9, 36, 40)
    floor = 1e-5 * 1.5**2 + running_sum_floor(slots, 4)
    sizes = f"{group * kv_heads} heads on {kv_heads}, lengths {lengths}, head_dim {head_dim}"
    return [
        like(cases, "update: a prompt of 37 tokens", f"positions {positions}, head_dim {head_dim}", update.inputs),
        like(cases, "decode: lengths 1, 7, 31, 203", sizes, decode, floor),
        like(
            cases,
            "generate: 9 tokens, then 20",
            f"9 tokens, then 36, {kv_heads} heads",
            generated,
            generate.floor,
        ),
        like(cases, "pipeline: each phase by its kernels: 9 tokens, then 12", "the layer"),
    ]
