"""python -m task5.benchmark without a GPU: what is measured, what is checked, tables, goals and files."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from common.measure.timing import Timing
from common.testing import results
from task5.tools.benchmark import command, pictures, runs, tables, versions
from task5.tools.benchmark.problems import BLOCK, Problem, grid
from task5.tools.benchmark.runs import Measured, run


class CallsInstead:
    """A stopwatch that makes the calls and says that each took a second."""

    def seconds(self, call) -> float:
        call()
        return 1.0


def small(pattern: str, parameter: int, dtype: str = "fp32", seq_len: int = 2 * BLOCK) -> Problem:
    return Problem(pattern, parameter, dtype, batch=1, heads=2, seq_len=seq_len, head_dim=8)


def by_mask(problem: Problem):
    """Our operators, by PyTorch with a mask built element by element."""

    def attend(query, key, value, see) -> torch.Tensor:
        rows = range(problem.seq_len)
        mask = torch.tensor([[[see(h, i, j) for j in rows] for i in rows] for h in range(problem.heads)])
        out = F.scaled_dot_product_attention(query.double(), key.double(), value.double(), attn_mask=mask)
        return out.masked_fill(~mask.any(-1, keepdim=True), 0.0).to(query.dtype)

    def blocks(query, key, value, counts, columns, block):
        listed = [[set(columns[h, r, : counts[h, r]].tolist()) for r in range(counts.size(1))] for h in range(2)]
        return attend(query, key, value, lambda h, i, j: j // block in listed[h][i // block])

    def compress(block_mask):
        counts = block_mask.sum(-1).int()
        columns = torch.full(block_mask.shape, -1, dtype=torch.int32)
        for h, row in torch.cartesian_prod(*(torch.arange(size) for size in counts.shape)).tolist():
            columns[h, row, : counts[h, row]] = block_mask[h, row].nonzero().flatten()
        return counts, columns

    return SimpleNamespace(
        device=torch.device("cpu"),
        variant="solution",
        strided_attention=lambda q, k, v, stride: attend(q, k, v, lambda h, i, j: j % stride == 0),
        sliding_window_attention=lambda q, k, v, window: attend(q, k, v, lambda h, i, j: i - window < j <= i),
        block_sparse_attention=blocks,
        compress_block_mask=compress,
    )


@pytest.mark.parametrize(("pattern", "parameter"), [("strided", 3), ("window", 5), ("blocks", 2)])
def test_every_version_is_checked_and_timed(pattern, parameter):
    problem = small(pattern, parameter)
    done = run(problem, by_mask(problem), rounds=2, device="cpu", stopwatch=CallsInstead())
    assert {"kernel", "FlexAttention", "dense + mask", "dense"} <= set(done.timings)
    assert not set(done.timings) & set(done.left_out)
    assert ("gather + SDPA" in done.timings) == (pattern == "strided")
    rows = torch.arange(problem.seq_len)
    share = float(problem.sees(rows).double().mean())
    assert problem.density == pytest.approx(share) and done.ideal == pytest.approx(share)
    assert list(tables.table([done]).columns[-1].cells) == [f"{share:.0%}"]


@pytest.mark.parametrize("pattern", ["strided", "window", "blocks"])
def test_a_wrong_kernel_is_not_timed(pattern):
    problem = small(pattern, 4)
    ops = by_mask(problem)
    for name in ("strided_attention", "sliding_window_attention", "block_sparse_attention"):
        setattr(ops, name, lambda query, *others: query)
    with pytest.raises(ValueError, match=r"1 x 2 x 256 x 8, fp32: the kernel is wrong by .*, at most .* is allowed"):
        run(problem, ops, flex=False, rounds=1, device="cpu", stopwatch=CallsInstead())


def test_a_kernel_that_leaves_nan_is_not_timed():
    problem = small("strided", 4)
    ops = by_mask(problem)
    right = ops.strided_attention
    ops.strided_attention = lambda *given: right(*given).index_fill(2, torch.tensor([7]), float("nan"))
    with pytest.raises(ValueError, match="the kernel is wrong by nan"):
        run(problem, ops, flex=False, rounds=1, device="cpu", stopwatch=CallsInstead())


def test_a_peer_that_does_not_run_is_left_out_with_its_reason(monkeypatch):
    problem = small("strided", 4)

    def refuses(*given):
        raise RuntimeError("No available kernel.\nmore words")

    offered = versions.versions
    monkeypatch.setattr(runs, "versions", lambda *given: {**offered(*given), "cuDNN, gathered": refuses})
    done = run(problem, by_mask(problem), flex=False, rounds=1, device="cpu", stopwatch=CallsInstead())
    assert done.left_out["cuDNN, gathered"] == "No available kernel."
    assert "cuDNN, gathered: stride 4 (256): No available kernel." in tables.left_out_words([done])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ring", 2, "fp32"), "pattern is 'ring'; it must be one of strided, window, blocks"),
        (("strided", 0, "fp32"), "stride is 0; it must be 1 .. seq_len = 16384"),
        (("window", 2, "fp64"), "dtype is 'fp64'; it must be one of fp32, fp16, bf16"),
        (("blocks", 2, "bf16", 1, 1, 200), "seq_len is 200; with blocks it must be a multiple of 128"),
        (("window", 2, "bf16", 0), "batch is 0; it must be at least 1"),
    ],
)
def test_problems_that_make_no_sense(arguments, says):
    with pytest.raises(ValueError, match=says):
        Problem(*arguments)


def test_the_grid_leaves_out_windows_longer_than_the_text():
    assert [one.parameter for one in grid("bf16", ["strided", "window"], [512])] == [1, 2, 4, 8, 256]


@pytest.mark.parametrize("length", [0, -5])
def test_the_grid_refuses_a_length_below_1(length):
    with pytest.raises(ValueError, match=f"seq_len is {length}; it must be at least 1"):
        grid("bf16", ["strided"], [512, length])


def timed(problem: Problem, **seconds: float) -> Measured:
    names = {"kernel": "kernel", "flash": "flash, gathered", "efficient": "efficient, gathered", "dense": "dense"}
    names |= {"cudnn": "cuDNN, gathered", "flex": "FlexAttention"}
    return Measured(problem, {names[name]: Timing((value,)) for name, value in seconds.items()})


def test_the_goals():
    strided = timed(Problem("strided", 8, "bf16"), kernel=1.0, flash=1.1, efficient=2.0, cudnn=0.8, flex=4.0)
    window = timed(Problem("window", 256, "bf16"), kernel=1.0, flex=0.9)
    said = tables.goal_lines([strided, window])
    assert said == [
        "stride 8, 16384 tokens: 1.10 x as fast as the best but cuDNN (goal 1.00): reached",
        "stride 8, 16384 tokens: 0.80 x as fast as cuDNN, gathered (goal 0.77): reached",
        "stride 8, 16384 tokens: 4.00 x as fast as FlexAttention (goal 5.00): missed",
        "window 256, causal, 16384 tokens: 0.90 x as fast as FlexAttention (goal 1.00): missed",
    ]
    assert tables.goal_lines([timed(Problem("strided", 8, "fp32"), kernel=1.0, flash=2.0)]) == []


def test_the_command_writes_tables_json_and_results(monkeypatch, tmp_path, capsys):
    problem = small("window", 16)
    results_file = tmp_path / "Results.md"
    results_file.write_text("# Results\n\n<!-- BEGIN task5 benchmark -->\n<!-- END task5 benchmark -->\n")
    monkeypatch.setattr(command.toolchain, "choose_backend", lambda requested: SimpleNamespace(name="cuda"))
    monkeypatch.setattr(command, "load", lambda request: by_mask(problem))
    monkeypatch.setattr(command.report, "machine", lambda: {"gpu": "a GPU"})
    monkeypatch.setattr(command, "grid", lambda *options: [problem])
    monkeypatch.setattr(
        command, "run", lambda problem, ops, flex, rounds: timed(problem, kernel=2e-3, flex=3e-3, dense=8e-3)
    )
    monkeypatch.setattr(results, "RESULTS", results_file)
    options = ["--variant", "student", "--seq", "256", "--json", str(tmp_path / "times.json"), "--report"]
    assert command.main(options) == 0
    said = capsys.readouterr().out
    assert "window 16, causal" in said and "2.00 ms" in said and "written into Results.md" in said
    written = json.loads((tmp_path / "times.json").read_text())
    assert written["results"][0]["versions"]["kernel"]["median_seconds"] == 2e-3
    assert "| window 16, causal | 256 | 6.1% | 2.00 ms | 3.00 ms | 8.00 ms | 24% |" in results_file.read_text()


def test_an_unfilled_gap_is_told(monkeypatch, capsys):
    monkeypatch.setattr(command.toolchain, "choose_backend", lambda requested: SimpleNamespace(name="cuda"))
    monkeypatch.setattr(command, "load", lambda request: by_mask(small("window", 2)))
    monkeypatch.setattr(command.report, "machine", lambda: {"gpu": "a GPU"})

    def unfilled(*given):
        raise NotImplementedError("task5 strided_attention is not implemented yet: strided_attention.cu:57")

    monkeypatch.setattr(command, "run", unfilled)
    assert command.main(["--variant", "student"]) == 1 and "strided_attention.cu:57" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(capsys):
    assert command.main(["--backend", "simulator"]) == 0
    assert capsys.readouterr().out.startswith("benchmark: nothing was timed. Times are measured on a GPU")
    with pytest.raises(SystemExit):
        command.main(["--rounds", "0"])
    assert "--rounds is 0; it must be at least 1" in capsys.readouterr().err


def test_the_pictures(tmp_path):
    measured = [
        timed(
            Problem("strided", n, "bf16"),
            kernel=8e-3 / n,
            flash=9e-3 / n,
            efficient=2e-2 / n,
            cudnn=6e-3 / n,
            flex=21e-3,
            dense=14e-3,
        )
        for n in (2, 4, 8)
    ]
    files = pictures.draw(measured, {"gpu": "a GPU"}, tmp_path)
    assert [file.name for file in files] == ["bf16_strided_16384.png"] and files[0].stat().st_size > 10_000
