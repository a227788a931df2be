"""Record the pictures of the pages: the waterfall of the README, and the local page.

    python docs/screenshots.py [DIRECTORY]        # writes waterfall.png and local-page.png to docs/, or DIRECTORY

The run, the kill and the resume are those of `crash_and_resume.py`. Chromium makes the pictures.
"""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from crash_and_resume import RESUME, TRIES, record_session
from playwright.sync_api import Page, sync_playwright

WIDTH = 960
WAITING = """
from flowckpt import step, workflow


@workflow("release")
def release(version: str):
    yield step("build").python(str.upper, version).checkpoint()
    yield step("ask").approval("ship")
    yield step("announce").wait("channel", type=str)
"""


def main() -> None:
    """Write the pictures."""
    target = Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).parent
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as directory:
            lines = record_session(Path(directory))
            if any("3 restored from" in line for line in lines):
                photograph(Path(directory), target)
                return
    sys.exit(f"The kill came too late {TRIES} times: this machine is too busy.")


def photograph(directory: Path, target: Path) -> None:
    """Write the pictures of the runs in a directory."""
    run = RESUME[-1]
    (directory / "release.py").write_text(WAITING)
    flowckpt(directory, "report", run)
    flowckpt(directory, "run", "release.py", "--id", "release-2.1", "-i", "version=v2.1")
    with opened_page() as tab, served(directory) as address:
        tab.goto((directory / f"{run}.html").as_uri())
        tab.wait_for_selector(".waterfall .row")
        bottom = tab.locator(".legend").bounding_box()
        assert bottom is not None
        height = bottom["y"] + bottom["height"] + 8
        tab.screenshot(path=target / "waterfall.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        tab.goto(address)
        tab.get_by_role("link", name="release-2.1").click()
        tab.wait_for_selector(".waterfall .row")
        tab.screenshot(path=target / "local-page.png")


def flowckpt(directory: Path, *arguments: str) -> None:
    """Run a command in a directory."""
    subprocess.run([sys.executable, "-m", "flowckpt", *arguments], cwd=directory, check=False)  # noqa: S603


@contextmanager
def opened_page() -> Iterator[Page]:
    """Open a browser."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser.new_page(viewport={"width": WIDTH, "height": 560})
        browser.close()


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """Serve the local page; the address has its token."""
    command = [sys.executable, "-m", "flowckpt", "ui"]
    with subprocess.Popen(command, cwd=directory, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603
        assert server.stderr is not None
        address = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+", line)))
        yield address
        server.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
