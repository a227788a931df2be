"""The example of the README: what it prints, and the picture of its crash and resume."""

import html
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUICKSTART = ROOT / "examples" / "quickstart.py"
PICTURE = ROOT / "docs" / "crash-and-resume.svg"


def test_it_does_the_same_each_time_and_wherever_it_runs(tmp_path):
    (tmp_path / "something.txt").write_text("not an input")
    for _ in range(2):
        ended = subprocess.run([sys.executable, QUICKSTART], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert ended.stdout == "70\n"
        assert (tmp_path / "report.txt").read_text() == "12 rows, sum 70\n"
        assert {each.name for each in tmp_path.iterdir()} == {".flowckpt", "report.txt", "something.txt"}


def lines_of(picture: Path) -> list[str]:
    """Return the lines of a picture, with `N` for times and `*` for the spinner."""
    drawn = re.findall(
        r'<text class="flowckpt-r\d+" [^>]*?y="([\d.]+)"[^>]*>([^<]*)</text>', picture.read_text("utf-8")
    )
    lines: dict[str, str] = {}
    for height, text in drawn:
        lines[height] = lines.get(height, "") + html.unescape(text).replace("\xa0", " ")
    spun = [re.sub("^[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", "*", line) for line in lines.values()]
    return [re.sub(r"[\d.]+ m?s\b", "N", line).rstrip() for line in spun if line.strip()]


def test_the_picture_shows_what_a_kill_and_a_resume_print(tmp_path):
    made = tmp_path / "made.svg"
    subprocess.run([sys.executable, ROOT / "docs" / "crash_and_resume.py", made], check=True, timeout=120)
    assert lines_of(made) == lines_of(PICTURE)
    assert "✓ 3 restored from demo (attempt 1)" in lines_of(PICTURE)
