"""The Hopper kernels in the simulator against the same kernels on the GPU: same inputs, results within accumulation
order.

Sums may be taken in another order and exponentials rounded differently, in float32: about 1e-6 of the terms' sizes.
Where such a number is then rounded to 16 bits (weights, gradients of scores, results) the two may land on neighbors,
so each such rounding may differ by one unit in the last place. The bounds here allow exactly that, term by term.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import decode_inputs
import flash_inputs
import flash_room as flash
import pytest
import torch
from hopper_sources import FLASH, SPARSE
from torch import Tensor

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.reference import oracle as reference

pytestmark = pytest.mark.gpu

DTYPES = [torch.float16, torch.bfloat16]
FLOAT32 = 1e-5  # relative to the sum of the absolute terms


class Both(NamedTuple):
    """A kernel folder's operators, once per machine."""

    simulator: object
    gpu: object


def both(room: str, sources: list[Path] | None) -> Both:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    more = {} if sources is None else {"sources": sources}
    simulated = BuildRequest(room, backend="simulator", arch="sm_90a", label="hopper", **more)
    return Both(load(simulated), load(BuildRequest(room, backend="cuda")))


@pytest.fixture(scope="module")
def dense() -> Both:
    return both("flash", FLASH)


@pytest.fixture(scope="module")
def patterns() -> Both:
    return both("sparse", SPARSE)


@pytest.fixture(scope="module")
def clusters() -> Both:
    return both("decode", None)


def assert_near(simulated: Tensor, gpu: Tensor, bound: Tensor) -> None:
    """Element by element; the numbers are finite, and not all 0."""
    assert simulated.dtype == gpu.dtype and bool(simulated.isfinite().all()) and bool(gpu.isfinite().all())
    assert float(gpu.abs().max()) > 0
    over = (simulated.double() - gpu.cpu().double()).abs() - bound
    assert float(over.max()) <= 0, f"{int((over > 0).sum())} of {over.numel()} elements, by up to {float(over.max())}"


def weights_of(query: Tensor, key: Tensor, seen: Tensor | None, causal: bool = False) -> Tensor:
    """float64 [batch, heads, S_q, S_k]"""
    return reference.softmax(flash_inputs.scores(query.double(), key.double(), causal=causal, mask=seen))


def repeated(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values in float64, expanded to the number of query heads."""
    return x.double().repeat_interleave(query.size(1) // x.size(1), 1)


def out_bound(query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None = None, causal: bool = False) -> Tensor:
    """Every weight and the result rounded to 16 bits, each to one of two neighbors."""
    terms = weights_of(query, key, seen, causal) @ repeated(value, query).abs()
    return 2 * torch.finfo(query.dtype).eps * terms + FLOAT32 * terms


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_dense_forward_and_backward(dense, dtype, head_dim, causal):
    inputs = flash_inputs.tensors(
        dense.simulator, dtype, seq_q=150, seq_k=150, head_dim=head_dim, batch=1, heads=2, kv_heads=1
    )
    query, key, value, grad_out = inputs
    on_gpu = [x.cuda() for x in inputs]
    for ops, (q, k, v, _) in zip(dense, (inputs, on_gpu), strict=True):
        assert flash.kernel_of(ops, q, k, v, causal=causal) == "wgmma"
    simulated, gpu = map(flash_inputs.operators_of, dense)
    out, lse = simulated.flash_attention_forward(query, key, value, causal=causal)
    gpu_out, gpu_lse = gpu.flash_attention_forward(*on_gpu[:3], causal=causal)
    assert_near(out, gpu_out, out_bound(query, key, value, causal=causal))
    assert_near(lse, gpu_lse, FLOAT32 * (1 + lse.double().abs()))

    # from the same out and lse: only the gradients' own differences
    found = simulated.flash_attention_backward(grad_out, query, key, value, out, lse, causal)[:3]
    gpu_found = gpu.flash_attention_backward(on_gpu[3], *on_gpu[:3], out.cuda(), lse.cuda(), causal)[:3]
    eps, scale = torch.finfo(dtype).eps, head_dim**-0.5
    P = weights_of(query, key, None, causal)
    dO, K, V = grad_out.double(), repeated(key, query), repeated(value, query)
    delta = (dO * out.double()).sum(-1, keepdim=True)
    dS = P * (dO @ V.mT - delta)
    before = P * (dO.abs() @ V.abs().mT + (dO * out.double()).abs().sum(-1, keepdim=True))  # what cancels in dS
    uncertain = 2 * eps * dS.abs() + FLOAT32 * before
    per_key_head = (lambda x: x.sum(1, keepdim=True)) if key.size(1) == 1 else (lambda x: x)
    bounds = (
        scale * (uncertain @ K.abs()),
        per_key_head(scale * (uncertain.mT @ query.double().abs())),
        per_key_head((2 * eps + FLOAT32) * (P.mT @ dO.abs())),
    )
    for one, other, bound in zip(found, gpu_found, bounds, strict=True):
        assert_near(one, other, bound + eps * one.double().abs())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_sparse_patterns(patterns, dtype, head_dim):
    query, key, value, _ = flash_inputs.tensors(
        patterns.simulator, dtype, seq_q=150, seq_k=300, head_dim=head_dim, batch=1, heads=2, kv_heads=1
    )
    on_gpu = [x.cuda() for x in (query, key, value)]
    simulated, gpu = map(flash_inputs.operators_of, patterns)
    i, j = torch.arange(150)[:, None], torch.arange(300)[None]
    strided = simulated.strided_attention(query, key, value, 3, 0, True), gpu.strided_attention(*on_gpu, 3, 0, True)
    assert_near(*strided, out_bound(query, key, value, (j % 3 == 0) & (j <= i)))
    key, value = key[:, :, :150].contiguous(), value[:, :, :150].contiguous()
    windows = (
        simulated.sliding_window_attention(query, key, value, 50, False),
        gpu.sliding_window_attention(on_gpu[0], key.cuda(), value.cuda(), 50, False),
    )
    assert_near(*windows, out_bound(query, key, value, (i - j[:, :150]).abs() < 50))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_decoding_by_clusters(clusters, dtype):
    """8 blocks share a sequence, on both."""
    made = decode_inputs.tensors(clusters.simulator, dtype, (5, 1500, 700), head_dim=64)
    simulated, gpu = map(flash_inputs.operators_of, clusters)
    out = simulated.decode_attention(*made.values())
    gpu_out = gpu.decode_attention(*(x.cuda() for x in made.values()))
    terms = []
    for sequence, length in enumerate(made["lengths"].tolist()):
        query = made["query"][sequence : sequence + 1]
        key, value = (made[name][sequence : sequence + 1, :, :length] for name in ("k_cache", "v_cache"))
        terms.append(weights_of(query, key, None) @ repeated(value, query).abs())
    assert_near(out, gpu_out, (2 * torch.finfo(dtype).eps + FLOAT32) * torch.cat(terms))
