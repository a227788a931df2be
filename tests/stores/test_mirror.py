"""A store with a mirror keeps the promises of a store, and its mirror catches up whatever happened to it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading

import attrs
import pytest
from obstore.store import MemoryStore

from flowckpt import (
    CheckpointManager,
    FileCheckpointStore,
    MemoryCheckpointStore,
    MirroredStore,
    Retention,
    RunOptions,
    WorkflowEngine,
    continue_as,
    in_sync,
    open_store,
    prune,
    step,
    workflow,
)
from flowckpt.core.records import generation
from flowckpt.errors import CheckpointStorageError, MirrorError, RunLockedError, SettingError
from flowckpt.maintenance import mirror as mirror_module
from flowckpt.maintenance import prune_checkpoints
from flowckpt.maintenance.export import read_whole_run
from flowckpt.stores import KeyRing, ObjectCheckpointStore, PostgresCheckpointStore, SqliteCheckpointStore
from flowckpt.stores.log.sealing.keys import new_key
from flowckpt.testing import FakeClock
from flowckpt.testing.contract import RUN, CheckpointStoreContract, checkpoint, results
from flowckpt.testing.retention import RetentionContract

LARGE = "x" * 100_000


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Wait for a mirror on a machine that is slow just now."""
    monkeypatch.setattr(mirror_module, "_PATIENCE_SECONDS", 60.0)


ONLY_OF_THE_PRIMARY = """
    claimed_by owner call_when_lost list_runs describe_run find_runs survey_runs unreadable_runs figures
    total_bytes medium attempts list_attempt load_attempt read_attempt share_values send_signal signals
    remove_signals announcements note_started started_steps last_seen note_live note_live_all live_note
    delete_checkpoint evict_with_next_save delete_sequences pin unpin pinned compactable compact page_runs
    stored_bytes clear_unchanged tidy use_reserve read_index write_index clear_index
"""


def test_no_method_of_a_store_skips_the_mirror_unless_that_was_decided():
    forwarded = set(mirror_module._ANSWERED_BY_THE_PRIMARY)
    assert forwarded == set(ONLY_OF_THE_PRIMARY.split()), (
        "a new method of StoreBase: define it in MirroredStore, or list it"
    )


class TestMirroredStore(RetentionContract, CheckpointStoreContract):
    def make_store(self):
        return MirroredStore(MemoryCheckpointStore(), MemoryCheckpointStore())


class TestMirroredStoreOfOtherKinds(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path

    def make_store(self):
        return MirroredStore(FileCheckpointStore(self.path / "store"), MemoryCheckpointStore())

    def reopen(self, store):
        return MirroredStore(FileCheckpointStore(self.path / "store"), store.mirror)

    test_runs_are_found_by_status_workflow_and_tags_as_if_all_were_read = None  # asked of the primary, and slow


def record(store, run=RUN):
    """All checkpoints of a run, but for the attempts, which a mirror numbers and notes itself; none without a run."""
    if asyncio.run(store.load_latest(run)) is None:
        return []
    return [
        attrs.evolve(each, attempt=1, metadata={key: each.metadata[key] for key in each.metadata if key != "mirrored"})
        for each in asyncio.run(read_whole_run(store, run)).checkpoints
    ]


def square(number):
    return {"number": number * number, "large": LARGE}


@workflow
def squares(count: int = 3):
    total = 0
    for number in range(count):
        total += (yield step("square").python(square, number).checkpoint())["number"]
    return total


class Flaky(MemoryCheckpointStore):
    """A store whose medium fails while it is away."""

    is_away = False
    calls = 0

    async def save(self, workflow_id, data):
        self._reached()
        await super().save(workflow_id, data)

    async def acquire(self, workflow_id, *, take_over=False):
        self._reached()
        return await super().acquire(workflow_id, take_over=take_over)

    def _reached(self):
        self.calls += 1
        if self.is_away:
            raise CheckpointStorageError("the disk is gone", operation="save")


# --- every pair of stores --------------------------------------------------------------------------------------------


@pytest.fixture
def kinds(tmp_path, postgres):
    opened = []

    def make(kind, name):
        made = {
            "memory": MemoryCheckpointStore,
            "file": lambda: FileCheckpointStore(tmp_path / name),
            "sqlite": lambda: SqliteCheckpointStore(tmp_path / f"{name}.db"),
            "postgres": lambda: PostgresCheckpointStore(
                postgres.url(),
                schema=f"mirror_{name}_{len(list(tmp_path.parent.iterdir()))}_{os.getpid()}",
                allow_unsafe=True,
            ),
            "objects": lambda: ObjectCheckpointStore(MemoryStore()),
        }[kind]()
        opened.append(made)
        return made

    yield make
    for store in opened:
        getattr(store, "close", lambda: None)()


@pytest.mark.parametrize("mirror", ["memory", "file", "sqlite", "postgres", "objects"])
@pytest.mark.parametrize("primary", ["memory", "file", "sqlite", "postgres", "objects"])
def test_each_store_mirrors_each_store_and_continues_in_its_place(kinds, primary, mirror):
    first, second = kinds(primary, "primary"), kinds(mirror, "mirror")
    store = MirroredStore(first, second)
    engine = WorkflowEngine(store)
    assert engine.run_sync(squares, workflow_id=RUN).output == 5
    assert record(second) == record(first) != []
    assert asyncio.run(second.load_latest(RUN)).attempt == 1
    engine.run_sync(squares, workflow_id="late")
    asyncio.run(second.clear("late"))  # a mirror that was empty
    assert engine.resume_sync(squares, workflow_id="late").output == 5
    assert record(second, "late") == record(first, "late")
    assert WorkflowEngine(second).resume_sync(squares, workflow_id="late").steps.restored == 3


# --- crashes ---------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process died here."""


class Mortal(MemoryCheckpointStore):
    """A store whose process dies at its n-th write, before or after it."""

    writes: list = []
    dies_at = 0
    is_after = False

    async def save(self, workflow_id, data):
        await self._at(super().save, workflow_id, data)

    async def receive_run(self, workflow_id, checkpoints):
        await self._at(super().receive_run, workflow_id, checkpoints)

    async def _at(self, write, *given):
        if self.writes and self.writes[-1] == "dead":
            raise Killed
        is_last = len(self.writes) + 1 == self.dies_at
        if not (is_last and not self.is_after):
            await write(*given)
            self.writes.append(repr(self))
        if is_last:
            self.writes.append("dead")
            raise Killed


def opened_again(*stores):
    """Open the stores as a new process does: what the old one owned is free."""
    for each in stores:
        each.runs.owned.clear()
        each.writes, each.dies_at = [], 0
    return MirroredStore(*stores)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("is_late", [False, True], ids=["from the start", "added later"])
def test_a_run_that_dies_at_any_write_of_either_store_is_whole_in_both_after_a_resume(is_after, is_late):
    deaths = 0
    for dies_at in range(1, 40):
        stores = Mortal(), Mortal()
        if is_late:  # a run that was not mirrored, and failed
            WorkflowEngine(stores[0]).run_sync(squares, workflow_id=RUN, options=RunOptions(tags={"a": "b"}))
        store = opened_again(*stores)
        writes: list[str] = []
        for each in stores:
            each.writes, each.dies_at, each.is_after = writes, dies_at, is_after
        try:
            drive = WorkflowEngine(store).resume_sync if is_late else WorkflowEngine(store).run_sync
            drive(squares, workflow_id=RUN)
        except Killed:
            deaths += 1
        else:
            break
        assert [each.sequence for each in record(stores[1])] == [
            each.sequence for each in record(stores[0])[: len(record(stores[1]))]
        ], "never a gap"
        engine = WorkflowEngine(opened_again(*stores))
        if record(stores[0]):
            assert engine.resume_sync(squares, workflow_id=RUN).output == 5
        else:
            assert engine.run_sync(squares, workflow_id=RUN).output == 5
        assert record(stores[1]) == record(stores[0])
        assert asyncio.run(stores[1].load_latest(RUN)).attempt <= asyncio.run(stores[0].load_latest(RUN)).attempt + 1
    assert deaths >= (1 if is_late else 10)


PROGRAM = """
import os, signal, sys
from flowckpt import MirroredStore, WorkflowEngine, open_store, step, workflow

@workflow
def squares(count: int = 3):
    total = 0
    for number in range(count):
        total += yield step("square").python(pow, number, 2).checkpoint()
    return total

primary, mirror = map(open_store, sys.argv[3:])
saves, save = 0, mirror.save

async def deadly(workflow_id, data):
    global saves
    saves += 1
    if saves == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    await save(workflow_id, data)

mirror.save = deadly
print(getattr(WorkflowEngine(MirroredStore(primary, mirror)), sys.argv[2])(squares, workflow_id="run-1").output)
"""


@pytest.mark.parametrize(
    ("first", "second", "dies_at"),
    [
        ("sqlite", "file", 3),
        ("sqlite", "file", 5),
        ("postgres", "objects", 3),
        ("objects", "postgres", 4),
        ("file", "postgres", 1),
        ("postgres", "sqlite", 5),
        ("file", "objects", 2),
    ],
)
def test_kill_9_between_the_two_writes_loses_nothing_and_the_next_resume_brings_the_mirror_level(
    tmp_path,
    postgres,
    first,
    second,
    dies_at,
):
    (tmp_path / "program.py").write_text(PROGRAM)
    specs = {
        "sqlite": f"sqlite:{tmp_path}/runs.db",
        "file": f"file:{tmp_path}/json",
        "objects": f"objects+file:{tmp_path}/bucket?allow_unsafe=true",
        "postgres": f"{postgres.url()}?schema=kills_{os.getpid()}_{dies_at}_{second}&allow_unsafe=true",
    }

    def process(*words):
        said = [sys.executable, "program.py", *words, specs[first], specs[second]]
        return subprocess.run(said, cwd=tmp_path, capture_output=True, text=True)

    killed = process(str(dies_at), "run_sync")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    primary, mirror = open_store(specs[first]), open_store(specs[second])
    try:
        assert (len(record(primary)), len(record(mirror))) == (dies_at, dies_at - 1)
        resumed = process("0", "resume_sync")
        assert resumed.stdout == "5\n", resumed.stderr
        assert record(mirror) == record(primary)
        assert {each.severity for each in asyncio.run(MirroredStore(primary, mirror).check())} == {"ok"}
    finally:
        for store in (primary, mirror):
            getattr(store, "close", lambda: None)()


# --- a mirror that is away -------------------------------------------------------------------------------------------


def test_a_run_whose_mirror_fails_ends_with_the_failed_save_and_its_resume_brings_the_mirror_level():
    primary, mirror = MemoryCheckpointStore(), Flaky()
    engine = WorkflowEngine(MirroredStore(primary, mirror))

    @workflow
    def loses_it():
        yield step("one").python(square, 1).checkpoint()
        mirror.is_away = True
        yield step("two").python(square, 2).checkpoint()
        yield step("three").python(square, 3).checkpoint()

    result = engine.run_sync(loses_it, workflow_id=RUN)
    assert result.status == "failed"
    assert isinstance(result.error, MirrorError) and result.error.detail == "the disk is gone"
    assert "--on-mirror-error continue" in str(result.error)
    assert [each.path for each in record(primary)[-1].step_results] == ["one", "two"], "the store itself has it"
    with pytest.raises(MirrorError):
        engine.resume_sync(loses_it, workflow_id=RUN)
    asyncio.run(primary.acquire(RUN))  # released
    asyncio.run(primary.release(RUN))
    mirror.is_away = False
    assert record(mirror) != record(primary)

    @workflow("loses_it")
    def keeps_it():
        yield step("one").python(square, 1).checkpoint()
        yield step("two").python(square, 2).checkpoint()
        yield step("three").python(square, 3).checkpoint()

    assert engine.resume_sync(keeps_it, workflow_id=RUN).steps.restored == 2
    assert record(mirror) == record(primary)


def test_a_run_that_continues_after_failed_saves_catches_up_in_the_same_process():
    primary, mirror = MemoryCheckpointStore(), Flaky()
    engine = WorkflowEngine(MirroredStore(primary, mirror), on_save_error="continue")

    def turn(is_away):
        mirror.is_away = is_away
        return LARGE

    @workflow
    def blinks():
        for is_away in (False, True, True, False, False):
            yield step("turn").python(turn, is_away).checkpoint()

    assert engine.run_sync(blinks, workflow_id=RUN).status == "completed"
    assert record(mirror) == record(primary)
    assert [each.sequence for each in record(primary)] == [*range(1, 8)]


def test_no_step_waits_for_a_mirror_that_hangs_and_one_warning_says_so(caplog, monkeypatch):
    monkeypatch.setattr(mirror_module, "_PATIENCE_SECONDS", 0.01)
    may_continue = threading.Event()

    class Hanging(MemoryCheckpointStore):
        async def acquire(self, workflow_id, *, take_over=False):
            may_continue.wait(120)
            return await super().acquire(workflow_id, take_over=take_over)

    primary, mirror = MemoryCheckpointStore(), Hanging()
    store = MirroredStore(primary, mirror, "continue")
    with caplog.at_level(logging.WARNING, "flowckpt"):
        assert WorkflowEngine(store).run_sync(squares, workflow_id=RUN, count=20).status == "completed"
    assert record(mirror) == []
    (said,) = [each.getMessage() for each in caplog.records if "mirror" in each.getMessage()]
    assert "has not taken the last checkpoints of run run-1 yet" in said
    may_continue.set()
    store._jobs.put(finished := Signalled())
    assert finished.event.wait(120)
    assert record(mirror) == record(primary), "it took all of them once it could"


def test_many_runs_that_end_together_wait_for_the_mirror_and_a_mirror_that_hangs_is_reported_once(caplog, monkeypatch):
    primary, mirror = MemoryCheckpointStore(), MemoryCheckpointStore()
    names = [f"run-{number}" for number in range(20)]

    async def all_runs(store):
        engine = WorkflowEngine(store)
        await asyncio.gather(*(engine.run(squares, workflow_id=name) for name in names))

    with caplog.at_level(logging.WARNING, "flowckpt"):
        asyncio.run(all_runs(MirroredStore(primary, mirror, "continue")))
        assert not caplog.records
        for name in names:
            assert record(mirror, name) == record(primary, name) != []
        monkeypatch.setattr(mirror_module, "_PATIENCE_SECONDS", 0.01)
        may_continue = threading.Event()

        class Hanging(MemoryCheckpointStore):
            async def acquire(self, workflow_id, *, take_over=False):
                may_continue.wait(120)
                return await super().acquire(workflow_id, take_over=take_over)

        store = MirroredStore(MemoryCheckpointStore(), Hanging(), "continue")
        asyncio.run(all_runs(store))
        assert len(caplog.records) == 1
    may_continue.set()
    store._jobs.put(finished := Signalled())
    assert finished.event.wait(120)


class Signalled:
    """Work that says when its turn has come."""

    def __init__(self):
        self.event = threading.Event()

    async def __call__(self):
        self.event.set()


def test_a_dead_mirror_is_reported_once_tried_again_after_a_pause_and_level_at_the_next_begin(caplog):
    clock = FakeClock()
    primary, mirror = MemoryCheckpointStore(), Flaky()
    mirror.is_away = True
    engine = WorkflowEngine(MirroredStore(primary, mirror, "continue", clock=clock))
    with caplog.at_level(logging.INFO, "flowckpt"):
        assert engine.run_sync(squares, workflow_id=RUN, count=30).status == "completed"
        assert mirror.calls == 2, "at the start, and once more at the end"
        mirror.is_away = False
        clock.advance(3600)
        assert engine.resume_sync(squares, workflow_id=RUN).status == "completed"
    said = [each.getMessage() for each in caplog.records if "mirror" in each.getMessage()]
    assert [each.levelname for each in caplog.records if "mirror" in each.getMessage()] == ["WARNING", "INFO"]
    assert "the disk is gone; the run continues, and the mirror catches up" in said[0]
    assert record(mirror) == record(primary)


def test_a_mirror_that_falls_far_back_reads_what_it_lacks_instead_of_filling_the_memory(monkeypatch):
    monkeypatch.setattr(mirror_module, "_MOST_PENDING", 3)
    primary, mirror = MemoryCheckpointStore(), MemoryCheckpointStore()
    store = MirroredStore(primary, mirror, "continue")
    waiting = []
    put = store._jobs.put
    monkeypatch.setattr(store._jobs, "put", lambda work, **how: (waiting.append(store._jobs.pending), put(work, **how)))
    assert WorkflowEngine(store).run_sync(squares, workflow_id=RUN, count=50).status == "completed"
    assert record(mirror) == record(primary)
    assert max(waiting) <= 4


class Gated(MemoryCheckpointStore):
    """A mirror whose saves, or whose looks at a run, wait until they are let through."""

    def __init__(self, gated):
        super().__init__()
        self.gated, self.may_continue, self.is_reached, self.looks = gated, threading.Event(), threading.Event(), []

    async def save(self, workflow_id, data):
        self._pass("save")
        await super().save(workflow_id, data)

    async def acquire(self, workflow_id, *, take_over=False):
        if self.gated == "look":  # neither does it answer a claim
            self.may_continue.wait(120)
        return await super().acquire(workflow_id, take_over=take_over)

    async def load_latest(self, workflow_id, *, attempt=None):
        self.looks.append(workflow_id)
        self._pass("look")
        return await super().load_latest(workflow_id, attempt=attempt)

    def _pass(self, kind):
        if kind == self.gated:
            self.is_reached.set()
            self.may_continue.wait(120)


async def test_the_start_of_a_run_does_not_wait_for_the_saves_of_another_one_to_the_mirror():
    primary, mirror = MemoryCheckpointStore(), Gated("save")
    mirror.may_continue.set()
    await WorkflowEngine(mirror).run(squares, workflow_id="known")
    mirror.may_continue.clear()
    mirror.is_reached.clear()
    store = MirroredStore(primary, mirror, "continue")
    await store.acquire("other")
    await store.save("other", checkpoint(1, results("a")))
    assert await asyncio.to_thread(mirror.is_reached.wait, 60)
    with pytest.raises(MirrorError, match="does not have the run"):
        await store.acquire("known")
    assert (await store.acquire("new")).latest is None
    assert mirror.looks[-2:] == ["known", "new"]
    assert not mirror.may_continue.is_set(), "the save of the other run was under way meanwhile"
    mirror.may_continue.set()
    await store.release("other")
    assert [each.sequence for each in (await read_whole_run(mirror, "other")).checkpoints] == [1]


def test_a_mirror_that_does_not_answer_is_asked_again_after_a_pause_or_once_it_takes_a_checkpoint(caplog, monkeypatch):
    clock, mirror = FakeClock(), Gated("look")
    store = MirroredStore(MemoryCheckpointStore(), mirror, "continue", clock=clock)
    with monkeypatch.context() as hurry, caplog.at_level(logging.WARNING, "flowckpt"):
        hurry.setattr(mirror_module, "_PATIENCE_SECONDS", 0.01)
        asyncio.run(store.acquire("run-1"))
        asyncio.run(store.acquire("run-2"))
        assert mirror.is_reached.wait(120)
        assert mirror.looks == ["run-1"]
    (said,) = [each.getMessage() for each in caplog.records]
    assert "does not answer; run run-1 starts without checking it" in said
    mirror.may_continue.set()
    clock.advance(61)
    asyncio.run(store.acquire("run-3"))
    assert "run-3" in mirror.looks
    store._look_again_ns = clock.elapsed_ns() + 10**12
    asyncio.run(store.save("run-3", checkpoint(1, results("a"))))
    asyncio.run(store.release("run-3"))
    asyncio.run(store.acquire("run-4"))
    assert "run-4" in mirror.looks


def test_a_new_run_looks_into_a_mirror_that_reported_another_problem(caplog):
    mirror = Flaky()
    WorkflowEngine(mirror).run_sync(squares, workflow_id="known")
    store = MirroredStore(MemoryCheckpointStore(), mirror, "continue", clock=FakeClock())
    mirror.is_away = True  # it can be read, and not written to
    with caplog.at_level(logging.WARNING, "flowckpt"):
        assert WorkflowEngine(store).run_sync(squares, workflow_id=RUN).status == "completed"
    assert "the disk is gone" in caplog.text
    with pytest.raises(MirrorError, match="does not have the run"):
        WorkflowEngine(store).run_sync(squares, workflow_id="known")
    assert asyncio.run(store.load_latest("known")) is None, "nothing was run"


def test_a_run_continues_without_the_thread_of_the_mirror_and_a_later_one_starts_it(caplog, monkeypatch):
    start = threading.Thread.start

    def refuse(self):
        if self.name == "flowckpt-mirror":
            raise RuntimeError("can't start new thread")
        start(self)

    primary, mirror = MemoryCheckpointStore(), MemoryCheckpointStore()
    engine = WorkflowEngine(MirroredStore(primary, mirror, "continue"))
    with monkeypatch.context() as full, caplog.at_level(logging.WARNING, "flowckpt"):
        full.setattr(threading.Thread, "start", refuse)
        assert engine.run_sync(squares, workflow_id=RUN).status == "completed"
    (said,) = [each.getMessage() for each in caplog.records]
    assert "no thread can be started to save to the mirror" in said
    assert record(mirror) == []
    assert engine.resume_sync(squares, workflow_id=RUN).status == "completed"
    assert record(mirror) == record(primary)


def test_a_thread_of_the_mirror_that_has_no_loop_is_started_again(monkeypatch):
    def fail():
        raise OSError(24, "Too many open files")

    later = mirror_module._JobQueue()
    first, second = Signalled(), Signalled()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", lambda self: None)
        full.setattr(asyncio, "Runner", fail)
        later.put(first)
        with pytest.raises(OSError, match="Too many open files"):
            later._work()
    later.put(second)
    assert first.event.wait(120) and second.event.wait(120)


# --- whose truth -----------------------------------------------------------------------------------------------------


def test_a_mirror_with_another_history_is_left_as_it_is(caplog):
    old = MemoryCheckpointStore()
    assert WorkflowEngine(old).run_sync(squares, workflow_id=RUN).status == "completed"
    before = record(old)
    lost = MirroredStore(MemoryCheckpointStore(), old)  # the store was lost, and a scheduler starts the run again
    with pytest.raises(MirrorError) as caught:
        WorkflowEngine(lost).run_sync(squares, workflow_id=RUN)
    assert caught.value.differs and "does not have the run" in str(caught.value)
    assert "'flowckpt store clear run-1 --store MIRROR'" in caught.value.remedy
    assert asyncio.run(lost.load_latest(RUN)) is None, "nothing was run"
    patient = MirroredStore(MemoryCheckpointStore(), old, "continue")
    with pytest.raises(MirrorError, match="does not have the run"):
        WorkflowEngine(patient).run_sync(squares, workflow_id=RUN)
    assert asyncio.run(patient.load_latest(RUN)) is None, "nothing was run"
    assert WorkflowEngine(patient.primary).run_sync(squares, workflow_id=RUN).status == "completed"
    with caplog.at_level(logging.WARNING, "flowckpt"):
        assert WorkflowEngine(patient).resume_sync(squares, workflow_id=RUN).status == "completed"
    assert len([each for each in caplog.records if "without the mirror" in each.getMessage()]) == 1
    assert record(old) == before
    (finding,) = [each for each in asyncio.run(patient.check()) if each.severity != "ok"]
    assert finding.severity == "corrupt" and "another history" in finding.detail


def test_a_run_that_was_resumed_in_the_mirror_is_not_mixed_with_the_one_of_the_store():
    primary, mirror = MemoryCheckpointStore(), MemoryCheckpointStore()
    store = MirroredStore(primary, mirror)
    asyncio.run(store.save(RUN, checkpoint(1, results("a"))))
    asyncio.run(store.release(RUN))
    asyncio.run(mirror.save(RUN, checkpoint(2, results("a", "there"), attempt=2)))
    asyncio.run(mirror.release(RUN))
    with pytest.raises(MirrorError):
        asyncio.run(store.save(RUN, checkpoint(2, results("a", "here"), attempt=2)))
    asyncio.run(store.save(RUN + "b", checkpoint(1, results("a"))))
    assert [each.step_results[-1].output for each in record(mirror)] == ["a", "there"]


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_cleared_run_goes_from_both_stores_and_a_pruned_one_stays_in_the_mirror(policy):
    primary, mirror = MemoryCheckpointStore(), Flaky()
    store = MirroredStore(primary, mirror, policy)
    engine = WorkflowEngine(store)
    for _ in range(2):  # the same id begins again
        assert engine.run_sync(squares, workflow_id=RUN).output == 5
        asyncio.run(store.clear(RUN))
        assert asyncio.run(primary.load_latest(RUN)) is asyncio.run(mirror.load_latest(RUN)) is None
    engine.run_sync(squares, workflow_id=RUN)
    mirror.is_away = True
    asyncio.run(prune(store, keep=0))
    assert asyncio.run(primary.load_latest(RUN)) is None
    assert asyncio.run(mirror.load_latest(RUN)).output == 5


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_live_run_is_not_cleared_and_no_fault_of_the_mirror(policy, tmp_path):
    places = tmp_path / "primary", tmp_path / "mirror"
    owner, other = (MirroredStore(*map(FileCheckpointStore, places), policy) for _ in range(2))
    asyncio.run(owner.save(RUN, checkpoint(1, results("a"))))
    with pytest.raises(RunLockedError):
        asyncio.run(other.clear(RUN))
    asyncio.run(owner.release(RUN))
    assert record(owner) == record(FileCheckpointStore(places[1]))


def test_a_run_that_only_the_mirror_has_whole_is_not_removed_there(caplog):
    primary, mirror = MemoryCheckpointStore(), MemoryCheckpointStore()
    WorkflowEngine(mirror).run_sync(squares, workflow_id=RUN)
    asyncio.run(MirroredStore(primary, mirror).clear(RUN))
    assert asyncio.run(mirror.load_latest(RUN)).output == 5
    assert "keeps run run-1" in caplog.text


def test_a_run_that_the_mirror_cannot_remove_is_not_removed():
    class Stuck(MemoryCheckpointStore):
        async def clear(self, workflow_id):
            raise CheckpointStorageError("the disk is gone", operation="clear")

    primary = MemoryCheckpointStore()
    store = MirroredStore(primary, Stuck())
    WorkflowEngine(store).run_sync(squares, workflow_id=RUN)
    with pytest.raises(MirrorError, match="the disk is gone"):
        asyncio.run(store.clear(RUN))
    assert asyncio.run(primary.load_latest(RUN)).output == 5


def test_retention_and_rollback_reach_a_mirror_that_was_away():
    primary, mirror = MemoryCheckpointStore(), Flaky()
    engine = WorkflowEngine(MirroredStore(primary, mirror), retention=Retention(keep_last=2))
    engine.run_sync(squares, workflow_id=RUN, count=4)
    alone = WorkflowEngine(primary)
    first = record(primary)[0]
    in_sync(alone).rollback(RUN, first.checkpoint_id, workflow=squares)
    assert engine.resume_sync(squares, workflow_id=RUN).output == 14
    assert asyncio.run(mirror.load_latest(RUN)).step_results == asyncio.run(primary.load_latest(RUN)).step_results


@workflow
def endless(rounds: int = 1, steps: int = 2):
    """Twelve generations at most, with values that a store keeps apart from its records."""
    for number in range(steps):
        yield step("work").python(square, 10 * rounds + number).checkpoint()
    letter = yield step("letter").wait("letter")
    yield step("answer").python(str.upper, letter).checkpoint()
    return rounds if letter == "end" or rounds == 12 else continue_as(rounds=rounds + 1)


def send(store, letter):
    """Let a waiting run continue with a letter."""
    engine = WorkflowEngine(store)
    asyncio.run(engine.signal(RUN, "letter", letter))
    return engine.resume_sync(endless, workflow_id=RUN)


@pytest.mark.parametrize("kept", [None, 1])
@pytest.mark.parametrize("policy", ["fail", "continue"])
@pytest.mark.parametrize("second", ["memory", "file", "sqlite", "objects"])
def test_a_mirror_that_was_away_for_some_generations_catches_up(kinds, second, policy, kept, caplog):
    primary, mirror = kinds("file", "primary"), kinds(second, "mirror")
    store = MirroredStore(primary, mirror, policy)
    WorkflowEngine(store).run_sync(endless, workflow_id=RUN)
    for letter in "ab":
        send(primary, letter)  # the mirror is away
    if kept:
        asyncio.run(prune_checkpoints(primary, RUN, keep=kept))
    assert "lacks" in asyncio.run(store.check())[-1].detail
    send(store, "end")
    assert record(mirror) == record(primary)
    assert {finding.severity for finding in asyncio.run(store.check())} == {"ok"}
    assert "another history" not in caplog.text


def backed_up(store, backup):
    found = asyncio.run(read_whole_run(store, RUN)).checkpoints
    asyncio.run(backup.receive_run(RUN, lambda: found))


@pytest.mark.parametrize(
    ("before", "lost", "kept", "policy"),
    [("", "d", None, "fail"), ("", "de", 1, "continue"), ("a", "d", 1, "fail"), ("abc", "de", None, "continue")],
)
def test_what_only_the_mirror_has_stays_when_the_store_is_restored_from_a_backup_and_passes_it(
    before, lost, kept, policy, caplog
):
    primary, mirror, backup = MemoryCheckpointStore(), MemoryCheckpointStore(), MemoryCheckpointStore()
    store = MirroredStore(primary, mirror, policy)
    WorkflowEngine(store).run_sync(endless, workflow_id=RUN)
    for letter in before:
        send(store, letter)
    backed_up(primary, backup)
    for letter in lost:
        send(store, letter)
    held = record(mirror)
    for letter in "again":  # the mirror is away
        send(backup, letter)
        if kept:
            asyncio.run(prune_checkpoints(backup, RUN, keep=kept))
    restored = MirroredStore(backup, mirror, policy)
    assert asyncio.run(restored.check())[-1].severity == "corrupt"
    if policy == "fail":
        with pytest.raises(MirrorError, match="of generation .*another history"):
            send(restored, "end")
    else:
        send(restored, "end")
        assert "The run continues without the mirror" in caplog.text
    assert record(mirror) == held


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_what_only_the_mirror_has_of_the_same_generation_stays_too(steps):
    @workflow
    def two(rounds: int = 1):
        for number in range(4):
            yield step("work").python(square, number).checkpoint()
            yield step("letter").wait("letter", type=str)
        return continue_as(rounds=rounds + 1)

    def resume(store):
        engine = WorkflowEngine(store)
        asyncio.run(engine.signal(RUN, "letter", "x"))
        engine.resume_sync(two, workflow_id=RUN)

    primary, mirror, backup = MemoryCheckpointStore(), MemoryCheckpointStore(), MemoryCheckpointStore()
    store = MirroredStore(primary, mirror)
    WorkflowEngine(store).run_sync(two, workflow_id=RUN)
    backed_up(primary, backup)
    for _ in range(steps):
        resume(store)
    held = record(mirror)
    for _ in range(6):
        resume(backup)
    with pytest.raises(MirrorError):
        resume(MirroredStore(backup, mirror))
    assert record(mirror) == held


def test_the_notes_of_resumes_stay_few_and_a_mirror_that_was_away_for_all_of_them_catches_up(monkeypatch):
    monkeypatch.setattr(generation, "MOST_RESUMES", 3)
    primary, mirror = MemoryCheckpointStore(), MemoryCheckpointStore()
    store = MirroredStore(primary, mirror)
    WorkflowEngine(store).run_sync(endless, workflow_id=RUN)
    for _ in range(2):
        for letter in "ab":
            send(primary, letter)
        send(store, "c")  # notes are joined by now, and none that comes after what the mirror has
        assert record(mirror) == record(primary)
    assert len(asyncio.run(primary.load_latest(RUN)).metadata["generation"]["resumed"]) == 3
    for letter in "abcd":
        send(primary, letter)
    with pytest.raises(
        MirrorError, match=r"another history.*\(or it was resumed more than 64 times without its mirror\)"
    ):
        send(store, "end")


@workflow
def hurried(rounds: int = 1):
    for number in range(2):
        yield step("work").python(square, 10 * rounds + number).checkpoint()
    return rounds if rounds == 12 else continue_as(rounds=rounds + 1)


@pytest.mark.parametrize("second", ["memory", "file"])
@pytest.mark.parametrize("first", ["memory", "file", "sqlite"])
def test_generations_that_end_before_the_mirror_has_them_are_no_damage(kinds, first, second, caplog):
    primary, mirror = kinds(first, "primary"), kinds(second, "mirror")
    store = MirroredStore(primary, mirror, "continue")
    engine = WorkflowEngine(store, retention=Retention(keep_last=1))
    assert engine.run_sync(hurried, workflow_id=RUN).output == 12
    assert record(mirror)[-1] == record(primary)[-1]
    assert {finding.severity for finding in asyncio.run(store.check())} == {"ok"}
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING], caplog.text


@pytest.mark.parametrize("second", ["memory", "file", "sqlite", "objects"])
def test_a_run_that_was_resumed_in_the_mirror_is_kept_there_whatever_generation_the_store_reaches(kinds, second):
    primary, mirror = kinds("file", "primary"), kinds(second, "mirror")
    store = MirroredStore(primary, mirror)
    WorkflowEngine(store).run_sync(endless, workflow_id=RUN)
    send(mirror, "stays here")
    held = record(mirror)
    for letter in "abc":
        send(primary, letter)
    assert asyncio.run(store.check())[-1].severity == "corrupt"
    for refused in (store.acquire, store.repair):
        with pytest.raises(MirrorError, match="another history"):
            asyncio.run(refused(RUN))
    asyncio.run(store.clear(RUN))
    assert record(mirror) == held


def test_a_run_is_free_in_the_mirror_once_its_save_failed_there():
    primary, mirror = MemoryCheckpointStore(), Flaky()
    store = MirroredStore(primary, mirror)
    asyncio.run(store.acquire(RUN))
    asyncio.run(store.save(RUN, checkpoint(1, results("a"))))
    mirror.is_away = True
    with pytest.raises(MirrorError):
        asyncio.run(store.save(RUN, checkpoint(2, results("a", "b"))))
    mirror.is_away = False
    assert asyncio.run(mirror.acquire(RUN)).attempt == 2


def test_a_run_that_another_owner_takes_is_taken_in_the_mirror_too():
    primary, mirror = MemoryCheckpointStore(), MemoryCheckpointStore()
    store = MirroredStore(primary, mirror)
    asyncio.run(store.acquire(RUN))
    asyncio.run(store.save(RUN, checkpoint(1, results("a"))))
    with pytest.raises(RunLockedError):
        asyncio.run(mirror.acquire(RUN))
    assert asyncio.run(store.acquire(RUN, take_over=True)).attempt == 2
    asyncio.run(store.save(RUN, checkpoint(2, results("a", "b"), attempt=2)))
    asyncio.run(store.release(RUN))
    assert record(mirror) == record(primary)
    assert asyncio.run(mirror.acquire(RUN)).attempt == 3


async def test_the_tasks_of_a_plain_loop_are_mirrored():
    primary, mirror = MemoryCheckpointStore(), MemoryCheckpointStore()
    manager = CheckpointManager(MirroredStore(primary, mirror))
    for epoch in range(3):
        started = await manager.begin_step("train", "epoch", {"epoch": epoch, "weights": LARGE})
        await manager.commit_step(started, None)
    there = (await read_whole_run(mirror, "train")).checkpoints
    assert [each.snapshot for each in there] == [
        each.snapshot for each in (await read_whole_run(primary, "train")).checkpoints
    ]


# --- settings that cannot be -----------------------------------------------------------------------------------------


def test_a_mirror_that_is_the_store_itself_is_refused(tmp_path):
    os.symlink(tmp_path, tmp_path / "link")
    for mirror in (FileCheckpointStore(tmp_path / "a"), FileCheckpointStore(tmp_path / "link" / "a")):
        with pytest.raises(SettingError, match="is the store itself"):
            MirroredStore(FileCheckpointStore(tmp_path / "a"), mirror)
    bucket = MemoryStore()  # two names of one place: the lease tells
    store = MirroredStore(ObjectCheckpointStore(bucket), ObjectCheckpointStore(bucket))
    with pytest.raises(SettingError, match="is the store itself"):
        WorkflowEngine(store).run_sync(squares, workflow_id=RUN)


def test_an_unknown_policy_and_a_mirror_without_the_key_are_refused(tmp_path):
    with pytest.raises(SettingError, match="'fail' or 'continue', got 'maybe'"):
        MirroredStore(MemoryCheckpointStore(), MemoryCheckpointStore(), "maybe")
    with pytest.raises(SettingError, match="mirror='sqlite:x' .* is not a store"):
        MirroredStore(MemoryCheckpointStore(), "sqlite:x")
    keys = KeyRing([new_key()])
    with pytest.raises(SettingError, match="has no key"):
        MirroredStore(FileCheckpointStore(tmp_path / "s", keys=keys), MemoryCheckpointStore())
    store = MirroredStore(
        FileCheckpointStore(tmp_path / "s", keys=keys), FileCheckpointStore(tmp_path / "m", keys=keys)
    )
    assert WorkflowEngine(store).run_sync(squares, workflow_id=RUN).output == 5
    assert record(store.mirror) == record(store.primary)
    assert not [each for each in (tmp_path / "m").rglob("*.jsonl") if b"xxxx" in each.read_bytes()], "it is encrypted"
