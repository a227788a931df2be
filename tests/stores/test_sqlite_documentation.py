"""The queries of the page about the schema run, on both databases; its tables and views are those that there are."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import psycopg
import pytest

from flowckpt.core.records import Reason, StepError, StepResult
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.stores import PostgresCheckpointStore, SqliteCheckpointStore
from flowckpt.testing.contract import checkpoint, results

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "sql-schema.md").read_text("utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
EMPTY_HERE = ("HAVING count(*) > 3",)
CLAIM = {
    "pack": {"evidence": [{"evidence_type": "file_sha256", "description": "the file", "expected": {"path": "x"}}]},
    "verdicts": [{"status": "failed", "verified_at": "2026-01-01T12:00:00Z", "error": "it is missing"}],
}


def fill(store):
    with blocking_allowed(True):
        steps = [
            *results("x" * 70_000),
            StepResult("bad", success=False, error=StepError("ValueError", "no"), duration_ms=7),
            StepResult("claims", evidence=CLAIM, argument_values={"source": "orders.csv"}),
        ]
        store.runs.acquire("nightly", take_over=False)
        for sequence in (1, 2, 3):
            store.runs.save("nightly", checkpoint(sequence, steps[:sequence]))
        store.runs.save("other", checkpoint(1, reason=Reason.FAILED))


@pytest.fixture
def ask_sqlite(tmp_path):
    store = SqliteCheckpointStore(tmp_path / "runs.db")
    fill(store)
    connection = sqlite3.connect(store.path)
    yield lambda query: connection.execute(query)
    connection.close()
    store.close()


@pytest.fixture
def ask_postgres(postgres, postgres_database):
    store = PostgresCheckpointStore(postgres.url(postgres_database), allow_unsafe=True)
    fill(store)
    with psycopg.connect(postgres.dsn(postgres_database), autocommit=True) as connection:
        connection.execute("SET search_path = flowckpt")
        yield connection.execute
    store.close()


@pytest.fixture(params=["sqlite", "postgres"])
def ask(request):
    return request.getfixturevalue(f"ask_{request.param}")


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: " ".join(query.split())[:40])
def test_every_query_of_the_page_runs_and_finds_something(ask, query):
    cursor = ask(query.rstrip().rstrip(";"))
    assert bool(cursor.fetchall()) is not any(part in query for part in EMPTY_HERE)


def test_the_page_names_every_table_view_and_column(ask_sqlite):
    there = ask_sqlite("SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
    assert len(there) > 10
    for name, kind in there:
        text = re.search(rf"### {name}\n(.*?)(?=\n##)", PAGE, re.DOTALL) if kind == "table" else re.search("(.*)", PAGE)
        assert text is not None, name
        assert f"`{name}`" in PAGE or f"### {name}\n" in PAGE
        if kind == "table":
            for _, column, *_ in ask_sqlite(f"PRAGMA table_info({name})").fetchall():
                assert f"`{column}`" in text[1], f"{name}.{column}"


def test_both_databases_have_the_same_tables_views_and_columns(ask_sqlite, ask_postgres):
    mine = {
        (table, column)
        for (table,) in ask_sqlite("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
        for _, column, *_ in ask_sqlite(f"PRAGMA table_info({table})").fetchall()
    }
    theirs = ask_postgres(
        "SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_schema = 'flowckpt'"
    ).fetchall()
    assert mine == set(theirs)
