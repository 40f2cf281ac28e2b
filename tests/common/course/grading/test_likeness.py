"""Which submissions are similar: copies are found even with names changed, and handed-out code does not count."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from common.compiling.skeletons import skeleton_of
from common.console.paths import ROOT

pytest.importorskip("copydetect")
from common.course.grading import likeness
from common.course.grading.likeness import SLOW, alike, compare

FILE = "task3/online_softmax.cu"
SOLUTION = (ROOT / "task3" / "solution" / "online_softmax.cu").read_text()
RENAMED = re.sub(r"\bm\b", "largest", re.sub(r"\bl\b", "total", SOLUTION)).replace("//", "// mine:")


def kept(out: Path, **texts: str) -> list[str]:
    """Stored as by `grade`; returns the names."""
    for name, text in texts.items():
        (out / name / "files" / "task3").mkdir(parents=True)
        (out / name / "files" / FILE).write_text(text)
    return list(texts)


def test_copies_and_renamed_copies_are_found_and_others_are_not(tmp_path: Path) -> None:
    different = (ROOT / "tests/variants/task3_online_softmax/shared_tree.cu").read_text()
    skeleton = skeleton_of(SOLUTION, "online_softmax.cu")
    names = kept(tmp_path, ann=different, bob=RENAMED, cid=skeleton, dan=RENAMED.replace("total", "sum"))
    pairs = {(first, second) for share, first, second, file in alike(tmp_path, names) if file == FILE}
    assert pairs == {("bob", "dan"), ("bob", "the solution"), ("dan", "the solution")}


def test_a_file_that_takes_too_long_is_left_out(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(likeness, "FILE_SECONDS", 0.5)
    monkeypatch.setattr(likeness, "_packed", io.StringIO)  # else a run of blanks does no harm
    evil = "int" + " " * 40_000 + "f" + " " * 40_000 + "(int);\n"
    found = alike(tmp_path, kept(tmp_path, ann=RENAMED, bob=RENAMED, eve=evil))
    assert found[0] == (0.0, "eve", SLOW, FILE) and (1.0, "ann", "bob", FILE) in found


def test_it_is_a_reason_to_look(tmp_path: Path, capsys) -> None:
    compare(Console(width=120), tmp_path, kept(tmp_path, ann=SOLUTION, bob="int main() {}\n"))
    said = capsys.readouterr().out
    assert "a reason to look, not a verdict" in said and "bob" not in said
    assert f"100%  ann and the solution: {FILE}" in said
