"""What the first stores promised: errors that say which checkpoint, and why."""

from __future__ import annotations

import json
import os
import pickle

import attrs
import pytest

from flowckpt import CheckpointManager, FileCheckpointStore, MirroredStore, WorkflowEngine, step, workflow
from flowckpt.errors import CheckpointStorageError
from flowckpt.stores import SqliteCheckpointStore


@workflow
def counted():
    yield step("one").python(int, 1).checkpoint("first")


class Broken:
    """A store of five methods whose medium fails."""

    async def save(self, workflow_id, data):
        raise OSError(28, "No space left on device")

    async def load(self, workflow_id, checkpoint_id):
        raise OSError(5, "Input/output error")

    async def load_latest(self, workflow_id):
        return None

    async def clear(self, workflow_id):
        pass

    async def list_checkpoints(self, workflow_id):
        return []


async def test_an_error_of_a_save_names_the_checkpoint_and_its_cause():
    with pytest.raises(CheckpointStorageError) as caught:
        await CheckpointManager(Broken()).begin_step("t1", "epoch", 1)
    error = caught.value
    assert error.ref == "t1@[1]epoch" and (error.operation, error.workflow_id) == ("save", "t1")
    assert isinstance(error.cause, OSError) and error.cause.errno == 28
    assert pickle.loads(pickle.dumps(error)).ref == error.ref


async def test_an_error_of_a_load_names_the_checkpoint_and_its_cause(tmp_path, monkeypatch):
    store = FileCheckpointStore(tmp_path / "s")
    await WorkflowEngine(store).run(counted, workflow_id="r1")

    def fails(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "pread", fails)
    monkeypatch.setattr(os, "read", fails)
    with pytest.raises(CheckpointStorageError) as caught:
        await store.load("r1", "first")
    assert caught.value.ref == "r1@first" and caught.value.cause.errno == 5


async def test_each_save_also_goes_to_a_mirror_so_that_json_stands_beside_a_database(tmp_path):
    database, mirror = SqliteCheckpointStore(tmp_path / "runs.db"), FileCheckpointStore(tmp_path / "json")
    await WorkflowEngine(MirroredStore(database, mirror)).run(counted, workflow_id="r1")
    (segment,) = (tmp_path / "json" / "runs" / "r1").glob("*.jsonl")
    lines = [json.loads(line) for line in segment.read_text().splitlines()]
    assert "first" in json.dumps(lines)
    first = await mirror.load("r1", "first")
    noted = {name: value for name, value in first.metadata.items() if name != "mirrored"}
    assert attrs.evolve(first, metadata=noted) == await database.load("r1", "first")
