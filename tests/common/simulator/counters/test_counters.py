"""The checked build's counts of transactions, bank conflicts and traffic, against numbers counted by hand."""

from itertools import pairwise
from pathlib import Path

import pytest
from checked_library import CLANG, PROFILE, WHY_NOT_CLANG, CheckedLibrary, totals
from expected_counters import EXPECTED
from simulator_library import compile_library

from common.console.paths import build_root

pytestmark = pytest.mark.skipif(CLANG, reason=WHY_NOT_CLANG)
KERNELS = Path(__file__).parent / "kernels.cu"


@pytest.fixture(scope="module")
def library() -> CheckedLibrary:
    return CheckedLibrary(compile_library([KERNELS], build_root() / "tests" / "counters", checked=True))


def profile(library: CheckedLibrary, name: str) -> dict:
    error, report = library.run(name, PROFILE)
    assert error is None
    (kernel,) = report["kernels"]
    return kernel


@pytest.mark.parametrize("name", EXPECTED)
def test_requests_and_transactions(library, name):
    assert totals(profile(library, name)) == EXPECTED[name]


def test_ideal_transactions(library):
    ideal = {
        name: {f"{s['space']} {s['action']}": s["ideal"] for s in profile(library, name)["sites"]} for name in EXPECTED
    }
    assert ideal["load_strided_32"]["global read"] == 4
    assert ideal["load_offset_1"]["global read"] == 4
    assert ideal["load_broadcast"]["global read"] == 1
    assert ideal["shared_float_32"]["shared read"] == 1
    assert ideal["shared_float4_1"]["shared read"] == 4
    assert ideal["transposed_32"]["shared read"] == 128


def test_compulsory_traffic_counts_every_sector_once(library):
    kernel = profile(library, "transposed_32")
    assert kernel["sectors_read"] == kernel["sectors_written"] == 64 * 64 * 4 // 32
    assert profile(library, "load_strided_32")["sectors_read"] == 32


def test_launch_shape_and_barriers(library):
    kernel = profile(library, "transposed_33")
    assert kernel["grid"] == [2, 2, 1] and kernel["block"] == [32, 8, 1]
    assert kernel["launches"] == 1 and kernel["barriers"] == 4
    assert kernel["static_shared"] == 32 * 33 * 4 and kernel["dynamic_shared"] == 0


def test_the_worst_request_is_kept(library):
    (read,) = [
        s for s in profile(library, "shared_float_2")["sites"] if (s["space"], s["action"]) == ("shared", "read")
    ]
    assert read["worst"]["transactions"] == 2
    offsets = read["worst"]["offsets"]
    assert [b - a for a, b in pairwise(offsets)] == [8] * 31


def test_a_site_is_named_by_its_array_unless_it_goes_to_two(library):
    assert {s["array"] for s in profile(library, "transposed_32")["sites"] if s["space"] == "shared"} == {"tile"}
    sites = profile(library, "load_two_arrays")["sites"]
    (pointers,) = [s["array"] for s in sites if s["action"] == "read" and s["bytes"] == 8]
    (values,) = [s["array"] for s in sites if s["action"] == "read" and s["bytes"] == 4]
    line = 1 + KERNELS.read_text()[: KERNELS.read_text().index("require(cudaMalloc(&data")].count("\n")
    assert pointers == f"line {line}'s memory" and values == ""
