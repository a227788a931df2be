"""The live display as a person sees it: in a terminal of tmux, whose screen and scrollback are read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = """
import sys, time
from getpass import getpass
from pathlib import Path
from flowckpt import step, workflow

def wait_for(name):
    while not Path(name).exists():
        time.sleep(0.01)

def page(number):
    if number == 7:
        raise ValueError("no page seven")
    if number == 20:
        wait_for("pages")
    return number

def talk():
    print("a line of the user")
    wait_for("talked")

def bar():
    for part in range(3):
        sys.stderr.write(f"\\rbar {part} of 3")
        sys.stderr.flush()
    wait_for("bar")
    sys.stderr.write("\\rbar 3 of 3\\n")

def ask():
    return input("your name? ")

def secret():
    return len(getpass("the word? "))

def debug():
    number = 41
    breakpoint()
    return number + 1

@workflow
def shown():
    yield step("pages").map(page, range(40), concurrency=1, tolerate=1).checkpoint()
    yield step("talk").python(talk)
    yield step("bar").python(bar)
    name = yield step("ask").python(ask)
    size = yield step("secret").python(secret)
    number = yield step("debug").python(debug)
    return f"{name} {size} {number}"
"""


class Screen:
    """A terminal in a server of tmux of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._tmux = ["tmux", "-L", f"flowckpt-test-{os.getpid()}", "-f", "/dev/null"]
        environ = {"PS1": "$ ", "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(directory)}
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            if name in os.environ:
                environ[name] = os.environ[name]
        self.do("new-session", "-d", "-x", "100", "-y", "30", "-c", str(directory), "sh", environ=environ)

    def do(self, *arguments: str, environ: dict[str, str] | None = None) -> str:
        return subprocess.run(
            [*self._tmux, *arguments], env=environ, capture_output=True, text=True, check=True, timeout=120
        ).stdout

    def type(self, keys: str) -> None:
        self.do("send-keys", "-l", keys)
        self.do("send-keys", "Enter")

    @property
    def lines(self) -> list[str]:
        """What the screen and its scrollback show."""
        return [line.rstrip() for line in self.do("capture-pane", "-p", "-S", "-").rstrip().splitlines()]

    def wait_for(self, pattern: str, *, is_last: bool = False) -> list[str]:
        """Wait for a line, or for a last one: what was drawn below it is wiped a moment later."""
        deadline = time.monotonic() + 120
        while True:
            lines = self.lines
            if any(re.search(pattern, line) for line in (lines[-1:] if is_last else lines)):
                return lines
            assert time.monotonic() < deadline, "\n".join(lines)
            time.sleep(0.05)

    def release(self, name: str) -> None:
        (self.directory / name).touch()

    def close(self) -> None:
        self.do("kill-server")


@pytest.fixture(scope="module")
def screen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Screen]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: the live display was not looked at (apt-get install tmux)")
    directory = tmp_path_factory.mktemp("live")
    (directory / "shown.py").write_text(PROGRAM)
    found = Screen(directory)
    yield found
    found.close()


def test_a_person_sees_every_step_and_can_answer_and_debug(screen: Screen) -> None:
    screen.type(f"{sys.executable} -m flowckpt run shown.py --id one; echo exit $?")
    lines = screen.wait_for(r"pages  ━+─+ 20/40, 1 failed  .*/s  .* left")
    assert any(line.startswith("✗ pages/[7]") and "ValueError: no page seven" in line for line in lines)
    screen.release("pages")
    lines = screen.wait_for(r"[^✓] talk  ")
    assert any(re.match(r"✓ pages  40/40, 1 failed  .*  saved$", line) for line in lines)
    assert "a line of the user" in screen.wait_for(r"^a line of the user")
    assert re.match(r"41 executed, 0 restored, 1 failed", lines[-1])
    screen.release("talked")

    screen.wait_for(r"^bar 2 of 3$", is_last=True)  # the bar has the line for itself, and nothing is drawn below it
    screen.release("bar")
    assert "bar 3 of 3" in screen.wait_for(r"^your name\?$", is_last=True)
    screen.type("momo")
    screen.wait_for(r"the word\?$")
    screen.type("xyzzy")
    lines = screen.wait_for(r"^\(Pdb\)$")
    screen.type("p number")
    assert "41" in screen.wait_for(r"^41$")
    screen.type("c")

    lines = screen.wait_for(r"^exit 0$")
    assert not any("xyzzy" in line for line in lines)
    ended = [line.split()[1] for line in lines if line[:1] in "✓✗"]
    assert ended == ["pages/[7]", "pages", "talk", "bar", "ask", "secret", "debug"]
    counts = [line for line in lines if "executed" in line]
    assert len(counts) == 2 and counts[0].startswith("46 executed, 0 restored, 1 failed")  # drawn, and in the summary
    assert counts[1] == "steps: 46 executed, 0 restored, 1 failed"
    assert "output: 'momo 5 42'" in lines
