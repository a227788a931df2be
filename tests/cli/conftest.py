"""The real command, and its results."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest

from flowckpt.cli.groups import COMMANDS
from tests.forked import Started
from tests.in_process import run_command

PIPELINE = """
import os, sys, time
from enum import Enum
from pathlib import Path
from flowckpt import step, workflow

class Color(Enum):
    RED = "r"
    BLUE = "b"

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def fetch(source: Path, limit: int):
    note("fetch")
    print("a print of the user's")
    os.system("echo a print of a child")
    return {"rows": limit, "source": source.name}

def load(must_exist: str):
    note("load")
    if not os.path.exists(must_exist):
        raise ValueError("no file \\x1b[31m" + must_exist)
    return "loaded"

@workflow("etl")
def etl(source: Path, limit: int = 1000, color: Color = Color.RED):
    rows = yield step("fetch").python(fetch, source, limit).checkpoint()
    yield step("load").python(load, "ready").checkpoint()
    return rows["rows"]

def nap(index, seconds):
    note(f"start {index}")
    until = time.monotonic() + seconds
    while time.monotonic() < until and not Path(f"go-{index}").exists():
        time.sleep(0.005)
    note(f"done {index}")
    return index

@workflow
def naps(count: int = 3, seconds: float = 0.0):
    total = 0
    for index in range(count):
        total += yield step("nap").python(nap, index, seconds).checkpoint()
    return total

def local():
    @workflow("local")
    def inner():
        yield step("one").python(abs, -1).checkpoint()
        yield step("two").python(load, "ready").checkpoint()
    return inner

hidden = local()
"""


@attrs.frozen
class Ran:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)

    @property
    def told(self) -> list[str]:
        """The lines of standard error, without their times."""
        return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in self.err.splitlines()]

    def expect(self, code: int) -> Ran:
        """Assert the exit code; on failure, show the output."""
        assert self.code == code, f"exit code {self.code}\n--- out\n{self.out}\n--- err\n{self.err}"
        return self


@attrs.frozen
class Command:
    """Runs the command in a directory with `pipeline.py`, with additional environment variables."""

    directory: Path
    given: Mapping[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        kept = {
            key: value for key, value in os.environ.items() if key != "NO_COLOR" and not key.startswith("FLOWCKPT_")
        }
        return {**kept, "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONPATH": os.getcwd(), **self.given}

    def __call__(self, *arguments: str, stdin: str | None = None, **environ: str) -> Ran:
        """Run the command to its end."""
        env = {**self.environment, **environ}
        return Ran(*run_command([*arguments], cwd=self.directory, env=env, stdin=stdin))

    def start(self, *arguments: str, **options: Any) -> Started:
        """Start the command and leave it running."""
        return Started(
            ["-m", "flowckpt", *arguments],
            cwd=self.directory,
            env=self.environment,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options},
        )

    def log(self) -> list[str]:
        """Return the lines noted by the steps."""
        file = self.directory / "log"
        return file.read_text().splitlines() if file.exists() else []

    def wait_for(self, line: str) -> None:
        """Wait until a step has noted a line."""
        for _ in range(12_000):
            if line in self.log():
                return
            time.sleep(0.01)
        raise AssertionError(f"no line {line!r} in {self.log()}")


@pytest.fixture
def flowckpt(tmp_path: Path) -> Command:
    (tmp_path / "pipeline.py").write_text(PIPELINE)
    return Command(tmp_path)


@pytest.fixture(scope="session")
def commands() -> list[str]:
    return list(COMMANDS)


SHOP = """
import os
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

LIMIT = 3

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def fetch(limit):
    note("fetch")
    Path("raw.csv").write_text("x" * limit)
    return limit

def clean(rows):
    note("clean")
    Path("clean.csv").write_text("clean " * rows)
    return rows * 2

def count(number):
    note("count")
    return number

def load(rows, number):
    note("load")
    if not os.path.exists("ready"):
        raise ValueError("not ready")
    return rows + number

@workflow
def shop():
    rows = yield step("fetch").python(fetch, LIMIT).evidence(file_sha256("raw.csv")).checkpoint()
    cleaned = yield step("clean").python(clean, rows).evidence(file_sha256("clean.csv")).checkpoint()
    number = yield step("count").python(count, 1).checkpoint()
    return (yield step("load").python(load, cleaned, number).checkpoint())
"""


@attrs.frozen
class Shop(Command):
    """Runs the command on `shop.py`; its run `one` has failed at the last step, and the next resume succeeds."""

    def edit(self, old: str, new: str) -> None:
        """Edit the program."""
        file = self.directory / "shop.py"
        text = file.read_text()
        assert text.count(old) == 1, old
        file.write_text(text.replace(old, new))

    def stored(self) -> dict[str, tuple[bytes, int]]:
        """Return every file of the store, with its bytes and its modification time."""
        store = self.directory / ".flowckpt"
        files = [file for file in sorted(store.rglob("*")) if file.is_file()]
        return {str(file.relative_to(store)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}

    def decisions(self, *options: str, code: int) -> dict[str, str]:
        """Return the decisions of a plan, by step."""
        document = self("plan", "one", "--json", *options).expect(code).document
        return {planned["path"]: planned["decision"] for planned in document["steps"]}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    (tmp_path / "shop.py").write_text(SHOP)
    command = Shop(tmp_path)
    command("run", "shop.py", "--id", "one").expect(1)
    (tmp_path / "ready").touch()
    (tmp_path / "log").unlink()
    return command
