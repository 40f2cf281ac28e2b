"""The built site in a browser: search, navigation, pictures in dark mode."""

import functools
import http.server
import subprocess
import sys
import threading

import browser as browsers
import pytest


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory, root):
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    handler = functools.partial(Quiet, directory=folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def window():
    found = browsers.pages(1280, 900)
    if found is None:
        pytest.skip(browsers.WHY_NOT)
    yield found
    found.quit()


def wait_for(window, script: str):
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(window, 30).until(lambda one: one.execute_script(f"return {script}"))


@pytest.mark.parametrize("words", ["--replay", "task2.test"])
def test_a_flag_and_a_command_are_found(window, address, words):
    window.get(f"{address}/")
    box = window.find_element("css selector", ".md-search__input")
    window.execute_script("arguments[0].focus()", box)
    box.send_keys(words)
    assert wait_for(window, "document.querySelectorAll('.md-search-result__item').length") > 2


def test_the_sidebar_has_every_task_once_and_start_is_not_alone(window, address):
    shown = "[...document.querySelectorAll('.md-nav--primary a.md-nav__link')].filter((one) => one.offsetParent)"
    window.get(f"{address}/task2/")
    names = wait_for(window, f"{shown}.map((one) => one.innerText.trim())")
    numbers = [name[0] for name in names if name[:1].isdigit()]
    assert numbers == list("1234567")
    window.get(f"{address}/")
    assert wait_for(window, f"{shown}.length") > 3


def test_pictures_follow_the_page(window, address):
    window.get(f"{address}/task2/")
    scheme = "getComputedStyle(document.querySelector('article img')).colorScheme"
    for name, expected in (("slate", "dark"), ("default", "light")):
        window.execute_script(f"document.body.setAttribute('data-md-color-scheme', '{name}')")
        assert window.execute_script(f"return {scheme}") == expected


def test_code_has_colors(window, address):
    window.get(f"{address}/docs/working/")
    assert wait_for(window, "document.querySelectorAll('.highlight [class^=k], .highlight .c1').length") > 0
