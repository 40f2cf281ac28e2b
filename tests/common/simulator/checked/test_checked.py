"""The checked simulator finds what is wrong with a case, names both lines, and says nothing of what is right."""

import re

import pytest
from checked_cases import CASES, KERNELS, SOURCES
from checked_kernels import CheckedLibrary, build, objections

from common.console.paths import build_root


@pytest.fixture(scope="module")
def library() -> CheckedLibrary:
    return CheckedLibrary(build(build_root() / "tests" / "checked"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(library, case):
    said = objections(case, library.run(case))
    assert not said, "\n".join(said)


def by_name(name: str):
    (case,) = [case for case in CASES if case.name == name]
    return case


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
    library.run(by_name("read_past_end"))  # leaves its kernel halfway
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
