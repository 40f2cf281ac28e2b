"""Task 4's tile planner and tuner: their arithmetic against the kernels' actual usage, and what they print and save."""

from __future__ import annotations

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from common.compiling import toolchain
from common.compiling.load import load
from common.compiling.nvcc import compile_only
from common.compiling.request import BuildRequest
from common.compiling.result import BuildError
from common.compiling.variant import Variant
from common.console.paths import ROOT, build_root
from common.measure import gpus
from common.reference import oracle as reference
from common.testing.calling import BARE
from task4.given import tiles
from task4.given.tiles import HEAD_DIMS, TileSizes
from task4.tools.tuning import plan_command as plan
from task4.tools.tuning import report as tune_report
from task4.tools.tuning import run as tune_run
from task4.tools.tuning import tune_command as tune
from task4.tools.tuning.grid import Candidate, compile_candidates, grid, write_sources
from task4.tools.tuning.tile_plan import TilePlan

H200, T4 = gpus.find("h200"), gpus.find("t4")

# ------------------------------------------------------------------------------------------------------- tiles.h


def test_tiles_are_read_and_written_back(tmp_path):
    before = tiles.read_tiles()
    assert set(before) == set(HEAD_DIMS) and tiles.tiles_for(65) == before[96] == tiles.tiles_for(96)
    chosen = {64: TileSizes(128, 96, 16), 128: TileSizes(8, 32, 2)}
    text = tiles.FILE.read_text()
    for note in ("the first run", "the second run"):
        text = tiles.written(text, chosen, 100, note)
    (tmp_path / "tiles.h").write_text(text)
    assert tiles.read_tiles(tmp_path / "tiles.h") == before | chosen
    assert "constexpr int SHARED_KB = 100;" in text
    assert text.count("// Chosen by") == 1 and "// Chosen by the second run\n" in text
    columns = {line.index("//") for line in text.split("\n") if line.startswith("constexpr TileSizes")}
    assert len(columns) == 1


@pytest.mark.parametrize(
    ("gone", "words"), [("TILES_96 = {", "no line 'constexpr TileSizes TILES_96"), ("SHARED_KB = 6", "SHARED_KB = 64")]
)
def test_a_broken_tiles_h_is_named(tmp_path, gone, words):
    file = tmp_path / "tiles.h"
    file.write_text(tiles.FILE.read_text().replace(gone, "X"))
    with pytest.raises(ValueError, match=words):
        tiles.written(file.read_text(), tiles.read_tiles(file), 64, "a test", file)


@pytest.mark.parametrize("head_dim", [0, 129])
def test_a_head_dim_outside_is_refused(head_dim):
    with pytest.raises(ValueError, match=rf"head_dim is {head_dim}; it must be 1 \.\. 128"):
        tiles.tiles_for(head_dim)


# ------------------------------------------------------------------------------------------------------- planner


def test_the_plan_by_hand():
    fp32 = TilePlan(TileSizes(64, 32, 4), 64)
    assert fp32.shared_bytes == 4 * (64 * 64 + 32 * 68 + 32 * 64 + 64 * 32)
    assert fp32.bytes_loaded == 2 * 32 * 64 * 4 and fp32.flops == 2 * 2 * 64 * 32 * 64
    assert fp32.intensity == 64 / 2  # 2 B_r operations per 4-byte element
    assert fp32.occupancy(T4, registers=128).blocks == 1 and fp32.occupancy(H200, registers=128).blocks == 4
    half = TilePlan(TileSizes(64, 64, 4), 100, "fp16", stages=2)
    assert half.D == 128 and half.shared_bytes == 2 * (64 * 128 + 2 * 2 * 64 * 128)
    assert half.register_arrays["O"] == 64 * 128 // 128  # over the 128 threads
    assert half.intensity == pytest.approx(64 * 128 / 100)


@pytest.mark.parametrize(
    ("one", "gpu", "kb", "words"),
    [
        (TilePlan(TileSizes(64, 32, 4), 64), T4, None, []),
        (TilePlan(TileSizes(64, 64, 4), 64), T4, None, ["shared memory: 65.0 KB of 64"]),
        (TilePlan(TileSizes(64, 64, 4), 64), H200, 64, ["shared memory: 65.0 KB of 64"]),
        (TilePlan(TileSizes(64, 64, 4), 64), H200, None, []),
        (TilePlan(TileSizes(96, 32, 2), 64), H200, None, ["registers: about 288 of 255"]),
        (
            TilePlan(TileSizes(60, 48, 8), 32),
            T4,
            None,
            ["B_r = 60 is no multiple of 8", "B_c = 48 is no multiple of 32"],
        ),
        (TilePlan(TileSizes(64, 32, 4), 64, "bf16"), T4, None, []),
        (TilePlan(TileSizes(96, 40, 4), 64, "fp16"), T4, None, ["no multiple of 64", "B_c = 40 is no multiple of 16"]),
        (TilePlan(TileSizes(64, 32, 64), 32), H200, None, ["threads: 64 warps are 2048"]),
        (TilePlan(TileSizes(256, 32, 32), 64), H200, None, ["for each of 1024 threads, of 65,536"]),
    ],
)
def test_what_is_impossible_and_why(one, gpu, kb, words):
    problems = one.problems(gpu, kb)
    assert len(problems) >= len(words) and bool(problems) == bool(words), problems
    for word in words:
        assert any(word in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tiles": TileSizes(0, 32, 4), "head_dim": 64}, "B_r is 0; it must be at least 1"),
        ({"tiles": TileSizes(64, 32, 4), "head_dim": 200}, "head_dim is 200"),
        (
            {"tiles": TileSizes(64, 32, 4), "head_dim": 64, "dtype": "fp8"},
            "dtype is 'fp8'; it must be fp32, fp16, bf16",
        ),
        ({"tiles": TileSizes(64, 32, 4), "head_dim": 64, "stages": 0}, "stages is 0"),
    ],
)
def test_a_bad_plan_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        TilePlan(**arguments)


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", [64, 128])
def test_the_plan_is_what_the_kernel_does(head_dim):
    """Shared memory and its bank passes, as counted by the checked build."""
    from common.inspect.checked_library import PROFILE, CheckedCaller, Collected

    sizes = tiles.tiles_for(head_dim)
    one = TilePlan(sizes, head_dim)
    ops = load(BuildRequest("task4", "solution", backend="simulator", checked=True))
    caller = CheckedCaller(ops, PROFILE)
    collected = Collected(caller)
    case = SimpleNamespace(call=lambda ops, query, key: ops.flash_attention(query, key, key, False), in_place=())
    counted = {}
    for key_tiles in (2, 5):
        query, key = torch.randn(1, 1, sizes.B_r, head_dim), torch.randn(1, 1, key_tiles * sizes.B_c, head_dim)
        caller.call(case, {"query": query, "key": key}, BARE)
        (counted[key_tiles],) = collected.kernels()
    assert counted[2].shared_bytes == one.shared_bytes
    assert counted[2].threads == one.threads
    assert counted[5].wavefronts - counted[2].wavefronts == 3 * one.shared_passes


@pytest.mark.slow
@pytest.mark.skipif(not any(toolchain.all_nvccs()), reason="needs nvcc")
def test_the_estimated_registers_are_near_those_of_ptxas():
    kernels = compile_only([ROOT / "task4" / "solution" / "flash_attention.cu"], "sm_80").kernels
    counted = {kernel.name: kernel.registers for kernel in kernels if kernel.name.startswith("flash_attention_kernel<")}
    assert len(counted) == len(HEAD_DIMS)
    for D, sizes in tiles.read_tiles().items():
        real = counted[Candidate(D, sizes).kernel]
        assert abs(TilePlan(sizes, D).registers - real) <= 24, (D, sizes, real)


def test_the_planner_says_what_fits(capsys):
    arguments = ["--br", "64", "--bc", "64", "--head-dim", "128", "--dtype", "fp16"]
    assert plan.main([*arguments, "--gpu", "h100"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("80.0 KB per block; H100 SXM gives one at most 227 KB", "limited by shared memory", "possible"):
        assert words in said
    assert plan.main([*arguments, "--gpu", "t4"]) == 1
    assert "impossible: shared memory: 80.0 KB of 64" in capsys.readouterr().out
    assert plan.main([*arguments, "--gpu", "t5"]) == 2
    assert "did you mean T4?" in capsys.readouterr().out
    assert plan.main([*arguments[:4], "--head-dim", "300"]) == 2
    assert "head_dim is 300; it must be 1 .. 128" in capsys.readouterr().out


# --------------------------------------------------------------------------------------------------------- tuner

SMALL = [Candidate(32, TileSizes(16, 32, 4)), Candidate(32, TileSizes(32, 64, 2))]
TOO_LARGE = Candidate(32, TileSizes(512, 32, 4), ("shared memory: 136.5 KB of 64",))


class FakeTuning:
    """A stand-in for a library: right, computed by PyTorch, except for tiles in `wrong`; records the chosen tiles."""

    def __init__(self, wrong=()) -> None:
        self.wrong, self.chosen = set(wrong), None
        self.ops = SimpleNamespace(device=torch.device("cpu"), backend="fake", flash_attention=self._attention)

    def choose(self, candidate) -> None:
        self.chosen = candidate

    def spills(self, candidate) -> int:
        return 16 * (candidate.tiles.B_c == 64)

    def _attention(self, query, key, value, causal, scale=None, lower_right=False):
        out = reference.attention(query, key, value, causal, scale, lower_right=lower_right)
        return out + 1 if self.chosen in self.wrong else out


class FakeStopwatch:
    """Makes the chosen tiles appear to take this long."""

    def __init__(self, tuning: FakeTuning, seconds: dict[Candidate, float]) -> None:
        self.tuning, self.taken = tuning, seconds

    def seconds(self, call) -> float:
        call()
        return self.taken[self.tuning.chosen]


TINY = tune_run.Workload(batch=1, heads=1, tokens=8, rounds=2)


def outcomes_of(tuning, candidates, seconds):
    stopwatch = FakeStopwatch(tuning, seconds)
    return tune_run.run(tuning, candidates, TINY, Console(quiet=True), stopwatch)


def test_the_fastest_right_tiles_win():
    fast, slow = SMALL
    also = Candidate(64, TileSizes(64, 32, 4))
    tuning = FakeTuning()
    found = outcomes_of(tuning, [slow, TOO_LARGE, fast, also], {fast: 1e-3, slow: 2e-3, also: 5e-3})
    assert [one.candidate for one in found] == [slow, TOO_LARGE, fast, also]
    assert {D: one.candidate for D, one in tune_run.best(found).items()} == {32: fast, 64: also}
    assert found[2].tflops == pytest.approx(TINY.flops(32) / 1e-3 * 1e-12) == pytest.approx(2 * found[0].tflops)
    assert found[0].spills == 16 and not found[1].tflops and not found[1].wrong


def test_wrong_tiles_are_not_timed():
    fast, slow = SMALL
    found = outcomes_of(FakeTuning(wrong=[fast]), [fast, slow], {slow: 2e-3})
    assert found[0].wrong and not found[0].tflops
    assert tune_run.best(found)[32].candidate == slow
    assert tune_run.best(outcomes_of(FakeTuning(wrong=SMALL), SMALL, {})) == {}


def test_the_tuner_shows_and_writes(tmp_path, capsys):
    fast, slow = SMALL
    file = tmp_path / "tiles.h"
    shutil.copy(tiles.FILE, file)
    before = tiles.read_tiles(file)
    options = SimpleNamespace(variant=Variant.SOLUTION, keep=True, shared_kb=99, picture=str(tmp_path))
    tuning = FakeTuning()
    for keep in (True, False):
        options.keep = keep
        stopwatch = FakeStopwatch(tuning, {fast: 1e-3, slow: 2e-3})
        console = Console(width=120)
        assert tune.report(console, tuning, [slow, fast, TOO_LARGE], TINY, options, stopwatch, file) == 0
        said = capsys.readouterr().out
        assert "fastest: 16 x 32, 4 warps" in said and "137 KB" in said and "* " in said
        assert ("left as it was" in said) == keep
        assert tiles.read_tiles(file) == (before if keep else before | {32: fast.tiles})
    assert "// Chosen by python -m task4.tune --solution, 99 KB, fake" in file.read_text()
    assert (tmp_path / "tiles.png").stat().st_size > 5000
    wrong = FakeTuning(wrong=SMALL)
    assert tune.report(Console(width=120), wrong, SMALL, TINY, options, FakeStopwatch(wrong, {}), file) == 1
    said = capsys.readouterr().out
    assert "no tiles gave right results" in said and "wrong: head_dim 32, 16 x 32, 4 warps: " in said


def test_short_reasons():
    options = grid([64], [60, 64, 96], [32, 64], [2, 8], H200, 64)
    short = {
        (one.tiles.B_r, one.tiles.B_c, one.tiles.warps): tune_report.short_reason(one)
        for one in options
        if one.problems
    }
    assert short == {
        (60, 32, 8): "÷", (60, 64, 8): "÷",
        (64, 64, 2): "65 KB", (64, 64, 8): "65 KB",
        (96, 32, 2): "288 reg",
        (96, 64, 2): "81 KB", (96, 64, 8): "81 KB",
    }  # fmt: skip


def test_without_a_gpu_the_possible_tiles_are_shown(monkeypatch, capsys):
    monkeypatch.setattr(toolchain, "choose_backend", lambda _: toolchain.Backend("simulator", "no GPU"))
    before = tiles.FILE.read_text()
    assert tune.main(["--head-dim", "64", "--gpu", "t4"]) == 2
    said = capsys.readouterr().out
    assert "Nothing can be measured here: no GPU." in said and "on T4 (asked for)" in said
    assert "26 of 72 are possible" in said and "65 KB" in said and "shared memory: the tiles need this much" in said
    assert tiles.FILE.read_text() == before


def test_gaps_must_be_filled_first():
    with pytest.raises(ValueError, match=r"task4/flash_attention.cu:\d+ in load_tile is not implemented yet"):
        compile_candidates(SMALL, variant=Variant.STUDENT, shared_kb=64, backend="simulator")
    with pytest.raises(ValueError, match="none of these tiles is possible"):
        compile_candidates([TOO_LARGE], variant=Variant.SOLUTION, shared_kb=64, backend="simulator")


@pytest.mark.slow
def test_one_library_holds_all_tiles():
    """Each choice launches the kernel with its own tiles, and the results are right."""
    tuning = compile_candidates([*SMALL, TOO_LARGE], variant=Variant.SOLUTION, shared_kb=64, backend="simulator")
    assert set(tuning.places) == set(SMALL)
    for one in SMALL:
        assert tune_run.complaint(tuning, one) == ""
    tuning.choose(SMALL[1])
    query = torch.randn(1, 1, 40, 32)
    expected = reference.attention(query.double(), query.double(), query.double(), True)
    torch.testing.assert_close(
        tuning.ops.flash_attention(query, query, query, True).double(), expected, rtol=0, atol=1e-5
    )


@pytest.mark.slow
def test_impossible_tiles_do_not_compile(tmp_path):
    bad = replace(SMALL[0], tiles=TileSizes(18, 48, 4))
    source = ROOT / "task4" / "solution" / "flash_attention.cu"
    sources = write_sources([bad], source, tmp_path, 1)
    with pytest.raises(BuildError, match=r"flash_attention.cu:.*tiles.h: these tiles do not fit into SHARED_KB"):
        load(BuildRequest("task4", backend="simulator", sources=sources, label="bad_tiles"))
    log = (build_root() / "simulator" / "bad_tiles" / "task4" / "compile.log").read_text()
    for words in ("B_r must be a multiple of the number of warps", "B_c must be a multiple of 32"):
        assert words in log
