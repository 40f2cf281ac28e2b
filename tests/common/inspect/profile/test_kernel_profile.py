"""Profiles: the runtime's JSON as objects, remarks on lines, bounds, the table's order, the pictures."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from common.compiling.report import KernelResources
from common.inspect.profile import pictures as profile_pictures
from common.inspect.profile.instruction_counts import Operations
from common.inspect.profile.model import KernelProfile, LineTraffic, merged, read_kernels, with_registers
from common.inspect.profile.remarks import line_passes, remark, stride_of, worst_first
from common.inspect.profile.report import amount, duration, number, print_kernel, print_legend, size_of
from common.inspect.profile.roofline import bounds
from common.inspect.source_lines import Place
from common.measure.gpus import find

H200 = find("h200")
WARP = range(32)


def line(space="shared", action="read", offsets=None, bytes=4, requests=10, **changes) -> LineTraffic:
    """A line whose requests all look like `offsets`, with transactions counted as the runtime does."""
    offsets = [4 * lane for lane in WARP] if offsets is None else list(offsets)
    active = [offset for offset in offsets if offset >= 0]
    words = {word for offset in active for word in range(offset // 4, (offset + bytes - 1) // 4 + 1)}
    if space == "shared":
        each = 1 + max(number for _, _, number in line_passes(offsets, bytes))
        least = -(-len(words) // 32)
    else:
        each, least = len({word // 8 for word in words}), -(-len(words) // 8)
    settings = {
        "place": Place("/course/kernel.cu", 7),
        "requests": requests,
        "lanes": requests * len(active),
        "transactions": requests * each,
        "ideal": requests * least,
        "worst": each,
        "offsets": tuple(offsets),
    }
    return LineTraffic(space=space, action=action, bytes=bytes, **{**settings, **changes})


def kernel(*lines, **changes) -> KernelProfile:
    settings = {
        "kernel": "some_kernel",
        "launch": Place("/course/kernel.cu", 40),
        "launches": 1,
        "grid": (4, 2, 1),
        "block": (32, 8, 1),
        "shared_bytes": 8192,
        "lines": lines,
        "barriers": 16,
        "compulsory_bytes": 1_000_000,
        "operations": Operations(4_000_000, 500_000),
    }
    return KernelProfile(**{**settings, **changes})


def printed(profile: KernelProfile, gpu=H200, width=120) -> str:
    text = io.StringIO()
    print_kernel(Console(file=text, width=width), profile, gpu)
    return text.getvalue()


def words(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


# ---- from JSON


class Lines:
    def places(self, addresses):
        return {address: Place("/course/kernel.cu", address // 100) for address in addresses}


def site(pc, space, action, transactions, ideal, worst, **changes) -> dict:
    entry = {
        "pc": pc,
        "space": space,
        "action": action,
        "array": "key",
        "bytes": 4,
        "requests": 5,
        "lanes": 160,
        "transactions": transactions,
        "ideal": ideal,
        "worst": {"transactions": worst, "offsets": [4 * worst * lane for lane in WARP]},
    }
    return entry | changes


REPORT = {
    "findings": [],
    "kernels": [
        {
            "kernel": "gemm_kernel",
            "launch": "/course/kernel.cu:40",
            "launches": 2,
            "grid": [3, 1, 1],
            "block": [32, 8, 1],
            "static_shared": 1024,
            "dynamic_shared": 512,
            "barriers": 12,
            "sectors_read": 100,
            "sectors_written": 28,
            "sites": [
                site(701, "global", "read", 40, 20, 8),
                site(702, "global", "read", 20, 20, 4),  # the same line, unrolled
                site(801, "shared", "write", 80, 5, 16),
            ],
            "blocks": [[16, 10], [32, 1]],
        }
    ],
}


def test_reading_the_report(monkeypatch):
    monkeypatch.setattr(
        "common.inspect.profile.model.block_operations", lambda library: {16: Operations(3, 1), 32: Operations(7, 0)}
    )
    (found,) = read_kernels(REPORT, Lines(), Path("library.so"))
    assert (found.kernel, found.launches, found.grid, found.block) == ("gemm_kernel", 2, (3, 1, 1), (32, 8, 1))
    assert (found.shared_bytes, found.barriers, found.compulsory_bytes) == (1536, 12, 128 * 32)
    assert found.operations == Operations(37, 10) and found.flops == 37
    assert found.moved_bytes == 60 * 32 and found.wavefronts == 80
    assert found.intensity == pytest.approx(37 / (128 * 32))
    read, write = found.lines
    assert (read.requests, read.lanes, read.transactions, read.ideal, read.worst) == (10, 320, 60, 40, 8)
    assert read.place.line == 7 and read.offsets[1] == 32
    assert (write.space, write.action, write.excess, write.ratio) == ("shared", "write", 75, 16)
    assert read.what == "global read of key"


def test_two_arrays_in_one_line_stay_apart(monkeypatch):
    monkeypatch.setattr("common.inspect.profile.model.block_operations", lambda library: None)
    sites = [site(701, "global", "read", 40, 20, 8), site(702, "global", "read", 5, 5, 1, array="query")]
    unknown = site(703, "global", "read", 7, 5, 2, array="")
    kernel = REPORT["kernels"][0] | {"sites": [*sites, unknown]}
    (found,) = read_kernels({"kernels": [kernel]}, Lines(), Path("library.so"))
    assert [(line.what, line.transactions) for line in found.lines] == [
        ("global read of key", 40), ("global read of query", 5), ("global read", 7)
    ]  # fmt: skip


def test_operations_are_unknown_without_objdump(monkeypatch):
    monkeypatch.setattr("common.inspect.profile.model.block_operations", lambda library: None)
    (found,) = read_kernels(REPORT, Lines(), Path("library.so"))
    assert found.operations is None and found.flops is None and found.intensity is None
    assert "not counted (objdump is missing)" in printed(found)


def test_calls_from_different_lines_stay_apart():
    helper = [replace(line(), place=Place("k.cu", 3, "load", (Place("k.cu", at),))) for at in (10, 10, 20)]
    assert [one.requests for one in merged(helper)] == [20, 10]


def test_registers_by_name():
    def resources(name, registers):
        return KernelResources(name, "sm_90a", registers, 0, 0, 0, 0)

    known = [resources("some_kernel", 40), resources("flash<64, true>", 64), resources("flash<128, true>", 128)]
    assert with_registers(kernel(), known).registers == 40
    exact = with_registers(kernel(kernel="flash<64,true>"), known)
    assert (exact.registers, exact.registers_vary) == (64, False)
    either = with_registers(kernel(kernel="flash<D, CAUSAL>"), known)
    assert (either.registers, either.registers_vary) == (128, True)
    assert "up to 128 registers" in words(printed(either))
    assert with_registers(kernel(kernel="other"), known).registers is None


# ---- remarks


@pytest.mark.parametrize(
    ("offsets", "stride"),
    [
        ([4 * i for i in WARP], 4),
        ([0] * 32, 0),
        ([128 * i for i in WARP], 128),
        ([4 * (i % 16) + 1000 * (i // 16) for i in WARP], 4),  # two rows of 16
        ([4 * i * i for i in WARP], None),
        ([-1] * 31 + [8], None),
        ([0, 4, 8] + [-1] * 29, 4),
    ],
)
def test_stride(offsets, stride):
    assert stride_of(offsets) == stride


def test_remarks_on_global_memory():
    assert remark(line("global")).note == "coalesced" and not remark(line("global")).advice
    column = remark(line("global", offsets=[4096 * i for i in WARP]))
    assert column.note == "12% of sectors used"
    assert (
        "Neighboring lanes are 4,096 bytes apart: a request takes 32.0 sectors of 32 bytes where 4.0" in column.advice
    )
    scattered = remark(line("global", offsets=[4 * (i * i * 37 % 4093) for i in WARP]))
    assert "The lanes' addresses are scattered" in scattered.advice
    assert remark(line("global", offsets=[64] * 32)).note == "one address"
    shifted = remark(line("global", offsets=[28 + 4 * i for i in range(7)] + [-1] * 25))
    assert shifted.note == "not aligned, 7 of 32 lanes active"
    assert "begin in the middle of a 32-byte sector" in shifted.advice
    assert "float4" not in remark(line("global", offsets=[16 * i for i in WARP], bytes=16)).advice


@pytest.mark.parametrize(
    ("apart", "ways"),
    [(32, 32), (16, 16), (2, 2), (24, 8), (96, 32)],
)
def test_remarks_on_bank_conflicts(apart, ways):
    conflict = line(offsets=[4 * apart * i for i in WARP])
    assert conflict.worst == ways
    found = remark(conflict)
    assert found.note == f"conflicts: {ways} passes"
    assert f"{apart} words apart, so {ways} lanes meet in each bank" in found.advice
    assert f"({apart + 1}, not {apart})" in found.advice


def test_no_remark_where_there_are_no_conflicts():
    assert remark(line(offsets=[4 * 33 * i for i in WARP])).note == "no conflicts"
    assert remark(line(offsets=[64] * 32)).note == "broadcast"
    vector = line(offsets=[16 * i for i in WARP], bytes=16)
    assert vector.worst == 4 and vector.ideal == 40 and remark(vector) == remark(line())
    one_vector = line(offsets=[0] * 32, bytes=16)  # takes several passes, but no lane waits for another lane's word
    assert remark(one_vector).note == "broadcast, 2 passes at least" and not remark(one_vector).advice


def test_conflicts_of_vectors():
    rows = line(offsets=[128 * i for i in WARP], bytes=16)  # all lanes in banks 0 to 3
    assert rows.worst == 32 and "conflicts: 32 passes" in remark(rows).note


# ---- bank passes


def test_lanes_that_want_the_same_word_share_a_pass():
    served = line_passes([0] * 16 + [128] * 16, 4)
    assert [number for _, _, number in served] == [0] * 16 + [1] * 16
    assert {bank for _, bank, _ in served} == {0}


def test_wide_accesses_go_in_groups():
    eight = line_passes([8 * i for i in WARP], 8)
    assert {number for lane, _, number in eight if lane < 16} == {0}
    assert {number for lane, _, number in eight if lane >= 16} == {1}
    sixteen = line_passes([16 * i for i in WARP], 16)
    assert max(number for _, _, number in sixteen) == 3 and len(sixteen) == 4 * 32


@pytest.mark.parametrize(
    ("bytes_", "address", "passes"),
    [
        (8, lambda lane: 0, 1),
        (8, lambda lane: 8 * (lane // 2), 1),  # pairs (0, 1), (2, 3), ...
        (8, lambda lane: 8 * (lane % 2 + lane // 4 * 2), 1),  # pairs (0, 2), (1, 3), ...
        (8, lambda lane: 8 * (lane % 16), 2),  # lanes 16 apart are no pairs
        (16, lambda lane: 0, 2),
        (16, lambda lane: 16 * (lane // 2), 2),
        (16, lambda lane: 16 * (lane % 8), 4),
    ],
)
def test_wide_groups_go_together_where_pairs_of_lanes_agree(bytes_, address, passes):
    served = line_passes([address(lane) for lane in WARP], bytes_)
    assert 1 + max(number for _, _, number in served) == passes


def test_inactive_lanes_want_nothing():
    assert line_passes([-1] * 31 + [12], 4) == [(31, 3, 0)]


# ---- bounds, order, text


def test_bounds_are_the_data_sheets():
    found = {bound.resource: bound.seconds for bound in bounds(kernel(line(requests=1000)), H200)}
    assert found["DRAM"] == pytest.approx(1e6 / 4.8e12)
    assert found["shared memory"] == pytest.approx(1000 / (132 * 1.98e9))
    assert found["float32"] == pytest.approx(4e6 / (132 * 128 * 2 * 1.98e9))
    assert found["special functions"] == pytest.approx(5e5 / (132 * 16 * 1.98e9))
    assert bounds(kernel(), H200)[0].resource == "DRAM"
    tensor = kernel(tensor_flops=10**12)
    assert bounds(tensor, H200)[0].resource == "tensor cores" and tensor.flops == 10**12 + 4_000_000


def test_measured_traffic_takes_the_place_of_the_compulsory():
    measured = kernel(dram_bytes=4e6, measured_seconds=2e-6)
    assert {bound.resource: bound.seconds for bound in bounds(measured, H200)}["DRAM"] == pytest.approx(4e6 / 4.8e12)
    text = printed(measured)
    assert "DRAM: 4 MB measured" in text and "2 us; the longest bound is 42% of that" in text


def test_the_table_is_sorted_worst_first():
    fine = line("global", place=Place("k.cu", 11), requests=100_000)
    conflict = line(offsets=[128 * i for i in WARP], place=Place("k.cu", 12))
    column = line("global", offsets=[4096 * i for i in WARP], place=Place("k.cu", 13), requests=50)
    small = line("global", place=Place("k.cu", 14), requests=10)
    order = [one.place.line for one in worst_first([small, fine, conflict, column], H200)]
    assert order == [13, 12, 11, 14]
    vector = line(offsets=[0] * 32, bytes=16, place=Place("k.cu", 15), requests=10_000)
    assert vector.excess and worst_first([vector, conflict], H200)[0] == conflict  # a broadcast cannot be improved
    text = printed(kernel(small, fine, conflict, column))
    rows = [row.split()[0] for row in text.splitlines() if row.split() and row.split()[0] in ("11", "12", "13", "14")]
    assert rows == ["13", "12", "11", "14"]


def test_what_is_printed_of_a_kernel(tmp_path):
    file = tmp_path / "kernel.cu"
    file.write_text(
        "\n" * 6 + "    tile[threadIdx.x][r] = matrix[row * cols + col];  // a comment that makes it long\n"
    )
    place = Place(str(file), 7, "load", (Place(str(file), 30, "some_kernel"),))
    text = printed(kernel(line(offsets=[128 * i for i in WARP], place=place, requests=64)))
    assert "some_kernel  grid (4, 2), block (32, 8), launched at /course/kernel.cu:40" in text
    assert "7 < 30" in text and "shared read" in text and "2,048" in text and "conflicts: 32 passes" in text
    assert "tile[threadIdx.x][r] = matr" in text and "…" in text
    assert "line 7 < 30: Neighboring lanes are 32 words apart" in text
    assert "1 MB compulsory" not in text and "shared: 2,048 passes (wavefronts)" in text
    assert "4 M float operations, 500,000 special functions, 2 barriers per block" in text
    assert "100% on H200: 8 blocks per SM, limited by threads" in text
    assert "8 blocks: 124 of the 132 SMs have nothing to do" in text
    assert "1 block: 131 of the 132 SMs have nothing to do" in printed(kernel(grid=(1, 1, 1)))
    assert "1057 blocks, 1056 at a time: 2 rounds, and the last one has 1 of them" in printed(kernel(grid=(1057, 1, 1)))
    assert "limited by  the grid: 8 of 132 SMs have work; the times above assume that all do" in text
    assert "DRAM 208 ns" in text and "(roofline estimate, H200)" in text
    assert "4 operations per byte of DRAM traffic, H200's ridge point is 13.9" in text
    assert max(len(row.rstrip()) for row in text.splitlines()) <= 120


def test_a_block_that_does_not_fit_is_told():
    text = words(printed(kernel(shared_bytes=100 << 10), find("t4")))
    assert "102,400 bytes of shared memory, registers unknown) does not fit on T4: not enough shared memory" in text
    assert "does not fit" not in printed(kernel(), find("t4"))


def test_the_legend_says_what_is_counted_and_that_it_is_an_estimate():
    text = io.StringIO()
    print_legend(Console(file=text, width=200), H200)
    said = words(text.getvalue())
    assert "estimate" in said and "leaves out latency" in said and "multiply-add counts as 2" in said
    assert "Comparisons, min, max, conversions and integer arithmetic are not counted" in said


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (number(999_999), "999,999"),
        (number(12_345_678), "12.3 M"),
        (amount(640), "640 bytes"),
        (amount(12_500), "12.5 KB"),
        (duration(1e-6), "1 us"),
        (duration(0.99999e-6), "1 us"),
        (duration(1.234e-8), "12.3 ns"),
        (duration(1e-11), "under 1 ns"),
        (size_of((3, 1, 1)), "(3)"),
        (size_of((1, 1, 5)), "(1, 1, 5)"),
    ],
)
def test_numbers(text, shown):
    assert text == shown


# ---- pictures


def test_the_worst_shared_line_is_drawn(tmp_path):
    mild = line(offsets=[8 * i for i in WARP], place=Place("k.cu", 1))
    bad = line(offsets=[128 * i for i in WARP], place=Place("k.cu", 2))
    wide = line("global", offsets=[4096 * i for i in WARP], place=Place("k.cu", 3), requests=10_000)
    kernels = [kernel(mild, wide), kernel(bad, kernel="other")]
    assert profile_pictures.worst_shared_line(kernels) == (kernels[1], bad)
    files = profile_pictures.draw(kernels, H200, tmp_path / "pictures")
    assert [file.name for file in files] == ["bank_conflicts.png", "roofline.png"]
    for file in files:
        assert file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 10_000


def test_nothing_is_drawn_of_nothing(tmp_path):
    bare = kernel(line("global"), operations=None)
    assert profile_pictures.draw([bare], H200, tmp_path) == []
    no_offsets = kernel(line(offsets=[4 * i for i in WARP], worst=0), operations=None)
    assert (
        profile_pictures.worst_shared_line([replace(no_offsets, lines=(replace(no_offsets.lines[0], offsets=()),))])
        is None
    )
