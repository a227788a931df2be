"""Runs are found by an index, on both databases: as many as the limit asks for are read, and no others."""

from __future__ import annotations

import contextlib
import json
import re
import sqlite3
from datetime import datetime

import attrs
import psycopg
import pytest

from benchmarks.filling import TEMPLATE, fill_postgres, fill_sqlite, run_id, save_template
from benchmarks.scale import FILTERS
from flowckpt.core.records import Reason, Status
from flowckpt.core.records.listing import RunFilter
from flowckpt.errors import SettingError
from flowckpt.stores import PostgresCheckpointStore, SqliteCheckpointStore
from flowckpt.stores.postgres.database import convert_placeholders
from flowckpt.stores.sql import reader
from flowckpt.stores.sql.reader import select_runs
from flowckpt.testing.contract import checkpoint, results

pytestmark = pytest.mark.usefixtures("in_place")

MANY = 4_000
BEHIND = {"from the top": None, "further down": ("2026-01-01T00:50:00.000000Z", 3_000)}


class Sqlite:
    def __init__(self, tmp_path):
        self._file = tmp_path / "runs.db"
        self.store = SqliteCheckpointStore(self._file)

    def query(self, statement, parameters=()):
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            return connection.execute(statement, parameters).fetchall()

    def fill(self):
        with contextlib.closing(sqlite3.connect(self._file, isolation_level=None)) as connection:
            fill_sqlite(connection, MANY)

    def rows_of_tables(self, statement, parameters):
        """Return how each table is read."""
        plan = [row[3] for row in self.query(f"EXPLAIN QUERY PLAN {statement}", parameters)]
        return [
            line for line in plan if re.match(r"(SCAN|SEARCH) (TABLE )?(r|t|c|a|o|runs|run_tags|checkpoints)\b", line)
        ]

    def assert_by_index(self, statement, parameters):
        read = self.rows_of_tables(statement, parameters)
        assert len(read) >= 3
        assert all(line.startswith("SEARCH") for line in read), read

    def reopen(self):
        self.store.close()
        self.store = SqliteCheckpointStore(self._file)

    def close(self):
        self.store.close()


class Postgres:
    def __init__(self, postgres, database):
        self._dsn = postgres.dsn(database)
        self._url = f"{postgres.url(database)}?allow_unsafe=true"
        self.store = PostgresCheckpointStore(self._url)
        self.store.runs.list_runs()  # makes the tables

    def query(self, statement, parameters=()):
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SET search_path = flowckpt")
            cursor = connection.execute(
                statement if isinstance(statement, bytes) else convert_placeholders(statement), parameters
            )
            return cursor.fetchall() if cursor.description else []

    def fill(self):
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SET search_path = flowckpt")
            fill_postgres(connection, MANY)

    def assert_by_index(self, statement, parameters):
        [(plan,)] = self.query(f"EXPLAIN (FORMAT JSON) {statement}", parameters)
        nodes = [*walk((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])]
        assert any("Index" in node["Node Type"] for node in nodes)
        assert [node for node in nodes if node["Node Type"] == "Seq Scan"] == []
        most = max(node["Plan Rows"] for node in nodes if "Sort" in node["Node Type"])
        print(
            statement, [(n["Node Type"], n["Plan Rows"], n.get("Relation Name"), n.get("Index Name")) for n in nodes]
        ) if most > 250 else 0
        assert most <= 5 * 50  # the newest of each status, and never all that stand so

    def reopen(self):
        self.store.close()
        self.store = PostgresCheckpointStore(self._url)

    def close(self):
        self.store.close()


def walk(node):
    yield node
    for each in node.get("Plans", ()):
        yield from walk(each)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    if request.param == "sqlite":
        made = Sqlite(tmp_path)
    else:
        made = Postgres(request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database"))
    yield made
    made.close()


def ids_of(infos):
    return [info.workflow_id for info in infos]


def ids(store, **wanted):
    return [info.workflow_id for info in store.runs.find_runs(RunFilter(**wanted))]


def save(store, run, reason=Reason.COMPLETED, **fields):
    attempt = store.runs.acquire(run, take_over=False).attempt
    store.runs.save(run, checkpoint(1, results("a"), reason=reason, attempt=attempt, **fields))
    store.runs.release(run)


def test_each_filter_of_a_list_is_answered_by_an_index_and_finds_what_reading_all_would_find(database):
    save_template(database.store)
    database.fill()
    everything = database.store.runs.list_runs()
    assert len(everything) == MANY + 1
    for name, wanted in FILTERS.items():
        for behind in BEHIND.values():
            database.assert_by_index(*select_runs(wanted, behind, 50))
        found = database.store.runs.find_runs(wanted)
        assert len(found) == 50, name
        assert [info.workflow_id for info in found] == [info.workflow_id for info in wanted.of(everything)], name
        before = found[-1].started_at, found[-1].workflow_id
        followed = attrs.evolve(wanted, before=before)
        assert ids_of(database.store.runs.find_runs(followed)) == ids_of(followed.of(everything)), name
    for text in ("0123", "RUN", "%", "no such"):
        wanted = RunFilter(text=text, limit=60)
        found = database.store.runs.find_runs(wanted)
        assert ids_of(found) == ids_of(wanted.of(everything)), text
    assert [*database.store.runs.load_latest(run_id(MANY // 2)).step_results] != []
    assert database.store.runs.check(TEMPLATE)[0].severity == "ok"
    # A copy has times and a status of its own in its row, which no checkpoint of it says.
    assert database.store.runs.check(run_id(MANY // 2))[0].severity == "corrupt"


def test_pages_join_without_a_gap_and_without_a_repetition_also_where_all_were_started_at_once(database, monkeypatch):
    monkeypatch.setattr(reader, "_SMALLEST", 2)
    monkeypatch.setattr(reader, "_LARGEST", 3)
    names = [f"run-{number}" for number in range(8)]
    for name in names:
        save(database.store, name, metadata={"tags": {"team": "data"}})
    for wanted in ({}, {"workflow": "etl"}, {"tags": [("team", "data")]}, {"tags": [("team", None)]}):
        assert sorted(ids(database.store, **wanted)) == names
        assert len(ids(database.store, limit=7, **wanted)) == 7


def test_a_crashed_run_behind_many_live_ones_is_found(database, monkeypatch):
    monkeypatch.setattr(reader, "_SMALLEST", 2)
    save(database.store, "died", Reason.STEP)
    for number in range(6):
        database.store.runs.acquire(f"live-{number}", take_over=False)
        database.store.runs.save(f"live-{number}", checkpoint(1, results("a"), reason=Reason.STEP))
    assert ids(database.store, statuses={"crashed"}, limit=1) == ["died"]
    assert len(ids(database.store, statuses={"running"}, limit=4)) == 4
    assert len(ids(database.store, statuses={"running", "crashed"})) == 7
    assert ids(database.store, statuses=set()) == []


def test_a_database_of_an_earlier_version_gets_its_tags_and_indexes_when_it_is_opened(database):
    tags = {"team": "data", "nul": "a\0b", "half": "\udc80", "long": "x" * 5_000}
    save(database.store, "one", metadata={"tags": tags})
    save(database.store, "two", metadata={"tags": {"team": "web"}})
    save(database.store, "three")
    for statement in (
        "DROP TABLE result_index",
        "DROP TABLE run_tags",
        "DROP INDEX runs_by_workflow",
        "DROP INDEX runs_by_status",
        "CREATE INDEX runs_by_status ON runs (status, started_at)",
        "UPDATE runs SET metadata = '[1]' WHERE workflow_id = 'three'",
        "DELETE FROM flowckpt_schema WHERE version > 2",
    ):
        database.query(statement)
    database.reopen()
    for name, value in tags.items():
        assert ids(database.store, tags=[(name, value)]) == ["one"], name
    assert sorted(ids(database.store, tags=[("team", None)])) == ["one", "two"]
    assert ids(database.store, workflow="etl", tags=[("team", "web")]) == ["two"]


def test_a_tag_that_a_later_checkpoint_has_changed_or_dropped_is_found_as_it_is_now(database):
    save(database.store, "one", metadata={"tags": {"team": "data", "old": "1"}})
    attempt = database.store.runs.acquire("one", take_over=False).attempt
    database.store.runs.save("one", checkpoint(2, results("a"), attempt=attempt, metadata={"tags": {"team": "web"}}))
    assert ids(database.store, tags=[("team", "web")]) == ["one"]
    assert ids(database.store, tags=[("team", "data")]) == ids(database.store, tags=[("old", None)]) == []
    database.store.runs.delete_checkpoint("one", "c2")
    assert ids(database.store, tags=[("team", "data"), ("old", "1")]) == ["one"]
    database.store.runs.clear("one")
    assert database.query("SELECT count(*) FROM run_tags") == [(0,)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"limit": True},
        {"statuses": ["done"]},
        {"before": "one"},
        {"before": (datetime(2026, 1, 1), "one")},
    ],
    ids=["limit 0", "limit True", "no status", "no place", "no time zone"],
)
def test_a_filter_that_cannot_be_is_refused(wrong):
    with pytest.raises(SettingError):
        RunFilter(**wrong)


def test_statuses_may_be_given_by_name():
    assert RunFilter(statuses=["failed"]).statuses == {Status.FAILED}
