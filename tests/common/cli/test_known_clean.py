"""Kernels that were found clean are recognized later, and others are not."""

import pytest

from common.cli import known_clean


@pytest.fixture
def library(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTENTION_BUILD_DIR", str(tmp_path / "build"))
    file = tmp_path / "kernels.so"
    file.write_bytes(b"kernels")
    return file


def test_what_was_clean_is_known_until_something_changes(library) -> None:
    mark = known_clean.mark_of([library], ["gemm: 7 x 7"], 0)
    assert not known_clean.is_known(mark)
    known_clean.remember(mark)
    assert known_clean.is_known(known_clean.mark_of([library], ["gemm: 7 x 7"], 0))
    assert not known_clean.is_known(known_clean.mark_of([library], ["gemm: 7 x 7"], 1))
    assert not known_clean.is_known(known_clean.mark_of([library], ["gemm: 7 x 8"], 0))
    library.write_bytes(b"others")
    assert not known_clean.is_known(known_clean.mark_of([library], ["gemm: 7 x 7"], 0))


def test_a_damaged_record_is_none(library) -> None:
    mark = known_clean.mark_of([library], [], 0)
    known_clean.remember(mark)
    record = library.parent / "build" / "checked" / "clean.json"
    record.write_text("{")
    assert not known_clean.is_known(mark)
    known_clean.remember(mark)
    assert known_clean.is_known(mark)
