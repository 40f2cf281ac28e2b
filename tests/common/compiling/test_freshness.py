"""Build folders are identified by content: old timestamps, damage, and ninja's behavior."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from common.compiling import freshness, toolchain
from common.compiling.freshness import forget_stale, remember

NINJA = """
rule cc
  command = {compiler} -fPIC -MMD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
rule ld
  command = {compiler} -shared $in -o $out
build one.o: cc one.c
build two.o: cc two.c
build it.so: ld one.o two.o
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(freshness, "ROOT", tmp_path)
    (tmp_path / "one.c").write_text('#include "number.h"\nextern "C" int one() { return NUMBER; }\n')
    (tmp_path / "two.c").write_text('extern "C" int two() { return 2; }\n')
    (tmp_path / "number.h").write_text("#define NUMBER 1\n")
    return tmp_path


def build(folder: Path) -> tuple[list[str], list[str]]:
    """(what was damaged, what was built)."""
    damaged = forget_stale(folder)
    if not (folder / "build.ninja").exists():  # as torch does
        (folder / "build.ninja").write_text(NINJA.format(compiler=toolchain.host_compiler()))
    done = subprocess.run(
        [toolchain.find_ninja(), "-v"], cwd=folder, capture_output=True, text=True, check=True, env=os.environ
    )
    remember(folder)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    return damaged, sorted(line.split("-o ")[1].split()[0] for line in lines)


def one(folder: Path) -> int:
    """What the library returns, from a copy, since a library is loaded only once."""
    copy = folder / f"copy{len(list(folder.glob('copy*')))}"
    copy.write_bytes((folder / "it.so").read_bytes())
    return ctypes.CDLL(str(copy)).one()


def test_nothing_is_built_where_nothing_changed(folder: Path) -> None:
    assert build(folder) == ([], ["it.so", "one.o", "two.o"])
    assert build(folder) == ([], [])
    assert one(folder) == 1


def test_new_content_with_an_old_time_is_built(folder: Path) -> None:
    build(folder)
    (folder / "number.h").write_text("#define NUMBER 7\n")
    os.utime(folder / "number.h", (1e9, 1e9))
    assert build(folder) == ([], ["it.so", "one.o"])
    assert one(folder) == 7


@pytest.mark.parametrize("name", ["one.o", "it.so"])
@pytest.mark.parametrize("left", [0, 100])
def test_a_damaged_product_is_built_anew(folder: Path, name: str, left: int) -> None:
    build(folder)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:left])
    damaged, built = build(folder)
    assert damaged == [name] and name in built
    assert one(folder) == 1


def test_without_a_record_nothing_is_trusted(folder: Path) -> None:
    build(folder)
    (folder / "it.so").write_bytes(b"shipped with a fresh time")
    for text in ("{", '{"it.so": 3}', "[]"):
        (folder / freshness.RECORD).write_text(text)
        assert build(folder) == ([freshness.RECORD], ["it.so", "one.o", "two.o"])
    assert one(folder) == 1


@pytest.mark.parametrize("name", ["build.ninja", ".ninja_log", ".ninja_deps", "warnings.json"])
def test_without_ninjas_own_files_nothing_is_trusted(folder: Path, name: str) -> None:
    build(folder)
    for damage in (lambda file: file.write_bytes(b"\xff\xfe garbage"), Path.unlink):
        (folder / "warnings.json").write_text("[]")
        remember(folder)
        assert build(folder) == ([], [])
        damage(folder / name)
        assert build(folder) == ([name], ["it.so", "one.o", "two.o"])


def test_a_build_that_was_ended_in_its_midst_is_no_damage(folder: Path) -> None:
    build(folder)
    forget_stale(folder)
    (folder / "one.o").write_bytes(b"half")
    assert build(folder) == ([], ["it.so", "one.o", "two.o"])
    assert one(folder) == 1
