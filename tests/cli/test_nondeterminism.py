"""An argument that changes while nothing else did: the plan, the resume and the check say that the workflow is to blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import os, time
from pathlib import Path
from flowckpt import now, step, workflow

YEAR = 2026

def note(line):
    with open("log", "a") as file:
        file.write(line + "\\n")

def work(value):
    note("work")
    return 1

def rest():
    note("rest")
    if not Path("ready").exists():
        raise OSError("not ready")

def models():
    return Path("model").read_text() if Path("model").exists() else "a"

@workflow
def clock():
    yield step("first").python(abs, -1).checkpoint()
    yield step("work").python(work, time.time()).checkpoint()
    yield step("rest").python(rest)

@workflow
def environment():
    yield step("work").python(work, os.environ.get("STAGE", "test")).checkpoint()
    yield step("rest").python(rest)

@workflow
def listing():
    yield step("work").python(work, sorted(os.listdir("inbox"))).checkpoint()
    yield step("rest").python(rest)

@workflow
def globbing():
    yield step("work").python(work, sorted(each.name for each in Path("inbox").iterdir())).checkpoint()
    yield step("rest").python(rest)

@workflow
def ephemeral():
    model = yield step("model").python(models).ephemeral()
    yield step("work").python(work, model).checkpoint()
    yield step("rest").python(rest)

@workflow
def sound():
    at = yield now()
    yield step("work").python(work, f"{at} {YEAR}").checkpoint()
    yield step("rest").python(rest)
"""
ADVICE = "passes a value that differs on every replay; use now()"


@pytest.fixture
def program(flowckpt: Any, tmp_path: Path) -> Any:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "one").touch()
    return flowckpt


def failed(program: Any, name: str) -> None:
    program("run", f"program.py:{name}", "--id", "one").expect(1)
    (program.directory / "ready").touch()
    if name in ("listing", "globbing"):
        (program.directory / "inbox" / "two").touch()


MOVED = ("clock", "environment", "listing", "globbing")


@pytest.mark.parametrize("name", MOVED)
def test_the_plan_says_so_and_the_resume_warns(program: Any, name: str) -> None:
    failed(program, name)
    more = {"STAGE": "live"} if name == "environment" else {}
    plan = program("plan", "one", **more).expect(10).out
    assert "nondeterminism: the workflow's code and inputs are unchanged" in plan and ADVICE in plan
    ran = program("resume", "one", **more).expect(0)
    assert "step work: arguments: " in ran.err and ADVICE in ran.err
    assert program.log() == ["work", "rest", "work", "rest"]


def test_a_step_to_be_done_at_most_once_stops(program: Any) -> None:
    file = program.directory / "program.py"
    file.write_text(PROGRAM.replace("time.time()).checkpoint()", "time.time()).at_most_once()"))
    failed(program, "clock")
    ran = program("resume", "one").expect(10)
    assert ADVICE in ran.err and program.log() == ["work", "rest"]
    program("resume", "one", "--on-stale", "reuse").expect(0)
    assert program.log() == ["work", "rest", "rest"]


@pytest.mark.parametrize("name", MOVED)
def test_the_check_finds_it_before_the_first_crash(program: Any, name: str) -> None:
    (program.directory / "ready").touch()
    ran = program("run", f"program.py:{name}", "--check").expect(14)
    assert "arguments of work" in ran.out + ran.err
    assert program.log() == ["work", "rest"]


@pytest.mark.parametrize("name", ["sound", "ephemeral"])
def test_the_check_finds_nothing_where_nothing_is(program: Any, name: str) -> None:
    (program.directory / "ready").touch()
    program("run", f"program.py:{name}", "--check").expect(0)


EDITS = {
    "a constant of the module was edited": ("YEAR = 2026", "YEAR = 2027"),
    "the workflow was edited": ("at = yield now()", "at = (yield now()).replace(year=2020)"),
    "the function was edited too": ('note("work")', 'note("more work")'),
}


@pytest.mark.parametrize(("old", "new"), EDITS.values(), ids=EDITS)
def test_what_has_another_cause_is_not_called_so(program: Any, old: str, new: str) -> None:
    failed(program, "sound")
    file = program.directory / "program.py"
    file.write_text(PROGRAM.replace(old, new))
    assert "nondeterminism" not in program("plan", "one").expect(10).out


def test_what_an_ephemeral_step_returned_is_not_called_so(program: Any) -> None:
    failed(program, "ephemeral")
    (program.directory / "model").write_text("b")
    ran = program("resume", "one").expect(0)
    assert ADVICE not in ran.err and program.log() == ["work", "rest", "work", "rest"]


RACE = """
import asyncio
from flowckpt import parallel, step, workflow
async def run(seconds):
    await asyncio.sleep(seconds)
    return seconds
@workflow
def child(seconds: int):
    yield step("first").python(run, 0)
    return (yield step("slow").python(run, seconds))
@workflow
def race():
    quick = step("quick").python(run, 0)
    LOSER
    yield parallel(quick, loser, name="race", min_success=1, concurrency=CONCURRENCY)
"""
LOSERS = {
    "a call with arguments": 'loser = step("loser").python(run, 60)',
    "a version": 'loser = step("loser").python(run, seconds=60).version("2")',
    "a command": 'loser = step("loser").command(["sleep", "60"])',
    "a wait": 'loser = step("loser").wait("never")',
    "an approval": 'loser = step("loser").approval("a release")',
    "a child": 'loser = step("loser").workflow(child, seconds=60)',
}


@pytest.mark.parametrize("concurrency", [1, 2])
@pytest.mark.parametrize("loser", LOSERS)
def test_the_check_accuses_no_race_of_the_member_that_it_stopped(flowckpt, tmp_path, loser, concurrency) -> None:
    (tmp_path / "race.py").write_text(RACE.replace("LOSER", LOSERS[loser]).replace("CONCURRENCY", str(concurrency)))
    assert "no difference" in flowckpt("run", "race.py:race", "--check").expect(0).out
