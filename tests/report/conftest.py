"""Runs to report on."""

from __future__ import annotations

import textwrap

import pytest

from tests.cli.conftest import Command

PROGRAM = """
import os
from pathlib import Path
from flowckpt import parallel, step, workflow

def fetch(source, limit):
    return [f"page-{number}" for number in range(limit)]

def parse(page):
    if page == "page-3" and not Path("parsed").exists():
        raise ValueError("<b>bad</b> & </script><script>alert(1)</script>")
    return {"page": page, "words": len(page)}

def publish(pages):
    if not Path("published").exists():
        Path("published").write_text("")
        os.kill(os.getpid(), 9)
    return len(pages)

def load(pages, path):
    return len(pages)

@workflow("etl")
def etl(source: str = "orders", limit: int = 30):
    pages = yield step("fetch").python(fetch, source, limit).checkpoint()
    parsed = yield step("parse").map(parse, pages, concurrency=1).checkpoint()
    yield step("publish").python(publish, parsed)
    yield parallel(step("left").python(len, parsed), step("right").python(str, "three"))
    return (yield step("load").python(load, parsed, "out.txt").checkpoint())
"""


@pytest.fixture
def etl(tmp_path) -> Command:
    """A run `one` that failed, was resumed, killed, and resumed to its end; and an earlier run `usual`."""
    (tmp_path / "pipeline.py").write_text(textwrap.dedent(PROGRAM))
    command = Command(tmp_path)
    for name in ("parsed", "published"):
        (tmp_path / name).touch()
    command("run", "pipeline.py", "--id", "usual").expect(0)
    for name in ("parsed", "published"):
        (tmp_path / name).unlink()
    command("run", "pipeline.py", "--id", "one").expect(1)
    (tmp_path / "parsed").touch()
    command("resume", "one").expect(-9)
    command("resume", "one").expect(0)
    return command
