"""`db_row` on a real PostgreSQL server: true, false, missing, malformed, hostile; and what it must not do."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
import uuid
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from datetime import time as clock_time
from decimal import Decimal
from multiprocessing import get_context

import psycopg
import pytest

from flowckpt.evidence import (
    Evidence,
    EvidenceError,
    EvidencePack,
    EvidenceType,
    EvidenceVerifier,
    Limits,
    Moment,
    db_row,
)
from flowckpt.evidence.checks.base import MalformedClaimError, RefusedClaimError
from flowckpt.evidence.databases import postgres_url
from tests.ports import free_port
from tests.postgres import SUPERUSER

KEY = uuid.UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2026, 11, 21, 12, 0, 0, 250_000, UTC)

SCHEMA = """
CREATE TYPE mood AS ENUM ('glad', 'sad');
CREATE DOMAIN amount AS numeric(10, 2) CHECK (value > 0);
CREATE DOMAIN small_amount AS amount;
CREATE TABLE loads (
  source text, state varchar(20), n integer, big bigint, share double precision, single real, price numeric(10, 2),
  ok boolean, note text, data bytea, key uuid, day date, at timestamptz, plain timestamp, span interval, hour time,
  doc jsonb, raw json, mood mood, code char(6), cost small_amount, tags text[], counts int[], net inet,
  "odd ""name" text, "100%" text, "Größe; {x}" text, token text, pin_code numeric
);
INSERT INTO loads VALUES (
  'a.csv', 'done', 10, 9007199254740993, 0.1, 0.1, 10.50, true, NULL, '\\x00ff', '12345678-1234-5678-1234-567812345678',
  '2026-11-21', '2026-11-21 13:00:00.25+01', '2026-11-21 12:00', '1 day 02:00', '08:30',
  '{"a": [1, 2.5, null], "b": {"c": true}}', 'null', 'glad', 'ab', 7.25, '{x,y,NULL}', '{1,2}', '10.0.0.1',
  'x', 'p', 'g', 'tok-98765', 471108154
);
INSERT INTO loads (source, state, n, share) VALUES ('b.csv', 'done', 20, 0.5), ('b.csv', 'failed', 21, 'infinity');
CREATE TABLE "weird; table" (a int); INSERT INTO "weird; table" VALUES (1);
CREATE TABLE empty (a int);
CREATE TABLE "Upper" (a int); INSERT INTO "Upper" VALUES (1);
CREATE TABLE "dotted.name" (a int); INSERT INTO "dotted.name" VALUES (1);
CREATE VIEW done AS SELECT source, n FROM loads WHERE state = 'done';
CREATE MATERIALIZED VIEW kept AS SELECT source, n FROM loads;
CREATE SCHEMA other; CREATE TABLE other.loads (state text); INSERT INTO other.loads VALUES ('elsewhere');
CREATE SCHEMA hidden; CREATE TABLE hidden.unseen (a int); INSERT INTO hidden.unseen VALUES (1);
CREATE SCHEMA "dotted"; CREATE TABLE dotted.name (a int);
CREATE TABLE parted (a int) PARTITION BY LIST (a);
CREATE TABLE part PARTITION OF parted FOR VALUES IN (1); INSERT INTO parted VALUES (1);
CREATE TABLE scribbles (a int);
CREATE SEQUENCE numbers;
CREATE FUNCTION scribble() RETURNS int LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO scribbles VALUES (1); RETURN 1; END $$;
CREATE FUNCTION sneak() RETURNS int LANGUAGE plpgsql AS
  $$ BEGIN PERFORM set_config('transaction_read_only', 'off', true); INSERT INTO scribbles VALUES (1); RETURN 1; END $$;
CREATE VIEW scribbling AS SELECT scribble() AS a;
CREATE VIEW sneaking AS SELECT sneak() AS a;
CREATE VIEW counting AS SELECT nextval('numbers') AS a;
CREATE VIEW sleeping AS SELECT pg_sleep(60)::text AS a;
CREATE VIEW endless AS SELECT x AS a FROM generate_series(1, 1000000000000) x;
CREATE VIEW failing AS SELECT token::int AS a FROM loads WHERE source = 'a.csv';
CREATE VIEW raising AS SELECT 1 / (n - 10) AS a FROM loads;
CREATE TABLE large (a text, b bytea); INSERT INTO large VALUES (repeat('x', 2000000), decode(repeat('00', 2000000), 'hex'));
CREATE ROLE reader LOGIN PASSWORD 'hunter22-hunter22'; CREATE ROLE stranger LOGIN;
GRANT SELECT ON loads TO reader;
ALTER ROLE reader SET search_path = other, public;
"""


@pytest.fixture(scope="module")
def server(postgres):
    name = postgres.make_database()
    postgres.shop = name
    postgres.execute(SCHEMA.replace("\\\\", "\\"), name)
    yield postgres
    postgres.drop_database(name)
    postgres.execute("DROP ROLE reader; DROP ROLE stranger")


@pytest.fixture
def shop(server):
    """The URL of the database."""
    return server.url(server.shop)


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch):
    """No test names a server for another one."""
    monkeypatch.setattr(postgres_url, "_written", set())
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)


def sessions(server) -> int:
    found = server.execute(
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{server.shop}' AND pid <> pg_backend_pid()"
    )
    return found[0][0]


def no_session_is_left(server) -> bool:
    """Whether all sessions end by themselves: the server notices a closed connection a moment later."""
    end = time.monotonic() + 60
    while sessions(server) and time.monotonic() < end:
        time.sleep(0.02)
    return sessions(server) == 0


# --- the table -------------------------------------------------------------------------------------------------------

A = {"source": "a.csv"}

ROWS = [
    (A, {"state": "done"}, "verified"),
    (A, {}, "verified"),
    ({}, {}, "verified"),
    (A, {"state": "failed"}, "failed"),
    ({"source": "c.csv"}, {"state": "done"}, "failed"),
    ({"source": "b.csv"}, {"state": "done"}, "failed"),  # the second row says otherwise
    ({"source": "b.csv", "n": 20}, {"state": "done"}, "verified"),
    ({}, {"state": "done"}, "failed"),
    ({"note": None, "n": 21}, {"state": "failed"}, "verified"),  # NULL is NULL
    ({"note": None}, {"state": "done"}, "failed"),
    (A, {"note": None}, "verified"),
    (A, {"note": ""}, "failed"),
    (A, {"state": None}, "failed"),
    ({"none": 1}, {}, "failed"),
    (A, {"none": 1}, "failed"),
    ({"SOURCE": "a.csv"}, {}, "failed"),  # a name is the one of the catalogue
    ({"n": 10.0}, {"n": 10}, "verified"),
    ({"n": Decimal(10)}, {"n": Decimal("10.0")}, "verified"),
    ({"n": 10.4}, {}, "failed"),  # and not rounded
    ({"n": 2**31}, {}, "failed"),
    ({"n": 2**70}, {}, "failed"),
    ({"n": "10"}, {}, "failed"),
    ({"n": True}, {}, "failed"),
    ({"n": 10}, {"n": "10"}, "failed"),
    ({"n": 10}, {"n": True}, "failed"),
    ({"source": 10}, {}, "failed"),
    ({"big": 9007199254740993}, {"big": 9007199254740993}, "verified"),
    ({"big": 9007199254740992.0}, {}, "failed"),
    (A, {"big": 9007199254740992.0}, "failed"),
    ({"share": 0.1}, {"share": 0.1, "single": 0.1}, "verified"),
    ({"single": 0.1}, {"share": Decimal("0.1")}, "verified"),
    ({"single": 0.1000000001}, {}, "failed"),
    ({"share": float("inf")}, {"n": 21}, "verified"),
    ({"share": 1e-320}, {}, "failed"),
    ({"price": 10.5}, {"price": Decimal("10.5")}, "verified"),
    ({"price": Decimal("10.50")}, {"price": 10.5}, "verified"),
    ({"price": Decimal("10.501")}, {}, "failed"),
    ({"price": Decimal("1E+400")}, {}, "failed"),
    ({"cost": 7.25}, {"cost": Decimal("7.25")}, "verified"),  # a domain over a domain
    ({"cost": -1}, {}, "failed"),
    ({"ok": True}, {"ok": True}, "verified"),
    ({"ok": 1}, {}, "failed"),
    (A, {"ok": 1}, "failed"),
    (A, {"ok": False}, "failed"),
    ({"data": b"\x00\xff"}, {"data": b"\x00\xff"}, "verified"),
    (A, {"data": "\x00"}, "failed"),
    ({"key": KEY}, {"key": KEY}, "verified"),
    ({"key": str(KEY)}, {}, "failed"),
    ({"day": date(2026, 11, 21)}, {"day": date(2026, 11, 21)}, "verified"),
    ({"day": NOON}, {}, "failed"),
    (A, {"day": NOON}, "failed"),
    ({"at": NOON}, {"at": NOON.astimezone(timezone(timedelta(hours=-5)))}, "verified"),
    ({"at": NOON.replace(tzinfo=None)}, {}, "failed"),
    (A, {"at": NOON.replace(tzinfo=None)}, "failed"),
    ({"plain": datetime(2026, 11, 21, 12)}, {"plain": datetime(2026, 11, 21, 12)}, "verified"),
    ({"plain": datetime(2026, 11, 21, 12, tzinfo=UTC)}, {}, "failed"),
    ({"span": timedelta(hours=26)}, {"span": timedelta(days=1, hours=2)}, "verified"),
    ({"span": timedelta(hours=-26)}, {}, "failed"),
    ({"hour": clock_time(8, 30)}, {"hour": clock_time(8, 30)}, "verified"),
    ({"hour": clock_time(8, 30, tzinfo=UTC)}, {}, "failed"),
    ({"doc": {"b": {"c": True}, "a": [1, 2.5, None]}}, {"doc": {"a": [1.0, 2.5, None], "b": {"c": True}}}, "verified"),
    (A, {"doc": {"a": [1, 2.5, None], "b": {"c": 1}}}, "failed"),
    ({"doc": {"a": 1}}, {}, "failed"),
    (A, {"raw": None}, "failed"),  # JSON's null is there, and NULL is not
    ({"raw": None, "n": 10}, {}, "failed"),
    ({"doc": "text"}, {}, "failed"),
    ({"mood": "glad"}, {"mood": "glad"}, "verified"),
    ({"mood": "no such mood"}, {}, "failed"),
    ({"code": "ab"}, {"code": "ab"}, "verified"),
    ({"net": "10.0.0.1/32"}, {"net": "10.0.0.1/32"}, "verified"),
    (A, {"tags": ["x", "y", None], "counts": [1, 2]}, "verified"),
    (A, {"tags": ["x", "y"]}, "failed"),
    (A, {"counts": [1, True]}, "failed"),
    ({"tags": ["x"]}, {}, "malformed"),
    (
        {'odd "name': "x", "100%": "p", "Größe; {x}": "g"},
        {"100%": "p", "Größe; {x}": "g", 'odd "name': "x"},
        "verified",
    ),
    ({"source": "\0"}, {}, "failed"),
    ({"source": "\ud800"}, {}, "malformed"),
    ({"source": object}, {}, "malformed"),
    ({"source": (1,)}, {}, "malformed"),
    ({"n": float("nan")}, {}, "malformed"),
    ({"n": Decimal("sNaN")}, {}, "malformed"),
    (A, {"n": Decimal("sNaN")}, "failed"),
    ({"doc": {"a": float("nan")}}, {}, "malformed"),
    ({"doc": {"a": b"x"}}, {}, "malformed"),
    ({1: "a"}, {}, "malformed"),
    ([("source", "a.csv")], {}, "malformed"),
]


def claimed(url, where, values, table="loads"):
    postgres_url.register(url)
    return Evidence(EvidenceType.DB_ROW, "row", {"table": table, "where": where, "values": values}, {"database": url})


@pytest.mark.parametrize(("where", "values", "status"), ROWS)
async def test_db_row(shop, verifier, where, values, status):
    verdict = await verifier.verify_evidence(claimed(shop, where, values))
    assert verdict.status == status, verdict.error


async def test_each_differing_row_is_named(shop, verifier):
    verdict = await verifier.verify_evidence(db_row(shop, "loads", {}, {"state": "done", "n": 20}))
    assert verdict.error.startswith("2 of 3 matching rows of 'loads' differ: loads row ")
    assert len(verdict.details) == 2


async def test_no_claim_leaves_a_session(server, shop, verifier):
    before = sessions(server)
    for table, where, values in [
        ("loads", {}, {"n": 10}), ("loads", {"none": 1}, {}), ("nothing", {}, {}), ("failing", {}, {"a": 1}),
        ("scribbling", {}, {"a": 1}), ("large", {}, {"a": ""}), ("loads", {"source": 1}, {}),
    ]:  # fmt: skip
        assert not (await verifier.verify_evidence(claimed(shop, where, values, table))).verified
    assert before == 0
    assert no_session_is_left(server)


async def test_a_record_keeps_the_claim_and_a_later_process_verifies_it(shop, verifier, monkeypatch):
    claim = db_row(shop, "loads", {"at": NOON, "key": KEY}, {"price": Decimal("10.5")})
    recorded, report = await verifier.commit(EvidencePack([claim]))
    assert report.verified, report.reason
    document = json.loads(json.dumps(recorded.to_document()))
    monkeypatch.setattr(postgres_url, "_written", set())  # as in another process
    later = EvidencePack.from_document(document)
    report = await verifier.verify_evidence_pack(later)
    assert (report.outcome, report.verdicts[0].status) == ("cannot_tell", "refused")
    db_row(shop, "loads", {"at": NOON, "key": KEY}, {"price": Decimal("10.5")})  # the program runs again
    assert (await verifier.verify_evidence_pack(later)).verified


# --- tables and schemas ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "status"),
    [
        ("loads", "verified"),
        ("public.loads", "verified"),
        ("done", "verified"),
        ("kept", "verified"),
        ("parted", "verified"),
        ("other.loads", "verified"),
        ("hidden.unseen", "verified"),
        ("unseen", "failed"),  # not on the search path
        ("weird; table", "verified"),
        ("public.weird; table", "verified"),
        ("Upper", "verified"),
        ("upper", "failed"),
        ("UPPER", "failed"),
        ("dotted.name", "cannot_check"),  # there is a table of that name, and one of that schema
        ("public.dotted.name", "verified"),
        ("nowhere.loads", "failed"),
        (".loads", "failed"),
        ("empty", "failed"),
    ],
)
async def test_tables_and_schemas(shop, verifier, table, status):
    verdict = await verifier.verify_evidence(claimed(shop, {}, {}, table))
    assert verdict.status == status, verdict.error


async def test_the_search_path_of_the_role_counts(server, shop, verifier):
    server.execute("GRANT USAGE ON SCHEMA other TO reader; GRANT SELECT ON other.loads TO reader", server.shop)
    url = server.url(server.shop, "reader")
    assert (await verifier.verify_evidence(claimed(url, {}, {"state": "elsewhere"}))).verified
    assert (await verifier.verify_evidence(claimed(url, A, {"state": "done"}, "public.loads"))).verified


NAMES = [
    "(SELECT 1 AS source)", "loads; DROP TABLE loads", "loads--", "loads WHERE 1=1 --",
    'loads" UNION SELECT * FROM pg_authid --', "loads' OR '1'='1", "pg_authid", "pg_catalog.pg_authid",
    "information_schema.tables", "pg_stat_activity", "pg_ls_dir('/')", "generate_series(1, 9)", '"loads"', '"public"."loads"',
    "public.loads.loads", "shop.public.loads", "loads JOIN empty", "LOADS", " loads", "loads ", "loads\0", "*", "1", "%s",
    "%(table)s", "{}", "löads", "l" * 100, "loads AS l", "ONLY loads", "loads/**/", "E'loads'", "\\loads",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
async def test_a_table_is_a_name_of_the_catalogue_or_nothing(shop, verifier, name):
    verdict = await verifier.verify_evidence(claimed(shop, {}, {}, name))
    assert (verdict.status, "has no table" in verdict.error) == ("failed", True), verdict.error


@pytest.mark.parametrize("place", ["where", "values"])
@pytest.mark.parametrize(
    "name",
    ["1=1 OR source", 'source" OR "1', "ctid", "xmin", "tableoid", "*", "count(*)", "(SELECT 1)", "loads.source", "loads",
     "source IS NULL; --", "", "true", "'source'", "version()", "current_user", "%s", "source\0", "source::text"],
)  # fmt: skip
async def test_a_column_is_a_name_of_the_catalogue_or_nothing(shop, verifier, place, name):
    verdict = await verifier.verify_evidence(claimed(shop, **{"where": {}, "values": {}, place: {name: "source"}}))
    assert (verdict.status, "has no column" in verdict.error) == ("failed", True), verdict.error


@pytest.mark.parametrize("table", ["", None, 1, b"loads", ["loads"], "\ud800"])
async def test_a_table_that_is_no_text_is_malformed(shop, verifier, table):
    assert (await verifier.verify_evidence(claimed(shop, {}, {}, table))).status == "malformed"


@pytest.mark.parametrize(
    "value", ["' OR 1=1 --", "a.csv'; DROP TABLE loads; --", "%", "_", "?", "%s", "$1", "\\", "{}"]
)
async def test_values_are_bound(shop, verifier, value):
    assert (await verifier.verify_evidence(db_row(shop, "loads", {"source": value}))).status == "failed"


# --- only reading ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["scribbling", "sneaking", "counting"])
async def test_what_would_write_does_not(server, shop, verifier, view):
    verdict = await verifier.verify_evidence(claimed(shop, {}, {"a": 1}, view))
    assert not verdict.verified
    assert verdict.status in ("refused", "cannot_check"), verdict.error
    assert server.execute("SELECT count(*) FROM scribbles", server.shop) == [(0,)]
    assert server.execute("SELECT is_called FROM numbers", server.shop) == [(False,)]
    assert server.execute("SELECT scribble(); DELETE FROM scribbles RETURNING 1", server.shop)  # it can be written


async def test_a_foreign_table_is_refused(server, shop, verifier):
    server.execute(
        "CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; "
        "CREATE FOREIGN TABLE passwd (line text) SERVER files OPTIONS (filename '/etc/passwd')",
        server.shop,
    )
    assert (await verifier.verify_evidence(claimed(shop, {}, {}, "passwd"))).status == "refused"


async def test_rows_that_fail_are_no_proof_and_show_nothing(shop, verifier):
    verdict = await verifier.verify_evidence(claimed(shop, {}, {"a": 1}, "failing"))
    assert verdict.status == "cannot_check"
    assert "tok-" not in f"{verdict!r}"
    assert (await verifier.verify_evidence(claimed(shop, {}, {"a": 1}, "raising"))).status in ("cannot_check", "failed")


async def test_what_python_cannot_hold_is_no_proof(server, shop, verifier):
    server.execute("CREATE TABLE ends (day date); INSERT INTO ends VALUES ('infinity')", server.shop)
    assert (await verifier.verify_evidence(claimed(shop, {}, {"day": date.max}, "ends"))).status == "cannot_check"
    assert (await verifier.verify_evidence(claimed(shop, {"day": date.max}, {}, "ends"))).status == "failed"


@pytest.mark.parametrize("column", ["a", "b"])
async def test_a_huge_value_is_refused(base, shop, column):
    verifier = EvidenceVerifier(base, limits=Limits(value_bytes=1_000_000))
    verdict = await verifier.verify_evidence(claimed(shop, {}, {column: "x"}, "large"))
    assert verdict.status == "refused", verdict.error
    assert (await verifier.verify_evidence(claimed(shop, {}, {}, "large"))).verified


# --- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "values"), [("sleeping", {"a": "x"}), ("endless", {"a": 1}), ("endless", {"a": "x"})]
)
async def test_an_endless_query_ends(base, server, shop, table, values):
    verifier = EvidenceVerifier(base, limits=Limits(query_seconds=0.3))
    began = time.monotonic()
    verdict = await verifier.verify_evidence(claimed(shop, {}, values, table))
    assert verdict.status == "timed_out", verdict.error
    assert time.monotonic() - began < 30
    assert no_session_is_left(server)


async def test_a_locked_table_is_not_waited_for_long(base, server, shop):
    with psycopg.connect(server.dsn(server.shop)) as writer:
        writer.execute("LOCK TABLE loads IN ACCESS EXCLUSIVE MODE")
        verifier = EvidenceVerifier(base, limits=Limits(query_seconds=0.3))
        assert (await verifier.verify_evidence(claimed(shop, A, {"n": 10}))).status == "timed_out"


async def test_while_another_session_writes_to_the_table_no_row_is_no_proof_for_a_step_in_doubt(server, shop, verifier):
    claim = claimed(shop, {"source": "being written"}, {"n": 10})
    with psycopg.connect(server.dsn(server.shop)) as writer:
        writer.execute("INSERT INTO loads SELECT * FROM loads WHERE false")
        assert (await verifier.verify_evidence(claim)).status == "failed"
        verdict = await verifier.verify_evidence(claim, moment=Moment.IN_DOUBT)
        assert (verdict.status, "another session is writing to 'loads'" in verdict.error) == ("cannot_check", True)
        there = await verifier.verify_evidence(claimed(shop, A, {"n": 10}), moment=Moment.IN_DOUBT)
        assert there.status == "verified", there.error
    assert (await verifier.verify_evidence(claim, moment=Moment.IN_DOUBT)).status == "failed"


async def test_a_cancelled_verification_leaves_nothing(base, server, shop):
    verifier = EvidenceVerifier(base, limits=Limits(query_seconds=0.5))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await verifier.verify_evidence(claimed(shop, {}, {"a": "x"}, "sleeping"))
    assert no_session_is_left(server)


@pytest.mark.parametrize("moment", ["before", "during"])
async def test_a_server_that_hangs_is_not_waited_for_long(base, server, shop, moment):
    verifier = EvidenceVerifier(base, limits=Limits(query_seconds=1, network_seconds=1))
    began = time.monotonic()
    table, values = ("sleeping", {"a": "x"}) if moment == "during" else ("loads", {"n": 10})
    if moment == "before":
        server.pause()
    try:
        verification = asyncio.create_task(verifier.verify_evidence(claimed(shop, {}, values, table)))
        await asyncio.sleep(0.3)
        if moment == "during":
            server.pause()
        verdict = await verification
    finally:
        server.resume()
    assert verdict.status == "timed_out", verdict.error
    assert time.monotonic() - began < 60
    assert no_session_is_left(server)


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_server_that_is_down_tells_nothing(server, shop, verifier, is_killed):
    claim = claimed(shop, A, {"n": 10})
    server.kill() if is_killed else server.stop()
    try:
        verdict = await verifier.verify_evidence(claim)
        assert (verdict.status, verdict.can_tell) == ("cannot_check", False), verdict.error
    finally:
        server.start()
    assert (await verifier.verify_evidence(claimed(server.url(server.shop), A, {"n": 10}))).verified


async def test_a_server_killed_during_the_query_tells_nothing(base, server, shop):
    verifier = EvidenceVerifier(base)
    verification = asyncio.create_task(verifier.verify_evidence(claimed(shop, {}, {"a": "x"}, "sleeping")))
    await asyncio.sleep(0.3)
    server.kill()
    try:
        assert (await verification).status == "cannot_check"
    finally:
        server.start()


# --- the URL ---------------------------------------------------------------------------------------------------------

WRONG_URLS = [
    ("postgresql://me:hunter22@h/db", RefusedClaimError),
    ("postgresql://:hunter22@h/db", RefusedClaimError),
    ("postgresql://me:@h/db", RefusedClaimError),
    ("postgresql://me@h/db?password=hunter22", RefusedClaimError),
    ("postgresql://me@h/db?passfile=/etc/hunter22", RefusedClaimError),
    ("postgresql://h/db?options=-c%20search_path%3Dhunter22", RefusedClaimError),
    ("postgresql://h/db?service=hunter22", RefusedClaimError),
    ("postgresql://h/db?sslkey=/hunter22", RefusedClaimError),
    ("postgresql://h/db?sslcert=/hunter22", RefusedClaimError),
    ("postgresql://h/db?sslcrl=/hunter22", RefusedClaimError),
    ("postgresql://h/db?hostaddr=127.0.0.1", RefusedClaimError),
    ("postgresql://h/db?krbsrvname=x", RefusedClaimError),
    ("postgresql://h/db?target_session_attrs=any", RefusedClaimError),
    ("postgresql://h/db?client_encoding=latin1", RefusedClaimError),
    ("postgresql://h/db?connect_timeout=0", RefusedClaimError),
    ("postgresql://h/db?OPTIONS=x", RefusedClaimError),
    ("postgresql://h/db?option%73=x", RefusedClaimError),
    ("postgresql://h,i/db", RefusedClaimError),
    ("postgresql://h:1,i:2/db", RefusedClaimError),
    ("postgresql:///db?host=h,i", RefusedClaimError),
    ("postgresql:///db?host=/a,h", RefusedClaimError),
    ("postgresql://h/db?host=i", MalformedClaimError),
    ("postgresql:///db?host=h&host=i", MalformedClaimError),
    ("postgresql://h/db?dbname=other", MalformedClaimError),
    ("postgresql://h/db?sslmode=none", MalformedClaimError),
    ("postgresql://h:0/db", MalformedClaimError),
    ("postgresql://h:65536/db", MalformedClaimError),
    ("postgresql://h:hunter22/db", MalformedClaimError),
    ("postgresql://me:hunter22/x@h/db", MalformedClaimError),
    ("postgresql://me:1?hunter22@h/db", RefusedClaimError),
    ("postgresql://h", MalformedClaimError),
    ("postgresql://h/", MalformedClaimError),
    ("postgresql://h/a/b", MalformedClaimError),
    ("postgresql://h/db#x", MalformedClaimError),
    ("postgresql://h/a%00b", MalformedClaimError),
    ("postgresql://h/a%0Ab", MalformedClaimError),
    ("postgresql://h/a%", MalformedClaimError),
    ("postgresql://h/a%ff", MalformedClaimError),
    ("postgresql://h h/db", MalformedClaimError),
    ("postgresql://@abstract/db?user=", MalformedClaimError),
    ("postgresql://[::1/db", MalformedClaimError),
    ("postgresql:/h/db", MalformedClaimError),
    ("\ud800", MalformedClaimError),
]


@pytest.mark.parametrize(("url", "error"), WRONG_URLS)
async def test_a_url_carries_nothing_else(verifier, url, error):
    with pytest.raises(error) as caught:
        postgres_url.parse(url)
    assert "hunter22" not in str(caught.value)
    if url.startswith("postgresql://"):
        with pytest.raises(EvidenceError) as refused:
            db_row(url, "loads")
        claim = Evidence(EvidenceType.DB_ROW, "row", {"table": "loads"}, {"database": url})
        verdict = await verifier.verify_evidence(claim)
        assert verdict.status in ("refused", "malformed")
        assert "hunter22" not in f"{refused.value}{refused.value!r}{verdict.error}"


@pytest.mark.parametrize(
    ("url", "parameters"),
    [
        ("postgresql://me@h:1/db", {"user": "me", "host": "h", "port": "1", "dbname": "db"}),
        ("postgres://h/db", {"host": "h", "port": "5432", "dbname": "db"}),
        ("postgresql://H./db", {"host": "h", "port": "5432", "dbname": "db"}),
        ("postgresql:///db", {"dbname": "db"}),
        ("postgresql:///?dbname=db&user=me", {"dbname": "db", "user": "me"}),
        ("postgresql://[::1]:5/db", {"host": "::1", "port": "5", "dbname": "db"}),
        ("postgresql://%2Frun%2Fpg:5/db", {"host": "/run/pg", "port": "5", "dbname": "db"}),
        ("postgresql:///db?host=/run/pg", {"host": "/run/pg", "port": "5432", "dbname": "db"}),
        ("postgresql://m%40e@h/d%20b%2Fc", {"user": "m@e", "host": "h", "port": "5432", "dbname": "d b/c"}),
        ("postgresql://h/host=evil%20port=1", {"host": "h", "port": "5432", "dbname": "host=evil port=1"}),
        ("postgresql://h/db?sslmode=verify-full&sslrootcert=system",
         {"host": "h", "port": "5432", "dbname": "db", "sslmode": "verify-full", "sslrootcert": "system"}),
    ],
)  # fmt: skip
def test_a_url_says_these(url, parameters):
    assert postgres_url.parse(url).parameters() == {"application_name": "flowckpt", **parameters}


async def test_a_name_of_a_database_is_a_name(server, verifier):
    for name in (f"host={server.socket_directory} dbname={server.shop}", server.url(server.shop)):
        quoted = name.replace("/", "%2F").replace(" ", "%20").replace(":", "%3A")
        verdict = await verifier.verify_evidence(
            claimed(f"postgresql://{SUPERUSER}@127.0.0.1:{server.port}/{quoted}", A, {})
        )
        assert (verdict.status, "does not exist" in verdict.error) == ("failed", True), verdict.error


@pytest.mark.parametrize("kind", ["pipe", "missing", "directory"])
@pytest.mark.timeout(120)
async def test_a_certificate_that_is_no_file_is_not_opened(base, shop, verifier, kind):
    path = base / "root.crt"
    {"pipe": lambda: os.mkfifo(path), "missing": lambda: None, "directory": path.mkdir}[kind]()
    verdict = await verifier.verify_evidence(claimed(f"{shop}?sslmode=verify-ca&sslrootcert={path}", A, {}))
    assert verdict.status == "refused", verdict.error


# --- who may be asked ------------------------------------------------------------------------------------------------


def from_a_record(url):
    return Evidence(EvidenceType.DB_ROW, "row", {"table": "loads", "where": A}, {"database": url})


async def test_a_record_alone_leads_to_no_server(server, shop, base, verifier):
    socket_url = f"postgresql://{SUPERUSER}@/{server.shop}?host={server.socket_directory}&port={server.port}"
    for url in (shop, socket_url, f"postgresql://{SUPERUSER}@:{server.port}/{server.shop}"):
        assert (await verifier.verify_evidence(from_a_record(url))).status == "refused"
    db_row(shop, "loads")
    assert (await verifier.verify_evidence(from_a_record(shop))).verified
    assert (await verifier.verify_evidence(from_a_record(f"{shop}?sslmode=disable"))).status == "refused"
    allowing = EvidenceVerifier(base, allow_network=[f"127.0.0.1:{server.port}"])
    assert (await allowing.verify_evidence(from_a_record(f"{shop}?sslmode=disable"))).verified
    assert (await allowing.verify_evidence(from_a_record(socket_url))).status == "refused"
    db_row(socket_url, "loads")
    assert (await verifier.verify_evidence(from_a_record(socket_url))).verified


@pytest.mark.parametrize("by", ["socket", "tcp"])
async def test_the_server_of_the_environment_may_be_asked(server, verifier, monkeypatch, by):
    host = {"socket": server.socket_directory, "tcp": "127.0.0.1"}[by]
    monkeypatch.setenv("PGHOST", host)
    monkeypatch.setenv("PGPORT", str(server.port))
    named = f"postgresql://{SUPERUSER}@/{server.shop}?host={host}&port={server.port}"
    for url in (f"postgresql://{SUPERUSER}@/{server.shop}", named):
        verdict = await verifier.verify_evidence(from_a_record(url))
        assert verdict.verified, verdict.error
    other = f"postgresql://{SUPERUSER}@127.0.0.1:{free_port()}/{server.shop}"
    assert (await verifier.verify_evidence(from_a_record(other))).status == "refused"


@pytest.mark.parametrize("kind", ["threads", "processes"])
async def test_a_quorum_agrees(server, base, monkeypatch, kind):
    monkeypatch.setenv("PGHOST", server.socket_directory)
    monkeypatch.setenv("PGPORT", str(server.port))
    context = get_context("spawn")
    pools = {
        "threads": lambda: ThreadPoolExecutor(2),
        "processes": lambda: ProcessPoolExecutor(2, context, context.Barrier(2).wait),  # no worker is late
    }
    url = f"postgresql://{SUPERUSER}@/{server.shop}"
    tcp = server.url(server.shop)
    with pools[kind]() as pool:
        verifier = EvidenceVerifier(base, executor=pool, allow_network=[f"127.0.0.1:{server.port}"])
        for address in (url, tcp):
            yes = await verifier.verify_evidence(db_row(address, "loads", A, {"n": 10}).quorum(2))
            assert (yes.status, yes.method) == ("verified", "quorum"), yes.error
            no = await verifier.verify_evidence(db_row(address, "loads", A, {"n": 11}).quorum(2))
            assert (no.status, no.method) == ("failed", "quorum"), no.error


# --- passwords and secrets -------------------------------------------------------------------------------------------


@pytest.fixture
def asking(server):
    """The server, which asks the role `reader` for its password."""
    rules = server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all reader 127.0.0.1/32 scram-sha-256\n{before}")
    server.execute("SELECT pg_reload_conf()")
    url = server.url(server.shop, "reader")
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            break
        time.sleep(0.02)
    yield url
    rules.write_text(before)
    server.execute("SELECT pg_reload_conf()")


@pytest.mark.parametrize("password", ["wrong-s3cret", ""])
async def test_a_wrong_password_tells_nothing_and_is_not_told(asking, verifier, monkeypatch, caplog, password):
    if password:
        monkeypatch.setenv("PGPASSWORD", password)
    claim = claimed(asking, A, {"n": 10}, "public.loads")
    verdict = await verifier.verify_evidence(claim)
    assert (verdict.status, verdict.can_tell) == ("cannot_check", False), verdict.error
    told = f"{verdict!r} {verdict.to_document()} {claim!r} {claim.to_document()} {caplog.text}"
    assert "s3cret" not in told
    assert ("PGPASSWORD" in verdict.error) == (not password)


@pytest.mark.parametrize("way", ["environment", "file"])
async def test_the_password_comes_from_outside(asking, server, base, verifier, monkeypatch, way):
    if way == "environment":
        monkeypatch.setenv("PGPASSWORD", "hunter22-hunter22")
    else:
        file = base / "pgpass"
        file.write_text(f"127.0.0.1:{server.port}:*:reader:hunter22-hunter22\n")
        file.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(file))
    claim = db_row(asking, "public.loads", A, {"n": 10})
    recorded, report = await verifier.commit(EvidencePack([claim]))
    assert report.verified, report.verdicts
    assert "hunter22" not in f"{recorded.to_document()} {report.to_document()} {report!r} {claim!r}"


async def test_a_role_that_may_not_read_tells_nothing(server, verifier):
    verdict = await verifier.verify_evidence(claimed(server.url(server.shop, "stranger"), A, {"n": 10}))
    assert (verdict.status, "permission denied" in verdict.error) == ("cannot_check", True), verdict.error


async def test_secret_columns_are_compared_and_never_shown(shop, verifier):
    right = {
        "state": "done",
        "pin_code": 471108154,
        "n": 10,
        "share": 0.1,
        "ok": True,
        "data": b"\x00\xff",
        "note": None,
    }
    claim = db_row(shop, "loads", A, right, secret_columns=right)
    assert (await verifier.verify_evidence(claim)).verified
    assert "471108154" not in str(claim.to_document()["expected"])
    for name, wrong in {"pin_code": 471208154, "state": "undone", "share": 0.2}.items():
        verdict = await verifier.verify_evidence(db_row(shop, "loads", A, {name: wrong}, secret_columns=[name]))
        assert verdict.status == "failed"
        assert not {"471108154", "471208154", "'done'", "0.2"} & set(f"{verdict.error} {verdict.details}".split())
    verdict = await verifier.verify_evidence(db_row(shop, "loads", A, {"token": "tok-00000"}))
    assert verdict.status == "failed"
    assert "tok-" not in f"{verdict!r} {verdict.to_document()}"


# --- the driver ------------------------------------------------------------------------------------------------------


async def test_without_the_driver_the_extra_is_named(shop, verifier, monkeypatch):
    monkeypatch.delitem(sys.modules, "flowckpt.evidence.databases.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    verdict = await verifier.verify_evidence(db_row(shop, "loads"))
    assert verdict.status == "cannot_check"
    assert "pip install 'flowckpt[postgres]'" in verdict.error
    monkeypatch.undo()
    importlib.import_module("flowckpt.evidence.databases.postgres")


def test_claims_do_not_load_the_driver():
    code = (
        "import sys; from flowckpt.evidence import db_row; db_row('postgresql://h/db', 'loads'); "
        "sys.exit('psycopg' in sys.modules)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", code]) == 0
