"""A real browser for the tests of pages: the system's Chromium, driven by Playwright."""

from __future__ import annotations

import asyncio
import shutil

import pytest

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="session")
def _started():
    """The browser of a worker, and the event loop in which Playwright drives it.

    Playwright leaves its loop marked as running, which would prevent other tests of the worker from running a loop; so the
    mark is set only during tests that use the browser.
    """
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright for Python is not installed")
    playwright.expect.set_options(timeout=120_000)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS.split())
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)
        browser.close()


@pytest.fixture
def chromium(_started):
    """The system's Chromium, driven by Playwright."""
    browser, loop = _started
    asyncio._set_running_loop(loop)
    yield browser
    asyncio._set_running_loop(None)


@pytest.fixture
def tab(chromium):
    """A page of a browser without a network; its errors and requests are in `tab.said` and `tab.asked`."""
    context = chromium.new_context(offline=True, viewport={"width": 1200, "height": 900})
    context.set_default_timeout(120_000)
    page = context.new_page()
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    yield page
    context.close()
