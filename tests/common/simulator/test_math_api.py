"""Directed rounding, SIMD within a word, half2 comparisons, special functions: against fractions, numpy and mpmath."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

MODES = ("rn", "rz", "ru", "rd")
FORMATS = {
    "float": (24, -149, np.float32),
    "double": (53, -1074, np.float64),
    "half": (11, -24, None),
    "bf16": (8, -133, None),
}
LARGEST = {"float": 2**128 - 2**104, "double": 2**1024 - 2**971, "half": 65504, "bf16": 2**128 - 2**120}


def rounded(value, mode, kind):
    """The exact value rounded to a number in the format; `value`: a Fraction, or (integer, more) for roots."""
    bits, least, _ = FORMATS[kind]
    magnitude = abs(value)
    exponent = least
    if magnitude:
        top = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
        top -= magnitude < Fraction(2) ** top
        exponent = max(top - bits + 1, least)
    scaled = magnitude / Fraction(2) ** exponent
    below = scaled.numerator // scaled.denominator
    rest = scaled - below
    away = {
        "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1),
        "rz": False,
        "ru": rest > 0 and value > 0,
        "rd": rest > 0 and value < 0,
    }[mode]
    result = Fraction(below + away) * Fraction(2) ** exponent
    if result > LARGEST[kind]:
        inward = mode == "rz" or (mode == "ru" and value < 0) or (mode == "rd" and value > 0)
        result = Fraction(LARGEST[kind]) if inward else math.inf
    return float(-result if value < 0 else result)


def root(value):
    """The square root to 300 bits, plus a sticky bit if it is not exact: it rounds as the root does."""
    scaled = value * Fraction(4) ** 1400
    floor = math.isqrt(scaled.numerator // scaled.denominator)
    exact = Fraction(floor) ** 2 == scaled
    return (Fraction(floor) + (0 if exact else Fraction(1, 3))) / Fraction(2) ** 1400


def samples(kind, n, width):
    """Bit patterns of all magnitudes, close together and far apart, subnormal and huge, without infinities and NaN."""
    rng = np.random.default_rng(7)
    dtype, word = (np.float32, np.uint32) if kind == "float" else (np.float64, np.uint64)
    values = rng.integers(0, np.iinfo(word).max, (n, width), dtype=word, endpoint=True).view(dtype)
    values[: n // 2] = rng.normal(size=(n // 2, width)).astype(dtype) * dtype(2.0) ** rng.integers(
        -3, 30, (n // 2, width)
    )
    values[: n // 8, 1] = -values[: n // 8, 0] * (1 + rng.integers(-2, 3, n // 8) * np.finfo(dtype).eps).astype(dtype)
    values[n // 8 : n // 4] = rng.integers(-5, 6, (n // 4 - n // 8, width))
    return np.ascontiguousarray(np.where(np.isfinite(values), values, dtype(1.5)).astype(dtype))


@pytest.mark.parametrize("kind", ["float", "double"])
def test_directed_rounding(library, kind):
    """Every result is the exact one, rounded once."""
    inputs = samples(kind, 400, 3)
    out = np.zeros((len(inputs), 4, 7), inputs.dtype)
    getattr(library, f"directed_{kind}")(out, inputs, len(inputs))
    for row, results in zip(inputs.tolist(), out.tolist(), strict=True):
        a, b, c = map(Fraction, row)
        exact = [a + b, a - b, a * b, a / b if b else None, a * b + c, 1 / a if a else None, root(a) if a > 0 else None]
        for mode, values in zip(MODES, results, strict=True):
            for operation, (value, result) in enumerate(zip(exact, values, strict=True)):
                if value is not None:
                    assert result == rounded(value, mode, kind), (row, mode, operation)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_zeros_and_infinities(library, kind):
    dtype = np.float32 if kind == "float" else np.float64
    largest = np.finfo(dtype).max
    inputs = np.array(
        [
            [1, -1, 0],
            [0.0, -0.0, 0],
            [-0.0, -0.0, -0.0],
            [math.inf, 1, 1],
            [math.nan, 1, 1],
            [largest, largest, 0],
            [1, 0, 0],
        ],
        dtype,
    )
    out = np.zeros((len(inputs), 4, 7), dtype)
    getattr(library, f"directed_{kind}")(out, inputs, len(inputs))
    signs = np.signbit(out[:3, :, 0])
    assert (out[:3, :, 0] == 0).all()
    assert signs[0].tolist() == [False, False, False, True]  # 1 - 1 is -0 only when rounding down
    assert signs[1].tolist() == [False, False, False, True]
    assert signs[2].all()
    assert np.isinf(out[3, :, 0]).all() and (out[3, :, 5] == 0).all() and np.isnan(out[4, :, :5]).all()
    assert out[5, :, 0].tolist() == [math.inf, largest, math.inf, largest]
    assert out[5, :, 2].tolist() == [math.inf, largest, math.inf, largest]
    assert np.isinf(out[6, :, 3]).all()


@pytest.mark.parametrize(
    "name, kind, dtype",
    [
        ("float_of_double", "float", np.float64), ("float_of_longlong", "float", np.int64),
        ("float_of_ulonglong", "float", np.uint64), ("half_of_float", "half", np.float32),
        ("half_of_int", "half", np.int32),
        ("bf16_of_float", "bf16", np.float32), ("bf16_of_longlong", "bf16", np.int64),
    ],
)  # fmt: skip
def test_directed_conversions(library, name, kind, dtype):
    rng = np.random.default_rng(3)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        values = rng.integers(info.min, info.max, 500, dtype=dtype, endpoint=True) >> rng.integers(0, 40, 500).astype(
            dtype
        )
        values[:4] = [info.min, info.max, 0, 1]
    else:
        values = (rng.normal(size=500) * 2.0 ** rng.integers(-150, 130, 500)).astype(dtype)
        values[:5] = [0, 1.0009, 65519, 65520, -1e-45]
        values[5:105] = rng.normal(size=100) * 2.0 ** rng.integers(-26, 17, 100)
        values = values[np.isfinite(values)]
    out = np.zeros((len(values), 4))
    getattr(library, name)(out, values, len(values))
    for value, results in zip(values.tolist(), out.tolist(), strict=True):
        assert results == [rounded(Fraction(value), mode, kind) for mode in MODES], value


def lanes_of(words, bits, signed):
    shifted = (words[:, None] >> np.arange(0, 32, bits)) & ((1 << bits) - 1)
    return np.where(signed & (shifted >= 1 << (bits - 1)), shifted - (1 << bits), shifted)


def joined(lanes, bits):
    return ((lanes & ((1 << bits) - 1)) << np.arange(0, 32, bits)).sum(axis=1)


def test_simd_in_a_word(library):
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (2000, 3), dtype=np.uint64).astype(np.uint32)
    words[:200] = rng.choice(
        np.array([0, 0x80008000, 0x7FFF7FFF, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0x00010001], np.uint32), (200, 3)
    )
    out = np.zeros((len(words), 80), np.uint32)
    library.simd(out, words, len(words))
    a, b, c = words.astype(np.int64).T
    expected = []
    for bits in (16, 8):
        sa, sb, ua, ub = (
            lanes_of(a, bits, True),
            lanes_of(b, bits, True),
            lanes_of(a, bits, False),
            lanes_of(b, bits, False),
        )
        low, high, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1, (1 << bits) - 1
        average = (sa + sb + (sa + sb >= 0)) >> 1
        per_lane = [
            ua + ub, ua - ub, np.clip(sa + sb, low, high), np.clip(ua + ub, 0, most), np.clip(sa - sb, low, high),
            np.clip(ua - ub, 0, most), average, (ua + ub + 1) >> 1, (ua + ub) >> 1, np.maximum(sa, sb),
            np.maximum(ua, ub),
            np.minimum(sa, sb), np.minimum(ua, ub), abs(sa - sb), abs(ua - ub), abs(sa), np.clip(abs(sa), low, high),
            -sa,
            np.clip(-sa, low, high), -(ua == ub).astype(int), -(sa >= sb).astype(int), -(ua > ub).astype(int),
            -(sa <= sb).astype(int), -(ua < ub).astype(int), -(ua != ub).astype(int), (ua == ub).astype(int),
            (sa > sb).astype(int), (ua >= ub).astype(int), (sa < sb).astype(int), (ua <= ub).astype(int),
        ]  # fmt: skip
        expected += [joined(one, bits) for one in per_lane] + [abs(sa - sb).sum(axis=1), abs(ua - ub).sum(axis=1)]

    def signed(x):
        return (x + 2**31) % 2**32 - 2**31

    def pairs(op, sign):
        x, y, z = (lanes_of(word, 16, sign) for word in (a, b, c))
        total = lanes_of((joined(x + y, 16)), 16, sign)
        return joined(op(x, y, z, total), 16)

    s, (i, j, k) = signed(a + b), map(signed, (a, b, c))
    ha, hb = lanes_of(a, 16, True), lanes_of(b, 16, True)
    u16, s16, u8, s8 = lanes_of(a, 16, False), ha, lanes_of(b, 8, False), lanes_of(b, 8, True)
    expected += [
        np.maximum(s, k), np.minimum((a + b) % 2**32, c), np.maximum(np.maximum(np.maximum(i, j), k), 0),
        pairs(lambda x, y, z, t: np.maximum(t, z), True), pairs(lambda x, y, z, t: np.minimum(t, z), False),
        pairs(lambda x, y, z, t: np.maximum(np.minimum(t, z), 0), True),
        pairs(lambda x, y, z, t: np.minimum(np.minimum(x, y), z), True), joined(np.maximum(ha, hb), 16),
        2 * (ha >= hb)[:, 1] + (ha >= hb)[:, 0], np.minimum(a, b), (a <= b).astype(int),
        c + u16[:, 0] * u8[:, 0] + u16[:, 1] * u8[:, 1], c + s16[:, 0] * s8[:, 2] + s16[:, 1] * s8[:, 3],
        c + (lanes_of(a, 8, False) * u8).sum(axis=1), (a + b + 1) >> 1,
        np.where((c & 63) >= 32, b, ((b << 32 | a) >> (c & 31)) % 2**32),
    ]  # fmt: skip
    for number, column in enumerate(expected):
        wrong = np.flatnonzero(out[:, number] != (column % 2**32).astype(np.uint32))
        assert not len(wrong), (number, [hex(x) for x in words[wrong[0]]], hex(out[wrong[0], number]))


def test_comparisons_of_pairs(library):
    values = np.array([-math.inf, -1, -0.0, 0.0, 1, 6e-8, math.inf, math.nan], np.float16)
    a, b = (grid.reshape(-1) for grid in np.meshgrid(values, values))
    pairs = np.stack([a, a[::-1], b, np.roll(b, 3)], axis=1).copy()
    out = np.zeros((len(pairs), 12, 6), np.float32)
    library.compared_pairs(out, pairs, len(pairs))
    ordered = [np.equal, lambda x, y: (x < y) | (x > y), np.less, np.less_equal, np.greater, np.greater_equal]
    for number in range(12):
        low, high = (
            ordered[number % 6](x, y) | ((number >= 6) & (np.isnan(x) | np.isnan(y)))
            for x, y in ((pairs[:, 0], pairs[:, 2]), (pairs[:, 1], pairs[:, 3]))
        )
        expected = np.stack([low, high, high * 65535, low * 65535, low & high, low], axis=1)
        assert (out[:, number] == expected).all(), number


# The maximum errors documented in the CUDA programming guide, in ulp of the correctly rounded double and float.
ULPS = {
    "erfinv": (5, 2), "erfcinv": (6, 4), "normcdfinv": (8, 5), "erfcx": (4, 4), "cyl_bessel_i0": (6, 6),
    "cyl_bessel_i1": (6, 6), "norm3d": (2, 3), "rnorm4d": (1, 2), "rhypot": (1, 2),
}  # fmt: skip
# For an inverse, the function itself, which determines on which side of the exact result a number is.
INVERTED = {"erfinv": mpmath.erf, "erfcinv": mpmath.erfc, "normcdfinv": mpmath.ncdf}
EXACT = {
    "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    "cyl_bessel_i0": lambda x: mpmath.besseli(0, x),
    "cyl_bessel_i1": lambda x: mpmath.besseli(1, x),
    "norm3d": lambda x: mpmath.sqrt(x * x + mpmath.mpf(2) ** 202 + 1),
    "rnorm4d": lambda x: 1 / mpmath.sqrt(x * x + 29),
    "rhypot": lambda x: 1 / mpmath.sqrt(x * x + 9),
}


@pytest.mark.parametrize("name", ULPS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_special_functions(library, name, dtype):
    near_one = 1 - 10.0 ** -np.arange(1, 16 if dtype == np.float64 else 7.5)
    small = 10.0 ** -np.arange(1, 308 if dtype == np.float64 else 38, 9.0)
    values = {
        "erfinv": np.concatenate([np.linspace(-0.999, 0.999, 301), near_one, -near_one, small]),
        "erfcinv": np.concatenate([np.linspace(0.001, 1.999, 301), near_one, 1 + near_one, small]),
        "normcdfinv": np.concatenate([np.linspace(0.001, 0.999, 301), near_one, small]),
        "erfcx": np.concatenate([np.linspace(-5, 60, 300), [26.0, 600.0, 1e6]]),
    }.get(name, np.linspace(-5, 60, 301)).astype(dtype)
    out = np.zeros((len(values), len(ULPS)), dtype)
    getattr(library, "special_double" if dtype == np.float64 else "special_float")(out, values, len(values))
    found = out[:, list(ULPS).index(name)]
    assert np.isfinite(found).all()
    bound = ULPS[name][dtype == np.float32] + 0.5  # of the exact result, not of the rounded one
    with mpmath.workdps(60):
        for x, y in zip(values.tolist(), found, strict=True):
            room, x, y = bound * mpmath.mpf(float(np.spacing(abs(y)))), mpmath.mpf(x), mpmath.mpf(float(y))
            if name in INVERTED:
                ends = sorted(INVERTED[name](y + sign * room) for sign in (-1, 1))
                assert ends[0] <= x <= ends[1], (x, y)
            else:
                assert abs(y - EXACT[name](x)) <= room, (x, y)


def test_special_functions_at_their_ends(library):
    values = np.array([-0.5, 0.0, 1.0, 2.0, 5e-324, math.nan])
    out = np.zeros((len(values), len(ULPS)))
    library.special_double(out, values, len(values))
    inf, nan = math.inf, math.nan
    assert np.array_equal(out[[1, 2, 3, 5], 0], [0, inf, nan, nan], equal_nan=True)
    assert np.array_equal(out[[0, 1, 2, 3, 5], 1], [nan, inf, 0, -inf, nan], equal_nan=True)
    assert np.array_equal(out[[0, 1, 2, 5], 2], [nan, -inf, inf, nan], equal_nan=True)
    assert 27.2 < out[4, 1] < 27.3 and out[1, 3] == 1
