"""`flowckpt cancel`: a run ends for good, and what it did is undone, whoever runs it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

PROGRAM = """
import asyncio, os, time
from flowckpt import step, workflow

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def book(what):
    note(f"book {what}")
    return what

def undo(what):
    note(f"undo {what}")

def last(seconds):
    note("last")
    if os.path.exists("die"):
        os.kill(os.getpid(), 9)
    if seconds < 0:
        raise ValueError("no")
    time.sleep(seconds)

async def doze(seconds):
    note("last")
    await asyncio.sleep(seconds)

@workflow
def trip(seconds: float = 0.0, is_async: bool = False):
    yield step("hotel").python(book, "hotel").rollback(undo).checkpoint()
    yield step("flight").python(book, "flight").rollback(undo).checkpoint()
    yield step("last").python(doze if is_async else last, seconds).checkpoint()

@workflow
def short_steps(count: int = 1000):
    yield step("hotel").python(book, "hotel").rollback(undo).checkpoint()
    for index in range(count):
        yield step("last").python(last, 0.05)

@workflow
def waiting():
    yield step("hotel").python(book, "hotel").rollback(undo).checkpoint()
    yield step("ask").wait("go")
"""

EMBEDDED = """
import asyncio
from flowckpt import WorkflowEngine
from trip import short_steps

print(asyncio.run(WorkflowEngine().run(short_steps, workflow_id="one")).status)
"""

TWO = """
import threading
from flowckpt import WorkflowEngine
from trip import short_steps

found = {}

def run(name, count):
    found[name] = WorkflowEngine().run_sync(short_steps, workflow_id=name, count=count).status

thread = threading.Thread(target=run, args=("two", 1000))
thread.start()
run("one", 80)
thread.join()
print(found["one"], found["two"])
"""

UNDONE = ["book hotel", "book flight", "last", "undo flight", "undo hotel"]


@pytest.fixture
def trips(flowckpt):
    (flowckpt.directory / "trip.py").write_text(PROGRAM)
    return flowckpt


@pytest.mark.parametrize("is_async", ["true", "false"])
def test_a_live_run_is_stopped_in_its_step_undone_and_cancelled(trips, is_async):
    owner = trips.start("run", "trip.py:trip", "--id", "one", "-i", "seconds=60", "-i", f"is_async={is_async}")
    trips.wait_for("last")
    ran = trips("cancel", "one", "--json").expect(0)
    assert ran.document == {
        "workflow_id": "one",
        "was": "running",
        "undone": ["flight", "hotel"],
        "not_undone": [],
        "in_doubt": [],
        "attempt": 1,
    }
    _, err = owner.communicate(timeout=120)
    assert (owner.returncode, trips.log()) == (143, UNDONE), err
    assert trips("list", "--json").document[0]["status"] == "cancelled"
    assert trips("recover", "--json").expect(0).document["runs"] == []


def test_a_live_run_can_be_stopped_with_nothing_undone(trips):
    owner = trips.start("run", "trip.py:trip", "--id", "one", "-i", "seconds=60")
    trips.wait_for("last")
    trips("cancel", "one", "--no-rollback").expect(0)
    owner.communicate(timeout=120)
    assert trips.log() == UNDONE[:3]
    assert trips("cancel", "one", "--json").expect(0).document["undone"] == ["flight", "hotel"]  # asked for later


def test_a_crashed_run_is_undone_by_its_program_without_running_anything_else(trips):
    (trips.directory / "die").touch()
    trips("run", "trip.py:trip", "--id", "one").expect(-signal.SIGKILL)
    ran = trips("cancel", "one", "--json").expect(0)
    assert (ran.document["was"], ran.document["undone"]) == ("crashed", ["flight", "hotel"])
    assert trips.log() == UNDONE


def test_a_request_that_its_process_did_not_live_to_read_is_obeyed_before_the_next_step(trips):
    owner = trips.start("run", "trip.py:trip", "--id", "one", "-i", "seconds=60")
    trips.wait_for("last")
    owner.send_signal(signal.SIGSTOP)
    trips("cancel", "one", "--wait", "0").expect(75)
    owner.kill()
    owner.communicate()
    before = trips.log()
    assert "cancelled" in trips("resume", "one").expect(143).out
    assert trips.log() == [*before, "undo flight", "undo hotel"]


def test_a_suspended_run_is_cancelled(trips):
    trips("run", "trip.py:waiting", "--id", "one", "--stay", "0").expect(3)
    assert trips("cancel", "one", "--json").expect(0).document["was"] == "suspended"
    assert trips.log() == ["book hotel", "undo hotel"]
    assert trips("list", "--json").document[0]["status"] == "cancelled"


def test_a_run_that_stays_and_waits_is_cancelled(trips):
    owner = trips.start("run", "trip.py:waiting", "--id", "one", "--stay", "60")
    for _ in range(100):
        if trips("list", "--status", "suspended", "--json").document:
            break
    trips("cancel", "one").expect(0)
    owner.communicate(timeout=120)
    assert (owner.returncode, trips.log()) == (143, ["book hotel", "undo hotel"])


def test_a_failed_run_that_was_undone_is_not_undone_twice(trips):
    trips("run", "trip.py:trip", "--id", "one", "-i", "seconds=-1").expect(1)
    assert trips.log() == UNDONE
    ran = trips("cancel", "one", "--json").expect(0)
    assert (ran.document["was"], ran.document["undone"]) == ("failed", [])
    assert trips.log() == UNDONE


def test_without_its_program_a_run_is_cancelled_with_nothing_undone_only_on_request(trips):
    (trips.directory / "die").touch()
    trips("run", "trip.py:trip", "--id", "one").expect(-signal.SIGKILL)
    (trips.directory / "trip.py").unlink()
    trips("cancel", "one").expect(2)
    assert trips("list", "--json").document[0]["status"] == "crashed"
    assert trips("cancel", "one", "--no-rollback", "--json").expect(0).document["undone"] == []
    assert trips("list", "--json").document[0]["status"] == "cancelled"


def test_a_completed_run_and_one_that_does_not_exist_are_refused(trips):
    trips("run", "trip.py:trip", "--id", "one").expect(0)
    assert "completed" in trips("cancel", "one").expect(2).err
    trips("cancel", "one", "--no-rollback").expect(2)
    trips("cancel", "two").expect(12)
    assert trips.log() == UNDONE[:3]


def test_a_run_in_an_application_without_handlers_is_cancelled_between_two_steps(trips):
    (trips.directory / "app.py").write_text(EMBEDDED)

    owner = subprocess.Popen(
        [sys.executable, "app.py"], cwd=trips.directory, env=trips.environment, stdout=subprocess.PIPE, text=True
    )
    trips.wait_for("last")
    ran = trips("cancel", "one", "--json").expect(0)
    assert ran.document["undone"] == ["hotel"]
    out, _ = owner.communicate(timeout=120)
    assert (owner.returncode, out) == (0, "cancelled\n")  # the application itself goes on
    assert trips("show", "one").expect(0).out.count("not taken yet") == 0


def test_an_owner_that_does_not_stop_in_time_is_told(trips):
    owner = trips.start("run", "trip.py:trip", "--id", "one", "-i", "seconds=60")
    trips.wait_for("last")
    owner.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    assert "asked to stop" in trips("cancel", "one", "--wait", "0.2").expect(75).err
    assert time.monotonic() - began < 50
    owner.send_signal(signal.SIGCONT)
    owner.communicate(timeout=120)
    assert (owner.returncode, trips.log()) == (143, UNDONE)


def test_an_owner_whose_run_was_taken_over_names_the_new_owner_and_advises_no_resume(trips):
    owner = trips.start("run", "trip.py:trip", "--id", "one", "-i", "seconds=1")
    trips.wait_for("last")
    owner.send_signal(signal.SIGSTOP)
    trips("resume", "one", "--steal").expect(0)
    owner.send_signal(signal.SIGCONT)
    _, said = owner.communicate(timeout=120)
    assert owner.returncode == 75 and "attempt 2 has taken over" in said
    assert "The new owner has the earlier checkpoints: 'flowckpt show one'" in said and "Resume with" not in said


def test_a_cancelled_run_can_be_resumed_and_is_not_cancelled_again(trips):
    (trips.directory / "die").touch()
    trips("run", "trip.py:trip", "--id", "one").expect(-signal.SIGKILL)
    cancelled = trips("cancel", "one").expect(0)
    assert "step last had started and has no recorded end, so it was not undone" in cancelled.err
    (trips.directory / "die").unlink()
    trips("resume", "one").expect(0)
    assert trips.log() == [*UNDONE, "book hotel", "book flight", "last"]


@pytest.mark.parametrize("options", [[], ["--no-rollback"]], ids=["", "without its program"])
def test_a_failed_run_that_was_cancelled_runs_its_failed_step_again(flowckpt, tmp_path, options):
    program = """
from pathlib import Path
from flowckpt import step, workflow

def load():
    return Path("rows").read_text()

@workflow
def loading():
    yield step("begin").python(int).checkpoint()
    return (yield step("load").python(load).checkpoint())
"""
    (tmp_path / "loading.py").write_text(program)
    flowckpt("run", "loading.py", "--id", "one").expect(1)
    flowckpt("cancel", "one", *options).expect(0)
    (tmp_path / "rows").write_text("three")
    assert "load" in flowckpt("plan", "one").expect(0).out
    assert flowckpt("resume", "one", "--json").expect(0).document["output"] == "three"


def test_of_two_runs_of_a_process_only_the_one_that_is_meant_is_cancelled(trips):
    (trips.directory / "app.py").write_text(TWO)
    owner = subprocess.Popen(
        [sys.executable, "app.py"], cwd=trips.directory, env=trips.environment, stdout=subprocess.PIPE, text=True
    )
    trips.wait_for("last")
    trips("cancel", "two").expect(0)
    out, _ = owner.communicate(timeout=120)
    assert (owner.returncode, out) == (0, "completed cancelled\n")


def test_a_run_that_is_in_a_crash_loop_after_many_deaths_is_left_by_recover_and_can_be_cancelled(trips):
    (trips.directory / "die").touch()
    trips("run", "trip.py:trip", "--id", "one", "--max-crashes", "1").expect(-signal.SIGKILL)
    ran = trips("recover", "--json").expect(1)
    assert (ran.document["counts"], ran.document["runs"][0]["exit_code"]) == ({"left": 1}, 15)
    assert "crash loop" in ran.document["runs"][0]["detail"]
    assert trips("cancel", "one", "--json").expect(0).document["undone"] == ["flight", "hotel"]
    assert trips.log() == UNDONE


def test_the_last_event_of_a_run_that_was_stopped_says_what_became_of_it(flowckpt):
    (flowckpt.directory / "stops.py").write_text(
        "import signal\nfrom flowckpt import step, workflow\n"
        "@workflow\ndef stops():\n    yield step('stop').python(signal.raise_signal, 15).checkpoint()\n"
    )
    ran = flowckpt("run", "stops.py", "--id", "r", "--events").expect(143)
    last = json.loads(ran.out.splitlines()[-1])
    assert (last["event"], last["cause"]) == ("WorkflowSuspended", "SIGTERM")
    assert (last["waits"], last["due_at"]) == ([], None)
    assert "suspended by SIGTERM" in flowckpt("resume", "r").err
