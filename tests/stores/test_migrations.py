"""Databases of every version of the schema, with rows of their time, become ones of the newest version and lose nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import sqlite3
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from flowckpt import WorkflowEngine, in_sync, step, workflow
from flowckpt.core.records.listing import RunFilter
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import CheckpointCorruptedError, CheckpointStorageError, RunLockedError, UnsupportedSchemaError
from flowckpt.evidence import EvidenceVerifier
from flowckpt.stores import open_store
from flowckpt.stores.leases import LeaseTimes
from flowckpt.stores.postgres import connection as postgres_connection
from flowckpt.stores.postgres import database as postgres_module
from flowckpt.stores.postgres.database import PostgresSession
from flowckpt.stores.sql import layout
from flowckpt.stores.sql.layout import MIGRATIONS
from flowckpt.stores.sqlite import connection as sqlite_connection
from flowckpt.stores.sqlite import database as sqlite_database
from flowckpt.stores.sqlite.database import SqliteDatabase, SqliteSession
from flowckpt.testing.contract import checkpoint, results
from tests.forked import processes
from tests.in_process import run_command
from tests.stores.peers import elsewhere
from tests.stores.sql_ownership import acquired_at_last

pytestmark = pytest.mark.usefixtures("in_place")

GOLDEN = Path(__file__).parent / "golden"
NEWEST = len(MIGRATIONS)
VERSIONS = range(1, NEWEST)
STEPS = {
    1: "a7045f159325bef9",
    2: "55bcd5bdefef05db",
    3: "4c6fe999e25a7fff",
    4: "2afd2a24cd0dea31",
    5: "90d9f4cb634b7616",
    6: "1e8fb94ba476bddf",
}
"""The beginning of the digest of each version's statements."""


class Sqlite:
    kind = "sqlite"

    def __init__(self, directory):
        self.file = directory / "runs.db"
        self.spec = f"sqlite:{self.file}"

    def restore(self, version):
        with contextlib.closing(sqlite3.connect(self.file)) as connection:
            connection.executescript((GOLDEN / f"version-{version}.sqlite.sql").read_text("utf-8"))

    def query(self, statement):
        with contextlib.closing(sqlite3.connect(self.file)) as connection, connection:
            return connection.execute(statement).fetchall()

    def schema(self):
        return sorted(self.query("SELECT type, name, tbl_name, sql FROM sqlite_master"), key=repr)


class Postgres:
    kind = "postgresql"

    def __init__(self, postgres, database):
        self._dsn = postgres.dsn(database)
        self.spec = f"{postgres.url(database)}?allow_unsafe=true"

    def restore(self, version):
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute((GOLDEN / f"version-{version}.postgresql.sql").read_text("utf-8"))

    def query(self, statement):
        with psycopg.connect(self._dsn, autocommit=True, options="-c search_path=flowckpt") as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def schema(self):
        return {name: sorted(self.query(statement), key=repr) for name, statement in CATALOGS.items()}


_OURS = "relnamespace = 'flowckpt'::regnamespace"
CATALOGS = {
    "tables": f"SELECT relname::text, relkind, relpersistence, reloptions FROM pg_class WHERE {_OURS}",
    "columns": "SELECT relname::text, attname::text, format_type(atttypid, atttypmod), attnotnull, attidentity, "
    "pg_get_expr(adbin, adrelid) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid LEFT JOIN pg_attrdef "
    f"ON adrelid = attrelid AND adnum = attnum WHERE {_OURS} AND attnum > 0 AND NOT attisdropped",
    "indexes": "SELECT indexname::text, indexdef FROM pg_indexes WHERE schemaname = 'flowckpt'",
    "constraints": "SELECT conname::text, pg_get_constraintdef(oid) FROM pg_constraint "
    "WHERE connamespace = 'flowckpt'::regnamespace",
    "views": "SELECT viewname::text, definition FROM pg_views WHERE schemaname = 'flowckpt'",
    "triggers": "SELECT pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid "
    f"WHERE {_OURS} AND NOT tgisinternal",
    "functions": "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'flowckpt'::regnamespace",
}


@pytest.fixture(params=[Sqlite.kind, Postgres.kind])
def database(request, tmp_path):
    """An empty database."""
    if request.param == Sqlite.kind:
        return Sqlite(tmp_path)
    return Postgres(request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database"))


@pytest.fixture(params=VERSIONS, ids="from-{}".format)
def version(request):
    return request.param


@pytest.fixture
def old(database, version):
    """A database of an earlier version."""
    database.restore(version)
    return database


@pytest.fixture
def pipeline(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(GOLDEN))
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("golden_pipeline", None)
    import golden_pipeline

    return golden_pipeline


def told(version):
    return json.loads((GOLDEN / f"version-{version}.json").read_text("utf-8"))


@contextlib.contextmanager
def opened(spec):
    store = open_store(spec)
    try:
        yield store
    finally:
        store.close()


def answers(spec):
    """What the code of today says, in the words of the golden files."""
    place = importlib.util.spec_from_file_location("golden_fill", GOLDEN / "fill.py")
    fill = importlib.util.module_from_spec(place)
    place.loader.exec_module(fill)
    return fill.answers(spec)


def test_each_version_but_the_newest_has_its_golden_databases():
    assert sorted(file.name for file in GOLDEN.glob("version-*")) == sorted(
        f"version-{number}.{kind}" for number in VERSIONS for kind in ("json", "postgresql.sql", "sqlite.sql")
    )


def test_no_version_is_ever_changed():
    for number, steps in enumerate(MIGRATIONS, 1):
        text = "\n".join(step if isinstance(step, str) else step.__name__ for step in steps)
        assert sha256(text.encode()).hexdigest()[:16] == STEPS[number], f"version {number}: add another one instead"


@pytest.mark.usefixtures("pipeline")
def test_every_run_is_loaded_listed_and_found_by_tag_and_status_as_before(old, version):
    runs = told(version)
    assert answers(old.spec) == runs
    tags = {(name, value) for run in runs for name, value in run["tags"].items()}
    with opened(old.spec) as store:
        for status in {run["status"] for run in runs}:
            found = [info.workflow_id for info in store.runs.find_runs(RunFilter(statuses=[status]))]
            assert found == [run["workflow_id"] for run in runs if run["status"] == status]
        assert len(tags) >= 5
        for tag in tags:
            found = [info.workflow_id for info in store.runs.find_runs(RunFilter(tags=[tag]))]
            assert found == [run["workflow_id"] for run in runs if tag in run["tags"].items()], tag


def test_nothing_is_damaged_and_everything_that_came_later_is_there(old, version):
    with opened(old.spec) as store:
        assert {finding.severity for finding in store.runs.check(None)} == {"ok"}
        assert store.runs.pinned("done") == (frozenset() if version == 1 else {2})
        store.runs.pin("done", 4)
        assert 4 in store.runs.pinned("done")
        waiting = {run["workflow_id"]: len(store.runs.signals(run["workflow_id"])) for run in told(version)}
        assert sum(waiting.values()) == (0 if version == 1 else 1)
        store.runs.clear("done")
        assert store.runs.load("forked", "@forked").step_results[1].output == "x" * 70_000, (
            "it has that together with done"
        )


def test_the_schema_is_that_of_a_new_database(old, database, request, tmp_path_factory):
    with opened(old.spec) as store:
        store.runs.list_runs()
    if old.kind == Sqlite.kind:
        new = Sqlite(tmp_path_factory.mktemp("new"))
    else:
        server = request.getfixturevalue("postgres")
        name = server.make_database()
        request.addfinalizer(lambda: server.drop_database(name))
        new = Postgres(server, name)
    with opened(new.spec) as store:
        store.runs.save("run", checkpoint())
    assert old.schema() == new.schema()
    assert old.query("SELECT version FROM flowckpt_schema ORDER BY version") == [(n,) for n in range(1, NEWEST + 1)]


OUTPUTS = {
    "crashed": 5 + 100,
    "crashed twice": 3 + 100,
    "Crashed": 3 + 100,
    "forked": 3 + 70_000,
    "done": 3 + 70_000,
    "composed": 12 + 20 + 5 + 42 + 1,
    "proved": 1,
}


def test_every_run_goes_on_where_it_stood(old, version, pipeline):
    workflows = {run["workflow_id"]: run["workflow_name"] for run in told(version)}
    named = {flow.name: flow for flow in vars(pipeline).values() if hasattr(flow, "name")}
    Path("report.txt").write_text("as it was\n")
    outputs, executed = dict(OUTPUTS), {}
    with opened(old.spec) as store:
        engine = WorkflowEngine(store, verifier=EvidenceVerifier("."))
        if version > 1:
            outputs |= {"waits": 10, "waits, and was answered": 9}
            in_sync(engine).signal("waits", "go", {"n": 2})
        for run, output in outputs.items():
            ended = engine.resume_sync(named[workflows[run]], workflow_id=run)
            assert (ended.status, ended.output) == ("completed", output), (run, ended.error)
            executed[run] = ended.steps.executed
        again = engine.resume_sync(pipeline.failing, workflow_id="failed")
        assert (again.status, again.steps.restored) == ("failed", 1)
        assert {finding.severity for finding in store.runs.check(None)} == {"ok"}
    assert executed["done"] == 0
    assert set(executed.values()) == {0, 1}, "of the others the last step was missing"


def test_evidence_of_old_rows_is_checked_before_they_are_reused(old, pipeline):
    Path("report.txt").write_text("it is another now\n")
    with opened(old.spec) as store:
        engine = WorkflowEngine(store, verifier=EvidenceVerifier("."))
        plan = in_sync(engine).plan(pipeline.proved, workflow_id="proved and gone")
        assert plan.steps[0].decision == "rerun"


# --- at once, and cut short ------------------------------------------------------------------------------------------


def come(spec, barrier, said):
    with blocking_allowed(True):
        try:
            barrier.wait(120)
            with opened(spec) as store:
                found = len(store.runs.list_runs())
                store.runs.save(f"run of {os.getpid()}", checkpoint(1, results("x")))
                said.put((found, len(list(store.runs.load_latest("composed").step_results))))
        except BaseException as error:
            said.put(repr(error))


@pytest.mark.parametrize("version", [1])
def test_of_four_processes_that_open_an_old_database_at_once_all_work_and_one_brings_it_forward(database, version):
    database.restore(version)
    count = 4
    barrier, said = processes.Barrier(count), processes.Queue()
    started = [processes.Process(target=come, args=(database.spec, barrier, said)) for _ in range(count)]
    for process in started:
        process.start()
    found = [said.get(timeout=120) for _ in started]
    for process in started:
        process.join(120)
    before = told(version)
    assert all(each[1] == 9 and len(before) <= each[0] < len(before) + count for each in found), found
    assert database.query("SELECT version FROM flowckpt_schema ORDER BY version") == [
        (n,) for n in range(1, NEWEST + 1)
    ]
    assert database.query("SELECT count(*) FROM runs") == [(len(before) + count,)]


@pytest.mark.parametrize("level", ["serializable"])
def test_a_server_with_another_default_of_isolation_lets_all_of_them_work_too(postgres, postgres_database, level):
    database = Postgres(postgres, postgres_database)
    database.query(f"ALTER DATABASE {postgres_database} SET default_transaction_isolation = '{level}'")
    test_of_four_processes_that_open_an_old_database_at_once_all_work_and_one_brings_it_forward(database, 1)


def die_at(spec, number):
    """Open a database, and be killed at the n-th statement that follows the opening of the transaction."""
    connect = sqlite_database.connect

    def spilling(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the commit
        return connection

    sqlite_database.connect = spilling
    for kind in (SqliteSession, PostgresSession):
        for name in ("execute", "change"):
            setattr(kind, name, dying(getattr(kind, name)))

    def opened_here():
        with blocking_allowed(True), opened(spec) as store:
            store.runs.list_runs()

    dying.left = number
    opened_here()


def dying(act):
    def acts(self, *arguments):
        if dying.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        dying.left -= 1
        return act(self, *arguments)

    return acts


@pytest.mark.parametrize("version", [1])
def test_whichever_statement_a_process_dies_at_the_next_one_carries_on(database, version):
    database.restore(version)
    dead = 0
    while True:
        process = processes.Process(target=die_at, args=(database.spec, dead))
        process.start()
        process.join(120)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        dead += 1
        if database.query("SELECT max(version) FROM flowckpt_schema") == [(NEWEST,)]:
            break
    assert dead >= 15
    assert database.query("SELECT version FROM flowckpt_schema ORDER BY version") == [
        (n,) for n in range(1, NEWEST + 1)
    ]
    with opened(database.spec) as store:
        assert len(store.runs.list_runs()) == len(told(version))
        assert {finding.severity for finding in store.runs.check(None)} == {"ok"}


# --- newer ones ------------------------------------------------------------------------------------------------------


def test_a_database_of_a_newer_version_is_refused_and_left_as_it_is(database):
    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
    database.query(f"INSERT INTO flowckpt_schema VALUES ({NEWEST + 1}, '2027-01-01', '9.0')")
    for act in (
        lambda store: store.runs.load("run", "c1"),
        lambda store: store.runs.save("run", checkpoint(2)),
        lambda store: store.runs.list_runs(),
        lambda store: store.runs.clear("run"),
    ):
        with opened(database.spec) as store, pytest.raises(UnsupportedSchemaError) as refused:
            act(store)
        assert (refused.value.found, refused.value.supported) == (NEWEST + 1, NEWEST)
        assert "database" in refused.value.message
    assert database.query("SELECT count(*) FROM checkpoints") == [(1,)]


WITH_TABLES = 5  # the last version that makes a table, which shows that the version was lowered
LOWERED = [f"DELETE FROM flowckpt_schema WHERE version > {version}" for version in range(WITH_TABLES)]


@pytest.mark.parametrize("lost", [*LOWERED, "DROP TABLE flowckpt_schema"])
def test_a_database_whose_version_was_lowered_is_damaged_and_works_again_with_its_rows_back(database, lost, tmp_path):
    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
    database.query(lost)
    before = database.schema()
    for command in (["show", "run"], ["store", "check"], ["store", "clear", "run", "--yes"]):
        code, out, err = run_command([*command, "--store", database.spec], cwd=tmp_path, env=dict(os.environ))
        said = out + err
        assert code == 11, said
        assert "rows of flowckpt_schema were removed or changed" in said
        assert "insert the missing rows of flowckpt_schema" in said or command[1] == "check", said
    assert database.schema() == before
    if lost in LOWERED:
        for version in range(LOWERED.index(lost) + 1, NEWEST + 1):
            database.query(f"INSERT INTO flowckpt_schema VALUES ({version}, '2027-01-01', '0.1.0')")
        with opened(database.spec) as store:
            assert store.runs.load_latest("run").sequence == 1


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ("DROP TABLE pins", "lacks table pins"),
        ("ALTER TABLE signals DROP COLUMN document", "lacks column document of table signals"),
        ("ALTER TABLE step_results RENAME TO results", "lacks table step_results"),
    ],
)
def test_a_database_that_lost_a_table_or_a_column_is_damaged(database, lost, said, tmp_path):
    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
        database.query(lost)
        with pytest.raises(CheckpointCorruptedError, match=said):
            store.runs.pinned("run"), store.runs.signals("run"), store.runs.load_latest("run")
    for command in (["show", "run"], ["store", "check"], ["store", "check", "run"]):
        code, out, err = run_command([*command, "--store", database.spec], cwd=tmp_path, env=dict(os.environ))
        assert code == 11, out + err
        assert said in out + err
        assert "restore the database from a backup" in err or command[0] == "store", out + err


def test_a_database_that_lost_a_view_for_people_is_found_by_a_check(database):
    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
        database.query("DROP VIEW checkpoints_per_day")
        assert [each.detail for each in store.runs.check()] == [
            "the database lacks view checkpoints_per_day, removed or renamed by another program"
        ]
        assert store.runs.load_latest("run").sequence == 1


# --- brought forward by another program, while this one has it open ---------------------------------------------------


def bring_forward(database):
    database.query(f"INSERT INTO flowckpt_schema VALUES ({NEWEST + 1}, '2027-01-01', '9.0')")


def everything(database):
    return [database.query(f"SELECT * FROM {table} ORDER BY 1, 2") for table in ("runs", "attempts", "checkpoints")]


def test_a_program_that_has_the_database_open_while_a_newer_one_brings_it_forward_can_claim_no_run(database):
    with opened(database.spec) as store:
        store.runs.save("old", checkpoint())
        store.runs.release("old")
        store.runs.save("going on", checkpoint())
        bring_forward(database)
        before = everything(database)
        for claim in (
            lambda: store.runs.acquire("old", take_over=False),
            lambda: store.runs.acquire("old", take_over=True),
            lambda: store.runs.acquire("new", take_over=False),
            lambda: store.runs.save("new", checkpoint()),
            lambda: store.runs.receive_run("arrives", lambda: [checkpoint()]),
            lambda: store.runs.delete_checkpoint("old", "c1"),
        ):
            with pytest.raises(UnsupportedSchemaError, match="while this program had it open") as refused:
                claim()
            assert (refused.value.found, refused.value.supported) == (NEWEST + 1, NEWEST)
            assert "start the program again" in refused.value.remedy
        assert everything(database) == before
        store.runs.save("going on", checkpoint(2))
        assert store.runs.load_latest("going on").sequence == 2, "a run that it owned before continues"


def test_an_engine_says_so_before_any_step_runs_and_the_run_can_be_resumed_by_the_newer_program(database):
    done = []

    @workflow("flow")
    def flow():
        yield step("one").python(done.append, 1).checkpoint()

    with opened(database.spec) as store:
        engine = WorkflowEngine(store)
        engine.run_sync(flow, workflow_id="before")
        bring_forward(database)
        with pytest.raises(UnsupportedSchemaError):
            engine.run_sync(flow, workflow_id="after")
    assert done == [1]
    database.query(f"DELETE FROM flowckpt_schema WHERE version = {NEWEST + 1}")
    with opened(database.spec) as store:
        assert [info.workflow_id for info in store.runs.list_runs()] == ["before"]


def test_to_look_at_the_version_costs_a_claim_no_statement(database, monkeypatch):
    said = []
    kind = SqliteSession if database.kind == Sqlite.kind else PostgresSession
    execute = kind.execute

    def heard(self, statement, parameters=()):
        said.append(statement)
        return execute(self, statement, parameters)

    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
        store.runs.release("run")
        monkeypatch.setattr(kind, "execute", heard)
        attempt = store.runs.acquire("run", take_over=False).attempt
        store.runs.save("run", checkpoint(2, attempt=attempt))
    (asked,) = [statement for statement in said if "flowckpt_schema" in statement]
    assert "FROM runs WHERE workflow_id" in asked


def bring_forward_slowly(session):
    """What a large migration does: it changes so much that even readers are kept out."""
    session.execute("ALTER TABLE runs ADD COLUMN extra TEXT")
    session.execute("CREATE TABLE extra (x TEXT)")
    for _ in range(8):
        session.execute("INSERT INTO extra VALUES (?)", ("x" * 1_000_000,))
    told = getattr(bring_forward_slowly, "told", None)
    if told is not None:
        told.entered.set()
        assert told.go_on.wait(120)


NEWER = (*MIGRATIONS, (bring_forward_slowly,))


def be_newer(setattr):
    for module in (layout, sqlite_database, postgres_module):
        setattr(module, "MIGRATIONS", NEWER)
    setattr(layout.migrate, "__defaults__", (NEWER,))


class Slowly:
    """A process of a newer version that brings a database forward and does not end before it is told to."""

    def __init__(self, spec, **settings):
        self.entered, self.go_on = processes.Event(), processes.Event()
        self._process = processes.Process(target=self._work, args=(spec, self.entered, self.go_on, settings))

    def __enter__(self):
        self._process.start()
        assert self.entered.wait(120)
        return self

    def __exit__(self, *_):
        self.go_on.set()
        self._process.join(120)
        assert self._process.exitcode == 0

    @staticmethod
    def _work(spec, entered, go_on, settings):
        postgres_module._SETTINGS.update(settings)
        bring_forward_slowly.told = SimpleNamespace(entered=entered, go_on=go_on)
        be_newer(setattr)
        with opened(spec) as store:
            store.runs.list_runs()


@pytest.fixture
def impatient(monkeypatch):
    """No process waits for a lock longer than a moment, but for a migration."""
    monkeypatch.setattr(sqlite_database, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(sqlite_database, "NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(layout, "NOTICE_SECONDS", 0.05)
    monkeypatch.setattr(postgres_connection, "LOCKED_SECONDS", 0.3)
    monkeypatch.setitem(postgres_module._SETTINGS, "lock_timeout", "100ms")


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as made:
        yield made


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "flowckpt"]


@pytest.mark.parametrize("run", ["old", "new"])
def test_a_claim_that_comes_while_the_database_is_brought_forward_waits_and_is_refused(database, pool, run):
    with opened(database.spec) as store:
        store.runs.save("old", checkpoint())
        store.runs.release("old")
        with Slowly(database.spec):
            claim = pool.submit(store.runs.acquire, run, take_over=False)
            with pytest.raises(TimeoutError):
                claim.result(timeout=0.5)
        with pytest.raises(UnsupportedSchemaError, match="while this program had it open"):
            claim.result(timeout=120)
    assert database.query("SELECT max(attempt), count(*) FROM attempts") == [(1, 1)]


@pytest.mark.usefixtures("impatient")
def test_those_who_wait_for_a_migration_say_so_once_and_go_on_when_it_is_done(database, pool, monkeypatch, caplog):
    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
    be_newer(monkeypatch.setattr)
    with opened(database.spec) as one, opened(database.spec) as another:
        with Slowly(database.spec):
            waiting = [pool.submit(one.runs.list_runs), pool.submit(another.runs.load_latest, "run")]
            until = time.monotonic() + 120
            while len(said(caplog)) < 2:
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(0.5)  # some looks more
            assert not any(each.done() for each in waiting)
        assert [info.workflow_id for info in waiting[0].result(timeout=120)] == ["run"]
        assert waiting[1].result(timeout=120).sequence == 1
    assert len(said(caplog)) == 2, said(caplog)
    assert all("is migrating the tables of" in each and "at most 600 s" in each for each in said(caplog))
    assert database.query("SELECT version FROM flowckpt_schema ORDER BY version") == [
        (n,) for n in range(1, NEWEST + 2)
    ]
    if database.kind == Sqlite.kind:
        assert [each.name for each in database.file.parent.glob("*migrating*")] == []


@pytest.mark.usefixtures("impatient")
def test_all_that_a_program_does_waits_for_a_migration_that_takes_longer_than_a_lock_is_waited_for(
    database, pool, caplog
):
    with opened(database.spec) as store:
        for run in ("owned", "free"):
            store.runs.save(run, checkpoint())
        store.runs.release("free")
        with Slowly(database.spec):
            saved = pool.submit(store.runs.save, "owned", checkpoint(2, results("x", "y")))
            claimed = pool.submit(store.runs.acquire, "free", take_over=False)
            listed = pool.submit(store.runs.list_runs)
            until = time.monotonic() + 120
            while not said(caplog):
                assert time.monotonic() < until
                time.sleep(0.01)
            time.sleep(1.0)  # longer than a lock is waited for
            assert not any(each.done() for each in (saved, claimed, listed))
        saved.result(timeout=120)
        with pytest.raises(UnsupportedSchemaError, match="while this program had it open"):
            claimed.result(timeout=120)
        assert {info.workflow_id for info in listed.result(timeout=120)} == {"owned", "free"}
        store.runs.save("owned", checkpoint(3, results("x", "y", "z")))
        assert [ref.sequence for ref in store.runs.references("owned")] == [3, 2, 1]
        assert [result.output for result in store.runs.load_latest("owned").step_results] == ["x", "y", "z"]
    assert 1 <= len(said(caplog)) <= 3, said(caplog)
    assert all("is migrating the tables of" in each for each in said(caplog))


@pytest.mark.parametrize("module", [sqlite_database, postgres_connection], ids=["sqlite", "postgresql"])
def test_the_first_wait_for_a_lock_after_a_migration_has_the_whole_time_limit(tmp_path, monkeypatch, module):
    migrations_seen = iter([True, True])
    monkeypatch.setattr(module, "is_migrating", lambda *_: next(migrations_seen, False))
    busy = sqlite3.OperationalError("database is locked")
    busy.sqlite_errorname = "SQLITE_BUSY"
    if module is sqlite_database:
        monkeypatch.setattr(module, "NOTICE_SECONDS", 0)
        monkeypatch.setattr(module, "BUSY_SECONDS", 0)
        outcomes = iter([busy, busy, busy, None])

        def act():
            if error := next(outcomes):
                raise error
            return "done"

        assert module.Retry(tmp_path / "runs.db").retry(act, "run", "save") == "done"
        return
    monkeypatch.setattr(module, "LOCKED_SECONDS", 0)
    address = module.parse_address("postgresql://role@host/database")
    tries = module.Retry(address, 0, module.OutageNotice(address))
    locked = psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")
    for _ in range(3):
        tries.check_migration(locked, None)
        assert not tries.is_over(locked, is_lost=False)
    tries.check_migration(locked, None)
    assert tries.is_over(locked, is_lost=False)


@pytest.mark.usefixtures("impatient")
def test_a_save_says_itself_that_a_migration_takes_for_ever_and_can_be_made_again(database, monkeypatch):
    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
        monkeypatch.setattr(layout, "PATIENCE_SECONDS", 0.6)
        with Slowly(database.spec):
            with pytest.raises(CheckpointStorageError, match="migrating the tables of .* for more") as gave_up:
                store.runs.save("run", checkpoint(2))
            assert not gave_up.value.is_outcome_unknown
        store.runs.save("run", checkpoint(2))
        assert store.runs.load_latest("run").sequence == 2


@pytest.mark.usefixtures("impatient", "own_sqlite")  # in WAL mode, a read waits for no migration
def test_who_has_stopped_a_wait_for_a_migration_is_not_made_to_wait_as_long_again(database, pool, monkeypatch):
    def stopped(self):
        raise KeyboardInterrupt

    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
        with Slowly(database.spec):
            with monkeypatch.context() as second_signal:
                second_signal.setattr(layout.MigrationWait, "pause", stopped)
                with pytest.raises(KeyboardInterrupt):
                    store.runs.save("run", checkpoint(2))
            for act, named in ((store.runs.release, "release"), (store.runs.load_latest, "read")):
                with pytest.raises(CheckpointStorageError, match=f"could not {named} run 'run': .* was interrupted"):
                    pool.submit(act, "run").result(timeout=120)
        assert store.runs.load_latest("run").sequence == 1
        used = store.runs.database
        hurry = used._tries.hurry if isinstance(used, SqliteDatabase) else used._hurry
        assert not hurry.is_on, "what comes later waits as ever"


def test_a_lease_that_could_not_be_renewed_while_the_tables_were_brought_forward_holds_still(database, monkeypatch):
    slow = (*MIGRATIONS, (lambda session: time.sleep(2.2),))
    with opened(database.spec) as owner:
        owner.runs._process = elsewhere
        monkeypatch.setattr(owner.runs._heartbeat, "start", lambda: None)
        owner.runs._times = LeaseTimes(-10.0)
        owner.runs.acquire("expired", take_over=False)
        owner.runs._times = LeaseTimes(2.0)
        owner.runs.acquire("run", take_over=False)
        held = owner.runs.database
        held.write("", "migrate", lambda session: layout.migrate(session, slow))
        be_newer(monkeypatch.setattr)
        with opened(database.spec) as other:
            with pytest.raises(RunLockedError, match="another-machine"):
                other.runs.acquire("run", take_over=False)
            assert other.runs.acquire("expired", take_over=False).attempt == 2
            assert acquired_at_last(other, "run").attempt == 2, "it ends without a renewal"


def test_a_migration_may_leave_the_server_alone_for_longer_than_others_may(postgres, postgres_database):
    database = Postgres(postgres, postgres_database)
    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
    with Slowly(database.spec, idle_in_transaction_session_timeout="200ms"):
        time.sleep(1.0)
        assert postgres.execute(
            "SELECT state FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'"
        ) == [("idle in transaction",)]
    assert database.query("SELECT max(version) FROM flowckpt_schema") == [(NEWEST + 1,)]


@pytest.mark.usefixtures("impatient")
def test_tables_that_somebody_else_keeps_locked_are_waited_for_no_longer_than_before(postgres, postgres_database):
    database = Postgres(postgres, postgres_database)
    dsn = postgres.dsn(postgres_database)
    with opened(database.spec) as store, opened(f"{database.spec}&schema=another") as another:
        for each in (store, another):
            each.runs.save("run", checkpoint())
        with psycopg.connect(dsn) as elsewhere, psycopg.connect(dsn) as somebody:
            elsewhere.execute("SELECT pg_advisory_xact_lock(%s)", (postgres_connection._LOCK,))
            elsewhere.execute("LOCK TABLE another.runs IN EXCLUSIVE MODE")
            somebody.execute("LOCK TABLE flowckpt.runs IN EXCLUSIVE MODE")
            began = time.monotonic()
            with pytest.raises(CheckpointStorageError, match="another session has kept it locked") as failed:
                store.runs.save("run", checkpoint(2))
            assert time.monotonic() - began < 30
            assert "pg_locks" in failed.value.remedy and not failed.value.is_outcome_unknown
        store.runs.save("run", checkpoint(2))


@pytest.mark.usefixtures("impatient")
def test_a_migration_that_takes_for_ever_is_waited_for_in_vain_and_that_is_said(database, monkeypatch):
    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
    be_newer(monkeypatch.setattr)
    monkeypatch.setattr(layout, "PATIENCE_SECONDS", 0.3)
    with Slowly(database.spec), opened(database.spec) as store:
        with pytest.raises(CheckpointStorageError, match="migrating the tables of .* for more than") as gave_up:
            store.runs.list_runs()
        assert "try again after it has ended" in gave_up.value.remedy
    with opened(database.spec) as store:
        assert [info.workflow_id for info in store.runs.list_runs()] == ["run"]


@pytest.mark.usefixtures("impatient")
@pytest.mark.usefixtures("own_sqlite")
def test_a_file_that_another_program_keeps_locked_is_waited_for_no_longer_than_before(tmp_path):
    database = Sqlite(tmp_path)
    with opened(database.spec) as store:
        store.runs.save("run", checkpoint())
    (tmp_path / "runs.db-migrating").touch()  # as one leaves it that was killed
    with contextlib.closing(sqlite3.connect(database.file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = time.monotonic()
        with opened(database.spec) as store, pytest.raises(CheckpointStorageError, match="kept it locked"):
            store.runs.list_runs()
        assert time.monotonic() - began < 30


def test_word_of_a_migration_is_given_although_somebody_looks_for_it_just_then(tmp_path):
    """A process that looks holds its lock for some microseconds; word that is not given costs the others their patience."""

    class Looking(PosixFileSystem):
        looks = 3

        def lock(self, file):
            self.looks -= 1
            return self.looks < 0 and super().lock(file)

    with sqlite_connection.announce_migration(tmp_path / "runs.db", Looking()):
        assert sqlite_connection.is_migrating(tmp_path / "runs.db")
    assert not sqlite_connection.is_migrating(tmp_path / "runs.db")
