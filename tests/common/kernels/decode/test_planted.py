"""Mistakes planted in the fast decode kernels: the comparison with float64, or the checked build, finds each.

Both decode kernels in one build: float32 by the work list, float16 by clusters. head_dim is at most 64 here, which
compiles faster than the full set of sizes.
"""

import contextlib
import ctypes
import functools

import pytest
import torch
from decode_inputs import LONG, RAGGED, as_int, assert_right, check, in_pages, packed, tensors, updated
from planted import Replacement, switched_texts

from common.compiling.load import load
from common.compiling.operators import Operators
from common.compiling.places import room
from common.compiling.request import BuildRequest
from common.console.paths import ROOT, build_root
from common.inspect.checked_library import CHECK, CheckedLibrary
from common.testing.calling import Guarded

STATES = "attention_states.cuh"  # of common/cuda
HEADERS = (
    *("decode.h", "cluster.cuh", "cache_layout.cuh", STATES, "decode_common.cuh"),
    *("decode_mma.cuh", "decode_simt.cuh", "decode_cluster.cuh", "decode_work.cuh", "decode_list.cuh"),
)
SOURCE = """
#include "decode_cluster.cuh"
#include "decode_list.cuh"
#include "decode_mma.cuh"
#include "decode_simt.cuh"

using ListWarp = SimtWarp<float, 64, 8>;
using ClusterWarp = MmaWarp<__half, 64, 1>;

int64_t decode_workspace(const DecodeArguments& a, FloatType type) {
    return type == FloatType::FLOAT32 ? decode_list<ListWarp>(a, false) : 0;
}
void launch_decode(const DecodeArguments& a, FloatType type) {
    if (type == FloatType::FLOAT32) decode_list<ListWarp>(a, true);
    else decode_clusters<ClusterWarp>(a);
}
void launch_update_cache_rotary(const RotaryArguments&, FloatType) {}
"""

LENGTH = "min(max(a.lengths[sequence], 0), static_cast<int>(a.layout.capacity))"
LIST_LENGTH = "min(max(lengths[sequence], 0), capacity)"
UPDATED_ROW = "row_of(a.layout, sequence, kv_head, «position + token», page) * row_units"
WAIT = "cp_async_wait<STAGES - 2>();"
PAGE = "page = page_number(a.layout, next.sequence, next.tile * TILE);"

LIST, CLUSTERS, UPDATE, BOTH = ("list",), ("clusters",), ("update",), ("list", "clusters")
TWO_UNITS = ("list, two units", "clusters, two units")
# name -> (the cases that catch it, or the case and the kind of finding in the checked build, its replacements)
MISTAKES: dict[str, tuple[tuple[str, ...], list[Replacement]]] = {
    # heads, tokens and pages
    "K_V_heads_interleaved": (CLUSTERS, [("sequence * a.heads + «kv_head * units.group» + skipped", "kv_head", 1)]),
    "first_unit_of_the_group_only": (TWO_UNITS, [("skipped = «unit * units.unit_heads»;", "0", 1)]),
    "page_of_the_first_sequence": (CLUSTERS, [
        ("block_table[«(sequence * layout.capacity + slot) >> layout.page_bits»]", "slot >> layout.page_bits", 1)
    ]),
    "slot_of_the_smallest_page": (BOTH, [("«(slot & ((1 << layout.page_bits) - 1))»", "slot % 16", 1)]),
    "stale_page_in_a_cluster": (CLUSTERS, [("next += step;\n        «look_up();»", "", 1)]),
    "stale_page_in_the_list": (LIST, [
        (PAGE, "if (next_number < begin + plan.warps) page = page_number(a.layout, 0, 0);", 1)
    ]),
    "length_ignored": (BOTH, [
        (f"length = «{LENGTH}»;", "static_cast<int>(a.layout.capacity)", 1),
        (f"return «{LIST_LENGTH}»;", "capacity", 1),
    ]),
    "length_of_the_first_sequence": (BOTH, [
        ("max(«a.lengths[sequence]», 0)", "a.lengths[0]", 1),
        ("max(«lengths[sequence]», 0), capacity", "lengths[0]", 1),
    ]),
    "length_not_limited": (("list: out_of_bounds",), [(f"return «{LIST_LENGTH}»;", "lengths[sequence]", 1)]),
    "newest_token_left_out": (BOTH, [("? «min(TILE, length - slot)» : 0", "min(TILE, length - 1 - slot)", 1)]),
    # the pipeline
    "tile_used_before_it_is_here": (BOTH, [(WAIT, "", 1)]),
    "tokens_of_a_later_tile": (BOTH, [("copied >> «5 * (STAGES - 1)» & 31", "5 * (STAGES - 2)", 1)]),
    "no_syncwarp_before_the_ring_goes_on": (("clusters: race",), [(f"{WAIT}\n        «__syncwarp();»", "", 1)]),
    # merging
    "merged_without_weights": (BOTH, [("mine = «exp2_approx(m - shift)»", "1.0f", 1)]),
    "the_other_one_without_its_weight": (BOTH, [("its = «exp2_approx(other.m - shift)»", "1.0f", 1)]),
    "no_barrier_before_warps_are_merged": (("list: race",), [
        ("store_state(states, warp);\n        «__syncthreads();»", "", 1)
    ]),
    "first_part_left_out": (LIST, [("int part = «first» + slice;", "first + 1", 1)]),
    "stale_state_of_a_part": (LIST, [("store(«2 * part + begun_here», head, col, sum)", "2 * part", 1)]),
    "merged_although_alone": (LIST, [("if (first == last) return;", "", 1)]),
    # update_cache
    "one_slot_late": (UPDATE, [(UPDATED_ROW, "position + token + 1", 1)]),
    "new_tokens_not_counted": (UPDATE, [("position > «a.layout.capacity - a.new_tokens»", "a.layout.capacity - 1", 1)]),
    "value_with_the_key_s_strides": (UPDATE, [("value[token * «a.value_strides.row» + unit]", "a.key_strides.row", 1)]),
}  # fmt: skip

# dtype, lengths, (heads, kv_heads), capacity; float32 uses the work list
DECODE = {
    "list": (torch.float32, LONG, (4, 1), 1600),
    "list, two units": (torch.float32, RAGGED, (10, 1), None),
    "clusters": (torch.float16, RAGGED, (4, 2), None),
    "clusters, two units": (torch.float16, RAGGED, (9, 1), None),
}


@functools.cache
def built(checked: bool):
    """The operators with all mistakes in them, and plant(number)."""
    folder = room("decode").kernels[0].parent
    cuda = ROOT / "common" / "cuda"
    texts = [((cuda if name == STATES else folder) / name).read_text() for name in HEADERS]
    texts.append((folder / "cache.cu").read_text() + SOURCE)
    for place in ("common/kernels/decode/", f"common/cuda/{STATES}"):  # the planted ones, not those of the checkout
        texts = [text.replace(f'"{place}', f'"{STATES * place.endswith(STATES)}') for text in texts]
    to = build_root() / "planted" / "decode"
    to.mkdir(parents=True, exist_ok=True)
    for name, text in zip(
        [*HEADERS, "planted.cu"], switched_texts(texts, [edits for _, edits in MISTAKES.values()]), strict=True
    ):
        if not (to / name).exists() or (to / name).read_text() != text:
            (to / name).write_text(text)
    sources = [to / "planted.cu"]
    ops = load(BuildRequest("decode", backend="simulator", sources=sources, checked=checked, label="planted"))
    return ops, ctypes.CDLL(str(ops.libraries[0].path)).plant


def operators(mistake: str | None, checked: bool = False) -> Operators:
    """Calls with this mistake planted, until the next call."""
    ops, plant = built(checked)
    plant(0 if mistake is None else 1 + list(MISTAKES).index(mistake))
    return ops


def check_update(ops: Operators) -> None:
    """Bit for bit: a view of a packed projection, with positions at both ends and just outside."""
    positions, shape = (0, 46, 47, -1, 5), (5, 2, 50, 24)
    key = packed(ops, torch.float16, 5, 2, 4, 24)[0]
    value = packed(ops, torch.float16, 5, 2, 4, 24)[1].contiguous()
    caches = [Guarded(torch.randn(shape).half(), ops.device) for _ in range(2)]
    expected = [updated(x.tensor, new, positions) for x, new in zip(caches, (key, value), strict=True)]
    ops.update_cache(caches[0].tensor, caches[1].tensor, key, value, as_int(positions, ops.device))
    assert torch.equal(caches[0].tensor, expected[0]) and torch.equal(caches[1].tensor, expected[1])
    assert not caches[0].overrun() and not caches[1].overrun()


def run(ops: Operators, case: str) -> None:
    """AssertionError if the case is wrong."""
    if case == "update":
        return check_update(ops)
    dtype, lengths, heads, capacity = DECODE[case]
    inputs = tensors(ops, dtype, lengths, *heads, capacity=capacity)
    check(ops, inputs)
    assert_right(ops.decode_attention_paged(**in_pages(ops, **inputs, page_size=64)), inputs)


EVERY = [(mistake, *case.split(": ")) for mistake, (cases, _) in MISTAKES.items() for case in cases]


@pytest.mark.parametrize(("mistake", "case"), [one for one in EVERY if len(one) == 2])
def test_a_mistake_is_caught(mistake, case):
    ops = operators(mistake)
    with pytest.raises(AssertionError):
        run(ops, case)


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "case", "kind"), [one for one in EVERY if len(one) == 3])
def test_the_checked_build_finds_it(mistake, case, kind):
    ops = operators(mistake, checked=True)
    library = CheckedLibrary(ops.libraries[0].path)
    dtype, lengths, heads, capacity = DECODE[case]
    inputs = tensors(ops, dtype, lengths, *heads, capacity=capacity)
    if mistake == "length_not_limited":
        inputs["lengths"] += 1600
    library.begin(CHECK)
    with contextlib.suppress(RuntimeError):  # an out-of-bounds access ends the kernel
        ops.decode_attention(**inputs)
    found = library.report()["findings"]
    library.begin(0)
    assert kind in {one["kind"] for one in found}, found


def test_nothing_planted_is_right():
    ops = operators(None)
    for case in (*DECODE, "update"):
        run(ops, case)
