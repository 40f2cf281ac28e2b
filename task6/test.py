"""Tests task 6's kernels: the cache update bit for bit, decode against a float64 reference.

python -m task6.test [--update] [--decode] [--generate] [--solution] [--backend cuda|simulator] [--seed N]
"""

import torch
from torch import Tensor

from common import attention_reference as reference
from common.attention_mistakes import attention_mistakes
from common.checking import Case, running_sum_floor
from common.cli import test_main
from common.known_mistakes import Mistake
from task6.attention import KVCache

PARTS = {
    "update": "test update_cache only",
    "decode": "test decode_attention only",
    "generate": "test both together: a prompt, then token after token",
}


def cases() -> list[Case]:
    """All test cases; update is worth 1 point, decode 2, generate 1."""
    return update_cases() + decode_cases() + generate_cases()


def _as_int(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def update_cases() -> list[Case]:
    """Both caches after the update; what is not written must keep its bits, so the floor is 0."""

    def case(name: str, positions: list[int], kv_heads: int, max_seq_len: int, new: int, head_dim: int, **options):
        batch = len(positions)

        def inputs(generator: torch.Generator) -> dict[str, Tensor]:
            def normal(tokens: int) -> Tensor:
                return torch.randn(batch, kv_heads, tokens, head_dim, generator=generator)

            caches = {"k_cache": normal(max_seq_len), "v_cache": normal(max_seq_len)}
            return {**caches, "key": normal(new), "value": normal(new), "positions": _as_int(positions)}

        def call(ops, k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
            ops.update_cache(k_cache, v_cache, key, value, positions)
            return torch.stack((k_cache, v_cache))

        def right(k_cache: Tensor, v_cache: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
            both = torch.stack((k_cache, v_cache))
            for sequence, position in enumerate(positions.tolist()):
                if 0 <= position <= max_seq_len - new:
                    both[0, sequence, :, position : position + new] = key[sequence]
                    both[1, sequence, :, position : position + new] = value[sequence]
            return both

        return Case(
            name,
            "update",
            inputs,
            call,
            right,
            floor=1e-30,
            axes=("K or V", "batch", "head", "position", "col"),
            in_place=("k_cache", "v_cache"),
            **options,
        )

    return [
        case("one token each, own positions", [3, 0, 15], 2, 16, 1, 8, points=0.3, required=True),
        case("a prompt of 37 tokens", [0, 0], 3, 64, 37, 64, points=0.2),
        case("head_dim 1, one slot", [0], 1, 1, 1, 1, points=0.1),
        case("head_dim 80", [5, 9], 2, 33, 7, 80, points=0.1),
        case("the last slots", [12, 12], 2, 16, 4, 40, points=0.1),
        case("positions outside are skipped", [-1, 13, 4, 2**31 - 1], 2, 16, 4, 8, points=0.2),
        case("70,000 sequences", [i % 3 for i in range(70_000)], 1, 4, 1, 2, gpu_only=True, draws=1),
    ]


def _attended(query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None) -> Tensor:
    """[batch, heads, 1, d]: each query over its first lengths[b] keys, K/V heads repeated for their group."""
    group = query.size(1) // k_cache.size(1)
    rows = []
    for sequence, length in enumerate(lengths.clamp(0, k_cache.size(2)).tolist()):
        key, value = (
            cache[sequence, :, :length].repeat_interleave(group, 0).to(query.dtype) for cache in (k_cache, v_cache)
        )
        zero = torch.zeros_like(query[sequence])
        rows.append(reference.attention(query[sequence], key, value, scale=scale) if length else zero)
    return torch.stack(rows)


def _decode_mistakes(query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, scale: float | None):
    """Lengths off by one and heads taken from the wrong group; with one common length also those of attention."""
    batch, heads, kv_heads = query.size(0), query.size(1), k_cache.size(1)

    def wrong(name: str, says: str, change: int) -> Mistake:
        shifted = (lengths + change).clamp(0, k_cache.size(2))
        return Mistake(name, says, lambda: _attended(query, k_cache, v_cache, shifted, scale))

    found = [
        wrong("newest key left out", "The newest key is left out: a token attends to itself too.", -1),
        wrong("one key too many", "One key too many is attended to: slot lengths[b] is not written yet.", 1),
    ]
    if 1 < kv_heads < heads:
        scattered = [head % kv_heads for head in range(heads)]
        found.append(
            Mistake(
                "K/V heads interleaved",
                "Query head h reads K/V head h % kv_heads; it must read h / (heads / kv_heads): neighbours share.",
                lambda: _attended(query, k_cache[:, scattered], v_cache[:, scattered], lengths, scale),
            )
        )
    length = int(lengths[0])
    if kv_heads == heads and batch == int((lengths == length).sum()) and length:
        found += attention_mistakes(query, k_cache[:, :, :length], v_cache[:, :, :length], scale=scale)
    return found


def decode_cases() -> list[Case]:
    """Lengths around the sizes of groups of keys; slots past a sequence's length hold NaN and must not be read."""

    def case(
        name, lengths, heads, kv_heads, max_seq_len, head_dim, sharpness=1.5, scale=None, masked=0, **options
    ) -> Case:
        batch = len(lengths)

        def inputs(generator: torch.Generator) -> dict[str, Tensor]:
            def normal(*shape: int) -> Tensor:
                return torch.randn(*shape, head_dim, generator=generator)

            k_cache = sharpness * normal(batch, kv_heads, max_seq_len)
            v_cache = 2 + normal(batch, kv_heads, max_seq_len)
            for sequence, length in enumerate(lengths):
                k_cache[sequence, :, max(length, 0) :] = torch.nan
                v_cache[sequence, :, max(length, 0) :] = torch.nan
            query = sharpness * normal(batch, heads, 1)
            if masked:  # the score -inf from every query
                query.abs_()
                k_cache[:, :, :masked] = -torch.inf
            return {"query": query, "k_cache": k_cache, "v_cache": v_cache, "lengths": _as_int(lengths)}

        return Case(
            name,
            "decode",
            inputs,
            lambda ops, **inputs: ops.decode_attention(**inputs, scale=scale),
            lambda **inputs: _attended(**inputs, scale=scale),
            floor=1e-5 * sharpness**2 + running_sum_floor(max_seq_len, 4),
            axes=("batch", "head", "row", "col"),
            mistakes=lambda **inputs: _decode_mistakes(**inputs, scale=scale),
            **options,
        )

    return [
        case("40 keys", [40, 40], 3, 3, 64, 64, points=0.3, required=True),
        case("lengths 1, 7, 31, 203", [1, 7, 31, 203], 2, 2, 256, 64, points=0.3, required=True),
        case("one key, head_dim 1", [1], 1, 1, 1, 1, points=0.1),
        case("a full cache", [113, 113], 2, 2, 113, 40, points=0.2),
        case("grouped-query: 6 heads on 2", [50, 9], 6, 2, 64, 32, points=0.3),
        case("multi-query: 4 heads on 1", [65], 4, 1, 80, 96, points=0.2),
        case("head_dim 128", [129], 2, 2, 130, 128, points=0.2),
        case("scores beyond 88", [77, 100], 2, 2, 100, 64, sharpness=7.0, points=0.1),
        case("the first 20 keys masked", [77, 100], 2, 2, 100, 64, masked=20, points=0.1),
        case("an empty sequence, scale 0.5", [0, 12], 2, 2, 16, 8, scale=0.5, points=0.1),
        case("a length beyond the cache", [9, 2**31 - 1], 2, 2, 16, 8, points=0.1),
        case("8192 keys, 16 sequences", [8192 - i for i in range(16)], 32, 8, 8192, 128, gpu_only=True, draws=1),
    ]


def generate_cases() -> list[Case]:
    """KVCache as a model uses it: the prompt at once, then token after token, all against full causal attention."""

    def case(name: str, batch: int, heads: int, prompt: int, new: int, head_dim: int, **options) -> Case:
        total = prompt + new

        def inputs(generator: torch.Generator) -> dict[str, Tensor]:
            def normal() -> Tensor:
                return torch.randn(batch, heads, total, head_dim, generator=generator)

            return {"query": 1.5 * normal(), "key": 1.5 * normal(), "value": 2 + normal()}

        def call(ops, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            cache = KVCache(ops, batch, heads, total, head_dim)
            cache.append(key[:, :, :prompt].contiguous(), value[:, :, :prompt].contiguous())
            steps = []
            for i in range(prompt, total):
                cache.append(key[:, :, i : i + 1].contiguous(), value[:, :, i : i + 1].contiguous())
                steps.append(cache.attend(query[:, :, i : i + 1].contiguous()))
            return torch.cat(steps, dim=2)

        return Case(
            name,
            "generate",
            inputs,
            call,
            lambda query, key, value: reference.attention(query, key, value, causal=True)[:, :, prompt:],
            floor=1e-5 * 1.5**2 + running_sum_floor(total, 4),
            axes=("batch", "head", "step", "col"),
            **options,
        )

    return [
        case("a prompt of 9, 20 new tokens", 2, 2, 9, 20, 64, points=0.5, required=True),
        case("a prompt of 1, 70 new tokens", 1, 2, 1, 70, 40, points=0.5),
        case("a prompt of 1,024, 100 new tokens", 2, 4, 1024, 100, 64, gpu_only=True, draws=1),
    ]


if __name__ == "__main__":
    raise SystemExit(test_main("task6", PARTS, cases()))
