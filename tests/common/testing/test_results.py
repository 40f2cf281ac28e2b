"""common.testing.results replaces a block of Results.md and nothing else."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.console import files
from common.testing import results
from common.testing.results import Block, ResultsError, replaced, write_block

NAME = "task4 speedups"
BEGIN, END = results.markers(NAME)
DATE = datetime.date(2026, 3, 4)
COMMAND = "python -m task4.test --report"
BLOCK = Block(COMMAND, {"gpu": "H200", "torch": "2.11"}, ["a", "b"], [["1", "x|y"]], ["Note."], DATE)
WRITTEN = [
    "Measured by `python -m task4.test --report` on 2026-03-04; gpu H200, torch 2.11.",
    "",
    "| a | b |",
    "| --- | --- |",
    "| 1 | x\\|y |",
    "",
    "Note.",
]


def test_a_block_says_command_date_machine_and_table():
    assert BLOCK.lines() == WRITTEN


def test_a_block_without_a_date_is_of_today():
    assert str(datetime.date.today()) in Block("c", {}, [], []).lines()[0]


def test_uneven_rows_are_refused():
    with pytest.raises(ValueError, match=r"rows holds \['1'\]; each row must have 2 cells"):
        Block("c", {}, ["a", "b"], [["1"]])


def test_only_the_block_changes(tmp_path):
    file = tmp_path / "Results.md"
    file.write_text(f"# Mine\n\n{BEGIN}\nold\n{END}\n\nÄ last line without its end")
    kept = write_block(file, NAME, BLOCK)
    assert file.read_text().splitlines() == ["# Mine", "", BEGIN, *WRITTEN, END, "", "Ä last line without its end"]
    assert kept == tmp_path / "Results.md.bak" and "old" in kept.read_text()
    assert sorted(os.listdir(tmp_path)) == ["Results.md", "Results.md.bak"]


def test_nothing_is_kept_where_there_was_nothing(tmp_path):
    file = tmp_path / "Results.md"
    file.write_text(f"{BEGIN}\n{END}\n")
    assert write_block(file, NAME, BLOCK) is None
    assert write_block(file, NAME, BLOCK) is None, "the same numbers again lose nothing"
    assert os.listdir(tmp_path) == ["Results.md"]


def test_line_ends_and_permissions_stay(tmp_path):
    file = tmp_path / "Results.md"
    file.write_bytes(f"one\r\n{BEGIN}\r\n{END}\r\nlast\n".encode())
    file.chmod(0o640)
    write_block(file, NAME, BLOCK)
    assert file.read_bytes().startswith(f"one\r\n{BEGIN}\r\nMeasured".encode())
    assert file.read_bytes().endswith(f"Note.\r\n{END}\r\nlast\n".encode())
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing\n", f"it has no line {BEGIN}; put these two lines"),
        (f"{BEGIN}\n", f"it has no line {END}"),
        (f"{END}\n{BEGIN}\n", "in line 1 comes before its BEGIN in line 2"),
        (f"{BEGIN}\n{END}\n{BEGIN}\n", f"it has the line {BEGIN} 2 times, in lines 1, 3"),
        (
            f"{BEGIN}\n<!-- BEGIN task5 sweep -->\n{END}\n",
            "line 2, <!-- BEGIN task5 sweep -->, is between the markers",
        ),
    ],
)
def test_wrong_markers_are_refused_and_nothing_is_written(tmp_path, text, words):
    file = tmp_path / "Results.md"
    file.write_text(text)
    with pytest.raises(ResultsError) as refused:
        write_block(file, NAME, BLOCK)
    assert words in str(refused.value) and "nothing was written" in str(refused.value)
    assert file.read_text() == text and os.listdir(tmp_path) == ["Results.md"]


def test_a_missing_file_and_a_foreign_encoding_are_named(tmp_path):
    file = tmp_path / "Results.md"
    with pytest.raises(ResultsError, match=r"Results\.md is missing; nothing was written"):
        write_block(file, NAME, BLOCK)
    file.write_bytes(b"\xff\xfe" + f"{BEGIN}\n{END}\n".encode())
    with pytest.raises(ResultsError, match=r"is not UTF-8"):
        write_block(file, NAME, BLOCK)


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "Results.md"
    text = f"mine\n{BEGIN}\nold\n{END}\n"
    file.write_text(text)

    def full(descriptor):
        raise OSError("no space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="no space left"):
        write_block(file, NAME, BLOCK)
    assert file.read_text() == text
    assert sorted(os.listdir(tmp_path)) == ["Results.md", "Results.md.bak"], "no unfinished file is left"


@given(before=st.text(), old=st.text(), after=st.text())
def test_whatever_stands_around_the_block_stays(before, old, after):
    """Any text: other line endings, form feeds, no final newline."""
    for text in (before, old, after):
        if "<!--" in text:
            return
    new = replaced(f"{before}\n{BEGIN}\n{old}\n{END}\n{after}", NAME, ["one"])
    assert new == f"{before}\n{BEGIN}\none\n{END}\n{after}"


def test_the_file_of_the_course_has_its_markers():
    text = results.RESULTS.read_text()
    assert "| a | b |" in replaced(text, NAME, BLOCK.lines())


def _write(file, name):
    write_block(file, name, BLOCK)


def test_several_writers_at_once_lose_nothing(tmp_path):
    file, names = tmp_path / "Results.md", [f"block {number}" for number in range(4)]
    file.write_text("".join(f"<!-- BEGIN {name} -->\n<!-- END {name} -->\n" for name in names))
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(file, name)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert file.read_text().count("Measured by") == 4


def test_what_was_kept_before_is_not_lost(tmp_path):
    file, elsewhere = tmp_path / "Results.md", tmp_path / "elsewhere"
    elsewhere.write_text("not to be touched")
    (tmp_path / "Results.md.bak").symlink_to(elsewhere)
    for words in ("my first words", "my second words"):
        file.write_text(f"{BEGIN}\n{words}\n{END}\n")
        write_block(file, NAME, BLOCK)
    assert elsewhere.read_text() == "not to be touched"
    assert "first" in (tmp_path / "Results.md.bak2").read_text()
    assert "second" in (tmp_path / "Results.md.bak3").read_text()


def test_a_read_only_file_is_left_alone(tmp_path):
    file = tmp_path / "Results.md"
    file.write_text(f"{BEGIN}\n{END}\n")
    file.chmod(0o444)
    with pytest.raises(ResultsError, match="is read-only; nothing was written"):
        write_block(file, NAME, BLOCK)
    assert "Measured" not in file.read_text()
