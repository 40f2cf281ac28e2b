"""The dense attention benchmark: the grid, the work, what counts as right, who takes part. Nothing is timed."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.measure.benchmark.goals import conclusions
from common.measure.benchmark.runner import Record
from common.measure.benchmark.sample import Errors
from common.measure.benchmarks import flash
from common.measure.benchmarks.flash import GOALS, HIDDEN, LENGTHS, PASSES, Problem, grid, tuned_versions
from common.measure.timing import Timing


def problem(
    direction: str = "forward", dtype: str = "fp32", causal: bool = False, seq_len: int = 40, **sizes
) -> Problem:
    return Problem(direction, dtype, sizes.get("head_dim", 16), causal, seq_len, sizes.get("batch", 2), 3)


# ---- the grid


def test_the_grid_has_16k_tokens_and_a_hidden_width_of_2048():
    problems = grid(PASSES, ["fp32", "bf16"], [64, 128], LENGTHS)
    assert len(problems) == len(set(problems)) == 3 * 2 * 2 * 2 * 6
    assert {one.batch * one.seq_len for one in problems} == {16384}
    assert {one.heads * one.head_dim for one in problems} == {HIDDEN}


def test_operations_and_bytes_are_counted_as_stated():
    one = Problem("forward", "bf16", 64, False, 512, 32, 32)
    assert one.work == 4 * 32 * 32 * 512**2 * 64
    assert one.least_bytes == 4 * 2 * 16384 * 2048  # query, key, value, out
    assert one.scores_bytes == 4 * 32 * 32 * 512 * 512
    backward = Problem("backward", "bf16", 64, True, 512, 32, 32)
    assert backward.work == 2.5 * one.work / 2 and backward.least_bytes == 2 * one.least_bytes
    assert Problem("training", "bf16", 64, True, 512, 32, 32).work == 3.5 * one.work / 2


@pytest.mark.parametrize(("head_dim", "hidden"), [(96, 2048), (512, 2048), (0, 2048), (64, 0)])
def test_a_head_dim_that_cannot_be_is_named(head_dim, hidden):
    with pytest.raises(ValueError, match=f"head_dim is {head_dim} and hidden {hidden}; head_dim must be 1 .. 256"):
        grid(["forward"], ["fp32"], [head_dim], [512], hidden)


def test_a_length_that_cannot_be_is_named():
    with pytest.raises(ValueError, match="seq is 0; it must be at least 1"):
        grid(["forward"], ["fp32"], [64], [512, 0])


def test_one_long_sequence_is_a_batch_of_one():
    assert [one.batch for one in grid(["forward"], ["fp32"], [64], [32768, 20])[:2]] == [819, 1]


# ---- verification


def right(one: Problem, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """All heads at once, by torch's own function in float64, independently of the sample's code."""
    leaves = [x.double().requires_grad_() for x in inputs[:3]]
    out = F.scaled_dot_product_attention(*leaves, is_causal=one.causal)
    outputs = (out,) if one.direction == "forward" else torch.autograd.grad(out, leaves, inputs[3].double())
    return tuple(x.detach().to(inputs[0].dtype) for x in outputs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_what_is_right_passes_in_blocks_of_queries_too(direction, dtype, causal, monkeypatch):
    one = problem(direction, dtype, causal)
    inputs = one.make_inputs("cpu")
    for rows in (1024, 17):
        monkeypatch.setattr(flash, "ROWS", rows)
        errors = one.sample(inputs).compare(right(one, inputs))
        assert errors.ok and errors.relative < {"fp32": 1e-6, "fp16": 1e-3, "bf16": 8e-3}[dtype]


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_wrong_fails(direction, dtype):
    one = problem(direction, dtype, causal=True)
    inputs = one.make_inputs("cpu")
    sample, outputs = one.sample(inputs), right(one, inputs)

    def changed(change, which: int = -1) -> Errors:
        copies = [x.clone() for x in outputs]
        change(copies[which])
        return sample.compare(copies)

    no_mask = right(problem(direction, dtype, causal=False), inputs)
    assert not sample.compare(no_mask).ok
    assert not changed(lambda x: x.zero_()).ok
    assert not changed(lambda x: x.mul_(1.05)).ok
    assert not changed(lambda x: x[-1, -1, -1, 0].fill_(math.nan)).ok, "the last element of the last head"
    assert not changed(lambda x: x[0, 0, 0, 0].fill_(math.inf), 0).ok, "the first element of the first output"
    assert not sample.compare([x.roll(1, dims=2) for x in outputs]).ok


# ---- who takes part


@pytest.fixture(scope="module")
def tuned(backend):
    return load(BuildRequest("flash", backend=backend))


CALLS = [(direction, dtype, True) for direction in PASSES for dtype in ("fp32", "fp16", "bf16")]
CALLS += [("forward", "fp32", False)]


@pytest.mark.parametrize(("direction", "dtype", "causal"), CALLS)
def test_every_version_computes_attention(tuned, direction, dtype, causal):
    one = problem(direction, dtype, causal, seq_len=33, batch=1, head_dim=64)
    inputs = one.make_inputs(tuned.device)
    sample = one.sample(inputs)
    on_the_cpu = {"math": flash.torch_versions(one)["math"]}
    for name, version in (tuned_versions(one, tuned) | on_the_cpu).items():
        with torch.no_grad():
            call = version.prepare(*inputs)
            first, second = call(), call()
        for outputs in (first, second):
            errors = sample.compare(outputs)
            assert errors.ok, (name, errors)
        given = [x.dtype for x in ([first] if isinstance(first, torch.Tensor) else first)]
        assert given == [inputs[0].dtype] * (1 if direction == "forward" else 3)


def test_who_takes_part(tuned):
    def names(*which) -> list[str]:
        one = problem(*which)
        return [*tuned_versions(one, tuned), *flash.torch_versions(one)]

    assert names("forward", "fp32") == ["ffma", "3xfp16", "efficient", "math"]
    assert names("backward", "fp32") == ["ffma", "efficient", "math"]
    assert names("training", "fp32") == ["3xfp16", "efficient", "math"]
    ours = "wgmma" if tuned.backend == "cuda" and torch.cuda.get_device_capability() == (9, 0) else "mma"
    for direction in PASSES:
        assert names(direction, "bf16") == [ours, "flash", "cudnn", "efficient", "math"]


# ---- goals


def timed(version: str, seconds: float, **what) -> Record:
    sizes = {"direction": "forward", "dtype": "bf16", "head_dim": 64, "causal": False, "seq_len": 1024}
    sizes = {**sizes, "batch": 16, "heads": 32, **what}
    return Record(Problem(**sizes), version, version, timing=Timing((seconds,)))


def test_fp32_goals_are_about_1k_to_4k():
    records = [
        one
        for length, peer_takes in ((512, 0.1), (1024, 1.2), (4096, 1.2), (16384, 0.1))
        for one in (
            timed("ffma", 1.0, dtype="fp32", seq_len=length),
            timed("efficient", peer_takes, dtype="fp32", seq_len=length),
        )
    ]
    (line,) = conclusions(records, GOALS)
    assert line.where == "forward, fp32, 1024 .. 4096 tokens" and line.mean == pytest.approx(1.2) and line.reached


def test_forward_and_backward_are_concluded_apart():
    forward = {"mma": 1.0, "wgmma": 0.6, "flash": 1.06, "cudnn": 0.9}
    records = [timed(version, seconds) for version, seconds in forward.items()]
    records += [timed(version, 1.0, direction="backward") for version in ("mma", "flash")]
    found = {(line.where, line.over): (line.mean, line.reached) for line in conclusions(records, GOALS)}
    assert found == {
        ("forward, bf16", "flash"): (pytest.approx(1.06), True),
        ("backward, bf16", "flash"): (1.0, True),
        ("forward, bf16", "cudnn"): (pytest.approx(0.9), None),
        ("forward, bf16", "the better of flash, cudnn"): (pytest.approx(1.5), True),
    }
