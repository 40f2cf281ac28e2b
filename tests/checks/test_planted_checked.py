"""Races, bad addresses and unwritten memory planted in the real kernels: the checked build finds each, with its lines.

Which element is told, and which of two racing accesses came first, depends on the order of the threads; the kind, the
variable and the two source lines do not.
"""

import re
from dataclasses import replace
from itertools import permutations

import pytest
from planted import planted_operators

import task2.test
import task4.test
import task6.test
from common import build
from common.checked_run import CHECK, CheckedLibrary
from common.checking import check
from common.findings import Finding, read_findings
from common.source_lines import SourceLines

CASES = {
    "task2": {case.name: case for case in task2.test.cases()},
    "task4": {case.name: case for case in task4.test.cases() if case.part == "full"},
    "task6": {case.name: case for case in task6.test.cases()},
}

# task, name, replacements, case, kind, variable, the line, or the two lines that race
PLANTED = [
    (
        "task2",
        "no_barrier_before_the_tree",
        [("    __syncthreads();\n    for (unsigned active", "    for (unsigned active", 1)],
        "113 x 203",
        ("race", "partial"),
        ("combine(partial[threadIdx.x], partial[threadIdx.x + active])", "partial[threadIdx.x] = row_"),
    ),
    (
        "task2",
        "no_barrier_in_the_tree",
        [("+ active]);\n        }\n        __syncthreads();", "+ active]);\n        }", 1)],
        "113 x 203",
        ("race", "partial"),
        ("combine(partial[threadIdx.x], partial[threadIdx.x + active])", "partial[threadIdx.x] = combine"),
    ),
    (
        "task2",
        "no_barrier_between_reductions",
        [("row_max = partial[0];\n    __syncthreads();", "row_max = partial[0];", 1)],
        "113 x 203",
        ("race", "partial"),
        ("partial[threadIdx.x] = row_sum", "row_max = partial[0]"),
    ),
    (
        "task2",
        "no_barrier_after_load",
        [
            (
                "load_tile(b_tile, b_matrix, K, N, k0, first_col);\n            __syncthreads();",
                "load_tile(b_tile, b_matrix, K, N, k0, first_col);",
                1,
            )
        ],
        "A B, 64 x 64 x 64",
        ("race", "[ab]_tile"),
        ("a_tile[threadIdx.y + i * TILE_ROWS][k] * b|b_tile[k][threadIdx.x]", "tile[r][threadIdx.x] = inside"),
    ),
    (
        "task2",
        "no_barrier_after_multiply",
        [
            (
                "multiply_tiles(a_tile, b_tile, sums);\n            __syncthreads();",
                "multiply_tiles(a_tile, b_tile, sums);",
                2,
            )
        ],
        "A B^T, 64 x 64 x 64",
        ("race", "[ab]_tile"),
        (
            "tile[r][threadIdx.x] = inside|tile[threadIdx.x][r] = inside",
            "a_tile[threadIdx.y + i * TILE_ROWS][k] * b|b_tile[k][threadIdx.x]",
        ),
    ),
    (
        "task2",
        "row_too_long",
        [("i < cols; i += ROW_THREADS) row_max", "i <= cols; i += ROW_THREADS) row_max", 1)],
        "113 x 203",
        ("out_of_bounds", "x"),
        ("row_max = fmaxf(row_max, row_x[i])",),
    ),
    (
        "task2",
        "edge_not_guarded",
        [("tile[r][threadIdx.x] = inside ? matrix", "tile[r][threadIdx.x] = true ? matrix", 1)],
        "A B, batch 3, 37 x 50 x 41",
        ("out_of_bounds", "[ab]"),
        ("tile[r][threadIdx.x] = true ? matrix",),
    ),
    (
        "task2",
        "sum_into_fresh_output",
        [
            (
                "if (row < M && col < N) c[static_cast<size_t>(row) * N + col] = sums[i]",
                "if (row < M && col < N) c[static_cast<size_t>(row) * N + col] += sums[i]",
                1,
            )
        ],
        "A B, 64 x 64 x 64",
        ("uninitialized", "c"),
        ("+= sums[i]",),
    ),
    (
        "task2",
        "partial_not_filled",
        [("    partial[threadIdx.x] = row_max;", "    if (threadIdx.x < cols) partial[threadIdx.x] = row_max;", 1)],
        "113 x 203",
        ("uninitialized", "partial"),
        ("combine(partial[threadIdx.x], partial[threadIdx.x + active])",),
    ),
    (
        "task4",
        "no_barrier_after_load",
        [("keys_left, head_dim, 1.0f);\n        __syncthreads();", "keys_left, head_dim, 1.0f);", 1)],
        "113 queries, 203 keys",
        ("race", "shared"),
        ("reinterpret_cast<const float4\\*>\\(&[qk]_tile|column\\[", "tile\\["),
    ),
    (
        "task4",
        "no_barrier_at_the_end",
        [
            (
                "accumulate_output<T, B_c, D>(state, p_tile, v_tile, first_row);\n        __syncthreads();",
                "accumulate_output<T, B_c, D>(state, p_tile, v_tile, first_row);",
                1,
            )
        ],
        "113 queries, 203 keys",
        ("race", "shared"),
        ("tile\\[", "reinterpret_cast<const float4\\*>\\(&[qk]_tile|column\\["),
    ),
    (
        "task4",
        "no_syncwarp_after_p",
        [("        __syncwarp();\n", "", 1)],
        "113 queries, 203 keys",
        ("race", "shared"),
        ("reinterpret_cast<const float4\\*>\\(&p_tile", "p_tile\\[\\(first_row \\+ r\\) \\* B_c \\+ lane"),
    ),
    (
        "task4",
        "rows_not_guarded",
        [("if (row < rows_left && col < head_dim) out", "if (col < head_dim) out", 1)],
        "113 queries, 203 keys",
        ("out_of_bounds", "out"),
        ("out\\[row \\* head_dim \\+ col\\]",),
    ),
    (
        "task6",
        "no_barrier_before_merge",
        [("    __syncthreads();\n    merge_warps", "    merge_warps", 1)],
        "40 keys",
        ("race", "[mlo]_shared"),
        ("m\\[w\\]|l\\[w\\]|o\\[w \\* D", "[mlo]_shared\\["),
    ),
    (
        "task6",
        "position_not_checked",
        [("position < 0 || position > max_seq_len - new_tokens", "position < 0", 1)],
        "positions outside are skipped",
        ("out_of_bounds", "k_cache"),
        ("k_cache\\[slot",),
    ),
    (
        "task6",
        "length_not_limited",
        [("if (length > max_seq_len) length = max_seq_len;", "", 1)],
        "a length beyond the cache",
        ("out_of_bounds", "[kv]_cache"),
        ("[kv]_rows\\[\\(first_key \\+ i\\)",),
    ),
]


def findings_of(ops: build.Operators, case) -> list[Finding]:
    """What the checked build finds in one draw of the case."""
    library = CheckedLibrary(ops.library)
    library.begin(CHECK)
    try:
        check(replace(case, draws=1), ops)
        return read_findings(library.report(), SourceLines(ops.library))
    finally:
        library.begin(0)


def says(text: str, pattern: str) -> bool:
    """Whether the line holds the pattern, a regular expression or plain code."""
    return any(part in text for part in pattern.split("|")) or bool(_regular(pattern, text))


def _regular(pattern: str, text: str) -> re.Match | None:
    try:
        return re.search(pattern, text)
    except re.error:
        return None


@pytest.mark.parametrize(
    ("task", "name", "replacements", "case", "what", "lines"), PLANTED, ids=[f"{one[0]}-{one[1]}" for one in PLANTED]
)
def test_a_planted_mistake_is_found_with_its_lines(task, name, replacements, case, what, lines):
    ops = planted_operators(task, f"checked_{name}", tuple(replacements), "simulator", checked=True)
    findings = findings_of(ops, CASES[task][case])
    told = [(one.kind, one.variable, [access.place.text for access in one.accesses]) for one in findings]
    kind, variable = what
    assert findings and {one.kind for one in findings} == {kind}, told
    assert any(
        re.fullmatch(variable, one.variable)
        and any(
            all(says(access.place.text, line) for access, line in zip(one.accesses, order, strict=True))
            for order in permutations(lines)
        )
        for one in findings
    ), told


@pytest.mark.parametrize("task", ["task2", "task4", "task6"])
def test_the_solution_has_no_findings(task):
    ops = build.load(task, solution=True, backend="simulator", checked=True)
    for name in {one[3] for one in PLANTED if one[0] == task}:
        assert findings_of(ops, CASES[task][name]) == [], name
