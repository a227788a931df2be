"""What the first evidence verifier promised: databases by name, patience, and a quorum of real workers."""

from __future__ import annotations

import pickle
import sqlite3
from contextlib import closing

import pytest

from flowckpt.evidence import (
    Evidence,
    EvidenceError,
    EvidencePack,
    EvidenceVerifier,
    Limits,
    artifact_exists,
    claims,
    db_row,
    file_sha256,
    predicate,
    register_database,
)
from flowckpt.evidence.checks.base import Settings
from flowckpt.evidence.claims import registered_databases
from flowckpt.evidence.verifier import verify_shipped
from flowckpt.testing import FakeClock

PROGRAM = """
import sqlite3
from flowckpt import step, workflow
from flowckpt.evidence import db_row

def load(database):
    with open("log", "a") as log:
        log.write("load\\n")
    connection = sqlite3.connect(database)
    with connection:
        connection.execute("CREATE TABLE IF NOT EXISTS loads (source TEXT, state TEXT)")
        connection.execute("DELETE FROM loads")
        connection.execute("INSERT INTO loads VALUES ('a.csv', 'done')")
    connection.close()

@workflow
def shop(database: str):
    yield step("load").python(load, database).evidence(
        db_row("main", "loads", {"source": "a.csv"}, {"state": "done"})
    ).checkpoint()
"""
DONE = ("loads", {"source": "a.csv"}, {"state": "done"})


@pytest.fixture
def shop(tmp_path):
    """A database outside of the directory where relative paths start."""
    (tmp_path / "data").mkdir()
    with closing(sqlite3.connect(tmp_path / "data" / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE loads (source TEXT, state TEXT)")
        connection.execute("INSERT INTO loads VALUES ('a.csv', 'done')")
    return tmp_path / "data" / "shop.db"


# --- databases by name -------------------------------------------------------------------------------------------------


def test_db_row_reads_the_database_that_the_settings_name(flowckpt, tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.flowckpt]\ndatabases = {main = "sqlite:data/shop.db"}\n')
    (tmp_path / "data").mkdir()
    (tmp_path / "shop.py").write_text(PROGRAM)
    database = str(tmp_path / "data" / "shop.db")
    flowckpt("run", "shop.py", "-i", f"database={database}", "--id", "one").expect(0)
    assert flowckpt("verify", "one").expect(0).out.splitlines()[-1] == "claims: 1 verified"
    assert "shop.db" not in str(flowckpt("show", "one", "--json").document["steps"][0]["evidence"])

    moved = tmp_path / "elsewhere.db"
    (tmp_path / "data" / "shop.db").rename(moved)
    assert flowckpt("verify", "one").expect(10)
    assert flowckpt("verify", "one", FLOWCKPT_DATABASES=f"main=sqlite:{moved}").expect(0)
    with closing(sqlite3.connect(moved)) as connection, connection:
        connection.execute("UPDATE loads SET state = 'failed'")
    ran = flowckpt("verify", "one", FLOWCKPT_DATABASES=f"main=sqlite:{moved}").expect(10)
    assert "state is 'failed', not 'done'" in ran.out


def test_a_database_that_nobody_names_here_is_not_taken_for_a_missing_row(flowckpt, tmp_path):
    (tmp_path / "shop.py").write_text(PROGRAM)
    flowckpt(
        "run", "shop.py", "-i", "database=shop.db", "--id", "one", FLOWCKPT_DATABASES="main=sqlite:shop.db"
    ).expect(0)
    ran = flowckpt("verify", "one").expect(10)
    assert "cannot be checked" in ran.out and "there is no database 'main' here" in ran.out
    assert "databases = {main" in ran.out
    flowckpt("resume", "one", "--on-stale", "fail").expect(10)
    assert flowckpt.log() == ["load"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('databases = "shop.db"', "got 'shop.db'"),
        ('databases = {main = "shop.db"}', "got {'main': 'shop.db'}"),
        ('databases = {"a b" = "sqlite:x"}', "names with sqlite:FILE or postgresql://"),
        ('databases = {main = "postgresql://me:hidden@host/shop"}', "the URL holds a password"),
    ],
)
def test_a_setting_that_names_no_database_is_refused(flowckpt, tmp_path, text, said):
    (tmp_path / "pyproject.toml").write_text(f"[tool.flowckpt]\n{text}\n")
    ran = flowckpt("list").expect(2)
    assert said in ran.err


async def test_a_claim_without_a_database_means_main(tmp_path, shop):
    (tmp_path / "base").mkdir()
    verifier = EvidenceVerifier(tmp_path / "base")
    claim = Evidence("db_row", "the load is done", dict(zip(("table", "where", "values"), DONE, strict=True)))
    assert (await verifier.verify_evidence(claim)).status == "malformed"
    register_database("main", f"sqlite:{shop}")
    assert await verifier.verify_evidence(claim)
    assert await verifier.verify_evidence(db_row("main", *DONE))
    assert (await verifier.verify_evidence(db_row("other", *DONE))).status == "cannot_check"
    assert (await verifier.verify_evidence(db_row("../data/shop.db", *DONE))).status == "refused"  # a path, as ever


def test_workers_of_a_quorum_know_the_databases(tmp_path, shop):
    register_database("main", f"sqlite:{shop}")
    sent = pickle.dumps(Settings(str(tmp_path), databases=registered_databases()))
    claims._DATABASES.clear()  # another process has registered nothing
    (outcome,) = verify_shipped([db_row("main", *DONE)], pickle.loads(sent))
    assert outcome.status == "verified", outcome.error


@pytest.mark.parametrize(("name", "spec"), [("a b", "sqlite:x"), ("main", "x.db"), ("main", "sqlite:"), ("main", 3)])
def test_what_is_no_database_is_not_registered(name, spec):
    with pytest.raises(EvidenceError):
        register_database(name, spec)


# --- verification with retry and backoff ---------------------------------------------------------------------------------


class Clock(FakeClock):
    """Time passes when somebody waits; `arrivals` happen then."""

    def __init__(self, *arrivals):
        super().__init__()
        self.arrivals = [*arrivals]
        self.slept = []

    async def sleep(self, seconds):
        self.slept.append(seconds)
        if self.arrivals:
            self.arrivals.pop(0)()


def nothing():
    pass


async def test_a_claim_is_checked_again_until_it_holds(tmp_path):
    clock = Clock(nothing, nothing, (tmp_path / "late").touch)
    verifier = EvidenceVerifier(tmp_path, clock=clock)
    verdict = await verifier.verify_evidence(artifact_exists("late").retry(5, backoff=0.5))
    assert verdict and clock.slept == [0.5, 1.0, 2.0]
    assert not await verifier.verify_evidence(artifact_exists("never").retry(3, backoff=40))
    assert clock.slept[3:] == [40, 60.0]
    del clock.slept[:]
    assert (await verifier.verify_evidence(file_sha256("../x", "0" * 64).retry(3))).status == "refused"
    assert clock.slept == []


async def test_a_commit_waits_for_what_is_written_late(tmp_path):
    def write():
        (tmp_path / "late").write_text("abc")

    clock = Clock(write)
    verifier = EvidenceVerifier(tmp_path, clock=clock)
    pack, report = await verifier.commit(EvidencePack([file_sha256("late").retry(2)]))
    assert report.verified and pack.evidence_list[0].is_captured and clock.slept == [1.0]
    again = EvidencePack.from_document(pack.to_document())
    assert again == pack and again.evidence_list[0].attempts == 2


async def test_only_claims_that_do_not_hold_are_checked_again(tmp_path):
    asked = []

    def ready(name):
        asked.append(name)
        return name == "one" or len(asked) > 2

    ready.__qualname__ = "ready"
    clock = Clock()
    pack = EvidencePack([predicate(ready, name).retry(9, backoff=0) for name in ("one", "two")])
    assert (await EvidenceVerifier(tmp_path, clock=clock).verify_evidence_pack(pack)).verified
    assert asked == ["one", "two", "two"] and clock.slept == [0]


async def test_what_a_record_says_does_not_keep_a_verifier_for_ever(tmp_path):
    clock = Clock()
    verifier = EvidenceVerifier(tmp_path, clock=clock, limits=Limits(retry_seconds=100))
    document = artifact_exists("never").retry(10**9, backoff=1e308).to_document()
    assert not await verifier.verify_evidence(Evidence.from_document(document))
    assert clock.slept == [60.0]
    document["attempts"] = "many"
    assert str(Evidence.from_document(document).state) == "unreadable"


@pytest.mark.parametrize(("attempts", "backoff"), [(0, 1), (True, 1), (2, -1), (2, float("nan"))])
def test_a_retry_has_numbers(attempts, backoff):
    with pytest.raises(EvidenceError, match="not "):
        artifact_exists("x").retry(attempts, backoff)


# --- quorum --------------------------------------------------------------------------------------------------------------


async def test_a_quorum_without_several_workers_is_cannot_check(tmp_path):
    (tmp_path / "f").write_text("abc")
    verdict = await EvidenceVerifier(tmp_path).verify_evidence(file_sha256("f", "0" * 64).quorum(2))
    assert verdict.status == "cannot_check"
    assert "the verifier has no executor" in verdict.error
