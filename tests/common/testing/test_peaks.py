"""Where partial maxima are combined, each thread, warp, tile or part once has the row's maximum, by more than
100, so skipping any of them gives a large error."""

from importlib import import_module

import pytest
import torch
from torch import Tensor

from common.testing.judging import make_inputs

FAR = 100
# task, case, and which positions in a row belong to which part
PEAKED = [
    ("task2", "softmax: a peak in the columns of each thread", lambda at: at % 256),
    ("task3", "softmax: a peak in the columns of each thread", lambda at: at % 128),
    ("task3", "algorithm: a peak at each key in turn", lambda at: at),
    ("task3", "merge: each part far above the others", lambda at: at),
    ("task4", "full: a peak at each key in turn", lambda at: at),
    ("task5", "full: a peak at each key in turn", lambda at: at),
    ("task5", "window: a peak at each key in turn", lambda at: at % 32),
    ("task5", "blocks: a peak at each key in turn", lambda at: at),
    ("task6", "decode: a peak in the keys of each warp", lambda at: at // 8),
]


def rows_of(case, inputs: dict[str, Tensor]) -> Tensor:
    """The numbers [rows, positions] whose maximum is taken."""
    rows = case.stages(**inputs)["S"] if case.stages else inputs["lse"].T if "lse" in inputs else inputs["x"]
    return rows.reshape(-1, rows.size(-1))


@pytest.mark.parametrize(("task", "name", "part_of"), PEAKED)
def test_each_part_has_the_largest_number_once(task: str, name: str, part_of) -> None:
    case = next(one for one in import_module(f"{task}.cases").cases() if f"{one.part}: {one.name}" == name)
    rows = rows_of(case, make_inputs(case, 0))
    first, second = rows.topk(2, -1)[0].unbind(-1)
    seen = torch.isfinite(rows).any(0).nonzero().flatten()
    assert case.required and bool((first - second > FAR).all())
    assert set(part_of(rows.argmax(-1)).tolist()) == set(part_of(seen).tolist())
