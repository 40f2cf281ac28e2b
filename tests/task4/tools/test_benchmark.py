"""task4.benchmark without its clock: what it computes, whom it lets run, what it concludes. Nothing is timed."""

from __future__ import annotations

import io
import json
import math

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console

from common.measure import report
from common.measure.limits import Limits
from common.measure.timing import Timing
from task4.tools.benchmark import check, pictures, runs, summary, tables
from task4.tools.benchmark import command as benchmark
from task4.tools.benchmark import grid as grid_module
from task4.tools.benchmark.check import Errors, Sample
from task4.tools.benchmark.grid import HIDDEN, LENGTHS, PASSES, Problem, grid
from task4.tools.benchmark.peers import DEFAULT_PEERS, PEERS, Kernels, Peer, peers_for
from task4.tools.benchmark.runs import Record, Runner, rounds_in, shares


def problem(
    direction: str = "forward", dtype: str = "fp32", causal: bool = False, seq_len: int = 40, **sizes
) -> Problem:
    return Problem(direction, dtype, sizes.get("head_dim", 16), causal, seq_len, sizes.get("batch", 2), 3)


# ---- the grid


def test_the_grid_has_16k_tokens_and_a_hidden_width_of_2048():
    problems = grid(PASSES, ["fp32", "bf16"], [64, 128], LENGTHS)
    assert len(problems) == len(set(problems)) == 2 * 2 * 2 * 2 * 6
    assert {one.batch * one.seq_len for one in problems} == {16384}
    assert {one.heads * one.head_dim for one in problems} == {HIDDEN}


def test_operations_and_bytes_are_counted_as_stated():
    one = Problem("forward", "bf16", 64, False, 512, 32, 32)
    assert one.flops == 4 * 32 * 32 * 512**2 * 64
    assert one.least_bytes == 4 * 2 * 16384 * 2048  # query, key, value, out
    assert one.scores_bytes == 4 * 32 * 32 * 512 * 512
    backward = Problem("backward", "bf16", 64, True, 512, 32, 32)
    assert backward.flops == 2.5 * one.flops / 2


@pytest.mark.parametrize(("head_dim", "hidden"), [(96, 2048), (256, 2048), (0, 2048), (64, 0)])
def test_a_head_dim_that_cannot_be_is_named(head_dim, hidden):
    with pytest.raises(ValueError, match=f"head_dim is {head_dim} and hidden {hidden}; head_dim must be 1 .. 128"):
        grid(["forward"], ["fp32"], [head_dim], [512], hidden)


def test_one_long_sequence_is_a_batch_of_one():
    assert [one.batch for one in grid(["forward"], ["fp32"], [64], [32768, 20])[:2]] == [819, 1]


# ---- right or wrong


def right(one: Problem, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """All heads at once, by torch's own function in float64: nothing that the sample is made of."""
    leaves = [x.double().requires_grad_() for x in inputs[:3]]
    out = F.scaled_dot_product_attention(*leaves, is_causal=one.causal)
    outputs = (out,) if one.direction == "forward" else torch.autograd.grad(out, leaves, inputs[3].double())
    return tuple(x.detach().to(inputs[0].dtype) for x in outputs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
def test_what_is_right_passes_in_blocks_of_queries_too(direction, dtype, causal, monkeypatch):
    one = problem(direction, dtype, causal)
    inputs = one.make_inputs("cpu")
    for rows in (1024, 17):
        monkeypatch.setattr(check, "ROWS", rows)
        errors = Sample.of(one, inputs).compare(right(one, inputs))
        assert errors.ok and errors.relative < {"fp32": 1e-6, "fp16": 1e-3, "bf16": 8e-3}[dtype]


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_wrong_fails(direction, dtype):
    one = problem(direction, dtype, causal=True)
    inputs = one.make_inputs("cpu")
    sample, outputs = Sample.of(one, inputs), right(one, inputs)

    def changed(change, which: int = -1) -> Errors:
        copies = [x.clone() for x in outputs]
        change(copies[which])
        return sample.compare(copies)

    no_mask = right(problem(direction, dtype, causal=False), inputs)
    assert not sample.compare(no_mask).ok
    assert not changed(lambda x: x.zero_()).ok
    assert not changed(lambda x: x.mul_(1.05)).ok
    assert not changed(lambda x: x[-1, -1, -1, 0].fill_(math.nan)).ok, "the last element of the last head"
    assert not changed(lambda x: x[0, 0, 0, 0].fill_(math.inf), 0).ok, "the first element of the first output"
    assert not sample.compare([x.roll(1, dims=2) for x in outputs]).ok


# ---- who takes part


@pytest.fixture(scope="module")
def kernels(backend):
    return Kernels(backend)


ON_THE_CPU = ("naive", "tiled", "taught", "ffma", "3xfp16", "mma", "math")
CALLS = [
    (name, direction, dtype) for name in ON_THE_CPU for direction in PEERS[name].prepare for dtype in PEERS[name].dtypes
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "direction", "dtype"), CALLS)
def test_every_peer_computes_attention(kernels, name, direction, dtype, causal):
    one = problem(direction, dtype, causal, seq_len=33, batch=1, head_dim=64)
    device = "cuda" if kernels.backend == "cuda" else "cpu"
    inputs = one.make_inputs(device)
    with torch.no_grad():
        call = PEERS[name].prepare[direction](kernels, *inputs, causal)
        first, second = call(), call()
    sample = Sample.of(one, inputs)
    for outputs in (first, second):
        errors = sample.compare(outputs)
        assert errors.ok, errors
    given = [x.dtype for x in ([first] if isinstance(first, torch.Tensor) else first)]
    assert given == [inputs[0].dtype] * (1 if direction == "forward" else 3)


def test_who_takes_part():
    assert list(peers_for(DEFAULT_PEERS, "forward", "fp32")) == [
        *("naive", "tiled", "taught", "ffma", "3xfp16", "efficient", "math"),
    ]
    assert list(peers_for(DEFAULT_PEERS, "backward", "bf16")) == ["mma", "flash", "cudnn", "efficient", "math"]
    assert list(peers_for(("math", "yours"), "forward", "fp32")) == ["yours", "math"]


# ---- running


class Clock:
    """Time passes only in timed calls; each takes as long as its peer says."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def seconds(self, call) -> float:
        taken = call()
        self.now += taken
        return taken


class Bytes:
    """A GPU with this much memory."""

    def __init__(self, free: float = 1e12) -> None:
        self.bytes = free

    def free(self) -> float:
        return self.bytes

    def peak(self, call) -> int:
        call()
        return 4096


class Takes(float):
    """What a made-up peer returns: how long it took. The sample below finds nothing wrong with it."""


def peer(
    seconds: float, log: list[str] | None = None, name: str = "", error: Exception | None = None, **options
) -> Peer:
    def prepare(kernels, query, key, value, grad_out, causal):
        def call() -> Takes:
            if error:
                raise error
            if log is not None:
                log.append(name)
            return Takes(seconds * query.size(2) / 40)

        return call

    return Peer(name, {"forward": prepare}, ("fp32",), **options)


@pytest.fixture
def anything_is_right(monkeypatch):
    class Anything:
        def compare(self, outputs):
            return Errors(1e-7, 1e-7, 2e-7)

    monkeypatch.setattr(runs.Sample, "of", lambda problem, inputs: Anything())


def runner(budget: float = 100.0, rounds: int = 20, memory: float = 1e12) -> Runner:
    clock = Clock()
    return Runner(None, budget, rounds, clock, Bytes(memory), "cpu", clock)


def test_all_rounds_where_there_is_time(anything_is_right):
    records = runner().run(problem(), {"ffma": peer(0.01), "taught": peer(0.02)}, 1.0)
    assert [(one.peer, one.timing.seconds, len(one.timing.runs)) for one in records] == [
        ("ffma", 0.01, 20),
        ("taught", 0.02, 20),
    ]
    assert records[0].rate == problem().flops / 0.01 and records[0].memory == 4096


def test_fewer_rounds_where_time_is_short(anything_is_right):
    run = runner(budget=4.0)
    (record,) = run.run(problem(), {"ffma": peer(0.1)}, 0.5)
    assert 10 <= len(record.timing.runs) < 20
    assert run.clock() <= 2.5
    (record,) = run.run(problem(), {"ffma": peer(0.1)}, 0.01)
    assert len(record.timing.runs) == runs.FEWEST_ROUNDS, "never fewer than these"


def test_the_slow_have_rounds_of_their_own(anything_is_right):
    log: list[str] = []
    versions = {"naive": peer(0.2, log, "naive"), "ffma": peer(0.01, log, "ffma"), "taught": peer(0.02, log, "taught")}
    records = {one.peer: one for one in runner().run(problem(), versions, 1.0)}
    assert list(records) == ["naive", "ffma", "taught"]
    assert len(records["naive"].timing.runs) == 1 and len(records["ffma"].timing.runs) == 20
    assert log[:6] == ["naive", "naive", "ffma", "ffma", "taught", "taught"], "the first calls"
    assert log[6:11] == ["naive", "ffma", "taught", "taught", "ffma"], "then in turn"


def test_what_would_take_too_long_is_left_out(anything_is_right):
    run = runner()
    first = run.run(problem(seq_len=40), {"naive": peer(0.3)}, 0.5)
    assert first[0].timing
    (record,) = run.run(problem(seq_len=80), {"naive": peer(0.3)}, 0.5)
    assert record.timing is None and record.left_out == "time: about 1.2 s per run"
    (other,) = run.run(problem(seq_len=80, causal=True), {"naive": peer(0.1)}, 0.5)
    assert other.timing, "another setting is another matter"


def test_what_does_not_fit_is_left_out(anything_is_right):
    scores = problem().scores_bytes
    versions = {"naive": peer(0.1, score_buffers={"forward": 1.0}), "math": peer(0.1, score_buffers={"forward": 4.0})}
    records = runner(memory=2.0 * scores).run(problem(), versions, 1.0)
    assert records[0].timing and records[1].left_out.startswith("memory: needs")


def test_what_runs_out_of_memory_is_left_out(anything_is_right):
    versions = {"math": peer(0.1, error=torch.OutOfMemoryError("no")), "ffma": peer(0.1)}
    records = runner().run(problem(), versions, 1.0)
    assert records[0].left_out == "memory" and records[1].timing


def test_what_raises_is_left_out_with_its_first_words(anything_is_right):
    error = RuntimeError("No available kernel. Aborting execution.\nAnd much more")
    records = runner().run(problem(), {"cudnn": peer(0.1, error=error), "ffma": peer(0.1)}, 1.0)
    assert records[0].left_out == "No available kernel. Aborting execution." and records[1].timing


def test_what_is_wrong_is_not_timed():
    def prepare(kernels, query, key, value, grad_out, causal):
        return lambda: torch.zeros_like(query)

    clock = Clock()
    run = Runner(None, 10, 20, clock, Bytes(), "cpu", clock)
    (record,) = run.run(problem(), {"ffma": Peer("zeros", {"forward": prepare}, ("fp32",))}, 1.0)
    assert record.left_out == "wrong" and record.timing is None and not record.errors.ok and clock.now == 0
    words = tables.left_out_words([record])
    assert words.startswith("tuned, FFMA at 40: wrong: max error ") and ", bound " in words


def test_rounds_and_shares():
    assert [rounds_in(seconds, 1.0, 20) for seconds in (-5.0, 4.9, 9.0, 99.0)] == [3, 4, 9, 20]
    assert rounds_in(99.0, 1.0, 2) == 2 and rounds_in(0.1, 1.0, 20, fewest=1) == 1
    given = shares(grid(["forward"], ["fp32"], [64], [512, 16384]))
    assert given[-1] == 1.0 and given[1] == max(given[:-1]) > given[0] > 0.05


# ---- conclusions


def timed(version: str, seconds: float, **what) -> Record:
    sizes = {"direction": "forward", "dtype": "bf16", "head_dim": 64, "causal": False, "seq_len": 1024}
    sizes = {**sizes, "batch": 16, "heads": 32, **what}
    return Record(Problem(**sizes), version, Timing((seconds,)), Errors(1e-3, 1e-3, 2e-3), 1 << 20)


def test_a_mean_is_geometric_and_over_common_problems_only():
    records = [
        *(timed("mma", 1.0, seq_len=512), timed("flash", 2.0, seq_len=512)),
        *(timed("mma", 1.0, seq_len=1024), timed("flash", 0.5, seq_len=1024)),
        *(timed("mma", 1.0, seq_len=2048), timed("flash", 9.0, seq_len=2048, direction="backward")),
    ]
    (line,) = summary.summarise(records)
    assert (line.version, line.peer, line.where, line.problems) == ("mma", "flash", "forward, bf16", 2)
    assert (line.mean, line.least, line.most) == (pytest.approx(1.0), 0.5, 2.0)
    assert line.goal == "mean 1.05, least 0.9" and line.reached is False


@pytest.mark.parametrize(("speedups", "reached"), [((1.0, 1.2), True), ((1.0, 1.0), False), ((0.89, 2.0), False)])
def test_a_goal_asks_for_mean_and_least(speedups, reached):
    records = []
    for length, speedup in zip((512, 1024), speedups, strict=True):
        records += [timed("mma", 1.0, seq_len=length), timed("flash", speedup, seq_len=length)]
    (line,) = summary.summarise(records)
    assert line.reached is reached


def test_goals_over_the_naive_kernel_are_stated_for_their_width():
    sizes = {"dtype": "fp16", "seq_len": 1024}
    at = {
        hidden: [timed("mma", 1.0, heads=hidden // 64, **sizes), timed("naive", 60.0, heads=hidden // 64, **sizes)]
        for hidden in (1024, 2048)
    }
    narrow, wide = (summary.summarise(at[hidden]) for hidden in (1024, 2048))
    assert [line.reached for line in narrow] == [True, None]
    assert [line.reached for line in wide] == [None]


def test_fp32_goals_are_about_1k_to_4k():
    records = [
        one
        for length, peer_takes in ((512, 0.1), (1024, 1.2), (4096, 1.2), (16384, 0.1))
        for one in (
            timed("ffma", 1.0, dtype="fp32", seq_len=length),
            timed("efficient", peer_takes, dtype="fp32", seq_len=length),
        )
    ]
    (line,) = summary.summarise(records)
    assert line.where == "forward, fp32, 1024 .. 4096 tokens" and line.mean == pytest.approx(1.2) and line.reached


# ---- files

LIMITS = Limits(4e12, {"float32": 5e13, "tf32": 3.5e14, "bfloat16": 7e14})


def some_records() -> list[Record]:
    records = []
    for direction in PASSES:
        for length in (512, 1024):
            records += [
                timed("mma", 1e-3 * length, direction=direction, seq_len=length, dtype="fp16"),
                timed("math", 3e-3 * length, direction=direction, seq_len=length, dtype="fp16"),
            ]
    one = records[0].problem
    return [
        *records,
        Record(one, "naive", left_out="time: about 1.6 s per run"),
        Record(one, "cudnn", errors=Errors(math.nan, math.nan, 1e-3), left_out="wrong"),
    ]


def test_json_gives_back_what_it_was_given():
    records = some_records()
    lines = summary.summarise(records)
    text = tables.to_json({"gpu": "H200"}, LIMITS, "python -m task4.benchmark", "2026-03-04", records, lines)
    content = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    first = content["results"][0]
    assert content["command"] == "python -m task4.benchmark" and content["date"] == "2026-03-04"
    assert first["version"] == "mma" and first["median_seconds"] == pytest.approx(0.512)
    assert first["flops_per_second"] == pytest.approx(first["flops"] / 0.512)
    back, limits, machine = tables.from_json(text)
    assert back[:-1] == records[:-1] and limits == LIMITS and machine == {"gpu": "H200"}
    assert back[-1].left_out == "wrong" and not back[-1].errors.ok  # NaN is not equal to itself


@pytest.mark.parametrize("text", ["{}", "[]", "no json", '{"limits": {"copy": 1, "matmul": {}}, "results": [{}]}'])
def test_a_file_of_something_else_is_refused(text):
    with pytest.raises(ValueError):
        tables.from_json(text)


def test_pictures_are_drawn_from_a_file(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file = tmp_path / "fp16.json"
    file.write_text(tables.to_json({"gpu": "H200"}, LIMITS, "", "", some_records(), []))
    assert benchmark.main(["--draw", str(file)]) == 0
    drawn = sorted(one.name for one in tmp_path.glob("*.png"))
    assert drawn == sorted(f"fp16_{direction}_{name}.png" for direction in PASSES for name in pictures.PICTURES)
    assert all((tmp_path / name).stat().st_size > 10_000 for name in drawn)
    assert all(name in capsys.readouterr().out for name in drawn[:1])


def test_versions_that_store_the_scores_move_them():
    records = {one.peer: one for one in some_records()[:2]}
    one = records["mma"].problem
    assert pictures.moved_bytes(records["mma"]) == one.least_bytes
    assert pictures.moved_bytes(records["math"]) == one.least_bytes + 4 * one.scores_bytes


# ---- the command


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_the_benchmark_says_so(capsys, tmp_path):
    assert benchmark.main(["--output", str(tmp_path / "out")]) == report.NEEDS_GPU
    assert "A benchmark needs a GPU" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seq", "0"], "seq is '0'; it must be a number above 0"),
        (["--rounds", "many"], "rounds is 'many'; it must be a number above 0"),
        (["--seconds", "nan"], "seconds is 'nan'; it must be a number above 0"),
        (["--head-dim", "96"], "head_dim is 96 and hidden 2048; head_dim must be 1 .. 128 and divide hidden"),
        (["--dtype", "fp64"], "invalid choice: 'fp64'"),
        (["--pass", "sideways"], "invalid choice: 'sideways'"),
        (["--peers", "nobody"], "invalid choice: 'nobody'"),
        (["--peers", "taught", "--dtype", "bf16"], "--peers taught: none of them has this pass in bf16"),
        (["--draw", "/nowhere.json"], "--draw /nowhere.json: "),
    ],
)
def test_bad_options_are_named(arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(arguments)
    assert stopped.value.code == 2 and words in capsys.readouterr().err


def test_what_was_measured_before_the_gpu_was_lost_stays():
    problems = grid(["forward"], ["fp32"], [64], [512, 1024])

    class Lost:
        def run(self, one: Problem, peers, share: float) -> list[Record]:
            if one.causal:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return [Record(one, name, Timing((1e-3,)), Errors(1e-7, 1e-7, 2e-7), 1 << 20) for name in peers]

    console, records = Console(file=io.StringIO(), width=120), []
    with pytest.raises(RuntimeError, match="illegal memory access"):
        benchmark.run_all(console, problems, ("taught", "naive"), Lost(), records)
    assert [(one.problem.seq_len, one.peer) for one in records] == [
        *((512, "naive"), (512, "taught"), (1024, "naive"), (1024, "taught")),
    ]
    assert "forward, fp32, head_dim 64: TFLOP/s" in console.file.getvalue()


def test_the_command_measures_prints_and_writes(tmp_path, monkeypatch, capsys):
    """All of it on the CPU, where a call takes a millisecond."""

    class Millisecond:
        def seconds(self, call) -> float:
            call()
            return 1e-3

    monkeypatch.setattr(grid_module, "TOKENS", 64)
    monkeypatch.setattr(report, "gpu_is_there", lambda console: True)
    monkeypatch.setattr(report, "machine", lambda: {"gpu": "none"})
    monkeypatch.setattr(benchmark, "Kernels", lambda backend: Kernels("simulator"))
    monkeypatch.setattr(benchmark, "_limits", lambda console, problems: LIMITS)
    monkeypatch.setattr(
        benchmark, "Runner", lambda kernels, *given: Runner(kernels, *given, Millisecond(), Bytes(), "cpu")
    )
    options = ["--dtype", "fp32", "--seq", "64", "32", "--head-dim", "32", "--hidden", "64", "--pass", "forward"]
    options += ["--peers", "taught", "math", "--rounds", "4", "--no-pictures", "--output", str(tmp_path / "out")]
    assert benchmark.main(options) == 0
    said = capsys.readouterr().out
    assert "forward, fp32, head_dim 32: TFLOP/s" in said and "forward, fp32, head_dim 32, causal: TFLOP/s" in said
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["fp32.json"]
    content = json.loads((tmp_path / "out" / "fp32.json").read_text())
    assert content["command"].startswith("python -m task4.benchmark --dtype fp32 --seq 64 32")
    found = [(one["causal"], one["seq_len"], one["batch"], one["version"]) for one in content["results"]]
    sizes = [(causal, length, 64 // length) for causal in (False, True) for length in (32, 64)]
    assert found == [(*size, version) for size in sizes for version in ("taught", "math")]
    assert all(one["runs"] == [1e-3] * 4 and one["relative_error"] < 1e-6 for one in content["results"])
