"""A headless browser: Debian's Chromium, driven by selenium.

browser = pages()                   None if either is missing: WHY_NOT says what to install
messages(browser), asked_for(browser)
"""

from __future__ import annotations

import json
import shutil

WHY_NOT = "needs Chromium and selenium: apt-get install chromium chromium-driver; pip install -e '.[browser]'"


def pages(width: int = 1400, height: int = 1000):
    """A browser window of this size, or None if there is no browser."""
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        return None
    if not chromium or not driver:
        return None
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={width},{height}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(driver))
    browser.set_page_load_timeout(120)
    return browser


def opened(browser, address: str) -> float:
    """Opens a page, waits until it has rendered, and returns the milliseconds it reports."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.get("about:blank")  # an address that differs only after # would not reload
    browser.get(address)
    WebDriverWait(browser, 120).until(lambda one: one.execute_script("return document.body.dataset.ready"))
    return float(browser.execute_script("return document.body.dataset.ready"))


def messages(browser) -> list[str]:
    """What the page has written to the console since the last call."""
    return [entry["message"] for entry in browser.get_log("browser")]


def asked_for(browser) -> list[str]:
    """The addresses requested since the last call, except data: URLs within the page."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    return [url for url in sent if not url.startswith(("data:", "blob:"))]
