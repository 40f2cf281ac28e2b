"""Test cases for the kernels: update_cache bitwise, and decoding, whole and split, against a float64 reference."""

from __future__ import annotations

import torch
from torch import Tensor

from common.diagnosis.locating import UNUSED_BITS, nan_of
from common.kernels.decode.cache import KVCache
from common.reference import oracle as reference
from common.reference.bounds import running_sum_floor
from common.testing.case import Call, Case, Python
from common.testing.cases.attention_cases import peaks
from common.testing.python_side import naming_the_line, python_side
from task6.cases import mistakes, split_mistakes
from task6.cases.mistakes import KEYS
from task6.given.operators import load_beside

NAN_HINT = (
    "Where it is NaN: a slot from lengths[b] on was read (they hold NaN here, and 0 * NaN is NaN), or -infinity was "
    "subtracted from -infinity (a warp that has seen no key, or only masked ones)."
)


def _as_int(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def update_case(name: str, positions: list[int], kv_heads: int, max_seq_len: int, new: int, head_dim: int, **options):
    """Both caches after the update; all other slots must stay bitwise unchanged, so the floor is 1e-30, almost 0."""
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
        mistakes=mistakes.update_mistakes,
        **options,
    )


def update_cases() -> list[Case]:
    """Prompts and single tokens, also at the end of the cache and at positions outside of it."""
    case = update_case
    return [
        case("one token each", [3, 0, 15], 2, 16, 1, 8, points=0.3, required=True),
        case("a prompt of 37 tokens", [0, 0], 3, 64, 37, 64, points=0.2),
        case("head_dim 1, one slot", [0], 1, 1, 1, 1, points=0.1),
        case("head_dim 80", [5, 9], 2, 33, 7, 80, points=0.1),
        case("the last slots", [12, 12], 2, 16, 4, 40, points=0.1),
        case("positions outside are skipped", [-1, 13, 4, 2**31 - 1], 2, 16, 4, 8, points=0.2),
        case("70,000 sequences", [i % 3 for i in range(70_000)], 1, 4, 1, 2, gpu_only=True, draws=1),
    ]


def _decode_inputs(
    lengths: list[int],
    heads: int,
    kv_heads: int,
    max_seq_len: int,
    head_dim: int,
    sharpness: float = 1.5,
    masked: int = 0,
    below: bool = False,
    peaked: bool = False,
):
    """Makes the inputs of a decode step; slots past a sequence's length hold NaN.

    masked: the number of keys with the score -inf. below: all scores are below 0, far below if sharpness is large; in
    all sequences but the first, key 30's score is far above the others. peaked: in each row (one head of one sequence),
    one score exceeds all others by more than 100, and its key is 8 after the previous row's, so it belongs to the next
    warp.
    """

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, head_dim, generator=generator)

        batch = len(lengths)
        k_cache = sharpness * normal(batch, kv_heads, max_seq_len)
        if below:
            k_cache = -k_cache.abs()
            k_cache[1:] *= 2
            k_cache[1:, :, 30:31] *= 0.25
        v_cache = 2 + normal(batch, kv_heads, max_seq_len)
        query = sharpness * normal(batch, heads, 1)
        if masked or below:
            query.abs_()
        if peaked:
            peaks(lambda row, keys: KEYS * row % keys)({"query": query, "key": k_cache})
        for sequence, length in enumerate(lengths):
            k_cache[sequence, :, max(length, 0) :] = nan_of(UNUSED_BITS)
            v_cache[sequence, :, max(length, 0) :] = nan_of(UNUSED_BITS)
        if masked:  # the score -inf from every query
            k_cache[:, :, :masked] = -torch.inf
        return {"query": query, "k_cache": k_cache, "v_cache": v_cache, "lengths": _as_int(lengths)}

    return inputs


def decode_cases() -> list[Case]:
    """Lengths around the sizes of key groups; slots past a sequence's length must not be read."""

    def case(
        name,
        lengths,
        heads,
        kv_heads,
        max_seq_len,
        head_dim,
        sharpness=1.5,
        scale=None,
        masked=0,
        below=False,
        peaked=False,
        **options,
    ) -> Case:
        return Case(
            name,
            "decode",
            _decode_inputs(lengths, heads, kv_heads, max_seq_len, head_dim, sharpness, masked, below, peaked),
            lambda ops, **inputs: ops.decode_attention(**inputs, scale=scale),
            lambda **inputs: mistakes.decoded(**inputs, scale=scale),
            floor=1e-5 * sharpness**2 + running_sum_floor(max_seq_len, 4),
            axes=("batch", "head", "row", "col"),
            mistakes=lambda **inputs: mistakes.decode_mistakes(**inputs, scale=scale),
            stages=lambda **inputs: mistakes.decode_stages(**inputs, scale=scale),
            values="v_cache",
            nan_hint=NAN_HINT,
            **options,
        )

    return [
        case("40 keys", [40, 40], 3, 3, 64, 64, points=0.2, required=True),
        case("lengths 1, 7, 31, 203", [1, 7, 31, 203], 2, 2, 256, 64, points=0.2, required=True),
        case("one key, head_dim 1", [1], 1, 1, 1, 1, points=0.1),
        case("a full cache", [113, 113], 2, 2, 113, 40, points=0.1),
        case("grouped-query: 6 heads on 2", [50, 9], 6, 2, 64, 32, points=0.2),
        case("multi-query: 4 heads on 1", [65], 4, 1, 80, 96, points=0.1),
        case("head_dim 128", [129], 2, 2, 130, 128, points=0.1),
        case("scores beyond 88", [77, 100], 2, 2, 100, 64, sharpness=7.0, points=0.1),
        case("scores far below 0", [77, 100], 2, 2, 100, 64, sharpness=7.0, below=True),
        case("a peak in the keys of each warp", [64, 64], 4, 4, 64, 32, peaked=True, required=True),
        case("the first 20 keys masked", [77, 100], 2, 2, 100, 64, masked=20, points=0.1),
        case("an empty sequence, scale 0.5", [0, 12], 2, 2, 16, 8, scale=0.5, points=0.1),
        case("a length beyond the cache", [9, 2**31 - 1, -3], 2, 2, 16, 8, points=0.2),
        case("8192 keys, 16 sequences", [8192 - i for i in range(16)], 32, 8, 8192, 128, gpu_only=True, draws=1),
    ]


def generate_case(name: str, batch: int, heads: int, prompt: int, new: int, head_dim: int, **options) -> Case:
    """KVCache as a model uses it: the prompt at once, then one token at a time, compared with full causal attention."""
    total = prompt + new

    def inputs(generator: torch.Generator) -> dict[str, Tensor]:
        def normal() -> Tensor:
            return torch.randn(batch, heads, total, head_dim, generator=generator)

        return {"query": 1.5 * normal(), "key": 1.5 * normal(), "value": 2 + normal()}

    def call(ops, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        cache = KVCache(ops, *query.shape)
        cache.append(key[:, :, :prompt].contiguous(), value[:, :, :prompt].contiguous())
        steps = []
        for i in range(prompt, query.size(2)):
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
        mistakes=lambda query, key, value: mistakes.generate_mistakes(query, key, value, prompt),
        **options,
    )


def generate_cases() -> list[Case]:
    """Short and long prompts."""
    case = generate_case
    return [
        case("9 tokens, then 20", 2, 2, 9, 20, 64, points=0.2, required=True),
        case("1 token, then 70", 1, 2, 1, 70, 40, points=0.1),
        case("1,024 tokens, then 100", 1, 2, 1024, 100, 32, points=0.2, draws=1),
        case("16 sequences, 1,024, then 100", 16, 12, 1024, 100, 64, gpu_only=True, draws=1),
    ]


def _split_values(call: Call) -> dict[str, Tensor] | None:
    """What decode_attention_split of attention.py must return, and the parts; None if the result has the right shape,
    since wrong numbers may come from the kernels that it calls."""
    query, k_cache, v_cache, lengths = (call.arguments[name] for name in ("query", "k_cache", "v_cache", "lengths"))
    splits, scale = min(call.arguments["splits"], k_cache.size(2)), call.arguments["scale"]
    outs, lse = split_mistakes.parts_of(*mistakes.seen(query, k_cache, v_cache, lengths, scale), lengths.int(), splits)
    right = mistakes.decoded(query, k_cache, v_cache, lengths, scale)
    if isinstance(call.returned, Tensor) and call.returned.shape == right.shape:
        return None
    return {"returned": right, "outs": outs, "lse": lse, "out": right.flatten(0, 2)}


def split_cases() -> list[Case]:
    """The parts as the kernel returns them, and merged by task 3's operator."""

    def case(
        name,
        what,
        lengths,
        heads,
        kv_heads,
        max_seq_len,
        head_dim,
        splits,
        scale=None,
        sharpness=1.5,
        below=False,
        **options,
    ) -> Case:
        """what: "out" for the merged result, "parts" for the outputs of the parts, "lse" for their logsumexp."""

        def call(ops, lengths: Tensor, **inputs: Tensor) -> Tensor:
            if what == "out":
                python = python_side(ops)
                with naming_the_line(python):
                    return python.decode_attention_split(
                        ops, load_beside(ops, "task3"), **inputs, lengths=lengths, splits=splits, scale=scale
                    )
            outs, lse = ops.decode_attention_split(**inputs, lengths=lengths, splits=splits, scale=scale)
            if what == "lse":
                return lse
            empty = []  # the outputs of these parts may be anything
            for part in range(splits):
                clamped = lengths.clamp(0, max_seq_len).tolist()
                empty.append([part * split_mistakes.keys_per_part(length, splits) >= length for length in clamped])
            of_row = torch.tensor(empty, device=outs.device).repeat_interleave(heads, 1)
            return outs.masked_fill(of_row[..., None], 0.0)

        def right(query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor) -> Tensor:
            if what == "out":
                return mistakes.decoded(query, k_cache, v_cache, lengths, scale)
            parts = split_mistakes.parts_of(*mistakes.seen(query, k_cache, v_cache, lengths, scale), lengths, splits)
            return parts[what == "lse"]

        def known(query: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor) -> list:
            s, value = mistakes.seen(query, k_cache, v_cache, lengths, scale)
            return {
                "out": split_mistakes.split_mistakes,
                "parts": split_mistakes.split_outs_mistakes,
                "lse": split_mistakes.split_lse_mistakes,
            }[what](s, value, lengths, splits)

        axes = {"out": ("batch", "head", "row", "col"), "parts": ("part", "row", "col"), "lse": ("part", "row")}
        return Case(
            name,
            "split",
            _decode_inputs(lengths, heads, kv_heads, max_seq_len, head_dim, sharpness, below=below),
            call,
            right,
            floor=1e-5 * sharpness**2 + running_sum_floor(max_seq_len, 4),
            axes=axes[what],
            mistakes=known,
            python=Python("attention", {"decode_attention_split": _split_values}) if what == "out" else None,
            step=int(what == "out"),
            nan_hint=NAN_HINT,
            **options,
        )

    return [
        case("outputs of 3 parts", "parts", [70, 40], 2, 2, 80, 64, 3),
        case("outputs of 7 parts", "parts", [8, 1, 0, 203], 2, 2, 203, 40, 7),
        case("outputs of 2 parts, all warps", "parts", [130, 97], 1, 1, 130, 32, 2),
        case("outputs of 4 parts, 2 heads", "parts", [20, 33], 2, 1, 40, 8, 4),
        case("lse of 3 parts", "lse", [70, 40], 2, 2, 80, 64, 3),
        case("lse of 7 parts", "lse", [8, 1, 0, 203], 2, 2, 203, 40, 7),
        case("lse, scores beyond 88", "lse", [77, 100], 2, 2, 100, 64, 3, sharpness=7.0),
        case("lse, scores far below 0", "lse", [77, 100], 2, 2, 100, 64, 3, sharpness=7.0, below=True),
        case("lse of 2 parts, all warps", "lse", [130, 97], 1, 1, 130, 32, 2),
        case("merged: 3 parts", "out", [70, 40], 2, 2, 80, 64, 3),
        case("merged: 1 part, scale 0.5", "out", [33], 2, 2, 40, 8, 1, scale=0.5),
        case("merged: 9 parts, 6 heads on 2", "out", [1, 100, 77, 0], 6, 2, 100, 32, 9),
        case("merged: as many parts as slots", "out", [20, 16], 1, 1, 20, 128, 20),
        case("merged: 32 parts, 65,536 keys", "out", [65_536, 1], 4, 1, 65_536, 128, 32, gpu_only=True, draws=1),
    ]
