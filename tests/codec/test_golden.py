"""What a released version wrote can be read, and is still what this version writes; see golden/README.md."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from hashlib import sha256
from pathlib import Path

import attrs
import pytest
from fixed_run import ATTEMPTS, EXPORTED, LARGE, LIVE, NEW, PROCESS, RUN, START, clock, save

from flowckpt import FileCheckpointStore, MemoryCheckpointStore
from flowckpt.core.codec.checkpoints import export_document, export_text, read_export
from flowckpt.core.codec.results import as_view
from flowckpt.core.records import Reason
from flowckpt.core.records.checkpoint import SCHEMA_VERSION
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.core.system.filesystem import Directory, PosixFileSystem
from flowckpt.errors import DecodingError, UnsupportedSchemaError
from flowckpt.stores import SqliteCheckpointStore
from flowckpt.stores.file.claim import write_tombstone
from flowckpt.stores.log.segment import START as CHAIN_START
from flowckpt.stores.log.segment import chain_line

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = ["0.1"]
"""The released versions, the newest last; each has a directory of its own."""

WRITES = bool(os.environ.get("FLOWCKPT_WRITE_MISSING_GOLDEN"))
SUMS = GOLDEN / "SHA256SUMS"
EXPORTS = {reason: f"checkpoint-{reason.value}.json" for reason in Reason}
LAST = len(ATTEMPTS)


@pytest.fixture(autouse=True)
def fixed_process(monkeypatch):
    monkeypatch.setattr("flowckpt.stores.file.claim.current_process", lambda: PROCESS)


def golden(version, name, found):
    """The bytes of a golden file; it is written where it is missing, by the newest version and on demand alone."""
    file = GOLDEN / version / name
    if WRITES and version == VERSIONS[-1] and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(found)
    return file.read_bytes()


def test_there_is_a_golden_file_for_every_kind_of_checkpoint():
    assert {*EXPORTED} == {*Reason}
    for version in VERSIONS:
        assert {file.name for file in (GOLDEN / version).glob("*.json")} == {*EXPORTS.values()}


# --- the export --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_the_export_of_each_kind_of_checkpoint_is_what_the_newest_release_wrote(reason):
    written = export_text(EXPORTED[reason])
    assert golden(VERSIONS[-1], EXPORTS[reason], written.encode()).decode() == written


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("reason", list(Reason), ids=str)
def test_the_export_of_every_release_is_read_and_written_again_with_all_that_it_says(version, reason):
    text = (GOLDEN / version / EXPORTS[reason]).read_text("utf-8")
    found = read_export(json.loads(text))
    assert found == EXPORTED[reason]
    assert json.loads(export_text(found)) == json.loads(text)


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 0, "1", None, True])
def test_an_export_of_a_form_that_is_not_known_is_refused(version):
    document = {**export_document(EXPORTED[Reason.STEP]), "schema_version": version}
    with pytest.raises(UnsupportedSchemaError):
        read_export(document)


@pytest.mark.parametrize(
    "change",
    [{"step_results": None}, {"step_results": [1]}, {"reason": "other"}, {"saved_at": "soon"}, {"inputs": {"$x": 1}}],
    ids=str,
)
def test_what_is_no_export_is_refused_as_malformed(change):
    document = {**export_document(EXPORTED[Reason.STEP]), **change}
    with pytest.raises(DecodingError):
        _ = read_export(document).inputs
    for other in (None, [], {}, {"schema_version": SCHEMA_VERSION}):
        with pytest.raises(DecodingError):
            read_export(other)


def test_the_canonical_bytes_of_results_are_what_the_newest_release_wrote():
    written = b"".join(b"%b\n" % each for each in as_view(LIVE[-1].step_results).history.encoded)
    assert golden(VERSIONS[-1], "results.jsonl", written) == written


# --- the file store ------------------------------------------------------------------------------------------------------


def run_files(directory):
    return {
        file.relative_to(directory).as_posix(): file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_file() and file.name != "lock" and not file.name.startswith(".fenced")  # an inode is in its name
    }


async def test_the_segments_and_large_values_are_what_the_newest_release_wrote(tmp_path):
    await save(FileCheckpointStore(tmp_path / "store", clock=clock()))
    written = run_files(tmp_path / "store" / "runs" / RUN)
    for name, content in written.items():
        assert golden(VERSIONS[-1], f"run/{name}", content) == content, name
    assert written == run_files(GOLDEN / VERSIONS[-1] / "run")


async def test_a_pack_is_what_the_newest_release_wrote(tmp_path):
    store = FileCheckpointStore(tmp_path / "store", clock=clock())
    await save(store)
    await store.compact(RUN, is_forced=True)
    written = run_files(tmp_path / "store" / "runs" / RUN)
    for name, content in written.items():
        assert golden(VERSIONS[-1], f"packed/{name}", content) == content, name
    assert written == run_files(GOLDEN / VERSIONS[-1] / "packed")


def file_store(tmp_path, version, name="run"):
    shutil.copytree(GOLDEN / version / name, tmp_path / "store" / "runs" / RUN)
    return FileCheckpointStore(tmp_path / "store")


def sqlite_store(tmp_path, version):
    (tmp_path / "store").mkdir()
    shutil.copy(GOLDEN / version / "runs.db", tmp_path / "store" / "runs.db")
    return SqliteCheckpointStore(tmp_path / "store" / "runs.db")


STORES = {"file": file_store, "sqlite": sqlite_store}
READ = {**STORES, "packed": lambda tmp_path, version: file_store(tmp_path, version, "packed")}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", READ)
async def test_a_store_that_a_release_wrote_is_read_in_every_field(tmp_path, version, kind):
    store = READ[kind](tmp_path, version)
    references = [attrs.evolve(each, size=0) for each in await store.list_checkpoints(RUN)]
    assert references == [CheckpointRef.of(RUN, data) for data in reversed(LIVE)]
    for data in LIVE:
        assert await store.load(RUN, data.checkpoint_id) == data
    for number, saved in ATTEMPTS.items():
        left = await store.load_attempt(RUN, number)
        assert left == saved[-1]
    (info,) = await store.list_runs()
    assert (info.status, info.steps, info.attempt, info.tags) == ("completed", 3, LAST, {"team": "data"})
    assert [finding.severity for finding in await store.check()] == ["ok"]
    figures = await store.figures()
    assert (figures.checkpoints, figures.steps) == (13, 6)
    assert [(each.error_type, each.steps, each.attempts) for each in figures.failures] == [("shop.OutOfStock", 1, 1)]
    store.close()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", STORES)
async def test_a_run_that_a_release_wrote_goes_on_with_its_history_byte_for_byte(tmp_path, version, kind):
    store = STORES[kind](tmp_path, version)
    lease = await store.acquire(RUN)
    assert (lease.attempt, lease.last_sequence, lease.latest) == (LAST + 1, 14, LIVE[-1])
    again = attrs.evolve(lease.latest, sequence=15, attempt=LAST + 1, checkpoint_id="later", extra=NEW)
    await store.save(RUN, again)
    await store.release(RUN)
    loaded = await store.load_latest(RUN)
    assert loaded == again
    written = (GOLDEN / version / "results.jsonl").read_bytes()
    assert b"".join(b"%b\n" % each for each in loaded.step_results.history.encoded) == written
    assert loaded.step_results[2].output == LARGE
    store.close()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_tombstone_that_a_release_wrote_means_that_there_is_no_run(tmp_path, version):
    written = tmp_path / "written"
    store = FileCheckpointStore(written, clock=clock())
    await store.save(RUN, ATTEMPTS[1][0])
    store.close()
    with Directory.at(PosixFileSystem(), str(written / "runs" / RUN)) as directory:
        write_tombstone(directory, RUN, START)
    for name, content in run_files(written / "runs" / RUN).items():
        assert golden(version, f"cleared/{name}", content) == content, name
    cleared = file_store(tmp_path, version, "cleared")
    assert await cleared.load_latest(RUN) is None
    assert await cleared.list_runs() == []
    assert (await cleared.acquire(RUN)).attempt == 1


async def test_a_segment_of_a_newer_form_is_refused_whoever_asks(tmp_path):
    store = file_store(tmp_path, VERSIONS[-1])
    segment = tmp_path / "store" / "runs" / RUN / f"{LAST:08d}.jsonl"
    header = json.loads(segment.read_bytes().split(b"\n")[0])
    del header["sha256"]
    line, _ = chain_line(json.dumps({**header, "schema_version": SCHEMA_VERSION + 1})[:-1].encode(), CHAIN_START)
    segment.write_bytes(line)
    for ask in (store.load_latest, store.list_checkpoints, store.acquire, lambda run: store.load(run, "fetch")):
        with pytest.raises(UnsupportedSchemaError):
            await ask(RUN)
    assert await store.owner(RUN) is None


# --- the SQLite store ----------------------------------------------------------------------------------------------------


def rows_in(file):
    """All that the tables hold but random names and the version of the program."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
    tables = {
        "runs": "*",
        "attempts": "run, attempt, host, boot_id, pid, start_time, acquired_at, heartbeat_at, lease_expires_at, "
        "released_at, begun_at, continues_attempt, continues_sequence, continues_results, head",
        "checkpoints": "*",
        "step_results": "*",
        "evidence": "*",
        "blobs": "run, digest, size",
    }
    try:
        held = {
            table: connection.execute(f"SELECT {columns} FROM {table} ORDER BY 1, 2, 3").fetchall()
            for table, columns in tables.items()
        }
        held["contents"] = connection.execute(
            "SELECT b.digest, c.content FROM blobs b JOIN blob_contents c USING (name) ORDER BY 1"
        ).fetchall()
        return held
    finally:
        connection.close()


async def test_the_rows_of_the_database_are_what_the_newest_release_wrote(tmp_path):
    file = tmp_path / "runs.db"
    store = SqliteCheckpointStore(file, clock=clock())
    store.runs._process = lambda: PROCESS
    await save(store)
    store.close()
    golden(VERSIONS[-1], "runs.db", file.read_bytes())
    assert rows_in(file) == rows_in(GOLDEN / VERSIONS[-1] / "runs.db")


# --- every store keeps what it is given ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["memory", "file", "sqlite"])
@pytest.mark.parametrize("reason", list(Reason), ids=str)
async def test_an_export_of_a_release_goes_through_every_store_unchanged(tmp_path, version, kind, reason):
    document = json.loads((GOLDEN / version / EXPORTS[reason]).read_text("utf-8"))
    made = {"memory": MemoryCheckpointStore, "file": lambda: FileCheckpointStore(tmp_path / "s")}
    store = made.get(kind, lambda: SqliteCheckpointStore(tmp_path / "s.db"))()
    await store.save("copy", read_export(document))
    loaded = await store.load_latest("copy")
    assert export_document(loaded) == document
    await store.save("copy of the copy", loaded)
    assert export_document(await store.load_latest("copy of the copy")) == document
    if kind == "sqlite":
        store.close()


# --- they stay what they are -------------------------------------------------------------------------------------------


def test_no_golden_file_was_ever_edited_or_removed():
    files = [file for file in GOLDEN.rglob("*") if file.is_file() and file.name not in ("README.md", SUMS.name)]
    found = {file.relative_to(GOLDEN).as_posix(): sha256(file.read_bytes()).hexdigest() for file in files}
    said = dict(reversed(line.split("  ")) for line in SUMS.read_text().splitlines()) if SUMS.exists() else {}
    if WRITES:
        said = {**found, **said}
        SUMS.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(said.items())))
    assert found == said
