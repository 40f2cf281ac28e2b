"""Task 6's Python side: the cache and its errors, split-KV, the layer, the model, the times, the command line.

The oracles are PyTorch's own attention in float64 and TorchAttention. Nothing is timed.
"""

from __future__ import annotations

import io
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from second_per_call import SecondPerCall
from torch import Tensor

from common.cli import test as command
from common.cli.test import NOTHING_RUN, chosen_cases, parser_of, test_main
from common.compiling import skeletons
from common.compiling.gaps import gaps_of_operator
from common.compiling.places import Place
from common.kernels.decode import cache
from common.kernels.decode.cache import KVCache
from common.measure.timing import Timing
from common.reference.bounds import running_sum_floor
from common.testing.case import FAIL, NOT_IMPLEMENTED
from common.testing.judging import judge
from common.testing.measurement import TestRun
from task6.attention import KVCache as ImportedByTask7
from task6.cases import PARTS, cases, speed
from task6.cases.speed import Problem
from task6.given import model
from task6.given.model import DummyLLM, Generation, Sizes, generate
from task6.given.operators import load_beside
from task6.given.torch_attention import TorchAttention
from task6.solution.attention import customAttention, decode_attention_split
from task6.test import TEST
from task6.tools import pipeline
from task6.tools.pipeline import Comparison, Times, Workload

ROUNDING = 1e-5
TINY = Sizes(layers=2, hidden_dim=32, num_heads=4, num_kv_heads=2, vocab_size=60)


@pytest.fixture
def ops(solution):
    return solution("task6")


def normal(*shape: int, ops=None, seed: int = 0) -> Tensor:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made if ops is None else made.to(ops.device)


def as_int(*values: int, ops) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=ops.device)


# ---- the cache's errors leave it unchanged


def filled(ops) -> tuple[KVCache, Tensor]:
    """A cache of 2 sequences with 3 of 5 slots filled, and a copy of its memory."""
    made = KVCache(ops, batch=2, kv_heads=2, max_seq_len=5, head_dim=8)
    made.k.zero_()
    made.v.zero_()
    made.append(normal(2, 2, 3, 8, ops=ops), normal(2, 2, 3, 8, ops=ops, seed=1))
    return made, torch.stack((made.k, made.v))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ((2, 2, 3, 8), (2, 2, 3, 8), "sequence 0 holds 3 tokens and 3 more do not fit into max_seq_len = 5"),
        ((3, 2, 1, 8), (3, 2, 1, 8), "dimension 0 of key"),
        ((2, 1, 1, 8), (2, 1, 1, 8), "dimension 1 of key"),
        ((2, 2, 1, 9), (2, 2, 1, 9), "dimension 3 of key"),
        ((2, 2, 1, 8), (2, 2, 2, 8), "dimension 2 of value"),
        ((2, 2, 8), (2, 2, 8), "key has 3 dimensions"),
        ((2, 2, 0, 8), (2, 2, 0, 8), "new_tokens is 0"),
    ],
)
def test_what_does_not_fit_the_cache_is_refused_and_changes_nothing(ops, key, value, words):
    made, before = filled(ops)
    with pytest.raises(ValueError, match=words):
        made.append(normal(*key, ops=ops), normal(*value, ops=ops))
    assert torch.equal(torch.stack((made.k, made.v)), before)
    assert made.seq_len == 3 and made.lengths.tolist() == [3, 3]


def test_one_full_sequence_stops_all(ops):
    made, _ = filled(ops)
    made.reset(0)
    made.append(normal(2, 2, 2, 8, ops=ops), normal(2, 2, 2, 8, ops=ops))
    assert made.lengths.tolist() == [2, 5] and made.seq_len == 5
    before = made.k.clone()
    with pytest.raises(ValueError, match="sequence 1 holds 5 tokens and 1 more do not fit"):
        made.append(normal(2, 2, 1, 8, ops=ops), normal(2, 2, 1, 8, ops=ops))
    assert torch.equal(made.k, before)
    made.reset()
    assert made.lengths.tolist() == [0, 0] and made.seq_len == 0


@pytest.mark.parametrize("sequence", [-1, 2])
def test_a_sequence_that_is_not_there_cannot_be_reset(ops, sequence):
    made, _ = filled(ops)
    with pytest.raises(ValueError, match=rf"sequence is {sequence}; it must be 0 \.\. batch - 1 = 1"):
        made.reset(sequence)
    assert made.lengths.tolist() == [3, 3]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((0, 1, 1, 1), "batch is 0; it must be at least 1"),
        ((1, 0, 1, 1), "kv_heads is 0"),
        ((1, 1, -3, 1), "max_seq_len is -3"),
        ((1, 1, 1, 129), "head_dim is 129; the decode kernel supports at most 128"),
    ],
)
def test_a_cache_of_no_size_is_refused(ops, sizes, words):
    with pytest.raises(ValueError, match=words):
        KVCache(ops, *sizes)


def test_a_cache_of_another_dtype(ops):
    assert KVCache(ops, 1, 1, 4, 8, dtype=torch.float16).v.dtype == torch.float16
    assert ImportedByTask7 is KVCache


@pytest.mark.parametrize("wrong", [-1, 4, 2**31 - 1])
def test_a_position_out_of_range_is_refused_and_nothing_written(ops, wrong):
    made, before = filled(ops)
    new = normal(2, 2, 2, 8, ops=ops)
    with pytest.raises(ValueError, match=rf"positions\[1\] is {wrong}; it must be 0 \.\. max_seq_len - new_tokens = 3"):
        cache.update_cache(ops, made.k, made.v, new, new, as_int(0, wrong, ops=ops))
    assert torch.equal(torch.stack((made.k, made.v)), before)
    long = normal(2, 2, 6, 8, ops=ops)
    with pytest.raises(ValueError, match="key has new_tokens = 6; at most max_seq_len = 5 fit into the cache"):
        cache.update_cache(ops, made.k, made.v, long, long, as_int(0, 0, ops=ops))
    assert torch.equal(torch.stack((made.k, made.v)), before)
    cache.update_cache(ops, made.k, made.v, new, new, as_int(0, 3, ops=ops))
    assert torch.equal(made.k[1, :, 3:], new[1]) and torch.equal(made.v[0, :, :2], new[0])
    assert torch.equal(made.k[1, :, :3], before[0, 1, :, :3])


@pytest.mark.parametrize("wrong", [-1, 6])
def test_a_wrong_length_is_refused(ops, wrong):
    made, _ = filled(ops)
    query = normal(2, 4, 1, 8, ops=ops)
    with pytest.raises(ValueError, match=rf"lengths\[0\] is {wrong}; it must be 0 \.\. max_seq_len = 5"):
        cache.decode_attention(ops, query, made.k, made.v, as_int(wrong, 3, ops=ops))
    assert torch.equal(cache.decode_attention(ops, query, made.k, made.v, made.lengths), made.attend(query))
    with pytest.raises(ValueError, match=r"query has shape .* dimension 0 of query"):
        made.attend(query[:1])


# ---- split-KV


@pytest.mark.parametrize("splits", [1, 2, 3, 8, 37, 90])
def test_any_number_of_parts_gives_attention(solution, splits):
    ops, merge_ops = solution("task6"), solution("task3")
    lengths = (90, 1, 37, 64)
    query, k_cache, v_cache = normal(4, 6, 1, 40, ops=ops), normal(4, 3, 90, 40, ops=ops), normal(4, 3, 90, 40, ops=ops)
    out = decode_attention_split(ops, merge_ops, query, k_cache, v_cache, as_int(*lengths, ops=ops), splits)
    for b, length in enumerate(lengths):
        part = (x[b : b + 1, :, :length].double() for x in (k_cache, v_cache))
        right = F.scaled_dot_product_attention(query[b : b + 1].double(), *part, enable_gqa=True)
        assert (out[b] - right[0]).abs().max() <= ROUNDING + running_sum_floor(90, 4)


@pytest.mark.parametrize("splits", [0, -1, 9])
def test_a_number_of_parts_that_makes_no_sense_is_refused(ops, splits):
    x = normal(1, 2, 8, 4, ops=ops)
    with pytest.raises(ValueError, match=rf"splits is {splits}; it must be 1 \.\. max_seq_len = 8"):
        ops.decode_attention_split(normal(1, 2, 1, 4, ops=ops), x, x, as_int(3, ops=ops), splits)


def test_decoding_does_not_wait_for_the_optional_gaps(root, tmp_path, monkeypatch):
    """A student file with all gaps filled except those of split_kernel."""
    source = root / "task6" / "solution" / "decode_attention.cu"
    lines, gap = [], 0
    for part in skeletons.parse(source.read_text(), source.name):
        gap += part.is_gap
        lines += part.skeleton() if part.is_gap and gap > 6 else part.lines
    file = tmp_path / source.name
    file.write_text("\n".join(lines))
    sources = [file, root / "task6" / "given" / "binding.cpp"]
    assert gap == 8
    assert gaps_of_operator("update_cache", sources) == gaps_of_operator("decode_attention", sources) == []
    assert [one.function for one in gaps_of_operator("decode_attention_split", sources)] == ["split_kernel"] * 2

    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(command, "places_of", lambda task, variant: [Place(task, (file,), sources[1])])
    chosen = parser_of(TEST).parse_args([])
    assert {case.part for case in chosen_cases(console, TEST, chosen)} == {"update", "decode", "generate", "pipeline"}
    said = console.file.getvalue()
    assert said.count("in split_kernel") == 2 and "--split tests it" in said
    for arguments, source in ((["--split"], file), ([], root / "task6" / "solution" / "decode_attention.cu")):
        console = Console(file=io.StringIO(), width=200)
        monkeypatch.setattr(command, "places_of", lambda task, variant, one=source: [Place(task, (one,), sources[1])])
        made = chosen_cases(console, TEST, parser_of(TEST).parse_args(arguments))
        assert "split" in {case.part for case in made} and "split (optional)" not in console.file.getvalue()


# ---- the layer


def layers(solution, *sizes: int):
    """customAttention and TorchAttention with the same weights."""
    torch.manual_seed(0)
    ours = customAttention(*sizes, solution("task6"), solution("task4"))
    theirs = TorchAttention(*sizes, device=ours.out_projection.weight.device)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1)])
def test_the_layer_is_pytorchs(solution, ops, heads, kv_heads):
    ours, theirs = layers(solution, 32, heads, kv_heads, 2, 30)
    x = normal(2, 30, 32, ops=ops)
    for first, last in ((0, 9), (9, 10), (10, 11), (0, 1), (1, 2), (0, 30)):
        out, right = (layer(x[:, first:last], first) for layer in (ours, theirs))
        assert out.shape == right.shape and not out.requires_grad
        assert (out - right).abs().max() <= ROUNDING
        assert ours.cache.seq_len == theirs.seq_len == last


@pytest.mark.parametrize(
    ("x", "position", "words"),
    [
        ((1, 4, 8), 0, r"x has shape \[1, 4, 8\]; it must be \[batch = 2, new_tokens, hidden_dim = 8\]"),
        ((2, 4, 9), 0, "hidden_dim = 8"),
        ((2, 0, 8), 0, "new_tokens"),
        ((2, 8), 0, r"x has shape \[2, 8\]"),
        ((2, 1, 8), 4, "position is 4, but the cache holds 3 tokens"),
        ((2, 1, 8), 2, "position is 2, but the cache holds 3 tokens"),
        ((2, 1, 8), -1, r"position is -1 .* must be in 0 \.\. max_seq_len - 1 = 5"),
        ((2, 4, 8), 3, r"position is 3 and there are 4 new tokens; all must be in 0 \.\. max_seq_len - 1 = 5"),
        ((2, 7, 8), 0, "there are 7 new tokens; all must be in"),
        ((2, 2, 8), 3, "x holds 2 new tokens and position is 3; after a prompt they come one by one"),
    ],
)
def test_the_layer_refuses_and_forgets_nothing(solution, ops, x, position, words):
    ours, theirs = layers(solution, 8, 2, 2, 2, 6)
    prompt = normal(2, 3, 8, ops=ops)
    for layer in (ours, theirs):
        layer(prompt, 0)
        with pytest.raises(ValueError, match=words):
            layer(normal(*x, ops=ops), position)
        with pytest.raises(ValueError, match=r"x is torch\.float64 on .*; the weights are torch\.float32 on"):
            layer(normal(2, 1, 8, ops=ops).double(), 3)
    assert ours.cache.lengths.tolist() == [3, 3]
    token = normal(2, 1, 8, ops=ops)
    assert (ours(token, 3) - theirs(token, 3)).abs().max() <= ROUNDING


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((9, 2, 2, 1, 4), "hidden_dim is 9; it must be a multiple of num_heads = 2"),
        ((12, 6, 4, 1, 4), "num_heads is 6; it must be a multiple of num_kv_heads = 4"),
        ((8, 2, 0, 1, 4), "num_kv_heads is 0; it must be at least 1"),
        ((8, 2, 2, 0, 4), "batch is 0"),
        ((8, 2, 2, 1, 0), "max_seq_len is 0"),
        ((258, 2, 2, 1, 4), "head_dim is 129; the decode kernel supports at most 128"),
    ],
)
def test_a_layer_of_no_size_is_refused(solution, sizes, words):
    with pytest.raises(ValueError, match=words):
        customAttention(*sizes, solution("task6"), solution("task4"))


# ---- the model


def torch_model(sizes: Sizes = TINY, batch: int = 1, room: int = 30) -> DummyLLM:
    return DummyLLM(sizes, lambda *given: TorchAttention(*given), batch, room)


def test_the_model_has_the_same_weights_every_time():
    one, other = torch_model(), torch_model()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_generate_takes_the_likeliest_token_each_time():
    made, again = torch_model(batch=2), torch_model(batch=2)
    prompt = torch.randint(60, (2, 7), generator=torch.Generator().manual_seed(1))
    found = generate(made, prompt, 9)
    assert found.tokens.shape == (2, 9) and found.ttft_ms > 0 and len(found.tbt_ms) == 8
    known = prompt
    for _ in range(9):  # without a cache: everything is recomputed for each token
        known = torch.cat((known, again(known, 0).argmax(-1, keepdim=True)), 1)
    assert torch.equal(found.tokens, known[:, 7:])
    assert len(found.tokens.unique()) > 5, "a model that says the same all the time would hide mistakes"


@pytest.mark.parametrize("new_tokens", [0, 24])
def test_generate_refuses_what_does_not_fit(new_tokens):
    words = rf"new_tokens is {new_tokens} after a prompt of 7; it must be 1 \.\. max_seq_len - 7 = 23"
    with pytest.raises(ValueError, match=words):
        generate(torch_model(), torch.zeros(1, 7, dtype=torch.int64), new_tokens)


def test_the_model_refuses_what_does_not_fit():
    made = torch_model()
    with pytest.raises(ValueError, match=r"tokens has shape \[7\]"):
        made(torch.zeros(7, dtype=torch.int64), 0)
    with pytest.raises(ValueError, match=r"position is 25 and there are 6 tokens; all must be in 0 \.\. max_seq"):
        made(torch.zeros(1, 6, dtype=torch.int64), 25)
    with pytest.raises(ValueError, match="layers is 0; it must be at least 1"):
        torch_model(Sizes(0, 8, 2, 2, 5))
    with pytest.raises(ValueError, match="vocab_size is 0; it must be at least 1"):
        torch_model(Sizes(1, 8, 2, 2, 0))


def test_no_rounding_decides_a_token_of_the_small_model(monkeypatch):
    """The top two logits always differ by at least 0.001; the logits are 1.5 on average, and rounding is 1e-5."""
    work, gaps = pipeline.WORKLOADS["small"], []
    made = torch_model(work.sizes, room=work.prompt_tokens + pipeline.NEW_TOKENS)
    forward = made.forward

    def watched(tokens: Tensor, position: int) -> Tensor:
        logits = forward(tokens, position)
        first, second = logits[0].topk(2).values.tolist()
        gaps.append(first - second)
        return logits

    made.forward = watched
    monkeypatch.setattr(
        pipeline, "models", lambda ops, workload: (made, torch_model(work.sizes, room=made.max_seq_len))
    )
    found = pipeline.measure(SimpleNamespace(device=torch.device("cpu")), work)
    assert not found.difference
    assert len(gaps) == 3 + pipeline.NEW_TOKENS + work.prompts - 1 and min(gaps[3:]) > 1e-3


# ---- TTFT and TBT

SHORT = Workload(TINY, prompt_tokens=6, prompts=3)


@pytest.fixture
def results_file(monkeypatch, tmp_path):
    """A copy of Results.md with the two blocks that task 6 writes, a short workload, a machine."""
    file = tmp_path / "Results.md"
    blocks = "".join(f"<!-- BEGIN {name} -->\n<!-- END {name} -->\n" for name in (pipeline.BLOCK, speed.BLOCK))
    file.write_text(f"# Results\n{blocks}end\n")
    monkeypatch.setattr(pipeline.results, "RESULTS", file)
    monkeypatch.setattr(speed.report, "machine", lambda: {"gpu": "H200"})
    monkeypatch.setattr(pipeline, "NEW_TOKENS", 8)
    monkeypatch.setitem(pipeline.WORKLOADS, "small", SHORT)
    return file


def outcome(measurement, part: str, ops, report: bool = False, **options) -> tuple[bool, str]:
    """(whether everything succeeded, the output)."""
    console = Console(file=io.StringIO(), width=150)
    run = TestRun(console, ops, SimpleNamespace(report=report, **options), [part], f"python -m task6.test --{part}")
    return measurement.outcome(run)[1], console.file.getvalue()


def run_pipeline(ops, report: bool = False) -> tuple[bool, str]:
    return outcome(pipeline.PIPELINE, "pipeline", ops, report, size="small")


def test_the_pipeline_runs_and_reports(ops, results_file):
    ok, said = run_pipeline(ops, report=True)
    assert ok and "all tokens equal" in said and "written to Results.md" in said
    text = results_file.read_text()
    assert "Measured by `python -m task6.test --pipeline`" in text and text.endswith("end\n")
    assert "| TTFT, time to first token |" in text and "| TBT, time between tokens |" in text
    before = results_file.read_text()
    assert run_pipeline(ops)[0] and results_file.read_text() == before


def test_a_report_that_cannot_be_written_says_so(ops, results_file):
    results_file.write_text("nothing\n")
    ok, said = run_pipeline(ops, report=True)
    assert not ok and "it has no line <!-- BEGIN task6 pipeline -->" in said
    assert results_file.read_text() == "nothing\n"


def test_tokens_that_differ_are_told(ops, results_file, monkeypatch):
    kept = model.DummyLLM.forward

    def wrong(self, tokens, position):
        logits = kept(self, tokens, position)
        return -logits if position == 8 and isinstance(self.blocks[0].attention, customAttention) else logits

    monkeypatch.setattr(model.DummyLLM, "forward", wrong)
    ok, said = run_pipeline(ops, report=True)
    assert not ok and "prompt 1, new token 4, a decode step" in said and "the tokens differ" in said
    assert "Measured" not in results_file.read_text()


def test_the_first_token_that_differs():
    right = Generation(torch.tensor([[3, 4, 5]]), 1.0)
    assert pipeline._difference([right, right], [right, right]) == ""
    wrong = Generation(torch.tensor([[9, 4, 5]]), 1.0)
    said = pipeline._difference([right, wrong], [right, right])
    assert "prompt 2, the first new token, from prefill: 9, PyTorch says 3" in said


def test_an_unfilled_gap_is_told(results_file):
    unfilled = SimpleNamespace(variant="student", task="task6", backend="simulator", device=torch.device("cpu"))

    def missing(*given):
        raise NotImplementedError("task4 flash_attention is not implemented yet: flash_attention.cu:290")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "load_beside", missing)
        ok, said = run_pipeline(unfilled)
    assert not ok and "pipeline: not measured: task4 flash_attention is not implemented yet" in said


def test_spread_and_rows():
    assert pipeline.spread([5.0, *range(1, 10), 100.0]) == "5.00 ms (2.00 .. 9.00)"
    rows = pipeline.rows(Comparison(Times([2.0], [1.0, 1.0]), Times([3.0], [0.5]), ""))
    assert [row[-1] for row in rows] == ["1.50 x", "0.50 x"]
    assert all(len(row) == len(pipeline.COLUMNS) for row in rows)


def test_which_model_by_default():
    assert pipeline.default_size(SimpleNamespace(device=torch.device("cpu"))) == "small"
    assert pipeline.default_size(SimpleNamespace(device=torch.device("cuda"))) == "large"


# ---- speedups

STEP = Problem(2, 2, 16, 300)


def test_all_that_is_timed_computes_the_same(ops):
    watch = SecondPerCall()
    timings = speed.measure_problem(STEP, ops, 132, rounds=1, stopwatch=watch)
    assert list(timings) == [speed.DECODE, speed.SPLIT, speed.RECOMPUTE, speed.PYTORCH]
    decode, split, recompute, pytorch = watch.results[:4]
    assert recompute.shape == (2, 2, 300, 16)
    for out in (decode, split, recompute[:, :, -1:]):
        torch.testing.assert_close(out, pytorch, rtol=0, atol=ROUNDING + running_sum_floor(300, 4))


def test_a_wrong_kernel_is_not_timed(ops):
    wrong = SimpleNamespace(
        variant="solution", task="task6", backend=ops.backend, device=ops.device, decode_attention=lambda q, *others: q
    )
    with pytest.raises(ValueError, match=r"2, 2, 16, 300: decode is wrong by .*; at most .* is allowed"):
        speed.measure_problem(STEP, wrong, 132, rounds=1, stopwatch=SecondPerCall())


def test_what_is_not_implemented_is_left_out(ops, monkeypatch):
    def missing(*given):
        raise NotImplementedError("task3 merge_states is not implemented yet")

    task3 = SimpleNamespace(merge_states=missing)
    monkeypatch.setattr(speed, "load_beside", lambda ops, task: task3 if task == "task3" else load_beside(ops, task))
    timings = speed.measure_problem(STEP, ops, 132, rounds=1, stopwatch=SecondPerCall())
    assert list(timings) == [speed.DECODE, speed.RECOMPUTE, speed.PYTORCH]
    row = speed.cells(STEP, timings, 4e12)
    assert row[4] == "-" and row[-1] == "1 x, 1 x"


def test_the_row_of_a_problem():
    times = {speed.DECODE: 4e-6, speed.SPLIT: 2e-6, speed.RECOMPUTE: 1e-3, speed.PYTORCH: 3e-6}
    row = speed.cells(Problem(1, 16, 64, 1024), {name: Timing((one,)) for name, one in times.items()}, 4.194304e12)
    # 2 x 16 x 1024 x 64 x 4 bytes in 4 us
    expected = ["1, 16, 64, 1,024", "4.00 us", "2.10", "50%", "2.00 us", "1.00 ms", "3.00 us", "500 x, 1.5 x"]
    assert row == expected and len(row) == len(speed.COLUMNS)


@pytest.mark.parametrize(
    ("problem", "splits"),
    [(Problem(1, 16, 64, 8192), 33), (Problem(1, 16, 64, 1124), 8), (Problem(16, 16, 64, 4096), 3), (STEP, 2)],
)
def test_how_many_parts(problem, splits):
    assert speed.splits_for(problem, sms=132) == splits
    assert speed.splits_for(Problem(1, 1, 8, 5), 132) == 1


def test_the_speedups_are_printed_and_reported(ops, results_file, monkeypatch):
    times = {name: Timing((1e-6,)) for name in (speed.DECODE, speed.SPLIT, speed.RECOMPUTE, speed.PYTORCH)}
    monkeypatch.setattr(speed, "measure_problem", lambda *given: times)
    monkeypatch.setattr(speed, "measure_limits", lambda matmul: SimpleNamespace(copy=4e12))
    properties = SimpleNamespace(multi_processor_count=132)
    monkeypatch.setattr(speed.torch.cuda, "get_device_properties", lambda: properties)
    on_gpu = SimpleNamespace(backend="cuda")
    ok, said = outcome(speed.SPEED, "speed", on_gpu, report=True)
    assert ok and said.count("1 x, 1 x") == len(speed.PROBLEMS)
    assert results_file.read_text().count("| 1 x, 1 x |") == len(speed.PROBLEMS)

    def missing(*given):
        raise NotImplementedError("task6 decode_attention is not implemented yet")

    monkeypatch.setattr(speed, "measure_problem", missing)
    ok, said = outcome(speed.SPEED, "speed", on_gpu)
    assert not ok and "speed: not measured: task6 decode_attention is not implemented yet" in said


# ---- the cases and the command line


def test_the_points_are_those_of_the_handout():
    made = cases()
    points = {part: sum(case.points for case in made if case.part == part) for part in PARTS}
    assert points == pytest.approx({"update": 1, "decode": 1.5, "generate": 0.5, "split": 0, "ring": 0, "pipeline": 1})
    assert math.isclose(sum(points.values()), 4)
    assert len({case.name for case in made}) == len(made)


def test_a_layer_that_gives_nonsense_is_told(ops, monkeypatch):
    case = next(case for case in cases() if case.name == "a prompt of 21")
    monkeypatch.setattr(customAttention, "forward", lambda self, x, position: torch.zeros_like(x))
    verdict = judge(case, ops)
    assert verdict.status == FAIL and verdict.mistakes[:1] == ["all zeros"]


def test_the_students_layer_is_a_gap(monkeypatch, ops):
    case = next(case for case in cases() if case.name == "a prompt of 21")
    monkeypatch.setattr("task6.cases.pipeline.load_beside", lambda ops, task: None)
    student = SimpleNamespace(variant="student", task="task6", backend="simulator", device=torch.device("cpu"))
    verdict = judge(case, student)
    assert verdict.status == NOT_IMPLEMENTED
    assert (
        verdict.file_line.startswith("task6/attention.py:") and "forward is not implemented yet" in verdict.diagnosis[0]
    )


def test_the_pipeline_from_its_command_line(backend, results_file, capsys):
    arguments = ["--solution", "--backend", backend, "--pipeline", "--size", "small", "--report"]
    arguments.append("--in-process")
    assert test_main(TEST, arguments) == 0
    said = capsys.readouterr().out
    assert "Points: 1 of 1" in said and "all tokens equal" in said and "speed" not in said.replace("speedup", "")
    assert f"python -m task6.test {' '.join(arguments)}" in results_file.read_text()


def test_an_unfilled_file_from_its_command_line(capsys):
    assert test_main(TEST, ["--backend", "simulator", "--in-process"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "Points: 0 of 4" in said and "update_cache is not implemented yet: task6/decode_attention.cu:" in said
    assert "generate, pipeline: 10 cases also failed. They are built on update and decode: fix these first" in said
    assert "ring (optional): not filled yet, so not tested: task6/ring.py:" in said
    assert "split (optional): not filled yet" in said and "speed: not measured" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--speed", "--list"], "--list is about test cases, and --speed has none"),
        (["--speed", "--case=40 keys"], "--case is about test cases"),
        (["--decode", "--report"], "--report writes what is measured, and nothing here is: add --pipeline or --speed"),
        (["--size", "small"], "--size belongs to --pipeline"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, words, capsys):
    with pytest.raises(SystemExit):
        test_main(TEST, arguments)
    assert words in " ".join(capsys.readouterr().err.split())


def test_speed_alone_without_a_gpu_is_nothing(capsys):
    assert test_main(TEST, ["--speed", "--solution", "--backend", "simulator", "--in-process"]) == NOTHING_RUN
    assert "speed: not measured" in capsys.readouterr().out


def test_the_list_has_no_times(capsys):
    assert test_main(TEST, ["--list", "--pipeline"]) == 0
    assert "a prompt of 21" in capsys.readouterr().out
