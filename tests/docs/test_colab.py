"""The notebook matches the handout and runs from top to bottom with the gaps filled in its cells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import pytest
from filled_checkout import copy_of_the_checkout

from common.compiling.manifest import read_manifest
from common.compiling.skeletons import parse, solution_files
from common.compiling.student_gaps import given_out

TASK = "task1"


def test_the_notebook_is_made_of_the_handout(root):
    done = subprocess.run(
        [sys.executable, str(root / "docs" / "colab.py"), "--compare"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def source(cell: dict) -> str:
    return "".join(cell["source"])


def test_every_gap_has_a_cell_and_no_cell_a_solution(root):
    cells = json.loads((root / "docs" / "colab.ipynb").read_text())["cells"]
    gaps = [source(cell) for cell in cells if source(cell).startswith("%%gap")]
    parts = [part for file in solution_files(TASK) for part in parse(file.read_text(), file.name) if part.is_gap]
    assert len(gaps) == len(parts) and all(len(gap.split("\n")) == 2 for gap in gaps)


def test_the_story_comes_first_and_the_pictures_are_in_it(root):
    text = (root / "docs" / "colab.ipynb").read_text()
    sources = [source(cell) for cell in json.loads(text)["cells"]]
    commands = [one for one in sources if one.startswith("!")]
    assert commands[0] == "!python -m task7.inference --solution"
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]{0,30})", "\n".join(sources))
    assert pictures and all(one.startswith("data:image/svg+xml;base64,") for one in pictures)
    assert not re.search(r"(?m)^![A-Z]", "\n".join(sources))


def test_without_a_repository_it_says_what_to_do(root, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(root / "docs" / "colab.ipynb", 4)
    client = nbclient.NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}})
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="Write the address of your course's repository"):
        client.execute()
    ran = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count]
    (shown,) = ran[0].outputs
    assert len(ran) == 1 and shown["traceback"] == [f"{shown['evalue']}"]


@pytest.mark.slow
@pytest.mark.xdist_group("task1")
def test_it_runs_from_top_to_bottom_with_the_gaps_filled_in_its_cells(root, tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    folder = copy_of_the_checkout(tmp_path)
    for name in read_manifest(TASK).with_gaps:
        (folder / TASK / name).write_text(given_out(root / TASK / name))
    notebook = nbformat.read(root / "docs" / "colab.ipynb", 4)
    parts = [part for file in solution_files(TASK) for part in parse(file.read_text(), file.name) if part.is_gap]
    cells = [cell for cell in notebook.cells if cell.source.startswith("%%gap")]
    for cell, part in zip(cells, parts, strict=True):
        cell.source = "\n".join([cell.source.split("\n")[0], *part.lines])
    shutil.copy(root / "pyproject.toml", folder)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    said = "".join(
        output.get("text", "") + "\n".join(output.get("traceback", []))
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "Traceback" not in said and "FAIL" not in said, said
    assert len(re.findall(r"(?m)^task1/.* is filled$", said)) == len(parts) and "Points: 2 of 2" in said, said
    assert "Once upon a time" in said and "You're the best!" in said, said
    assert re.search(r"task1 +15 of 15 +2 of 2 +\S*done", said), said
