"""When a failed build is reported as a full disk; tests on real full disks: tests/common/cli/test_folders.py."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from common.compiling import full_disk
from common.compiling.full_disk import ENOUGH, no_space

Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(
    ("free", "log", "says"),
    [
        (3 << 19, "", "is full: 1.5 MiB are free there"),
        (3 << 19, "as: can't write: No space left on device", "is full: 1.5 MiB are free there"),
        (ENOUGH, "as: can't write: No space left on device", "could not write its output: No space left on device."),
        (ENOUGH, "as: can't write: Disk quota exceeded", "could not write its output: Disk quota exceeded."),
        (ENOUGH, "ninja: build stopped", ""),
        (3 << 19, "x.cu:3:1: error: expected ';'\n", ""),
        (3 << 19, "ld: undefined reference to `softmax'", ""),
        (0, "x.cpp:52:1: fatal error: closing dependency file x.d: No space left on device", "is full"),
    ],
)
def test_the_cause_is_the_disk_or_it_is_not(monkeypatch, tmp_path: Path, free: int, log: str, says: str) -> None:
    monkeypatch.setattr(full_disk.shutil, "disk_usage", lambda _: Usage(100 << 30, 0, free))
    found = no_space(log, tmp_path)
    assert says in found and bool(says) == bool(found)


def test_the_disk_of_temporary_files_is_one_of_them(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(full_disk.tempfile, "gettempdir", lambda: "/small")
    monkeypatch.setattr(
        full_disk.shutil, "disk_usage", lambda place: Usage(0, 0, 0 if place == Path("/small") else ENOUGH)
    )
    assert "The disk with /small is full" in no_space("", tmp_path)
