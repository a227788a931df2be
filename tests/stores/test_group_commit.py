"""Saves that wait at the same time share one commit; each is fenced, acknowledged and refused for itself."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from datetime import UTC, datetime

import attrs
import psycopg
import pytest

from flowckpt import WorkflowEngine
from flowckpt.core.records import StepError, StepResult
from flowckpt.core.records.wait import Signal
from flowckpt.errors import CheckpointStorageError, EncodingError, FencedError, VanishedError
from flowckpt.stores import open_store
from flowckpt.stores.postgres.database import write_group
from flowckpt.stores.sqlite import database
from flowckpt.testing.contract import checkpoint, results
from tests.forked import processes
from tests.stores.peers import RUNS, durable, error_of, in_fork

STEPS = results(*range(1_000))
NOW = datetime(2026, 11, 20, 15, 30, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "sqlite by Python's own library", "postgresql"])
def spec(request, tmp_path):
    if request.param != "sqlite" and request.param.startswith("sqlite"):
        request.getfixturevalue("own_sqlite")
    if request.param.startswith("sqlite"):
        return f"sqlite:{tmp_path / 'store.db'}"
    name = request.getfixturevalue("postgres_database")
    return f"{request.getfixturevalue('postgres').url(name)}?allow_unsafe=true"


@pytest.fixture
def store(spec):
    made = open_store(spec)
    yield made
    made.close()


@pytest.fixture
def groups(store, monkeypatch):
    """The workflow ids of each group that is written."""
    seen = []
    group = store.runs.database._group
    write = group._write

    def seeing(items):
        seen.append([item.workflow_id for item in items])
        return write(items)

    monkeypatch.setattr(group, "_write", seeing)
    return seen


@contextlib.asynccontextmanager
async def gathering(store, count):
    """Keep the next group from being written until so many items wait for it."""
    group = store.runs.database._group
    group._turn.acquire()
    # The thread may have nothing to write yet: it takes the group only once it has its turn.
    try:
        yield
    finally:
        while len(group._pending) < count:
            await asyncio.sleep(0.001)
        group._turn.release()


async def owned(store, runs=RUNS):
    for run in runs:
        await store.acquire(run)
        await store.save(run, checkpoint(1, results("a"), checkpoint_id="first"))


async def together(store, saves):
    """Save in one group, and return None or the error of each."""
    tasks = [asyncio.ensure_future(store.save(run, data)) for run, data in saves]
    async with gathering(store, len(tasks)):
        pass
    return await asyncio.gather(*tasks, return_exceptions=True)


def second(run, **fields):
    return run, checkpoint(2, results("a", "b"), checkpoint_id="second", **fields)


def newest(spec, runs=RUNS):
    """What another store reads."""
    other = open_store(spec)
    try:
        return [other.runs.load_latest(run).checkpoint_id for run in runs]
    finally:
        other.close()


async def test_saves_that_wait_are_written_in_one_group(store, spec, groups):
    await owned(store)
    groups.clear()
    assert await together(store, map(second, RUNS)) == [None] * len(RUNS)
    assert groups == [RUNS]
    assert newest(spec) == ["second"] * len(RUNS)
    assert {finding.severity for finding in store.runs.check(None)} == {"ok"}


async def test_claims_and_releases_are_written_in_groups(store, groups):
    for act in (store.acquire, store.release):
        groups.clear()
        tasks = [asyncio.ensure_future(act(run)) for run in RUNS]
        async with gathering(store, len(RUNS)):
            pass
        await asyncio.gather(*tasks)
        assert groups == [RUNS]
    assert store.runs.list_runs() == []  # a claim without a save leaves no trace


async def test_the_looks_of_many_runs_for_messages_share_a_group(store, groups):
    await owned(store)
    await store.send_signal(RUNS[2], Signal("one", "ready", NOW, {"said": 'a "quoted" \\ word'}))
    groups.clear()
    tasks = [asyncio.ensure_future(store.signals(run)) for run in RUNS]
    async with gathering(store, len(RUNS)):
        pass
    found = await asyncio.gather(*tasks)
    assert groups == [RUNS]
    assert [[signal.signal_id for signal in each] for each in found] == [
        ["one"] if run == RUNS[2] else [] for run in RUNS
    ]
    assert found[2][0].data == {"said": 'a "quoted" \\ word'}


async def test_the_saves_of_a_group_are_restored_as_they_were_given(store, spec):
    """Several results in one save, none in another, texts that an array of a database has to quote, and NULLs."""
    await owned(store)
    texts = [
        'a "quoted" \\ word',
        "{NULL,null}",
        " ",
        "NULL",
        "\\",
        '","',
        "é\u2028\U0001f600",
        "a\0b",
        "\n\t",
        "x" * 9000,
    ]
    given = {}
    for number, run in enumerate(RUNS):
        text = texts[number % len(texts)]
        new = [StepResult(f"{text}[{at}]", output=[text, at, None, 0.5]) for at in range(number % 4)]
        if number % 3 == 0:
            failure = StepError("Broken", text)
            new.append(StepResult("failed", success=False, error=failure, version=text, started_at=NOW))
        if number == 7:
            new += [StepResult(f"late-{late}", output=late) for late in range(250)]
        given[run] = checkpoint(2, [*results("a"), *new], checkpoint_id=text)
    assert await together(store, given.items()) == [None] * len(RUNS)
    other = open_store(spec)
    for run, data in given.items():
        found = other.runs.load_latest(run)
        assert (found.checkpoint_id, list(found.step_results)) == (data.checkpoint_id, list(data.step_results))
    assert {finding.severity for finding in other.runs.check(None)} == {"ok"}
    other.close()


@pytest.fixture
def postgresql(request):
    name = request.getfixturevalue("postgres_database")
    store = open_store(f"{request.getfixturevalue('postgres').url(name)}?allow_unsafe=true")
    yield store
    store.close()


async def test_a_group_of_saves_is_one_statement_in_postgresql(postgresql, monkeypatch):
    saves = [(run, checkpoint(1, results("a"), checkpoint_id="first")) for run in RUNS]
    for run, data in saves:
        await postgresql.acquire(run)
        await postgresql.save(run, data)
    sent, execute = [], psycopg.Cursor.execute

    def counted(cursor, query, *given, **how):
        sent.append(query)
        return execute(cursor, query, *given, **how)

    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    monkeypatch.setattr(psycopg.Cursor, "executemany", None)
    again = [second(run, metadata=data.metadata) for run, data in saves]
    assert await together(postgresql, again) == [None] * len(RUNS)
    assert len(sent) == 1  # which is a transaction of its own


def test_a_run_alone_makes_a_round_trip_for_each_step_and_eight_more(postgresql, monkeypatch):
    """For its claim one, for its first checkpoint five, for its end one, for its release one."""
    engine = WorkflowEngine(postgresql)
    engine.run_sync(durable, count=1).unwrap()  # makes the tables
    waits, wait = [], psycopg.Connection.wait

    def counted(connection, *given, **how):
        if threading.current_thread() is threading.main_thread():  # not that of the leases
            waits.append(connection)
        return wait(connection, *given, **how)

    monkeypatch.setattr(psycopg.Connection, "wait", counted)
    for count in (0, 3):
        waits.clear()
        result = engine.run_sync(durable, count=count)
        assert (result.unwrap(), len(waits)) == (count, 8 + count)
    assert postgresql.runs.owner(result.workflow_id) is None
    assert {finding.severity for finding in postgresql.runs.check(None)} == {"ok"}


async def test_two_owners_of_a_run_in_one_group_are_told_apart(postgresql):
    """The rows of the fenced one are not let in by the fence of the other one."""
    await owned(postgresql)
    mine = postgresql.runs.owned[RUNS[0]]
    data = checkpoint(2, results("a", "b"), checkpoint_id="second")
    addition = mine._make_addition(mine._prepare_save(data))
    gone = attrs.evolve(addition, writer="gone", checkpoint=(addition.run, 3, *addition.checkpoint[2:]))
    pool = postgresql.runs.database._pool
    connection = pool.take()
    assert write_group(connection, [gone, addition]) == [False, True]
    pool.give_back(connection)
    assert [each.sequence for each in postgresql.runs.references(RUNS[0])] == [2, 1]
    assert [each.output for each in postgresql.runs.load_latest(RUNS[0]).step_results] == ["a", "b"]


async def test_a_save_that_fails_fails_alone(store, spec):
    await owned(store)
    saves = [second(run) for run in RUNS]
    saves[3] = (RUNS[3], checkpoint(2**63, results("a", "b"), checkpoint_id="second"))  # a number that no column holds
    errors = await together(store, saves)
    assert isinstance(errors[3], EncodingError | CheckpointStorageError)
    assert errors[:3] + errors[4:] == [None] * (len(RUNS) - 1)
    assert newest(spec) == ["first" if run == RUNS[3] else "second" for run in RUNS]
    await store.save(RUNS[4], checkpoint(3, results("a", "b", "c")))


@pytest.mark.parametrize("broken", [{"tries": 2**70}, {"duration_ms": 10**400}])
async def test_a_number_that_no_column_holds_is_refused_and_the_next_save_succeeds(store, broken):
    await store.acquire(RUNS[0])
    with pytest.raises((EncodingError, CheckpointStorageError)):
        await store.save(RUNS[0], checkpoint(1, [StepResult("a", **broken)]))
    await store.save(RUNS[0], checkpoint(1, results("a")))


async def test_a_result_of_hostile_texts_is_shown_with_signs_for_nul_and_refused_with_half_a_character(store):
    run, fields = RUNS[0], ("name", "step_type", "path", "function", "version")
    await store.acquire(run)
    for field in fields:
        result = attrs.evolve(StepResult("a"), **{field: "\ud800"})
        with pytest.raises(EncodingError):
            await store.save(run, checkpoint(1, [result]))
    result = StepResult(**{field: f"{field}\0\\u0000" for field in fields})
    await store.save(run, checkpoint(1, [result]))
    (read,) = (await store.load_latest(run)).step_results
    columns = ", ".join(fields)
    rows = store.runs.database.read(run, "read", lambda it: it.execute(f"SELECT {columns} FROM step_results"))  # noqa: S608
    assert read == result
    assert rows == [tuple(f"{field}\u2400\\u0000" for field in fields)]


async def test_each_save_has_a_fence_of_its_own(store, spec):
    await owned(store)
    other = open_store(spec)
    await other.acquire(RUNS[5], take_over=True)
    errors = await together(store, map(second, RUNS))
    assert isinstance(errors[5], FencedError)
    assert errors[:5] + errors[6:] == [None] * (len(RUNS) - 1)
    assert newest(spec) == ["first" if run == RUNS[5] else "second" for run in RUNS]
    other.close()


async def test_a_cancelled_wait_does_not_lose_the_save(store, spec):
    await owned(store)
    tasks = [asyncio.ensure_future(store.save(*second(run))) for run in RUNS]
    async with gathering(store, len(RUNS)):
        await asyncio.sleep(0)  # each has handed its save in
        tasks[2].cancel()
        await asyncio.wait({tasks[2]})
    await asyncio.gather(*tasks, return_exceptions=True)
    assert tasks[2].cancelled()
    assert newest(spec) == ["second"] * len(RUNS)
    await store.save(RUNS[2], checkpoint(3, results("a", "b", "c"), checkpoint_id="third"))
    assert newest(spec, [RUNS[2]]) == ["third"]


async def test_a_save_in_the_main_thread_is_in_no_group_as_a_ctrl_c_there_must_not_affect_others(store, spec, groups):
    await owned(store, RUNS[:2])
    groups.clear()
    store.runs.save(*second(RUNS[0]))
    assert groups == []
    await asyncio.to_thread(store.runs.save, *second(RUNS[1]))
    assert groups == [[RUNS[1]]]
    assert newest(spec, RUNS[:2]) == ["second", "second"]


async def test_threads_share_commits_too(store, spec, groups):
    await owned(store)
    groups.clear()
    errors = []

    def save(run):
        try:
            store.runs.save(*second(run))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=save, args=(run,)) for run in RUNS]
    async with gathering(store, len(RUNS)):
        for thread in threads:
            thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert not errors
    assert [sorted(group) for group in groups] == [sorted(RUNS)]
    assert newest(spec) == ["second"] * len(RUNS)


def _save_in_groups(spec, told):
    """Save all runs in one group, again and again, each time with one save that fails, and tell what was acknowledged."""

    async def save(store, run, sequence):
        try:
            await store.save(run, checkpoint(sequence, STEPS[: min(sequence, len(STEPS))]))
        except (EncodingError, CheckpointStorageError):
            told.send((run, 0))
        else:
            told.send((run, sequence))

    async def act():
        store = open_store(spec)
        for run in RUNS:
            await store.acquire(run)
        for sequence in range(1, len(STEPS)):
            await store.acquire(f"failing-{sequence}")
            async with gathering(store, len(RUNS) + 1):
                saves = [save(store, run, sequence) for run in RUNS]
                saves.insert(sequence % len(saves), save(store, f"failing-{sequence}", 2**63))
                together = asyncio.gather(*saves)
            await together

    asyncio.run(act())


@pytest.mark.parametrize("count", [20, 45, 75])
def test_after_a_kill_all_that_groups_acknowledged_is_there(spec, count):
    """Whatever the other saves of the group were: each one is there, or was not acknowledged."""
    open_store(spec).close()
    told, writing = processes.Pipe(duplex=False)
    process = processes.Process(target=_save_in_groups, args=(spec, writing))
    process.start()
    writing.close()
    acknowledged = [told.recv() for _ in range(count)]
    process.kill()
    process.join()
    with told, contextlib.suppress(EOFError):
        while True:
            acknowledged.append(told.recv())
    store = open_store(spec)
    for run in {run for run, _ in acknowledged}:
        held = [each.sequence for each in reversed(store.runs.references(run))]
        is_failing = run.startswith("failing")
        assert held == ([] if is_failing else [*range(1, len(held) + 1)])
        assert {sequence for name, sequence in acknowledged if name == run} <= ({0} if is_failing else {*held})
    for run in RUNS:
        latest = store.runs.load_latest(run)
        if latest is not None:
            assert [each.output for each in latest.step_results] == [*range(latest.sequence)]
        lease = store.runs.acquire(run)
        store.runs.save(run, checkpoint(lease.last_sequence + 1, results("again"), attempt=lease.attempt))
    assert {finding.severity for finding in store.runs.check(None)} == {"ok"}
    store.close()


async def test_a_forked_child_writes_groups_of_its_own(store, spec):
    await owned(store)

    def in_child():
        async def act():
            await owned(store, ["of the child"])
            assert await together(store, [second("of the child")]) == [None]

        asyncio.run(act())

    def on_thread():  # a loop of the parent's runs in this thread
        thread = threading.Thread(target=in_child)
        thread.start()
        thread.join()

    assert await asyncio.to_thread(in_fork, lambda: error_of(on_thread)) == "nothing"
    assert newest(spec, ["of the child"]) == ["second"]


# --- SQLite alone ------------------------------------------------------------------------------------------------------


@pytest.fixture
def sqlite(tmp_path, sqlite_library):
    store = open_store(f"sqlite:{tmp_path / 'store.db'}")
    yield store
    store.close()


class Failing:
    """Fails commits of more than one save, before or after they are done."""

    def __init__(self, name, *, is_done=False):
        self.name = name
        self.is_done = is_done
        self.commits = 0

    def __call__(self, connection):
        self.commits += 1
        if self.commits == 1:
            connection.execute("COMMIT" if self.is_done else "ROLLBACK")
            error = sqlite3.OperationalError("injected")
            error.sqlite_errorname = self.name
            raise error
        connection.execute("COMMIT")


@pytest.mark.parametrize("is_done", [False, True])
async def test_after_a_failed_commit_each_save_is_written_alone_and_once(sqlite, monkeypatch, is_done):
    await owned(sqlite)
    failing = Failing("SQLITE_FULL", is_done=is_done)
    monkeypatch.setattr(database, "commit", failing)
    assert await together(sqlite, map(second, RUNS)) == [None] * len(RUNS)
    assert newest(f"sqlite:{sqlite.path}") == ["second"] * len(RUNS)
    for run in RUNS:
        assert [each.sequence for each in sqlite.runs.references(run)] == [2, 1]
    assert {finding.severity for finding in sqlite.runs.check(None)} == {"ok"}


async def test_no_save_of_a_group_is_acknowledged_after_a_failed_sync(sqlite, monkeypatch):
    await owned(sqlite)
    monkeypatch.setattr(database, "commit", Failing("SQLITE_IOERR_FSYNC", is_done=True))
    errors = await together(sqlite, map(second, RUNS))
    for run, error in zip(RUNS, errors, strict=True):
        assert isinstance(error, CheckpointStorageError)
        assert (error.is_outcome_unknown, error.workflow_id) == (True, run)
        with pytest.raises(CheckpointStorageError):
            await sqlite.save(run, checkpoint(3, results("a", "b", "c")))


def refuse(*arguments, **options):
    error = sqlite3.OperationalError("injected")
    error.sqlite_errorname = "SQLITE_IOERR_READ"
    raise error


async def test_a_save_whose_wal_was_lost_may_be_saved_if_the_database_cannot_be_opened_again(sqlite, monkeypatch):
    await owned(sqlite, RUNS[:1])
    is_lost = iter([False, True])  # before the commit, and after it
    monkeypatch.setattr(sqlite.runs.database, "_is_wal_lost", lambda: next(is_lost))
    monkeypatch.setattr(database, "connect", refuse)
    with pytest.raises(CheckpointStorageError) as caught:
        sqlite.runs.save(*second(RUNS[0]))
    assert caught.value.is_outcome_unknown
    monkeypatch.undo()


async def test_a_group_whose_database_cannot_be_opened_was_not_saved(sqlite, monkeypatch):
    await owned(sqlite)
    sqlite.runs.database._disconnect()
    with monkeypatch.context() as patched:
        patched.setattr(database, "connect", refuse)
        errors = await together(sqlite, map(second, RUNS))
    assert [(type(error), error.is_outcome_unknown) for error in errors] == [(CheckpointStorageError, False)] * len(
        RUNS
    )
    assert await together(sqlite, map(second, RUNS)) == [None] * len(RUNS)


async def test_a_file_that_vanished_acknowledges_no_save_of_a_group(sqlite):
    await owned(sqlite)
    sqlite.path.unlink()
    errors = await together(sqlite, map(second, RUNS))
    assert [type(error) for error in errors] == [VanishedError] * len(RUNS)
