"""A process that dies anywhere in a prune, a clear, a removal of checkpoints or a compaction: done again, it is finished.

Nothing that was to stay is lost, and nothing that was removed comes back.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path
from random import randrange
from typing import Any

import pytest

from flowckpt import FileCheckpointStore, WorkflowEngine, in_sync, prune, step, workflow
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import FlowckptError
from flowckpt.maintenance.prune import prune_checkpoints
from flowckpt.stores import SqliteCheckpointStore
from flowckpt.stores.log.sealing.keys import KeyRing
from flowckpt.stores.sqlite.database import SqliteSession
from flowckpt.testing.abilities import signal
from flowckpt.testing.retention import read_everything
from tests.forked import Started
from tests.sealing.sealed_runs import ENCRYPT, NEXT

LARGE = "x" * 70_000


class Killed(BaseException):
    """The process died here."""


class DyingFileSystem(PosixFileSystem):
    """Dies, or fails, before its n-th change of the disk."""

    CHANGES = (
        *("write", "sync", "sync_data", "create", "link", "rename", "unlink"),
        *("make_directory", "remove_directory", "set_writable"),
    )

    def __init__(self, left: int, *, is_failing: bool) -> None:
        self.left = left
        self.is_dead = False
        self._is_failing = is_failing
        for name in self.CHANGES:
            setattr(self, name, self._dying(getattr(self, name)))

    def _dying(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any) -> Any:
            self.left -= 1
            if self.is_dead or self.left == 0:
                self.is_dead = not self._is_failing
                raise OSError(errno.EIO, "input/output error") if self._is_failing else Killed
            return call(*arguments)

        return changed


def make(number: int) -> str:
    return f"{number}{LARGE}"


def fail_once(number: int) -> int:
    if not Path("mended").exists():
        raise ValueError("not yet")
    return number


@workflow
def work(count: int = 3):
    for number in range(count):
        yield step("make").python(make, number).checkpoint()
    return (yield step("fail").python(fail_once, count))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Another working directory; and nothing else runs here, as in the command line, so no thread is waited for."""
    monkeypatch.chdir(tmp_path)
    with blocking_allowed(True):
        yield


def filled(store):
    """A completed run of three attempts, one of which went back; one that failed; one that completed at once."""
    engine = WorkflowEngine(store)
    engine.run_sync(work, workflow_id="run")
    in_sync(engine).rollback("run", "make[1]")
    engine.run_sync(work, workflow_id="failed", count=1)
    Path("mended").touch()
    engine.resume_sync(work, workflow_id="run")
    engine.run_sync(work, workflow_id="done", count=2)
    Path("mended").unlink()


def prune_all(store):
    asyncio.run(prune(store, keep=0))


def prune_one(store):
    asyncio.run(prune_checkpoints(store, "run", keep=1))


def compact(store):
    asyncio.run(store.compact("run", is_forced=True))


def clear(store):
    asyncio.run(store.clear("run"))


def roll_back(store):
    in_sync(WorkflowEngine(store)).rollback("run", "make")


def closed_locks():
    """Close the files that a simulated death left open, so that their locks are given back."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if "/store/" in target or target.endswith("/store"):
            os.close(int(name))


def files_of(run):
    """The files of a run and what they hold; nothing where it has gone."""
    return {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def check(path, before, template, act, **protection):
    """What holds after a death, and after doing it again. A run whose files are as they were tells what it told."""
    store = FileCheckpointStore(path, **protection)
    assert all(finding.severity != "corrupt" for finding in asyncio.run(store.check()))
    now = {
        run: before[run] if files_of(path / "runs" / run) == template[run] else asyncio.run(read_everything(store, run))
        for run in ("run", "failed", "done")
    }
    is_there = {run for run in now if now[run]["latest"] is not None}
    assert now["failed"] == before["failed"]
    for run in is_there:
        if act is roll_back and run == "run":
            continue
        assert now[run]["latest"] == before[run]["latest"]
        kept = [each for each in before[run]["checkpoints"] if each in now[run]["checkpoints"]]
        assert kept == now[run]["checkpoints"], "no checkpoint is there that was not"
        removed = {each.sequence for each in before[run]["checkpoints"] if each not in kept}
        for number, references in now[run]["listed"].items():
            assert not removed & {each.sequence for each in references}, "what was removed is not left behind either"
            assert [each["sequence"] for each in now[run]["read"][number]] == [each.sequence for each in references]
    for run in {"run", "failed", "done"} - is_there:  # whole, or gone altogether
        assert now[run]["checkpoints"] == []
        assert now[run]["info"] is None
    return now


@pytest.mark.parametrize("is_failing", [False, True], ids=["dies", "fails"])
@pytest.mark.parametrize("act", [prune_all, prune_one, compact, clear, roll_back], ids=lambda act: act.__name__)
def test_it_may_stop_at_every_change_of_the_disk(tmp_path, is_soak, act, is_failing):
    """Each time at every other change, the odd ones or the even ones; with --soak at each."""
    stop_everywhere(tmp_path, act, 1 if is_soak else 2, 0 if is_soak or is_failing else -1, is_failing=is_failing)


@pytest.mark.parametrize("act", [prune_one, compact], ids=lambda act: act.__name__)
def test_it_may_stop_at_every_change_of_the_disk_in_a_store_with_a_key(tmp_path, is_soak, act):
    """The key was rotated since the run was written: so the pack, the large values and the messages are sealed again.

    At every sixth change, each time at others; with --soak at each.
    """
    rotated = {"keys": KeyRing([NEXT, ENCRYPT])}
    stop_everywhere(
        tmp_path,
        act,
        1 if is_soak else 6,
        0 if is_soak else -randrange(6),
        written={"keys": KeyRing([ENCRYPT])},
        **rotated,
    )


def stop_everywhere(tmp_path, act, stride, first, *, is_failing=False, written=(), **protection):
    """Let an act die, or fail, at each `stride`-th change of the disk, from `first` on."""
    template = tmp_path / "template"
    filled(FileCheckpointStore(template, **dict(written)))
    messages = [signal("one"), signal("two", LARGE)] if written else []
    for each in messages:
        FileCheckpointStore(template, **dict(written)).runs.send_signal("run", each)
    reader = FileCheckpointStore(template, **protection)
    before = {run: asyncio.run(read_everything(reader, run)) for run in ("run", "failed", "done")}
    files = {run: files_of(template / "runs" / run) for run in before}
    assert all(files.values())
    number, is_done = first, False
    while not is_done:
        number += stride
        path = tmp_path / f"{number}" / "store"
        path.parent.mkdir()
        shutil.copytree(template, path)
        calls = DyingFileSystem(number, is_failing=is_failing)
        store = FileCheckpointStore(path, filesystem=calls, **protection)
        try:
            act(store)
        except (Killed, FlowckptError):
            pass
        is_done = calls.left > 0
        store.runs.owned.clear()
        closed_locks()
        check(path, before, files, act, **protection)
        if messages:
            assert FileCheckpointStore(path, **protection).runs.signals("run") == messages
        act(FileCheckpointStore(path, **protection))
        after = check(path, before, files, act, **protection)
        gone = {run for run in after if after[run]["latest"] is None}
        expected = {prune_all: {"run", "done"}, clear: {"run"}}
        assert gone == expected.get(act, set())
        if act is prune_one:
            assert len(after["run"]["checkpoints"]) == 1
        if act is compact:
            assert after == before
        if act is roll_back:
            assert [path for path, _, _ in after["run"]["latest"]["step_results"]] == ["make"]
        if act in (compact, prune_one):
            assert len(list((path / "runs" / "run").glob("*.jsonl"))) == 1
            assert not list((path / "runs" / "run" / "blobs").glob(".orphan*"))
        if written:
            renewed = FileCheckpointStore(path, keys=KeyRing([NEXT]))
            assert asyncio.run(read_everything(renewed, "run")) == after["run"]
            assert renewed.runs.signals("run") == messages
        shutil.rmtree(path.parent)
    assert number > 8


@pytest.mark.parametrize("act", [prune_all, prune_one, compact, clear], ids=lambda act: act.__name__)
def test_a_transaction_may_stop_at_every_statement(tmp_path, monkeypatch, is_soak, act):
    """Where there are many, at every fifth statement, each time at others; with --soak at each."""
    template = tmp_path / "template.db"
    store = SqliteCheckpointStore(template)
    filled(store)
    asyncio.run(store.delete_sequences("run", [2]))
    before = {run: asyncio.run(read_everything(store, run)) for run in ("run", "failed", "done")}
    store.close()
    left = [0]

    def dying(call):
        def change(self, *arguments):
            left[0] -= 1
            if left[0] == 0:
                raise Killed
            return call(self, *arguments)

        return change

    for name in ("change", "execute"):
        monkeypatch.setattr(SqliteSession, name, dying(getattr(SqliteSession, name)))
    stride = 1 if is_soak or act in (compact, clear) else 5
    number, is_done = -randrange(stride), False
    while not is_done:
        number += stride
        path = tmp_path / f"{number}.db"
        path.write_bytes(template.read_bytes())
        store = SqliteCheckpointStore(path)
        left[0] = number
        try:
            act(store)
        except Killed:
            pass
        is_done = left[0] > 0
        left[0] = 0
        store.runs.owned.clear()
        store.runs.database.close()
        for is_again in (False, True):
            again = SqliteCheckpointStore(path)
            if is_again:
                monkeypatch.setattr("flowckpt.stores.leases.is_alive", lambda process: False)
                act(again)
                monkeypatch.undo()
                for name in ("change", "execute"):
                    monkeypatch.setattr(SqliteSession, name, dying(getattr(SqliteSession, name)))
                monkeypatch.chdir(tmp_path)
            now = {run: asyncio.run(read_everything(again, run)) for run in ("run", "failed", "done")}
            assert now["failed"] == before["failed"]
            for run in now:
                assert now[run]["latest"] in (None, before[run]["latest"])
                if act is compact:
                    assert {**now[run], "info": None, "left": None, "listed": None} == {
                        **before[run],
                        "info": None,
                        "left": None,
                        "listed": None,
                    }
            again.close()
        gone = {run for run in now if now[run]["latest"] is None}
        assert gone == {prune_all: {"run", "done"}, clear: {"run"}}.get(act, set())
        path.unlink()
    assert number > 3


PROGRAM = """
    import os, sys
    import flowckpt.stores.{kind} as module
    left = [int(sys.argv[1])]
    def dying(call):
        def dies(self, *arguments):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), 9)
            return call(self, *arguments)
        return dies
    for name in {names!r}:
        setattr(module.{cls}, name, dying(getattr(module.{cls}, name)))
    from flowckpt.cli import main
    main(sys.argv[2:])
"""


@pytest.mark.parametrize("kind", ["file", "sqlite"])
def test_the_real_command_is_killed_in_the_middle(tmp_path, kind):
    spec = "file:store" if kind == "file" else "sqlite:store.db"
    store = FileCheckpointStore("store") if kind == "file" else SqliteCheckpointStore("store.db")
    filled(store)
    before = asyncio.run(read_everything(store, "failed"))
    store.close()
    names = ("unlink", "link", "sync") if kind == "file" else ("change",)
    place = {"file": "file.location", "sqlite": "sqlite.database"}[kind]
    cls = {"file": "PosixFileSystem", "sqlite": "SqliteSession"}[kind]
    program = textwrap.dedent(PROGRAM).format(kind=place, names=names, cls=cls)
    Path("program.py").write_text(program)
    codes = []
    for number in (2, 5, 9, 10**9):
        pipe = subprocess.PIPE
        words = ["program.py", number, "store", "prune", "--keep", "0", "--store", spec]
        process = Started(words, stdout=pipe, stderr=pipe)
        process.communicate(timeout=120)
        codes.append(process.returncode)
        store = FileCheckpointStore("store") if kind == "file" else SqliteCheckpointStore("store.db")
        assert asyncio.run(read_everything(store, "failed")) == before
        store.close()
    assert -9 in codes
    assert codes[-1] == 0
    assert [info.workflow_id for info in asyncio.run(store.list_runs())] == ["failed"]
    store.close()
