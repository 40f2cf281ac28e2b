"""The expected cost of the kernels in kernels.cu, counted by hand.

EXPECTED: name -> {what: (requests, transactions)}; `what` is "global read" or "global write" (sectors of 32 bytes),
"shared read" or "shared write" (passes over the 32 banks). A request is one instruction of one warp.

8-byte accesses are served in two groups of 16 lanes, 16-byte accesses in four groups of 8: at least 2 and 4
passes. A pass serves each bank once; lanes that access the same word share it. Two groups are merged, halving the
passes, when every lane has the same address as its neighbor 1 or 2 lanes away: alike_float2_2_32 (lane / 2) and _1_2
(lane % 2), but not _1_16 (lane % 16). NVIDIA does not document this rule; ncu showed it on an H200 (compare_ncu.py).
"""

# Filling 2048 words of shared memory takes a warp 64 rounds with 4-byte elements, 32 with 8, 16 with 16; the half
# kernels fill half of it in 64.
FILL = {
    "float": {"global read": (64, 256), "shared write": (64, 64)},
    "half": {"global read": (64, 128), "shared write": (64, 64)},
    "float2": {"global read": (32, 256), "shared write": (32, 64)},
    "float4": {"global read": (16, 256), "shared write": (16, 64)},
}
STORE = {"float": (1, 4), "half": (1, 2), "float2": (1, 8), "float4": (1, 16)}


def _global(read: tuple[int, int] | None, write: tuple[int, int]) -> dict[str, tuple[int, int]]:
    return ({"global read": read} if read else {}) | {"global write": write}


def _read(element: str, passes: int) -> dict[str, tuple[int, int]]:
    return FILL[element] | {"shared read": (1, passes), "global write": STORE[element]}


def _write(element: str, passes: int) -> dict[str, tuple[int, int]]:
    both = {"shared write": (1, passes), "shared read": (1, passes)}
    return both | {"global read": STORE[element], "global write": STORE[element]}


def _transposed(passes: int) -> dict[str, tuple[int, int]]:
    # 4 blocks of 8 warps, 4 rounds each
    rows = {"global read": (128, 512), "shared write": (128, 128), "global write": (128, 512)}
    return rows | {"shared read": (128, 128 * passes)}


EXPECTED = {
    "load_strided_1": _global((1, 4), (1, 4)),
    "load_strided_2": _global((1, 8), (1, 4)),
    "load_strided_32": _global((1, 32), (1, 4)),
    "load_broadcast": _global((1, 1), (1, 4)),
    "load_offset_1": _global((1, 5), (1, 4)),
    "load_offset_8": _global((1, 4), (1, 4)),
    "load_float4": _global((1, 16), (1, 16)),
    "load_shuffled_7": _global((1, 4), (1, 4)),
    "load_half_1": _global((1, 2), (1, 2)),
    "load_20_lanes": _global((1, 3), (1, 3)),
    "load_4_warps": _global((12, 96), (12, 48)),
    "store_strided_1": _global(None, (1, 4)),
    "store_strided_8": _global(None, (1, 32)),
    "shared_float_1": _read("float", 1),
    "shared_float_2": _read("float", 2),
    "shared_float_32": _read("float", 32),
    "shared_float_33": _read("float", 1),
    "shared_float_broadcast": _read("float", 1),
    "shared_half_1": _read("half", 1),
    "shared_half_64": _read("half", 32),
    "shared_float2_1": _read("float2", 2),
    "shared_float2_16": _read("float2", 32),
    "shared_float2_broadcast": _read("float2", 1),
    "shared_float4_1": _read("float4", 4),
    "shared_float4_2": _read("float4", 8),
    "shared_float4_9": _read("float4", 4),
    "shared_float4_broadcast": _read("float4", 2),
    "alike_float2_2_32": _read("float2", 1),
    "alike_float2_4_32": _read("float2", 1),
    "alike_float2_8_32": _read("float2", 1),
    "alike_float2_16_32": _read("float2", 1),
    "alike_float2_1_16": _read("float2", 2),
    "alike_float2_1_8": _read("float2", 2),
    "alike_float2_1_4": _read("float2", 2),
    "alike_float2_1_2": _read("float2", 1),
    "alike_float2_2_8": _read("float2", 1),
    "alike_float2_4_4": _read("float2", 1),
    "alike_float4_2_32": _read("float4", 2),
    "alike_float4_4_32": _read("float4", 2),
    "alike_float4_8_32": _read("float4", 2),
    "alike_float4_16_32": _read("float4", 2),
    "alike_float4_1_16": _read("float4", 4),
    "alike_float4_1_8": _read("float4", 4),
    "alike_float4_1_4": _read("float4", 4),
    "alike_float4_1_2": _read("float4", 2),
    "alike_float4_2_8": _read("float4", 2),
    "alike_float4_4_4": _read("float4", 2),
    "shared_write_2": _write("float", 2),
    "shared_write_float4_2": _write("float4", 8),
    "chunks_plain": FILL["float4"]
    | {"global read": (8, 128), "shared write": (8, 32)}
    | {"shared read": (1, 32), "global write": (1, 16)},
    "chunks_swizzled": FILL["float4"]
    | {"global read": (8, 128), "shared write": (8, 32)}
    | {"shared read": (1, 4), "global write": (1, 16)},
    "transposed_32": _transposed(32),
    "transposed_33": _transposed(1),
}
