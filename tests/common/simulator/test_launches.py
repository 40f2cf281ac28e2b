"""Launches and shared memory in every style of source."""

import ctypes

import numpy as np
import pytest


def zeros(n, dtype=np.float32):
    return np.zeros(n, dtype)


def test_kernel_expressions(library):
    out = zeros(128)
    library.launch_macro(out)
    assert (out[:16] == 3).all() and out[16] == 0
    library.launch_template(out)
    assert (out == 2).all()
    ints = zeros(64, np.int32)
    out[:] = 0
    library.launch_deduced(out)
    assert (out[:20] == 9).all() and out[20] == 0
    out[:] = 0
    library.launch_pointer(out)
    assert (out[:10] == 8).all() and out[10] == 0 and (out[32:64] == 7).all() and (out[64:96] == 6).all()
    library.launch_spaced(ints)
    assert (ints[:12] == 304).all()
    library.launch_nested_braces(ints)
    assert list(ints[:4]) == [1, 1, 2, 2]
    library.launch_comparison(ints)
    assert list(ints[:5]) == [101, 1, 0, 42, 1]
    library.launch_in_template(ints)
    assert (ints[:40] == 3).all()
    library.launch_in_method(ints)
    assert (ints[:4] == 3).all()


def test_arguments(library):
    out = zeros(6)
    library.launch_braced(out)
    assert list(out) == [5.5, 1, 6.5, 1, 3, 1]
    ints = zeros(5, np.int32)
    library.launch_argument_once(ints)
    assert list(ints) == [1] * 5
    library.launch_by_function(ints, 12)
    assert list(ints) == [12] * 4 + [1]
    out = zeros(15)
    library.launch_all_forms(out)
    assert list(out) == [1] * 14 + [0]


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1, 1), (3, 2, 2, 5, 4, 3), (70000, 1, 1, 1, 1, 1), (2, 1, 1, 1024, 1, 1)]
)
def test_geometry(library, shape):
    gx, gy, gz, bx, by, bz = shape
    blocks, threads = gx * gy * gz, bx * by * bz
    out = zeros(blocks * threads, np.int32)
    library.launch_geometry(out, *shape)
    expected = np.arange(blocks)[:, None] * 1000 + np.arange(threads)
    assert (out.reshape(blocks, threads) == expected).all()


def test_many_small_launches_run_every_thread_once(library):
    out = zeros(4 * 32, np.int32)
    library.launch_many(out, 500)
    expected = np.arange(4)[:, None] * 1000 + np.arange(32)
    assert (out.reshape(4, 32) == expected * 500).all()


def test_shared_declarations(library):
    out = zeros(32)
    library.shared_namespace_extern(out)
    assert (out == 6 + (np.arange(32) ^ 1)).all()
    library.shared_many(out)
    o = 31 - np.arange(32)
    assert (out == o * (1 + 2 + 3 + 4 + 5 + 4) + 7).all()
    doubles = zeros(64, np.float64)
    library.shared_work_around(doubles)
    assert (doubles == (63 - np.arange(64)) * 0.5).all()
    library.shared_two_dimensional(out)
    assert (out.reshape(4, 8) == np.arange(4)[:, None] * 10 + 7 - np.arange(8)).all()
    library.shared_object(out)
    assert (out[:7] == 6 - np.arange(7)).all()
    library.shared_named_types(out)
    assert list(out[:2]) == [68, 69]
    ints = zeros(48, np.int32)
    library.shared_namespace_static(ints)
    assert (ints.reshape(6, 2, 4)[:, 1] == 17).all()
    assert library.on_gpu or (ints.reshape(6, 2, 4)[:, 0] == -1).all()  # fresh memory is all ones
    rest = np.ones(4, np.uint64)
    library.shared_alignment(rest)
    assert not rest.any()


def test_fresh_shared_memory_is_nan_in_every_block(simulator):
    out = zeros(16)
    simulator.shared_fresh(out)
    assert np.isnan(out).all()


def test_more_than_48_kb_need_the_kernels_own_opt_in(library):
    out, codes = zeros(2, np.int32), zeros(3, np.int32)
    library.shared_opt_in(out, 20000, 20000 * 4, codes)
    assert list(codes) == [0, 0, 1] and list(out) == [77, 0]
    out[:] = 0
    library.shared_opt_in(out, 20001, 20000 * 4, codes)
    assert list(codes) == [0, 1, 1] and not out.any()
    library.shared_opt_in(out, 232448 // 4, 232448, codes)
    assert list(codes) == [0, 0, 1]
    library.shared_opt_in(out, 232448 // 4, 232449, codes)
    assert codes[0] == 1


def test_static_and_dynamic_shared_memory_share_one_limit(library):
    out, codes = zeros(1, np.int32), zeros(2, np.int32)
    library.shared_fixed_and_dynamic(out, 9152, codes)
    assert list(codes) == [0, 40000] and out[0] == 3
    out[:] = 0
    for _ in range(2):
        library.shared_fixed_and_dynamic(out, 9153, codes)
        assert codes[0] == 1 and out[0] == 0


def test_cuda_samples_style(library, capfd):
    n = 1000
    x, y, time = np.random.rand(n).astype(np.float32), zeros(n), zeros(1)
    library.sample_polynomial(x, y, n, time)
    np.testing.assert_allclose(y, 1.5 + x * (2 + x * (3 + x * 4)), rtol=1e-5)
    assert time[0] > 0
    assert "polynomial of 1000 values" in capfd.readouterr().out
    total = zeros(1)
    library.sample_reduce(x, total, n)
    np.testing.assert_allclose(total[0], x.sum(dtype=np.float64), rtol=1e-5)
    a, b, c = np.asfortranarray(np.random.rand(50, 20)), np.random.rand(20), zeros(50, np.float64)
    library.sample_dgemv(a, b, c, np.array([50], np.int32), np.array([20], np.int32))
    np.testing.assert_allclose(c, a @ b)


def test_device_properties(library):
    name, out = np.zeros(64, np.uint8), zeros(10, np.int32)
    library.device_properties(name, out)
    if library.on_gpu:
        return
    assert ctypes.string_at(name.ctypes.data) == b"CUDA simulator"
    assert list(out) == [1, 32, 49152, 232448, 89, 1, 232448, 101, 101, 8]
