"""mma, ldmatrix, swizzle and cp.async (common/cuda), against numpy; in the simulator and on a GPU."""

import numpy as np
import pytest
import torch
from simulator_library import fails, line_of

LANES = np.arange(32)
SIXTEEN_BITS = {"half": torch.float16, "bf16": torch.bfloat16}


def skip_on_turing(library, kind: str) -> None:
    """mma does not support bfloat16 there."""
    if kind != "half" and library.on_gpu and torch.cuda.get_device_capability() < (8, 0):
        pytest.skip(f"mma of {kind} needs a GPU of compute capability 8.0 or higher")


def rounded(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The values in 16 bits: their bits, for a kernel, and their values, in float64."""
    tensor = torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(SIXTEEN_BITS[kind])
    return tensor.view(torch.int16).numpy(), tensor.double().numpy()


# ---- fragments


def test_fragment_helpers_against_the_manual(library):
    """The formulas of the PTX manual, section "Matrix Fragments for mma", with its groupID and threadID_in_group."""
    tables = [np.zeros((32, n, 2), np.int32) for n in (4, 4, 2)]
    library.fragments(*tables)
    d, a, b = tables
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        rows = [group, group + 8, group, group + 8]
        assert d[lane].tolist() == [[group + 8 * (i >= 2), thread * 2 + (i & 1)] for i in range(4)]
        # Elements a0 a1 | a2 a3 | a4 a5 | a6 a7, two per register: the first of each pair
        assert a[lane].tolist() == [[rows[i], thread * 2 + 8 * (i >= 2)] for i in range(4)]
        assert b[lane].tolist() == [[thread * 2 + 8 * i, group] for i in range(2)]


# ---- mma

TILES = 32


def multiply(library, kind: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, repeats: int = 1) -> np.ndarray:
    d = np.full(c.shape, np.nan, np.float32)
    getattr(library, f"mma_{kind}")(d, a, b, c, len(c), repeats)
    return d


def integers(seed: int, *shape: int) -> np.ndarray:
    """Every sum of 64 products of two of these is exact in float32."""
    return np.random.default_rng(seed).integers(-8, 9, shape).astype(np.float32)


def check_close(d: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    """Each of the K + 1 terms may lose up to one unit in the last place of the largest term or partial sum."""
    magnitude = np.abs(a) @ np.abs(b) + np.abs(c)
    assert (np.abs(d - (a @ b + c)) <= (a.shape[-1] + 1) * 2.0**-23 * magnitude).all()


@pytest.mark.parametrize("kind", SIXTEEN_BITS)
def test_mma_of_integers_is_exact(library, kind):
    skip_on_turing(library, kind)
    (a, a64), (b, b64) = rounded(integers(0, TILES, 16, 16), kind), rounded(integers(1, TILES, 16, 8), kind)
    c = integers(2, TILES, 16, 8)
    assert (multiply(library, kind, a, b, c) == a64 @ b64 + c).all()
    assert (multiply(library, kind, a, b, c, repeats=4) == 4 * (a64 @ b64) + c).all(), "accumulation"


@pytest.mark.parametrize("kind", SIXTEEN_BITS)
def test_mma_places_every_element(library, kind):
    """A single 1 in A and distinct numbers in B: a row of D is a row of B, and nothing else."""
    skip_on_turing(library, kind)
    a = np.eye(256, dtype=np.float32).reshape(256, 16, 16)
    b = np.broadcast_to(np.arange(1, 129, dtype=np.float32).reshape(16, 8), (256, 16, 8))
    (a, a64), (b, b64) = rounded(a, kind), rounded(b, kind)
    assert (multiply(library, kind, a, b, np.zeros((256, 16, 8), np.float32)) == a64 @ b64).all()


@pytest.mark.parametrize("scale", [1, 1000])
@pytest.mark.parametrize("kind", SIXTEEN_BITS)
def test_mma_of_random_numbers(library, kind, scale):
    skip_on_turing(library, kind)
    rng = np.random.default_rng(scale)
    (a, a64), (b, b64) = (rounded(rng.standard_normal((TILES, 16, n)), kind) for n in (16, 8))
    c = (scale * rng.standard_normal((TILES, 16, 8))).astype(np.float32)
    check_close(multiply(library, kind, a, b, c), a64, b64, c)


@pytest.mark.parametrize("kind", SIXTEEN_BITS)
def test_mma_of_extreme_numbers(library, kind):
    """The format's subnormal and largest numbers, infinity and NaN."""
    skip_on_turing(library, kind)
    info = torch.finfo(SIXTEEN_BITS[kind])
    a, b = np.zeros((2, 16, 16), np.float32), np.zeros((2, 16, 8), np.float32)
    a[0, 0, :3] = info.max, info.smallest_normal, -info.smallest_normal / 8
    a[0, 5, 2], a[0, 6, 2], a[0, 7, 3] = 3 * info.smallest_normal / 4, np.nan, np.inf
    b[0, 0, 0], b[0, 1, 1], b[0, 2, 2], b[0, 3, 3] = 1, 2, 4, 0.5
    (a, a64), (b, b64) = rounded(a, kind), rounded(b, kind)
    d = multiply(library, kind, a, b, np.zeros((2, 16, 8), np.float32))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(d, a64 @ b64)
    assert (d[0, 0, :3] != 0).all() and d[0, 5, 2] != 0 and np.isnan(d[0, 6]).all() and np.isinf(d[0, 7, 3])


@pytest.mark.parametrize("kind", SIXTEEN_BITS)
def test_pack(library, kind):
    rng = np.random.default_rng(0)
    x = np.ldexp(rng.standard_normal((512, 2)), rng.integers(-30, 20, (512, 2))).astype(np.float32)
    x[0] = np.inf, -np.inf
    out = np.zeros(512, np.uint32)
    getattr(library, f"pack_{kind}")(out, x, 512)
    assert (out.view(np.int16).reshape(512, 2) == rounded(x, kind)[0]).all()


@pytest.mark.parametrize("kind", SIXTEEN_BITS)
def test_accumulators_become_the_next_operand(library, kind):
    skip_on_turing(library, kind)
    (q, q64), (k, k64), (v, v64) = (rounded(integers(n, 16, cols), kind) for n, cols in enumerate((16, 16, 8)))
    out = np.full((16, 8), np.nan, np.float32)
    getattr(library, f"two_products_{kind}")(out, q, k, v)
    p = rounded(q64 @ k64.T, kind)[1]
    assert (out == p @ v64).all()
    assert np.abs(p).max() > 256, "large enough to be rounded"


# ---- ldmatrix


def fragments_of(matrices: np.ndarray) -> np.ndarray:
    """[matrices, 8, 8] -> [lanes, matrices] registers: lane 4 i + j holds row i, columns 2 j and 2 j + 1."""
    pairs = matrices.astype(np.uint32)
    registers = pairs[:, :, 0::2] | pairs[:, :, 1::2] << 16
    return registers.reshape(len(matrices), 32).T


@pytest.mark.parametrize("order", ["ascending", "any", "one row"])
def test_ldmatrix(library, order):
    rng = np.random.default_rng(0)
    tile = rng.permutation(1 << 16)[: 64 * 8].astype(np.uint16).reshape(64, 8)
    rows = {"ascending": LANES, "any": rng.permutation(64)[:32], "one row": LANES * 0 + 63}[order].astype(np.int32)
    plain, transposed = (np.zeros((32, 4), np.uint32) for _ in range(2))
    library.ldmatrix_all(plain, transposed, tile, rows)
    matrices = tile[rows].reshape(4, 8, 8)
    assert (plain == fragments_of(matrices)).all()
    assert (transposed == fragments_of(matrices.transpose(0, 2, 1))).all()


@pytest.mark.parametrize("row_bytes", [16, 32, 48, 64, 96, 128, 192, 256])
def test_swizzle(library, row_bytes):
    rows, chunks = 24, row_bytes // 16
    table = np.full((rows, chunks), -1, np.int32)
    library.swizzle_rows(table, row_bytes, rows)
    assert (np.sort(table, 1) == np.arange(chunks)).all(), "a row keeps its chunks"
    groups = (np.arange(rows)[:, None] * chunks + table) % 8  # of four banks each
    for first in range(0, rows, 8):
        assert (np.sort(groups[first : first + 8], 0) == np.arange(8)[:, None]).all(), "one turn per matrix"
    r, c = np.arange(rows)[:, None], np.arange(chunks)
    if row_bytes in (128, 256):
        assert (table == c ^ (r % 8)).all()
    if row_bytes == 64:
        assert (table == c ^ (r // 2 % 4)).all()


# ---- cp.async


@pytest.mark.parametrize("size", [4, 8, 16])
@pytest.mark.parametrize("valid", [0, 37, 64])
def test_copies(library, size, valid):
    data = np.random.default_rng(size).integers(1, 1 << 32, (64, size // 4), dtype=np.uint32)
    out = np.zeros((2, 64, size // 4), np.uint32)
    library.copy_async(out, data, size, valid)
    assert (out[0] == data).all()
    assert (out[1, :valid] == data[:valid]).all() and (out[1, valid:] == 0).all()


@pytest.mark.parametrize("tiles", [1, 2, 3, 10])
def test_pipeline(library, tiles):
    data = integers(tiles, 40, tiles, 32)
    out = np.full((40, 32), np.nan, np.float32)
    library.pipeline(out, data, 40, tiles)
    assert (out == data.sum(1)[:, LANES ^ 1]).all()


def test_what_waits_cover(library):
    data = integers(0, 3, 32) + 100
    out = np.zeros((6, 32, 3), np.float32)
    library.after_waits(out, data)
    arrived = [0, 0, 1, 2, 3]  # at least this many groups have arrived, in order; the memory held 1 before
    for stage, count in enumerate(arrived):
        assert (out[stage, :, :count] == data[:count].T).all()
        if not library.on_gpu:  # on a GPU the others may have arrived, too
            assert np.isnan(out[stage, :, count:]).all(), "a missing wait shows"
    assert (out[5] == 2).all(), "a copy arrives once"


def test_copies_without_a_wait_end_with_their_block(library):
    data, out = np.full(64, 5, np.float32), np.zeros((100, 64), np.float32)
    library.abandoned_copies(out, data, 200)
    assert (out == 1).all()


# ---- mistakes (only in the simulator)

MISTAKES = {
    "mma_divergent": "16 thread(s), first (0,0,0), wait in mma_m16n8k16 at {line} for the lanes 0xffffffff",
    "mma_part_of_a_warp": "mma_m16n8k16 at {line}: only the lanes 0x0000ffff of the warp take part, all 32 must",
    "mma_in_two_places": "warp divergence: lane 0 reached mma_m16n8k16 at {first}, lane 16 of its warp at {line}",
    "ldmatrix_misaligned": "ldmatrix_x4 at {line}: the row address of lane 1 is 8 byte(s) past a multiple of 16",
    "copy_to_misaligned": "cp_async<8> at {line}: its destination is 4 byte(s) past a multiple of 8",
    "copy_from_misaligned": "cp_async<16> at {line}: its source is 4 byte(s) past a multiple of 16",
    "copy_swapped": "cp_async<4> at {line}: its source is in shared memory",
    "copy_from_null": "null pointer",
    "copies_without_end": "cp_async at {line}: 58112 copies are under way",
}


@pytest.mark.parametrize("kernel", MISTAKES)
def test_message(simulator, kernel):
    data = np.zeros(64 + 4, np.float32)
    data = data[-data.ctypes.data % 16 // 4 :][:64]
    message = fails(simulator, f"error_{kernel}", np.zeros(128, np.float32), data)
    line, first = line_of("tensor_core.cu", kernel), line_of("tensor_core.cu", "mma first place")
    folder = message[: message.index(line)].split()[-1].removesuffix(line)
    assert MISTAKES[kernel].format(line=folder + line, first=folder + first) in message
    assert f"{kernel}, block (0,0,0)" in message or f"deadlock: in block (0,0,0) of {kernel}" in message
    assert line in message
