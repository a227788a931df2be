"""Rows of a database that another program wrote, with digests made to fit: the Python API raises an error of the record."""

from __future__ import annotations

import contextlib
import json
import sqlite3

import pytest

from flowckpt import WorkflowEngine, in_sync, step, workflow
from flowckpt.core.codec.results import make_result
from flowckpt.core.records import History
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores import open_store
from flowckpt.stores.sql import image


@workflow("hostile")
def hostile(n: int = 1):
    yield step("a").python(abs, n).checkpoint()
    yield step("b").wait("go")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """A store with a run that waits, and a function that runs SQL in it."""
    if request.param == "sqlite":
        spec = f"sqlite:{tmp_path / 'store.db'}"

        def query(statement, values=()):
            with contextlib.closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as connection:
                return connection.execute(statement, values).fetchall()

    else:
        server, name = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        spec = f"{server.url(name)}?allow_unsafe=true"

        def query(statement, values=()):
            for value in values:
                statement = statement.replace("?", "'" + str(value).replace("'", "''") + "'", 1)
            return server.execute(f"SET search_path = flowckpt; {statement}", name)

    store = open_store(spec)
    assert WorkflowEngine(store).run_sync(hostile, workflow_id="run").status == "suspended"
    yield store, query
    store.close()


def make_digests_fit(query, monkeypatch):
    """Let the digests of checkpoints be those of whatever is there."""
    texts = [text for (text,) in query("SELECT CAST(document AS TEXT) FROM step_results ORDER BY position")]
    history = History()
    made = [make_result(json.loads(text), None)[0] for text in texts]
    history.extend(made, {}, lambda: [text.encode() for text in texts])
    for sequence, steps in query("SELECT sequence, steps FROM checkpoints"):
        chain = history.view(steps).chain.hex()
        query(f"UPDATE checkpoints SET chain = ? WHERE sequence = {int(sequence)}", (chain,))
    of = dict(query("SELECT sequence, digest FROM checkpoints"))
    monkeypatch.setattr(image, "checkpoint_digest", lambda head, said, document: of[said[0]])


@pytest.mark.parametrize(("field", "value"), [("function", {}), ("duration_ms", [])])
def test_a_result_that_flowckpt_never_writes_is_damage_of_the_record(database, monkeypatch, field, value):
    store, query = database
    ((text,),) = query("SELECT CAST(document AS TEXT) FROM step_results WHERE position = 1")
    query("UPDATE step_results SET document = ? WHERE position = 1", (json.dumps({**json.loads(text), field: value}),))
    make_digests_fit(query, monkeypatch)
    if field == "duration_ms":
        assert [each.severity for each in store.runs.check()] == ["corrupt"]
    else:
        with pytest.raises(CheckpointCorruptedError, match="flowckpt never writes"):
            in_sync(WorkflowEngine(store)).plan(hostile, workflow_id="run")


@pytest.mark.parametrize(("field", "value"), [("inputs", 7), ("inputs_hash", {})])
def test_a_head_that_flowckpt_never_writes_is_damage_of_the_record(database, monkeypatch, field, value):
    store, query = database
    ((text,),) = query("SELECT CAST(head AS TEXT) FROM attempts")
    query("UPDATE attempts SET head = ?", (json.dumps({**json.loads(text), field: value}),))
    make_digests_fit(query, monkeypatch)
    engine = WorkflowEngine(store)
    with pytest.raises(CheckpointCorruptedError, match="flowckpt never writes"):
        in_sync(engine).plan(hostile, workflow_id="run")
    with pytest.raises(CheckpointCorruptedError, match="flowckpt never writes"):
        engine.open("run", workflow=hostile)
    with pytest.raises(CheckpointCorruptedError, match="flowckpt never writes"):
        engine.run_sync(hostile, workflow_id="run", if_exists="resume")


def test_a_column_of_a_checkpoint_that_flowckpt_never_writes_is_damage_wherever_it_is_read(database):
    store, query = database
    query("UPDATE checkpoints SET reason = 'boredom'")
    for read in (store.runs.references, store.runs.load_latest):
        with pytest.raises(CheckpointCorruptedError):
            read("run")
    with pytest.raises(CheckpointCorruptedError, match="boredom"):
        store.runs.list_attempt("run", 1)
    with pytest.raises(CheckpointCorruptedError, match="boredom"):
        store.runs.load("run", "no such checkpoint")


def test_a_checkpoint_from_before_its_attempt_is_found_by_the_check_and_removed_by_a_repair(database):
    store, query = database
    engine = WorkflowEngine(store)
    in_sync(engine).signal("run", "go", 1)
    assert engine.resume_sync(hostile, workflow_id="run").status == "completed"
    ((last, first_left),) = query("SELECT max(sequence), max(continues_sequence) FROM checkpoints, attempts")
    query(f"UPDATE attempts SET continues_sequence = {last} WHERE attempt = 2")
    (finding,) = store.runs.check()
    assert finding.severity == "corrupt"
    assert f"continues from checkpoint {last}" in finding.detail
    store.runs.repair("run")
    assert store.runs.load_latest("run").sequence == first_left
    assert [each.severity for each in store.runs.check()] == ["ok"]
