"""An owner whose run is taken over while its step works: the step is stopped, and nothing more is done or saved."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.stores import open_store
from tests.forked import Started, run_module

PROGRAM = """
import asyncio, os, subprocess, sys, time
from flowckpt import parallel, step, workflow

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

def work_on(name):
    for _ in range(400):
        note(f"{name} at work")
        time.sleep(0.1)

async def work_on_async(name):
    for _ in range(400):
        note(f"{name} at work")
        await asyncio.sleep(0.1)

@workflow("inner")
def inner():
    yield step("before").python(first).rollback(undo).checkpoint()
    yield step("deep").python(quick if os.environ.get("SECOND") else work_on, *(() if os.environ.get("SECOND") else ("child",)))

def fail():
    raise ValueError("undo it")

def undo_slowly(_):
    if os.environ.get("SECOND"):
        note("undone")
    else:
        work_on("undoing")

@workflow("undoing")
def undoing():
    yield step("first").python(first).rollback(undo).checkpoint()
    yield step("second").python(first).rollback(undo_slowly).checkpoint()
    yield step("fail").python(fail)

SHELL = "for i in $(seq 400); do echo at work $$ >>log; sleep 0.1; done"

@workflow("taken")
def taken(how: str):
    yield step("first").python(first).rollback(undo).checkpoint()
    if how == "child":
        yield step("second").workflow(inner)
    elif how == "beside":
        is_second = os.environ.get("SECOND")
        members = [("thread", work_on), ("async", work_on_async)]
        yield parallel(
            *(step(name).python(quick) if is_second else step(name).python(act, name) for name, act in members),
            step("child").workflow(inner),
        )
    elif os.environ.get("SECOND"):
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


@pytest.fixture(params=["file", "sqlite", "postgresql", "s3", pytest.param("objects", marks=pytest.mark.soak)])
def store(request, tmp_path):
    if request.param == "postgresql":
        database = request.getfixturevalue("postgres_database")
        return f"{request.getfixturevalue('postgres').url(database)}?allow_unsafe=true"
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        return server.spec(server.make_bucket())
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
        target = ["taken.py:undoing"] if how == "undoing" else ["taken.py:taken", "-i", f"how={how}"]
        process = Started(
            ["-c", COMMAND, "run", *target, "--id", "r", "--store", store],
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        wait_until(lambda: "at work" in log(tmp_path))
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stderr.close()


def log(directory):
    path = directory / "log"
    return path.read_text() if path.exists() else ""


def wait_until(is_so, seconds=120.0):
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def steal(store, directory):
    """Take the run over; return the exit code, and what was said."""
    words = ["resume", "r", "--steal", "--store", store]
    code, _, said = run_module("flowckpt", words, cwd=directory, env={**os.environ, "SECOND": "yes"})
    return code, said


def stopped(process, directory):
    """Wait for the end of a former owner; return its exit code, and the lines that came when it was fenced."""
    _, said = process.communicate(timeout=120)
    before = log(directory)
    time.sleep(0.5)
    assert log(directory) == before, "something works on"
    assert "Traceback" not in said, said
    return process.returncode, said


def check_taken_over(store, directory, process, *, code=0, status="completed"):
    """Take the run over: the former owner ends with 75, acknowledges nothing more, and undoes nothing."""
    acknowledged = standing(store, directory)[1]
    took, told = steal(store, directory)
    assert took == code, told
    code, said = stopped(process, directory)
    assert code == 75, said
    assert f"undone {process.pid}" not in log(directory)
    assert standing(store, directory) == (status, acknowledged)


def standing(store, directory):
    """Return how the run stands, and the checkpoints of its first owner."""
    kind, _, place = store.partition(":")
    door = open_store(f"{kind}:{directory / place}" if kind in ("file", "sqlite") else store)
    with blocking_allowed(True):
        status = door.runs.describe_run("r").status
        saved = [ref.checkpoint_id for ref in door.runs.references("r") if ref.attempt == 1]
    door.close()
    return status.value, saved


def test_a_step_is_stopped_when_another_process_takes_the_run_over(store, owner_at_work, tmp_path):
    check_taken_over(store, tmp_path, owner_at_work(store, "in_place"))


@pytest.mark.parametrize("how", ["asleep", "command", "process"])
def test_whatever_the_step_does_it_is_stopped(how, owner_at_work, tmp_path):
    check_taken_over("sqlite:runs.db", tmp_path, owner_at_work("sqlite:runs.db", how))


@pytest.mark.soak
def test_a_child_workflow_is_stopped_with_its_parent(owner_at_work, tmp_path):
    check_taken_over("sqlite:runs.db", tmp_path, owner_at_work("sqlite:runs.db", "child"))


@pytest.mark.parametrize("store", ["sqlite", pytest.param("s3", marks=pytest.mark.soak)], indirect=True)
def test_all_that_runs_beside_each_other_is_stopped(store, owner_at_work, tmp_path):
    process = owner_at_work(store, "beside")
    for name in ("thread", "async", "child"):
        wait_until(lambda name=name: f"{name} at work" in log(tmp_path))
    check_taken_over(store, tmp_path, process)


def test_an_undoing_that_was_taken_over_is_finished_by_the_new_owner_alone(owner_at_work, tmp_path):
    process = owner_at_work("sqlite:runs.db", "undoing")
    check_taken_over("sqlite:runs.db", tmp_path, process, code=1, status="failed")
    assert [line.split()[0] for line in log(tmp_path).splitlines()].count("undone") == 2


@pytest.mark.parametrize("store", ["file", "sqlite", "postgresql"], indirect=True)
def test_an_owner_is_not_stopped_by_a_takeover_that_is_refused(store, owner_at_work, tmp_path):
    process = owner_at_work(store, "in_place")
    source = tmp_path / "taken.py"
    source.write_text(source.read_text().replace('step("first")', 'step("renamed")'))
    refused, said = steal(store, tmp_path)
    assert refused not in (0, 75), said
    before = log(tmp_path)
    wait_until(lambda: log(tmp_path).count("at work") >= before.count("at work") + 12)  # longer than three looks
    assert process.poll() is None
