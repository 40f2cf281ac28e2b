"""The cost model, worked out by hand for two small machines."""

from dataclasses import replace

import pytest

from common.kernels.distributed.paper import (
    Machine,
    Problem,
    arithmetic,
    hidden_from,
    main,
    ring,
    ring_wins_from,
    ulysses,
)

PROBLEM = Problem(tokens=1000, heads=4, kv_heads=2, head_dim=10)


def test_by_hand():
    # 2 * 1000^2 * 4 * 10 = 8e7 operations, by 2 ranks of 4e7 per second
    machine = Machine(2, 4e7, 1e5)
    assert arithmetic(PROBLEM, machine) == 1.0
    # a step: keys and values, 500 tokens of 2 * 10 numbers of 2 bytes; half a second of arithmetic, 0.4 s of transfer
    assert ring(PROBLEM, machine) == (40_000, 1.0)
    assert ring(PROBLEM, Machine(2, 4e7, 4e4)) == (40_000, 1.5)  # the transfer takes 1 s, half of it exposed
    # query and out with 4 heads, keys and values with 2, 500 tokens: 12 * 500 * 10 * 2 bytes, half of which stay local
    assert ulysses(PROBLEM, machine) == (60_000, 1.6)


def test_backward_by_hand():
    backward = replace(PROBLEM, backward=True)
    machine = Machine(2, 4e7, 1e5)
    assert arithmetic(backward, machine) == 2.5
    # two steps of 1.25 s hide 0.4 s for the keys and 0.8 s for their gradients; returning the gradients is exposed
    assert ring(backward, machine) == (120_000, pytest.approx(2.5 + 0.8))
    # three ranks, slow: 26,667 bytes of keys, 53,333 of gradients; 1.11 .. / 3 s per step
    slow = Machine(3, 1e9, 1e4)
    keys, gradients = 2 * 1000 / 3 * 20 * 2 / 1e4, 2 * 1000 / 3 * 20 * 4 / 1e4
    assert ring(backward, slow)[1] == pytest.approx(keys + (keys + gradients) + gradients + gradients)
    assert ulysses(backward, machine) == (60_000, pytest.approx(2.5 + 0.6))


def test_where_the_ring_wins():
    machine = Machine(4, 3e7, 2e4)
    for backward in (False, True):
        problem = replace(PROBLEM, heads=8, kv_heads=4, backward=backward)
        least = ring_wins_from(problem, machine)
        assert 1 < least < 1e6
        for tokens, wins in ((1.01 * least, True), (0.99 * least, False)):
            longer = replace(problem, tokens=tokens)
            assert (ring(longer, machine)[1] < ulysses(longer, machine)[1]) is wins
    # equal KV heads: returning the gradients, 8 bytes by 4 heads, is more than 3/4 of 2 bytes by 16
    assert ring_wins_from(replace(PROBLEM, kv_heads=4, backward=True), machine) == float("inf")


def test_one_gpu_sends_nothing():
    assert ring(PROBLEM, Machine(1, 4e7, 1e5)) == (0.0, 2.0) and ulysses(PROBLEM, Machine(1, 4e7, 1e5))[0] == 0


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
