"""Every output block in the documents can be regenerated: everything it needs exists."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from outputs import DOCUMENTS, all_blocks, gap_lines, without
from shown_mistakes import PLANTED
from solved_copy import Edit, planted

from common.compiling.skeletons import solution_files


def test_no_block_is_overlooked():
    texts = [file.read_text("utf-8") for pattern in DOCUMENTS for file in ROOT.glob(pattern)]
    assert len(all_blocks()) == sum(text.count("<!-- OUTPUT") for text in texts) > 30


def test_the_mistakes_of_all_blocks_are_known_and_none_besides():
    assert {block.mistake for block in all_blocks() if not block.on_gpu} - {""} == set(PLANTED)


@pytest.mark.parametrize("edits", PLANTED.values(), ids=PLANTED)
def test_a_mistake_still_fits_the_solution(edits, tmp_path):
    for file, _, _ in edits:
        target = tmp_path / file
        target.parent.mkdir(exist_ok=True)
        source = (ROOT / file).parent / "solution" / target.name
        target.write_text(source.read_text("utf-8"), "utf-8")
    before = {file: (tmp_path / file).read_text("utf-8") for file, _, _ in edits}
    with planted(tmp_path, edits):
        assert all((tmp_path / file).read_text("utf-8") != text for file, text in before.items())
    assert all((tmp_path / file).read_text("utf-8") == text for file, text in before.items())


def test_a_mistake_that_does_not_fit_changes_nothing(tmp_path):
    (tmp_path / "a").write_text("one two")
    wrong = [Edit("a", "one", "1"), Edit("a", "three", "3")]
    with pytest.raises(ValueError, match="'three' 0 times"), planted(tmp_path, wrong):
        pass
    assert (tmp_path / "a").read_text() == "one two"


@pytest.mark.parametrize("task", [f"task{number}" for number in range(1, 8)])
def test_no_report_in_a_handout_gives_a_gap_away(task):
    hidden = gap_lines(solution_files(task))
    assert hidden
    for block in all_blocks():
        if block.file.parent.name == task:
            assert without(hidden, block.body) == block.body, block.name


def test_a_quoted_line_of_a_gap_is_left_out():
    text = "   thread 0 reads, kernel.cu:70\n         sum += x[i];\n      167  int row = 3;\n      168  int given = 4;"
    told = "   thread 0 reads, kernel.cu:70\n         (your line)\n      167  (your line)\n      168  int given = 4;"
    assert without({"sum += x[i];", "int row = 3;"}, text) == told
    cut = "       55  attend(state, key + position * head_dim, count - ..."
    assert without({"attend(state, key + position * head_dim, count - n,"}, cut) == "       55  (your line)"
    long = "   What these calls pass:\n       55  attend(state,\n          hidden);\n   block (0,0,0)"
    assert without({"attend(state,"}, long) == "   What these calls pass:\n       55  (your line)\n   block (0,0,0)"
