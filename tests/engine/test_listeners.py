"""What Python code hears of a run: listeners, records of the logger, and the progress of the functions at the front."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import flowckpt
from flowckpt import MemoryCheckpointStore, WorkflowEngine, current_step, step, workflow
from flowckpt.errors import StepFailedError


def fetch(rows: int) -> int:
    current_step().record(rows=rows)
    return rows


def fail() -> None:
    raise ValueError("no")


@workflow
def etl(rows: int = 3) -> Generator[Any, Any, int]:
    fetched = yield step("fetch").python(fetch, rows).checkpoint()
    try:
        yield step("fail").python(fail)
    except StepFailedError:
        yield step("notice").python(int)
    return fetched


def test_the_logger_has_a_record_for_each_event_with_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="flowckpt")
    WorkflowEngine(MemoryCheckpointStore()).run_sync(etl, workflow_id="one")
    records = [each for each in caplog.records if hasattr(each, "event")]
    steps = [(each.event, each.step, each.levelname) for each in records if each.step]  # type: ignore[attr-defined]
    assert steps == [
        ("StepStarted", "fetch", "INFO"),
        ("StepCompleted", "fetch", "INFO"),
        ("StepStarted", "fail", "INFO"),
        ("StepFailed", "fail", "WARNING"),
        ("StepStarted", "notice", "INFO"),
        ("StepCompleted", "notice", "INFO"),
    ]
    assert {(each.workflow_id, each.workflow_name, each.attempt) for each in records} == {("one", "etl", 1)}  # type: ignore[attr-defined]
    (done,) = [each for each in records if each.event == "StepCompleted" and each.step == "fetch"]  # type: ignore[attr-defined]
    assert done.figures == {"rows": 3} and done.getMessage() == "run one: fetch StepCompleted"  # type: ignore[attr-defined]
    (failed,) = [each for each in records if each.levelname == "WARNING"]
    assert (failed.error_type, failed.error_message) == ("ValueError", "no")  # type: ignore[attr-defined]


async def page(number: int) -> int:
    if number < 3:
        raise ValueError("no")
    return number


@workflow
def pages() -> Generator[Any, Any, None]:
    yield step("pages").map(page, [*range(10)], concurrency=10).checkpoint()


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "called"])
def test_each_recorded_member_of_a_failed_map_has_its_event(is_streamed: bool) -> None:
    store, events = MemoryCheckpointStore(), []
    engine = WorkflowEngine(store)

    async def drive() -> None:
        if is_streamed:
            events.extend([event async for event in engine.execute(pages, workflow_id="one")])
        else:
            await engine.prepare(pages, "one", None, {}).result(events.append)

    asyncio.run(drive())
    latest = asyncio.run(store.load_latest("one"))
    for kind, success in (("StepCompleted", True), ("StepFailed", False)):
        emitted = sorted(event.path for event in events if event.kind == kind)
        assert emitted == sorted(each.path for each in latest.step_results if each.success is success) != []


PROGRAM = """
import json, logging, sys
from flowckpt import step, workflow, run_sync

class Json(logging.Formatter):
    known = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
    def format(self, record):
        extra = {key: value for key, value in vars(record).items() if key not in self.known}
        return json.dumps({"level": record.levelname, "message": record.getMessage(), **extra})

def fail():
    raise ValueError("no")

@workflow
def flow():
    yield step("fail").python(fail)

if sys.argv[1] == "json":
    handler = logging.StreamHandler()
    handler.setFormatter(Json())
    logging.basicConfig(handlers=[handler])
run_sync(flow, workflow_id=sys.argv[1], progress=sys.argv[1] == "progress")
"""


@pytest.mark.parametrize("how", ["silent", "json", "progress"])
def test_a_script_sees_what_it_asks_for(tmp_path: Path, how: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    told = subprocess.run(
        [sys.executable, "program.py", how], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
    ).stderr.splitlines()
    if how == "silent":
        assert told == []
    elif how == "json":
        events = [document for line in told if "event" in (document := json.loads(line))]
        assert [(each["level"], each["event"], each["step"]) for each in events] == [
            ("WARNING", "StepFailed", "fail"),
            ("WARNING", "WorkflowFailed", None),
        ]
    else:
        assert [line.partition(" ")[2].partition(" in ")[0] for line in told] == [
            "run progress of flow: started",
            "fail: failed",
            "run progress: failed with ValueError: no",
        ]


def test_listeners_hear_every_event_and_their_errors_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def break_down(event: Any) -> None:
        heard.append(event.kind)
        raise RuntimeError("the listener is broken")

    engine = WorkflowEngine(MemoryCheckpointStore(), listeners=[break_down, lambda event: heard.append(event.kind)])
    assert engine.run_sync(etl).unwrap() == 3
    assert heard[:2] == ["WorkflowStarted"] * 2 and heard[-2:] == ["WorkflowCompleted"] * 2
    assert "a listener failed at WorkflowStarted: RuntimeError: the listener is broken" in caplog.text


async def test_the_functions_at_the_front_run_and_resume_from_async_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (await flowckpt.run(etl, workflow_id="one", rows=5)).output == 5
    assert (await flowckpt.run(etl, workflow_id="one", rows=5, if_exists="return")).output == 5
    assert (await flowckpt.resume(etl, workflow_id="one", progress=True)).steps.executed == 0
    assert "resumed from checkpoint @completed" in capsys.readouterr().err
