"""An import, and a copy, that die at any call of the system or any statement: nothing is seen; done again, all is there.

The process that dies is a real one, forked from the test, so its locks go with it and its leftovers are a dead one's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from runs import done, exported, fill

from flowckpt import FileCheckpointStore, MemoryCheckpointStore
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import CheckpointStorageError
from flowckpt.maintenance import copy_run, export_run, import_run
from flowckpt.stores import SqliteCheckpointStore
from flowckpt.stores.sqlite.database import SqliteSession

CALLS = (
    *("open_root", "make_root", "open_directory", "make_directory", "remove_directory", "create", "open_read"),
    *("open_lock", "write", "read", "sync_data", "sync", "close", "link", "rename", "unlink", "names", "status"),
    *("set_writable", "exists", "is_named", "lock"),
)


class DyingFileSystem(PosixFileSystem):
    """Ends the process at its n-th call: before it, or right behind it."""

    def __init__(self, at: int, *, is_after: bool) -> None:
        self.left, self.is_after, self.made = at, is_after, 0
        for name in CALLS:
            setattr(self, name, self._dying(getattr(self, name)))

    def _dying(self, call):
        def counted(*arguments):
            self.made += 1
            self.left -= 1
            if self.left == 0 and not self.is_after:
                os._exit(9)
            returned = call(*arguments)
            if self.left == 0:
                os._exit(9)
            return returned

        return counted


def in_a_process(work):
    """Do work in a child and return its exit code; 0 where it came to its end."""
    child = os.fork()
    if not child:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def file(source, tmp_path):
    done(export_run(source, "run", tmp_path / "file"))
    return tmp_path / "file"


def names_under(place):
    return sorted(name for name in os.listdir(place) if name.startswith(".new-"))


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "behind"])
def test_an_import_may_die_at_every_call_of_the_file_store(source, file, tmp_path, is_after, is_soak):
    wanted = exported(source)
    counting = DyingFileSystem(0, is_after=False)
    done(import_run(FileCheckpointStore(tmp_path / "count", filesystem=counting), file))
    assert counting.made > 150
    deaths = []
    # Those of the last acts one by one; of the many like ones before, some, and with --soak all.
    every = 1 if is_soak else 20
    numbers = [n for n in range(1, counting.made + 1) if n % every == 0 or n > counting.made - 12]
    for number in numbers:
        place = tmp_path / f"store-{number}"
        other = FileCheckpointStore(place)
        fill(other, "neighbour", large="small")
        neighbour = exported(other, "neighbour")

        def die(place=place, number=number):
            dying = FileCheckpointStore(place, filesystem=DyingFileSystem(number, is_after=is_after))
            done(import_run(dying, file))

        deaths.append(in_a_process(die))
        store = FileCheckpointStore(place)
        seen = {info.workflow_id for info in done(store.list_runs())}
        if "run" in seen:
            assert exported(store) == wanted, "half a run is seen"
        else:
            assert done(store.load_latest("run")) is None
        assert {finding.severity for finding in done(store.check())} == {"ok"}
        again = done(import_run(store, file))
        assert again.is_new is ("run" not in seen)
        assert exported(store) == wanted
        assert exported(store, "neighbour", "run") == neighbour.replace(b'"neighbour"', b'"run"')
        assert {info.workflow_id for info in done(store.list_runs())} == {"run", "neighbour"}
        if again.is_new:
            assert names_under(place / "runs") == [], "what the dead process left is still there"
        store.close()
    assert deaths.count(9) > 0.8 * len(numbers), "only calls that fail, as on a name that is taken, end otherwise"
    assert set(deaths) <= {0, 9}


@pytest.mark.parametrize("errno_of", ["ENOSPC", "EIO"])
def test_a_disk_that_fails_anywhere_leaves_nothing_behind_but_an_error(file, tmp_path, errno_of):
    import errno

    code = getattr(errno, errno_of)
    counting = DyingFileSystem(0, is_after=False)
    done(import_run(FileCheckpointStore(tmp_path / "count", filesystem=counting), file))
    for number in range(1, counting.made + 1, 9):
        place = tmp_path / f"{number}"
        failing = PosixFileSystem()
        left = [number]
        for name in ("write", "sync_data", "sync", "create", "link", "rename", "make_directory"):
            plain = getattr(failing, name)

            def failed(*arguments, plain=plain):
                left[0] -= 1
                if left[0] == 0:
                    raise OSError(code, os.strerror(code))
                return plain(*arguments)

            setattr(failing, name, failed)
        store = FileCheckpointStore(place, filesystem=failing)
        try:
            done(import_run(store, file))
            break
        except CheckpointStorageError as error:
            assert error.is_outcome_unknown or done(FileCheckpointStore(place).list_runs()) == []
        if place.exists() and (place / "runs").exists() and "run" not in os.listdir(place / "runs"):
            assert names_under(place / "runs") == []
            assert done(import_run(FileCheckpointStore(place), file)).is_new
    else:
        pytest.fail("it never came to its end")


@pytest.mark.parametrize("way", ["import", "copy"])
def test_it_may_die_at_every_statement_of_the_sqlite_store(source, file, tmp_path, way):
    wanted = exported(source)

    def act(store):
        done(import_run(store, file) if way == "import" else copy_run(source, store, "run"))

    for number in range(1, 400, 7):
        place = tmp_path / f"{number}.db"

        def die(place=place, number=number):
            left = [number]
            plain = SqliteSession.change

            def change(session, statement, parameters=()):
                left[0] -= 1
                if left[0] == 0:
                    os._exit(9)
                return plain(session, statement, parameters)

            SqliteSession.change = change
            act(SqliteCheckpointStore(place))

        code = in_a_process(die)
        store = SqliteCheckpointStore(place)
        if code == 9:
            assert done(store.list_runs()) == []
            assert done(store.load_latest("run")) is None
        act(store)
        assert exported(store) == wanted
        assert {finding.severity for finding in done(store.check())} == {"ok"}
        store.close()
        if code == 0:
            break
    else:
        pytest.fail("it never came to its end")
    assert number > 30


def test_a_copy_of_all_runs_that_is_killed_is_completed_by_doing_it_again(tmp_path):
    home = FileCheckpointStore(tmp_path / "home")
    for number in range(12):
        fill(home, f"run-{number}")
    home.close()
    words = [sys.executable, "-m", "flowckpt", "copy", "--all", "--store", f"file:{tmp_path / 'home'}"]
    words += ["--to", f"file:{tmp_path / 'there'}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=os.getcwd()) as process:
        for _ in range(3):
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    there = FileCheckpointStore(tmp_path / "there")
    before = {info.workflow_id for info in done(there.list_runs())}
    assert 2 < len(before) < 12
    assert subprocess.run(words, capture_output=True, check=True, cwd=os.getcwd()).returncode == 0
    assert len(done(there.list_runs())) == 12
    for number in range(12):
        assert exported(there, f"run-{number}") == exported(home, f"run-{number}")
    assert names_under(tmp_path / "there" / "runs") == []


def test_two_who_bring_the_same_run_at_once_bring_it_once(file, source, tmp_path):
    start = time.monotonic() + 0.5

    def bring():
        time.sleep(max(0, start - time.monotonic()))
        done(import_run(FileCheckpointStore(tmp_path / "store"), file))

    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            code = 1
            try:
                bring()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert set(codes) <= {0, 1}
    assert 0 in codes
    store = FileCheckpointStore(tmp_path / "store")
    assert exported(store) == exported(source)
    assert len(done(store.list_runs())) == 1
    assert done(import_run(MemoryCheckpointStore(), file)).is_new


def test_all_of_a_run_is_on_the_disk_before_it_has_its_name(file, tmp_path):
    calls = PosixFileSystem()
    dirty, told = {}, []
    for name in ("write", "sync_data", "sync", "rename", "create", "close"):
        plain = getattr(calls, name)

        def noted(*arguments, name=name, plain=plain):
            returned = plain(*arguments)
            if name == "write":
                dirty[os.readlink(f"/proc/self/fd/{arguments[0]}")] = True
            elif name in ("sync_data", "sync"):
                dirty.pop(os.readlink(f"/proc/self/fd/{arguments[0]}"), None)
                told.append("sync")
            elif name == "rename" and arguments[2] == "run":
                assert dirty == {}, "something was never synced"
                told.append("rename")
            elif name == "rename":  # a large value, whose name is another one now
                place = os.readlink(f"/proc/self/fd/{arguments[0]}")
                if dirty.pop(f"{place}/{arguments[1]}", None):
                    dirty[f"{place}/{arguments[2]}"] = True
            return returned

        setattr(calls, name, noted)
    done(import_run(FileCheckpointStore(tmp_path / "store", filesystem=calls), file))
    assert told[-2:] == ["rename", "sync"], "the name is synced last"
    assert dirty == {}
    assert told.count("sync") < 40
