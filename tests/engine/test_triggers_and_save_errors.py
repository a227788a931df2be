"""Checkpoints that nobody wrote into the program, and what a run does when one cannot be saved."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import (
    CheckpointManager,
    CompositeTrigger,
    FileCheckpointStore,
    MemoryCheckpointStore,
    RunOptions,
    StepCountTrigger,
    TimeTrigger,
    WorkflowEngine,
    step,
    workflow,
)
from flowckpt.core.records import CheckpointData
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import (
    CheckpointStorageError,
    DiskFullError,
    FencedError,
    SettingError,
    StepFailedError,
    StepInDoubtError,
)
from flowckpt.testing import FakeClock

ran: list[Any] = []
clocks: list[FakeClock] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()
    clocks[:] = [FakeClock()]


def work(number: int, seconds: float = 0) -> int:
    ran.append(number)
    clocks[0].advance(seconds)
    return number


def fails(number: int) -> None:
    ran.append(number)
    raise OSError("down")


@workflow
def loop(n: int, seconds: float = 0) -> Generator[Any, Any, int]:
    for number in range(n):
        yield step("work").python(work, number, seconds)
    return n


@workflow
def saved(n: int) -> Generator[Any, Any, int]:
    for number in range(n):
        yield step("work").python(work, number).checkpoint()
    return n


def checkpoints(store: Any) -> list[tuple[str, int]]:
    """What was saved, oldest first: why, and how many results it holds."""
    return [(str(each.reason), each.steps) for each in reversed(asyncio.run(store.list_checkpoints("run")))]


def latest(store: Any) -> CheckpointData:
    found: CheckpointData | None = asyncio.run(store.load_latest("run"))
    assert found is not None
    return found


def triggered(store: Any) -> list[int]:
    return [steps for reason, steps in checkpoints(store) if reason == "trigger"]


# --- triggers ---------------------------------------------------------------------------------------------------------

TRIGGERS: list[tuple[dict[str, Any], dict[str, Any], list[int]]] = [  # the engine, the options, what is saved behind
    ({}, {}, []),
    ({"trigger": StepCountTrigger(2)}, {}, [2, 4, 6]),
    ({"trigger": StepCountTrigger(3)}, {}, [3, 6]),
    ({"trigger": StepCountTrigger(8)}, {}, []),
    ({"trigger": TimeTrigger(20)}, {}, [2, 4, 6]),
    ({"trigger": TimeTrigger(25)}, {}, [3, 6]),
    ({"trigger": CompositeTrigger([StepCountTrigger(2), TimeTrigger(30)], "all")}, {}, [3, 6]),
    ({}, {"every": 2}, [2, 4, 6]),
    ({}, {"interval": 25}, [3, 6]),
    ({}, {"every": 2, "interval": 1000}, [2, 4, 6]),
    ({}, {"every": 1000, "interval": 40}, [4]),
    ({"trigger": StepCountTrigger(3)}, {"every": 1}, [3, 6]),
]


@pytest.mark.parametrize(("engine", "options", "expected"), TRIGGERS)
def test_checkpoints_are_taken_when_the_trigger_of_the_engine_or_else_the_run_asks_for_them(
    engine: dict[str, Any], options: dict[str, Any], expected: list[int], reopen: Callable[[], Any]
) -> None:
    used = WorkflowEngine(reopen(), clock=clocks[0], **engine)
    result = used.run_sync(loop, workflow_id="run", options=RunOptions(**options), n=7, seconds=10)
    assert result.output == 7
    assert triggered(reopen()) == expected
    assert checkpoints(reopen())[-1] == ("completed", 7)


def test_a_checkpoint_of_a_trigger_is_one_to_go_on_from(reopen: Callable[[], Any]) -> None:
    with pytest.raises(SimulatedCrash):
        store = CrashingStore(reopen(), 4, is_after=False)
        WorkflowEngine(store, trigger=StepCountTrigger(2)).run_sync(loop, workflow_id="run", n=7)
    assert ran == [0, 1, 2, 3, 4, 5]
    ran.clear()
    result = WorkflowEngine(reopen()).resume_sync(loop, workflow_id="run")
    assert (result.output, result.steps.restored, ran) == (7, 4, [4, 5, 6])


def test_what_was_written_into_the_program_counts_as_the_last_checkpoint(reopen: Callable[[], Any]) -> None:
    @workflow
    def mixed() -> Generator[Any, Any, None]:
        for number in range(6):
            made = step("work").python(work, number)
            yield made.checkpoint() if number == 2 else made

    WorkflowEngine(reopen(), trigger=StepCountTrigger(2)).run_sync(mixed, workflow_id="run")
    assert checkpoints(reopen()) == [("started", 0), ("trigger", 2), ("step", 3), ("trigger", 5), ("completed", 6)]


def test_steps_that_are_never_recorded_neither_count_nor_are_followed_by_a_checkpoint() -> None:
    @workflow
    def mixed() -> Generator[Any, Any, None]:
        for number in range(4):
            yield step("model").python(work, -1).ephemeral()
            yield step("work").python(work, number)
            yield step("model").python(work, -1).ephemeral()

    store = MemoryCheckpointStore()
    WorkflowEngine(store, trigger=StepCountTrigger(2)).run_sync(mixed, workflow_id="run")
    assert triggered(store) == [2, 4]


KEPT: list[tuple[dict[str, Any], dict[str, Any], list[int], dict[str, Any]]] = [
    # asked at the start, asked at the resume, saved by the resume, what the record keeps
    ({"every": 2}, {}, [3, 5, 7], {"every": 2}),
    ({"every": 2}, {"every": 3}, [4, 7], {"every": 3}),
    ({}, {"every": 3}, [4, 7], {"every": 3}),
    ({"interval": 25}, {}, [4, 7], {"interval": 25}),
    ({"interval": 25}, {"every": 2}, [3, 5, 7], {"every": 2}),
    ({}, {}, [], {}),
]


@pytest.mark.parametrize(("first", "second", "expected", "recorded"), KEPT)
def test_what_was_asked_for_at_the_start_is_kept_by_each_resume_until_something_else_is_asked_for(
    first: dict[str, Any],
    second: dict[str, Any],
    expected: list[int],
    recorded: dict[str, Any],
    reopen: Callable[[], Any],
) -> None:
    @workflow("loop")
    def begins(n: int, seconds: float = 0) -> Generator[Any, Any, None]:
        yield step("work").python(work, 0, 10).checkpoint()
        yield from loop.function(n, seconds)

    @workflow("loop")
    def stops(n: int, seconds: float = 0) -> Generator[Any, Any, None]:
        yield step("work").python(work, 0, 10).checkpoint()
        raise RuntimeError("stop")

    for number, made in enumerate((stops, stops, begins)):
        engine = WorkflowEngine(reopen(), clock=clocks[0])
        if number == 0:
            engine.run_sync(made, workflow_id="run", options=RunOptions(**first), n=6, seconds=10)
        elif number == 1:
            engine.resume_sync(made, workflow_id="run")  # once more, with nothing said
        else:
            engine.resume_sync(made, workflow_id="run", options=RunOptions(**second))
    assert triggered(reopen()) == expected
    assert latest(reopen()).metadata.get("saving", {}) == recorded


@pytest.mark.parametrize("answer", [OSError("the server of rules is down"), None, 1, "yes"])
def test_a_trigger_that_fails_is_told_to_the_log_and_skipped_and_the_run_goes_on(
    answer: Any, caplog: pytest.LogCaptureFixture, reopen: Callable[[], Any]
) -> None:
    class Rule:
        asked = 0

        def should_checkpoint(self, progress: Any) -> Any:
            self.asked += 1
            if self.asked == 3:
                return True
            if isinstance(answer, Exception):
                raise answer
            return answer

    with caplog.at_level(logging.WARNING, "flowckpt"):
        result = WorkflowEngine(reopen(), trigger=Rule()).run_sync(loop, workflow_id="run", n=4)
    assert (result.status, result.output) == ("completed", 4)
    assert triggered(reopen()) == [3]
    said = [
        record.getMessage() for record in caplog.records if "no checkpoint is taken for Rule" in record.getMessage()
    ]
    assert len(said) == 1, "it is asked after every step, and told once"
    assert repr(answer) in said[0]


def test_a_failure_that_the_generator_handles_is_saved_where_the_trigger_asks_for_it(
    reopen: Callable[[], Any],
) -> None:
    @workflow
    def handles() -> Generator[Any, Any, Any]:
        yield step("work").python(work, 1)
        try:
            yield step("fails").python(fails, 2)
        except StepFailedError as error:
            yield step("instead").python(work, 3)
            return error.error_message
        return ""

    with pytest.raises(SimulatedCrash):
        store = CrashingStore(reopen(), 3, is_after=False)
        WorkflowEngine(store, trigger=StepCountTrigger(2)).run_sync(handles, workflow_id="run")
    assert checkpoints(reopen()) == [("started", 0), ("trigger", 2)]
    assert [each.success for each in latest(reopen()).step_results] == [True, False]
    ran.clear()
    result = WorkflowEngine(reopen()).resume_sync(handles, workflow_id="run")
    assert (result.output, result.steps.restored, ran) == ("down", 2, [3])


@pytest.mark.parametrize("trigger", [5, "every", StepCountTrigger, object()])
def test_what_is_no_trigger_is_refused_before_anything_depends_on_it(trigger: Any) -> None:
    with pytest.raises(SettingError):
        WorkflowEngine(MemoryCheckpointStore(), trigger=trigger)


@pytest.mark.parametrize(
    "store", ["file:runs", 5, FileCheckpointStore, object()], ids=["description", "number", "class", "object"]
)
def test_what_is_no_store_is_refused_before_anything_is_run(store: Any) -> None:
    for setting, make in (("checkpoint_store", WorkflowEngine), ("store", CheckpointManager)):
        with pytest.raises(SettingError, match=f"{setting}=.* is not a store") as caught:
            make(store)
        assert caught.value.setting == setting
        assert ("open_store('file:runs')" in caught.value.remedy) is (store == "file:runs")


@pytest.mark.parametrize("options", [{"every": 0}, {"every": -1}, {"every": True}, {"interval": 0}, {"interval": -1}])
def test_a_number_out_of_its_range_is_refused_before_anything_is_run(options: dict[str, Any]) -> None:
    store = MemoryCheckpointStore()
    with pytest.raises(SettingError):
        WorkflowEngine(store).run_sync(loop, workflow_id="run", options=RunOptions(**options), n=1)
    assert (ran, asyncio.run(store.load_latest("run"))) == ([], None)


# --- saves that fail --------------------------------------------------------------------------------------------------


class FailingStore(CrashingStore):
    """A store whose saves fail where a test says so, by their checkpoints' names; each is counted."""

    def __init__(self, inner: Any, failing: Callable[[CheckpointData], bool], error: Any = None) -> None:
        super().__init__(inner, 10**9, is_after=False)
        self._failing = failing
        self._error = error

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        if self._failing(data):
            raise self._error or CheckpointStorageError(
                "the server is away", workflow_id=workflow_id, operation="save", is_outcome_unknown=True
            )
        await super().save(workflow_id, data)


def told(engine: WorkflowEngine, made: Any, **inputs: Any) -> tuple[Any, list[Any]]:
    events: list[Any] = []
    session = engine.prepare(made, "run", None, inputs)
    return engine.drive_sync(session, on_event=events.append), events


def names(*wanted: str) -> Callable[[CheckpointData], bool]:
    return lambda data: data.checkpoint_id in wanted


def test_a_run_that_is_to_fail_stops_at_the_first_checkpoint_that_cannot_be_saved(reopen: Callable[[], Any]) -> None:
    store = FailingStore(reopen(), names("work[1]"))
    result, events = told(WorkflowEngine(store), saved, n=4)
    assert (result.status, result.is_saved, ran) == ("failed", False, [0, 1])
    assert isinstance(result.error, CheckpointStorageError)
    failed = [event for event in events if event.kind == "CheckpointFailed"]
    assert [(each.checkpoint_id, each.sequence, each.reason) for each in failed] == [("work[1]", 3, "step")]
    assert (events[-1].kind, events[-1].is_saved) == ("WorkflowFailed", False)
    assert "StepCompleted" not in [event.kind for event in events if getattr(event, "path", "") == "work[1]"]
    assert WorkflowEngine(reopen()).resume_sync(saved, workflow_id="run").steps.restored == 1


LOST = [  # what cannot be saved, what is durable behind each step, whether the end is
    ((), [("started", 0), ("step", 1), ("step", 2), ("step", 3), ("completed", 3)], True),
    (("work",), [("started", 0), ("step", 2), ("step", 3), ("completed", 3)], True),
    (("work", "work[1]"), [("started", 0), ("step", 3), ("completed", 3)], True),
    (("work", "work[1]", "work[2]"), [("started", 0), ("completed", 3)], True),
    (("work[2]", "@completed"), [("started", 0), ("step", 1), ("step", 2)], False),
]


@pytest.mark.parametrize(("lost", "durable", "is_saved"), LOST)
def test_a_run_that_is_to_go_on_tells_each_checkpoint_that_is_lost_and_loses_no_result_by_it(
    lost: tuple[str, ...], durable: list[tuple[str, int]], is_saved: bool, reopen: Callable[[], Any]
) -> None:
    engine = WorkflowEngine(FailingStore(reopen(), names(*lost)), on_save_error="continue")
    result, events = told(engine, saved, n=3)
    failed = [event for event in events if event.kind == "CheckpointFailed"]
    assert [each.checkpoint_id for each in failed] == list(lost)
    assert all("the server is away" in each.error for each in failed)
    assert [event.path for event in events if event.kind == "StepCompleted"] == ["work", "work[1]", "work[2]"]
    assert (result.is_saved, ran) == (is_saved, [0, 1, 2])
    assert (result.status, result.unwrap()) == ("completed", 3)
    assert checkpoints(reopen()) == durable
    ran.clear()
    again = WorkflowEngine(reopen()).resume_sync(saved, workflow_id="run")
    assert (again.output, again.steps.restored) == (3, durable[-1][1])
    assert ran == [0, 1, 2][durable[-1][1] :]


def test_a_checkpoint_of_a_trigger_that_is_lost_is_tried_again_behind_the_next_step(reopen: Callable[[], Any]) -> None:
    failures = [True, True]
    store = FailingStore(reopen(), lambda data: data.reason == "trigger" and bool(failures and failures.pop()))
    engine = WorkflowEngine(store, on_save_error="continue", trigger=StepCountTrigger(2))
    result, events = told(engine, loop, n=7)
    assert result.status == "completed"
    assert [event.kind for event in events].count("CheckpointFailed") == 2
    assert triggered(reopen()) == [4, 6]


def test_sequences_are_not_used_twice_where_nobody_knows_what_became_of_one(reopen: Callable[[], Any]) -> None:
    engine = WorkflowEngine(FailingStore(reopen(), names("work[1]")), on_save_error="continue")
    told(engine, saved, n=3)
    assert [each.sequence for each in reversed(asyncio.run(reopen().list_checkpoints("run")))] == [1, 2, 4, 5]


def test_what_a_run_cannot_be_without_stops_it_even_if_it_is_to_go_on(reopen: Callable[[], Any]) -> None:
    engine = WorkflowEngine(FailingStore(reopen(), names("@started")), on_save_error="continue")
    result, _ = told(engine, saved, n=3)
    assert (result.status, result.is_saved, ran) == ("failed", False, [])

    @workflow
    def once() -> Generator[Any, Any, None]:
        yield step("pay").python(work, 5).at_most_once()

    engine = WorkflowEngine(FailingStore(reopen(), lambda data: data.reason == "in_doubt"), on_save_error="continue")
    result, _ = told(engine, once)
    assert (result.status, ran) == ("failed", []), "nothing that must not be done twice is begun without its mark"


def test_a_step_that_must_not_be_done_twice_stays_in_doubt_until_its_end_is_durable(reopen: Callable[[], Any]) -> None:
    @workflow
    def once() -> Generator[Any, Any, None]:
        yield step("pay").python(work, 5).at_most_once()
        yield step("work").python(work, 6).checkpoint()
        yield step("work").python(work, 7).checkpoint()

    lost = FailingStore(reopen(), names("pay", "work"))
    with pytest.raises(SimulatedCrash):
        lost._at = 3
        WorkflowEngine(lost, on_save_error="continue").run_sync(once, workflow_id="run")
    assert ran == [5, 6, 7]
    assert latest(reopen()).in_flight == ("pay",)
    with pytest.raises(StepInDoubtError):
        WorkflowEngine(reopen()).resume_sync(once, workflow_id="run")
    engine = WorkflowEngine(FailingStore(reopen(), names("pay")), on_save_error="continue")
    result = engine.resume_sync(once, workflow_id="run", options=RunOptions(force=True))
    assert (result.status, latest(reopen()).in_flight) == ("completed", ())


def test_who_lost_the_run_does_not_go_on_whatever_it_was_told(reopen: Callable[[], Any], tmp_path: Path) -> None:
    store = reopen()
    other = store if isinstance(store, MemoryCheckpointStore) else FileCheckpointStore(tmp_path / "store")

    async def loses(number: int) -> None:
        ran.append(number)
        if number == 1:
            await other.acquire("run", take_over=True)

    @workflow
    def flow() -> Generator[Any, Any, None]:
        for number in range(4):
            yield step("work").python(loses, number).checkpoint()

    with pytest.raises(FencedError):
        WorkflowEngine(store, on_save_error="continue").run_sync(flow, workflow_id="run")
    assert ran == [0, 1]
    asyncio.run(other.release("run"))


def test_what_a_store_raises_beyond_its_contract_is_a_failed_save_too(reopen: Callable[[], Any]) -> None:
    store = FailingStore(reopen(), names("work[1]"), ZeroDivisionError("a bug"))
    result, events = told(WorkflowEngine(store, on_save_error="continue"), saved, n=3)
    failed = [event.error for event in events if event.kind == "CheckpointFailed"]
    assert (result.status, len(failed)) == ("completed", 1)
    assert "raised ZeroDivisionError during a save: a bug" in failed[0]


class FullDisk(PosixFileSystem):
    """A disk on which there is no room for a while."""

    is_full = False

    def write(self, file: int, data: bytes) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(file, data)


@pytest.mark.parametrize(("policy", "status"), [("fail", "failed"), ("continue", "completed")])
def test_a_full_disk_loses_nothing_that_was_durable_before(policy: str, status: str, tmp_path: Path) -> None:
    disk = FullDisk()

    def fills(number: int) -> int:
        disk.is_full = number == 1
        return work(number)

    @workflow
    def flow() -> Generator[Any, Any, None]:
        for number in range(3):
            yield step("work").python(fills, number).checkpoint()

    engine = WorkflowEngine(FileCheckpointStore(tmp_path, filesystem=disk), on_save_error=policy)
    result, events = told(engine, flow)
    lost = [event.checkpoint_id for event in events if event.kind == "CheckpointFailed"]
    assert lost == ["work[1]"]
    assert (result.status, result.is_saved) == (status, policy == "continue")
    assert isinstance(result.error, DiskFullError) == (policy == "fail")
    assert ran == ([0, 1] if policy == "fail" else [0, 1, 2])
    durable = ["work"] if policy == "fail" else ["work", "work[1]", "work[2]"]  # there is room again for the third
    assert [each.path for each in latest(FileCheckpointStore(tmp_path)).step_results] == durable


@pytest.mark.parametrize("policy", ["", "ignore", "Continue", True, None])
def test_what_is_to_be_done_when_a_save_fails_is_one_of_two_words(policy: Any) -> None:
    with pytest.raises(SettingError, match="neither 'fail' nor 'continue'"):
        WorkflowEngine(MemoryCheckpointStore(), on_save_error=policy)
