"""Races, bad addresses and unwritten memory planted in the real kernels: the checked build finds each, with its lines.

The reported element, and which of two racing accesses came first, depend on the order of the threads; the kind, the
variable and the two source lines do not.
"""

import re
from itertools import permutations

import pytest
from checked_findings import findings_of
from kernel_mistakes import TASK2, TASK4, TASK6

import task2.cases
import task4.cases
import task6.cases

SOLUTIONS = {one.task: one for one in (TASK2, TASK4, TASK6)}
BUILT = {"task2": [], "task4": pytest.mark.slow, "task6": []}  # task 2 covers every kind of finding
CASES = {
    "task2": {case.name: case for case in task2.cases.cases()},
    "task4": {case.name: case for case in task4.cases.cases() if case.part == "full"},
    "task6": {case.name: case for case in task6.cases.cases()},
}

# task, mistake, case, kind and variable, the line, or the two racing lines
SOFTMAX, NN, NT = "113 x 203", "A B, 64 x 64 x 64", "A B^T, 64 x 64 x 64"
RAGGED, UPDATE = "113 queries, 203 keys", "positions outside are skipped"
COMBINED = r"combine\(partial\[threadIdx\.x\], partial\[threadIdx\.x \+ active\]\)"
MULTIPLIED = r"a_tile\[threadIdx\.y \+ i \* TILE_ROWS\]\[k\] \* b|b_tile\[k\]\[threadIdx\.x\]"
OF_K_OR_V, TILE = r"reinterpret_cast<const float4\*>\(&[qk]_tile|column\[", r"tile\[r\]\[threadIdx\.x\] = "
P_READ, P_WRITTEN = r"reinterpret_cast<const float4\*>\(&p_tile", r"p_tile\[\(first_row \+ r\) \* T::B_c \+ lane"
PARTIAL = r"partial\[threadIdx\.x\] = "
PLANTED = [
    ("task2", "no_barrier_before_the_tree", SOFTMAX, ("race", "partial"), (COMBINED, PARTIAL + "row_")),
    ("task2", "no_barrier_in_the_tree", SOFTMAX, ("race", "partial"), (COMBINED, PARTIAL + "combine")),
    ("task2", "no_barrier_between_reductions", SOFTMAX, ("race", "partial"),
     (PARTIAL + "row_sum", r"row_max = partial\[0\]")),
    ("task2", "no_barrier_after_load", NN, ("race", "[ab]_tile"), (MULTIPLIED, TILE)),
    ("task2", "no_barrier_after_multiply", NT, ("race", "[ab]_tile"),
     (TILE + r"|tile\[threadIdx\.x\]\[r\] = ", MULTIPLIED)),
    ("task2", "row_too_long", SOFTMAX, ("out_of_bounds", "x"), (r"row_max = fmaxf\(row_max, ",)),
    ("task2", "edge_not_guarded", "A B, batch 3, 37 x 50 x 41", ("out_of_bounds", "[ab]"), (TILE,)),
    ("task2", "sum_into_fresh_output", NN, ("uninitialized", "c"), (r"\+= sums\[i\]",)),
    ("task2", "host_reads_the_input", SOFTMAX, ("host_access", "x"), ("softmax_kernel<<<",)),
    ("task2", "partial_not_filled", SOFTMAX, ("uninitialized", "partial"), (COMBINED,)),
    ("task4", "no_barrier_after_load", RAGGED, ("race", "shared"), (OF_K_OR_V, r"tile\[")),
    ("task4", "no_barrier_at_the_end", RAGGED, ("race", "shared"), (r"tile\[", OF_K_OR_V)),
    ("task4", "no_syncwarp_after_P", RAGGED, ("race", "shared"), (P_READ, P_WRITTEN)),
    ("task4", "P_rows_of_the_first_warp", RAGGED, ("race", "shared"), (P_READ, P_WRITTEN)),
    ("task4", "rows_not_guarded", RAGGED, ("out_of_bounds", "out"), (r"out\[row \* head_dim \+ col\]",)),
    ("task4", "rows_of_D_floats", "head_dim 80", ("out_of_bounds", "query|key|value"), (r"tile\[row \* STRIDE",)),
    ("task4", "padding_not_written", "7 queries, 31 keys, head_dim 5", ("uninitialized", "shared"),
     (r"reinterpret_cast<const float4\*>|column\[",)),
    ("task6", "no_barrier_before_merge", "40 keys", ("race", "[mlo]_shared"), (r"m\[w\]|l\[w\]|o\[w \* D",
     r"[mlo]_shared\[")),
    ("task6", "position_not_checked", UPDATE, ("out_of_bounds", "k_cache"), (r"k_cache\[slot",)),
    ("task6", "length_not_limited", "a length beyond the cache", ("out_of_bounds", "[kv]_cache"), (r"[kv]_rows\[\(",)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "name", "case", "what", "lines"),
    [pytest.param(*one, marks=BUILT[one[0]], id=f"{one[0]}-{one[1]}") for one in PLANTED],
)
def test_a_planted_mistake_is_found_with_its_lines(task, name, case, what, lines):
    ops = SOLUTIONS[task].operators(name, "simulator", checked=True)
    findings = findings_of(ops, CASES[task][case])
    told = [(one.kind, one.variable, [access.place.text for access in one.accesses]) for one in findings]
    kind, variable = what
    assert findings and {one.kind for one in findings} == {kind}, told
    assert any(
        re.fullmatch(variable, one.variable)
        and any(
            all(re.search(line, access.place.text) for access, line in zip(one.accesses, order, strict=True))
            for order in permutations(lines)
        )
        for one in findings
    ), told


@pytest.mark.parametrize("task", [pytest.param(task, marks=marks) for task, marks in BUILT.items()])
def test_the_solution_has_no_findings(task):
    ops = SOLUTIONS[task].operators(None, "simulator", checked=True)
    for name in {one[2] for one in PLANTED if one[0] == task}:
        assert findings_of(ops, CASES[task][name]) == [], name
