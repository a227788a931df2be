"""The effect of a finished step is undone also if a rerun set its result aside and did not reach the step again."""

from __future__ import annotations

import signal

import pytest

PROGRAM = """
import os, time
from pathlib import Path
from flowckpt import step, workflow
from flowckpt.evidence import file_sha256

def note(text):
    with open("log", "a") as log:
        print(text, file=log)
    return text

def quote():
    if Path("slow").exists():
        note("quote")
        time.sleep(60)
    if Path("down").exists():
        raise OSError("down")
    Path("quote.txt").write_text("quote")
    return Path("offer").exists()

def book(what, quoted):
    if Path("full").exists():
        raise OSError("full")
    Path("hotel.txt").write_text("booked")
    return note(f"book {what}")

def unbook(what):
    note(f"undo {what}")

def last():
    os.kill(os.getpid(), 9)

@workflow
def trip():
    quoted = yield step("quote").python(quote).evidence(file_sha256("quote.txt")).checkpoint()
    yield step("hotel").python(book, "hotel", quoted).rollback(unbook).evidence(file_sha256("hotel.txt")).checkpoint()
    yield step("last").python(last).checkpoint()
"""


@pytest.fixture
def booked(flowckpt, tmp_path):
    """A run that died after the hotel was booked; the evidence of the step before is gone."""
    (tmp_path / "trip.py").write_text(PROGRAM)
    flowckpt("run", "trip.py", "--id", "one").expect(-9)
    (tmp_path / "quote.txt").unlink()
    return flowckpt


def test_after_a_stop_at_the_step(booked, tmp_path):
    (tmp_path / "offer").touch()
    booked("resume", "one").expect(10)
    booked("cancel", "one").expect(0)
    assert booked.log() == ["book hotel", "undo book hotel"]


@pytest.mark.parametrize("options", [[], ["--from", "quote"]], ids=["by itself", "on request"])
def test_after_a_failure_of_an_earlier_step(booked, tmp_path, options):
    (tmp_path / "down").touch()
    failed = booked("resume", "one", *options).expect(1)
    assert (
        "Not undone, because the run did not reach them again: hotel. 'flowckpt cancel one' undoes them." in failed.err
    )
    assert booked("cancel", "one").expect(0).out.splitlines() == ["cancelled: one (it was failed)", "undone: hotel"]
    assert booked.log() == ["book hotel", "undo book hotel"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_after_a_stop_in_an_earlier_step(booked, tmp_path, number):
    (tmp_path / "slow").touch()
    owner = booked.start("resume", "one")
    booked.wait_for("quote")
    owner.send_signal(number)
    owner.communicate()
    (tmp_path / "slow").unlink()
    booked("cancel", "one").expect(0)
    assert booked.log() == ["book hotel", "quote", "undo book hotel"]


def test_when_a_live_resume_is_cancelled_in_an_earlier_step(booked, tmp_path):
    (tmp_path / "slow").touch()
    owner = booked.start("resume", "one")
    booked.wait_for("quote")
    (tmp_path / "slow").unlink()
    assert "undone: hotel" in booked("cancel", "one").expect(0).out
    owner.communicate()
    assert booked.log() == ["book hotel", "quote", "undo book hotel"]


def test_after_a_rollback_to_an_earlier_checkpoint(booked):
    booked("rollback", "one", "@started").expect(0)
    booked("cancel", "one").expect(0)
    assert booked.log() == ["book hotel", "undo book hotel"]


def test_after_a_failure_of_the_step_itself(booked, tmp_path):
    (tmp_path / "full").touch()
    assert "Not undone" not in booked("resume", "one", "--from", "quote").expect(1).err
    assert booked.log() == ["book hotel", "undo book hotel"]


def test_a_second_death_in_the_middle_changes_nothing(booked, tmp_path):
    (tmp_path / "down").touch()
    booked("resume", "one").expect(1)
    text = (tmp_path / "trip.py").read_text()
    (tmp_path / "trip.py").write_text(text.replace('note(f"undo {what}")', "os.kill(os.getpid(), 9)"))
    booked("cancel", "one").expect(-9)
    (tmp_path / "trip.py").write_text(text)
    booked("resume", "one").expect(130)
    assert booked.log() == ["book hotel", "undo book hotel"]


NESTED = """
import os
from pathlib import Path
from flowckpt import step, workflow

def note(text):
    with open("log", "a") as log:
        print(text, file=log)

def book(what):
    if Path("full").exists():
        raise OSError("full")
    return what

def unbook(what):
    note(f"undo {what}")

@workflow
def tour():
    yield step("guide").python(book, "guide").rollback(unbook).checkpoint()
    yield step("bus").python(book, "bus").rollback(unbook).checkpoint()

@workflow
def trip():
    yield step("account").python(book, "account").rollback(unbook).checkpoint()
    yield step("nights").map(book, ["mon", "tue"], concurrency=1).rollback(unbook).checkpoint()
    yield step("tour").workflow(tour).checkpoint()
    yield step("release").approval("release")
"""
NEWEST_FIRST = [f"undo {what}" for what in ("bus", "guide", "tue", "mon", "account")]


@pytest.fixture
def waiting(flowckpt, tmp_path):
    """A run that has booked all and waits."""
    (tmp_path / "trip.py").write_text(NESTED)
    flowckpt("run", "trip.py:trip", "--id", "one").expect(3)
    return flowckpt


@pytest.mark.parametrize("back", [["tour/guide"], ["nights"], ["account"], ["tour/guide", "account"]], ids=str)
def test_the_newest_is_undone_first_also_after_a_rollback(waiting, back):
    for checkpoint in back:
        waiting("rollback", "one", checkpoint).expect(0)
    undone = waiting("cancel", "one").expect(0).out
    assert waiting.log() == NEWEST_FIRST
    assert "undone: tour/bus, tour/guide, nights/[1], nights/[0], account" in undone


@pytest.mark.parametrize(
    ("step", "undone"), [("tour/bus", NEWEST_FIRST), ("nights/[0]", ["undo tue", "undo mon", "undo account"])]
)
def test_the_newest_is_undone_first_also_when_a_step_runs_again_and_fails(waiting, tmp_path, step, undone):
    (tmp_path / "full").touch()
    waiting("resume", "one", "--from", step).expect(1)
    assert waiting.log() == undone


def test_a_step_that_ran_again_is_undone_before_those_that_were_set_aside(waiting, tmp_path):
    waiting("rollback", "one", "@started").expect(0)
    (tmp_path / "trip.py").write_text(NESTED.replace('["mon", "tue"]', "os.kill(os.getpid(), 9)"))
    waiting("resume", "one").expect(-9)
    (tmp_path / "trip.py").write_text(NESTED)
    waiting("cancel", "one").expect(0)
    assert waiting.log() == [NEWEST_FIRST[-1], *NEWEST_FIRST[:-1]]
