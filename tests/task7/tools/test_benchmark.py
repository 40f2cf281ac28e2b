"""python -m task7.benchmark: what it counts and how it ends; the timings themselves need a GPU."""

import pytest
from rich.console import Console

from common.compiling import toolchain
from task7.tools import benchmark, survey


def test_runs_that_warm_up_do_not_count():
    calls = []

    def generate(prompt, new_tokens):
        calls.append((prompt, new_tokens))
        return 10.0 * len(calls), [float(len(calls))] * (new_tokens - 1)

    measured = benchmark.measure(generate, [1, 2], 51, rounds=3)
    assert calls == [([1, 2], 51)] * 5
    assert measured.ttft == [30.0, 40.0, 50.0] and measured.tbt == [5.0] * 50 and measured.tbt_median == 5.0


def test_the_table_has_the_share_of_the_limit():
    measured = {
        "engine": benchmark.Measured([2.0, 1.0, 3.0], [0.2] * 60),
        "sdpa": benchmark.Measured([8.0], [0.7, 0.9] * 30),
    }
    console = Console(width=120)
    with console.capture() as capture:
        console.print(benchmark.table(measured, {"engine": 0.06, "sdpa": 0.12}, "GPT-2"))
    ours, sdpa = (line for line in capture.get().splitlines() if "engine" in line or "sdpa" in line)
    assert [cell.strip() for cell in ours.split("│")[1:-1]] == [
        *("engine", "2.00", "0.200", "0.200 .. 0.200", "5,000", "30%", "1.00")
    ]
    assert "0.800" in sdpa and "0.700 .. 0.900" in sdpa and "15%" in sdpa and "4.00" in sdpa


def test_the_limit_of_a_batch_counts_its_cache():
    """GPT-2 124M in 16 bits uses 36,864 bytes per token."""
    assert survey.step_bytes(1000, "gpt2", 8, 576.0, 2) == 1000 + 8 * 576 * 36864


def test_the_survey_has_a_line_for_every_size_batch_and_version():
    measured = benchmark.Measured([2.0], [0.5] * 60)
    rows = [
        survey.Row("gpt2", 8, "engine", "a CUDA graph", measured, 0.1),
        survey.Row("gpt2", 8, "static", "", measured, 0.1),
        survey.Row("gpt2-xl", 1, "engine", "a CUDA graph", measured, 0.4),
    ]
    console = Console(width=120)
    with console.capture() as capture:
        console.print(survey.table(rows, "title"))
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capture.get().splitlines() if "gpt2" in line]
    assert lines[0] == ["gpt2", "8", "engine", "2.00", "0.500", "16,000", "0.100", "20%"]
    assert [line[2] for line in lines] == ["engine", "static", "engine"] and lines[2][5:] == ["2,000", "0.400", "80%"]
    assert survey.steps_of(rows) == {"a CUDA graph": [8, 1]}
    asked = benchmark.parser().parse_args(["--versions", "static", "drawn", "sdpa"])
    assert survey.versions_of(asked, "gpt2") == ["engine", "static", "drawn"]
    assert survey.versions_of(asked, "gpt2-xl") == ["engine", "drawn"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--new-tokens", "50"], "--new-tokens is 50; it must be 51 or more"),
        (["--prompt", "1000"], "at most 1024"),
        (["--sizes", "gpt2,gpt3"], "'gpt3' is no size; allowed: gpt2, gpt2-medium, gpt2-large, gpt2-xl"),
        (["--batches", "8,none"], "--batches: it is 'none'; it must be a number above 0"),
        (["--versions", "flash"], "invalid choice: 'flash'"),
        (["--rounds", "0"], "--rounds: it is '0'; it must be a number above 0"),
    ],
)
def test_bad_arguments(arguments, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        benchmark.main(arguments)
    assert stopped.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.skipif(toolchain.choose_backend("auto").name == "cuda", reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert benchmark.main(["--versions", "sdpa"]) == 2
    assert "A benchmark needs a GPU" in capsys.readouterr().out
