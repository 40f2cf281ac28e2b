"""Where the programming guide leaves behavior open, the simulator does as GPUs do; every test here also runs on one."""

import numpy as np
import pytest


@pytest.mark.parametrize("n", [1, 50, 96, 100, 128])
def test_returned_threads_count_as_arrived(library, n):
    values, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    library.hardware_early_return(out, values, n)
    assert (out[:n] == values[:n][::-1]).all() and not out[n:].any()


def test_returned_threads_do_not_vote(library):
    out = np.zeros((128, 3), np.int32)
    library.hardware_counted(out, 100)
    assert (out[:100] == [50, 1, 0]).all()


def test_threads_leave_a_loop_with_barriers_early(library):
    values, out = np.arange(100, dtype=np.float32), np.zeros(64, np.float32)
    library.hardware_uneven_loop(out, values, 100)
    expected = values[:64].copy()
    expected[:36] += values[64:]
    assert (out == expected).all()


@pytest.mark.parametrize("n", [1, 7, 16, 20, 32])
def test_a_sum_over_a_warp_after_lanes_have_returned(library, n):
    values, out = np.arange(1, 33, dtype=np.float32), np.zeros(1, np.float32)
    library.hardware_shuffle_after_return(out, values, n)
    assert out[0] == values[:n].sum()


def test_active_lanes_of_a_branch(library):
    out = np.zeros(64, np.uint32)
    library.hardware_active_in_branch(out)
    for warp in range(2):
        for branch in range(2):
            lanes = [lane for lane in range(32) if (32 * warp + lane) % 3 == branch]
            mask = sum(1 << lane for lane in lanes)
            assert all(out[32 * warp + lane] == mask for lane in lanes)


def test_active_lanes_of_a_loop(library):
    out = np.zeros((32, 4), np.uint32)
    library.hardware_active_in_loop(out)
    assert all(list(out[lane]) == [24, 16, 8, 0][: lane % 4] + [0] * (4 - lane % 4) for lane in range(32))


def test_warp_aggregated_atomics(library):
    n = 1000
    values = np.random.default_rng(1).integers(-5, 6, n).astype(np.int32)
    out, counter = np.zeros(n, np.int32), np.zeros(1, np.int32)
    library.hardware_aggregated(out, counter, values, n)
    kept = values[values > 0]
    assert counter[0] == kept.size
    assert sorted(out[: kept.size]) == sorted(kept) and not out[kept.size :].any()


def test_asking_who_is_here_beside_a_spin_loop(library):
    out, flag = np.zeros(2, np.int32), np.zeros(1, np.int32)
    library.hardware_spin_beside(out, flag)
    assert list(out) == [1, 2]
