"""The decode-step benchmark: bytes, the order of pages, what counts as right, goals. Nothing is timed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.measure.benchmark.goals import conclusions
from common.measure.benchmark.runner import Record
from common.measure.benchmarks.decode import (
    GOALS,
    PAGE,
    Inputs,
    Problem,
    contiguous_version,
    decode_benchmark,
    grid,
    torch_version,
    tuned_versions,
)
from common.measure.timing import Timing


def eager(call):
    return call


def right(inputs: Inputs) -> torch.Tensor:
    """By torch's own function in float64."""
    given = (x.double() for x in (inputs.query, inputs.k_cache, inputs.v_cache))
    return F.scaled_dot_product_attention(*given, enable_gqa=True).to(inputs.query.dtype)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_every_version_reads_the_same_cache(backend, dtype):
    problem = Problem(2, 4, 2, 64, 160, dtype)
    ops = load(BuildRequest("decode", backend=backend))
    inputs = problem.make_inputs(ops.device)
    sample = problem.sample(inputs)
    assert sample.compare(right(inputs)).ok
    versions = [*tuned_versions(ops, eager).values(), torch_version("torch", eager)]
    if dtype == "fp32":
        versions.append(contiguous_version("taught", load(BuildRequest("task6", "solution", backend)), eager))
    for version in versions:
        assert sample.compare(version.prepare(*inputs)()).ok, version.label


@pytest.mark.parametrize("batch", [1, 2])
def test_pages_hold_the_tokens_of_the_cache_in_another_order(batch):
    pages = 5 * 3 // batch
    inputs = Problem(batch, 4, 2, 64, pages * PAGE).make_inputs("cpu")
    assert sorted(inputs.block_table.flatten().tolist()) == list(range(batch * pages))
    assert inputs.block_table.flatten().tolist() != list(range(batch * pages)), "1 in 14! in order"
    assert inputs.k_pages.is_contiguous() and inputs.v_pages.is_contiguous()
    for sequence in range(batch):
        for token in range(pages * PAGE):
            page = inputs.block_table[sequence, token // PAGE]
            assert torch.equal(inputs.k_pages[page, :, token % PAGE], inputs.k_cache[sequence, :, token])
            assert torch.equal(inputs.v_pages[page, :, token % PAGE], inputs.v_cache[sequence, :, token])


@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_wrong_fails(batch):
    problem = Problem(batch, 4, 2, 64, 48)
    inputs = problem.make_inputs("cpu")
    sample, out = problem.sample(inputs), right(inputs)
    assert not sample.compare(inputs.query).ok and not sample.compare(out * 1.05).ok
    wrong = out.clone()
    wrong[-1, -1, 0, -1] = float("nan")
    assert not sample.compare(wrong).ok
    shorter = inputs._replace(k_cache=inputs.k_cache[:, :, :-1], v_cache=inputs.v_cache[:, :, :-1])
    assert not sample.compare(right(shorter)).ok, "the last token is not seen"


def test_bytes_are_counted_once_each():
    problem = Problem(2, 4, 2, 64, 32)
    assert problem.cache_bytes == 2 * 2 * 2 * 32 * 64 * 2
    assert problem.work == problem.cache_bytes + 2 * 2 * 4 * 64 * 2


def test_the_grid_and_what_it_refuses():
    assert len(grid()) == len(set(grid())) == 18
    with pytest.raises(ValueError, match="context is 100; it must be a multiple of 16"):
        grid(contexts=[100])
    with pytest.raises(ValueError, match="batch is 0; it must be at least 1"):
        grid(batches=[0])


def timed(version: str, seconds: float, context: int = 1024, dtype: str = "bf16", ours: bool = True) -> Record:
    return Record(Problem(16, 32, 32, 128, context, dtype), version, version, ours, Timing((seconds,)))


def test_the_goals_are_over_the_better_of_two():
    records = [timed("tuned", 1.0), timed("paged", 1.0), timed("flash", 1.1), timed("cudnn", 0.84)]
    assert [(line.mean, line.reached) for line in conclusions(records, GOALS)] == [(pytest.approx(0.84), False)] * 2
    assert conclusions([timed("tuned", 1.0, dtype="fp16"), timed("flash", 2.0, dtype="fp16")], GOALS) == []


def test_the_share_of_a_copy_is_stated_for_large_caches_only():
    large = timed("tuned", 1.0, 65536)
    [words] = decode_benchmark("x").notes([timed("tuned", 1e9, 16), large, timed("flash", 9.0, 65536, ours=False)])
    assert words == f"tuned: {large.rate / 1e12:.2f} TB/s or more where the cache is over 256 MB (goal: 90% of copy)"
    assert list(decode_benchmark("x").notes([timed("tuned", 1.0, 16)])) == []
