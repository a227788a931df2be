"""Waits, approvals, cancels and crash loops from the shell, with the runs in a bucket or in a PostgreSQL server."""

from __future__ import annotations

import json
import signal
import time
from subprocess import DEVNULL

import attrs
import pytest

PROGRAM = """
import os, time
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")
    return line

def write():
    Path("report").write_text("good")

@workflow
def asks():
    data = yield step("ask").wait("go")
    yield step("take").python(note, f"took {data}").checkpoint()
    return data

@workflow
def reviewed():
    yield step("write").python(write).checkpoint()
    found = yield step("review").approval(of=[file_sha256("report")])
    yield step("publish").python(note, f"published by {found.by}: {found.comment}").checkpoint()

def undo(line):
    note(f"undo {line}")

@workflow
def trip():
    yield step("hotel").python(note, "hotel").rollback(undo).checkpoint()
    yield step("flight").python(time.sleep, 60).checkpoint()

def poison():
    note("poison")
    if not os.path.exists("cure"):
        os.kill(os.getpid(), 9)
    return "survived"

@workflow
def poisoned():
    yield step("before").python(note, "before").checkpoint()
    return (yield step("poison").python(poison).checkpoint())
"""


@pytest.fixture(params=["s3", "postgresql"])
def remote(request, flowckpt):
    (flowckpt.directory / "program.py").write_text(PROGRAM)
    if request.param == "s3":
        server = request.getfixturevalue("s3")
        spec = server.spec(server.make_bucket())
    else:
        server = request.getfixturevalue("postgres")
        spec = f"{server.url(request.getfixturevalue('postgres_database'))}?allow_unsafe=true"
    return attrs.evolve(flowckpt, given={"FLOWCKPT_STORE": spec})


def until_suspended(command):
    for _ in range(600):
        if command("list", "--status", "suspended", "--json").document:
            return
    raise AssertionError("it does not wait")


def test_a_signal_is_kept_told_and_taken_once(remote):
    remote("run", "program.py:asks", "--id", "r").expect(3)
    sent = remote("signal", "r", "go", "--data", '{"rows": [1]}', "--by", "ann", "--id", "monday", "--json").expect(0)
    assert (sent.document["is_new"], sent.document["is_awaited"]) == (True, True)
    assert "already sent under the id monday" in remote("signal", "r", "go", "--id", "monday").expect(0).out
    assert "signal not taken yet: go by ann" in remote("show", "r").expect(0).out
    assert remote("recover", "--json").expect(0).document["counts"] == {"completed": 1}
    assert remote.log() == ["took {'rows': [1]}"]
    assert remote("show", "r", "--json").document["signals"] == []
    assert "the run is complete" in remote("signal", "r", "go").expect(2).err
    assert "no run 'nope'" in remote("signal", "nope", "go").expect(12).err


def test_an_approval_checks_the_bytes_and_a_rejection_asks_again(remote):
    remote("run", "program.py:reviewed", "--id", "r").expect(3)
    rejected = remote("reject", "r", "review", "--by", "ann", "--comment", "no", "--resume").expect(1)
    assert "was rejected by ann: no" in rejected.err
    remote("resume", "r").expect(3)
    (remote.directory / "report").write_text("evil")
    assert "has changed since" in remote("approve", "r", "review").expect(10).err
    (remote.directory / "report").write_text("good")
    remote("approve", "r", "review", "--by", "ann", "--comment", "fine", "--resume").expect(0)
    assert remote.log() == ["published by ann: fine"]


def test_a_signal_survives_a_kill_of_the_process_that_waits_for_it(remote):
    staying = remote.start("run", "program.py:asks", "--id", "r", "--stay", "60", stdout=DEVNULL, stderr=DEVNULL)
    try:
        until_suspended(remote)
        remote("signal", "r", "go", "--data", "5").expect(0)
        staying.kill()
        staying.wait(120)
    finally:
        staying.kill()
    assert remote("resume", "r", "--json").expect(0).document["output"] == 5
    assert set(remote.log()) == {"took 5"}
    assert remote("show", "r", "--json").document["signals"] == []


def test_a_process_that_stays_takes_a_signal_of_another_process(remote):
    staying = remote.start("run", "program.py:asks", "--id", "r", "--stay", "60", "--json")
    try:
        until_suspended(remote)
        remote("signal", "r", "go", "--data", "5").expect(0)
        out, err = staying.communicate(timeout=120)
    finally:
        staying.kill()
    assert staying.returncode == 0, err
    assert json.loads(out)["output"] == 5


def test_a_live_run_is_cancelled_and_undone_by_another_process(remote):
    owner = remote.start("run", "program.py:trip", "--id", "r")
    try:
        remote.wait_for("hotel")
        time.sleep(0.1)
        assert remote("cancel", "r", "--json").expect(0).document["undone"] == ["hotel"]
        _, err = owner.communicate(timeout=120)
    finally:
        owner.kill()
    assert (owner.returncode, remote.log()) == (143, ["hotel", "undo hotel"]), err
    assert remote("show", "r", "--json").document["signals"] == []
    assert [run["status"] for run in remote("list", "--json").document] == ["cancelled"]


def test_a_run_that_dies_again_and_again_at_one_step_is_in_a_crash_loop_and_force_goes_on(remote):
    remote("run", "program.py:poisoned", "--id", "r", "--max-crashes", "3").expect(-signal.SIGKILL)
    for _ in range(2):
        remote("resume", "r").expect(-signal.SIGKILL)
    before = remote("show", "r", "--json").document
    refused = remote("resume", "r").expect(15)
    assert "is in a crash loop: its process died 3 times" in refused.err
    assert "flowckpt resume --force r" in refused.err
    assert remote("show", "r", "--json").document == before
    [listed] = remote("list", "--json").document
    assert (listed["status"], listed["crash_loop"]["count"]) == ("crashed", 3)
    assert remote("recover", "--json").expect(1).document["counts"] == {"left": 1}
    assert remote.log() == ["before", *["poison"] * 3]
    remote("resume", "r", "--force").expect(-signal.SIGKILL)  # and counts anew
    (remote.directory / "cure").touch()
    assert remote("resume", "r", "--json").expect(0).document["output"] == "survived"
