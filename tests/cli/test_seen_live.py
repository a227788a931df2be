"""A run in another process, seen from outside while a step runs, and after the process was killed."""

from __future__ import annotations

import time
from typing import Any

import pytest

PROGRAM = """
import os, time
from flowckpt import current_step, step, workflow
from flowckpt.engine.run.live import WATCH

WATCH.beat.set_interval(0.05)

def fetch():
    return 3

def train(rows):
    current_step().record(tokens=7)
    current_step().progress(30, 100, "epoch 3")
    while not os.path.exists("go"):
        time.sleep(0.05)
    return rows

@workflow("etl")
def etl():
    rows = yield step("fetch").python(fetch).checkpoint()
    return (yield step("train").python(train, rows).checkpoint())
"""


@pytest.mark.parametrize("store", ["file:.flowckpt", "sqlite:runs.db"])
def test_show_list_and_the_page_know_the_step_in_flight_and_after_a_kill_what_it_was(flowckpt: Any, store: str) -> None:
    (flowckpt.directory / "etl.py").write_text(PROGRAM)
    given = ("--store", store)
    running = flowckpt.start("run", "etl.py", "--id", "one", *given)
    try:
        deadline, live = time.monotonic() + 300, None
        while live is None or not live["steps"] or not live["steps"][0].get("progress"):
            assert time.monotonic() < deadline, flowckpt("show", "one", *given)
            time.sleep(0.05)
            ran = flowckpt("show", "one", "--json", *given)
            live = ran.document["live"] if ran.code == 0 else None
        (seen,) = live["steps"]
        assert live["is_running"] and seen["path"] == "train"
        assert seen["progress"] == {"done": 30, "total": 100, "note": "epoch 3"}
        assert seen["figures"] == {"tokens": 7}
        out = flowckpt("show", "one", *given).expect(0).out
        assert "\nrunning now: train since " in out
        assert ", 30 of 100, epoch 3 [tokens=7]\n" in out
        assert "train, started " in flowckpt("list", *given).expect(0).out
        (listed,) = flowckpt("list", "--json", *given).expect(0).document
        assert [each["path"] for each in listed["live"]["steps"]] == ["train"]
    finally:
        running.kill()
        running.communicate(timeout=300)
    out = flowckpt("show", "one", *given).expect(0).out
    assert "\nstatus: crashed\n" in out
    assert "\nin flight when the process died: train since " in out
    assert "\nlast noted: " in out
    assert "died in train, started " in flowckpt("list", *given).expect(0).out
    assert "In flight when the process died: train for " in flowckpt("report", "one", "-o", "-", *given).expect(0).out
    (flowckpt.directory / "go").touch()
    assert flowckpt("resume", "one", "--json", *given).expect(0).document["output"] == 3
    shown = flowckpt("show", "one", *given).expect(0).out
    assert "in flight" not in shown
    assert flowckpt("show", "one", "--json", *given).expect(0).document["live"] is None


def test_list_does_not_say_that_a_run_died_in_a_step_which_has_ended(flowckpt: Any) -> None:
    (flowckpt.directory / "etl.py").write_text(
        """
import os, signal
from flowckpt import step, workflow
from flowckpt.engine.run.live import WATCH

WATCH.beat.set_interval(3600)

def fetch():
    WATCH.poll(is_due=True)

def train():
    os.kill(os.getpid(), signal.SIGKILL)

@workflow("etl")
def etl():
    yield step("fetch").python(fetch).checkpoint()
    yield step("train").python(train)
"""
    )
    flowckpt("run", "etl.py", "--id", "one").expect(-9)
    out = flowckpt("list").expect(0).out
    assert "last seen in fetch, started " in out
    assert "died in" not in out
