"""The caller's default device, default dtype, inference mode and stream change nothing.

The default device is "meta": any tensor created without an explicit device would be unreadable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
import torch
from torch_operators import positions, tiny_model
from transformers import DynamicCache

from common.kernels.attention import attention, attention_varlen, attention_with_kvcache
from common.kernels.decode.cache import KVCache
from common.kernels.decode.paged_cache import PagedKVCache
from common.kernels.gpt2.engine import Engine
from common.kernels.loaded import loaded
from task7.front_door import CUDAAttention, KernelCache, explain, register, scaled_dot_product_attention
from task7.given.operators import load_engine_kernels


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype):
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


SETTINGS = {
    "default device": lambda: torch.device("meta"),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
    "inference mode": torch.inference_mode,
    "stream": lambda: torch.cuda.stream(torch.cuda.Stream()),
}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.gpu) if name == "stream" else name for name in SETTINGS])
def setting(request) -> Callable:
    """A context in which a call must behave as it does outside."""
    return SETTINGS[request.param]


def tokens_of(*shape: int) -> torch.Tensor:
    return torch.randint(1, 50, shape, generator=torch.Generator().manual_seed(0))


def front_door(backend: str, device: torch.device) -> Callable:
    q, k, v = (torch.randn(2, 4, 9, 8, device=device) for _ in range(3))
    seen = torch.ones(9, 9, dtype=torch.bool, device=device).tril()

    def call() -> list:
        out = [scaled_dot_product_attention(q, k, v, is_causal=True, mode=mode) for mode in ("naive", "tiled", "flash")]
        for options in ({"lower_right": True, "is_causal": True}, {"softcap": 2.0}, {"window_size": (3, 1)}):
            out.append(scaled_dot_product_attention(q, k[:, :, :7], v[:, :, :7], **options))
        out.append(scaled_dot_product_attention(q, k, v, seen))
        out.append(CUDAAttention(is_causal=True, mode="tiled", lower_right=True)(q, k, v))
        return [*out, torch.tensor(explain(q, k, v).operations, dtype=torch.int64, device="cpu")]

    return call


def functions(backend: str, device: torch.device) -> Callable:
    query, key, value = (torch.randn(2, *sizes, 8, device=device) for sizes in ((4, 1), (2, 32), (2, 32)))
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    lengths, ends = (torch.tensor(x, dtype=torch.int32, device=device) for x in ((21, 3), ((0, 1), (0, 32))))

    def call() -> list:
        out = [
            attention(*leaves, enable_gqa=True, **options)
            for options in ({"is_causal": True, "lower_right": True}, {"softcap": 2.0, "window_size": (3, 1)})
        ]
        out.append(attention_varlen(*(x[0].transpose(0, 1) for x in (query, key, value)), *ends))
        return out + [attention_with_kvcache(query, key, value, cache_seqlens=lengths, softcap=x) for x in (0.0, 2.0)]

    return call


def caches(backend: str, device: torch.device) -> Callable:
    ops = loaded("decode", device)
    query, key, value, one = (torch.randn(2, h, n, 16, device=device) for h, n in ((4, 5), (2, 5), (2, 5), (4, 1)))
    cos, sin = torch.randn(2, 32, 8, device=device)

    def call() -> list:
        out = []
        for cache in (KVCache(ops, 2, 2, 32, 16), PagedKVCache(ops, 2, 2, 32, 16, pages=8)):
            cache.append(key, value)
            out += [cache.append_rotary(query, key, value, cos, sin, left_padding=[0, 3]), cache.attend(one)]
            cache.reset(1)
            out += [cache.attend(one)[:1]]
        return out

    return call


def model(variant: str) -> Callable:
    def made(backend: str, device: torch.device) -> Callable:
        course = register(variant, backend)
        ours = course.attach(tiny_model("llama"))
        ids, mask = tokens_of(2, 12).to(device), torch.ones(2, 12, dtype=torch.int64, device=device)
        mask[0, :3] = 0

        @torch.no_grad()
        def call() -> list:
            out = []
            for cache in (DynamicCache(), KernelCache(course, ours)):
                for a, b in ((0, 6), (6, 10), (10, 11), (11, 12)):  # a prompt, a second turn, two tokens
                    where = {"attention_mask": mask[:, :b], "position_ids": positions(mask)[:, a:b]}
                    out.append(ours(ids[:, a:b], past_key_values=cache, **where).logits)
            return out

        return call

    return made


def engine(backend: str, device: torch.device) -> Callable:
    kernels, gpt2, prompts = load_engine_kernels("tuned", backend), tiny_model(), tokens_of(2, 5).tolist()

    def call() -> list:
        made = Engine(gpt2, kernels, "float32", 2, 24)
        how = {"max_new_tokens": 6, "temperature": 0.8, "top_k": 10, "seed": 3}
        return [torch.tensor(made.generate(prompts, **how).tokens, device="cpu")]

    return call


CALLS = {
    "door": front_door,
    "functions": functions,
    "caches": caches,
    "taught model": model("solution"),
    "tuned model": model("tuned"),
}


@pytest.mark.parametrize("made", [*CALLS.values(), engine], ids=[*CALLS, "engine"])
def test_a_setting_changes_nothing(backend, setting, made):
    device = torch.device("cuda" if backend == "cuda" else "cpu")
    if backend == "simulator" and setting is SETTINGS["stream"]:
        pytest.skip("the CPU has no streams")
    torch.manual_seed(0)
    call = made(backend, device)
    expected = call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    with setting():
        found = call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)
