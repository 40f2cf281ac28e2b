"""The site's pages, the front page and the sizes of pictures."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))
MOST_BYTES = 300_000  # per picture


def script(name: str) -> ModuleType:
    """A script in docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{Path(name).stem}", ROOT / "docs" / name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def links(page: str) -> list[str]:
    text = re.sub(r"(?ms)^( *)```.*?^\1```$|`[^`]*`", "", (ROOT / page).read_text())
    return re.findall(r"\]\(([^)\s]+)\)", text)


PAGES = sorted(file.relative_to(ROOT).as_posix() for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page):
    for link in links(page):
        if not link.startswith("http"):
            assert ((ROOT / page).parent / link.split("#")[0]).exists(), link


def test_pictures_are_small_and_shown():
    pictures = [file for file in (ROOT / "docs").rglob("*") if file.suffix in (".png", ".svg")]
    assert pictures and all(file.stat().st_size < MOST_BYTES for file in pictures)
    shown = {(ROOT / link).resolve() for link in links("README.md")}
    assert {ROOT / "docs" / "pictures" / f"{name}.svg" for name in ("story", "race", "mistake", "hint")} <= shown


def test_the_commands_of_the_front_page_stand_as_others_read_them():
    """.ci/run and anyone adopting the course copy them from the page."""
    text = (ROOT / "README.md").read_text()
    lines = [line for block in re.findall(r"(?ms)^```console\n(.*?)^```", text) for line in block.split("\n")]
    assert "pip install -e . -c constraints.txt && python -m task7.inference --solution" in lines
    assert "pip install -e '.[test]' -c constraints.txt && pytest -n auto --dist loadfile" in lines
    assert "pip install -e '.[site]' -c constraints.txt && mkdocs serve" in lines


def test_the_figures_are_read_from_the_tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "pictures")
    measured = script("pictures/measured.py")
    rows = measured.table("gemm", "version", "median")[1:]
    assert rows[0][0] == "taught" and rows[-1][0].startswith("cuBLAS")
    assert next(name for name, _, _ in measured.ladder("gemm", 2, "cuBLAS")) == "taught"
    assert measured.number("5,082") == 5082.0
    with pytest.raises(LookupError, match="gemm"):
        measured.table("gemm", "no such column")


def test_every_page_of_the_site_is_a_readme_and_what_it_shows_is_found():
    pytest.importorskip("mkdocs")
    site = script("site.py")
    pages = site.pages()
    assert {"README.md", "task1/README.md", "common/simulator/README.md", "docs/commands.md"} <= set(pages)
    assert "docs/pictures/path.svg" in site.linked("README.md") and "LICENSE" in site.linked("README.md")
    navigation = re.findall(r"[\w/.-]+\.md", (ROOT / "mkdocs.yml").read_text().split("nav:")[1])
    assert set(navigation) <= set(pages)


def test_a_block_of_results_is_taken_from_between_its_markers(tmp_path):
    results = script("reference_results.py")
    (tmp_path / "Results.md").write_text("a\n<!-- BEGIN x -->\n| 1 |\n<!-- END x -->\nb\n")
    assert results.block(tmp_path / "Results.md", "x") == ["| 1 |"]
    assert results.fenced(["a", ""]) == ["```text", "a", "", "```"]
    page = (ROOT / "docs" / "reference-results.md").read_text()
    assert all(f"<!-- {word} {name} -->" in page for word in ("BEGIN", "END") for name in ("simulator", "gpu"))


def test_sections_of_two_pages_come_together(tmp_path, monkeypatch):
    results = script("reference_results.py")
    begin, end = results.markers("gpu")

    def page(name: str, *lines: str) -> Path:
        file = tmp_path / name
        file.write_text("\n".join(["top", begin, *lines, end, "bottom", ""]))
        return file

    whole = page("whole.md", "Not filled in yet.")
    one = page("one.md", "On a day:", "", "### Task 4, gpu", "", "four")
    two = page("two.md", "On a day:", "", "### Task 2, gpu", "", "two")
    arguments = ["gpu", "--merge", str(one), str(two), "--page", str(whole)]
    monkeypatch.setattr(sys, "argv", ["reference_results.py", *arguments])
    assert results.main() == 0
    text = whole.read_text()
    assert "Not filled" not in text and text.startswith("top") and text.endswith("bottom\n")
    assert text.index("On a day:") < text.index("Task 2, gpu") < text.index("Task 4, gpu")


def test_the_points_at_the_end_of_a_test_are_kept():
    results = script("reference_results.py")
    said = "table\n\n  softmax      1 of 1\n  gemm         0.5 of 1   none before ...\nPoints: 1.5 of 2\n"
    assert re.findall(results.POINTS, said) == [
        "  softmax      1 of 1",
        "  gemm         0.5 of 1   none before ...",
        "Points: 1.5 of 2",
    ]


def test_the_sites_markdown_makes_the_lists_that_a_code_host_makes():
    """CommonMark's list of elements in order, compared with mkdocs' rendering of the same page."""
    python_markdown = pytest.importorskip("markdown")
    site = script("site.py")
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["markdown_extensions"]
    names = [one if isinstance(one, str) else next(iter(one)) for one in settings]
    elements = re.compile(r"<(li|ul|ol|pre|table|h2)(?: start=\"(\d+)\")?[ >]")
    for page in site.pages():
        text = (ROOT / page).read_text()
        host = MarkdownIt("commonmark").enable("table").render(text)
        ours = python_markdown.markdown(site.on_page_markdown(text), extensions=names)
        assert elements.findall(ours) == elements.findall(host), page
