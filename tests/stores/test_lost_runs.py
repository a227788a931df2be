"""An owner whose run is taken over while its step works: the step is stopped, and nothing more is done or saved."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time

import pytest

PROGRAM = """
import asyncio, os, subprocess, sys, time
from flowckpt import step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(f"{line} {os.getpid()}\\n")

def first():
    note("first")

def undo(_):
    note("undone")

def quick():
    note("taken over")

def slow():
    for _ in range(400):
        note("at work")
        time.sleep(0.1)

def asleep():
    note("at work")
    time.sleep(40)

async def slow_async():
    for _ in range(400):
        note("at work")
        await asyncio.sleep(0.1)

SHELL = "for i in $(seq 400); do echo at work $$ >>log; sleep 0.1; done"

@workflow("taken")
def taken(how: str):
    yield step("first").python(first).rollback(undo).checkpoint()
    if os.environ.get("SECOND"):
        yield step("second").python(quick)
    elif how == "command":
        yield step("second").command(["sh", "-c", SHELL])
    elif how == "async":
        yield step("second").python(slow_async)
    elif how == "asleep":
        yield step("second").python(asleep)
    elif how == "thread":
        yield step("second").python(slow).timeout(60)
    elif how == "process":
        yield step("second").python(slow).on("process")
    else:
        yield step("second").python(slow)
    try:
        yield step("last").python(first)
    finally:
        pass
"""

COMMAND = """
import sys
from flowckpt.stores.leases import LeaseTimes
LeaseTimes.interval = property(lambda self: 0.3)
from flowckpt.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(params=["file", "sqlite", "postgresql", "objects"])
def store(request, tmp_path):
    if request.param == "postgresql":
        database = request.getfixturevalue("postgres_database")
        return f"{request.getfixturevalue('postgres').url(database)}?allow_unsafe=true"
    if request.param == "file":
        return "file:runs"
    if request.param == "sqlite":
        return "sqlite:runs.db"
    return f"objects+file://{tmp_path / 'store'}?allow_unsafe=true"


@pytest.fixture
def owner_at_work(tmp_path):
    """Start a run in a process of its own, and wait until its step works."""
    (tmp_path / "taken.py").write_text(PROGRAM)
    started = []

    def start(store, how):
        process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, "run", "taken.py:taken", "--id", "r", "--store", store, "-i", f"how={how}"],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        wait_until(lambda: "at work" in log(tmp_path))
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def log(directory):
    path = directory / "log"
    return path.read_text() if path.exists() else ""


def wait_until(is_so, seconds=30.0):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def steal(store, directory):
    return subprocess.run(
        [sys.executable, "-m", "flowckpt", "resume", "r", "--steal", "--store", store],
        cwd=directory,
        env={**os.environ, "SECOND": "yes"},
        capture_output=True,
        text=True,
    )


def stopped(process, directory):
    """Wait for the end of a former owner; return its exit code, and the lines that came when it was fenced."""
    _, said = process.communicate(timeout=5)
    before = log(directory)
    time.sleep(0.5)
    assert log(directory) == before, "something works on"
    assert "Traceback" not in said, said
    return process.returncode, said


def check_taken_over(store, directory, process):
    took = steal(store, directory)
    assert took.returncode == 0, took.stderr
    code, said = stopped(process, directory)
    assert code == 75, said
    assert "undone" not in log(directory)
    shown = subprocess.run(
        [sys.executable, "-m", "flowckpt", "show", "r", "--json", "--store", store],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert '"completed"' in shown


def test_a_step_is_stopped_when_another_process_takes_the_run_over(store, owner_at_work, tmp_path):
    check_taken_over(store, tmp_path, owner_at_work(store, "in_place"))


@pytest.mark.parametrize("how", ["asleep", "async", "command", "thread", "process"])
def test_whatever_the_step_does_it_is_stopped(how, owner_at_work, tmp_path):
    check_taken_over("sqlite:runs.db", tmp_path, owner_at_work("sqlite:runs.db", how))


@pytest.mark.parametrize("store", ["file", "sqlite", "postgresql"], indirect=True)
def test_an_owner_is_not_stopped_by_a_takeover_that_is_refused(store, owner_at_work, tmp_path):
    process = owner_at_work(store, "in_place")
    source = tmp_path / "taken.py"
    source.write_text(source.read_text().replace('step("first")', 'step("renamed")'))
    refused = steal(store, tmp_path)
    assert refused.returncode not in (0, 75), refused.stderr
    before = log(tmp_path)
    time.sleep(1.0)  # three looks
    assert process.poll() is None
    assert log(tmp_path) != before
