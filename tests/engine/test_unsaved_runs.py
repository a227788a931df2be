"""A run that continues when its checkpoints cannot be saved: what it ends as, what it claims, and what a resume finds."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, Retention, RunOptions, WorkflowEngine, step, workflow
from flowckpt.core.records import CheckpointData, Reason, Status
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import CheckpointStorageError, FencedError, StepFailedError, SuspensionUnsavedError
from flowckpt.execution.interrupts import RunInterrupted
from flowckpt.stores.sqlite import SqliteCheckpointStore
from flowckpt.testing import FakeClock

did: list[Any] = []
LONG = 100_000.0


@pytest.fixture(autouse=True)
def _fresh() -> None:
    did.clear()


class FailingStore(CrashingStore):
    """A store whose saves fail where a test says so."""

    def __init__(self, inner: Any, failing: Callable[[CheckpointData], bool]) -> None:
        super().__init__(inner, 10**9, is_after=False)
        self.failing = failing

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        if self.failing(data):
            raise CheckpointStorageError("the server is away", workflow_id=workflow_id, is_outcome_unknown=True)
        await super().save(workflow_id, data)

    async def send_signal(self, workflow_id: str, signal: Any) -> bool:
        return await self.inner.send_signal(workflow_id, signal)

    async def signals(self, workflow_id: str) -> Any:
        return await self.inner.signals(workflow_id)

    async def remove_signals(self, workflow_id: str, signal_ids: Any) -> None:
        await self.inner.remove_signals(workflow_id, signal_ids)


def after(*first: str) -> Callable[[CheckpointData], bool]:
    """Fail every save but those of some checkpoints."""
    return lambda data: data.checkpoint_id not in first


def lost(reason: Reason) -> Callable[[CheckpointData], bool]:
    return lambda data: data.reason is reason


def told(engine: WorkflowEngine, made: Any, options: RunOptions | None = None, **inputs: Any) -> tuple[Any, list[Any]]:
    events: list[Any] = []
    session = engine.prepare(made, "run", options, inputs)
    return engine.drive_sync(session, on_event=events.append), events


def unsaved(events: list[Any]) -> list[str]:
    return [event.checkpoint_id for event in events if event.kind == "CheckpointFailed"]


def latest(store: Any) -> Any:
    return asyncio.run(store.load_latest("run"))


def do(what: Any, act: Callable[[], Any] | None = None) -> Any:
    did.append(what)
    return what if act is None else act()


def undo(what: Any) -> None:
    did.append(f"undo {what}")


def breaks() -> None:
    raise ValueError("the true cause")


@workflow
def flow(n: int) -> Generator[Any, Any, int]:
    for number in range(n):
        yield step("work").python(do, number).checkpoint()
    return n * 10


@workflow
def failing(n: int) -> Generator[Any, Any, None]:
    for number in range(n):
        yield step("work").python(do, number).checkpoint().rollback(undo)
    yield step("breaks").python(breaks)


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_a_run_whose_end_cannot_be_saved_completes_with_its_output_and_says_that_it_is_not_saved(
    reopen: Callable[[], Any],
) -> None:
    engine = WorkflowEngine(FailingStore(reopen(), lost(Reason.COMPLETED)), on_save_error="continue")
    result, events = told(engine, flow, n=3)
    assert (result.status, result.output, result.unwrap(), result.error) == ("completed", 30, 30, None)
    assert (result.is_saved, result.last_saved) == (False, "work[2]")
    assert "the server is away" in str(result.save_error)
    assert unsaved(events) == ["@completed"]
    assert (events[-1].kind, events[-1].output, events[-1].is_saved) == ("WorkflowCompleted", 30, False)
    again = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run")
    assert (again.output, again.steps.restored, again.is_saved) == (30, 3, True)


def test_a_run_that_is_to_fail_does_so_when_its_end_cannot_be_saved(reopen: Callable[[], Any]) -> None:
    result, events = told(WorkflowEngine(FailingStore(reopen(), lost(Reason.COMPLETED))), flow, n=3)
    assert (result.status, result.is_saved, result.output) == ("failed", False, None)
    assert (unsaved(events), events[-1].kind) == (["@completed"], "WorkflowFailed")


def test_a_run_that_is_saved_says_where(reopen: Callable[[], Any]) -> None:
    result, events = told(WorkflowEngine(reopen()), flow, n=1)
    assert (result.is_saved, result.last_saved, result.save_error) == (True, "@completed", None)
    assert events[-1].is_saved
    again = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="run")
    assert again.last_saved == "@completed"


def test_a_failure_is_told_by_its_own_cause_when_it_cannot_be_saved_and_nothing_is_undone_unrecorded(
    reopen: Callable[[], Any],
) -> None:
    store = FailingStore(reopen(), after("@started", "work"))
    result, events = told(WorkflowEngine(store, on_save_error="continue"), failing, n=2)
    assert (result.status, result.is_saved, result.last_saved) == ("failed", False, "work")
    assert isinstance(result.error, StepFailedError)
    assert "the true cause" in str(result.error)
    notes = result.error.__notes__
    assert any("Nothing was undone" in note for note in notes)
    assert any("end of the run could not be saved: the server is away" in note for note in notes)
    assert unsaved(events) == ["work[1]", "@rollback", "@failed"]
    assert (did, result.undone) == ([0, 1], ())
    assert (events[-1].kind, events[-1].error_message) == ("WorkflowFailed", result.failure.message)
    did.clear()
    again = WorkflowEngine(reopen()).resume_sync(failing, workflow_id="run")
    assert (again.steps.restored, did) == (1, [1, "undo 1", "undo 0"])


def test_steps_are_undone_where_it_is_saved_that_this_begins_and_a_resume_undoes_what_is_not_recorded(
    reopen: Callable[[], Any],
) -> None:
    store = FailingStore(reopen(), after("@started", "work", "work[1]", "@rollback"))
    result, _ = told(WorkflowEngine(store, on_save_error="continue"), failing, n=2)
    assert (result.status, result.is_saved, did) == ("failed", False, [0, 1, "undo 1", "undo 0"])
    did.clear()
    again = WorkflowEngine(reopen()).resume_sync(failing, workflow_id="run")
    assert (again.status, did) == ("failed", ["undo 1", "undo 0"])


def test_a_run_that_could_not_undo_is_resumed_from_its_failure_when_only_that_was_saved(
    reopen: Callable[[], Any],
) -> None:
    store = FailingStore(reopen(), lost(Reason.ROLLBACK))
    result, _ = told(WorkflowEngine(store, on_save_error="continue"), failing, n=1)
    assert (result.is_saved, result.undone, did) == (True, (), [0])
    assert "rolling_back" not in latest(reopen()).metadata


@pytest.mark.parametrize("n", [1, 5])
def test_a_fan_out_whose_checkpoints_are_lost_keeps_all_its_results(n: int, reopen: Callable[[], Any]) -> None:
    @workflow
    def mapped() -> Generator[Any, Any, Any]:
        found = yield step("all").map(do, list(range(n))).checkpoint()
        return list(found)

    engine = WorkflowEngine(FailingStore(reopen(), after("@started")), on_save_error="continue")
    result, events = told(engine, mapped)
    assert (result.status, result.output, result.is_saved) == ("completed", list(range(n)), False)
    assert unsaved(events)[-2:] == ["all", "@completed"]
    assert latest(reopen()).step_results == []


# --- waits ------------------------------------------------------------------------------------------------------------


@workflow
def naps(seconds: float) -> Generator[Any, Any, str]:
    yield step("work").python(do, 1).checkpoint()
    yield step("nap").sleep(seconds)
    return "woken"


def test_a_run_that_waits_and_cannot_save_that_it_does_is_not_suspended(reopen: Callable[[], Any]) -> None:
    store = FailingStore(reopen(), lost(Reason.SUSPENDED))
    result, events = told(WorkflowEngine(store, on_save_error="continue", clock=FakeClock()), naps, seconds=LONG)
    assert (result.status, result.is_saved, result.last_saved, result.waits) == ("failed", False, "work", ())
    assert isinstance(result.error, SuspensionUnsavedError)
    assert "nap sleeps until" in result.error.waits[0]
    assert unsaved(events) == ["@suspended"], "told once"
    assert events[-1].kind == "WorkflowFailed"
    assert latest(reopen()).status is Status.RUNNING
    again = WorkflowEngine(reopen(), clock=FakeClock()).resume_sync(naps, workflow_id="run")
    assert (again.status, again.steps.restored, again.is_saved) == ("suspended", 1, True)


def test_a_run_that_stays_for_its_wait_goes_on_although_that_is_not_saved(reopen: Callable[[], Any]) -> None:
    store = FailingStore(reopen(), lost(Reason.SUSPENDED))
    result, events = told(WorkflowEngine(store, on_save_error="continue", clock=FakeClock()), naps, seconds=30)
    assert (result.status, result.output, result.is_saved) == ("completed", "woken", True)
    assert unsaved(events) == ["@suspended"]


def test_a_wait_that_could_not_be_saved_is_not_taken_for_saved_when_the_run_rests_again(
    reopen: Callable[[], Any],
) -> None:
    failures = [True]
    store = FailingStore(reopen(), lambda data: data.reason is Reason.SUSPENDED and bool(failures and failures.pop()))
    clock = FakeClock()

    @workflow
    def two() -> Generator[Any, Any, None]:
        yield step("short").sleep(30)
        yield step("long").sleep(LONG)

    result, events = told(WorkflowEngine(store, on_save_error="continue", clock=clock), two)
    assert (result.status, result.is_saved, unsaved(events)) == ("suspended", True, ["@suspended"])
    assert latest(reopen()).status is Status.SUSPENDED


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_stop_that_cannot_be_saved_says_so(policy: str, reopen: Callable[[], Any]) -> None:
    @workflow
    def stopped() -> Generator[Any, Any, None]:
        yield step("work").python(do, 1, lambda: signal.raise_signal(signal.SIGTERM))
        yield step("never").python(do, 2)

    engine = WorkflowEngine(FailingStore(reopen(), lost(Reason.SUSPENDED)), on_save_error=policy)
    with pytest.raises(RunInterrupted) as stop:
        engine.run_sync(stopped, workflow_id="run")
    result = stop.value.result
    assert result is not None
    assert (result.status, result.is_saved, did) == ("suspended", False, [1])
    assert latest(reopen()).status is Status.RUNNING


# --- a run that is removed --------------------------------------------------------------------------------------------


def removal(tmp_path: Path, kind: str) -> tuple[Any, Callable[[], Any]]:
    if kind == "sqlite":
        return SqliteCheckpointStore(tmp_path / "store" / "runs.db"), lambda: shutil.rmtree(tmp_path / "store")
    return FileCheckpointStore(tmp_path / "store"), lambda: shutil.rmtree(tmp_path / "store")


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_a_run_goes_on_to_its_end_when_its_store_is_removed_under_it(kind: str, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    store, remove = removal(tmp_path, kind)

    @workflow
    def robbed() -> Generator[Any, Any, int]:
        for number in range(4):
            yield step("work").python(do, number, remove if number == 1 else None).checkpoint()
        return 40

    result, events = told(WorkflowEngine(store, on_save_error="continue"), robbed)
    assert (result.status, result.output, result.is_saved, result.last_saved) == ("completed", 40, False, "work")
    assert unsaved(events) == ["work[1]", "work[2]", "work[3]", "@completed"]
    assert latest(store) is None
    assert not (tmp_path / "store").exists(), "nothing is made again of a run that somebody removed"
    store.close()


def test_a_run_that_is_to_fail_stops_when_it_is_cleared(tmp_path: Path) -> None:
    store, _ = removal(tmp_path, "file")

    def remove() -> None:
        shutil.rmtree(tmp_path / "store" / "runs" / "run")

    @workflow
    def robbed() -> Generator[Any, Any, None]:
        for number in range(3):
            yield step("work").python(do, number, remove if number == 1 else None).checkpoint()

    with pytest.raises(FencedError, match="cleared") as fenced:
        WorkflowEngine(store).run_sync(robbed, workflow_id="run")
    assert (fenced.value.newest_attempt, did) == (None, [0, 1])
    assert "flowckpt show" not in str(fenced.value)


# --- room again -------------------------------------------------------------------------------------------------------


class Disk(PosixFileSystem):
    """A disk that fails while it is told to; it knows what was written to a segment after a failure there."""

    def __reduce__(self) -> Any:
        raise TypeError("it is the world, which no argument contains")

    def __init__(self, store: Path) -> None:
        self.fails_at: tuple[str, ...] = ()
        self.only_segments = False
        self.failed: set[int] = set()
        self.touched_again: list[str] = []
        self._store = store

    def _call(self, name: str, file: int) -> None:
        inode = self.status(file).inode
        is_segment = inode in {path.stat().st_ino for path in self._store.glob("runs/run/*.jsonl")}
        if is_segment and inode in self.failed:
            self.touched_again.append(name)
        if name in self.fails_at and (is_segment or not self.only_segments):
            if is_segment:
                self.failed.add(inode)
            raise OSError(errno.ENOSPC, "No space left on device")

    def write(self, file: int, data: bytes) -> int:
        self._call("write", file)
        return super().write(file, data)

    def sync_data(self, file: int) -> None:
        self._call("sync_data", file)
        super().sync_data(file)


@pytest.mark.parametrize("call", ["write", "sync_data"])
@pytest.mark.parametrize("size", [1, 200_000])
def test_once_there_is_room_again_the_run_is_saved_whole_in_a_new_segment(call: str, size: int, tmp_path: Path) -> None:
    disk = Disk(tmp_path)

    def fills(number: int) -> str:
        did.append(number)
        disk.fails_at = (call,) if number in (1, 2) else ()
        return str(number) * size

    @workflow
    def long() -> Generator[Any, Any, Any]:
        found = []
        for number in range(5):
            found.append((yield step("work").python(fills, number).checkpoint()))
            if number == 3 and len(did) < 5:
                yield step("stop").python(breaks)
        return [each[0] for each in found]

    store = FileCheckpointStore(tmp_path, filesystem=disk)
    result, events = told(WorkflowEngine(store, on_save_error="continue"), long)
    assert unsaved(events) == ["work[1]", "work[2]"]
    assert (result.status, result.is_saved) == ("failed", True)
    assert disk.touched_again == [], "a file on which a write or a sync has failed is never written or synced again"
    newest = latest(FileCheckpointStore(tmp_path))
    assert (newest.reason, [each.path for each in newest.step_results][:4]) == (
        "failed",
        ["work", "work[1]", "work[2]", "work[3]"],
    )
    assert [found for found in asyncio.run(FileCheckpointStore(tmp_path).check()) if found.severity == "corrupt"] == []
    assert len([*(tmp_path / "runs" / "run").iterdir()]) <= 5, "nothing is left of what was tried out"
    did[:] = [None] * 5  # so that it does not stop again
    again = WorkflowEngine(FileCheckpointStore(tmp_path)).resume_sync(long, workflow_id="run")
    assert (again.output, again.steps.restored) == (["0", "1", "2", "3", "4"], 4)


def test_a_disk_that_takes_no_record_gets_no_more_than_one_segment_for_it(tmp_path: Path) -> None:
    disk = Disk(tmp_path)

    @workflow
    def full() -> Generator[Any, Any, int]:
        for number in range(6):
            if number == 1:
                disk.fails_at, disk.only_segments = ("sync_data",), True
            yield step("work").python(do, number).checkpoint()
        return 60

    store = FileCheckpointStore(tmp_path, filesystem=disk)
    result, events = told(WorkflowEngine(store, on_save_error="continue"), full)
    assert (result.status, result.output, result.is_saved) == ("completed", 60, False)
    assert len(unsaved(events)) == 6
    segments = sorted(path.name for path in (tmp_path / "runs" / "run").glob("*.jsonl"))
    assert segments == ["00000001.jsonl", "00000002.jsonl"]
    assert disk.touched_again == []
    again = WorkflowEngine(FileCheckpointStore(tmp_path)).resume_sync(full, workflow_id="run")
    assert (again.output, again.steps.restored) == (60, 2), "the record whose sync failed is there, and was copied"


def test_no_new_segment_is_begun_behind_another_owner(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    thief = FileCheckpointStore(tmp_path)

    async def stolen(number: int) -> None:
        did.append(number)
        disk.fails_at = ("write",) if number == 1 else ()
        if number == 2:
            await thief.acquire("run", take_over=True)

    @workflow
    def contested() -> Generator[Any, Any, None]:
        for number in range(4):
            yield step("work").python(stolen, number).checkpoint()

    store = FileCheckpointStore(tmp_path, filesystem=disk)
    with pytest.raises(FencedError) as fenced:
        WorkflowEngine(store, on_save_error="continue").run_sync(contested, workflow_id="run")
    assert (fenced.value.newest_attempt, did) == (2, [0, 1, 2])
    asyncio.run(thief.release("run"))


def test_the_lock_stays_held_while_a_run_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    disk, owners = Disk(tmp_path), []
    other = FileCheckpointStore(tmp_path)

    async def asks(number: int) -> None:
        disk.fails_at = ("write",) if number == 1 else ()
        owners.append(await other.owner("run") is not None)

    @workflow
    def owned() -> Generator[Any, Any, None]:
        for number in range(4):
            yield step("work").python(asks, number).checkpoint()

    store = FileCheckpointStore(tmp_path, filesystem=disk)
    result, _ = told(WorkflowEngine(store, on_save_error="continue"), owned)
    assert (owners, result.is_saved, result.attempt) == ([True] * 4, True, 2)
    assert asyncio.run(other.owner("run")) is None


def test_a_mark_that_must_be_saved_is_saved_in_a_new_segment_too(tmp_path: Path) -> None:
    disk = Disk(tmp_path)

    def fills() -> None:
        disk.fails_at = ("write",)

    def frees() -> None:
        disk.fails_at = ()

    @workflow
    def pays() -> Generator[Any, Any, None]:
        yield step("full").python(fills).checkpoint()
        yield step("room").python(frees)
        yield step("pay").python(do, "pay").at_most_once()

    store = FileCheckpointStore(tmp_path, filesystem=disk)
    result, events = told(WorkflowEngine(store, on_save_error="continue"), pays)
    assert (result.status, result.is_saved, did, unsaved(events)) == ("completed", True, ["pay"], ["full"])


def test_a_full_database_is_saved_to_again_once_there_is_room(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "runs.db")

    def limit(number: int) -> str:
        did.append(number)
        connection = store.runs.database._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages if number in (1, 2) else 10**6}")
        return str(number) * 20_000

    @workflow
    def long() -> Generator[Any, Any, int]:
        for number in range(4):
            yield step("work").python(limit, number).checkpoint()
        return 40

    result, events = told(WorkflowEngine(store, on_save_error="continue"), long)
    assert (unsaved(events), result.status, result.is_saved) == (["work[1]", "work[2]"], "completed", True)
    assert len(latest(store).step_results) == 4
    store.close()


def test_a_database_that_stays_full_ends_the_run_unsaved_with_its_output(tmp_path: Path) -> None:
    store = SqliteCheckpointStore(tmp_path / "runs.db")

    def limit(number: int) -> str:
        if number == 1:
            connection = store.runs.database._connection
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages}")
        return str(number) * 20_000

    @workflow
    def long() -> Generator[Any, Any, int]:
        for number in range(3):
            yield step("work").python(limit, number).checkpoint()
        return 30

    result, events = told(WorkflowEngine(store, on_save_error="continue"), long)
    assert (result.status, result.output, result.is_saved, result.last_saved) == ("completed", 30, False, "work")
    assert unsaved(events) == ["work[1]", "work[2]", "@completed"]
    store.close()
    again = SqliteCheckpointStore(tmp_path / "runs.db")
    assert [each.path for each in latest(again).step_results] == ["work"]
    again.close()


def test_a_run_that_cannot_be_given_back_has_ended_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    class Keeps(FailingStore):
        async def release(self, workflow_id: str, *, token: str = "") -> None:
            raise CheckpointStorageError("no room to let go", workflow_id=workflow_id, operation="release")

    result, _ = told(WorkflowEngine(Keeps(MemoryCheckpointStore(), lambda data: False)), flow, n=1)
    assert (result.status, result.output) == ("completed", 10)
    assert "no room to let go" in caplog.text


class DyingDisk(Disk):
    """A disk under a process that dies at its n-th call after a failure."""

    def __init__(self, store: Path, at: int) -> None:
        super().__init__(store)
        self.left = at
        self.is_dead = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in DYING or not self.failed:
            return found
        self.left -= 1
        if self.left <= 0:
            self.is_dead = True
        if self.is_dead:
            raise SimulatedCrash
        return found


DYING = {"create", "write", "sync", "sync_data", "link", "unlink", "names", "set_writable"}


def dying_flow(disk: Disk) -> Any:
    def fills(number: int) -> int:
        did.append(number)
        disk.fails_at = ("sync_data",) if number == 1 else ()
        return number

    @workflow("dies")
    def dies() -> Generator[Any, Any, int]:
        total = 0
        for number in range(4):
            total += yield step("work").python(fills, number).checkpoint()
        return total

    return dies


@pytest.mark.parametrize("tens", range(2))
def test_wherever_a_process_dies_that_goes_on_in_a_new_segment_a_resume_ends_as_an_uninterrupted_run(
    tens: int, tmp_path: Path
) -> None:
    deaths = 0
    for at in range(tens * 10 + 1, tens * 10 + 11):
        disk = DyingDisk(tmp_path / str(at), at)
        store, flow = FileCheckpointStore(tmp_path / str(at), filesystem=disk), dying_flow(disk)
        with contextlib.suppress(SimulatedCrash):
            told(WorkflowEngine(store, on_save_error="continue"), flow)
        assert not disk.touched_again
        deaths += disk.is_dead
        disk.failed.clear()  # here the next process begins, and the disk is well
        again = WorkflowEngine(FileCheckpointStore(tmp_path / str(at))).resume_sync(flow, workflow_id="run")
        assert (again.output, again.is_saved) == (6, True), at
        assert again.steps.restored >= 1, at
    assert deaths == 10, "every one of these calls is made"


def test_retention_keeps_to_its_number_when_a_run_goes_on_in_a_new_segment(tmp_path: Path) -> None:
    disk = Disk(tmp_path)

    def fills(number: int) -> int:
        disk.fails_at = ("write",) if number in (5, 6) else ()
        return number

    @workflow
    def long() -> Generator[Any, Any, None]:
        for number in range(40):
            yield step("work").python(fills, number).checkpoint()

    engine = WorkflowEngine(
        FileCheckpointStore(tmp_path, filesystem=disk), on_save_error="continue", retention=Retention(keep_last=3)
    )
    result, _ = told(engine, long)
    assert result.is_saved
    left = asyncio.run(FileCheckpointStore(tmp_path).list_checkpoints("run"))
    assert len(left) <= 6
    assert len(latest(FileCheckpointStore(tmp_path)).step_results) == 40
