"""`db_row` on real SQLite files: true, false, missing, malformed, hostile. Pitfall 32."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from flowckpt.evidence import (
    Evidence,
    EvidenceError,
    EvidenceType,
    EvidenceVerifier,
    Limits,
    db_row,
    file_sha256,
    register_database,
)
from tests.open_files import open_below

SCHEMA = """
CREATE TABLE loads (source TEXT, state TEXT, n INTEGER, share REAL, note TEXT, data BLOB, "odd ""name" TEXT, token TEXT);
INSERT INTO loads VALUES ('a.csv', 'done', 10, 0.5, NULL, x'00ff', 'x', 'tok-98765');
INSERT INTO loads VALUES ('b.csv', 'done', 20, 0.5, 'hm', x'', 'y', NULL);
INSERT INTO loads VALUES ('b.csv', 'failed', 21, 1.0, NULL, NULL, 'z', NULL);
CREATE TABLE "weird; table" (a);
INSERT INTO "weird; table" VALUES (1);
CREATE TABLE empty (a);
CREATE VIEW done AS SELECT source, n FROM loads WHERE state = 'done';
CREATE VIEW loud AS SELECT upper(source) AS source FROM loads;
CREATE VIEW endless AS
  WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT x FROM c;
CREATE VIEW product AS SELECT t.n FROM {} CROSS JOIN loads t;
""".format(" CROSS JOIN ".join(f"loads {letter}" for letter in "abcdefghijklmnopqrs"))


def make(path, schema=SCHEMA):
    connection = sqlite3.connect(path)
    connection.executescript(schema)
    connection.commit()
    connection.close()


@pytest.fixture
def shop(base):
    make(base / "shop.db")
    return base / "shop.db"


def snapshot(directory):
    """What is in a directory, to the byte: a check must leave no trace."""
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in directory.iterdir()
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("where", "values", "status"),
    [
        ({"source": "a.csv"}, {"state": "done"}, "verified"),
        ({"source": "a.csv"}, {}, "verified"),
        ({"SOURCE": "a.csv"}, {"State": "done"}, "verified"),
        ({"source": "a.csv"}, {"state": "failed"}, "failed"),
        ({"source": "c.csv"}, {"state": "done"}, "failed"),
        ({"source": "b.csv"}, {"state": "done"}, "failed"),  # the second row says otherwise
        ({"source": "b.csv", "n": 20}, {"state": "done"}, "verified"),
        ({"note": None}, {"data": None}, "failed"),
        ({"source": "a.csv"}, {"note": None}, "verified"),  # NULL is NULL
        ({"note": None, "n": 21}, {"state": "failed"}, "verified"),
        ({"source": "a.csv"}, {"note": "x"}, "failed"),
        ({"source": "b.csv", "n": 20}, {"note": None}, "failed"),
        ({"n": 10}, {"share": 0.5}, "verified"),
        ({"n": 21}, {"share": 1}, "verified"),
        ({"n": 10.0}, {"n": 10}, "verified"),
        ({"n": 10}, {"n": "10"}, "failed"),
        ({"n": 10}, {"n": True}, "failed"),
        ({"source": "a.csv"}, {"data": b"\x00\xff"}, "verified"),
        ({"source": "a.csv"}, {"data": "\x00"}, "failed"),
        ({'odd "name': "x"}, {"n": 10}, "verified"),
        ({}, {"share": 0.5}, "failed"),
        ({}, {}, "verified"),
        ({"none": 1}, {}, "failed"),
        ({"source": "a.csv"}, {"none": 1}, "failed"),
        ({"source": ["a.csv"]}, {}, "malformed"),
        ({"source": Decimal(1)}, {}, "malformed"),
        ({"source": datetime.now(UTC)}, {}, "malformed"),
        ({"n": 2**63}, {}, "malformed"),
        ({"source": "a.csv"}, {"n": datetime.now(UTC)}, "malformed"),
        ({"source": "a.csv"}, {"n": [1]}, "malformed"),
        ({"n": float("nan")}, {}, "malformed"),
        ({"source": "\ud800"}, {}, "malformed"),
        ({1: "a"}, {}, "malformed"),
        ([("source", "a.csv")], {}, "malformed"),
    ],
)
async def test_db_row(base, shop, verifier, where, values, status):
    claim = Evidence(
        EvidenceType.DB_ROW, "row", {"table": "loads", "where": where, "values": values}, {"db_path": "shop.db"}
    )
    before = snapshot(base)
    verdict = await verifier.verify_evidence(claim)
    assert verdict.status == status, verdict.error
    assert snapshot(base) == before


async def test_each_differing_row_is_named(shop, verifier):
    verdict = await verifier.verify_evidence(db_row("shop.db", "loads", {}, {"state": "done", "n": 20}))
    assert verdict.error == "2 of 3 matching rows of 'loads' differ: loads row 1: n is 10, not 20"
    assert verdict.details == (
        "loads row 1: n is 10, not 20",
        "loads row 3: state is 'failed', not 'done'; n is 21, not 20",
    )


# --- hostile: names --------------------------------------------------------------------------------------------------

NAMES = [
    "(SELECT 1 AS source)",
    "loads; DROP TABLE loads",
    "loads--",
    "loads WHERE 1=1 --",
    'loads" UNION SELECT * FROM sqlite_master --',
    "loads' OR '1'='1",
    "main.loads",
    "temp.loads",
    "sqlite_master",
    "sqlite_schema",
    "sqlite_temp_master",
    "pragma_table_info('loads')",
    "pragma_database_list",
    "loads JOIN empty",
    "json_each('[1]')",
    "generate_series(1, 9)",
    '"loads"',
    "[loads]",
    "`loads`",
    " loads",
    "loads\0",
    "*",
    "1",
    "löads",
]


@pytest.mark.parametrize("name", NAMES)
async def test_a_table_is_a_name_of_the_catalogue_or_nothing(base, shop, verifier, name):
    before = snapshot(base)
    claim = Evidence(EvidenceType.DB_ROW, "row", {"table": name, "where": {}}, {"db_path": "shop.db"})
    verdict = await verifier.verify_evidence(claim)
    assert (verdict.verified, verdict.status) == (False, "failed"), verdict.error
    assert "has no table" in verdict.error
    assert snapshot(base) == before


@pytest.mark.parametrize("place", ["where", "values"])
@pytest.mark.parametrize(
    "name",
    ["1=1 OR source", 'source" OR "1', "rowid", "oid", "*", "count(*)", "(SELECT 1)", "loads.source", "source IS NULL; --",
     "", "true", "'source'", "sqlite_version()", "current_timestamp"],
)  # fmt: skip
async def test_a_column_is_a_name_of_the_catalogue_or_nothing(shop, verifier, place, name):
    facts = {"where": {}, "values": {}, place: {name: "source"}}
    claim = Evidence(EvidenceType.DB_ROW, "row", {"table": "loads", **facts}, {"db_path": "shop.db"})
    verdict = await verifier.verify_evidence(claim)
    assert (verdict.status, "has no column" in verdict.error) == ("failed", True), verdict.error


@pytest.mark.parametrize("table", ["", None, 1, b"loads", ["loads"], "\ud800"])
async def test_a_table_that_is_no_text_is_malformed(shop, verifier, table):
    claim = Evidence(EvidenceType.DB_ROW, "row", {"table": table}, {"db_path": "shop.db"})
    assert (await verifier.verify_evidence(claim)).status == "malformed"


async def test_odd_names_that_exist_are_right(shop, verifier):
    assert (await verifier.verify_evidence(db_row("shop.db", "weird; table", {"a": 1}))).verified
    assert (await verifier.verify_evidence(db_row("shop.db", "done", {"source": "a.csv"}, {"n": 10}))).verified


@pytest.mark.parametrize("value", ["' OR 1=1 --", "a.csv'; DROP TABLE loads; --", "%", "_", "?", ":source", "\0"])
async def test_values_are_bound(shop, verifier, value):
    assert (await verifier.verify_evidence(db_row("shop.db", "loads", {"source": value}))).status == "failed"


@pytest.mark.parametrize(("view", "column"), [("loud", "source"), ("endless", "x")])
async def test_a_view_that_does_more_than_read_is_refused(shop, verifier, view, column):
    verdict = await verifier.verify_evidence(db_row("shop.db", view, {}, {column: 1}))
    assert verdict.status == "refused", verdict.error


async def test_a_virtual_table_is_refused(base, verifier):
    make(base / "v.db", "CREATE VIRTUAL TABLE t USING fts5(a); INSERT INTO t VALUES ('x');")
    assert (await verifier.verify_evidence(db_row("v.db", "t", {"a": "x"}))).status == "refused"


async def test_an_endless_query_ends(base, shop):
    verifier = EvidenceVerifier(base, limits=Limits(query_seconds=0.1))
    began = time.monotonic()
    verdict = await verifier.verify_evidence(db_row("shop.db", "product", {"n": 99}))
    assert verdict.status == "timed_out"
    assert time.monotonic() - began < 20


async def test_endless_rows_end(base, shop):
    verifier = EvidenceVerifier(base, limits=Limits(query_seconds=0.1))
    assert (await verifier.verify_evidence(db_row("shop.db", "product", {}, {"n": 10}))).status == "timed_out"


async def test_a_huge_value_is_refused(base):
    make(base / "big.db", "CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(5000000));")
    verifier = EvidenceVerifier(base, limits=Limits(value_bytes=1_000_000))
    assert (await verifier.verify_evidence(db_row("big.db", "t", {}, {"a": b""}))).status == "refused"


# --- hostile: paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["odd?mode=rwc", "odd#fragment", "odd%3Fmode=rwc", "a&vfs=unix-none", "sp ace", "ünïcode.db", "q'uote\"", "?", "%00",
     "file:x", ":memory:", "a\\b", "new\nline"],
)  # fmt: skip
async def test_an_odd_path_is_a_path_and_carries_no_options(base, verifier, name):
    verdict = await verifier.verify_evidence(db_row(name, "loads", {"source": "a.csv"}))
    assert verdict.status == "failed"
    assert os.listdir(base) == []  # a missing database is not made
    shop = base / "plain.db"
    make(shop)
    shop.rename(base / name)
    assert (await verifier.verify_evidence(db_row(name, "loads", {"source": "a.csv"}))).verified
    assert os.listdir(base) == [name]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("../outside/shop.db", "refused"),
        ("link-out.db", "refused"),
        ("/etc/passwd", "refused"),
        ("./dir", "refused"),
        ("./fifo", "refused"),
        ("missing.db", "failed"),
        ("missing/shop.db", "failed"),
        ("empty.db", "failed"),
        ("text.db", "cannot_check"),
        ("torn.db", "cannot_check"),
        ("a\0b", "refused"),
    ],
)
@pytest.mark.timeout(120)
async def test_what_is_no_database_is_no_proof(base, shop, verifier, path, status):
    shutil.copy(shop, base.parent / "outside" / "shop.db")
    (base / "link-out.db").symlink_to("../outside/shop.db")
    (base / "dir").mkdir()
    os.mkfifo(base / "fifo")
    (base / "empty.db").touch()
    (base / "text.db").write_text("this is not a database, " * 100)
    (base / "torn.db").write_bytes(shop.read_bytes()[:4096] + os.urandom(8192))
    verdict = await verifier.verify_evidence(db_row(path, "loads", {"source": "a.csv"}, {"state": "done"}))
    assert (verdict.verified, verdict.status) == (False, status), verdict.error


@pytest.mark.parametrize("metadata", [{}, {"db_path": ""}, {"db_path": 3}, {"database": "shop.db"}, {"database": None}])
async def test_a_claim_that_names_no_database_is_malformed(shop, verifier, metadata):
    claim = Evidence(EvidenceType.DB_ROW, "row", {"table": "loads"}, metadata)
    assert (await verifier.verify_evidence(claim)).status == "malformed"


async def test_a_database_of_a_kind_unknown_here_cannot_be_checked(verifier):
    verdict = await verifier.verify_evidence(db_row("oracle://host/db", "loads"))
    assert verdict.status == "cannot_check"


async def test_the_sqlite_scheme_is_the_file(shop, verifier):
    for address in ("sqlite:///shop.db", f"sqlite:///{shop}"):
        verdict = await verifier.verify_evidence(db_row(address, "loads", {"source": "a.csv"}))
        assert verdict.verified, verdict.error


def test_a_registered_path_that_can_mean_two_files_is_refused():
    with pytest.raises(EvidenceError, match="sqlite:///shop.db"):
        register_database("shop", "sqlite:///shop.db")


def of_a_connection():
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        return db_row(connection, "loads")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (of_a_connection, r"is not a database \(sqlite3.Connection\)"),
        (
            lambda: db_row("shop.db", "loads", "state = 'done'"),
            "where=\"state = 'done'\" does not map columns to values",
        ),
        (lambda: db_row("shop.db", "loads", None, ["done"]), r"values=\['done'\] does not map columns to values"),
        (lambda: file_sha256(7), "7 is not a path"),
    ],
)
def test_a_claim_that_cannot_be_one_is_refused_where_it_is_written(make, said):
    with pytest.raises(EvidenceError, match=said) as caught:
        make()
    assert caught.value.remedy.startswith("Write ")


def test_a_url_with_a_password_is_refused_before_it_is_recorded():
    with pytest.raises(EvidenceError) as caught:
        db_row("postgresql://me:hunter22@host/db", "loads")
    assert "hunter22" not in str(caught.value)


# --- other writers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["at rest", "open", "copied", "killed"])
async def test_a_database_in_wal_mode_is_read_without_a_trace(base, verifier, state):
    connection = sqlite3.connect(base / "wal.db")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE t (a)")
    connection.execute("INSERT INTO t VALUES (1)")
    connection.commit()
    if state == "at rest":
        connection.close()
    if state in ("copied", "killed"):
        (base.parent / "copy").mkdir()
        for name in ("wal.db", "wal.db-wal", "wal.db-shm")[: 2 if state == "copied" else 3]:
            shutil.copy(base / name, base.parent / "copy" / name)
        verifier = EvidenceVerifier(base.parent / "copy")
        base = base.parent / "copy"
    before = sorted(os.listdir(base))
    verdict = await verifier.verify_evidence(db_row("wal.db", "t", {"a": 1}))
    assert sorted(os.listdir(base)) == before
    assert verdict.verified, verdict.error
    connection.close()


async def test_a_database_whose_writer_was_killed_is_read_as_before_its_transaction_and_without_a_trace(base, verifier):
    killed_in_a_transaction(base / "shop.db")
    before = {each.name: each.read_bytes() for each in base.iterdir()}
    verdict = await verifier.verify_evidence(db_row("shop.db", "loads", {}, {"state": "done"}))
    assert verdict.verified, verdict.error
    assert {each.name: each.read_bytes() for each in base.iterdir()} == before


async def test_a_killed_writer_of_a_database_too_large_to_copy_is_named_with_the_command_that_helps(base, monkeypatch):
    killed_in_a_transaction(base / "shop.db")
    verifier = EvidenceVerifier(base, limits=Limits(query_seconds=1e-9))
    assert (await verifier.verify_evidence(db_row("shop.db", "loads"))).status == "timed_out"
    monkeypatch.setattr(tempfile, "tempdir", str(base / "shop.db"))  # no directory, so nothing can be written there
    verdict = await EvidenceVerifier(base).verify_evidence(db_row("shop.db", "loads"))
    assert verdict.status == "cannot_check", verdict
    assert "sqlite3 shop.db .tables" in verdict.error, verdict.error


def killed_in_a_transaction(database):
    """Leave a database with one committed row, `done`, and the journal of a killed transaction that replaced it."""
    program = """if True:
        import os, signal, sqlite3, sys
        shop = sqlite3.connect(sys.argv[1])
        shop.execute("CREATE TABLE loads (source, state)")
        shop.execute("INSERT INTO loads VALUES ('a.csv', 'done')")
        shop.commit()
        shop.execute("PRAGMA cache_size = 5")
        shop.execute("UPDATE loads SET state = 'half'")
        shop.executemany("INSERT INTO loads VALUES (?, 'half')", (("x" * 1000,) for _ in range(1000)))
        os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", program, database], check=False)
    assert Path(f"{database}-journal").stat().st_size > 0


async def test_a_writer_that_holds_the_database_is_not_waited_for_long(base, shop):
    connection = sqlite3.connect(shop, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    verifier = EvidenceVerifier(base, limits=Limits(query_seconds=0.2))
    began = time.monotonic()
    verdict = await verifier.verify_evidence(db_row("shop.db", "loads", {"source": "a.csv"}))
    assert verdict.status in ("cannot_check", "timed_out")
    assert time.monotonic() - began < 4.5
    connection.close()


@pytest.mark.parametrize("path", ["shop.db", "text.db", "missing.db"])
async def test_no_connection_is_left_open(base, shop, verifier, path):
    (base / "text.db").write_text("no database " * 100)
    for claim in (db_row(path, "loads", {"none": 1}), db_row(path, "product", {}, {"n": -1}), db_row(path, "loud")):
        fast = EvidenceVerifier(base, limits=Limits(query_seconds=0.05))
        await fast.verify_evidence(claim)
    assert open_below(base) == []


# --- secrets ---------------------------------------------------------------------------------------------------------


async def test_a_secret_value_is_compared_and_neither_recorded_nor_shown(shop, verifier):
    right = db_row("shop.db", "loads", {"source": "a.csv"}, {"note": None, "state": "done"}, secret_columns=["state"])
    assert (await verifier.verify_evidence(right)).verified
    assert "done" not in str(right.to_document())
    wrong = db_row("shop.db", "loads", {"source": "a.csv"}, {"state": "dpne-guess"}, secret_columns=["state"])
    verdict = await verifier.verify_evidence(wrong)
    assert verdict.status == "failed"
    told = f"{verdict!r} {verdict.to_document()} {wrong.to_document()}"
    assert "guess" not in told
    assert "is 'done'" not in told


async def test_columns_with_the_name_of_a_secret_are_hidden(shop, verifier):
    claim = db_row("shop.db", "loads", {"source": "a.csv"}, {"token": "tok-00000"})
    verdict = await verifier.verify_evidence(claim)
    assert verdict.status == "failed"
    assert "tok-" not in f"{verdict!r} {verdict.to_document()}"


@pytest.mark.parametrize(
    ("recorded", "found", "expected"),
    [("a", "a", True), ("a", "b", False), (1, 1.0, True), (True, 1, True), (1, "1", False), (None, None, True),
     (None, "None", False), (b"a", "a", False), (0.5, 0.5, True), (float("inf"), float("inf"), True)],
)  # fmt: skip
def test_secrets_compare_as_their_values_do(recorded, found, expected):
    from flowckpt.evidence.documents import digest_of_secret, matches_digest

    assert matches_digest(digest_of_secret(recorded), found) is expected
    assert digest_of_secret(recorded) != digest_of_secret(recorded)  # salted
