"""The PostgreSQL store beyond the contract: lost connections, a killed server, settings, secrets, versions."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import psycopg
import pytest

from flowckpt.core.records.wait import Signal
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import CheckpointStorageError, FlowckptError, ForeignRecordError, StoreSpecError
from flowckpt.stores import PostgresCheckpointStore, open_store
from flowckpt.stores.open import hide_passwords
from flowckpt.stores.postgres import connection as postgres_connection
from flowckpt.stores.postgres import database as database_module
from flowckpt.stores.postgres.connection import Connection, check_server, parse_address
from flowckpt.stores.sql import reader
from flowckpt.testing.contract import checkpoint, results
from tests.cutting_proxy import CuttingProxy
from tests.ports import free_port
from tests.postgres import PostgresServer
from tests.stores.many_at_once import fill_by_processes, fill_by_threads

pytestmark = pytest.mark.usefixtures("in_place")

RUN = "run-1"
SECRET = "h%unter 22"  # percent-encoded, it is another text


@pytest.fixture
def store(url):
    made = PostgresCheckpointStore(url)
    yield made
    made.close()


@pytest.fixture
def query(postgres, postgres_database):
    """Ask as a person would."""

    def ask(statement):
        with psycopg.connect(postgres.dsn(postgres_database), autocommit=True) as connection:
            connection.execute("SET search_path = flowckpt")
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    return ask


@pytest.fixture(scope="module")
def durable():
    """A server that syncs, and that may be killed."""
    server = PostgresServer(is_durable=True)
    try:
        server.start()
        yield server
    finally:
        server.close()


def shown(store):
    return [(ref.sequence, ref.checkpoint_id) for ref in store.runs.references(RUN)]


# --- opening ---------------------------------------------------------------------------------------------------------


def test_it_opens_from_its_url(url):
    store = open_store(url)
    assert isinstance(store, PostgresCheckpointStore)
    store.runs.save(RUN, checkpoint())
    store.close()
    other = open_store(url.replace("postgresql:", "postgres:"))
    assert other.runs.load(RUN, "c1").sequence == 1
    other.close()


@pytest.mark.parametrize(
    "bad",
    [
        "postgresql:",
        "postgresql:host/db",
        f"postgresql://me:{SECRET}@host:port/db",
        "postgresql://me:hunter22%zz@host/db",
        "postgresql://me:hunter22@host/db?nonsense=1",
        "postgresql://me:hunter22@[host/db",
        "postgresql://me:hunter22@host/db?schema=no-name",
        "postgresql://me:hunter22@host/db?schema=pg_catalog",
    ],
)
def test_a_url_that_is_none_is_refused_without_showing_it(bad):
    with pytest.raises(StoreSpecError) as refused:
        open_store(bad)
    said = "".join(traceback.format_exception(refused.value)) + repr(refused.value) + repr(vars(refused.value))
    assert "hunter22" not in said and "unter 22" not in said
    assert refused.value.remedy


def test_a_scheme_that_nobody_knows_shows_no_password():
    with pytest.raises(StoreSpecError, match=r"postgresql\+asyncpg") as refused:
        open_store("postgresql+asyncpg://me:hunter22@host/db")
    assert "hunter22" not in str(refused.value) + repr(vars(refused.value))


@pytest.mark.parametrize(
    ("spec", "shown"),
    [
        ("postgresql://me:hunter22@host:1/db?x=1", "postgresql://me:***@host:1/db?x=1"),
        ("postgresql://me:hun@ter22@host/db", "postgresql://me:***@host/db"),
        ("postgresql://:hunter22@host/db", "postgresql://:***@host/db"),
        ("postgresql://me@host/db?password=hunter22&x=1", "postgresql://me@host/db?password=***&x=1"),
        ("postgresql://me@host:1/db", "postgresql://me@host:1/db"),
        ("sqlite:/home/a:b@c/runs.db", "sqlite:/home/a:b@c/runs.db"),
        ("file:x", "file:x"),
    ],
)
def test_a_description_is_shown_without_its_passwords(spec, shown):
    assert hide_passwords(spec) == shown


def test_without_the_driver_it_says_what_to_install(monkeypatch):
    import sys

    for name in [name for name in sys.modules if name.startswith(("flowckpt.stores.postgres", "psycopg"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delattr("flowckpt.stores.postgres", raising=False)
    with pytest.raises(StoreSpecError) as refused:
        open_store("postgresql://me:hunter22@host/db")
    assert "flowckpt[postgres]" in refused.value.remedy
    assert "hunter22" not in str(refused.value) + repr(vars(refused.value))


@pytest.mark.parametrize(
    "place", ["postgresql://me:{}@127.0.0.1:{}/db", "postgresql://me@127.0.0.1:{1}/db?password={0}"]
)
def test_a_password_is_in_no_error_log_or_repr(place, caplog):
    caplog.set_level(logging.DEBUG)
    url = place.format("hunter22", free_port())
    store = PostgresCheckpointStore(url, patience_seconds=0.1)
    with pytest.raises(CheckpointStorageError) as failed:
        store.runs.list_runs()
    said = "".join(traceback.format_exception(failed.value))
    for text in (said, repr(store), str(store.runs.database), repr(store.runs.database.address), caplog.text):
        assert "hunter22" not in text
    assert "me@127.0.0.1" in repr(store)


def test_a_secret_that_a_message_repeats_is_struck_out():
    address = parse_address("postgresql://me:hunter%2022@h/db")
    assert address.scrub("FATAL: hunter 22, hunter%2022") == "FATAL: ***, ***"


@pytest.mark.parametrize(
    ("rest", "said", "remedy"),
    [
        ("h/db?shcema=x", "unknown option 'shcema'", "Did you mean 'schema'?"),
        ("h/db?color=x&schema=y", "unknown option 'color'", "schema or allow_unsafe"),
        ("h:99999/db", "not a valid URL", "a port from 1 to 65535"),
        ("h:1,i:0/db", "not a valid URL", "a port from 1 to 65535"),
        ("me:hid?den@h/db", "not a valid URL", ""),
        ("me:hid?den#x@h/db", "not a valid URL", ""),
        ("h/db?password=hid&den=x", "not a valid URL", ""),
    ],
)
def test_a_mistake_in_a_url_is_named_but_no_part_of_a_password(rest, said, remedy):
    with pytest.raises(StoreSpecError, match=said) as refused:
        parse_address(f"postgresql://{rest}")
    assert remedy in refused.value.remedy and "den" not in str(refused.value)


def test_every_option_of_libpq_is_accepted():
    assert parse_address("postgresql://h:1,i/db?ssl=true&target_session_attrs=any&schema=a").schema == "a"


def test_a_server_that_does_not_keep_what_it_commits_is_refused(postgres, postgres_database, durable):
    with pytest.raises(CheckpointStorageError, match="fsync is off") as refused:
        PostgresCheckpointStore(postgres.url(postgres_database)).runs.list_runs()
    assert "allow_unsafe" in refused.value.remedy
    url = f"{durable.url()}?options=-csynchronous_commit%3Doff"
    with pytest.raises(CheckpointStorageError, match="synchronous_commit is off"):
        PostgresCheckpointStore(url).runs.list_runs()
    store = PostgresCheckpointStore(durable.url(), schema="fine")
    assert store.runs.list_runs() == []
    store.close()


class FakeServer:
    """Answers the question for the settings."""

    def __init__(self, version=160000, **settings):
        given = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "server_encoding": "UTF8",
                 "transaction_read_only": "off", "is_standby": False}  # fmt: skip
        self.info = self
        self.server_version = version
        self.row = tuple({**given, **settings}.values())

    def execute(self, *_):
        return self

    def fetchone(self):
        return self.row


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (FakeServer(full_page_writes="off"), "full_page_writes is off"),
        (FakeServer(server_encoding="LATIN1"), "LATIN1"),
        (FakeServer(version=110000), "PostgreSQL 11"),
    ],
)
def test_a_server_that_will_not_do_is_refused_by_name(server, said):
    address = parse_address("postgresql://h/db")
    with pytest.raises(CheckpointStorageError, match=said):
        check_server(server, address)
    assert check_server(FakeServer(), address) == ""
    assert check_server(FakeServer(synchronous_commit="local"), address) == ""


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (FakeServer(transaction_read_only="on", fsync="off"), "default_transaction_read_only"),
        (FakeServer(is_standby=True, fsync="off"), "standby"),
    ],
    ids=["read-only", "standby"],
)
def test_a_server_that_commits_nothing_can_be_read_and_loses_nothing(server, said):
    assert said in check_server(server, parse_address("postgresql://h/db"))


def test_a_schema_of_another_program_is_refused(query, url):
    query("CREATE SCHEMA flowckpt; CREATE TABLE flowckpt.orders (id int)")
    with pytest.raises(ForeignRecordError, match="orders"):
        PostgresCheckpointStore(url).runs.list_runs()
    store = PostgresCheckpointStore(f"{url}&schema=another")
    store.runs.save(RUN, checkpoint())
    store.close()


# --- versions --------------------------------------------------------------------------------------------------------


def test_many_processes_begin_on_an_empty_database_at_once(url):
    fill_by_processes(url, count=6, saves=20)


# --- lost connections ------------------------------------------------------------------------------------------------


def test_a_connection_that_the_server_ended_is_replaced(store, query):
    store.runs.save(RUN, checkpoint(1))
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'flowckpt'"
    for sequence in (2, 3):
        assert query(ended)
        store.runs.save(RUN, checkpoint(sequence))
        assert query(ended)
        assert store.runs.load_latest(RUN).sequence == sequence


@pytest.fixture
def proxy(postgres):
    made = CuttingProxy(postgres.port)
    yield made
    made.close()


@pytest.mark.parametrize("where", ["cut_before", "cut_after"])
@pytest.mark.parametrize("steps", [1, 3, 0])
def test_a_save_whose_line_was_cut_is_there_once(proxy, postgres, postgres_database, query, where, steps):
    url = postgres.url(postgres_database).replace(f":{postgres.port}/", f":{proxy.port}/")
    store = PostgresCheckpointStore(f"{url}?allow_unsafe=true&sslmode=disable")
    done = []
    store.runs.save(RUN, checkpoint(1))
    for sequence in range(2, 9):
        done += results(*range(steps), first=len(done) + 1)
        name = f"cut-here-{sequence}"
        setattr(proxy, where, name.encode())
        store.runs.save(RUN, checkpoint(sequence, list(done), checkpoint_id=name))
    assert proxy.cuts == 7
    assert shown(store)[0] == (8, "cut-here-8")
    assert query("SELECT count(*) FROM checkpoints") == [(8,)]
    assert query("SELECT count(*) FROM step_results") == [(7 * steps,)]
    assert list(store.runs.load_latest(RUN).step_results) == done
    store.close()


def test_a_save_whose_answer_was_cut_at_any_byte_is_there_once(proxy, postgres, postgres_database, query):
    url = postgres.url(postgres_database).replace(f":{postgres.port}/", f":{proxy.port}/")
    store = PostgresCheckpointStore(f"{url}?allow_unsafe=true&sslmode=disable")
    store.runs.save(RUN, checkpoint(1))
    sequence, done = 1, []
    while not proxy.was_whole:
        sequence += 1
        done += results("x", first=len(done) + 1)
        proxy.passed, proxy.cut_after = sequence - 2, f"cut-here-{sequence}".encode()
        store.runs.save(RUN, checkpoint(sequence, list(done), checkpoint_id=f"cut-here-{sequence}"))
    assert proxy.cuts == sequence - 2 > 30, "an answer has more bytes than that"
    assert query("SELECT count(*), max(sequence) FROM checkpoints") == [(sequence, sequence)]
    assert list(store.runs.load_latest(RUN).step_results) == done
    store.close()


def test_a_claim_and_a_message_whose_answers_were_cut_at_any_byte_are_there_once(
    proxy, postgres, postgres_database, query
):
    url = postgres.url(postgres_database).replace(f":{postgres.port}/", f":{proxy.port}/")
    store = PostgresCheckpointStore(f"{url}?allow_unsafe=true&sslmode=disable")
    store.runs.save(RUN, checkpoint(1))
    size = 0
    while not proxy.was_whole:
        proxy.passed, proxy.cut_after = size, b"COMMIT"
        assert store.runs.acquire(f"run {size}", take_over=False).attempt == 1
        proxy.passed, proxy.cut_after = size, b"COMMIT"
        store.runs.send_signal(RUN, Signal(f"message {size}", "go", datetime.now(UTC)))
        size += 1
    assert size > 5
    assert query("SELECT count(*) FROM attempts") == [(size + 1,)]
    assert len(store.runs.signals(RUN)) == size
    store.close()


@pytest.mark.parametrize("where", ["cut_before", "cut_after"])
def test_other_work_whose_line_was_cut_is_done_once(proxy, postgres, postgres_database, query, where):
    url = postgres.url(postgres_database).replace(f":{postgres.port}/", f":{proxy.port}/")
    store = PostgresCheckpointStore(f"{url}?allow_unsafe=true&sslmode=disable")
    store.runs.save("other", checkpoint())
    setattr(proxy, where, b"COMMIT")
    assert store.runs.acquire(RUN, take_over=False).attempt == 1
    for sequence in (1, 2):
        store.runs.save(RUN, checkpoint(sequence, results(*range(sequence))))
    setattr(proxy, where, b"COMMIT")
    assert store.runs.delete_checkpoint(RUN, "c1")
    setattr(proxy, where, b"COMMIT")
    store.runs.release(RUN)
    assert store.runs.owner(RUN) is None
    assert query("SELECT count(*) FROM attempts") == [(2,)]
    assert shown(store) == [(2, "c2")]
    setattr(proxy, where, b"COMMIT")
    store.runs.clear(RUN)
    assert shown(store) == []
    assert proxy.cuts == 4
    store.close()


def test_a_server_that_is_gone_is_waited_for_and_then_an_error(durable):
    store = PostgresCheckpointStore(durable.url(), schema="gone", patience_seconds=0.5)
    store.runs.save(RUN, checkpoint(1))
    durable.kill()
    try:
        began = time.monotonic()
        with pytest.raises(CheckpointStorageError) as failed:
            store.runs.save(RUN, checkpoint(2))
        assert 0.4 < time.monotonic() - began < 10
        assert failed.value.is_outcome_unknown
        with pytest.raises(CheckpointStorageError, match="an earlier save"):
            store.runs.save(RUN, checkpoint(2))
    finally:
        durable.start()
    lease = store.runs.acquire(RUN, take_over=True)
    assert lease.last_sequence in (1, 2)
    store.runs.save(RUN, checkpoint(lease.last_sequence + 1, attempt=lease.attempt))
    store.close()


@pytest.mark.parametrize("setting", ["idle_session_timeout", "idle_in_transaction_session_timeout"])
def test_a_session_that_the_server_ended_while_a_step_ran_loses_nothing(setting, store, query, postgres_database):
    query(f"ALTER DATABASE {postgres_database} SET {setting} = '100ms'")
    store.runs.save(RUN, checkpoint(1))
    for sequence in (2, 3):
        time.sleep(0.3)  # a step that takes longer than the server lets a session idle
        store.runs.save(RUN, checkpoint(sequence))
    assert shown(store) == [(3, "c3"), (2, "c2"), (1, "c1")]


LOST = ["08000", "08001", "08003", "08004", "08006", "08007", "08P01", "57P01", "57P02", "57P03", "57P04", "57P05"]


@pytest.mark.parametrize("code", [*LOST, "25P03", "25P04", "40001", "40P01", "53300"])
def test_a_save_that_the_server_ended_for_a_passing_reason_is_settled(code, store, query):
    store.runs.save(RUN, checkpoint(1))
    query("CREATE SEQUENCE times")  # what a rollback does to it does not undo its numbers
    query(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('flowckpt.times') = 1 THEN RAISE EXCEPTION 'passing' USING ERRCODE = '{code}'; END IF; "
        "RETURN NEW; END $$"
    )
    query("CREATE TRIGGER refuse BEFORE INSERT ON checkpoints FOR EACH ROW EXECUTE FUNCTION refuse()")
    store.runs.save(RUN, checkpoint(2))
    assert query("SELECT last_value FROM times") == [(2,)]
    assert shown(store) == [(2, "c2"), (1, "c1")]


def test_all_codes_of_lost_connections_are_tested():
    known = psycopg.errors._sqlcodes
    assert [code for code in sorted(known) if code.startswith(("08", "57P"))] == LOST


@pytest.mark.parametrize("code", [*LOST, "53300"])
def test_a_connection_that_the_server_refuses_for_a_passing_reason_is_made_again(code, store, monkeypatch):
    store.runs.save(RUN, checkpoint(1))
    store.runs.database._pool.close()
    connect, refusals = Connection.connect, [psycopg.errors.lookup(code)("not now")]

    def refuse_once(*arguments, **options):
        if refusals:
            raise refusals.pop()
        return connect(*arguments, **options)

    monkeypatch.setattr(Connection, "connect", refuse_once)
    store.runs.save(RUN, checkpoint(2))
    assert not refusals
    assert shown(store) == [(2, "c2"), (1, "c1")]


@pytest.mark.parametrize(
    "said", [b"E\0\0\0\x1aSFATAL\0Mit goes away\0\0", b"E\0\0\0\5\0", b"\0" * 40], ids=["no code", "no error", "noise"]
)
def test_a_server_that_goes_away_with_unclear_words_is_asked_again(said, proxy, postgres, postgres_database):
    store = PostgresCheckpointStore(proxy.url_through(postgres.url(postgres_database)))
    store.runs.save(RUN, checkpoint(1))
    proxy.cut_after, proxy.last_words = b"cut-here", said
    store.runs.save(RUN, checkpoint(2, checkpoint_id="cut-here"))
    assert proxy.cuts == 1
    assert shown(store) == [(2, "cut-here"), (1, "c1")]
    store.close()


def test_those_who_wait_for_a_server_say_so_once_without_a_password(monkeypatch, caplog):
    monkeypatch.setattr(postgres_connection, "NOTICE_SECONDS", 0.3)
    store = PostgresCheckpointStore(f"postgresql://me:hunter22@127.0.0.1:{free_port()}/db", patience_seconds=1.0)
    with ThreadPoolExecutor(2) as pool:
        tried = [pool.submit(store.runs.list_runs), pool.submit(store.runs.owner, RUN)]
        for each in tried:
            with pytest.raises(CheckpointStorageError):
                each.result(timeout=120)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "postgresql://me@127.0.0.1" in said and "hunter22" not in said
    assert "retrying for 1 s: " in said or "retrying for 0 s: " in said
    caplog.clear()
    with pytest.raises(CheckpointStorageError):
        store.runs.list_runs()
    assert len(caplog.records) == 1, "another wait is told again"


def test_a_short_wait_for_a_server_is_not_told(proxy, postgres, postgres_database, caplog):
    url = postgres.url(postgres_database).replace(f":{postgres.port}/", f":{proxy.port}/")
    store = PostgresCheckpointStore(f"{url}?allow_unsafe=true&sslmode=disable")
    store.runs.save(RUN, checkpoint(1))
    proxy.cut_before = b"cut-here"
    store.runs.save(RUN, checkpoint(2, checkpoint_id="cut-here"))
    assert proxy.cuts == 1
    assert not caplog.records
    store.close()


@pytest.mark.timeout(300)
def test_nothing_acknowledged_is_lost_when_the_server_is_killed_under_load(durable, is_soak):
    stop = threading.Event()
    acknowledged, failures = {}, []

    def work(number):
        run = f"run-{number}"
        store = PostgresCheckpointStore(durable.url(), schema="killed", patience_seconds=60)
        steps = []
        try:
            with blocking_allowed(True):
                sequence = 0
                while not stop.is_set():
                    sequence += 1
                    steps += results("x" * 200, first=sequence)
                    store.runs.save(run, checkpoint(sequence, list(steps)))
                    acknowledged[run] = sequence
        except BaseException as error:
            failures.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(30 if is_soak else 5):
            time.sleep(0.15 + 0.06 * (number % 5))
            durable.kill()
            durable.start()
    finally:
        time.sleep(0.3)
        stop.set()
        for thread in threads:
            thread.join(120)
    assert not failures, failures
    store = PostgresCheckpointStore(durable.url(), schema="killed")
    for run, sequence in acknowledged.items():
        latest = store.runs.load_latest(run)
        assert latest.sequence == sequence  # nothing lost, and nothing there that nobody was told of
        assert [result.name for result in latest.step_results] == [f"step-{n}" for n in range(1, sequence + 1)]
        assert [ref.sequence for ref in store.runs.references(run)] == list(range(sequence, 0, -1))
    assert len(acknowledged) == 4
    assert {finding.severity for finding in store.runs.check(None)} == {"ok"}
    store.close()


def test_a_run_that_is_cleared_while_it_is_checked_is_not_called_corrupt(url, monkeypatch):
    """Its large values are read in transactions of their own, of a later moment."""
    store, other = open_store(url), open_store(url)
    store.runs.save(RUN, checkpoint(1, results("x" * 70_000)))
    store.runs.release(RUN)
    original = reader.open_image

    def cleared_behind(*given, **told):
        found = original(*given, **told)
        other.runs.clear(RUN)
        return found

    monkeypatch.setattr(reader, "open_image", cleared_behind)
    assert store.runs.check(None) == []
    store.close()
    other.close()


# --- the rest --------------------------------------------------------------------------------------------------------


def test_leases_go_by_the_clock_of_the_server(store, query):
    store.runs.acquire(RUN, take_over=False)
    (row,) = query("SELECT abs(extract(epoch FROM clock_timestamp() - acquired_at)) < 5 FROM attempts")
    assert row == (True,)
    assert not hasattr(store.runs.database, "_clock")


def test_nul_in_names_is_kept(store):
    data = checkpoint(1, results("x"), checkpoint_id="a\0b", workflow_name="et\0l", metadata={"tags": {"a": "\0"}})
    store.runs.save("run\0", data)
    assert store.runs.load("run\0", "a\0b") == data
    (info,) = store.runs.list_runs()
    assert (info.workflow_id, info.workflow_name, info.tags) == ("run\0", "et\0l", {"a": "\0"})


def test_threads_share_a_store(store):
    fill_by_threads(store)
    assert len(store.runs.database._pool._idle) <= 4


async def test_the_loop_stays_live_while_the_server_answers(store):
    with blocking_allowed(False):
        await store.save(RUN, checkpoint(1, results(1)))
        assert (await store.load_latest(RUN)).sequence == 1


def test_damage_is_noticed(store, query, url):
    store.runs.save(RUN, checkpoint(1, results(1, 2)))
    query('UPDATE step_results SET document = \'{"path": "step-1", "duration_ms": 0}\' WHERE position = 1')
    with pytest.raises(FlowckptError, match="digest"):
        store.runs.load_latest(RUN)
    query("ALTER TABLE blobs SET UNLOGGED")
    findings = store.runs.check(None)
    assert [finding.severity for finding in findings] == ["corrupt", "corrupt"]
    assert "blobs" in findings[0].detail


def test_a_socket_that_broke_without_a_trace_on_its_connection_is_replaced(store, query, monkeypatch):
    """As psycopg says it of a socket that the kernel has closed, before libpq has noticed."""
    store.runs.save(RUN, checkpoint(1))
    broken = []

    def breaks(connection, addition):
        if not broken:
            broken.append(connection)
            raise psycopg.OperationalError("connection socket closed")
        return add(connection, addition)

    add = database_module.add
    monkeypatch.setattr(database_module, "add", breaks)
    store.runs.save(RUN, checkpoint(2))
    assert broken[0].closed, "nobody may get it again"
    assert query("SELECT count(*) FROM checkpoints") == [(2,)]


def test_live_notes_of_many_runs_take_one_transaction(store, monkeypatch):
    database, writes = store.runs.database, []
    for number in range(20):
        store.runs.acquire(f"run-{number}")
    write = database.write
    monkeypatch.setattr(database, "write", lambda *given: (writes.append(given[1]), write(*given)))
    notes = {f"run-{number}": b"[%d]" % number for number in range(20)}
    store.note_live_all(notes)
    assert writes == ["note"]
    assert {run: store.runs.live_note(run) for run in notes} == notes
