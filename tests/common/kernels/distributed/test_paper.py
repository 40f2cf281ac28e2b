"""The costs on paper, worked out by hand for two small machines."""

import pytest

from common.kernels.distributed.paper import Machine, Problem, arithmetic, hidden_from, main, ring, ulysses

PROBLEM = Problem(tokens=1000, heads=4, kv_heads=2, head_dim=10)


def test_by_hand():
    # 2 * 1000^2 * 4 * 10 = 8e7 operations, by 2 ranks of 4e7 per second
    machine = Machine(2, 4e7, 1e5)
    assert arithmetic(PROBLEM, machine) == 1.0
    # a step: keys and values, 500 tokens of 2 * 10 numbers of 2 bytes; half a second of arithmetic, 0.4 s of journey
    assert ring(PROBLEM, machine) == (40_000, 1.0)
    assert ring(PROBLEM, Machine(2, 4e7, 4e4)) == (40_000, 1.5)  # the journey takes 1 s, and half of it shows
    # query and out of 4 heads, keys and values of 2, 500 tokens: 12 * 500 * 10 * 2 bytes, half of which stays
    assert ulysses(PROBLEM, machine) == (60_000, 1.6)


def test_where_a_step_hides_its_journey():
    machine = Machine(4, 3e7, 2e4)
    tokens = hidden_from(PROBLEM, machine)
    for more, hidden in ((1.01, True), (0.99, False)):
        problem = Problem(tokens * more, 4, 2, 10)
        assert (ring(problem, machine)[1] == pytest.approx(arithmetic(problem, machine))) is hidden


def test_the_command(capsys):
    assert main(["--ranks", "64", "--heads", "16"]) == 0
    assert "ulysses: 16 heads are no multiple of 64 ranks" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["--bandwidth", "0"])
    assert "--bandwidth is 0.0; it must be above 0" in capsys.readouterr().err
