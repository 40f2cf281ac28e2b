"""The benchmark of attention with options: operations, what counts as right, who takes part. Nothing is timed."""

from __future__ import annotations

import pytest
import torch

from common import benchmark
from common.measure.benchmarks import options
from common.measure.benchmarks.options import LABELS, OPTIONS, Problem, options_benchmark, versions_of


@pytest.fixture
def small(monkeypatch):
    """Sizes for the simulator: a window of 9 in sequences of 24, head_dim 16 and 136."""
    for name, size in {"WINDOW": 9, "HEAD_DIM": 16, "WIDE": 136, "SOFTCAP": 2.0}.items():
        monkeypatch.setattr(options, name, size)

    def make(option: str, direction: str = "forward", dtype: str = "fp32") -> Problem:
        return Problem(option, direction, dtype, 24, tokens=48, hidden=272 if option == "wide" else 32)

    return make


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("direction", ["forward", "backward", "training"])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_version_computes_the_problem(backend, small, option, direction, dtype):
    """The compared versions, with uncompiled FlexAttention; results that are off, or lack the option, are rejected."""
    problem = small(option, direction, dtype)
    device = "cuda" if backend == "cuda" else "cpu"
    inputs = problem.make_inputs(device)
    sample = problem.sample(inputs)
    found = versions_of(problem, list(LABELS))
    expected = {"softcap": {"flex"}, "window": {"flex"}, "packed": {"flex"}, "dropout": {"sdpa"}}
    assert set(found) == {"options"} | ({"flex", "sdpa"} if option == "wide" else {"plain"}) | expected.get(
        option, set()
    )
    assert [name for name, one in found.items() if one.ours] == ["options"]
    for name, one in found.items():
        if name == "sdpa" or (name == "flex" and (direction != "forward" or device == "cuda")):
            continue  # uncompiled FlexAttention has no gradients; SDPA flash takes no float32, or no dropout
        out = one.prepare(*inputs)()
        assert sample.compare(out).ok == one.compared, name
    out = found["options"].prepare(*inputs)()
    parts = (out,) if isinstance(out, torch.Tensor) else out
    assert not sample.compare([1.05 * x for x in parts]).ok


def test_operations_of_what_is_seen(small):
    """Counted one by one; backward 2.5 times as many."""
    lengths = {"packed": [24, 12, 6, 6]}
    for option in OPTIONS:
        problem = small(option)
        assert problem.lengths == lengths.get(option, [24, 24])
        window = 9 if option == "window" else 100
        pairs = sum(i - window < j <= i for n in problem.lengths for i in range(n) for j in range(n))
        assert problem.work == 4 * problem.heads * problem.head_dim * pairs
        assert small(option, "backward").work == 2.5 * problem.work


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("cap", "forward", "bf16", 2048), "option is 'cap'; it must be one of softcap, window"),
        (("softcap", "forward", "bf16", 2047), "seq is 2047; it must be at least 8 and divide 16384"),
        (("softcap", "forward", "bf16", 4), "seq is 4; it must be at least 8"),
    ],
)
def test_problems_that_make_no_sense(arguments, says):
    with pytest.raises(ValueError, match=says):
        Problem(*arguments)


def test_the_command(capsys):
    made = options_benchmark("common.benchmark options")
    assert set(made.labels) == {"options", "plain", "flex", "sdpa"}
    with pytest.raises(SystemExit):
        benchmark.main(["options", "--help"])
    shown = capsys.readouterr().out
    assert "--option" in shown and "FlexAttention" in shown
