"""What the checked build must report for each case in kernels/*.cu: nothing for right ones, exactly this for others.

Each case is its own host function (see kernels/case.h). `right()` gives the numbers that it computes, `wrong()` the
findings or the error. Source lines are identified by their comments: "shift write" is the line that ends with
`// line: shift write`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

KERNELS = Path(__file__).resolve().parents[1] / "common" / "simulator" / "checked" / "kernels"
SOURCES = sorted(KERNELS.glob("*.cu"))
ENDS_THE_KERNEL = {"out_of_bounds", "misaligned", "use_after_free"}


@dataclass(frozen=True)
class Finding:
    """A pair of source locations.

    Attributes:
        kind: as in the checker's report: "race", "out_of_bounds", ...
        lines: the comments on the lines of both accesses, or of the single access or host call; equal ones only once.
        variable: the shared variable's name, "" if unknown.
        offset: the byte offset of the access from the start of the variable or allocation; None: any.
    """

    kind: str
    lines: frozenset[str]
    variable: str = ""
    offset: int | None = None


@dataclass(frozen=True)
class Case:
    """One host function of kernels/<file>.

    Attributes:
        findings: everything the checker must report.
        consequences: kinds that it may also report, since they follow from the findings and depend on the order in
            which threads run: a value read too early may be read before it was written, or before the copying thread
            has waited.
        error, error_lines: part of the RuntimeError's text, and the lines that it must name.
        result: what a right case computes; None for a wrong one, whose numbers are unspecified.
        is_wrong: whether the program has a mistake, detected or not.
        hangs: whether a GPU may wait forever.
        remark: for the comparison with compute-sanitizer: the reason for the verdict.
    """

    file: str
    name: str
    findings: tuple[Finding, ...] = ()
    consequences: frozenset[str] = frozenset()
    error: str = ""
    error_lines: tuple[str, ...] = ()
    result: np.ndarray | None = None
    is_wrong: bool = False
    hangs: bool = False
    remark: str = ""

    @property
    def raises(self) -> bool:
        """Whether the launch ends with a RuntimeError."""
        return bool(self.error) or any(finding.kind in ENDS_THE_KERNEL for finding in self.findings)

    def is_result(self, numbers: np.ndarray) -> bool:
        """Whether a right case's first numbers are these, up to rounding in expf() and divisions."""
        assert self.result is not None
        return np.allclose(numbers[: self.result.size], self.result, rtol=1e-5, atol=0)

    def line(self, comment: str) -> int:
        """The number of the line with this comment."""
        lines = (KERNELS / self.file).read_text().splitlines()
        (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"// line: {comment}")]
        return number


def right(name: str, result) -> tuple[str, dict]:
    return name, {"result": np.asarray(result, dtype=np.float32)}


def wrong(name: str, *findings: Finding, consequences: str = "", error_lines=(), **rest) -> tuple[str, dict]:
    return name, {
        "findings": findings,
        "consequences": frozenset(consequences.split()),
        "error_lines": tuple(error_lines),
        "is_wrong": True,
        **rest,
    }


def finding(kind: str, *lines: str, variable: str = "", offset: int | None = None) -> Finding:
    return Finding(kind, frozenset(lines), variable, offset)


def race(*lines: str, variable: str = "") -> Finding:
    return finding("race", *lines, variable=variable)


t32, t64, t128 = np.arange(32), np.arange(64), np.arange(128)
before32, before64 = np.maximum(t32 - 1, 0), np.maximum(t64 - 1, 0)

_SOFTMAX = np.exp(t64 - 63.0) / np.exp(t64 - 63.0).sum()
_LANES_EACH_ROUND = t128.reshape(4, 32).copy()
_LANES_EACH_ROUND[1::2] = _LANES_EACH_ROUND[1::2, ::-1]
_QUADS = t128.reshape(32, 4)
_TILES = np.arange(6 * 128).reshape(6, 32, 4).sum(0)
_CLEARED = np.concatenate([t128[:124], np.zeros(4)]).reshape(32, 4)


def _early(copy: str, use: str, variable: str) -> Finding:
    return finding("copy_not_awaited", copy, use, variable=variable)


after32 = (t32 + 1) % 32
_ROUNDS = (np.arange(160).reshape(5, 32)[:, after32]).sum(0)
_OTHER_WARP = (t64 + 32) % 64
_RING = (np.arange(192).reshape(6, 32)[:, ::-1]).sum(0)
_MATRIX = t128.reshape(8, 16)
_BOX = _MATRIX[2:6, 4:12].ravel()
_PADDED = np.pad(_MATRIX, 8)
_BOX_OVER = _PADDED[14:18, 20:28].ravel()
_BOX_BEFORE = _PADDED[7:11, 4:12].ravel()
_STORED, _ADDED = _MATRIX.copy(), _MATRIX.copy()
_STORED[6:, 12:] = np.arange(100, 132).reshape(4, 8)[:2, :4]
_ADDED[6:, 12:] += np.arange(100, 132).reshape(4, 8)[:2, :4]
_A = (np.arange(4)[:, None] + np.arange(128)) % 4
_B = (np.arange(64)[:, None] * 3 + np.arange(128)) % 5 - 2
_PRODUCT_16, _PRODUCT, _PRODUCT_128 = ((_A[:, :k] @ _B[:, :k].T).ravel() for k in (16, 64, 128))
_EXCHANGED = np.concatenate([100 + t32[::-1], t32[::-1]])

_TABLE: dict[str, list[tuple[str, dict]]] = {
    "shared_races.cu": [
        right("shift_with_barrier", before64),
        wrong("shift_without_barrier", race("shift write", "shift read", variable="tile")),
        right("reverse_with_barrier", 63 - t64),
        wrong(
            "reverse_without_barrier",
            race("reverse write", "reverse read", variable="line"),
            consequences="uninitialized",
        ),
        right("tiles_two_barriers", 4 * (63 - t64) + 384),
        wrong("tiles_one_barrier", race("tile write", "tile read", variable="tile")),
        right("one_writer", t64 // 2 * 2),
        wrong("two_writers", race("bucket write", variable="pairs")),
        right("same_value_atomic", np.ones(64)),
        wrong("same_value_plain", finding("same_value", "flag write", variable="found")),
        right("broadcast_with_barrier", t64 / 2016),
        wrong("broadcast_without_barrier", race("broadcast write", "broadcast read", variable="total")),
        right("two_reductions_three_barriers", _SOFTMAX),
        wrong("two_reductions_two_barriers", race("maxima read", "sum write", variable="partial")),
        right("tree_with_barriers", [8128]),
        wrong("tree_without_barriers", race("tree step", variable="sums")),
        right("double_buffer_right", 4 * before64 + 384),
        wrong(
            "double_buffer_half_the_barriers",
            race("next write", "current read", variable="buffer"),
            consequences="uninitialized",
        ),
        right("scan_two_buffers", np.cumsum(t64)),
        right("scan_in_place_two_barriers", np.cumsum(t64)),
        wrong("scan_in_place_one_barrier", race("scan read", "scan write", variable="sums")),
        right("adjacent_halves", 69 - t64),
        right("adjacent_bytes", 69 - t64),
        wrong("byte_of_a_word", race("word write", "byte write", variable="words")),
        wrong("bytes_with_two_writers"),
        right("vector_with_barrier", t64),
        wrong("vector_without_barrier", race("vector write", "component read", variable="quads")),
        right("other_slice_with_barrier", 16 * before64 + 6),
        wrong("other_slice_without_barrier", race("slice write", "slice read", variable="scratch")),
        right("votes_are_barriers", 63 - t64 + 100 * 54 + 20000),
    ],
    "warp_order.cu": [
        wrong("warp_tree_no_syncwarp", race("warp tree read", "warp tree write", variable="sums")),
        wrong("warp_tree_one_syncwarp", race("warp tree read", "warp tree write", variable="sums")),
        right("warp_tree_two_syncwarps", [2016]),
        right("warp_tree_guarded_one_syncwarp", [2016]),
        right("half_masks_within_halves", np.concatenate([15 - t32[:16], 47 - t32[16:]])),
        wrong("half_masks_across_halves", race("half write", "half read", variable="values")),
        right("shuffles_only", np.where(t64 < 32, 496, 1520) + np.where(t64 % 32, t64 - 1, t64)),
        right("shuffle_and_syncwarp", 496 + before32),
        wrong("shuffle_without_syncwarp", race("before shuffle", "after shuffle", variable="values")),
        right("slot_two_syncwarps", (t32 - 4) % 32),
        wrong("slot_one_syncwarp", race("slot read", "slot write", variable="slots")),
        right("warps_with_own_rows", _LANES_EACH_ROUND.ravel()),
        right("two_warps_barrier", t64 % 32),
        wrong("two_warps_syncwarp", race("first warp", "second warp", variable="values")),
    ],
    "global_races.cu": [
        right("global_with_barrier", 2 * before64),
        wrong("global_without_barrier", race("neighbor write", "neighbor read")),
        right("blocks_in_two_kernels", np.concatenate([np.zeros(32), 2 * t128[:96]])),
        wrong("blocks_in_one_kernel", race("block write", "block read")),
        right("blocks_side_by_side", t128),
        wrong("blocks_overlap", race("overlapping write")),
        right("stencil_out_of_place", np.maximum(2 * t64 - 1, 0)),
        wrong("stencil_in_place", race("stencil read", "stencil write")),
        right("counter_atomic", [118]),
        wrong("counter_plain", race("plain count")),
        wrong("counter_atomic_and_plain_read", race("atomic count", "plain read")),
        right("histogram_right", np.full(16, 8)),
        wrong("histogram_plain", race("plain bin", variable="bins")),
        wrong(
            "histogram_no_barrier", race("bins to zero", "atomic bin", variable="bins"), consequences="uninitialized"
        ),
        right("append_aggregated", [118]),
        right("last_block_with_fence", [32640]),
        wrong("last_block_without_fence", race("partial write", "partial read")),
        wrong("last_block_narrow_fence", race("partial write", "partial read")),
        wrong("last_block_fence_too_early", race("partial write", "partial read")),
        right("last_thread_with_fences", [8128]),
        wrong("last_thread_without_fences", race("atomic total", "total read")),
        right("last_block_barriers_and_fence", 16 * t32 + 1792),
        right("lock_with_fences", [120]),
        wrong("lock_without_fences", race("protected")),
        wrong("no_lock", race("protected")),
        right("message_with_fences", [7]),
        wrong("message_without_fences", race("message write", "message read", variable="text")),
        right("ptx_message_released", [7]),
        wrong("ptx_message_relaxed", race("ptx message", "ptx message read")),
    ],
    "bounds.cu": [
        right("read_inside", 2 * t64 + 1),
        wrong("read_past_end", finding("out_of_bounds", "past the end", offset=256)),
        right("write_guarded", np.arange(127)),
        wrong("write_past_end", finding("out_of_bounds", "unguarded write", offset=508)),
        wrong("read_before_start", finding("out_of_bounds", "before the start", offset=-4)),
        wrong("read_far_away", finding("out_of_bounds", "far away")),
        right("row_length_right", 144 * np.arange(8) + 66),
        wrong("row_length_wrong", finding("out_of_bounds", "wrong row", offset=384)),
        right("atomic_inside", np.full(16, 4)),
        wrong("atomic_past_end", finding("out_of_bounds", "atomic past the end", offset=60)),
        right("dynamic_shared_large_enough", before64),
        wrong("dynamic_shared_too_small", finding("out_of_bounds", "past dynamic", variable="window", offset=256)),
        right("static_shared_inside", t64),
        wrong("static_shared_one_past_end", finding("out_of_bounds", "store", variable="only", offset=256)),
        wrong("static_shared_far_past_end", finding("out_of_bounds", "store", variable="only", offset=65536)),
        wrong("static_shared_index_past_end", error="is outside its array", error_lines=["row index"]),
        wrong("past_first_of_two_arrays", finding("out_of_bounds", "store", variable="first", offset=252)),
        wrong("past_row_inside_array"),
        wrong("null_pointer_read", error="null pointer", error_lines=["null pointer"]),
        wrong("used_after_free", finding("use_after_free", "freed read")),
        wrong("freed_twice", finding("double_free", "second free")),
        wrong("never_freed", finding("leak", "leaked")),
        right("freed_once", np.zeros(64)),
        right("float4_aligned", np.arange(4, 68)),
        wrong("float4_misaligned", finding("misaligned", "misaligned float4")),
        right("float2_aligned", np.concatenate([[0, 0], np.stack([t32, 0 * t32], 1).ravel()])),
        wrong("float2_misaligned", finding("misaligned", "misaligned float2")),
        right("half2_aligned", np.arange(2, 66)),
        wrong("half2_misaligned", finding("misaligned", "misaligned half2")),
        right("parameters_and_variables", 20 * t64 * (t64 % 3 + 1) + t64 % 4 + 7),
    ],
    "device_heap.cu": [
        right("heap_lists", np.full(64, 45)),
        right("heap_virtual_calls", np.arange(64) ** 2),
        right("heap_shared_buffer", 63 - t64),
        right("heap_exhausted", [7, 1, 1]),
        wrong("heap_past_end", finding("out_of_bounds", "past the block", offset=64)),
        wrong("heap_after_free", finding("use_after_free", "after delete", offset=0)),
        wrong("heap_unwritten", finding("uninitialized", "unwritten block", offset=4)),
        wrong(
            "heap_freed_twice",
            finding("double_free", "freed by all"),
            error="which has been freed before",
            error_lines=["freed by all"],
        ),
        wrong("heap_leaked", finding("leak", "never deleted")),
        wrong("heap_race", race("unordered write", "unordered read")),
    ],
    "volatile_flags.cu": [
        wrong("flag_between_fences", finding("volatile_flag", "waits for the flag", "sets the flag", variable="ready")),
        wrong(
            "flag_without_fences",
            race("waits for the flag", "sets the flag", variable="ready"),
            race("data write", "data read", variable="data"),
        ),
        wrong(
            "flag_without_reading_fence",
            finding("volatile_flag", "waits for the flag", "sets the flag", variable="ready"),
            race("data write", "data read", variable="data"),
        ),
        wrong(
            "flag_without_writing_fence",
            race("waits for the flag", "sets the flag", variable="ready"),
            race("data write", "data read", variable="data"),
        ),
        right("volatile_lock_with_fences", [8]),
        wrong(
            "volatile_lock_without_fences",
            race("within the lock"),
            race("takes the lock", "gives the lock back"),
            race("gives the lock back"),
        ),
        wrong("blocks_in_turn", finding("volatile_flag", "waits for its turn", "next turn")),
        wrong("volatile_counter", race("volatile count"), finding("volatile_flag", "volatile count")),
    ],
    "host_memory.cu": [
        right("host_reads_after_copy", [6]),
        wrong("host_reads_device_memory", finding("host_access", "host read", offset=12)),
        wrong("host_writes_device_memory", finding("host_access", "host write", offset=0)),
        right("host_reads_pinned_memory", 2 * t64),
        wrong("kernel_reads_host_memory", finding("out_of_bounds", "kernel reads")),
        wrong("copied_past_the_end", error="invalid argument"),
    ],
    "initialization.cu": [
        right("tile_tail_zero", np.full(64, 1128)),
        wrong("tile_tail_uninitialized", finding("uninitialized", "tile tail", variable="tile", offset=192)),
        right("accumulator_zero", np.full(64, 2016)),
        wrong("accumulator_uninitialized", finding("uninitialized", "fresh accumulator", variable="total", offset=0)),
        right("output_set_to_zero", t64),
        wrong("output_uninitialized", finding("uninitialized", "add to output")),
        wrong("half_a_word_written", finding("uninitialized", "whole word", variable="words")),
        wrong("one_byte_of_two_written"),
        right("table_in_every_block", np.concatenate([31 - t32, 31 - t32])),
        wrong("table_in_one_block", finding("uninitialized", "table read", variable="table")),
        right("initialized_by_memset", np.zeros(64)),
        right("initialized_to_ones", np.full(64, -1)),
        right("initialized_by_copies", t64),
        right("initialized_by_kernel", t64),
        wrong("initialized_but_for_one", finding("uninitialized", "copy", offset=252)),
        right("padding_column", t64.reshape(8, 8).T.ravel()),
        right("padding_in_struct", 2 * (63 - t64)),
        wrong("copied_back_unwritten"),
    ],
    "synchronization.cu": [
        wrong("barrier_in_branch", finding("barrier", "branch barrier")),
        right("cuda_barrier_and_atomic", np.full(64, 64)),
        wrong("barrier_in_two_branches", error="barrier divergence", error_lines=["even barrier", "odd barrier"]),
        wrong("barriers_of_one_line", error="barrier divergence", error_lines=["both barriers"]),
        right("barrier_before_return", 49 - np.arange(50)),
        wrong("barrier_after_return", finding("barrier", "barrier after return")),
        right("barrier_in_uniform_loop", (t64 ^ 1) + np.where((t64 ^ 1) + 64 < 100, (t64 ^ 1) + 64, 0)),
        wrong("barrier_in_uneven_loop", finding("barrier", "loop barrier"), finding("barrier", "second loop barrier")),
        right("barrier_in_some_blocks", np.concatenate([63 - t64, t64 + 64])),
        wrong("shuffle_with_absent_lanes", error="deadlock", error_lines=["absent lanes"], hangs=True),
        right("syncwarp_full_mask", t32),
        wrong("syncwarp_without_own_lane", error="does not name the calling lane 16", error_lines=["own lane missing"]),
        wrong(
            "syncwarp_with_absent_lanes", error="deadlock", error_lines=["waiting lanes", "waiting threads"], hangs=True
        ),
        right("shuffle_within_halves", np.where(t32 < 16, t32 + (t32 ^ 1), t32 - (t32 ^ 1))),
    ],
    "idioms.cu": [
        right("block_lock_with_fences", [96]),
        wrong("block_lock_without_fences", race("block counter", variable="counter")),
        right("last_block_clears_its_counter", [32640, 32640]),
        right("cas_loop_atomic_read", [2016]),
        wrong("cas_loop_plain_read", finding("stale_read", "plain read before CAS", "first CAS")),
        wrong("lanes_write_equal_values", finding("same_value", "equal write", variable="total")),
        wrong("lanes_write_unequal_values", race("unequal write", variable="total")),
        right("pair_atomics", [64, 128, 64, 128]),
        wrong("shuffle_after_return", finding("absent_lane", "shuffle after return")),
        right("shuffle_before_return", [190]),
        wrong("ballot_after_return", finding("absent_vote", "vote after return")),
        right("ballot_before_return", [39]),
        wrong("shuffle_from_unnamed_lane", finding("absent_lane", "unnamed source")),
        wrong("volatile_tail", race("tail step", variable="sums")),
        right("active_lanes_aggregate", [118]),
    ],
    "async_copies.cu": [
        right("copy_all_steps", _QUADS[before32].ravel()),
        right("copy_own_without_barrier", t128),
        wrong("copy_without_wait", finding("async_race", "start of copy", "read of copy", variable="tile")),
        wrong("copy_own_without_wait", finding("async_race", "start of copy", "read of copy", variable="tile")),
        wrong("copy_without_commit", finding("async_race", "start of copy", "read of copy", variable="tile")),
        wrong("copy_without_barrier", race("start of copy", "read of copy", variable="tile")),
        right("pipeline_right", _TILES[before32].ravel()),
        wrong("pipeline_late_wait", finding("async_race", "next copy", "pipeline read", variable="buffer")),
        wrong(
            "pipeline_no_barrier_after_wait",
            race("first copy", "pipeline read", variable="buffer"),
            race("next copy", "pipeline read", variable="buffer"),
            consequences="async_race",
        ),
        wrong("pipeline_no_barrier_before_reuse", race("next copy", "pipeline read", variable="buffer")),
        right("ragged_tile_zeros", np.where(31 - t32 < 20, 31 - t32, 0)),
        wrong("ragged_tile_past_end", finding("out_of_bounds", "copy past the end", offset=80)),
        right("overwritten_after_wait", _CLEARED[::-1].ravel()),
        wrong("overwritten_before_wait", finding("async_race", "overwritten copy", "overwriting", variable="tile")),
    ],
    "memcpy_async.cu": [
        right("group_wait", 511 - np.arange(256)),
        wrong("group_wait_of_a_warp", race("group copy", "group read", variable="tile"), consequences="async_race"),
        wrong("group_barrier_for_wait", finding("async_race", "group copy", "group read", variable="tile")),
        right("buffers_right", np.arange(320).reshape(5, 64)[:, ::-1].sum(0)),
        wrong("buffers_last_wait_prior", finding("async_race", "next buffer", "read buffer", variable="buffer")),
        right("own_pipeline_right", np.arange(256).reshape(2, 32, 4)[:, ::-1].ravel()),
        right("own_pipeline_prior", np.arange(256).reshape(2, 32, 4)[:, ::-1].ravel()),
        wrong("own_pipeline_last_stage_not_awaited", finding("async_race", "own copy", "read others", variable="tile")),
        wrong("own_pipeline_without_barrier", race("own copy", "read others", variable="tile")),
        right("stages_right", np.roll(np.arange(320).reshape(5, 64), -1, 1).sum(0)),
        wrong(
            "stages_barrier_for_wait",
            finding("async_race", "stage copy", "stage read", variable="tiles"),
            finding("async_race", "stage copy", variable="tiles"),
        ),
        right("roles_right", np.arange(192).reshape(6, 32)[:, ::-1].sum(0)),
        wrong("roles_last_stage_not_awaited", race("role copy", "role read", variable="tiles")),
        right("phase_awaited", np.arange(256).reshape(2, 128)[:, :63:-1].sum(0)),
        right("phase_of_one_copy", np.arange(256).reshape(2, 128)[:, :63:-1].sum(0)),
        right("phase_by_parity", np.arange(256).reshape(2, 128)[:, :63:-1].sum(0)),
        wrong(
            "phase_only_arrived",
            finding("async_race", "phase copy", "phase read", variable="tile"),
            finding("async_race", "phase copy", variable="tile"),
        ),
        wrong("phase_not_awaited_by_one", race("phase copy", "phase read", variable="tile")),
        right("bytes_from_odd_address", [7, *np.arange(16, dtype="<f4").view(np.uint8)[3:54], *[7] * 12]),
        right("copy_to_global", t64[::-1] + 1),
        wrong("copy_to_global_not_awaited", finding("async_race", "store copy", "after store")),
    ],
    "hopper_barriers.cu": [
        right("mbarrier_hands_over", after32),
        wrong("mbarrier_not_waited_for", race("fill row", "read row", variable="row")),
        wrong("mbarrier_parity_off_by_one", race("fill row", "read row", variable="row")),
        wrong("mbarrier_arrival_missing", error="misses 1 of 33 arrival(s)", hangs=True),
        wrong("mbarrier_arrival_too_many", race("fill row", "read row", variable="row")),
        wrong("mbarrier_one_lane_for_all", race("fill row", "read row", variable="row")),
        right("mbarrier_polled", after32),
        right("mbarrier_drop", after32),
        right("rounds_full_and_empty", _ROUNDS),
        wrong("rounds_without_empty", error="is the parity one off?", hangs=True),
        wrong("rounds_parity_never_flips", error="is the parity one off?", hangs=True),
        wrong("rounds_empty_parity_wrong", error="is the parity one off?", hangs=True),
        wrong("rounds_last_arrival_missing", error="misses 32 of 32 arrival(s)", hangs=True),
        wrong("mbarrier_never_initialized", error="there is no mbarrier", hangs=True),
        wrong("mbarrier_overwritten", error="has been overwritten", hangs=True),
        wrong("mbarrier_copied", error="this is a copy of the mbarrier"),
        right("mbarrier_initialized_twice", np.ones(32)),
        wrong("mbarrier_used_after_inval", error="has been overwritten or invalidated", hangs=True),
        right("named_barrier_arrive_and_sync", _OTHER_WARP),
        right("named_barrier_all_sync", _OTHER_WARP),
        wrong("named_barrier_missing", race("fill half", "read half", variable="row")),
        wrong("named_barrier_counts_differ", error="barrier 1 is for 64 threads here, and for 128", hangs=True),
        wrong("named_barrier_warp_missing", error="wait in barrier.sync", error_lines=("half waits",), hangs=True),
        wrong("named_barrier_other_number", error="wait in barrier.sync", error_lines=("other number",), hangs=True),
    ],
    "hopper_copies.cu": [
        right("bulk_row", t64[::-1]),
        wrong(
            "bulk_not_waited_for",
            _early("copy in", "read copy", "row"),
            consequences="race copy_at_end transaction_count",
        ),
        wrong(
            "bulk_expects_less", _early("second copy", "read copy", "row"), consequences="transaction_count copy_at_end"
        ),
        wrong("bulk_expects_more", error="waits for 256 more byte(s)", error_lines=("wait for copy",), hangs=True),
        wrong(
            "bulk_expects_nothing", _early("copy in", "read copy", "row"), consequences="transaction_count copy_at_end"
        ),
        wrong("bulk_without_init_fence", finding("mbarrier_fence", "copy in")),
        wrong("bulk_odd_size", error="the size must be a multiple of 16"),
        wrong("bulk_odd_address", error="its destination is 4 byte(s) past a multiple of 16"),
        right("bulk_two_copies", t64[::-1]),
        right("bulk_one_thread_waits", t64[::-1]),
        wrong(
            "bulk_block_leaves_early",
            finding("copy_at_end", "copy in", variable="row"),
            consequences="transaction_count",
        ),
        wrong("bulk_past_the_end", finding("out_of_bounds", "copy in")),
        right("ring_right", _RING),
        right("ring_one_lane_gives_back", _RING),
        wrong("ring_refilled_unasked", error="misses only 0", consequences="race copy_not_awaited", hangs=True),
        wrong("ring_given_back_too_early", race("copy into slot", "use late", variable="stages")),
        wrong(
            "ring_parity_stuck",
            _early("copy into slot", "use in time", "stages"),
            error="is the parity one off?",
            consequences="race",
            hangs=True,
        ),
        right("store_right", t32),
        right("store_adds", 2 * t32),
        wrong("store_without_proxy_fence", finding("proxy_fence", "write row", "store row", variable="row")),
        wrong("store_without_barrier", race("write row", "store row", variable="row")),
        wrong("store_without_wait", finding("copy_at_end", "store row", variable="row")),
        wrong("store_not_committed", finding("copy_at_end", "store row", variable="row")),
        wrong(
            "store_reused_too_early",
            finding("overwritten_operand", "store row", "write again", variable="row"),
            consequences="race",
        ),
        right("store_reused_after_wait", t32),
        right("box_inside", _BOX),
        right("box_over_the_edge", _BOX_OVER),
        right("box_before_the_edge", _BOX_BEFORE),
        wrong(
            "box_not_waited_for",
            _early("load box", "read box", "box"),
            consequences="race copy_at_end transaction_count",
        ),
        wrong("box_without_encoding", error="this is no tensor map", error_lines=("load box",)),
        wrong(
            "box_counts_what_is_inside",
            error="has received 96 byte(s) that were not expected",
            error_lines=("wait for box",),
            hangs=True,
        ),
        right("box_stored", _STORED.ravel()),
        right("box_added", _ADDED.ravel()),
        wrong("box_stored_without_proxy_fence", finding("proxy_fence", "write box", "store box", variable="box")),
    ],
    "hopper_products.cu": [
        right("wgmma_right", _PRODUCT),
        right("wgmma_a_in_registers", _PRODUCT),
        right("wgmma_b_mn_major", _PRODUCT),
        wrong(
            "wgmma_without_proxy_fence",
            finding("proxy_fence", "fill a", "product", variable="a"),
            finding("proxy_fence", "fill b", "product", variable="b"),
        ),
        right("wgmma_proxy_fence_by_reader", _PRODUCT),
        wrong(
            "wgmma_without_barrier",
            race("fill a", "product", variable="a"),
            race("fill b", "product", variable="b"),
            consequences="overwritten_operand proxy_fence",
        ),
        wrong("wgmma_without_wait", finding("accumulator", "product", "read sums")),
        wrong("wgmma_touched_early", finding("accumulator", "product", "touch early")),
        wrong("wgmma_without_fence", error="no wgmma.fence comes before it"),
        wrong("wgmma_changed_without_fence", finding("registers_fence", "product of changed registers")),
        right("wgmma_changed_with_fence", _PRODUCT + 1 + _PRODUCT_16),
        wrong(
            "wgmma_operand_overwritten",
            finding("overwritten_operand", "product", "overwrite a", variable="a"),
            consequences="race",
        ),
        wrong("wgmma_waits_for_too_few", finding("accumulator", "product", "read sums")),
        right("wgmma_waits_for_enough", _PRODUCT),
        wrong("wgmma_three_warps", error="all four must come to each", hangs=True),
        wrong("wgmma_lanes_differ", error="lanes 0 and 1 of the warp name different matrices"),
        right("tma_wgmma_right", _PRODUCT_128),
        wrong(
            "tma_wgmma_not_waited_for",
            _early("load a", "product of loaded", "a"),
            _early("load b", "product of loaded", "b"),
            error="misses only 0",
            consequences="overwritten_operand",
            hangs=True,
        ),
        wrong("tma_wgmma_wrong_swizzle", finding("wrong_layout", "load b", "product of loaded", variable="b")),
        wrong("tma_wgmma_wrong_stride", finding("wrong_layout", "load b", "product of loaded", variable="b")),
        wrong(
            "tma_wgmma_refilled_early",
            finding("overwritten_operand", "load a", "product of loaded", variable="a"),
            finding("overwritten_operand", "load b", "product of loaded", variable="b"),
            consequences="copy_not_awaited",
        ),
    ],
    "hopper_clusters.cu": [
        right("cluster_exchange", _EXCHANGED),
        right("cluster_arrive_wait", _EXCHANGED),
        wrong(
            "cluster_block_gone", error="has ended, and its shared memory with it", error_lines=("the other block's",)
        ),
        right("multicast_right", np.tile(t32, 4)),
        wrong(
            "multicast_expects_too_much",
            error="waits for 128 more byte(s)",
            error_lines=("wait for multicast",),
            hangs=True,
        ),
        right("posted_right", 2 * t32),
        wrong("posted_expects_too_much", error="waits for 4 more byte(s)", error_lines=("wait for posts",), hangs=True),
        right("remote_arrivals", np.ones(32)),
        wrong(
            "remote_arrival_missing",
            error="misses 1 of 32 arrival(s)",
            error_lines=("wait for the other block",),
            hangs=True,
        ),
    ],
}
# The reason for a case's verdict, for the comparison with compute-sanitizer
_REMARKS = {
    "harmless on every GPU, yet a data race in C++; racecheck counts equal values as information only": (
        "same_value_plain"
    ),
    "racecheck reported nothing in this run": "scan_in_place_one_barrier byte_of_a_word",
    "bytes are watched in pairs: halves are the smallest elements that threads write side by side in practice": (
        "bytes_with_two_writers one_byte_of_two_written"
    ),
    "one lane's write and another lane's read of the same step have no __syncwarp() between them": (
        "warp_tree_one_syncwarp"
    ),
    "a __syncwarp() orders only the lanes that its mask names": "half_masks_across_halves",
    "CUDA promises no memory ordering for shuffles": "shuffle_without_syncwarp",
    "racecheck watches shared memory only": (
        "global_without_barrier blocks_in_one_kernel blocks_overlap stencil_in_place counter_plain "
        "counter_atomic_and_plain_read no_lock"
    ),
    "a plain write and an atomic operation; racecheck reported nothing in this run": "histogram_no_barrier",
    "a mistake in the memory model; on a GPU it depends on caches and timing": (
        "last_block_without_fence last_block_narrow_fence last_block_fence_too_early last_thread_without_fences "
        "lock_without_fences message_without_fences ptx_message_relaxed block_lock_without_fences"
    ),
    "fences and a flag order the accesses; racecheck knows barriers": "message_with_fences",
    "the compiler's own check of array indices": "static_shared_index_past_end",
    "to memcheck the static shared memory of a kernel is one piece": "past_first_of_two_arrays",
    "the address belongs to the array; only a language with checked rows could tell": "past_row_inside_array",
    "an access of host code, which compute-sanitizer does not watch": (
        "host_reads_device_memory host_writes_device_memory"
    ),
    "some systems let a GPU read any memory of the process": "kernel_reads_host_memory",
    "initcheck reported nothing for shared memory": (
        "tile_tail_uninitialized accumulator_uninitialized half_a_word_written table_in_one_block"
    ),
    "the padding is copied, and nobody looks at it": "padding_in_struct",
    "no kernel reads the elements; the tests of the tasks find them by poisoned outputs": "copied_back_unwritten",
    "recent GPUs do not wait for threads that have returned; CUDA does not promise that": (
        "barrier_after_return barrier_in_uneven_loop"
    ),
    "on the GPU the kernel does not end": "shuffle_with_absent_lanes",
    "synccheck does not look for lanes that are named and do not come": "syncwarp_with_absent_lanes",
    "fences and an atomic lock order the accesses; racecheck knows barriers": "block_lock_with_fences",
    "the atomicCAS fails on a stale value, so the result is right; to the C++ memory model it is a race": (
        "cas_loop_plain_read"
    ),
    "the result is right; to the C++ memory model it is a race": "lanes_write_equal_values",
    "today's GPUs deliver zeros; CUDA calls the value undefined": "shuffle_after_return",
    "synccheck does not ask whether the source is named in the mask": "shuffle_from_unnamed_lane",
    "written for GPUs before Volta, whose lanes ran in step": "volatile_tail",
    "a wait covers committed groups only": "copy_without_commit",
    "racecheck does not follow mbarriers of inline PTX": (
        "mbarrier_not_waited_for mbarrier_parity_off_by_one mbarrier_arrival_missing mbarrier_arrival_too_many "
        "mbarrier_one_lane_for_all rounds_without_empty"
    ),
    "works on today's GPUs": "mbarrier_copied",
    "the memory model asks for it; a GPU may give the right numbers without": (
        "bulk_without_init_fence bulk_block_leaves_early store_without_proxy_fence store_without_wait "
        "store_not_committed box_stored_without_proxy_fence wgmma_without_proxy_fence wgmma_changed_without_fence"
    ),
    "ptxas puts the missing wait or fence in, and says so (C7517, C7519)": (
        "wgmma_without_wait wgmma_touched_early wgmma_without_fence wgmma_waits_for_too_few"
    ),
}
_WHY = {name: remark for remark, names in _REMARKS.items() for name in names.split()}
CASES = [
    Case(file=file, name=name, remark=_WHY.get(name, ""), **rest)
    for file, rows in _TABLE.items()
    for name, rest in rows
]
