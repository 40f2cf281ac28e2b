"""The sparse attention benchmark: densities, what counts as right, who takes part, goals. Nothing is timed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.measure.benchmark.goals import conclusions
from common.measure.benchmark.runner import Record
from common.measure.benchmarks.sparse import (
    BLOCK,
    GOALS,
    PEERS,
    Problem,
    grid,
    kernel_version,
    sparse_benchmark,
    torch_versions,
)
from common.measure.timing import Timing

SMALL = [("strided", 3), ("window", 5), ("blocks", 2)]


def small(pattern: str, parameter: int, dtype: str = "fp32", **sizes: int) -> Problem:
    return Problem(pattern, parameter, dtype, **{"batch": 1, "heads": 2, "seq_len": 2 * BLOCK, "head_dim": 16, **sizes})


def seen_by(problem: Problem) -> torch.Tensor:
    """The mask, element by element; the blocks as the operators would list them."""
    n, blocks = problem.parameter, problem.block_mask if problem.pattern == "blocks" else None
    sees = {
        "strided": lambda h, i, j: j % n == 0,
        "window": lambda h, i, j: i - n < j <= i,
        "blocks": lambda h, i, j: bool(blocks[h, i // BLOCK, j // BLOCK]),
    }[problem.pattern]
    rows = range(problem.seq_len)
    return torch.tensor([[[sees(h, i, j) for j in rows] for i in rows] for h in range(problem.heads)])


def right(problem: Problem, inputs) -> torch.Tensor:
    """By torch's own function in float64; a row that sees nothing is 0."""
    mask = seen_by(problem)
    out = F.scaled_dot_product_attention(*(x.double() for x in inputs), attn_mask=mask)
    return out.masked_fill(~mask.any(-1, keepdim=True), 0.0).to(inputs[0].dtype)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("pattern", "parameter"), SMALL)
def test_a_problem_knows_the_answer_and_its_density(pattern, parameter, dtype):
    problem = small(pattern, parameter, dtype)
    share = float(seen_by(problem).double().mean())
    assert problem.density == pytest.approx(share)
    assert problem.work == pytest.approx(4 * 2 * (2 * BLOCK) ** 2 * 16 * share)
    inputs = problem.make_inputs("cpu")
    sample, out = problem.sample(inputs), right(problem, inputs)
    assert sample.compare(out).ok
    assert not sample.compare(inputs[0]).ok and not sample.compare(out * 1.05).ok
    assert not sample.compare(out.index_fill(2, torch.tensor([7]), float("nan"))).ok
    assert not sample.compare(F.scaled_dot_product_attention(*inputs)).ok, "without the mask"


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "parameter"), SMALL)
def test_every_version_computes_the_pattern(backend, pattern, parameter):
    ops = load(BuildRequest("task5", "solution", backend))
    problem = small(pattern, parameter)
    inputs = problem.make_inputs(ops.device)
    sample = problem.sample(inputs)
    assert sample.compare(kernel_version(problem, ops, "taught").prepare(*inputs)()).ok
    found = torch_versions(problem, list(PEERS), ops.device)
    expected = {"flex", "masked", "dense"} | ({*PEERS} if pattern == "strided" else set())
    assert set(found) == expected and not any(one.ours for one in found.values())
    for name in expected & {"gather", "flex", "masked"}:
        out = found[name].prepare(*inputs)()
        assert sample.compare(right_where_nothing_is_seen(problem, out)).ok, name
    assert [name for name, one in found.items() if not one.compared] == ["dense"]


def right_where_nothing_is_seen(problem: Problem, out: torch.Tensor) -> torch.Tensor:
    """PyTorch's functions return different values for a row that sees nothing; ours is compared above."""
    return out.masked_fill(~seen_by(problem).any(-1, keepdim=True).to(out.device), 0.0)


@pytest.mark.parametrize(("pattern", "parameter"), SMALL)
def test_the_tuned_kernels_compute_the_pattern(backend, pattern, parameter):
    ops = load(BuildRequest("sparse", backend=backend))
    problem = small(pattern, parameter, "bf16", head_dim=64)
    inputs = problem.make_inputs(ops.device)
    assert problem.sample(inputs).compare(kernel_version(problem, ops, "tuned").prepare(*inputs)()).ok


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ring", 2, "fp32", 512), "pattern is 'ring'; it must be one of strided, window, blocks"),
        (("strided", 0, "fp32", 512), "stride 0 is out of range; it must be 1 .. seq_len = 512"),
        (("window", 513, "fp32", 512), "window 513 is out of range; it must be 1 .. seq_len = 512"),
        (("window", 2, "fp64", 512), "dtype is 'fp64'; it must be one of fp32, fp16, bf16"),
        (("blocks", 2, "bf16", 200), "seq_len is 200; with blocks it must be a multiple of 128"),
        (("window", 2, "bf16", 512, 0), "batch is 0; it must be at least 1"),
    ],
)
def test_problems_that_make_no_sense(arguments, says):
    with pytest.raises(ValueError, match=says):
        Problem(*arguments)


def test_the_grid_leaves_out_windows_longer_than_the_text():
    assert [one.parameter for one in grid("bf16", ["strided", "window"], [512])] == [1, 2, 4, 8, 256]


@pytest.mark.parametrize("length", [0, -5])
def test_the_grid_refuses_a_length_below_1(length):
    with pytest.raises(ValueError, match=f"seq is {length}; it must be at least 1"):
        grid("bf16", ["strided"], [512, length])


def timed(problem: Problem, **seconds: float) -> list[Record]:
    return [Record(problem, name, PEERS.get(name, name), timing=Timing((value,))) for name, value in seconds.items()]


def test_the_goals():
    strided = Problem("strided", 8, "bf16", 16384)
    records = timed(strided, tuned=1.0, flash=1.1, efficient=2.0, cudnn=0.8, flex=4.0)
    records += timed(Problem("window", 256, "bf16", 16384), tuned=1.0, flex=0.9)
    found = [(one.where, one.over, one.least, one.reached) for one in conclusions(records, GOALS)]
    assert found == [
        ("strided, bf16", "the better of SDPA flash, gathered, SDPA efficient, gathered", pytest.approx(1.1), True),
        ("strided, bf16", "SDPA cuDNN, gathered", pytest.approx(0.8), True),
        ("strided, bf16, 8", "FlexAttention", pytest.approx(4.0), False),
        ("window, bf16", "FlexAttention", pytest.approx(0.9), False),
    ]
    assert conclusions(timed(Problem("strided", 8, "fp32", 16384), tuned=1.0, flash=2.0), GOALS) == []


def test_only_what_is_named_is_made():
    options = SimpleNamespace(versions=["tuned", "dense"])
    ops = SimpleNamespace(variant="tuned", strided_attention=None)
    made = sparse_benchmark("x", lambda options: ops, {"tuned": "tuned"}, lambda options: "bf16", lambda parser: None)
    found = made.versions(options)(small("strided", 3))
    assert "tuned" in found and "flex" not in found and "masked" not in found
