"""Permissions that change while a run is written, and come back: nothing acknowledged is lost, and a resume works."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import pwd
import shutil
import stat
import tempfile
from pathlib import Path

import pytest

from flowckpt import WorkflowEngine, open_store, step, workflow
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import CheckpointStorageError
from flowckpt.stores.sqlite import SqliteCheckpointStore
from flowckpt.testing.contract import checkpoint

CHANGES = {
    "the store cannot be entered": ("file:s", [("s", 0)]),
    "the store takes no new name": ("file:s", [("s", 0o555), ("s/runs", 0o555)]),
    "the run cannot be entered": ("file:s", [("s/runs/run", 0)]),
    "the segment may not be written": ("file:s", [("s/runs/run/00000001.jsonl", 0o444)]),
    "the lock may not be opened": ("file:s", [("s/runs/run/lock", 0)]),
    "the directory of the database takes no new name": ("sqlite:s/r.db", [("s", 0o555)]),
    "the database may not be written": ("sqlite:s/r.db", [("s/r.db", 0o444)]),
    "the database may not be read": ("sqlite:s/r.db", [("s/r.db", 0)]),
}


@functools.cache
def preloaded():
    """Import what a run needs."""
    importlib.import_module("tests.preloaded")
    "".encode("ascii")

    @workflow
    def flow():
        yield step("s").python(len, "").checkpoint()

    for spec in ("file:s", "sqlite:s/r.db"):
        with contextlib.chdir(tempfile.mkdtemp()):
            Path("s").mkdir()
            store = open_store(spec)
            for act in (WorkflowEngine(store).run_sync, WorkflowEngine(store).resume_sync):
                act(flow, workflow_id="run")
            with blocking_allowed(True):
                store.runs.check()
                store.close()
            shutil.rmtree(Path.cwd())


@pytest.fixture
def place(monkeypatch):
    """A directory of a user without privileges, who the test is: root may do everything."""
    top = Path(tempfile.mkdtemp(prefix="flowckpt-permissions-"))
    monkeypatch.chdir(top)
    (top / "s").mkdir()
    is_root = os.geteuid() == 0
    preloaded()  # where the package lies, only its owner may be able to read
    if is_root:
        nobody = pwd.getpwnam("nobody").pw_uid
        for each in (top, top / "s"):
            os.chown(each, nobody, -1)
        os.seteuid(nobody)
    yield top
    if is_root:
        os.seteuid(0)
    shutil.rmtree(top)


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_acknowledged_is_there_when_permissions_come_back(place, what):
    spec, changes = CHANGES[what]
    done, modes, acknowledged = [], {}, []

    def act(number):
        done.append(number)
        if number == 2 and not modes:
            for path, mode in changes:
                modes[path] = stat.S_IMODE(os.stat(path).st_mode)
            for path, mode in reversed(changes):
                os.chmod(path, mode)
            looked = open_store(spec)
            with contextlib.suppress(CheckpointStorageError), blocking_allowed(True):
                looked.runs.load_latest("run")  # as another program does meanwhile
            with blocking_allowed(True):
                looked.close()
        return number

    @workflow
    def flow():
        for number in range(5):
            yield step(f"s{number}").python(act, number).checkpoint()
        return done[-1]

    def heard(event):
        if type(event).__name__ == "CheckpointSaved":
            acknowledged.append(event.checkpoint_id)

    store = open_store(spec)
    result = WorkflowEngine(store, listeners=[heard]).run_sync(flow, workflow_id="run")
    with blocking_allowed(True):
        store.close()
    assert isinstance(result.error, CheckpointStorageError | None), result
    for path, mode in modes.items():
        os.chmod(path, mode)
    store = open_store(spec)
    with blocking_allowed(True):
        assert {each.severity for each in store.runs.check()} == {"ok"}
        assert {each.checkpoint_id for each in store.runs.references("run")} >= {*acknowledged}
    assert WorkflowEngine(store).resume_sync(flow, workflow_id="run").unwrap() == 4
    with blocking_allowed(True):
        store.close()
    assert [done.count(int(each[1:])) for each in acknowledged if each.startswith("s")] == [1] * len(
        [each for each in acknowledged if each.startswith("s")]
    )


def test_a_run_of_another_user_stands_in_nobodys_way(place):
    @workflow
    def flow():
        return (yield step("s").python(len, "abc").checkpoint())

    engine = WorkflowEngine(open_store("file:s"))
    for run in ("other", "mine"):
        engine.run_sync(flow, workflow_id=run).unwrap()
    os.chmod("s/runs/other", 0)
    store = open_store("file:s")
    engine = WorkflowEngine(store)
    assert engine.run_sync(flow, workflow_id="new").unwrap() == 3
    assert engine.resume_sync(flow, workflow_id="mine").unwrap() == 3
    with blocking_allowed(True):
        assert sorted(info.workflow_id for info in store.runs.list_runs()) == ["mine", "new"]
        (left_out,) = store.runs.survey_runs().unreadable
    assert (left_out.workflow_id, left_out.severity) == ("other", "locked")
    assert "Permission denied" in left_out.detail
    with pytest.raises(CheckpointStorageError, match="Permission denied"):
        engine.resume_sync(flow, workflow_id="other")
    os.chmod("s/runs/other", 0o700)
    assert engine.resume_sync(flow, workflow_id="other").unwrap() == 3


def test_what_lies_beside_a_database_has_its_mode_again(tmp_path):
    """SQLite makes the WAL with the mode that the database has: read-only, if it was made at such a moment."""
    path = tmp_path / "r.db"
    with blocking_allowed(True):
        first = SqliteCheckpointStore(path)
        first.runs.save("run", checkpoint())
        for beside in ("r.db-wal", "r.db-shm"):
            (tmp_path / beside).chmod(0o444)
        second = SqliteCheckpointStore(path)
        second.runs.save("other", checkpoint())
        assert {stat.S_IMODE((tmp_path / beside).stat().st_mode) for beside in ("r.db-wal", "r.db-shm")} == {0o600}
        for store in (first, second):
            store.close()
