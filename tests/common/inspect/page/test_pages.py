"""The pages in a real browser: they open without errors or network access, and their keys and buttons work."""

from dataclasses import replace
from types import SimpleNamespace

import browser as browsers
import pytest
from browser import asked_for, messages, opened
from checked_findings import findings_of, kernels_in_case, recorded
from kernel_mistakes import TASK2
from pygments.token import Comment, Keyword

import task2.cases
from common.inspect.page.document import document
from common.inspect.page.look_page import check_page, profile_page
from common.inspect.page.replay_page import replay_page
from common.inspect.page.sources import KINDS, kinds_of
from common.measure.gpus import find

CASES = {f"{case.part}: {case.name}": case for case in task2.cases.cases()}
SOFTMAX, GEMM = CASES["softmax: 7 x 31"], CASES["gemm: A B^T, 64 x 64 x 64"]
RACE = "no_barrier_between_reductions"


@pytest.fixture(scope="module")
def browser():
    found = browsers.pages()
    if found is None:
        pytest.skip(browsers.WHY_NOT)
    yield found
    found.quit()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The pages: two replays, one of a race, a profile and a check."""
    folder = tmp_path_factory.mktemp("pages")
    right = TASK2.operators(None, "simulator", checked=True)
    launches, findings, _, _ = recorded(right, GEMM)
    made = {"gemm": replay_page("gemm", "about", "a command", launches, findings)}
    kernels = kernels_in_case(right, GEMM)
    made["profile"] = profile_page("a profile", "a command", [("gemm", None, kernels)], find("H200"))
    wrong = TASK2.operators(RACE, "simulator", checked=True)
    launches, findings, _, _ = recorded(wrong, SOFTMAX)
    made["race"] = replay_page("softmax", "about", "a command", launches, findings)
    made["check"] = check_page("a check", "a command", [], [("softmax: 7 x 31", findings_of(wrong, SOFTMAX))])
    files = {name: folder / f"{name}.html" for name in made}
    for name, file in files.items():
        file.write_text(made[name], encoding="utf-8")
    return SimpleNamespace(address={name: file.as_uri() for name, file in files.items()}, kernels=kernels)


def key(browser, name: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(name).perform()


def sentence(browser) -> str:
    return browser.find_element("css selector", ".sentence").text


@pytest.mark.parametrize("name", ["gemm", "race", "profile", "check"])
def test_opens_without_errors_and_without_a_network(browser, written, name):
    asked_for(browser), messages(browser)
    opened(browser, written.address[name])
    assert messages(browser) == []
    assert set(asked_for(browser)) <= {written.address[name], "about:blank"}


@pytest.mark.parametrize("name", ["gemm", "race", "profile", "check"])
def test_all_that_can_be_used_or_seen_has_a_name(browser, written, name):
    opened(browser, written.address[name])
    browser.find_element("tag name", "h1")
    found = browser.find_elements("css selector", "button, select, input, canvas, [role], nav, summary")
    if name == "profile":
        browser.find_element("css selector", "button.row").send_keys("\n")
        found += browser.find_elements("css selector", "svg")
    nameless = [
        one.get_attribute("outerHTML")[:90] for one in found if one.aria_role != "none" and not one.accessible_name
    ]
    nameless = [one for one in nameless if 'role="status"' not in one and 'role="tooltip"' not in one]
    assert len(found) > 3 * (name != "check") and nameless == []


def test_steps_forward_and_back_by_keys_and_buttons(browser, written):
    from selenium.webdriver.common.keys import Keys

    opened(browser, written.address["gemm"])
    first = sentence(browser)
    assert "load_tile(a_tile" in first and "All 256 threads read 1,024 elements of a (each once)" in first
    key(browser, Keys.ARROW_RIGHT)
    assert "load_tile_transposed(b_tile" in sentence(browser) and "write 1,024 elements of b_tile" in sentence(browser)
    assert "Then all wait at the barrier on line" in sentence(browser)
    key(browser, Keys.PAGE_DOWN)
    assert "1,024 elements of a_tile (each 32 times) and 1,024 elements of b_tile (each 8 times)" in sentence(browser)
    key(browser, Keys.PAGE_UP), key(browser, Keys.ARROW_LEFT)
    assert sentence(browser) == first
    browser.find_element("css selector", "button[aria-label^='past the next barrier']").click()
    assert "multiply_tiles" in sentence(browser)
    key(browser, Keys.END)
    assert "write 1,024 elements of c" in sentence(browser)
    steps = browser.find_element("css selector", "input[type=range]")
    assert steps.get_attribute("aria-valuetext") == "step 7 of 7"
    key(browser, "w")
    assert steps.get_attribute("aria-valuetext") == "step 5 of 5"
    key(browser, Keys.HOME), key(browser, "]")
    assert "Block (1,0,0)" in sentence(browser)
    browser.find_element("css selector", "select[aria-label=colors]").click()
    assert messages(browser) == []


def test_a_thread_is_followed_through_lines_and_values(browser, written):
    from selenium.webdriver.common.keys import Keys

    opened(browser, f"{written.address['gemm']}#thread=37&step=2")
    rows = [row.text for row in browser.find_elements("css selector", ".events tbody tr")]
    assert len(rows) == 32 * 5  # one entry of b_tile and four of a_tile for each k
    assert "reads b_tile[0][5]" in rows[0] and sum("a_tile[1][" in row for row in rows) == 32  # thread (5, 1)
    key(browser, Keys.ARROW_DOWN), key(browser, Keys.ARROW_DOWN)
    here = browser.find_elements("css selector", ".events tr.here")
    assert len(here) == 1 and "reads a_tile[1][0]" in here[0].text
    lines = browser.find_elements("css selector", ".source .cursor")
    assert len(lines) == 1 and "sums[i] +=" in lines[0].text
    value = float(here[0].text.split()[-1])
    key(browser, Keys.ESCAPE)
    assert not browser.find_elements("css selector", ".events tbody tr")
    said = browser.execute_script("return launches[0].arrays[0].initial.slice(256, 260)")  # a[0, 1, 0]
    import struct

    assert value == pytest.approx(
        struct.unpack("<f", bytes(said.values() if isinstance(said, dict) else said))[0], rel=1e-4
    )
    canvas = browser.find_element("css selector", "canvas[aria-label^='256 threads']")
    canvas.click()
    assert browser.find_element("css selector", "input[type=number]").get_attribute("value") != ""


def test_the_line_that_runs_is_marked_and_the_call_that_led_to_it_paler(browser, written):
    opened(browser, f"{written.address['gemm']}#step=2")
    runs = [row.text for row in browser.find_elements("css selector", ".source .now")]
    assert len(runs) == 2 and "b_tile[k][threadIdx.x]" in runs[0] and "sums[i] +=" in runs[1]
    calls = [row.text for row in browser.find_elements("css selector", ".source .call")]
    assert len(calls) == 1 and "multiply_tiles(a_tile, b_tile, sums);" in calls[0]
    assert runs[1].split()[0] in sentence(browser)
    box = browser.find_element("css selector", ".source").rect
    row = browser.find_element("css selector", ".source .now").rect
    assert box["y"] <= row["y"] <= box["y"] + box["height"]


def test_following_a_thread_is_beside_the_picture(browser, written):
    opened(browser, f"{written.address['gemm']}#thread=37&step=2")
    panel, picture = (browser.find_element("css selector", one).rect for one in ("[aria-label='one thread']", ".stage"))
    assert panel["x"] >= picture["x"] + picture["width"] and panel["y"] < picture["y"] + 40


def test_small_arrays_show_their_values(browser, written):
    def with_values() -> list[str]:
        shown = "boxes.filter((one) => +one.canvases[0].canvas.dataset.height === VALUE_CELL[2])"
        return sorted(browser.execute_script(f"return {shown}.map((one) => one.array.name)"))

    opened(browser, written.address["race"])
    assert with_values() == ["partial", "x", "y"]
    browser.find_element("xpath", "//label[contains(., 'values')]").click()
    assert with_values() == []
    opened(browser, written.address["gemm"])
    assert with_values() == []
    browser.find_element("xpath", "//label[contains(., 'values')]").click()
    assert with_values() == ["a_tile"]  # the others have 33 and 64 columns
    numbers = "[0, 1, -1, 0.5312, -0.5312, 12.345, -12.345, 123456, -1234567, 1e-9, null, -Infinity, NaN, 3.25]"
    said = browser.execute_script(f"return {numbers}.map((one) => brief(one, 4))")
    assert said == ["0", "1", "-1", ".531", "-.53", "12.3", "-12", "1e5", "-1e6", "~0", "", "-∞", "nan", "3.25"]


def test_memory_at_the_end_is_what_the_kernel_left(browser, written):
    """The page replays all writes: its c must equal a @ b^T for its own a and b."""
    opened(browser, written.address["gemm"])
    a, b, c = browser.execute_script(
        "const one = launches[0], memory = new Memory(one);"
        "for (let i = 0; i < one.entry.length; ++i) memory.apply(i);"
        "const all = (name) => { const n = one.arrays.findIndex((array) => array.name === name);"
        "  return Array.from({length: 4096}, (_, k) => memory.value(n, k)); };"
        "return ['a', 'b', 'c'].map(all);"
    )
    import torch

    a, b, c = (torch.tensor(x).view(64, 64) for x in (a, b, c))
    torch.testing.assert_close(c, a @ b.T, rtol=1e-4, atol=1e-4)


def test_a_race_is_two_accesses_in_one_interval(browser, written):
    opened(browser, written.address["race"])
    finding = browser.find_element("css selector", ".findings")
    assert "race in softmax_kernel: partial[0] (shared memory)" in finding.text
    assert "row_max = partial[0];" in finding.text and "partial[threadIdx.x] = row_sum;" in finding.text
    finding.find_element("tag name", "button").click()
    assert "Both accesses are in this interval" in sentence(browser)
    lines = [row.text for row in browser.find_elements("css selector", ".source .race")]
    assert any("row_max = partial[0];" in one for one in lines)
    assert any("partial[threadIdx.x] = row_sum;" in one for one in lines)
    assert len(browser.execute_script("return racedElements().threads")) == 2
    assert browser.execute_script("return [...racedElements().elements.values()].map((one) => [...one])") == [[0]]
    assert messages(browser) == []


def test_counters_stand_beside_their_lines(browser, written):
    opened(browser, written.address["profile"])
    kernel = written.kernels[0]
    of_line = {}
    for line in kernel.lines:
        of_line[line.place.line] = of_line.get(line.place.line, 0) + line.transactions
    shown = {
        int(row.find_element("css selector", ".no").text): int(
            row.find_element("css selector", "b").text.replace(",", "")
        )
        for row in browser.find_elements("css selector", ".counters .hot")
    }
    assert shown == of_line
    worst = max(of_line, key=of_line.__getitem__)
    row = next(row for row in browser.find_elements("css selector", ".hot") if row.text.startswith(str(worst)))
    button = row.find_element("css selector", "button")
    assert button.get_attribute("aria-expanded") == "false"
    button.send_keys("\n")
    assert button.get_attribute("aria-expanded") == "true"
    picture = browser.find_element("css selector", ".opened svg")
    assert picture.accessible_name.startswith("Lanes against")
    assert len(picture.find_elements("css selector", "rect")) >= 32
    assert browser.find_element("css selector", "svg[aria-label^='Roofline of H200']")
    facts = browser.find_element("css selector", ".facts").text
    assert "wavefronts" in facts and "occupancy" in facts


def test_only_what_can_be_avoided_is_red(browser, written, tmp_path):
    def red(address: str) -> list[float]:
        opened(browser, address)
        return browser.execute_script(
            "return [...document.querySelectorAll('.avoidable')].map((one) => one.offsetWidth)"
        )

    assert set(red(written.address["profile"])) == {0}
    kernel = written.kernels[0]
    worse = [replace(line, ideal=line.ideal // 4, offsets=tuple(range(0, 4096, 128))) for line in kernel.lines]
    page = profile_page("a profile", "", [("gemm", None, [replace(kernel, lines=tuple(worse))])], find("H200"))
    file = tmp_path / "page.html"
    file.write_text(page, encoding="utf-8")
    assert any(red(file.as_uri()))


def test_remarks_are_not_clipped_at_1280(browser, written):
    browser.set_window_size(1280, 900)
    opened(browser, written.address["profile"])
    box = browser.find_element("css selector", ".counters").rect
    for note in browser.find_elements("css selector", ".counters .note"):
        assert note.rect["x"] + note.rect["width"] <= box["x"] + box["width"] + 1
    browser.set_window_size(1400, 1000)


def test_the_kinds_of_a_files_words_cover_it():
    text = "// a comment\n#define N 3\n\n__global__ void k(float* x) {\n    x[0] = 1.5f;  /* two\n    lines */\n}\n"
    kinds = kinds_of(text)
    lines = text.splitlines()
    assert [sum(one[1::2]) for one in kinds[: len(lines)]] == [len(line) for line in lines]
    comment, keyword = KINDS.index(Comment) + 1, KINDS.index(Keyword) + 1
    assert kinds[0] == [comment, 12] and kinds[5][0] == comment and kinds[3][0] == keyword


def test_findings_have_both_lines(browser, written):
    opened(browser, written.address["check"])
    card = browser.find_element("css selector", ".finding")
    assert "race in softmax_kernel: partial[0]" in card.text and "softmax: 7 x 31" in card.text
    marked = [row.text for row in card.find_elements("css selector", ".source .race")]
    assert len(marked) == 2


def test_a_phone_shows_it_without_scrolling_sideways(browser, written):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        for name in ("gemm", "race", "profile", "check"):
            opened(browser, written.address[name])
            assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, name
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_source_text_cannot_become_markup(browser, tmp_path):
    """A file's text is text: a script in a comment is not run, and does not end the page's own script."""
    text = document(
        "<b>title</b>", ("dom.js",), ("page.css",), {"said": "</script><script>document.title='run'</script>"}
    )
    file = tmp_path / "page.html"
    file.write_text(text + "<script>document.body.dataset.ready = '1'</script>", encoding="utf-8")
    opened(browser, file.as_uri())
    assert browser.title == "<b>title</b>"
    assert browser.execute_script("return DATA.said").startswith("</script>")


def test_a_notebook_shows_it_in_a_frame(browser, written, tmp_path):
    """As %page of common.course.notebook does: the page embedded in another page."""
    from pathlib import Path
    from urllib.parse import unquote, urlparse

    from common.course.notebook import framed

    file = tmp_path / "notebook.html"
    ready = "document.querySelector('iframe').onload = () => { document.body.dataset.ready = '1'; };"
    page = framed(Path(unquote(urlparse(written.address["race"]).path)))
    file.write_text(f"<!doctype html><body>{page}<script>{ready}</script>", encoding="utf-8")
    messages(browser)
    opened(browser, file.as_uri())
    browser.switch_to.frame(browser.find_element("tag name", "iframe"))
    try:
        assert browser.find_element("tag name", "h1").text == "Replay of softmax"
        browser.find_element("css selector", "button[aria-label^='one step forward']").click()
        assert "line" in sentence(browser)
    finally:
        browser.switch_to.default_content()
    assert messages(browser) == []
