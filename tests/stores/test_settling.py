"""A save whose outcome is unknown, under `on_save_error="continue"`: it is done again once the store is back, and is there once.

The run loses nothing by it: the saves behind it succeed, in the same attempt, and the process that took the run over meanwhile has it.
"""

from __future__ import annotations

import shutil
import sqlite3
import time

import pytest

from flowckpt import WorkflowEngine, step, workflow
from flowckpt.core.records.result import History
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import CheckpointStorageError, FencedError
from flowckpt.stores import open_store
from flowckpt.stores.postgres import PostgresCheckpointStore
from flowckpt.stores.sqlite import SqliteCheckpointStore
from flowckpt.testing.contract import checkpoint, results
from tests.cutting_proxy import CuttingProxy
from tests.faulty_proxy import FAULTS, TIMEOUT, FaultyProxy
from tests.small_disk import mounted_disk

RUN = "run"
KINDS = ("sqlite, undone", "sqlite, done", "postgres, undone", "postgres, done", "s3, 500", "s3, lost", "s3, late")
PATIENCE = 0.3
LARGE = "x" * 100_000


class FailingCommit:
    """A connection whose COMMITs fail, before or after they are done, while the store is away."""

    def __init__(self, database, *, does_it, name=""):
        self.database, self.does_it, self.name, self.is_away = database, does_it, name, False
        opened = database._open
        database._open = lambda **_: self if self.is_away else opened()
        self._connection = opened

    def __getattr__(self, name):
        return getattr(self._connection(), name)

    def execute(self, statement, parameters=()):
        connection = self._connection()
        if statement == "COMMIT" and self.is_away:
            connection.execute("COMMIT" if self.does_it else "ROLLBACK")
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorname = self.name
            raise error
        return connection.execute(statement, parameters)


class Outage:
    """A store, and the way to take it away in the middle of a save and to bring it back."""

    def __init__(self, store, again, begin, end):
        self.store, self.again, self.begin, self.end = store, again, begin, end


def away_sqlite(tmp_path, *, does_it, name="SQLITE_IOERR_WRITE"):
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    with blocking_allowed(True):
        store.runs.save("another", checkpoint())
    failing = FailingCommit(store.runs.database, does_it=does_it, name=name)

    def turn(is_away):
        def now(checkpoint_id=""):
            failing.is_away = is_away

        return now

    return Outage(store, lambda: SqliteCheckpointStore(tmp_path / "runs.db"), turn(True), turn(False))


def away_postgres(postgres, name, opened, *, does_it):
    proxy = CuttingProxy(postgres.port)
    opened.append(proxy)
    url = f"{postgres.url(name)}?allow_unsafe=true&sslmode=disable"
    store = PostgresCheckpointStore(url.replace(f":{postgres.port}/", f":{proxy.port}/"), patience_seconds=PATIENCE)

    def begin(checkpoint_id):
        proxy.goes_down_with_cut = True
        setattr(proxy, "cut_after" if does_it else "cut_before", checkpoint_id.encode())

    return Outage(store, lambda: PostgresCheckpointStore(url), begin, proxy.come_up)


def away_s3(server, opened, *, fault):
    bucket = server.make_bucket()
    proxy = FaultyProxy(server.endpoint, share=0.0, seed=1)
    opened.append(proxy)
    spec = f"s3://{bucket}/some/where?endpoint={proxy.endpoint}&region=us-east-1&request_seconds={TIMEOUT}"
    store = open_store(spec)
    store.runs.bucket._patience = PATIENCE
    proxy.choose = lambda method: fault if proxy.share else None

    def begin(checkpoint_id):
        proxy.share = 1.0

    def end():
        proxy.share = 0.0

    return Outage(store, lambda: open_store(server.spec(bucket)), begin, end)


@pytest.fixture(params=KINDS)
def outage(request, tmp_path):
    kind, _, how = request.param.partition(", ")
    opened = []
    if kind == "sqlite":
        made = away_sqlite(tmp_path, does_it=how == "done")
    elif kind == "postgres":
        server, name = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        made = away_postgres(server, name, opened, does_it=how == "done")
    else:
        assert how in FAULTS
        made = away_s3(request.getfixturevalue("s3"), opened, fault=how)
    yield made
    made.end()
    with blocking_allowed(True):
        made.store.close()
    for each in opened:
        each.close()


def told(store, flow):
    events = []
    engine = WorkflowEngine(store, on_save_error="continue")
    result = engine.drive_sync(engine.prepare(flow, RUN, None, {}), on_event=events.append)
    return result, [event.checkpoint_id for event in events if event.kind == "CheckpointFailed"]


def test_a_run_is_saved_whole_once_its_store_is_back(outage):
    spans = []

    def work(number):
        spans.append(time.monotonic())
        if number == 1:
            outage.begin("work[1]")
        elif number == 4:
            outage.end()
        return LARGE if number == 2 else number

    @workflow
    def flow():
        for number in range(6):
            yield step("work").python(work, number).checkpoint()
        return 60

    result, unsaved = told(outage.store, flow)
    assert (result.status, result.output, result.is_saved, result.attempt) == ("completed", 60, True, 1)
    assert unsaved == ["work[1]", "work[2]", "work[3]"]
    assert spans[4] - spans[3] < 10 * PATIENCE, "a store that is away is not waited for again and again"
    with blocking_allowed(True):
        again = outage.again()
        latest = again.runs.load_latest(RUN)
        shown = [ref.checkpoint_id for ref in again.runs.references(RUN)][::-1]
        assert [finding.severity for finding in again.runs.check(RUN)] == ["ok"]
        again.close()
    assert [found.output for found in latest.step_results] == [0, 1, LARGE, 3, 4, 5]
    assert shown == ["@started", "work", "work[1]", "work[4]", "work[5]", "@completed"]


def test_a_run_whose_store_stays_away_ends_with_its_output_unsaved(outage):
    def work(number):
        if number == 1:
            outage.begin("work[1]")
        return number

    @workflow
    def flow():
        for number in range(3):
            yield step("work").python(work, number).checkpoint()
        return 60

    result, unsaved = told(outage.store, flow)
    assert (result.status, result.output, result.is_saved, result.last_saved) == ("completed", 60, False, "work")
    assert unsaved == ["work[1]", "work[2]", "@completed"]


def test_what_somebody_has_taken_over_meanwhile_stays_theirs(outage):
    steps = results("a", "b", "c")
    with blocking_allowed(True):
        store, other = outage.store, outage.again()
        store.runs.save(RUN, checkpoint(1, steps[:1]))
        outage.begin("c2")
        with pytest.raises(CheckpointStorageError) as failed:
            store.runs.save(RUN, checkpoint(2, steps[:2]))
        assert failed.value.is_outcome_unknown
        lease = other.runs.acquire(RUN, take_over=True)
        other.runs.save(
            RUN, checkpoint(lease.last_sequence + 1, lease.latest.step_results, attempt=2, checkpoint_id="new")
        )
        time.sleep(2 * TIMEOUT)  # what is late has come
        before = other.runs.references(RUN)
        outage.end()
        for _ in range(2):
            with pytest.raises(FencedError) as fenced:
                store.runs.make_savable(RUN, History().view())
                store.runs.save(RUN, checkpoint(9, steps, checkpoint_id="lost"))
            assert fenced.value.newest_attempt == 2
        assert other.runs.references(RUN) == before
        other.close()


def test_after_a_failed_sync_nothing_more_is_written_to_the_file(tmp_path):
    outage = away_sqlite(tmp_path, does_it=True, name="SQLITE_IOERR_FSYNC")

    def work(number):
        outage.begin() if number == 1 else outage.end()
        return number

    @workflow
    def flow():
        for number in range(4):
            yield step("work").python(work, number).checkpoint()
        return 60

    result, unsaved = told(outage.store, flow)
    assert (result.status, result.output, result.is_saved) == ("completed", 60, False)
    assert unsaved == ["work[1]", "work[2]", "work[3]", "@completed"]
    assert "sync" in str(result.save_error)
    outage.store.close()


@pytest.fixture
def small_disk(tmp_path):
    with mounted_disk(tmp_path / "disk", "1m") as place:
        yield place


def test_a_disk_that_is_really_full_is_saved_to_again_once_there_is_room(small_disk):
    store = SqliteCheckpointStore(small_disk / "runs.db")
    ballast = small_disk / "ballast"

    def work(number):
        if number == 1:
            ballast.write_bytes(b"x" * (shutil.disk_usage(small_disk).free - 8192))
        elif number == 3:
            ballast.unlink()
        return str(number) * 10_000

    @workflow
    def flow():
        for number in range(4):
            yield step("work").python(work, number).checkpoint()
        return 60

    result, unsaved = told(store, flow)
    assert (result.status, result.is_saved, unsaved) == ("completed", True, ["work[1]", "work[2]"])
    with blocking_allowed(True):
        assert len(store.runs.load_latest(RUN).step_results) == 4
    store.close()


def test_a_run_that_was_cleared_while_its_store_was_away_is_told_as_that(s3):
    bucket = s3.make_bucket()
    store, other = open_store(s3.spec(bucket)), open_store(s3.spec(bucket))
    with blocking_allowed(True):
        store.runs.save(RUN, checkpoint())
        other.runs.acquire(RUN, take_over=True)
        other.runs.clear(RUN)
        with pytest.raises(FencedError) as fenced:
            store.runs.make_savable(RUN, History().view())
        assert fenced.value.newest_attempt is None
        store.close()
        other.close()
