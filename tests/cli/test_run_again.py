"""One line for every scheduler: it starts a run, resumes it, and returns its end."""

from __future__ import annotations

import attrs
import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.errors import (
    CheckpointNotFoundError,
    InputError,
    InputMismatchError,
    RunExistsError,
    RunLockedError,
    RunNotCompletedError,
)
from flowckpt.events import CheckpointSaved
from tests.reopening import reopened_memory

NIGHTLY = """
from pathlib import Path
from flowckpt import step, workflow

def note(name):
    with open("log", "a") as file:
        file.write(name + "\\n")
    if not Path("ready").exists() and name != "first":
        raise OSError("not ready")
    return name

@workflow
def nightly(day: str, times: int = 2):
    yield step("first").python(note, "first").checkpoint()
    return (yield step("second").python(note, day).checkpoint())

@workflow
def asking():
    return (yield step("ask").wait("go").checkpoint())
"""
LINE = ("run", "again.py:nightly", "--id", "n1", "--if-exists")


def test_one_line_starts_resumes_and_returns(flowckpt):
    (flowckpt.directory / "again.py").write_text(NIGHTLY)
    line = (*LINE, "resume", "-i", "day=mon", "--json")
    flowckpt(*line).expect(1)
    (flowckpt.directory / "ready").touch()
    second = flowckpt(*line).expect(0).document
    assert (second["attempt"], second["output"]) == (2, "mon")
    third = flowckpt(*line).expect(0).document
    assert (third["attempt"], third["output"], third["steps"]["executed"]) == (2, "mon", 0)
    assert flowckpt.log() == ["first", "mon", "mon"]


def test_other_inputs_and_another_workflow_are_refused(flowckpt):
    (flowckpt.directory / "again.py").write_text(NIGHTLY)
    flowckpt(*LINE, "resume", "-i", "day=mon", "-i", "times=3").expect(1)
    for how in ("resume", "return"):
        ran = flowckpt(*LINE, how, "-i", "day=tue", "-i", "times=3").expect(14)
        assert "day: 'mon' → 'tue'" in ran.err and "choose another id" in ran.err
        ran = flowckpt(*LINE, how, "-i", "day=mon").expect(14)  # what was given the first time is given each time
        assert "times: 3 → 2" in ran.err
        ran = flowckpt("run", "again.py:asking", "--id", "n1", "--if-exists", how).expect(14)
        assert "belongs to workflow 'nightly'" in ran.err
    assert flowckpt.log() == ["first", "mon"]


def test_return_runs_nothing(flowckpt):
    (flowckpt.directory / "again.py").write_text(NIGHTLY)
    line = (*LINE, "return", "-i", "day=mon")
    flowckpt(*line).expect(1)
    ran = flowckpt(*line).expect(1)
    assert "step 'second' failed with OSError: not ready" in ran.err and "Resume with: flowckpt resume n1" in ran.err
    assert flowckpt.log() == ["first", "mon"]
    (flowckpt.directory / "ready").touch()
    flowckpt("resume", "n1").expect(0)
    assert "output: 'mon'" in flowckpt(*line).expect(0).out
    waiting = ("run", "again.py:asking", "--id", "w", "--if-exists", "return")
    flowckpt(*waiting).expect(3)
    assert flowckpt(*waiting, "--json").expect(3).document["waits"][0]["name"] == "go"
    assert flowckpt.log() == ["first", "mon", "mon"]


def test_a_resume_continues_in_the_directory_of_the_start(flowckpt):
    (flowckpt.directory / "again.py").write_text(NIGHTLY)
    flowckpt(*LINE, "resume", "-i", "day=mon").expect(1)
    (flowckpt.directory / "ready").touch()
    elsewhere = flowckpt.directory / "elsewhere"
    elsewhere.mkdir()
    line = ["run", "../again.py:nightly", *LINE[2:], "resume", "-i", "day=mon"]
    attrs.evolve(flowckpt, directory=elsewhere)(*line).expect(0)
    assert flowckpt.log() == ["first", "mon", "mon"] and not (elsewhere / "log").exists()


def test_it_needs_an_id_and_a_known_word(flowckpt):
    assert "needs --id" in flowckpt("run", "pipeline.py:etl", "--if-exists", "resume").expect(2).err
    with pytest.raises(InputError, match="if_exists='again'"):
        WorkflowEngine(MemoryCheckpointStore()).run_sync(adding, if_exists="again", n=1)


def add(n: int) -> int:
    CALLS.append(n)
    if len(CALLS) == 1:
        raise OSError("first time")
    return n + 1


CALLS: list[int] = []


@workflow
def adding(n: int):
    return (yield step("add").python(add, n).checkpoint())


@workflow
def failing():
    yield step("one").python(abs, -1).checkpoint()
    raise KeyError("gone")


def test_from_python():
    CALLS.clear()
    engine = WorkflowEngine(MemoryCheckpointStore())
    for how in ("fail", "resume", "return"):
        engine.run_sync(adding, workflow_id=how, if_exists=how, n=1)
    assert CALLS == [1, 1, 1]
    with pytest.raises(RunExistsError):
        engine.run_sync(adding, workflow_id="fail", n=1)
    CALLS.clear()
    failed = engine.run_sync(adding, workflow_id="x", if_exists="resume", n=1)
    again = engine.run_sync(adding, workflow_id="x", if_exists="return", n=1)
    assert (str(again.error), again.failure, again.status) == (str(failed.error), failed.failure, "failed")
    assert engine.run_sync(adding, workflow_id="x", if_exists="resume", n=1).output == 2
    with pytest.raises(InputMismatchError, match="n: 1 → 2"):
        engine.run_sync(adding, workflow_id="x", if_exists="resume", n=2)
    assert len(CALLS) == 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: {"tags": {"team": "data"}}, r"options=\{.*\} \(dict\) are not RunOptions"),
        (lambda: RunOptions(tags={"team": 1}), r"tags=\{'team': 1\} does not map text to text"),
        (lambda: RunOptions(done=["pay"]), r"done=\['pay'\] is not a dictionary.*done=\{'pay': \.\.\.\}"),
        (lambda: RunOptions(executors=["process"]), r"executors=\['process'\] is not a dictionary"),
        (lambda: RunOptions(allow_network="localhost:80"), r"is a text, not a list.*allow_network=\['localhost:80'\]"),
        (lambda: RunOptions(tags=["team"]), r"tags=\['team'\] does not map text to text"),
    ],
)
def test_options_of_another_kind_are_refused_before_the_run_starts(make, said):
    engine = WorkflowEngine(MemoryCheckpointStore())
    for call in (engine.run_sync, engine.resume_sync, in_sync(engine).plan):
        with pytest.raises(InputError, match=said):
            call(adding, workflow_id="x", n=1, options=make())
    with pytest.raises(CheckpointNotFoundError):
        engine.resume_sync(adding, workflow_id="x")


def test_a_failure_of_the_workflow_itself_is_told_again():
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(failing, workflow_id="f")
    with pytest.raises(RunNotCompletedError, match="failed: KeyError: 'gone'"):
        engine.run_sync(failing, workflow_id="f", if_exists="return").unwrap()


async def test_a_live_run_is_left_alone_and_a_crashed_one_is_reported():
    reopen = reopened_memory()
    engine, found = WorkflowEngine(reopen()), []

    @workflow
    def outer():
        async def other() -> None:
            for how in ("resume", "return"):
                with pytest.raises(RunLockedError):
                    await engine.run(outer, workflow_id="live", if_exists=how)
                found.append(how)

        yield step("other").python(other).checkpoint()

    async for event in engine.execute(outer, workflow_id="live"):
        if isinstance(event, CheckpointSaved) and event.checkpoint_id == "other":
            break  # what follows is the world after the death of the process
    store = reopen()
    await store.save("crashed", await store.load("live", "other"))
    engine = WorkflowEngine(reopen())
    result = await engine.run(outer, workflow_id="crashed", if_exists="return")
    assert result.status == "crashed" and isinstance(result.error, RunNotCompletedError)
    result = await engine.run(outer, workflow_id="crashed", if_exists="resume")
    assert result.status == "completed" and found == ["resume", "return"]
