"""The live note of a run: what runs now, seen from outside between two checkpoints; and that it decides nothing."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from crashing import CrashingStore, SimulatedCrash
from hypothesis import given, settings
from hypothesis import strategies as st

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, Secret, WorkflowEngine, current_step, step, workflow
from flowckpt.core.records import Status
from flowckpt.engine.run import live
from flowckpt.errors import CheckpointStorageError
from flowckpt.stores.base import StoreBase
from flowckpt.stores.log.sealing.keys import Key, KeyRing
from flowckpt.testing import FakeClock
from tests.reopening import reopened_files, reopened_memory

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
seen: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


def noted(store: StoreBase, status: Status) -> Any:
    """What another process is shown of the run, in a thread: the caller may run in a loop."""

    async def read() -> Any:
        latest = await store.load_latest("one")
        assert latest is not None
        note = await live.read_live(store, "one", status, latest.attempt, latest.metadata, latest.step_results)
        return None if note is None else note.to_document()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, read()).result()


def look() -> None:
    """Look as the thread does, at once."""
    live.WATCH.poll(is_due=True)


@pytest.mark.parametrize("door", ["in place", "on a thread", "in the loop"])
def test_a_step_is_seen_with_its_start_its_progress_and_its_figures_before_any_checkpoint(
    reopen: Callable[[], Any], door: str
) -> None:
    clock = FakeClock(NOON)
    store = reopen()

    def train() -> int:
        clock.advance(seconds=5)
        current_step().progress(30, 100, "epoch 3")
        current_step().record(tokens=7)
        look()
        return 1

    async def trains() -> int:
        return train()

    made = {
        "in place": step("train").python(train),
        "on a thread": step("train").python(train).timeout(600),
        "in the loop": step("train").python(trains),
    }[door]

    @workflow
    def flow() -> Generator[Any, Any, int]:
        yield step("fetch").python(int, 3).checkpoint()
        result: int = yield made
        yield step("look").python(look)
        return result

    shown: list[Any] = []
    former = store.note_live

    def note(run: str, content: bytes) -> None:
        former(run, content)
        shown.append(json.loads(content))

    store.note_live = note
    engine = WorkflowEngine(store, clock=clock)
    assert engine.run_sync(flow, workflow_id="one").output == 1
    step_seen, after = shown
    assert step_seen["attempt"] == 1
    assert step_seen["more"] == 0
    assert step_seen["at"] == "2026-11-20T12:00:05Z"
    assert step_seen["steps"] == [
        {
            "path": "train",
            "step_type": "python",
            "since": "2026-11-20T12:00:00Z",
            "tries": 1,
            "progress": [30, 100, "epoch 3"],
            "figures": {"tokens": 7},
        }
    ]
    assert [each["path"] for each in after["steps"]] == ["look"]
    assert not live.WATCH.runs
    assert noted(store, Status.COMPLETED) is None


@workflow
def flow() -> Generator[Any, Any, int]:
    """Two steps, of which the second one lasts."""
    yield step("fetch").python(int).checkpoint()
    result: int = yield step("work").python(work).checkpoint()
    return result


def work() -> int:
    current_step().progress(1)
    look()
    seen.append(current_step().attempt)
    return 7


def crashed(store: Any) -> None:
    """Run until the save of the second step, in which the process dies."""
    with pytest.raises(SimulatedCrash):
        WorkflowEngine(CrashingStore(store, 3, is_after=False)).run_sync(flow, workflow_id="one")


def test_what_ran_when_a_process_died_is_shown_as_such_until_the_next_attempt(reopen: Callable[[], Any]) -> None:
    store = reopen()
    crashed(store)
    died = noted(store, Status.CRASHED)
    assert not died["is_running"]
    assert [(each["path"], each["progress"]) for each in died["steps"]] == [
        ("work", {"done": 1, "total": None, "note": ""})
    ]
    store = reopen()
    assert WorkflowEngine(store).resume_sync(flow, workflow_id="one").status == "completed"
    assert seen == [1, 2]
    assert noted(store, Status.COMPLETED) is None
    assert noted(store, Status.CRASHED)["steps"] == []  # its end is in the record


OLD = (
    b'{"birth":"","attempt":1,"at":"2026-11-20T12:00:00Z","more":0,"steps":[{"path":"x","step_type":"python",'
    b'"since":"2026-11-20T12:00:00Z","tries":1,"progress":null,"figures":{}}]}'
)
DAMAGE = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.just(OLD),
    st.sampled_from([b"[]", b"null", b'{"steps":[{}]}', b"\xff", b"{" * 5000, OLD[:-7]]),
    st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=3)),
)
"""What is found in the place of a note: nothing, noise, the note of another run, or a note that was changed."""


@pytest.mark.parametrize("kind", ["memory", "file"])
@settings(max_examples=25)
@given(found=DAMAGE, later=DAMAGE)
def test_a_note_that_is_missing_old_or_damaged_changes_no_outcome(
    kind: str, found: Any, later: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    seen.clear()
    place = tmp_path_factory.mktemp("law") / "store"
    reopen = reopened_memory() if kind == "memory" else reopened_files(place)

    def damage(store: Any, found: Any) -> None:
        if kind == "file":
            note = place / "runs" / "one" / "live"
            content = note.read_bytes()
            note.unlink()
            if (put := changed(content, found)) is not None:
                note.write_bytes(put)
        else:
            held = store.runs.stored["one"]
            held.live = changed(held.live, found)

    store = reopen()
    crashed(store)
    damage(store, found)
    note = noted(store, Status.CRASHED)
    assert note is None or {each["path"] for each in note["steps"]} <= {"work"} or isinstance(found, tuple)
    store = reopen()
    result = WorkflowEngine(store).resume_sync(flow, workflow_id="one")
    assert (result.output, result.attempt, result.steps.restored, result.steps.executed) == (7, 2, 1, 1)
    damage(store, later)
    noted(store, Status.CRASHED)
    again = WorkflowEngine(reopen()).resume_sync(flow, workflow_id="one")
    assert (again.output, again.attempt, again.steps.restored, seen) == (7, 2, 2, [1, 2])


def changed(content: bytes, found: Any) -> bytes | None:
    if not isinstance(found, tuple):
        return found  # type: ignore[no-any-return]
    place, put = found
    return content[:place] + put + content[place + len(put) :]


def test_the_note_of_an_earlier_life_or_attempt_is_not_that_of_the_newest_one() -> None:
    open_again = reopened_memory()
    store = open_again()
    crashed(store)
    former = store.runs.stored["one"].live
    asyncio.run(open_again().clear("one"))
    crashed(store)
    assert noted(store, Status.CRASHED)["steps"]
    store.runs.stored["one"].live = former
    assert noted(store, Status.CRASHED) is None
    latest = json.loads(former)
    store.runs.stored["one"].live = json.dumps({**latest, "birth": birth(store), "attempt": 2}).encode()
    assert noted(store, Status.CRASHED) is None
    store.runs.stored["one"].live = json.dumps({**latest, "birth": birth(store)}).encode()
    assert noted(store, Status.CRASHED)["steps"]


def birth(store: Any) -> str:
    latest = asyncio.run(store.load_latest("one"))
    return str(latest.metadata["birth"])


@pytest.mark.parametrize("error", [CheckpointStorageError("dead"), OSError(28, "full"), RuntimeError("bug")])
def test_a_note_that_cannot_be_written_or_read_fails_nothing(error: Exception) -> None:
    store = MemoryCheckpointStore()

    def refuse(*_: Any) -> None:
        seen.append("asked")
        raise error

    store.note_live = refuse  # type: ignore[method-assign]
    assert WorkflowEngine(store).run_sync(flow, workflow_id="one").output == 7
    assert seen == ["asked", 1]
    if not isinstance(error, RuntimeError):

        async def read(_: str) -> bytes | None:
            raise error

        store.live_note = read  # type: ignore[method-assign]
        assert noted(store, Status.CRASHED) is None


def test_a_note_holds_no_secret() -> None:
    written: list[bytes] = []
    store = MemoryCheckpointStore()
    store.note_live = lambda _, content: written.append(content)  # type: ignore[method-assign]

    def tells(token: Secret[str]) -> None:
        current_step().progress(1, None, f"with {token.reveal()}")
        look()

    @workflow
    def uses(token: Secret[str]) -> Generator[Any, Any, None]:
        yield step("tells").python(tells, token)

    WorkflowEngine(store).run_sync(uses, workflow_id="one", token="tok-123456789")
    assert len(written) == 1
    assert b"with " in written[0]
    assert b"tok-123456789" not in written[0]


@pytest.mark.parametrize("use", ["encrypt", "authenticate"])
def test_a_protected_store_seals_its_notes(tmp_path: Path, use: str) -> None:
    keys = KeyRing([Key(bytes(range(32)), use)])
    store = FileCheckpointStore(tmp_path, keys=keys)
    crashed(store)
    note = tmp_path / "runs" / "one" / "live"
    assert (b"work" in b64decode(json.loads(note.read_bytes())["hint"])) == (use == "authenticate")
    assert noted(store, Status.CRASHED)["steps"][0]["path"] == "work"
    assert noted(FileCheckpointStore(tmp_path, keys=keys), Status.CRASHED)["steps"][0]["path"] == "work"
    content = note.read_bytes()
    for place in (len(content) // 2, len(content) - 5):
        note.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert noted(store, Status.CRASHED) is None
    note.write_bytes(OLD)
    assert noted(store, Status.CRASHED) is None


def test_a_note_names_the_steps_that_run_longest_and_counts_the_others() -> None:
    written: list[Any] = []
    store = MemoryCheckpointStore()
    store.note_live = lambda _, content: written.append(json.loads(content))  # type: ignore[method-assign]
    entered = 0

    async def member(number: int) -> int:
        nonlocal entered
        entered += 1
        if entered == live.MOST_STEPS + 20:
            look()
        while entered < live.MOST_STEPS + 20:
            await asyncio.sleep(0)
        return number

    @workflow
    def many() -> Generator[Any, Any, None]:
        count = live.MOST_STEPS + 20
        yield step("all").map(member, range(count), concurrency=count)

    WorkflowEngine(store).run_sync(many)
    assert (len(written[0]["steps"]), written[0]["more"]) == (live.MOST_STEPS, 20)


def test_a_thread_looks_while_there_are_runs_and_a_run_that_comes_while_it_ends_is_looked_at() -> None:
    watch = live.Watch()
    watch.beat.set_interval(86_400)
    watch.start()
    assert watch.is_looking
    watch.runs[1] = SimpleNamespace(workflow_id="one")  # type: ignore[assignment]
    assert watch.poll()
    del watch.runs[1]
    assert not watch.poll()
    assert not watch.is_looking

    class Late(dict[int, Any]):
        def __bool__(self) -> bool:  # a run comes between the two looks at the runs
            return True

    watch.runs = Late()
    assert watch.poll()
    assert watch.is_looking
    watch.forget()
    assert not watch.is_looking
    watch.beat.stop()


def test_a_note_that_failed_is_written_by_a_later_look_although_nothing_changed() -> None:
    store = MemoryCheckpointStore()
    written: list[bytes] = []

    def fail_once(_: str, content: bytes) -> None:
        written.append(content)
        if len(written) == 1:
            raise CheckpointStorageError("away")

    store.note_live = fail_once  # type: ignore[method-assign]

    def lasts() -> None:
        for _ in range(3):
            look()

    @workflow
    def one() -> Generator[Any, Any, None]:
        yield step("lasts").python(lasts)

    WorkflowEngine(store, clock=FakeClock(NOON)).run_sync(one)
    assert len(written) == 2
