"""Warp operations, atomics, vector types, 16-bit floats and math functions, against numpy and torch."""

import math

import numpy as np
import pytest
import torch

TYPES = {
    "int": np.int32, "unsigned": np.uint32, "long": np.int64, "float": np.float32, "double": np.float64,
    "half": np.float16,
}  # fmt: skip
HALF = [("half", torch.float16), ("bf16", torch.bfloat16)]


def shuffled(width, amount):
    """Which lane each lane reads from, for the four shuffles, as the PTX manual defines them."""
    lanes = np.arange(32)
    start = lanes // width * width
    up, down, xor = lanes - amount, lanes + amount, lanes ^ amount
    return np.concatenate([
        start + amount % width,
        np.where(up >= start, up, lanes),
        np.where(down < start + width, down, lanes),
        np.where(xor < start + width, xor, lanes),
    ])  # fmt: skip


@pytest.mark.parametrize("name", [*TYPES, "bf16"])
def test_shuffles(library, name):
    for width in (2, 8, 16, 32):
        for amount in (0, 1, 3, 8, 17, 31):
            out = np.zeros(128, TYPES.get(name, np.uint16))
            getattr(library, f"shuffle_{name}")(out, width, amount)
            values = torch.from_numpy(out.view(np.int16)).view(torch.bfloat16).float() if name == "bf16" else out
            assert (np.asarray(values, dtype=np.float64) == shuffled(width, amount)).all(), (width, amount)


def test_shuffle_of_pairs(library):
    out = np.zeros((32, 2), np.float16)
    library.shuffle_half2(out)
    assert (out[:, 0] == np.arange(32) ^ 1).all() and (out[:, 1] == -(np.arange(32) ^ 1)).all()


def test_votes(library):
    values = np.random.default_rng(0).integers(0, 8, 64).astype(np.int32)
    out = np.zeros((64, 12), np.uint32)
    library.warp_votes(out, values)

    def bits(flags):
        return sum(1 << i for i, flag in enumerate(flags) if flag)

    for t in range(64):
        warp = values[t // 32 * 32 :][:32]
        half = bits((warp & 1) & ((np.arange(32) < 16) == (t % 32 < 16)))
        expected = [
            bits(warp > 0), (warp > 5).any(), (warp < 9).all(), bits(warp == values[t]), 0,
            warp.sum(), warp.min(), warp.max(), np.bitwise_and.reduce(warp), np.bitwise_or.reduce(warp),
            np.bitwise_xor.reduce(warp), half,
        ]  # fmt: skip
        assert [int(v) for v in out[t]] == [int(v) for v in expected]


@pytest.mark.parametrize("n", [1, 32, 33, 100, 1024])
def test_block_votes(library, n):
    values = np.random.default_rng(n).integers(0, 10, n).astype(np.int32)
    out = np.zeros((n, 3), np.int32)
    library.block_votes_of(out, values, n)
    assert (out == [(values > 0).sum(), (values != 0).all(), (values > 8).any()]).all()


def test_warps_that_are_not_full(library):
    out = np.zeros(8, np.float32)
    library.warp_ragged(out, 100)
    assert list(out) == [32, 32, 32, 4] * 2
    out = np.zeros(16, np.float32)
    library.warp_inactive_source(out)
    assert library.on_gpu or np.isnan(out).all()  # undefined on a GPU


def test_atomic_add(library):
    for name, dtype in {**TYPES, "long": np.uint64}.items():
        blocks = 20 if name == "half" else 300
        out = np.zeros(2, dtype)
        getattr(library, f"atomic_add_{name}")(out)
        assert list(out) == [64 * blocks] * 2, name
    out = torch.zeros(2, dtype=torch.bfloat16)
    library.atomic_add_bf16(out.view(torch.int16).numpy())
    assert out.tolist() == [128, 128]


@pytest.mark.parametrize("name, dtype", [("int", np.int32), ("unsigned", np.uint32), ("long", np.uint64)])
def test_atomic_operations(library, name, dtype):
    out = np.array([5000, 2000, 0, 0xFFFF, 0, 0, 0, 0], dtype)
    getattr(library, f"atomic_{name}")(out)
    assert [int(v) for v in out] == [4000, 1, 999, 0xFF00, 0xFF, 0xFF, 42, 2000]


def test_atomic_wrapping_locks_and_flags(library):
    out = np.zeros(2, np.uint32)
    library.atomic_wrapping(out)
    assert list(out) == [100 % 7, (-100) % 7]
    out = np.zeros(65, np.int32)
    library.atomic_lock(out)
    assert out[0] == 512
    out[:] = 0
    library.atomic_flag(out)
    assert (out == 1).all()


def test_vector_types(library):
    out = np.zeros(80, np.int32)
    library.vector_layouts(out)
    elements = [1, 1, 2, 2, 4, 4, 8, 8, 4, 8]
    expected = [(n * e, e if n in (1, 3) else min(16, n * e)) for e in elements for n in (1, 2, 3, 4)]
    assert out.reshape(40, 2).tolist() == [list(pair) for pair in expected]
    n = 50
    values, result = np.random.rand(n, 4).astype(np.float32), np.zeros((n, 4), np.float32)
    library.vector_kernel(result, values, n)
    i = np.arange(n)
    x, y, z, w = values.T
    expected = np.stack(
        [w, z + i.astype(np.float32), y + 2 * i.astype(np.float32), x + (i // 32).astype(np.float32)], 1
    )
    assert (result == expected).all()


# ---- 16-bit floats


def bit_equal(ours: np.ndarray, theirs: torch.Tensor) -> None:
    """Bitwise equal, except that any NaN equals any NaN."""
    size = {2: np.uint16, 4: np.uint32}[ours.itemsize]
    signed = {2: torch.int16, 4: torch.int32}[ours.itemsize]
    bits = theirs.contiguous().view(signed).numpy().view(size)
    nan = torch.isnan(theirs).numpy()
    value = torch.from_numpy(ours.view({2: np.int16, 4: np.int32}[ours.itemsize])).view(theirs.dtype)
    assert (torch.isnan(value).numpy() == nan).all()
    assert (ours.view(size)[~nan] == bits[~nan]).all()


@pytest.mark.parametrize("name, dtype", HALF)
def test_every_bit_pattern_widens_exactly(library, name, dtype):
    bits = np.arange(65536, dtype=np.uint16)
    out = np.zeros(65536, np.float32)
    getattr(library, f"{name}_to_float")(out, bits, 65536)
    bit_equal(out, torch.from_numpy(bits.view(np.int16)).view(dtype).float())


def awkward_floats() -> np.ndarray:
    """Random bit patterns, and all values near the boundaries of rounding to 16 bits."""
    rng = np.random.default_rng(1)
    patterns = rng.integers(0, 2**32, 400_000, dtype=np.uint64).astype(np.uint32)
    ties = np.arange(0, 2**32, 2**12, dtype=np.uint64).astype(np.uint32)
    near = np.concatenate([ties - 1, ties, ties + 1])
    usual = rng.standard_normal(100_000).astype(np.float32)
    tiny = (rng.standard_normal(100_000) * 2.0**-20).astype(np.float32)
    return np.concatenate([patterns.view(np.float32), near.view(np.float32), usual, tiny])


@pytest.mark.parametrize("name, dtype", HALF)
def test_floats_round_to_nearest_even(library, name, dtype):
    values = awkward_floats()
    out = np.zeros(values.size, np.uint16)
    getattr(library, f"{name}_from_float")(out, values, values.size)
    bit_equal(out, torch.from_numpy(values).to(dtype))


@pytest.mark.parametrize("name, dtype", HALF)
def test_doubles_are_rounded_once(library, name, dtype):
    """A double right next to a tie must not become the tie through rounding to float first."""
    half = torch.arange(0x7C00 if name == "half" else 0x7F80, dtype=torch.int16).view(dtype).double()[:-1]
    upper = torch.cat([half[1:], half[-1:]])
    tie = (half + upper) / 2
    for factor, expected in ((1 + 2.0**-40, upper), (1 - 2.0**-40, half)):
        values = (tie * factor).numpy()
        out = np.zeros(values.size, np.uint16)
        getattr(library, f"{name}_from_double")(out, values, values.size)
        skip = 1  # the last has no upper neighbor
        bit_equal(out[:-skip], expected[:-skip].to(dtype))


@pytest.mark.parametrize("name, dtype", HALF)
def test_arithmetic_is_correctly_rounded(library, name, dtype):
    n = 20_000
    rng = np.random.default_rng(2)
    bits = [rng.integers(0, 65536, n).astype(np.uint16) for _ in range(3)]
    a, b, c = (torch.from_numpy(x.view(np.int16)).view(dtype) for x in bits)
    out = np.zeros((8, n), np.uint16)
    getattr(library, f"{name}_arithmetic")(out, *bits, n)
    bit_equal(out[0], a + b)
    bit_equal(out[1], a - b)
    bit_equal(out[2], a * b)
    bit_equal(out[3], a / b)
    larger = torch.where(torch.isnan(a), -b, torch.where(torch.isnan(b), a, torch.maximum(a, -b)))
    bit_equal(out[5], larger)
    bit_equal(out[6], (a < b).to(dtype))
    with np.errstate(invalid="ignore"):  # torch's own square root may be one bit off
        bit_equal(out[7], torch.from_numpy(np.sqrt(a.abs().float().numpy())).to(dtype))
    if dtype == torch.float16:  # torch has no double -> bfloat16 conversion that rounds only once
        exact = a.double() * b.double() + c.double()
        moderate = (exact.abs() > 2.0**-20) & (exact.abs() < 60000)
        bit_equal(out[4][moderate.numpy()], torch.from_numpy(exact[moderate].numpy().astype(np.float16)))


def test_pairs(library):
    h = np.array([3.0, 5.0], np.float16)
    bf = torch.tensor([1.5, -2.0], dtype=torch.bfloat16).view(torch.int16).numpy()
    out = np.zeros((4, 2), np.float32)
    library.half_pairs(out, h, bf)
    expected = [[7.5, 11.25], [7, 11], [4.5, -6], [np.float16(7).view(np.uint16), 0xC000]]
    assert out.tolist() == [[float(v) for v in row] for row in expected]


# ---- mathematics


def test_math_functions(library):
    x = np.concatenate([np.linspace(0.1, 5, 40), [1e-3, 20.0]]).astype(np.float32)
    out = np.zeros((29, x.size), np.float32)
    library.math_functions(out, x, x.size)
    d = x.astype(np.float64)
    expected = [
        np.exp(d), np.exp2(d),
        np.exp2(d), np.log(d), np.log2(d), d**-0.5, np.sin(d), np.cos(d), d**1.5, 1 / d,
        1 / d, np.maximum(d, 1), np.minimum(d, 1), d * d + 1, np.sqrt(d), np.tanh(d), np.vectorize(math.erf)(d),
        d, np.maximum(d, 2), np.floor(d), d, d, d * -np.inf, np.clip(d, 0, 1), d + 1, np.log1p(d), np.expm1(d),
        np.sqrt(d), d**2,
    ]  # fmt: skip
    np.testing.assert_allclose(out, np.stack(expected), rtol=3e-6, atol=1e-6)


def test_integer_functions(library):
    out = np.zeros(29, np.int64)
    library.integer_functions(out)
    assert out.tolist() == [
        3, 4, 1, 7, 7, 8, 64, 4, 0, 31, 32, 63, -(2**31) % 2**32, 0x07050301, 0x3F800000, 2, 2, -2, 2**31 - 1,
        2, -1,        -3, 0, 3, 5 + 10, 1, 32, 2, 4,
    ]  # fmt: skip
