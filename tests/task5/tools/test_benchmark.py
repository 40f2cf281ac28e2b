"""python -m task5.benchmark: which kernels, in which precision. Nothing is timed."""

from __future__ import annotations

import pytest

from common.cli.benchmark import benchmark_main, parser_of
from task5.tools import benchmark


@pytest.mark.parametrize(
    ("arguments", "dtypes"),
    [([], {"bf16"}), (["--dtype", "fp16"], {"fp16"}), (["--solution"], {"fp32"}), (["--variant", "student"], {"fp32"})],
)
def test_what_suits_the_variant(arguments, dtypes):
    options = parser_of(benchmark.BENCHMARK).parse_args(arguments)
    assert {one.dtype for one in benchmark.BENCHMARK.problems(options)} == dtypes


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--solution", "--dtype", "bf16"], "--dtype is bf16; the solution kernels take fp32"),
        (["--dtype", "fp32"], "--dtype is fp32; the tuned kernels take fp16, bf16"),
    ],
)
def test_what_does_not_suit_it(arguments, words, capsys):
    with pytest.raises(SystemExit):
        benchmark_main(benchmark.BENCHMARK, arguments)
    assert words in capsys.readouterr().err
