"""The pictures match what their scripts draw, so a table that changed without its picture is detected."""

import importlib

import pytest

HANDOUTS = ("task1", "task2", "task3", "task4", "task5", "task6", "task6_ring", "task7", "task7_step")
SCRIPTS = {**dict.fromkeys(HANDOUTS, "handouts"), "hopper_forward": "hopper", "path": "path", "measured": "measured"}


@pytest.fixture
def pictures(root, monkeypatch):
    monkeypatch.syspath_prepend(root / "docs" / "pictures")
    return root / "docs" / "pictures"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_picture_is_drawn_as_it_is(pictures, name):
    drawn = getattr(importlib.import_module(SCRIPTS[name]), name)().svg()
    assert (pictures / f"{name}.svg").read_text() == drawn, f"python docs/pictures/{SCRIPTS[name]}.py"


def test_a_figure_that_changes_in_a_table_makes_the_picture_stale(pictures, monkeypatch):
    measured = importlib.import_module("measured")
    read = measured.table

    def with_another_figure(room, *header):
        rows = read(room, *header)
        return [[cell.replace("684", "999") for cell in row] for row in rows]

    monkeypatch.setattr(measured, "table", with_another_figure)
    assert measured.measured().svg() != (pictures / "measured.svg").read_text()


def test_every_version_of_the_attention_table_is_drawn(pictures):
    measured = importlib.import_module("measured")
    lengths, versions = measured.forward_rates()
    rows = [name for name, _ in versions]
    assert rows == ["this repository", "FlashAttention-3", "SDPA cuDNN", "SDPA flash"]
    assert all(len(values) == len(lengths) == 6 for _, values in versions)
    text = (pictures / "measured.svg").read_text()
    assert all(f">{name}<" in text for name in rows)


def test_every_picture_is_shown_somewhere(root, pictures):
    """A page links it; Markdown files are searched as checked out."""
    pages = ("*.md", "docs/*.md", "common/**/*.md", "task*/**/*.md")
    text = "\n".join(file.read_text() for pattern in pages for file in root.glob(pattern))
    for file in pictures.iterdir():
        if file.suffix in (".png", ".svg", ".gif"):
            assert f"pictures/{file.name}" in text, f"no page shows {file.name}"
