"""The object cache: compiled once per content, and again if the cached object doesn't match what was compiled."""

from __future__ import annotations

import ctypes
import os
import shutil
from functools import partial
from pathlib import Path

import pytest

from common.compiling import objects
from common.compiling.objects import CompilerFailed, compile_object, compile_objects, link, local_file

# Compiles by writing the header followed by the source, and lists the header in the dependency file
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo "g++ 12" && exit 0
echo run >> {folder}/runs
[ -e {folder}/broken ] && echo "no such flag" >&2 && exit 1
for word; do
    [ "$before" = -o ] && out=$word; [ "$before" = -MF ] && deps=$word; [ "$before" = -c ] && source=$word
    before=$word
done
[ -n "$deps" ] && echo "x.o: $source {folder}/checkout/number.h" > "$deps"
echo "a warning in {folder}/checkout" >&2
if [ -n "$source" ]; then cat {folder}/checkout/number.h "$source" > "$out"; else echo library > "$out"; fi
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with a source and its header, its own cache, and a stub compiler."""
    (tmp_path / "g++").write_text(COMPILER.format(folder=tmp_path))
    (tmp_path / "g++").chmod(0o755)
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "number.h").write_text("1\n")
    (folder / "x.cpp").write_text(f'#line 1 "{folder}/x.cu"\n')
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    monkeypatch.setenv("ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(folder / "build"))
    monkeypatch.setattr(objects, "ROOT", folder)
    objects._places.cache_clear()
    yield folder
    objects._places.cache_clear()


def runs(checkout: Path) -> int:
    """How often the compiler ran."""
    file = checkout.parent / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def compiled(checkout: Path, *flags: str) -> str:
    return compile_object(checkout / "x.cpp", flags).path.read_text()


def test_nothing_is_compiled_twice(checkout: Path) -> None:
    first = compile_object(checkout / "x.cpp", ["-O2"])
    assert compile_object(checkout / "x.cpp", ["-O2"]) == first and runs(checkout) == 1
    assert first.log == f"a warning in {checkout}\n"
    compiled(checkout, "-O3")
    assert runs(checkout) == 2


def test_a_header_counts_by_its_content_and_what_it_was_before_is_kept(checkout: Path) -> None:
    header = checkout / "number.h"
    before = compiled(checkout)
    header.write_text("2\n")
    os.utime(header, (1e9, 1e9))
    assert compiled(checkout) != before and runs(checkout) == 2
    header.write_text("1\n")
    assert compiled(checkout) == before and runs(checkout) == 2


def test_a_copy_of_the_checkout_shares_what_was_compiled(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = compile_object(checkout / "x.cpp", [f"-I{checkout}"])
    copy = checkout.with_name("copy")
    copy.mkdir()
    (copy / "number.h").write_text("1\n")
    (copy / "x.cpp").write_text(f'#line 1 "{copy}/x.cu"\n')
    monkeypatch.setattr(objects, "ROOT", copy)
    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(copy / "build"))
    again = compile_object(copy / "x.cpp", [f"-I{copy}"])
    assert again.digest == made.digest and runs(checkout) == 1 and again.log == f"a warning in {copy}\n"
    (copy / "number.h").write_text("3\n")
    compile_object(copy / "x.cpp", [f"-I{copy}"])
    assert runs(checkout) == 2


@pytest.mark.parametrize("left", [b"", b"obj", None])
def test_a_damaged_object_is_compiled_anew(checkout: Path, left: bytes | None) -> None:
    made = compile_object(checkout / "x.cpp", [])
    whole = made.path.read_bytes()
    made.path.unlink() if left is None else made.path.write_bytes(left)
    assert compile_object(checkout / "x.cpp", []).path.read_bytes() == whole and runs(checkout) == 2


def test_a_record_that_is_none_is_no_record(checkout: Path) -> None:
    compiled(checkout)
    for text in ("{", "[]", '[{"inputs": 3}]'):
        for record in (checkout.parent / "cache").glob("??/*.json"):
            record.write_text(text)
        compiled(checkout)
    assert runs(checkout) == 4


def test_a_library_is_linked_again_where_it_is_not_what_was_linked(checkout: Path) -> None:
    made, library = [compile_object(checkout / "x.cpp", [])], checkout / "build" / "it.so"
    assert link(made, ["-shared"], library) and not link(made, ["-shared"], library)
    assert runs(checkout) == 2
    library.write_text("damaged")
    assert link(made, ["-shared"], library) and library.read_text() == "library\n" and runs(checkout) == 2


def test_what_does_not_compile_leaves_nothing_and_says_all(checkout: Path) -> None:
    (checkout.parent / "broken").touch()
    with pytest.raises(CompilerFailed, match=r"no such flag\n+no such flag"):
        compile_objects([(checkout / "x.cpp", []), (checkout / "x.cpp", ["-O2"])])
    (checkout.parent / "broken").unlink()
    assert compiled(checkout)


def test_what_was_not_used_for_longest_goes(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "PRUNED_EVERY", 0)
    (checkout / "x.cpp").write_text("old " * 2000)
    old = compile_object(checkout / "x.cpp", [])
    os.utime(old.path, (1e9, 1e9))
    monkeypatch.setattr(objects, "MOST_BYTES", 12_000)
    (checkout / "x.cpp").write_text("long" * 2000)
    new = compile_object(checkout / "x.cpp", [])
    assert new.path.exists() and not old.path.exists()


def test_a_name_in_an_object_is_a_file_of_this_checkout(checkout: Path) -> None:
    assert local_file("./task2/x.cu") == local_file("task2/x.cu") == str(checkout / "task2/x.cu")
    assert local_file("build/simulator/x.cpp") == str(checkout / "build" / "simulator" / "x.cpp")
    assert local_file("/usr/include/x.h") == "/usr/include/x.h"


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose rewritten sources include a header that includes another; the compiler is a real one."""
    folder = tmp_path / "checkout"
    (folder / "include").mkdir(parents=True)
    (folder / "include" / "first.h").write_text('#pragma once\n#include <stdlib.h>\n#include "number.h"\n')
    (folder / "include" / "number.h").write_text("inline int number() { return 1; }\n")
    monkeypatch.setenv("ATTENTION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(folder / "build"))
    monkeypatch.setattr(objects, "ROOT", folder)
    monkeypatch.setitem(objects.BEGINNINGS, ".cu.cpp", folder / "include" / "first.h")
    objects._places.cache_clear()
    yield folder
    objects._places.cache_clear()


def number_in(folder: Path, term: int) -> int:
    """The return value of a source that adds to the header's number, compiled and called."""
    source = folder / "x.cu.cpp"
    source.write_text(f'#include "first.h"\nextern "C" int f() {{ return number() + {term}; }}\n')
    library = folder / f"x{len(list(folder.glob('x*.so')))}.so"
    made = compile_object(source, ["-O2", "-Og", "-g", "-fPIC", f"-I{folder}/include"])
    link([made], ["-shared"], library)
    return ctypes.CDLL(str(library)).f()


def test_the_header_that_all_begin_with_is_parsed_once(kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = partial((kernels.parent / "cache").glob, "??/*.gch")
    run, failed = objects._run, []

    def noted(command: list) -> str:
        try:
            return run(command)
        except CompilerFailed as error:
            failed.append(error)
            raise

    monkeypatch.setattr(objects, "_run", noted)
    assert number_in(kernels, 10) == 11 and not [*parsed()]
    assert number_in(kernels, 20) == 21 and len([*parsed()]) == 1
    assert number_in(kernels, 30) == 31 and len([*parsed()]) == 1
    (kernels / "include" / "number.h").write_text("inline int number() { return 2; }\n")
    assert number_in(kernels, 30) == 32 and number_in(kernels, 40) == 42  # the nested header is a dependency
    copy = kernels.with_name("copy")
    shutil.copytree(kernels, copy, ignore=shutil.ignore_patterns("x*"))
    monkeypatch.setattr(objects, "ROOT", copy)
    monkeypatch.setitem(objects.BEGINNINGS, ".cu.cpp", copy / "include" / "first.h")
    assert number_in(copy, 50) == 52 and len([*parsed()]) == 2
    assert not failed  # the compiler accepted it each time
    for one in parsed():
        one.write_bytes(one.read_bytes()[:100])
    assert number_in(kernels, 60) == 62  # unreadable entries are skipped
    for one in parsed():
        one.unlink()
    monkeypatch.setattr(objects.resource, "getrlimit", lambda _: (64 << 20, 64 << 20))  # as in the grading sandbox
    assert number_in(kernels, 70) == 72 and number_in(kernels, 80) == 82 and not [*parsed()]


def test_a_header_that_cannot_be_kept_parsed_is_parsed_each_time(
    kernels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = objects._run

    def without_room(command: list) -> str:
        if "c++-header" in command:
            raise CompilerFailed("File size limit exceeded")
        return run(command)

    monkeypatch.setattr(objects, "_run", without_room)
    assert [number_in(kernels, term) for term in (10, 20, 30)] == [11, 21, 31]
