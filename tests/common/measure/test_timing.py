"""Timing, limits and reports, with a stopwatch that returns given times: no GPU, nothing is really timed."""

from __future__ import annotations

import pytest
import torch
from made_up_times import Clock
from second_per_call import SecondPerCall

from common.measure import limits as limits_module
from common.measure import report
from common.measure.limits import Limits, float32_precision, measure_limits
from common.measure.timing import CudaStopwatch, Timing, measure


def test_the_median():
    assert Timing((3.0, 1.0, 2.0, 10.0, 2.5)).seconds == 2.5


def test_every_round_has_new_inputs_and_every_peer_gets_them():
    made, seen = [], {"a": [], "b": [], "c": []}

    def make_inputs():
        made.append(object())
        return made[-1], len(made)

    def peer(name):
        def call(x, number):
            seen[name].append(x)
            return float(number)

        return call

    timings = measure({name: peer(name) for name in seen}, make_inputs, rounds=5, warm_up=2, stopwatch=Clock())
    assert len(made) == 7 and all(seen[name] == made for name in seen)
    assert list(timings) == ["a", "b", "c"]
    assert all(timing.runs == (3.0, 4.0, 5.0, 6.0, 7.0) for timing in timings.values())  # warm-up runs are excluded


def test_the_peers_take_turns_at_going_first():
    order = []

    def peer(name):
        def call():
            order.append(name)
            return 1.0

        return call

    measure({name: peer(name) for name in "abc"}, tuple, rounds=3, warm_up=0, stopwatch=Clock())
    assert order == [*"abc", *"bca", *"cab"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"peers": {}}, "peers is empty"),
        ({"rounds": 0}, "rounds is 0 and warm_up 3; they must be at least 1 and 0"),
        ({"warm_up": -1}, "rounds is 20 and warm_up -1"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        measure(**{"peers": {"a": lambda: 1.0}, "make_inputs": tuple, "stopwatch": Clock(), **arguments})


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_a_stopwatch_needs_a_gpu():
    with pytest.raises(RuntimeError, match="torch sees none"):
        CudaStopwatch()


@pytest.mark.gpu
def test_the_stopwatch_calls_once_and_says_how_long_it_took():
    calls = []
    x = torch.randn(1024, 1024, device="cuda")
    assert 0 < CudaStopwatch().seconds(lambda: calls.append(x @ x)) < 10
    assert len(calls) == 1


def test_limits_count_bytes_both_ways_and_two_operations_per_product(monkeypatch):
    monkeypatch.setattr(limits_module, "COPY_BYTES", 4096)
    monkeypatch.setattr(limits_module, "MATMUL_SIZE", 16)
    watch = SecondPerCall()
    limits = measure_limits(("float32", "bfloat16"), rounds=1, stopwatch=watch, device="cpu")
    assert limits == Limits(copy=8192, matmul={"float32": 2 * 16**3, "bfloat16": 2 * 16**3})
    copied, float32, bfloat16 = watch.results[0], watch.results[4], watch.results[8]
    assert copied.numel() == 1024 and float32.shape == bfloat16.shape == (16, 16)
    assert (float32.dtype, bfloat16.dtype) == (torch.float32, torch.bfloat16)


def test_an_unknown_arithmetic_is_named():
    with pytest.raises(ValueError, match=r"matmul holds \['fp8'\]; it may hold float32, tf32 and bfloat16"):
        measure_limits(("fp8",), stopwatch=Clock(), device="cpu")


def test_the_precision_is_put_back():
    before = torch.get_float32_matmul_precision()
    with pytest.raises(KeyError), float32_precision("high"):
        assert torch.get_float32_matmul_precision() == "high"
        raise KeyError
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.853e-3, "2.85 ms"), (4.13e-5, "41.3 us"), (4.128e-4, "413 us"), (9.999e-4, "1.00 ms"), (2.7e-3, "2.70 ms")],
)
def test_durations_have_three_digits(seconds, text):
    assert report.duration(seconds) == text
