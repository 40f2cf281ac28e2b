"""CUDA C++ as a tree: code in the style of the course is parsed completely."""

from pathlib import Path

import pytest

from common.source.reader import Source, arrays_in, line_of, names_in, parsed, read

ROOT = Path(__file__).resolve().parents[3]
# student files before and after filling, and right solutions that differ
FILES = [
    *ROOT.glob("task?/*.cu*"),
    *ROOT.glob("task?/solution/*.cu*"),
    *ROOT.glob("task?/given/*.cuh"),
    *ROOT.glob("tests/variants/*/*.cu"),
]
KERNEL = """\
template <int D>
__global__ void __launch_bounds__(256) kernel(const float* __restrict__ x, float (&s)[8], int n) {
    extern __shared__ __align__(16) float shared[];  // "a comment" { not code
    const auto [head, row] = rows<D>(n);
    const float *first = x + head * n, second{2.0f};
    if (row >= n) return;
    FOR_EACH(i, n) {
        state.m[i] = first[i] + table[i].value;
    }
    for (int k = 0; k < n; ++k)
        s[k] += inside ? first[k] : 0.0f;
}
void launch() { kernel<64><<<1, 32, 0, stream>>>(x, s, "a, b", n); }
"""


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_what_is_written_in_the_course_is_read_without_an_error(file: Path) -> None:
    assert not parsed(file.read_text()).has_error


def test_functions_changes_and_calls() -> None:
    source = Source("kernel.cu", KERNEL)
    kernel, launch = source.functions
    assert not parsed(KERNEL).has_error and kernel.is_kernel and not launch.is_kernel
    assert [(one.name, one.is_seen_outside) for one in kernel.parameters] == [("x", True), ("s", True), ("n", False)]
    told = [(one.name, one.member, one.line, one.keeps, bool(one.loop)) for one in kernel.changes]
    assert told == [
        ("head", "", 4, False, False),
        ("row", "", 4, False, False),
        ("first", "", 5, False, False),
        ("second", "", 5, False, False),
        ("state", "m", 8, False, False),
        ("k", "", 10, False, True),
        ("k", "", 10, True, True),
        ("s", "", 11, True, False),
    ]
    assert [(one.name, one.line, one.is_launch, len(one.arguments)) for one in launch.calls] == [
        ("kernel", 13, True, 4)
    ]
    assert kernel.set_at("k", 11).right.text == b"0" and kernel.set_at("k", 12) is None  # after the loop


def test_what_is_around_a_line() -> None:
    source = Source("kernel.cu", KERNEL)
    assert [line_of(one) for one in source.heads(8)] == [7, 6] and [line_of(one) for one in source.heads(11)] == [10, 6]
    assert source.statement_at(11).text == b"s[k] += inside ? first[k] : 0.0f;" and source.statement_at(1) is None


def test_names_and_arrays_of_a_statement() -> None:
    statement = Source("kernel.cu", KERNEL).statement_at(8)
    assert names_in(statement) == ["state.m", "i", "first", "table.value"] and arrays_in(statement) == [
        "first",
        "table",
    ]
    assert names_in(statement, with_indices=False) == ["state.m", "first", "table.value"]


def test_a_file_that_cannot_be_read() -> None:
    assert read("nowhere.cu") is None
