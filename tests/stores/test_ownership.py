"""One writer a run, among real processes: live, stopped, killed and forked ones."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import threading
import time

import pytest

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.core.system.process import ProcessIdentity, current_process, is_alive
from flowckpt.errors import (
    CheckpointStorageError,
    FencedError,
    FlowckptError,
    RunLockedError,
    UnsupportedFilesystemError,
)
from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.file.layout import temporary_name
from flowckpt.testing.contract import checkpoint, results
from tests.stores.peers import RUN, error_of, in_fork, peers_on, shown

pytestmark = pytest.mark.usefixtures("in_place")


@pytest.fixture
def peers(tmp_path):
    yield from peers_on(f"file:{tmp_path / 'store'}")


@pytest.fixture
def store(tmp_path):
    made = FileCheckpointStore(tmp_path / "store")
    yield made
    made.close()


def test_a_second_process_is_told_who_owns_the_run(peers, store):
    owner = peers()
    owner.own_and_save()
    for act in (
        lambda: store.runs.acquire(RUN, take_over=False),
        lambda: store.runs.clear(RUN),
        lambda: store.runs.delete_checkpoint(RUN, "c1"),
        lambda: store.runs.save(RUN, checkpoint(2, results("x"), attempt=2)),
    ):
        with pytest.raises(RunLockedError) as refused:
            act()
        assert f"process {owner.process.pid} on {platform.node()}" in str(refused.value)
    found = store.runs.owner(RUN)
    assert (found.pid, found.host) == (owner.process.pid, platform.node())
    assert [info.status for info in store.runs.list_runs()] == ["running"]
    assert shown(store) == [(1, "c1")]


def test_a_stopped_owner_that_was_stolen_from_is_fenced_when_it_wakes_up(peers, store):
    owner = peers()
    owner.own_and_save()
    os.kill(owner.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(RunLockedError):
            store.runs.acquire(RUN, take_over=False)
        lease = store.runs.acquire(RUN, take_over=True)
        assert lease.attempt == 2
        store.runs.save(RUN, checkpoint(2, results("x"), attempt=2, checkpoint_id="new"))
    finally:
        os.kill(owner.process.pid, signal.SIGCONT)
    for sequence in (2, 3):
        kind = owner.save(sequence, name="old")
        assert isinstance(kind, FencedError) or kind[0] is FencedError
    assert shown(store) == [(2, "new"), (1, "c1")]
    store.runs.save(RUN, checkpoint(3, results("x", "y"), attempt=2))
    assert shown(FileCheckpointStore(store.path)) == [(3, "c3"), (2, "new"), (1, "c1")]


def test_a_thief_owns_the_run_also_once_the_one_it_stole_from_is_gone(peers, store):
    owner = peers()
    owner.own_and_save()
    os.kill(owner.process.pid, signal.SIGSTOP)
    store.runs.acquire(RUN, take_over=True)
    owner.end()
    store.runs.save(RUN, checkpoint(2, results("x"), attempt=2))
    third = FileCheckpointStore(store.path)
    with pytest.raises(RunLockedError, match=str(os.getpid())):
        third.runs.acquire(RUN, take_over=False)
    assert store.runs.owner(RUN).pid == os.getpid()


def test_a_thief_that_is_busy_has_the_lock_soon_after_the_one_it_stole_from_is_gone(peers, store):
    owner = peers()
    owner.own_and_save()
    os.kill(owner.process.pid, signal.SIGSTOP)
    store.runs.acquire(RUN, take_over=True)
    store.runs.call_when_lost(RUN, lambda error: None)
    owner.end()
    end = time.monotonic() + 9  # a look each ten seconds, as an owner with a lock has it, would be too late
    while store.runs.owner(RUN) is None and time.monotonic() < end:
        time.sleep(0.05)
    with pytest.raises(RunLockedError, match=str(os.getpid())):
        FileCheckpointStore(store.path).runs.acquire(RUN, take_over=False)


def test_the_run_of_a_killed_owner_is_taken_over_without_stealing(peers, store):
    owner = peers()
    owner.own_and_save()
    owner.end()
    assert store.runs.owner(RUN) is None
    assert [info.status for info in store.runs.list_runs()] == ["crashed"]
    lease = store.runs.acquire(RUN, take_over=False)
    assert (lease.attempt, lease.latest.sequence) == (2, 1)
    store.runs.save(RUN, checkpoint(2, results("x", "y"), attempt=2))
    assert shown(store) == [(2, "c2"), (1, "c1")]


class Counting(PosixFileSystem):
    """Counts how often a directory was read."""

    reads = 0

    def names(self, directory):
        self.reads += 1
        return super().names(directory)


def first_segment(store):
    return store.path / "runs" / RUN / "00000001.jsonl"


def marks(store):
    return sorted(path.name for path in first_segment(store).parent.iterdir() if path.name.startswith(".fenced-"))


def marks_of(store, *numbers):
    inodes = {number: first_segment(store).with_name(f"{number:08d}.jsonl").stat().st_ino for number in numbers}
    return [f".fenced-{number:08d}-{inode}" for number, inode in inodes.items()]


@pytest.fixture
def time_stands_still(monkeypatch):
    monkeypatch.setattr("flowckpt.stores.file.run_writer.monotonic", lambda: 0.0)


def test_an_owner_goes_on_when_the_one_that_stole_from_it_gave_up_unwritten(store):
    store.runs.acquire(RUN, take_over=False)
    store.runs.save(RUN, checkpoint(1, results("x")))
    thief = FileCheckpointStore(store.path)
    for sequence in (2, 3):
        assert thief.runs.acquire(RUN, take_over=True).attempt == 2
        assert marks(store) == marks_of(store, 1)
        assert first_segment(store).stat().st_mode & 0o777 == 0o400
        thief.runs.release(RUN)
        store.runs.save(RUN, checkpoint(sequence, results("x")))
        assert marks(store) == []
        assert first_segment(store).stat().st_mode & 0o777 == 0o600
    thief.runs.acquire(RUN, take_over=True)
    with pytest.raises(FencedError):
        store.runs.save(RUN, checkpoint(4, results("x")))


@pytest.mark.usefixtures("time_stands_still")
def test_no_change_of_modes_undoes_a_fence(peers, store):
    owner = peers()
    owner.own_and_save()
    os.kill(owner.process.pid, signal.SIGSTOP)
    try:
        store.runs.acquire(RUN, take_over=True)
        store.runs.save(RUN, checkpoint(2, results("x"), attempt=2, checkpoint_id="new"))
        for path in store.path.rglob("*"):  # chmod -R u+w
            path.chmod(path.stat().st_mode | 0o200)
    finally:
        os.kill(owner.process.pid, signal.SIGCONT)
    kind = owner.save(2, name="old")
    assert isinstance(kind, FencedError) or kind[0] is FencedError
    assert shown(store) == [(2, "new"), (1, "c1")]


@pytest.mark.usefixtures("time_stands_still")
def test_a_run_is_fenced_also_where_files_have_no_modes(tmp_path):
    class Modeless(PosixFileSystem):
        def set_writable(self, file, is_writable):
            pass

    store = FileCheckpointStore(tmp_path / "store", filesystem=Modeless())
    store.runs.save(RUN, checkpoint(1, results("x")))
    thief = FileCheckpointStore(store.path, filesystem=Modeless())
    thief.runs.acquire(RUN, take_over=True)
    with pytest.raises(FencedError):
        store.runs.save(RUN, checkpoint(2, results("x")))


@pytest.mark.usefixtures("time_stands_still")
def test_a_backup_of_hard_links_makes_an_owner_look_and_nothing_else(tmp_path):
    filesystem = Counting()
    store = FileCheckpointStore(tmp_path / "store", filesystem=filesystem)
    store.runs.save(RUN, checkpoint(1, results("x")))
    (tmp_path / "backup").hardlink_to(first_segment(store))
    for sequence in (2, 3):
        filesystem.reads = 0
        store.runs.save(RUN, checkpoint(sequence, results("x")))
        assert filesystem.reads == 1
    FileCheckpointStore(store.path).runs.acquire(RUN, take_over=True)
    (tmp_path / "backup").unlink()
    with pytest.raises(FencedError):
        store.runs.save(RUN, checkpoint(4, results("x")))


def test_a_fence_whose_marks_somebody_removed_holds_again_after_a_second(tmp_path, monkeypatch):
    now = 100.0
    monkeypatch.setattr("flowckpt.stores.file.run_writer.monotonic", lambda: now)
    filesystem = Counting()
    store = FileCheckpointStore(tmp_path / "store", filesystem=filesystem)
    for sequence in range(1, 10):
        store.runs.save(RUN, checkpoint(sequence, results("x")))
        filesystem.reads *= sequence > 1
        now += 0.3
    assert filesystem.reads == 2  # at the fifth save, and at the ninth
    FileCheckpointStore(store.path).runs.acquire(RUN, take_over=True)
    for name in marks(store):
        first_segment(store).with_name(name).unlink()
    first_segment(store).chmod(0o600)
    now += 1
    with pytest.raises(FencedError):
        store.runs.save(RUN, checkpoint(10, results("x")))


@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_a_run_is_not_taken_where_something_else_has_the_name_of_a_mark(store, kind):
    store.runs.save(RUN, checkpoint(1, results("x")))
    mark = first_segment(store).with_name(marks_of(store, 1)[0])
    if kind == "file":
        mark.touch()
    elif kind == "directory":
        mark.mkdir()
    else:
        mark.symlink_to(first_segment(store))
    with pytest.raises(CheckpointStorageError, match="fenced"):
        FileCheckpointStore(store.path).runs.acquire(RUN, take_over=True)
    store.runs.save(RUN, checkpoint(2, results("x")))
    assert len(shown(store)) == 2


def test_a_claim_that_another_one_marked_leaves_nothing_when_it_is_given_up(store):
    store.runs.save(RUN, checkpoint(1, results("x")))
    first, second = FileCheckpointStore(store.path), FileCheckpointStore(store.path)
    first.runs.acquire(RUN, take_over=True)
    second.runs.acquire(RUN, take_over=True)
    assert marks(store) == marks_of(store, 1, 2)
    second.runs.release(RUN)
    first.runs.release(RUN)
    store.runs.save(RUN, checkpoint(2, results("x")))
    assert {path.name for path in first_segment(store).parent.iterdir()} == {"00000001.jsonl", "lock"}


@pytest.mark.parametrize("is_begun", [False, True], ids=["the thief has saved nothing", "the thief has saved"])
def test_a_removal_that_a_thief_comes_into_is_refused_though_it_can_be_read(tmp_path, is_begun):
    """Its line is there, so a reader counts it until the thief saves; the process that asked is not told that there was none."""
    thief = FileCheckpointStore(tmp_path / "store")

    class Interrupted(PosixFileSystem):
        is_armed = False

        def write(self, file, data):
            if self.is_armed and data.startswith(b'{"deletes"'):
                self.is_armed = False
                lease = thief.runs.acquire(RUN, take_over=True)
                if is_begun:
                    thief.runs.save(RUN, checkpoint(3, list(lease.latest.step_results), attempt=2))
            return super().write(file, data)

    calls = Interrupted()
    robbed = FileCheckpointStore(tmp_path / "store", filesystem=calls)
    for sequence in (1, 2):
        robbed.runs.save(RUN, checkpoint(sequence, results("x", "y")[:sequence]))
    calls.is_armed = True
    for _ in range(2):
        with pytest.raises(FencedError):
            robbed.runs.delete_checkpoint(RUN, "c1")
    assert not calls.is_armed
    if not is_begun:
        assert [name for _, name in shown(robbed)] == ["c2"]
        with pytest.raises(FencedError):
            robbed.runs.delete_checkpoint(RUN, "what never was")  # nobody knows yet what is
        thief.runs.save(RUN, checkpoint(3, results("x", "y"), attempt=2))
    assert [name for _, name in shown(robbed)] == ["c3", "c2", "c1"]
    assert not robbed.runs.delete_checkpoint(RUN, "what never was")
    for store in (robbed, thief):
        store.close()


def test_an_owner_whose_removal_was_refused_goes_on_when_the_thief_gave_up_unwritten(store):
    """Nothing was written of what was known to be refused, so nothing is in doubt."""
    for sequence in (1, 2):
        store.runs.save(RUN, checkpoint(sequence, results("x", "y")[:sequence]))
    thief = FileCheckpointStore(store.path)
    thief.runs.acquire(RUN, take_over=True)
    with pytest.raises(FencedError):
        store.runs.delete_checkpoint(RUN, "c1")
    assert [name for _, name in shown(store)] == ["c2", "c1"]
    thief.runs.release(RUN)
    assert store.runs.delete_checkpoint(RUN, "c1")
    store.runs.save(RUN, checkpoint(3, results("x", "y")))
    assert [name for _, name in shown(FileCheckpointStore(store.path))] == ["c3", "c2"]


def test_the_mark_of_a_segment_that_has_gone_is_swept_by_the_next_owner(store):
    store.runs.save(RUN, checkpoint(1, results("x")))
    store.close()
    directory = first_segment(store).parent
    (directory / ".fenced-00000007-1").touch()
    store.runs.acquire(RUN, take_over=False)
    assert marks(store) == marks_of(store, 1)


@pytest.mark.parametrize("is_refused", [False, True])
def test_one_that_slept_while_a_run_was_begun_anew_removes_nothing_of_it(store, is_refused, monkeypatch):
    """A claim that is given up, at its end or on its way, unlinks its own segment, and no other of that number."""
    path = first_segment(store)
    store.runs.save(RUN, checkpoint(1, results("x")))
    thief = FileCheckpointStore(store.path)

    def clear_and_begin_anew():
        for each in path.parent.iterdir():
            each.unlink()
        for segment in (path, path.with_name("00000002.jsonl")):
            segment.write_text("of another owner")

    def read_image(*given, **options):
        clear_and_begin_anew()
        raise OSError(5, "the medium failed")

    if is_refused:
        monkeypatch.setattr("flowckpt.stores.file.claim.read_image", read_image)
        with pytest.raises(CheckpointStorageError):
            thief.runs.acquire(RUN, take_over=True)
    else:
        assert thief.runs.acquire(RUN, take_over=True).attempt == 2
        clear_and_begin_anew()
        thief.runs.release(RUN)
    assert {each.name for each in path.parent.iterdir()} == {"00000001.jsonl", "00000002.jsonl"}
    with pytest.raises(FencedError, match="cleared"):  # though the names and their numbers are there
        store.runs.save(RUN, checkpoint(2, results("x")))


@pytest.mark.parametrize("kind", ["virtiofs", "vboxsf", "vmhgfs", "lustre", "gpfs", "ocfs2", "gfs2", "beegfs"])
def test_a_file_system_whose_count_of_names_may_be_old_is_refused(tmp_path, kind):
    class Elsewhere(PosixFileSystem):
        def type_of(self, path):
            return kind

    store = FileCheckpointStore(tmp_path / "store", filesystem=Elsewhere())
    with pytest.raises(UnsupportedFilesystemError, match=kind):
        store.runs.save(RUN, checkpoint())


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_may_not_write_to_the_run_of_its_parent(store):
    store.runs.acquire(RUN, take_over=False)
    for sequence in (1, 2):  # before the first line of the segment was written, and after
        data = checkpoint(sequence, results("x" * 70_000))
        assert in_fork(lambda data=data: error_of(lambda: store.runs.save(RUN, data))) == "CheckpointStorageError"
        in_fork(lambda: (error_of(lambda: store.runs.release(RUN)), store.close()))
        assert in_fork(lambda: error_of(lambda: store.runs.clear(RUN))) == "RunLockedError"
        assert in_fork(
            lambda: error_of(lambda: FileCheckpointStore(store.path).runs.acquire(RUN, take_over=False))
        ) == ("RunLockedError")
        store.runs.save(RUN, data)
    assert in_fork(lambda: error_of(lambda: store.runs.delete_checkpoint(RUN, "c1"))) == "CheckpointStorageError"
    assert shown(store) == [(2, "c2"), (1, "c1")]


@pytest.mark.filterwarnings("ignore:This process")
def test_a_child_that_was_forked_while_a_run_was_owned_does_not_keep_it_locked(store):
    store.runs.acquire(RUN, take_over=False)
    child = os.fork()
    if child == 0:  # what a step starts by multiprocessing, such as a pool
        signal.pause()
    try:
        assert store.runs.owner(RUN) is not None
        store.runs.save(RUN, checkpoint())
        store.runs.release(RUN)
        assert store.runs.owner(RUN) is None
        other = FileCheckpointStore(store.path)
        assert other.runs.acquire(RUN, take_over=False).latest.checkpoint_id == "c1"
        other.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_may_save_runs_of_its_own(store):
    store.runs.save(RUN, checkpoint())
    assert in_fork(lambda: error_of(lambda: store.runs.save("other", checkpoint()))) == "nothing"
    assert store.runs.load("other", "c1").sequence == 1


def test_left_over_files_of_dead_processes_are_swept_and_those_of_live_ones_are_not(store, peers):
    store.runs.save(RUN, checkpoint(1, results("x" * 70_000)))
    store.close()
    directory = store.path / "runs" / RUN
    me = current_process()
    peer = peers()
    from flowckpt.core.system.process import _start_time

    live = ProcessIdentity(me.host, me.boot_id, peer.process.pid, _start_time(peer.process.pid))
    assert is_alive(live)
    reused = ProcessIdentity(me.host, me.boot_id, peer.process.pid, live.start_time - 1)
    rebooted = ProcessIdentity(me.host, "another boot", peer.process.pid, live.start_time)
    for place in (directory, directory / "blobs"):
        for maker in (live, reused, rebooted):
            (place / temporary_name(maker, "ab")).write_text("")
        (place / ".new-other").write_text("")
    store.runs.acquire(RUN, take_over=False)
    for place in (directory, directory / "blobs"):
        left = {path.name for path in place.iterdir() if path.name.startswith(".new")}
        assert left == {temporary_name(live, "ab"), ".new-other"}


def test_looking_who_owns_a_run_never_locks_out_the_one_who_takes_it(store):
    store.runs.save(RUN, checkpoint())
    store.close()
    stop = threading.Event()
    failures = []

    def look():
        with blocking_allowed(True):
            other = FileCheckpointStore(store.path)
            while not stop.is_set():
                other.runs.owner(RUN)
                other.runs.list_runs()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        for _ in range(300):
            try:
                store.runs.acquire(RUN, take_over=False)
            except RunLockedError as error:
                failures.append(error)
            store.runs.release(RUN)
    finally:
        stop.set()
        thread.join()
    assert not failures


async def test_saves_of_one_run_at_the_same_time_are_all_there_or_refused(tmp_path):
    with blocking_allowed(False):
        store = FileCheckpointStore(tmp_path / "store")
        steps = results(*range(40))
        answers = await asyncio.gather(
            *(store.save(RUN, checkpoint(n, steps[:n])) for n in range(1, 41)), return_exceptions=True
        )
        accepted = {n for n, answer in enumerate(answers, 1) if answer is None}
        assert all(answer is None or isinstance(answer, FlowckptError) for answer in answers), answers
        assert 40 in accepted or accepted
        found = await FileCheckpointStore(store.path).list_checkpoints(RUN)
        assert {ref.sequence for ref in found} == accepted
        latest = await store.load_latest(RUN)
        assert list(latest.step_results) == steps[: max(accepted)]


def test_of_many_that_take_a_run_at_once_one_gets_it(tmp_path):
    owned, refused = [], []
    barrier = threading.Barrier(8)

    def take():
        store = FileCheckpointStore(tmp_path / "store")
        with blocking_allowed(True):
            barrier.wait()
            try:
                store.runs.acquire(RUN, take_over=False)
                owned.append(store)
            except RunLockedError:
                refused.append(store)

    for _ in range(20):
        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(owned), len(refused)) == (1, 7)
        owned.pop().close()
        refused.clear()


@pytest.mark.parametrize("seconds", [2.0])
def test_a_reader_during_saves_and_clears_never_gets_a_raw_error(tmp_path, seconds):
    """Every public way to read, while another thread saves, deletes, continues and clears: answers or errors of ours."""
    path = tmp_path / "store"
    stop = threading.Event()
    raw, seen = [], set()

    def read():
        store = FileCheckpointStore(path)
        with blocking_allowed(True):
            while not stop.is_set():
                for act in (
                    lambda: store.runs.load_latest(RUN),
                    lambda: [result.output for result in store.runs.load(RUN, "c2").step_results],
                    lambda: store.runs.references(RUN),
                    lambda: store.runs.owner(RUN),
                    store.runs.list_runs,
                    lambda: store.runs.check(None),
                    lambda: store.runs.check(RUN),
                ):
                    try:
                        act()
                        seen.add("answer")
                    except FlowckptError as error:
                        seen.add(type(error).__name__)
                    except Exception as error:
                        raw.append(error)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    try:
        while not stop.is_set():
            for attempt in (1, 2):
                store = FileCheckpointStore(path)
                try:
                    lease = store.runs.acquire(RUN, take_over=False)
                except RunLockedError:
                    continue
                if lease.attempt == attempt:
                    steps = results("a" * 70_000, "b", "c")
                    for sequence in (lease.last_sequence + 1, lease.last_sequence + 2):
                        store.runs.save(RUN, checkpoint(sequence, steps[: min(sequence, 3)], attempt=attempt))
                    store.runs.delete_checkpoint(RUN, "c1")
                if attempt == 2:
                    store.runs.clear(RUN)
                store.close()
    finally:
        stop.set()
        timer.cancel()
        for reader in readers:
            reader.join()
    assert not raw, raw[0]
    assert "answer" in seen
    assert seen <= {"answer", "CheckpointNotFoundError", "CheckpointCorruptedError", "CheckpointStorageError"}


def test_a_save_error_names_the_parent(store):
    store.runs.save(RUN, checkpoint())
    store.runs.owned[RUN]._pid = 1
    with pytest.raises(CheckpointStorageError, match="forked"):
        store.runs.save(RUN, checkpoint(2))
    store.runs.owned[RUN]._pid = os.getpid()
