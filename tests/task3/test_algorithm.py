"""Task 3's reference solution has the properties that later tasks rely on, for randomly drawn sizes.

Any tile sizes and any split of the keys, merged in any order and any tree, give the same attention.

The scores of the attention here are exact in float32: queries and keys are multiples of 1/4, so all products and
sums are multiples of 1/16 below 2^24 / 16. What remains is the rounding of the softmax, which has a known bound:
with u = 2^-24, n terms and t rescalings, O and l are off by at most (n + 4 t + 8) u each.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from common.compiling.load import load
from common.compiling.request import BuildRequest
from common.console.paths import build_root
from common.diagnosis.mistakes import merge as merge_mistakes
from common.measure.allocations import AllocationRecorder
from common.reference import oracle as reference
from task3.cases.memory import causal_complaint, complaint
from task3.solution.attention import flash_attention
from task3.tools import memory

set_hypothesis_home_dir(build_root() / "hypothesis")
HEAD_DIM = 4
EPS = 2.0**-23  # 2 u
quick = settings(derandomize=True, deadline=None, database=None, max_examples=100)
sizes = st.integers(1, 40)
magnitudes = st.sampled_from([1, 50, 600])  # scores up to 16, 800 and 9600
seeds = st.integers(0, 2**32 - 1)
hidden_shares = st.sampled_from([0.0, 0.3, 0.9, 1.0])


def exact_inputs(seed: int, seq_q: int, seq_k: int, magnitude: int, hidden: float) -> dict[str, torch.Tensor]:
    """query, key and value [1, 1, tokens, 4] with exact scores at scale 1; some keys have the score -inf."""
    generator = torch.Generator().manual_seed(seed)

    def quarters(tokens: int, low: int) -> torch.Tensor:
        return torch.randint(low, 9, (1, 1, tokens, HEAD_DIM), generator=generator) / 4

    query, key = quarters(seq_q, -8), magnitude * quarters(seq_k, -8)
    query[..., :1] = quarters(seq_q, 1)[..., :1]  # positive, so that -inf in a key gives the score -inf
    key[..., 0].masked_fill_(torch.rand(1, 1, seq_k, generator=generator) < hidden, -math.inf)
    return {"query": query, "key": key, "value": 1 + quarters(seq_k, -8)}


def in_float64(query, key, value, causal=False) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse): one softmax over all keys."""
    query, key, value = query.double(), key.double(), value.double()
    lse = torch.logsumexp(reference.scores(query, key, causal, 1.0), -1)
    return reference.attention(query, key, value, causal, 1.0), lse


def assert_close(got: torch.Tensor, expected: torch.Tensor, bound: float) -> None:
    """Equal where expected is infinite, within the bound elsewhere, and never NaN."""
    finite = torch.isfinite(expected)
    assert torch.equal(got.double()[~finite], expected[~finite])
    error = (got.double() - expected)[finite].abs()
    assert not error.numel() or bool((error <= bound).all()), (float(error.max()), bound)


@quick
@given(seeds, sizes, sizes, st.integers(1, 45), st.integers(1, 45), st.booleans(), magnitudes, hidden_shares)
def test_any_tiles_give_attention(seed, seq_q, seq_k, B_r, B_c, causal, magnitude, hidden) -> None:
    inputs = exact_inputs(seed, seq_q, seq_k, magnitude, hidden)
    out, lse = flash_attention(**inputs, causal=causal, scale=1.0, B_r=B_r, B_c=B_c, return_lse=True)
    expected, expected_lse = in_float64(**inputs, causal=causal)
    rounding = EPS * (seq_k + 4 * math.ceil(seq_k / B_c) + 8)
    assert_close(out, expected, rounding * 3)  # values are at most 3
    assert_close(lse, expected_lse, rounding + EPS * 16 * magnitude)


@quick
@given(seeds, sizes, sizes, st.integers(1, 45), st.integers(1, 45), st.booleans())
def test_any_tiles_give_attention_in_float64(seed, seq_q, seq_k, B_r, B_c, causal) -> None:
    inputs = {name: x.double() for name, x in exact_inputs(seed, seq_q, seq_k, 1, 0.0).items()}
    out = flash_attention(**inputs, causal=causal, B_r=B_r, B_c=B_c)
    expected = reference.attention(**inputs, causal=causal)
    assert_close(out, expected, 1e-13)


@st.composite
def split_and_tree(draw) -> tuple[list[int], tuple | int]:
    """(the part each key belongs to, the merge order): a tree is a part's number or a tuple of trees."""
    parts = draw(st.integers(1, 7))
    part_of_key = draw(st.lists(st.integers(0, parts - 1), min_size=1, max_size=40))
    trees = draw(st.permutations(range(parts)))
    while len(trees) > 1:
        count = draw(st.integers(2, len(trees)))
        trees = [*trees[count:], tuple(trees[:count])]
    return part_of_key, trees[0]


def depth(tree: tuple | int) -> int:
    return 0 if isinstance(tree, int) else 1 + max(map(depth, tree))


def merge(ops, tree: tuple | int, states: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of the parts in a tree, merged by merge_states from the leaves to the root."""
    if isinstance(tree, int):
        return states[tree]
    outs, lse = zip(*(merge(ops, branch, states) for branch in tree), strict=True)
    return ops.merge_states(torch.stack(outs), torch.stack(lse))


@quick
@given(seeds, st.integers(1, 9), split_and_tree(), magnitudes, hidden_shares, st.integers(1, 9))
def test_any_split_of_the_keys_in_any_tree_gives_attention(
    solution, seed, seq_q, split, magnitude, hidden, B_c
) -> None:
    part_of_key, tree = split
    ops = solution("task3")
    inputs = exact_inputs(seed, seq_q, len(part_of_key), magnitude, hidden)
    states = []
    for part in range(7):
        chosen = [number for number, its_part in enumerate(part_of_key) if its_part == part]
        if chosen:
            out, lse = flash_attention(
                inputs["query"], inputs["key"][:, :, chosen], inputs["value"][:, :, chosen], scale=1.0, B_c=B_c,
                return_lse=True,
            )  # fmt: skip
        else:  # a part without keys: its output is unwritten
            out, lse = torch.full((1, 1, seq_q, HEAD_DIM), math.nan), torch.full((1, 1, seq_q), -math.inf)
        states.append((out[0, 0].to(ops.device), lse[0, 0].to(ops.device)))
    out, lse = (x.cpu() for x in merge(ops, tree, states))
    expected, expected_lse = in_float64(**inputs)
    # each lse is rounded, by at most u times its size; so is the difference of two, which determines the weights
    levels, largest = 1 + depth(tree), 16 * magnitude + 4
    rounding = EPS * (len(part_of_key) + 4 * math.ceil(len(part_of_key) / B_c) + 8 + levels * (2 * largest + 16))
    assert_close(out, expected[0, 0], rounding * 3)
    assert_close(lse, expected_lse[0, 0], rounding)


@quick
@given(
    seeds, st.integers(1, 70), st.integers(1, 5), st.integers(1, 70), st.sampled_from([0.0, 50.0, 1e4]), hidden_shares
)
def test_any_number_of_parts_at_once(solution, seed, parts, rows, head_dim, size, empty) -> None:
    generator = torch.Generator().manual_seed(seed)
    outs = torch.randn(parts, rows, head_dim, generator=generator)
    lse = size + 3 * torch.randn(parts, rows, generator=generator)
    unseen = torch.rand(parts, rows, generator=generator) < empty
    outs[unseen], lse[unseen] = math.nan, -math.inf
    ops = solution("task3")
    out, merged_lse = (x.cpu() for x in ops.merge_states(outs.to(ops.device), lse.to(ops.device)))
    expected, expected_lse = merge_mistakes.merge_states(outs.double(), lse.double())
    largest = float(outs.nan_to_num().abs().max())
    assert_close(out, expected, EPS * (2 * parts + 8) * largest)
    assert_close(merged_lse, expected_lse, EPS * (parts + 8 + size + 16))


@settings(quick, max_examples=40)
@given(seeds, st.integers(1, 3), st.integers(1, 2500), st.sampled_from([1.0, 100.0, 3000.0]), hidden_shares)
def test_online_softmax_of_any_length(solution, seed, rows, cols, size, hidden) -> None:
    generator = torch.Generator().manual_seed(seed)
    x = (size * torch.randn(rows, cols, generator=generator)).clamp(-1e4, 1e4)
    x.masked_fill_(torch.rand(rows, cols, generator=generator) < hidden, -math.inf)
    ops = solution("task3")
    y, lse = (out.cpu() for out in ops.online_softmax(x.to(ops.device)))
    rounding = EPS * (cols / 256 + 32)  # a thread adds cols / 256 terms, followed by 8 merges
    assert_close(y, reference.softmax(x.double()), rounding)
    assert_close(lse, torch.logsumexp(x.double(), -1), rounding + EPS * min(4 * size, 1e4))


def of(*shape, dtype=torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"query": of(3, 4, 5)}, r"query has shape \[3, 4, 5\]; it must be \[batch, heads, tokens, head_dim\]"),
        ({"query": of(2, 3, 4, 5, dtype=torch.int64)}, "query has dtype torch.int64"),
        ({"value": of(2, 3, 4, 5, dtype=torch.float64)}, "value is torch.float64 on cpu"),
        ({"key": of(2, 1, 4, 5)}, r"key has shape \[2, 1, 4, 5\].*it must be \[2, 3, 4, 5\]"),
        ({"value": of(2, 3, 6, 5)}, r"value has shape \[2, 3, 6, 5\].*it must be \[2, 3, 4, 5\]"),
        ({"key": of(2, 3, 0, 5)}, "key has shape .* all at least 1"),
        ({"B_r": 0}, "B_r is 0; it must be at least 1"),
        ({"B_c": -1}, "B_c is -1; it must be at least 1"),
        ({"scale": math.nan}, "scale is nan; it must be finite"),
    ],
)
def test_a_bad_argument_of_the_algorithm_is_named(changed, words) -> None:
    good = {name: of(2, 3, 4, 5) for name in ("query", "key", "value")}
    with pytest.raises(ValueError, match=words):
        flash_attention(**{**good, **changed})


def test_allocations_are_counted_while_they_are_alive() -> None:
    x = torch.zeros(256)  # 1 KiB
    with AllocationRecorder(inputs=(x,)) as made:
        x[10:].view(2, 123).expand(4, 2, 123)
        assert made.peak_bytes == 0 and made.largest is None  # views allocate nothing
        first = x + 1
        del first
        pair = torch.stack([x, x]).sum(0)
        made_by_factory = torch.empty(1024)
    del pair, made_by_factory
    # 2 KiB for the stack and 1 for its sum; or, once the stack is freed, 1 for the sum and 4 from torch.empty
    assert made.peak_bytes == 5 * 1024
    assert made.largest.shape == (1024,) and "empty" in made.largest.operator
    assert made.largest.file_line.startswith("tests/task3/test_algorithm.py:")
    assert "aten.stack.default" in made.operators or "aten.cat.default" in made.operators


def test_what_is_computed_from_one_input_is_counted_apart() -> None:
    query, key, kept = torch.ones(4), torch.ones(256), torch.ones(64)
    with AllocationRecorder(inputs=(query, key), source=query) as made:
        key + 1
        assert made.peak_from_source == 0
        first = query + 1
        second = first + 1
        second.add_(1)  # in place: no new memory
        del first
        third = second * 2
        assert made.peak_from_source == 2 * 4 * 4
        del second, third
        kept[:4].add_(query)  # memory allocated before
        assert made.peak_from_source == 64 * 4 and made.largest.bytes == 256 * 4
        torch.mul(query, 2, out=key[:4])  # an input's memory
        assert made.peak_from_source == (64 + 256) * 4
        halves = query.half()  # counted at the source's element size
        halves.view(torch.int64).add_(0)
    assert made.peak_from_source == (64 + 256 + 4) * 4


def test_what_one_input_meets_of_another_is_counted() -> None:
    query, key = torch.ones(2, 3), torch.ones(5, 3)
    with AllocationRecorder(inputs=(query, key), source=query, partner=key) as made:
        query @ key[:4].T
        (key * 2).sum(), query.exp()
        assert made.met == 12
        (query[:, None] * (key + 1).expand(2, 5, 3)).sum(-1)  # a copy, each number once
        assert made.met == 12 + 15
        key.sum().item(), (query > 0).any().item()
        assert made.read == ""
        query.sum().item()
    assert made.read.startswith("tests/task3/test_algorithm.py:")


def test_memory_grows_with_the_tokens_and_not_with_their_square() -> None:
    peaks = []
    for tokens in (128, 256, 512):
        inputs = torch.randn(3, 1, 2, tokens, 8).unbind(0)
        with AllocationRecorder("cpu", None, inputs, inputs[0]) as made:
            flash_attention(*inputs, B_r=32, B_c=32)
        assert complaint(made, inputs[0], inputs[1], 32, 32) == ""
        peaks.append(made.peak_bytes)
    assert peaks[2] - peaks[1] == 2 * (peaks[1] - peaks[0])


def test_tiles_that_a_causal_mask_hides_are_not_computed() -> None:
    query, key, value = (torch.randn(1, 2, 128, 8) for _ in range(3))
    for causal, words in ((True, ""), (False, "meet 512 keys together; 320 are enough: end the loop")):
        with AllocationRecorder("cpu", None, (query, key, value), query, key) as made:
            flash_attention(query, key, value, causal, B_r=32, B_c=32)
        found = causal_complaint(made, query, key, 32, 32)
        assert words in found and bool(words) == bool(found)


def test_the_memory_command_prints_a_table(capsys) -> None:
    threads = torch.get_num_threads()
    try:
        assert memory.main(["--solution"]) == 0
    finally:
        torch.set_num_threads(threads)
    assert "1x1x2048x64" in capsys.readouterr().out


@pytest.mark.gpu
def test_merging_more_than_2_to_the_31_elements() -> None:
    free, _ = torch.cuda.mem_get_info()
    if free < 30 * 2**30:
        pytest.skip("needs 30 GiB of free GPU memory")
    outs, lse = torch.randn(3, 5_700_000, 128, device="cuda"), torch.randn(3, 5_700_000, device="cuda")
    assert outs.numel() > 2**31
    out, merged_lse = load(BuildRequest("task3", "solution")).merge_states(outs, lse)
    expected, expected_lse = merge_mistakes.merge_states(outs[:, -8:].double(), lse[:, -8:].double())
    torch.testing.assert_close(out[-8:].double(), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(merged_lse[-8:].double(), expected_lse, rtol=1e-5, atol=1e-5)
