"""The multi-GPU benchmark, without GPUs: times are made up; verification runs over gloo."""

from __future__ import annotations

import io
import json

import pytest
import torch
from ranks import in_ranks
from rich.console import Console

from common import benchmark
from common.measure.benchmarks.distributed import command, records
from common.measure.benchmarks.distributed.longest import most_tokens
from common.measure.benchmarks.distributed.records import DEFAULT, Record, Setting

LONG, SHORT = Setting(2**16, True), Setting(2**14, True)


def made_up(setting: Setting, passes: str = "forward", **milliseconds: float | None) -> list[Record]:
    """A record for each version, whose runs have this median; None: skipped."""
    return [
        Record(
            setting, passes, name, tuple(x * 1e-3 for x in (ms, ms, 50 * ms)) if ms else (), "" if ms else "no cuDNN"
        )
        for name, ms in milliseconds.items()
    ]


TIMES = [
    *made_up(SHORT, ring=1.3, ulysses=1.0, context_parallel=1.7, one=1.9),
    *made_up(
        LONG, ring=14.0, ulysses=15.0, context_parallel=16.6, context_parallel_alltoall=16.1, one=28.0, one_cudnn=None
    ),
    *made_up(LONG, "training", ring=60.0, context_parallel=62.6),
]


def test_operations_by_hand():
    assert Setting(1000, False, heads=2, head_dim=10).operations("forward") == 4 * 2 * 1000 * 1000 * 10
    assert Setting(1000, True, heads=2, head_dim=10).operations("training") == 3.5 * 4 * 2 * 1000 * 1000 * 10 / 2
    assert [one.name for one in DEFAULT] == ["16k causal", "32k causal", "64k causal", "64k full"]
    assert Setting(1500, False).name == "1,500 full"


def test_a_row_for_each_setting_and_the_rate_of_the_whole():
    console = Console(file=io.StringIO(), width=160)
    console.print(records.table(TIMES, "forward", 2))
    said = " ".join(console.file.getvalue().split())
    # 2 * 65536^2 * 16 * 128 operations in 14 ms: 1,257 TFLOP/s
    assert "64k causal │ 14 (1,257) │ 15 (1,173) │ 16.6 (1,060)" in said and "one GPU, ours" in said
    assert "16k causal │ 1.3 (846)" in said and "60 (" not in said
    assert "│ - │" in said  # cuDNN on one GPU was skipped


def test_ratios_beside_what_is_wanted():
    assert records.goals(TIMES) == [
        "16k causal, forward: ulysses is 1.70 x context_parallel, all-gather",
        "16k causal, forward: ulysses is 1.90 x one GPU, ours, goal 1.5: met",
        "64k causal, forward: ring is 1.15 x context_parallel, all-to-all, goal 1.1: met",
        "64k causal, forward: ring is 2.00 x one GPU, ours, goal 1.9: met",
        "64k causal, training: ring is 1.04 x context_parallel, all-gather, goal 1.1: MISSED",
    ]
    assert records.goals(made_up(LONG, one=1.0)) == []


def test_json_holds_runs_and_why_one_is_missing():
    content = json.loads(records.to_json(TIMES, "torchrun ...", 2, {"longest": {"tokens": 5}}))
    assert content["ranks"] == 2 and content["longest"] == {"tokens": 5} and len(content["results"]) == len(TIMES)
    first, missing = content["results"][0], next(one for one in content["results"] if one["left_out"])
    assert first["setting"]["name"] == "16k causal" and first["median_seconds"] == pytest.approx(1.3e-3)
    assert (
        missing["version"] == "one_cudnn" and missing["median_seconds"] is None and missing["work_per_second"] is None
    )


def test_most_tokens_by_a_straight_line():
    # 3 bytes per token plus 100
    assert most_tokens([(10, 130), (20, 160)], room=1000, step=1) == 300
    assert most_tokens([(10, 130), (20, 160)], room=1000, step=64) == 256


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--heads", "3"], "--heads is 3; for ulysses it must be a multiple of the 2 ranks"),
        (["--heads", "0"], "--heads is 0; it must be 1 .. 1024"),
        (["--head-dim", "129"], "--head-dim is 129; it must be 1 .. 128"),
        (["--rounds", "0"], "--rounds is 0; it must be 1 .. 1000"),
        (["--tokens", "4096", "30"], "--tokens is 30; it must be a multiple of 2 * ranks = 4"),
        (["--mask", "full"], "--mask belongs to --tokens: add that"),
        (["--versions", "three"], "invalid choice: 'three'"),
    ],
)
def test_bad_arguments_are_told(arguments, words, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SystemExit, match="2"):
        benchmark.main(["distributed", *arguments])
    assert words in " ".join(capsys.readouterr().err.split())


def test_what_is_measured():
    def settings(*arguments: str) -> list[Setting]:
        return command.settings_of(command.parser().parse_args(arguments), 2)

    assert settings() == list(DEFAULT)
    assert settings("--tokens", "64", "--heads", "4") == [Setting(64, True, 4), Setting(64, False, 4)]
    assert settings("--tokens", "64", "32", "--mask", "full") == [Setting(64, False), Setting(32, False)]
    assert settings("--heads", "3", "--versions", "ring")[0].heads == 3


def test_without_torchrun_or_a_gpu_it_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.delenv("RANK", raising=False)
    assert command.main([]) == 2
    assert "torchrun --nproc-per-node 2 -m common.benchmark distributed" in capsys.readouterr().out
    if not torch.cuda.is_available():
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        assert command.main([]) == 2
        assert "A benchmark needs a GPU" in capsys.readouterr().out


def broken(query, key, value, causal):
    raise RuntimeError("no such backend\nand more")


def verified(rank: int, ranks: int) -> list:
    from common.measure.benchmarks.distributed.verify import verify
    from common.measure.benchmarks.distributed.versions import Version, all_versions

    versions = all_versions()
    right = versions["ulysses"]
    chosen = {"ring": versions["ring"], "ulysses": right, "one": versions["one"]}
    chosen["wrong"] = Version(lambda q, k, v, causal: 1.01 * right.attend(q, k, v, causal))
    chosen["broken"] = Version(broken)
    return verify(chosen, torch.device("cpu"), 8, 4, 2, 8, torch.float32)


@pytest.mark.slow
def test_what_is_right_is_verified_and_what_is_not_is_told():
    checked = in_ranks(2, verified)[0]
    assert not isinstance(checked, Exception), checked
    found = {one.what: one.fine for one in checked}
    names = ("ring", "ulysses", "wrong", "broken")
    assert found == {f"{name}, {mask}": name in ("ring", "ulysses") for mask in ("causal", "full") for name in names}
    for one in checked:
        is_broken = one.what.startswith("broken")
        assert len(one.errors) == (0 if is_broken else 4) and one.left_out == ("no such backend" if is_broken else "")
