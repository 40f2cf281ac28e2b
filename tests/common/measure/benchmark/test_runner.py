"""Which versions a benchmark runs, how often, and what it says about the others. Nothing is timed."""

import pytest
import torch
from made_up_times import Bytes, Clock, Sleep, runner, takes

from common.measure.benchmark import tables
from common.measure.benchmark.problem import Version
from common.measure.benchmark.runner import FEWEST_ROUNDS, Runner, rounds_in, shares
from common.measure.benchmarks.softmax import SoftmaxProblem


def test_all_rounds_where_there_is_time():
    records = runner().run(Sleep(), {"a": takes(0.01), "b": takes(0.02)}, 1.0)
    assert [(one.version, one.timing.seconds, len(one.timing.runs)) for one in records] == [
        *(("a", 0.01, 20), ("b", 0.02, 20)),
    ]
    assert records[0].rate == Sleep().work / 0.01 and records[0].memory == 4096


def test_fewer_rounds_where_time_is_short():
    run = runner(budget=4.0)
    (record,) = run.run(Sleep(), {"a": takes(0.1)}, 0.5)
    assert 10 <= len(record.timing.runs) < 20
    assert run.clock() <= 2.5
    (record,) = run.run(Sleep(), {"a": takes(0.1)}, 0.01)
    assert len(record.timing.runs) == FEWEST_ROUNDS, "never fewer than these"


def test_the_slow_have_rounds_of_their_own():
    log: list[str] = []
    versions = {"slow": takes(0.2, log, "slow"), "a": takes(0.01, log, "a"), "b": takes(0.02, log, "b")}
    records = {one.version: one for one in runner().run(Sleep(), versions, 1.0)}
    assert list(records) == ["slow", "a", "b"]
    assert len(records["slow"].timing.runs) == 1 and len(records["a"].timing.runs) == 20
    assert log[:6] == ["slow", "slow", "a", "a", "b", "b"], "the first calls"
    assert log[6:11] == ["slow", "a", "b", "b", "a"], "then in turn"


def test_what_would_take_too_long_is_left_out():
    run = runner()
    first = run.run(Sleep(40), {"a": takes(0.3)}, 0.5)
    assert first[0].timing
    (record,) = run.run(Sleep(160), {"a": takes(0.3)}, 0.5)
    assert record.timing is None and record.left_out == "time: about 1.2 s per run" and not record.failed
    (other,) = run.run(Sleep(160, setting="another"), {"a": takes(0.1)}, 0.5)
    assert other.timing, "another setting is another matter"


def test_what_does_not_fit_is_left_out():
    versions = {"a": takes(0.1, stored_bytes=1000), "b": takes(0.1, stored_bytes=4000)}
    records = runner(memory=2000).run(Sleep(), versions, 1.0)
    assert records[0].timing and records[1].left_out.startswith("memory: needs")


def test_what_runs_out_of_memory_is_left_out():
    versions = {"a": takes(0.1, error=torch.OutOfMemoryError("no")), "b": takes(0.1)}
    records = runner().run(Sleep(), versions, 1.0)
    assert records[0].left_out == "memory" and records[1].timing


def test_what_raises_is_left_out_with_its_first_words():
    error = RuntimeError("No available kernel. Aborting execution.\nAnd much more")
    for ours in (False, True):
        records = runner().run(Sleep(), {"a": takes(0.1, error=error, ours=ours), "b": takes(0.1)}, 1.0)
        assert records[0].left_out == "No available kernel. Aborting execution." and records[1].timing
        assert records[0].failed is ours


def test_what_is_wrong_is_not_timed():
    clock = Clock()
    run = Runner(10, 20, clock, Bytes(), "cpu", clock)
    zeros = Version("zeros", lambda x: lambda: torch.zeros_like(x))
    (record,) = run.run(SoftmaxProblem(3, 40), {"a": zeros}, 1.0)
    assert record.left_out == "wrong" and record.failed and record.timing is None
    assert not record.errors.ok and clock.now == 0
    words = tables.left_out_words([record])
    assert words.startswith("zeros at 3 x 40: wrong: max error ") and ", bound " in words


def test_what_answers_another_question_is_not_compared():
    clock = Clock()
    run = Runner(10, 2, clock, Bytes(), "cpu", clock)
    one = Version("one", lambda x: lambda: 0.01, compared=False)
    (record,) = run.run(SoftmaxProblem(3, 40), {"a": one}, 1.0)
    assert record.timing and record.errors is None


def test_rounds_and_shares():
    assert [rounds_in(seconds, 1.0, 20) for seconds in (-5.0, 4.9, 9.0, 99.0)] == [3, 4, 9, 20]
    assert rounds_in(99.0, 1.0, 2) == 2 and rounds_in(0.1, 1.0, 20, fewest=1) == 1
    given = shares([Sleep(1), Sleep(100), Sleep(1)])
    assert given[-1] == 1.0 and given[1] == max(given[:-1]) > given[0] > 0.05


@pytest.mark.parametrize("left_out", ["memory", "memory: needs 9 GiB", "time: about 1 s per run"])
def test_what_a_machine_lacks_is_no_failure(left_out):
    from dataclasses import replace

    (record,) = runner().run(Sleep(), {"a": takes(0.1, ours=True)}, 1.0)
    assert not record.failed and not replace(record, timing=None, left_out=left_out).failed
