"""The codes of cudaGetLastError() for rejected launches, as in CUDA 13.

Earlier versions gave cudaErrorInvalidConfiguration for impossible grids and blocks.
"""

import numpy as np
import pytest


@pytest.mark.parametrize(
    "shape, size, code",
    [
        ((1, 1, 1, 0, 1, 1), 0, 1),
        ((1, 1, 1, 1025, 1, 1), 0, 1),
        ((1, 1, 1, 33, 32, 1), 0, 1),
        ((1, 1, 1, 1, 1, 65), 0, 1),
        ((0, 1, 1, 1, 1, 1), 0, 1),
        ((1, 65536, 1, 1, 1, 1), 0, 1),
        ((1, 1, 65536, 1, 1, 1), 0, 1),
        ((2**31, 1, 1, 1, 1, 1), 0, 1),
        ((1, 1, 1, 1, 1, 1), 49153, 1),
        ((1, 1, 1, 1, 1, 1), 49152, 0),
        ((1, 1, 1, 8, 2, 64), 0, 0),
        ((1, 65535, 1, 1, 1, 1), 0, 0),
    ],
)
def test_refused_launches_set_the_error_and_do_not_run(library, shape, size, code):
    out, codes, text = np.zeros(1024, np.float32), np.zeros(3, np.int32), np.zeros(100, np.uint8)
    library.launch_shape(out, *shape, size, codes, text)
    assert list(codes) == [code, code, 0]
    assert (out[0] == 3) == (code == 0)
    expected = "cudaErrorInvalidValue: invalid argument" if code else "cudaSuccess: no error"
    assert text.tobytes().rstrip(b"\0").decode() == expected


@pytest.mark.parametrize("threads, code", [(97, 1), (96, 0), (1024, 1)])
def test_launch_bounds(library, threads, code):
    out, codes = np.zeros(1024, np.float32), np.zeros(3, np.int32)
    for _ in range(2):  # known to the simulator from the first launch on
        library.launch_bounds(out, threads, codes)
        assert codes[0] == code and codes[2] == 0 and out[1023] == 3
        assert np.all(out[:96] == (0 if code else 3)) and np.all(out[96:1023] == 0)
        assert codes[1] == 96 or code == 0


def test_opt_in_beyond_the_device_is_refused(library):
    codes = np.zeros(1, np.int32)
    library.opt_in_code(232449, codes)
    assert codes[0] == 1
