"""The checked simulator finds each case's mistake, names both lines, and reports nothing for right code."""

import ctypes
import functools
import re

import numpy as np
import pytest
from checked_cases import CASES, KERNELS, SOURCES, Case
from checked_kernels import CaseLibrary, Outcome, objections
from simulator_library import compile_library

from common.console.paths import build_root

LATER = ("warp_order", "idioms", "host_memory", "hopper", "memcpy")  # prefixes of these files' names


class Library:
    """run(case), in a library built from the case's file: slow cases are compiled only when they run."""

    @functools.cache  # noqa: B019 - one per file
    def of(self, file: str) -> CaseLibrary:
        sources = [source for source in SOURCES if source.name == file]
        return CaseLibrary(compile_library(sources, build_root() / "tests" / "checked" / file, checked=True))

    def run(self, case: Case) -> Outcome:
        return self.of(case.file).outcome(case)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library()


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=pytest.mark.slow if case.file.startswith(LATER) else [], id=case.name) for case in CASES],
)
def test_verdict(library, case):
    said = objections(case, library.run(case))
    assert not said, "\n".join(said)


def by_name(name: str) -> Case:
    (case,) = [case for case in CASES if case.name == name]
    return case


@pytest.mark.slow
def test_a_missing_wait_for_memcpy_async_is_nan_without_the_checker_too():
    source = KERNELS / "memcpy_async.cu"
    functions = ctypes.CDLL(str(compile_library([source], build_root() / "tests" / "checked" / "unchecked")))
    for case in (case for case in CASES if case.file == source.name):
        result = np.zeros(256, np.float32)
        assert not getattr(functions, case.name)(ctypes.c_void_p(result.ctypes.data))
        assert np.isnan(result).any() if case.is_wrong else case.is_result(result), case.name


def test_the_table_is_complete():
    written = [
        name for source in SOURCES for name in re.findall(r"^(?:CASE|RUN)\((\w+)", source.read_text(), re.MULTILINE)
    ]
    assert sorted(written) == sorted(case.name for case in CASES)
    assert sum(case.is_wrong for case in CASES) > 50 and sum(not case.is_wrong for case in CASES) > 50


def test_a_case_says_the_same_again(library):
    case = by_name("tiles_one_barrier")
    first, second = library.run(case).found, library.run(case).found
    assert first == second and len(first) > 0
    library.run(by_name("read_past_end"))  # leaves its kernel half finished
    assert library.run(case).found == first
    assert library.run(by_name("tiles_two_barriers")).found == []


@pytest.mark.parametrize(
    "name, actions",
    [
        ("shift_without_barrier", {"read", "write"}),
        ("two_writers", {"write"}),
        ("counter_atomic_and_plain_read", {"atomic", "read"}),
        ("histogram_no_barrier", {"atomic", "write"}),
        ("copy_without_wait", {"async copy", "read"}),
        ("overwritten_before_wait", {"async copy", "write"}),
        ("atomic_past_end", {"atomic"}),
    ],
)
def test_actions(library, name, actions):
    found = [one for one in library.run(by_name(name)).found if one.kind != "uninitialized"]
    assert found
    assert all(set(one.actions) == actions for one in found)


@pytest.mark.parametrize("name", ["shift_without_barrier", "blocks_overlap", "copy_without_wait", "read_past_end"])
def test_kernel_and_launch(library, name):
    (found,) = library.run(by_name(name)).found
    file, line = found.launch
    assert f"{found.kernel}<<<" in (KERNELS / file).read_text().splitlines()[line - 1]
