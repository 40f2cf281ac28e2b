"""Every operator rejects a bad argument with a ValueError that names it, and writes nothing."""

from __future__ import annotations

import pytest
import torch


def attention(**changed):
    """Valid arguments for the attention of tasks 1, 2 and 4, with some of them replaced."""
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


def blocks(**changed):
    """2 heads, S_q = 64, S_k = 96, blocks of 32."""
    good = {name: of(1, 2, rows, 5) for name, rows in (("query", 64), ("key", 96), ("value", 96))}
    return {**good, "counts": of(2, 2, dtype=INT), "columns": of(2, 2, 3, dtype=INT), "block": 32, **changed}


INT, BOOL = torch.int32, torch.bool
ATTENTION = [
    ({"query": of(3, 4, 5)}, r"query has 3 dimensions, shape \[3, 4, 5\]; it must be \[batch, heads, S_q, head_dim\]"),
    ({"key": of(2, 3, 4, 5, dtype=torch.float16)}, "key has dtype Half; it must be Float"),
    ({"value": of(2, 3, 5, 4).mT}, r"value of shape \[2, 3, 4, 5\] is not contiguous"),
    ({"query": of(2, 3, 0, 5)}, "query has shape .* so S_q is 0; it must be at least 1"),
    ({"query": of(0, 3, 4, 5)}, "so batch is 0"),
    ({name: of(2, 3, 0, 5) for name in ("key", "value")}, "so S_k is 0; it must be at least 1"),
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
LONGER = {name: of(2, 3, 6, 5) for name in ("key", "value")}
STRIDES = [
    *(({"stride": n}, f"stride is {n}; it must be 1 .. S_k = 6") for n in (0, -2, 7, 2**62)),
    *(({"stride": 2, "offset": n}, f"offset is {n}; it must be 0 .. stride - 1 = 1") for n in (2, -1)),
    ({"stride": 1, "offset": 1}, "offset is 1; it must be 0 .. stride - 1 = 0"),
]
BLOCKS = [
    ({"block": 64}, "block is 64, query has S_q = 64 and key S_k = 96; S_q and S_k must be multiples of block"),
    ({"query": of(1, 2, 65, 5)}, "S_q = 65 and key S_k = 96; S_q and S_k must be mult"),
    ({"counts": of(2, 3, dtype=INT)}, r"counts has shape \[2, 3\]; dimension 1 must be S_q / block = 2"),
    ({"counts": of(1, 2, dtype=INT)}, r"counts has shape \[1, 2\]; dimension 0 must be heads = 2"),
    ({"counts": of(2, dtype=INT)}, r"counts has 1 dimensions, shape \[2\]; it must be \[heads, S_q / block\]"),
    ({"counts": of(2, 2, dtype=torch.int64)}, "counts has dtype Long; it must be Int"),
    ({"columns": of(2, 2, 2, dtype=INT)}, r"columns has shape \[2, 2, 2\]; dimension 2 must be S_k / block = 3"),
    ({"columns": of(2, 2, dtype=INT)}, r"columns has 2 dimensions, .* it must be \[heads, S_q / block, S_k /"),
    ({"columns": of(2, 2, 3)}, "columns has dtype Float; it must be Int"),
    ({"columns": of(2, 3, 2, dtype=INT).mT}, "columns .* is not contiguous"),
    ({"scale": float("nan")}, "scale is nan; it must be finite"),
]
BLOCK_MASKS = [
    (of(2, 3, dtype=INT), r"block_mask has 2 dimensions, .* it must be \[heads, S_q / block, S_k"),
    (of(2, 2, 3, dtype=INT), "block_mask has dtype Int; it must be Bool"),
    (of(2, 0, 3, dtype=BOOL), "so S_q / block is 0; it must be at least 1"),
    (of(2, 2, 3, dtype=BOOL).mT, "block_mask .* is not contiguous"),
]
WIDE = {name: of(1, 1, 2, 129) for name in ("query", "key", "value")}
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
    *[("task5", "strided_attention", {"stride": 2, **attention(**bad)}, words) for bad, words in ATTENTION],
    *[("task5", "strided_attention", attention(**LONGER, **bad), words) for bad, words in STRIDES],
    *[("task5", "sliding_window_attention", {"window": 3, **attention(**bad)}, words) for bad, words in ATTENTION],
    *[
        ("task5", "sliding_window_attention", attention(window=window), f"window is {window}; it must be at least 1")
        for window in (0, -3)
    ],
    *[
        ("task5", "block_sparse_attention", blocks(block=block), f"block is {block}; it must be 32, 64, 96 or 128")
        for block in (0, -32, 16, 33, 160)
    ],
    *[("task5", "block_sparse_attention", blocks(**bad), words) for bad, words in BLOCKS],
    *[("task5", "compress_block_mask", {"block_mask": bad}, words) for bad, words in BLOCK_MASKS],
    ("task3", "online_softmax", {"x": of(2, 3, 4)}, r"x has 3 dimensions.*\[rows, cols\]"),
    ("task3", "online_softmax", {"x": of(3, 0)}, "so cols is 0"),
    ("task3", "online_softmax", {"x": of(3, 4, dtype=torch.float16)}, "x has dtype Half; it must be Float"),
    ("task3", "merge_states", {"outs": of(2, 3), "lse": of(2, 3)}, r"outs has 2 dimensions.*\[parts, rows, head_dim\]"),
    ("task3", "merge_states", {"outs": of(2, 3, 4), "lse": of(3, 2)}, "dimension 0 of lse .* dimension 0 of outs"),
    ("task3", "merge_states", {"outs": of(2, 3, 4), "lse": of(2, 4)}, "dimension 1 of lse .* dimension 1 of outs"),
    ("task3", "merge_states", {"outs": of(0, 3, 4), "lse": of(0, 3)}, "so parts is 0"),
    (
        "task3",
        "merge_states",
        {"outs": of(1, 1, 65535 * 64 + 1), "lse": of(1, 1)},
        "head_dim is 4194241 .* at most 4194240",
    ),
    ("task3", "merge_states", {"outs": of(2, 4, 3).mT, "lse": of(2, 3)}, "outs of shape .* is not contiguous"),
    *[
        (task, name, {**WIDE, **more}, r"head_dim = 129; it must be 1 \.\. 128")
        for task, name, more in (
            ("task4", "flash_attention", {"causal": False}),
            ("task5", "strided_attention", {"stride": 2}),
            ("task5", "sliding_window_attention", {"window": 3}),
        )
    ],
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
        """The tensor on the device, with its contiguity kept: to() would make a copy contiguous."""
        if not isinstance(x, torch.Tensor) or x.is_contiguous():
            return x.to(ops.device) if isinstance(x, torch.Tensor) else x
        return x.mT.to(ops.device).mT

    arguments = {name: there(x) for name, x in arguments.items()}
    before = {name: x.clone() for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    with pytest.raises(ValueError, match=words):
        getattr(ops, operator)(**arguments)
    for name, x in before.items():
        assert torch.equal(arguments[name], x)


@pytest.mark.parametrize(
    ("task", "operator"),
    [("task1", "softmax"), ("task2", "softmax"), ("task2", "row_sum"), ("task3", "online_softmax")],
)
def test_more_rows_than_a_grid_has_blocks(solution, task, operator, tmp_path):
    rows, ops = 2**31, solution(task)
    if ops.device.type == "cuda":
        x = torch.empty(rows, 1, device=ops.device)
    else:  # a sparse file takes no memory
        x = torch.from_file(str(tmp_path / "rows"), shared=True, size=rows).view(rows, 1)
    with pytest.raises(ValueError, match=r"x has rows = 2147483648; at most 2\^31 - 1 is supported"):
        getattr(ops, operator)(x)


def test_the_same_memory_for_both_caches_is_refused(solution):
    ops = solution("task6")
    cache, new = torch.zeros(1, 1, 4, 8, device=ops.device), torch.zeros(1, 1, 1, 8, device=ops.device)
    positions = torch.zeros(1, dtype=torch.int32, device=ops.device)
    with pytest.raises(ValueError, match="k_cache and v_cache are the same memory"):
        ops.update_cache(cache, cache, new, new, positions)
