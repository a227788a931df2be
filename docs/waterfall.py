"""Record the waterfall of the README: the report of a run that was killed with `kill -9` and resumed.

    python docs/waterfall.py [FILE]        # writes docs/waterfall.png, or FILE

The run, the kill and the resume are those of `crash_and_resume.py`. The picture is made by Chromium.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from crash_and_resume import RESUME, TRIES, record_session
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("waterfall.png")


def main() -> None:
    """Write the picture."""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory() as directory:
            lines = record_session(Path(directory))
            if any("3 restored from" in line for line in lines):
                run = RESUME[-1]
                subprocess.run([sys.executable, "-m", "flowckpt", "report", run], cwd=directory, check=True)  # noqa: S603
                photograph(Path(directory) / f"{run}.html", Path(sys.argv[1]) if sys.argv[1:] else PICTURE)
                return
    sys.exit(f"The kill came too late {TRIES} times: this machine is too busy.")


def photograph(page: Path, picture: Path) -> None:
    """Write the picture of the top of a report."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        tab = browser.new_page(viewport={"width": 960, "height": 500})
        tab.goto(page.as_uri())
        tab.wait_for_selector(".waterfall .row")
        bottom = tab.locator(".legend").bounding_box()
        assert bottom is not None
        height = bottom["y"] + bottom["height"] + 8
        tab.screenshot(path=picture, clip={"x": 0, "y": 0, "width": 960, "height": height})
        browser.close()


if __name__ == "__main__":
    main()
