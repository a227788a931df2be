"""What differs from one execution to the next is recorded; what a workflow logs is said once; what differs is found."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import uuid as uuids
from collections.abc import Callable, Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import (
    MemoryCheckpointStore,
    RunOptions,
    WorkflowEngine,
    check_determinism,
    in_sync,
    now,
    parallel,
    random,
    step,
    uuid,
    workflow,
    workflow_logger,
)
from flowckpt.core.dsl import Workflow
from flowckpt.engine.determinism import DeterminismReport, report_determinism
from flowckpt.errors import StepDefinitionError, StepFailedError
from flowckpt.testing import FakeClock

world: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    world.clear()


# --- now, uuid, random -----------------------------------------------------------------------------------------------


@workflow
def asks() -> Generator[Any, Any, list[Any]]:
    at = yield now()
    made = yield from uuid()
    drawn = yield random()
    yield step("one").python(int, 1).checkpoint()
    again = yield now()
    named = yield uuid("request").checkpoint()
    return [at, made, drawn, again, named]


def test_they_ask_the_engines_own_clock_and_sources() -> None:
    clock, ids = FakeClock(), iter(uuids.UUID(int=number) for number in range(9))
    engine = WorkflowEngine(MemoryCheckpointStore(), clock=clock, random=lambda: 0.25, new_uuid=lambda: next(ids))
    result = engine.run_sync(asks, workflow_id="run")
    assert result.output == [clock.now(), UUID(int=0), 0.25, clock.now(), UUID(int=1)]
    assert result.output[0].tzinfo is UTC


def test_by_themselves_they_ask_the_machine() -> None:
    before = datetime.now(UTC)
    at, made, drawn, again, named = WorkflowEngine(MemoryCheckpointStore()).run_sync(asks).unwrap()
    assert before <= at <= again <= datetime.now(UTC)
    assert (type(made), made.version, made != named) == (UUID, 4, True)
    assert (type(drawn), 0 <= drawn < 1) == (float, True)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_crashed_at_any_save_the_answers_that_were_saved_are_those_of_the_end(
    reopen: Callable[[], Any], is_after: bool
) -> None:
    whole = CrashingStore(reopen(), 10**9, is_after=False)
    WorkflowEngine(whole).run_sync(asks, workflow_id="whole")
    assert [each.path for each in whole.acknowledged[-1].step_results] == [
        "now", "uuid", "random", "one", "now[1]", "request",
    ]  # fmt: skip
    for crash in range(2, whole.saves + 1):
        store = CrashingStore(reopen(), crash, is_after=is_after)
        with pytest.raises(SimulatedCrash):
            WorkflowEngine(store).run_sync(asks, workflow_id=f"run-{crash}")
        saved = [each.output for each in store.acknowledged[-1].step_results]
        output = WorkflowEngine(reopen()).resume_sync(asks, workflow_id=f"run-{crash}").unwrap()
        assert [*output[:3], 1, *output[3:]][: len(saved)] == saved


def test_they_may_stand_in_a_group_and_cannot_be_ephemeral() -> None:
    @workflow
    def group() -> Generator[Any, Any, Any]:
        return (yield parallel(now("a"), random("b")))

    at, drawn = WorkflowEngine(MemoryCheckpointStore()).run_sync(group).unwrap()
    assert (type(at), type(drawn)) == (datetime, float)

    @workflow
    def wrong() -> Generator[Any, Any, Any]:
        yield now().ephemeral()

    assert isinstance(WorkflowEngine(MemoryCheckpointStore()).run_sync(wrong).error, StepDefinitionError)
    with pytest.raises(StepDefinitionError):
        now("")


# --- the logger ------------------------------------------------------------------------------------------------------

log = workflow_logger("tests.workflow")


def logs(what: str) -> str:
    log.info("step %s", what)
    if what in world.get("fails", ()):
        raise OSError(what)
    return what


@workflow
def inner(name: str) -> Generator[Any, Any, str]:
    log.info("%s begins", name)
    yield step("x").python(logs, f"{name}/x").checkpoint()
    log.info("%s continues", name)
    yield step("y").python(logs, f"{name}/y").checkpoint()
    log.info("%s ends", name)
    return name


@workflow
def outer() -> Generator[Any, Any, str]:
    log.info("begins")
    yield step("a").python(logs, "a").checkpoint()
    log.info("after a")
    yield step("i").workflow(inner, name="inner").checkpoint()
    log.info("after inner")
    yield step("b").python(logs, "b").checkpoint()
    log.info("ends")
    return "done"


ALL = [
    "begins", "step a", "after a", "inner begins", "step inner/x", "inner continues", "step inner/y", "inner ends",
    "after inner", "step b", "ends",
]  # fmt: skip


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the workflow has logged; what the engine logs besides depends on levels that other tests may have set."""
    return [record.getMessage() for record in caplog.records if record.name == "tests.workflow"]


def test_a_run_that_never_stopped_says_everything(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tests.workflow"):
        WorkflowEngine(MemoryCheckpointStore()).run_sync(outer)
    assert logged(caplog) == ALL


@pytest.mark.parametrize("fails", ["a", "inner/x", "inner/y", "b"])
def test_what_was_said_before_a_resume_is_not_said_again(caplog: pytest.LogCaptureFixture, fails: str) -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    world["fails"] = [fails]
    with caplog.at_level(logging.ERROR, "flowckpt"), caplog.at_level(logging.INFO, "tests.workflow"):
        assert engine.run_sync(outer, workflow_id="run").status == "failed"
        assert logged(caplog) == ALL[: ALL.index(f"step {fails}") + 1]
        caplog.clear()
        world.clear()
        in_sync(engine).plan(outer, workflow_id="run")
        assert logged(caplog) == []
        assert engine.resume_sync(outer, workflow_id="run").status == "completed"
    first = ALL.index(f"step {fails}")
    said = ["inner begins", *ALL[first:]] if fails == "inner/x" else ALL[first:]  # no step of it was recorded
    assert logged(caplog) == said


def test_a_rerun_speaks_from_the_first_step_that_runs_again(caplog: pytest.LogCaptureFixture) -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    engine.run_sync(outer, workflow_id="run")
    with caplog.at_level(logging.INFO, "tests.workflow"):
        engine.resume_sync(outer, workflow_id="run", options=RunOptions(from_step="b"))
        assert logged(caplog) == ["step b", "ends"]


def test_it_is_a_logger_like_any_other(caplog: pytest.LogCaptureFixture) -> None:
    made = workflow_logger(logging.getLogger("tests.other"))
    with caplog.at_level(logging.WARNING, "tests.other"):
        made.info("not %s", "this")
        made.warning("this: %s", 1, extra={"run": "x"})
    (record,) = caplog.records
    assert (record.getMessage(), record.name, record.filename, record.run) == (  # type: ignore[attr-defined]
        "this: 1", "tests.other", Path(__file__).name, "x",
    )  # fmt: skip


# --- the check -------------------------------------------------------------------------------------------------------


def flow_of(body: Callable[[], Generator[Any, Any, Any]]) -> Workflow[..., Any]:
    return workflow("flow")(body)


def kinds_of(report: DeterminismReport) -> list[tuple[str, str]]:
    return [(each.kind, each.path) for each in report.differences]


def same(value: Any) -> Any:
    world.setdefault("calls", []).append(value)
    return value


def count() -> int:
    world["count"] = world.get("count", 0) + 1
    return int(world["count"])


def test_a_deterministic_workflow_has_no_differences_and_no_step_runs_twice() -> None:
    report = check_determinism(outer)
    assert (report.is_deterministic, report.status, report.steps) == (True, "completed", 5)
    assert (report.is_other_process_checked, report.note) == (True, "")

    def everything() -> Generator[Any, Any, Any]:
        live = yield step("live").python(object).ephemeral()
        a, b = yield parallel(step("a").python(same, 1), step("m").map(same, [2, 3]))
        try:
            yield step("f").python(int, "x")
        except StepFailedError as error:
            a = error.error_message
        at = yield now()
        return [a, b, at, live is not None]

    report = check_determinism(flow_of(everything))
    assert kinds_of(report) == []
    assert (report.steps, sorted(world["calls"])) == (7, [1, 2, 3])
    assert not report.is_other_process_checked
    assert "inside a function" in report.note


def other_step() -> Generator[Any, Any, Any]:
    yield step("first").python(same, 1)
    yield step(f"step {count()}").python(same, 1)


def other_arguments() -> Generator[Any, Any, Any]:
    yield step("s").python(same, time.time_ns())


def other_order() -> Generator[Any, Any, Any]:
    for name in ["a", "b", "c"] if count() == 1 else ["b", "a", "c"]:
        yield step(name).python(same, 1)


def other_function() -> Generator[Any, Any, Any]:
    yield step("s").python(same if count() == 1 else abs, 1)


def other_output() -> Generator[Any, Any, Any]:
    yield step("s").python(same, 1)
    return count()


def fewer_steps() -> Generator[Any, Any, Any]:
    yield step("s").python(same, 1)
    if count() == 1:
        yield step("gone").python(same, 1)


def other_error() -> Generator[Any, Any, Any]:
    yield step("s").python(same, 1)
    if count() > 1:
        raise LookupError("only now")


def changed_members() -> Generator[Any, Any, Any]:
    yield step("m").map(same, [1] * (count() + 1))


@workflow
def child() -> Generator[Any, Any, Any]:
    yield step("in").python(same, count())
    return count()


def inside_a_child() -> Generator[Any, Any, Any]:
    yield step("c").workflow(child)


def many_at_once() -> Generator[Any, Any, Any]:
    number = count()
    for name in "ab":
        yield step(name).python(same, number)
    return number


DIFFERENCES: dict[str, tuple[Any, list[tuple[str, str]]]] = {
    "another step": (other_step, [("path", "step 2")]),
    "another argument": (other_arguments, [("arguments", "s")]),
    "another order": (other_order, [("order", "b")]),
    "another function": (other_function, [("function", "s")]),
    "another output": (other_output, [("output", "")]),
    "fewer steps": (fewer_steps, [("missing", "gone")]),
    "another error": (other_error, [("error", "")]),
    "other members": (changed_members, [("path", "m/[2]")]),
    "inside a child": (inside_a_child, [("arguments", "c/in"), ("output", "c")]),
    "all of them at once": (many_at_once, [("arguments", "a"), ("arguments", "b"), ("output", "")]),
}


@pytest.mark.parametrize(("body", "expected"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_each_difference_is_found_and_named_with_file_and_line(body: Any, expected: list[tuple[str, str]]) -> None:
    report = report_determinism(flow_of(body), {}, has_other_process=False)
    assert kinds_of(report) == expected
    for each in report.differences:
        file, _, line = each.where.rpartition(":")
        assert file == __file__
        assert int(line) >= body.__code__.co_firstlineno or body is inside_a_child
        assert each.place == "this process"
        assert each.path in str(each)


PROGRAM = """
import os
from flowckpt import step, workflow
print("a print of the program")

def one(x):
    with open("calls", "a") as file:
        file.write(x)
    return x

@workflow
def by_hash():
    for name in {"alpha", "beta", "gamma", "delta", "epsilon"}:
        yield step(name).python(one, name[0])

@workflow
def by_pid(limit: int = 3):
    yield step("pid").python(one, str(os.getpid()))
"""


def checked(folder: Path, target: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flowckpt", "run", target, "--check", *options],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},
    )  # fmt: skip


def test_what_depends_on_the_order_of_a_set_shows_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(PROGRAM)
    assert checked(tmp_path, "flows.py:by_hash", "--same-process").returncode == 0
    (tmp_path / "calls").unlink()
    found = checked(tmp_path, "flows.py:by_hash", "--json")
    assert found.returncode == 14
    document = __import__("json").loads(found.stdout)
    assert {each["kind"] for each in document["differences"]} == {"order"}
    assert {each["place"] for each in document["differences"]} == {"another process"}
    assert len((tmp_path / "calls").read_text()) == 5  # each step ran once


def test_the_command_says_where_and_what(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(PROGRAM)
    found = checked(tmp_path, "flows.py:by_pid", "-i", "limit=4")
    assert found.returncode == 14
    assert f"{tmp_path / 'flows.py'}:18: arguments of pid (another process)" in found.stdout
    assert "1 differences" in found.stdout or "1 difference" in found.stdout
    assert checked(tmp_path, "flows.py:by_pid", "-i", "wrong=4").returncode == 2
    assert not (tmp_path / ".flowckpt").exists()


def test_a_run_that_fails_is_compared_up_to_there(tmp_path: Path) -> None:
    (tmp_path / "flows.py").write_text(PROGRAM + '\n@workflow\ndef fails():\n    yield step("f").python(int, "x")\n')
    found = checked(tmp_path, "flows.py:fails")
    assert (found.returncode, "the run failed, so it is compared up to its failure" in found.stdout) == (1, True)


def test_a_report_says_what_it_is_of() -> None:
    report = report_determinism(flow_of(other_output), {}, has_other_process=False)
    assert attrs.asdict(report)["workflow_name"] == "flow"
    assert not report.is_deterministic
