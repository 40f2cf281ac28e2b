"""The model's parts against values computed by hand, and the order of planted slow variants."""

import math
from dataclasses import replace

import pytest

from common.inspect.profile.model import KernelProfile, LineTraffic
from common.inspect.source_lines import Place
from common.measure.gpus import find
from common.predict import model
from common.predict.counters import Block, Launch, Sample
from common.predict.instructions import NOTHING, Mix, mix_of
from common.predict.machine import machine_of
from common.predict.model import DRAM, FLOAT32, LATENCY, LAUNCH, PARTIAL, SHARED, predict
from common.predict.registers import estimated_registers
from common.predict.report import bound_words
from common.predict.reuse import axes_that_matter, dram_traffic, l1_hit_share

H100 = machine_of(find("H100"))
MIB = 1 << 20


def kernel(blocks=1024, threads=256, lines=(), **changes) -> KernelProfile:
    grid, block = (blocks, 1, 1), (threads, 1, 1)
    return KernelProfile("k", None, 1, grid, block, changes.pop("shared_bytes", 0), tuple(lines), **changes)


def line(space, action, requests, transactions, bytes=4) -> LineTraffic:
    return LineTraffic(None, space, action, bytes, requests, 32 * requests, transactions, transactions)


def seconds_of(prediction, resource) -> float:
    return next(bound.seconds for bound in prediction.bounds if bound.resource == resource)


def launch(one: KernelProfile, mix=NOTHING, sectors=(0, 0), path=(0, 0, 0)) -> Launch:
    """The first and the last block ran; each reads and writes its own `sectors`.

    path: requests for global memory, waits and barriers of the busiest warp in every block.
    """
    last, (reads, writes) = one.blocks - 1, sectors
    own = [{0: (n * reads, n * reads + reads - 1, reads, 0), 1: (n * writes, n * writes + writes - 1, 0, writes)}
           for n in (0, last)]  # fmt: skip
    blocks = (Block(0, max(1, last), own[0]), Block(last, 1, own[1]))[: one.blocks]
    arrays = tuple(32 * one.blocks * each for each in sectors)
    sample = Sample(arrays, blocks, ((MIB, 0.0),), *(one.blocks * each for each in path), "")
    return Launch(one, mix, sum(each.transactions / 4 for each in one.lines if each.space == "global"), sample)


def copy(count, sectors=4) -> Launch:
    """Each thread copies a float; `sectors` of 32 bytes per request."""
    requests = count // 32
    lines = [line("global", action, requests, requests * sectors) for action in ("read", "write")]
    return launch(kernel(count // 256, lines=lines), sectors=(32, 32), path=(1, 1, 0))


# ---- single bounds


def test_a_large_copy_takes_its_bytes_over_the_bandwidth():
    count = 1 << 28
    one = predict(copy(count), H100)
    assert one.bound.resource == DRAM
    moved = 8 * count - 0.75 * 50 * MIB / 2  # the rest of the written data is in L2 when the launch ends
    assert one.bound.seconds == pytest.approx(moved / (3.35e12 * 0.9003), rel=1e-3)
    assert one.bound.seconds < one.seconds < 1.25 * one.bound.seconds


def test_an_uncoalesced_copy_takes_eight_times_the_sectors():
    count = 1 << 24
    straight, scattered = predict(copy(count), H100), predict(copy(count, sectors=32), H100)
    assert scattered.l2_bytes == 8 * straight.l2_bytes == 8 * 8 * count
    assert scattered.bound.resource == PARTIAL  # four bytes of each sector
    assert seconds_of(scattered, PARTIAL) == pytest.approx(count * 128 / H100.l2_bandwidth)
    assert seconds_of(straight, PARTIAL) == 0
    assert scattered.seconds > 5 * straight.seconds


def test_gaps_that_other_blocks_fill_later_are_read_again():
    """64 blocks each read every fourth sector in a quarter of the array; four passes over it fill all gaps, twice."""
    size = 16 * 1000 * 4  # sectors
    blocks = [Block(n, 8, {0: (n % 16 * 4000, n % 16 * 4000 + 3999, 1000, 0)}) for n in (1, 9, 20, 28, 39, 47, 58, 63)]
    one = replace(copy(64 * 256), sample=Sample((32 * size // 4,), tuple(blocks), ((MIB, 0.0),), 0, 0, 0, ""))
    assert dram_traffic(one, 64, 50 * MIB, 0).read == pytest.approx(32 * size // 4, rel=0.01)
    assert dram_traffic(one, 64, 32 * 1000, 0).read == 64 * 1000 * 64  # bursts of 64 bytes


def test_pure_arithmetic_takes_its_instructions_over_the_lanes():
    """2^20 threads of 4096 FMAs on 132 SMs with 128 lanes; 1024 blocks of 1024 threads are 8 rounds on 132 SMs."""
    one = kernel(1024, 1024, registers=32)
    found = predict(launch(one, Mix(fused=2**20 * 4096)), H100)
    rounds = math.ceil(1024 / 132)
    assert seconds_of(found, FLOAT32) == pytest.approx(rounds * 1024 * 4096 / 128 / H100.clock, rel=1e-6)
    assert found.bound.resource in (FLOAT32, model.ISSUE)


def test_one_warp_of_dependent_arithmetic_waits_for_its_latency():
    found = predict(launch(kernel(1, 32), Mix(fused=32 * 100_000)), H100)
    assert found.bound.resource == LATENCY
    assert found.bound.seconds == pytest.approx(100_000 * (4.19 + 1) / H100.clock, rel=0.01)  # waits, and issues


def test_one_warp_that_chases_pointers():
    """1000 loads, each dependent on the one before: 1000 DRAM latencies."""
    one = kernel(1, 32, [line("global", "read", 1000, 1000)])
    found = predict(launch(one, sectors=(1000, 0), path=(1000, 1000, 0)), H100)
    assert found.bound.resource == LATENCY
    assert found.bound.seconds == pytest.approx(1000 * 689.1 / H100.clock, rel=0.02)


def test_bank_conflicts_multiply_the_time_of_shared_memory():
    def reads(ways):
        return launch(kernel(1320, lines=[line("shared", "read", 1 << 20, ways << 20)]))

    free, conflicts = predict(reads(1), H100), predict(reads(32), H100)
    assert seconds_of(conflicts, SHARED) == pytest.approx(32 * (1 << 20) / 0.92 / 132 / H100.clock, rel=1e-3)
    assert seconds_of(conflicts, SHARED) == pytest.approx(32 * seconds_of(free, SHARED), rel=1e-3)
    assert conflicts.bound.resource == SHARED


def test_an_empty_launch_costs_a_launch():
    one = predict(launch(kernel(1, 32)), H100)
    assert one.bound.resource == LAUNCH and one.seconds == pytest.approx(H100.launch, rel=0.05)


def test_a_block_that_does_not_fit_is_an_error():
    with pytest.raises(ValueError, match=r"k: a block does not fit on T4: not enough shared memory"):
        predict(launch(kernel(shared_bytes=100_000)), machine_of(find("T4")))


# ---- waves and tail


def test_a_block_more_than_the_sms_hold_takes_another_round():
    """Blocks of 1024 threads, two to an SM."""

    def seconds(blocks, resource):
        return seconds_of(predict(launch(kernel(blocks, 1024), Mix(fused=blocks * 2**20)), H100), resource)

    assert seconds(132, FLOAT32) == pytest.approx(seconds(1, FLOAT32)) == pytest.approx(seconds(133, FLOAT32) / 2)
    assert seconds(264, LATENCY) == pytest.approx(seconds(1, LATENCY)) == pytest.approx(seconds(265, LATENCY) / 2)


# ---- L1, L2, DRAM


def sampled(grid, touched, arrays) -> Launch:
    """`touched(x, y)` -> {array: (first, last, read, written)} for every block of the grid."""
    blocks = [Block(y * grid[0] + x, 1, touched(x, y)) for y in range(grid[1]) for x in range(grid[0])]
    sample = Sample(arrays, tuple(blocks), ((MIB, 0.0),), 0, 0, 0, "")
    return Launch(replace(kernel(), grid=(*grid, 1)), Mix(), 0, sample)


# C = A B: a block reads 1000 sectors, the rows of A given by its y, and as many, the columns of B given by its x
TILE = 32 * 1000
PRODUCT = sampled(
    (4, 3), lambda x, y: {0: (y * 1000, y * 1000, 1000, 0), 1: (x * 1000, x * 1000, 1000, 0)}, (3 * TILE, 4 * TILE)
)


def test_axes():
    assert axes_that_matter(PRODUCT.sample, (4, 3, 1), 0) == (False, True, False)
    assert axes_that_matter(PRODUCT.sample, (4, 3, 1), 1) == (True, False, False)


def test_what_fits_into_l2_is_read_once():
    assert dram_traffic(PRODUCT, 2, 50 * MIB, 0).read == pytest.approx(TILE * (4 + 3), rel=0.01)


def test_what_does_not_fit_is_read_again():
    """One block at a time and room for two tiles: each block along x evicts B's tiles, while A's row stays."""
    assert dram_traffic(PRODUCT, 1, 2.1 * TILE / 0.75, 0).read == pytest.approx(TILE * (3 + 4 * 3), rel=0.02)


def test_a_wave_reads_what_its_blocks_share_once():
    assert dram_traffic(PRODUCT, 12, 1.0, 0).read == pytest.approx(TILE * (4 + 3), rel=0.01)


def test_what_a_block_reads_again_comes_from_l2_where_it_fits():
    """12 blocks each read their own 1000 sectors three times; all run at once."""
    own = sampled((12, 1), lambda x, y: {0: (x * 1000, x * 1000 + 999, 1000, 0)}, (12 * 32_000,))
    once = 12 * 32_000
    assert dram_traffic(own, 12, 2 * once, 3 * once).read == pytest.approx(once)
    assert dram_traffic(own, 12, once / 0.75 / 2, 3 * once).read == pytest.approx(once * (1 + 2 / 2))  # half is lost


def loads(*places) -> float:
    """Seconds of latency for 100 loads by one warp, plus the other accesses of its lines."""
    lines = [replace(line("global", action, 100, 400), place=place) for action, place in places]
    return seconds_of(predict(launch(kernel(1, 32, lines), sectors=(400, 400), path=(100, 0, 0)), H100), LATENCY)


def test_a_line_that_loads_and_stores_waits_for_every_load():
    """y[i] = x[i] on one line, or loaded on one line and stored on another."""
    apart = loads(("read", Place("a.cu", 1, "k", ())), ("write", Place("a.cu", 2, "k", ())))
    assert loads(*((action, Place("a.cu", 1, "k", ())) for action in ("read", "write"))) > 3 * apart


def test_loads_that_are_computed_with_behind_a_condition_hardly_overlap(tmp_path):
    texts = []

    def of(text):
        texts.append(text)
        file = tmp_path / f"{len(texts)}.cu"
        file.write_text(text)
        return loads(("read", Place(str(file), 1, "k")))

    free = of("sum += p * x[i];")
    assert of("tile[i] = i < n ? x[i] : 0.0f;") == free == of("if (i < n) tile[i] = x[i];")
    for text in ("sum += i < n ? p * x[i] : 0.0f;", "if (i < n) sum += x[i];", "x[i] = i < n ? x[i] * scale : 0.0f;"):
        assert of(text) == pytest.approx(2 * free, rel=0.02)


def test_hits_between_sizes_are_linear():
    sample = Sample((), (), ((8 << 10, 0.2), (16 << 10, 0.6)), 0, 0, 0, "")
    assert l1_hit_share(sample, 4 << 10) == pytest.approx(0.1)
    assert l1_hit_share(sample, 12 << 10) == pytest.approx(0.4)
    assert l1_hit_share(sample, 1 << 20) == 0.6


# ---- instructions and registers


def test_a_multiplication_and_an_addition_are_one_fma():
    block = mix_of("mulss", "%xmm1,%xmm0") + mix_of("addss", "%xmm0,%xmm2") + mix_of("addss", "%xmm3,%xmm2")
    assert block.contracted() == Mix(add=1, fused=1)
    assert mix_of("call", "1234 <expf@plt>").special == 1 and mix_of("divss", "%xmm1,%xmm0").special == 1
    assert mix_of("movss", "(%rax),%xmm0") == Mix() == mix_of("add", "$0x8,%rsp")


def test_registers_from_arrays():
    text = """
constexpr int ROWS = 8, OTHER = 3;
constexpr int COLUMNS = ROWS * 2;
__global__ void small(float* x) { x[0] = 1; }
template <int N> __global__ void __launch_bounds__(256) large(float* x) {
    float sums[ROWS][8];
    float4 a[2];
    __shared__ float tile[64][64];
}
"""
    assert estimated_registers(text, "small") == 32
    assert estimated_registers(text, "large<3>") == 104  # 30 + 64 + 8, rounded up to a multiple of 8


# ---- what it does not model


def test_what_is_not_modeled_gets_no_number():
    sample = Sample((64,), (Block(0, 1, {0: (0, 1, 2, 2)}),), ((MIB, 0.0),), 0, 0, 0, "")
    atomics = Launch(kernel(1, lines=[line("global", "atomic", 1000, 1000)]), Mix(), 0, sample)
    found = predict(atomics, H100)
    assert found.seconds is None and "atomic operations" in bound_words(found)
    tma = replace(atomics, sample=replace(sample, not_modeled="copies by TMA"))
    assert predict(tma, H100).not_modeled == "copies by TMA"


@pytest.mark.parametrize("name", ["H100", "A100", "T4", "RTX4090", "H200", "V100", "L4"])
def test_every_gpu_is_known_and_a_smaller_one_is_slower(name):
    machine = machine_of(find(name))
    launch = copy(1 << 26)
    assert predict(launch, machine).seconds >= 0.999 * predict(launch, machine_of(find("H200"))).seconds
    assert machine.l2 < machine.dram and machine.l1 < machine.l2
    assert machine.origin.split(" (")[0] == {"H100": "measured by this project"}.get(
        name, "published by others" if name == "H200" else "estimated"
    )
