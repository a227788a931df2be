"""What happens inside a step, as the command shows it; and runs that are left alone."""

from __future__ import annotations

import json
import signal

import pytest

INSIDE = """
import os, signal, time
from flowckpt import current_step, step, workflow

def crunch(until):
    now = current_step()
    for number in range(now.load(0), until):
        now.progress(number + 1, until, "crunching\\x1b[31m")
        now.save(number + 1)
        if number == 2 and now.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    return until

@workflow
def crunches():
    return (yield step("crunch").python(crunch, 5).checkpoint())

def dies():
    os.kill(os.getpid(), signal.SIGKILL)

@workflow
def poisoned():
    yield step("fine").python(abs, -1).checkpoint()
    yield step("dies").python(dies)

def down():
    raise OSError("down")

@workflow
def retries():
    yield step("down").python(down).retry(9)
"""


@pytest.fixture
def inside(flowckpt):
    (flowckpt.directory / "inside.py").write_text(INSIDE)
    return flowckpt


def test_a_killed_step_goes_on_inside_and_says_how_far_it_is(inside):
    killed = inside("run", "inside.py:crunches", "--id", "c").expect(-signal.SIGKILL)
    assert "crunch: 1 of 5 (20 %), crunching\\x1b[31m" in killed.err
    shown = inside("show", "c").expect(0).out
    assert "state saved by: crunch" in shown
    assert "crash_loop" not in shown
    events = [json.loads(line) for line in inside("resume", "c", "--events").expect(0).out.splitlines()]
    progress = [event for event in events if event["event"] == "StepProgress"]
    assert (progress[0]["done"], progress[0]["total"]) == (4, 5)
    assert "state saved by" not in inside("show", "c").expect(0).out


def test_edited_code_of_a_step_that_saved_something_stops_the_resume(inside):
    inside("run", "inside.py:crunches", "--id", "c").expect(-signal.SIGKILL)
    program = inside.directory / "inside.py"
    program.write_text(program.read_text().replace("number == 2", "number == 3"))
    stopped = inside("resume", "c").expect(10)
    assert "since it saved its state" in stopped.err
    inside("plan", "c").expect(10)
    inside("resume", "c", "--on-code-change", "reuse").expect(0)


def test_a_crash_loop_is_shown_as_one_and_resumed_with_force(inside):
    inside("run", "inside.py:poisoned", "--id", "p").expect(-signal.SIGKILL)
    inside("resume", "p", "--max-crashes", "2").expect(-signal.SIGKILL)
    refused = inside("resume", "p").expect(15)
    assert "run 'p' is in a crash loop: its process died 2 times at step 'dies' since 2" in refused.err
    assert "flowckpt resume --force p" in refused.err
    (listed,) = inside("list", "--json").expect(0).document
    assert listed["status"] == "crashed"
    assert (listed["crash_loop"]["count"], listed["crash_loop"]["path"]) == (2, "dies")
    assert "crashed (crash loop)" in inside("list").expect(0).out
    assert "crash loop: run 'p' is in a crash loop" in inside("show", "p").expect(0).out
    assert inside("show", "p", "--json").expect(0).document["crash_loop"]["paths"] == ["dies"]
    planned = inside("plan", "p").expect(15)
    assert "The resume would stop: run 'p' is in a crash loop" in planned.out
    assert "flowckpt resume --force p" in planned.out
    inside("resume", "p", "--force").expect(-signal.SIGKILL)
    assert inside("list", "--json").expect(0).document[0]["crash_loop"] is None


def test_the_limit_of_deaths_is_a_setting(inside):
    (inside.directory / "pyproject.toml").write_text("[tool.flowckpt]\nmax_crashes = 1\n")
    inside("run", "inside.py:poisoned", "--id", "p").expect(-signal.SIGKILL)
    assert inside("list", "--json").expect(0).document[0]["crash_loop"]["count"] == 1
    inside("resume", "p").expect(15)
    inside("resume", "p", FLOWCKPT_MAX_CRASHES="0").expect(-signal.SIGKILL)
    assert "FLOWCKPT_MAX_CRASHES must be a whole number" in inside("list", FLOWCKPT_MAX_CRASHES="x").expect(2).err


def test_a_budget_of_retries_ends_a_step_early_and_says_so(inside):
    failed = inside("run", "inside.py:retries", "--id", "r", "--retry-budget", "2").expect(1)
    assert "the run's 2 retries are used up" in failed.err
    assert inside("show", "r", "--json").expect(0).document["steps"][0]["error"]["tries"] == 3
    assert "--retry-budget" in inside("run", "inside.py:retries", "--retry-budget", "-1").expect(2).err
