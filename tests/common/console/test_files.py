"""A file is written completely or not at all."""

import os

import pytest

from common.console import files
from common.console.files import write_whole
from common.console.paths import build_root


def test_it_writes_what_is_new_and_leaves_the_rest(tmp_path):
    file = tmp_path / "new" / "folder" / "a.txt"
    assert write_whole(file, "caf\u00e9\r\nline") and file.read_bytes() == "caf\u00e9\r\nline".encode()
    before = file.stat().st_mtime_ns
    assert not write_whole(file, "caf\u00e9\r\nline") and file.stat().st_mtime_ns == before
    assert write_whole(file, "") and file.read_bytes() == b""
    assert os.listdir(file.parent) == ["a.txt"]


def test_permissions_and_links_stay(tmp_path):
    file, link = tmp_path / "a.txt", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    link.symlink_to(file)
    assert write_whole(link, "new")
    assert link.is_symlink() and file.read_text() == "new" and file.stat().st_mode & 0o777 == 0o640


def test_a_new_file_can_be_read_as_any_other(tmp_path):
    write_whole(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_what_fails_leaves_what_was_there(tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError("no space left on device")

    file = tmp_path / "a.txt"
    file.write_text("old")
    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_whole(file, "new")
    assert file.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"], "no unfinished file is left"


def test_a_build_folder_that_ninja_cannot_name_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(tmp_path / "a$b"))
    with pytest.raises(ValueError, match=r"must not hold '\$'"):
        build_root()
