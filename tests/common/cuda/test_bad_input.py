"""Every operator refuses a bad argument with a ValueError that names it, and writes nothing."""

from __future__ import annotations

import pytest
import torch


def attention(**changed):
    """Good arguments for the attention of tasks 1, 2 and 4, some of them replaced."""
    good = {name: torch.randn(2, 3, 4, 5) for name in ("query", "key", "value")}
    return {**good, "causal": False, **changed}


def decode(**changed):
    cache = torch.randn(2, 2, 8, 5)
    good = {"query": torch.randn(2, 4, 1, 5), "k_cache": cache, "v_cache": cache.clone()}
    return {**good, "lengths": torch.tensor([3, 8], dtype=torch.int32), **changed}


def update(**changed):
    cache, new = torch.randn(2, 2, 8, 5), torch.randn(2, 2, 3, 5)
    good = {"k_cache": cache, "v_cache": cache.clone(), "key": new, "value": new.clone()}
    return {**good, "positions": torch.tensor([0, 5], dtype=torch.int32), **changed}


def of(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


ATTENTION = [
    ({"query": of(3, 4, 5)}, r"query has 3 dimensions, shape \[3, 4, 5\]; it must be \[batch, heads, S_q, head_dim\]"),
    ({"key": of(2, 3, 4, 5, dtype=torch.float16)}, "key has dtype Half; it must be Float"),
    ({"value": of(2, 3, 5, 4).mT}, r"value of shape \[2, 3, 4, 5\] is not contiguous"),
    ({"query": of(2, 3, 0, 5)}, "query has shape .* so S_q is 0; it must be at least 1"),
    ({"query": of(0, 3, 4, 5)}, "so batch is 0"),
    ({"key": of(2, 1, 4, 5)}, "key has shape .* and query has shape .* dimension 1 of key"),
    ({"value": of(2, 3, 6, 5)}, "value has shape .* dimension 2 of value"),
    ({"scale": float("nan")}, "scale is nan; it must be finite"),
    ({"scale": 1e300}, "scale is 1.*; it must be finite as a float32"),
]
WHOLE = r"\[batch, heads, S_q, S_k\] = \[2, 3, 4, 4\]"
MASKS = [
    ({"mask": of(4, 4, dtype=torch.int64)}, r"mask has dtype Long; it must be Bool \(true: attend\) or Float"),
    ({"mask": of(4, 4, dtype=torch.float16)}, "mask has dtype Half; it must be Bool .* or Float"),
    ({"mask": of(4)}, rf"mask has 1 dimensions, shape \[4\]; it must have 2 to 4 and broadcast to {WHOLE}"),
    ({"mask": of(1, 2, 3, 4, 4)}, "mask has 5 dimensions"),
    ({"mask": of(4, 5)}, rf"mask has shape \[4, 5\], .* broadcast to {WHOLE}: dimension 1 must be 1 or S_k = 4"),
    ({"mask": of(3, 4)}, "dimension 0 must be 1 or S_q = 4"),
    ({"mask": of(2, 4, 4)}, "dimension 0 must be 1 or heads = 3"),
    ({"mask": of(3, 1, 1, 4, dtype=torch.bool)}, "dimension 0 must be 1 or batch = 2"),
    ({"mask": of(0, 4)}, "dimension 0 must be 1 or S_q = 4"),
]
CASES = [
    ("task2", "softmax", {"x": of(2, 3, 4)}, r"x has 3 dimensions.*\[rows, cols\]"),
    ("task2", "softmax", {"x": of(2, 65537)}, "x has .*65,?537.*65,?536|65,?536.*65,?537"),
    ("task2", "softmax", {"x": of(3, 0)}, "so cols is 0"),
    ("task2", "softmax", {"x": of(3, 4, dtype=torch.int64)}, "x has dtype Long; it must be Float"),
    ("task2", "gemm_nt", {"a": of(2, 3, 4), "b": of(2, 5, 6)}, "dimension 2 of a"),
    ("task2", "gemm_nn", {"a": of(2, 3, 4), "b": of(2, 5, 6)}, "dimension 2 of a .* dimension 1 of b"),
    ("task2", "gemm_nn", {"a": of(2, 3, 4), "b": of(1, 4, 6)}, "dimension 0 of a"),
    ("task2", "gemm_nn", {"a": of(2, 3, 0), "b": of(2, 0, 6)}, "so K is 0"),
    *[("task1", "naive_attention", attention(**bad), words) for bad, words in [*ATTENTION, *MASKS]],
    (
        "task1",
        "naive_attention",
        attention(query=of(2, 3, 4, 5, dtype=torch.float64)),
        "query has dtype Double; it must be Float, Half or BFloat16",
    ),
    (
        "task1",
        "naive_attention",
        attention(query=of(2, 3, 4, 5, dtype=torch.float16)),
        "key has dtype Float; it must be Half",
    ),
    (
        "task1",
        "attention_scores",
        {"query": of(2, 3, 4, 5), "key": of(2, 3, 7, 6), "causal": False},
        "dimension 3 of key .* dimension 3 of query",
    ),
    (
        "task1",
        "attention_scores",
        {"query": of(2, 3, 4, 5), "key": of(2, 3, 7, 5), "causal": False, "mask": of(4, 4)},
        "dimension 1 must be 1 or S_k = 7",
    ),
    ("task1", "softmax", {"x": of(2, 3, 4)}, r"x has 3 dimensions.*\[rows, cols\]"),
    (
        "task1",
        "attention_output",
        {"weights": of(2, 3, 4, 5), "value": of(2, 3, 6, 7)},
        "dimension 3 of weights .* dimension 2 of value",
    ),
    (
        "task1",
        "attention_output",
        {"weights": of(2, 3, 4, 5, dtype=torch.float16), "value": of(2, 3, 5, 7, dtype=torch.float16)},
        "weights has dtype Half; it must be Float",
    ),
    *[("task2", "attention", attention(**bad), words) for bad, words in [*ATTENTION, *MASKS]],
    *[("task4", "flash_attention", attention(**bad), words) for bad, words in ATTENTION],
    (
        "task4",
        "flash_attention",
        attention(**{name: of(1, 1, 2, 129) for name in ("query", "key", "value")}),
        "head_dim = 129; it must be 1 .. 128",
    ),
    ("task6", "decode_attention", decode(query=of(2, 4, 2, 5)), "dimension 2 must be 1"),
    ("task6", "decode_attention", decode(query=of(2, 3, 1, 5)), "heads = 3 .* kv_heads = 2; heads must be a multiple"),
    ("task6", "decode_attention", decode(query=of(2, 4, 1, 6)), "dimension 3 of query"),
    ("task6", "decode_attention", decode(lengths=torch.tensor([3, 8])), "lengths has dtype Long; it must be Int"),
    ("task6", "decode_attention", decode(lengths=int32(3)), "dimension 0 of lengths"),
    ("task6", "decode_attention", decode(v_cache=of(2, 2, 9, 5)), "dimension 2 of v_cache"),
    ("task6", "decode_attention", decode(scale=float("inf")), "scale is inf"),
    ("task6", "update_cache", update(key=of(2, 2, 9, 5), value=of(2, 2, 9, 5)), "new_tokens = 9; at most .* = 8"),
    ("task6", "update_cache", update(key=of(2, 1, 3, 5)), "dimension 1 of key"),
    ("task6", "update_cache", update(value=of(2, 2, 2, 5)), "dimension 2 of value"),
    ("task6", "update_cache", update(positions=int32(1, 2, 3)), "dimension 0 of positions"),
    ("task6", "update_cache", update(k_cache=of(2, 2, 5, 8).mT), "k_cache of shape .* is not contiguous"),
]


@pytest.mark.parametrize(("task", "operator", "arguments", "words"), CASES)
def test_a_bad_argument_is_named(solution, task, operator, arguments, words):
    ops = solution(task)

    def there(x):
        if not isinstance(x, torch.Tensor):
            return x
        # to() would make a copy contiguous
        return (
            x
            if x.device.type == ops.device.type
            else x.mT.to(ops.device).mT
            if not x.is_contiguous()
            else x.to(ops.device)
        )

    arguments = {name: there(x) for name, x in arguments.items()}
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    with pytest.raises(ValueError, match=words):
        getattr(ops, operator)(**arguments)
    for name, x in before.items():
        assert torch.equal(arguments[name], x)


def test_the_same_memory_for_both_caches_is_refused(solution):
    ops = solution("task6")
    cache, new = torch.zeros(1, 1, 4, 8, device=ops.device), torch.zeros(1, 1, 1, 8, device=ops.device)
    positions = torch.zeros(1, dtype=torch.int32, device=ops.device)
    with pytest.raises(ValueError, match="k_cache and v_cache are the same memory"):
        ops.update_cache(cache, cache, new, new, positions)


def test_a_full_cache_is_refused_and_unchanged(solution):
    from task6.attention import KVCache

    ops = solution("task6")
    cache = KVCache(ops, batch=2, kv_heads=1, max_seq_len=4, head_dim=8)
    token = torch.randn(2, 1, 3, 8, device=ops.device)
    cache.append(token, token)
    kept = cache.k[:, :, :3].clone()
    with pytest.raises(ValueError, match="sequence 0 holds 3 tokens and 3 more do not fit into max_seq_len = 4"):
        cache.append(2 * token, 2 * token)
    assert torch.equal(cache.k[:, :, :3], kept) and cache.seq_len == 3 and cache.lengths.tolist() == [3, 3]
