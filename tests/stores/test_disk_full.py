"""A disk that is full or fails: the outcome is called unknown, nothing more is written, and a resume continues."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import textwrap

import pytest

from flowckpt.core.records import Status
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import CheckpointCorruptedError, CheckpointStorageError, DiskFullError, EncodingError
from flowckpt.maintenance.prune import prune, prune_checkpoints
from flowckpt.stores import FileCheckpointStore, SqliteCheckpointStore
from flowckpt.stores.log.sealing.keys import AUTHENTICATE, KeyRing, new_key
from flowckpt.stores.sql import rows
from flowckpt.testing.contract import checkpoint, results
from tests.small_disk import mounted_disk

pytestmark = pytest.mark.usefixtures("in_place")

RUN = "run-1"


def shown(path):
    return [ref.sequence for ref in FileCheckpointStore(path).runs.references(RUN)]


def is_refused_for_good(store, sequence, steps):
    """The save that failed says that its outcome is unknown; later ones are refused without a write."""
    with pytest.raises(CheckpointStorageError) as failed:
        store.runs.save(RUN, checkpoint(sequence, steps))
    assert failed.value.is_outcome_unknown
    assert failed.value.operation == "save"
    for _ in range(2):
        with pytest.raises(CheckpointStorageError, match="earlier save") as refused:
            store.runs.save(RUN, checkpoint(sequence, steps))
        assert refused.value.is_outcome_unknown


CHILD = textwrap.dedent(
    """
    import resource, signal, sys
    from flowckpt.core.system.blocking import blocking_allowed
    from flowckpt.errors import CheckpointStorageError
    from flowckpt.stores import FileCheckpointStore, SqliteCheckpointStore
    from flowckpt.testing.contract import checkpoint, results

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = FileCheckpointStore(sys.argv[1])
    with blocking_allowed(True):
        store.runs.acquire("run-1", take_over=False)
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
        steps = results(*["x" * int(sys.argv[3])] * 100)
        refused = 0
        for sequence in range(1, 101):
            try:
                store.runs.save("run-1", checkpoint(sequence, steps[:sequence]))
            except CheckpointStorageError as error:
                assert error.is_outcome_unknown
                refused += 1
            else:
                assert not refused, "saved after a failure"
                print(sequence)
        assert refused > 1
    """
)


@pytest.mark.parametrize(("limit", "length"), [(4_000, 300), (4_096, 700), (60_000, 70_000)])
def test_a_file_size_limit_loses_nothing_that_was_acknowledged(tmp_path, limit, length):
    path = tmp_path / "store"
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), str(limit), str(length)], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    acknowledged = [int(line) for line in ran.stdout.split()]
    found = shown(path)
    assert found[::-1][: len(acknowledged)] == acknowledged
    assert len(found) <= len(acknowledged) + 1
    store = FileCheckpointStore(path)
    lease = store.runs.acquire(RUN, take_over=False)
    steps = results(*["x" * length] * (len(found) + 1))
    store.runs.save(RUN, checkpoint(lease.last_sequence + 1, steps, attempt=lease.attempt))
    assert shown(path) == [lease.last_sequence + 1, *found]


@pytest.fixture
def small_disk(tmp_path):
    with mounted_disk(tmp_path / "disk", "256k") as place:
        yield place


@pytest.mark.parametrize("length", [1_000, 70_000])
def test_a_full_disk_loses_nothing_and_the_run_goes_on_once_there_is_room(small_disk, length):
    path = small_disk / "store"
    store = FileCheckpointStore(path)
    store.runs.acquire(RUN, take_over=False)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 100_000)
    acknowledged = 0
    steps = results(*[f"{n}" + "x" * length for n in range(1_000)])
    with pytest.raises(CheckpointStorageError):
        while True:
            store.runs.save(RUN, checkpoint(acknowledged + 1, steps[: acknowledged + 1]))
            acknowledged += 1
    assert acknowledged
    with pytest.raises(CheckpointStorageError, match="earlier save"):
        store.runs.save(RUN, checkpoint(acknowledged + 1, steps[: acknowledged + 1]))
    store.close()
    assert shown(path)[-acknowledged:] == list(range(acknowledged, 0, -1))
    full = FileCheckpointStore(path)
    (small_disk / "more").write_bytes(b"")
    try:
        lease = full.runs.acquire(RUN, take_over=False)
        full.close()
        assert lease.last_sequence >= acknowledged
    except CheckpointStorageError as error:
        assert "space" in str(error)
    ballast.unlink()
    again = FileCheckpointStore(path)
    lease = again.runs.acquire(RUN, take_over=False)
    sequence = lease.last_sequence + 1
    again.runs.save(RUN, checkpoint(sequence, steps[:sequence], attempt=lease.attempt))
    assert shown(path)[0] == sequence
    again.close()
    assert not list(path.rglob(".new-*"))


@pytest.fixture
def seals(request):
    return {"keys": KeyRing([new_key(AUTHENTICATE)])} if request.param == "sealed" else {}


@pytest.mark.parametrize("seals", ["plain", "sealed"], indirect=True)
@pytest.mark.parametrize("command", ["clear", "prune", "clear without a step"])
async def test_runs_can_be_removed_from_a_full_disk(small_disk, seals, command):
    store = FileCheckpointStore(small_disk / "store", **seals)
    for name in ("one", "two"):
        await store.save(name, checkpoint(1, results("x")))
        if not command.endswith("step"):
            store.note_started(name, "step")
        await store.save(name, checkpoint(2, results("x", "y"), status=Status.COMPLETED))
        await store.release(name)
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "more").write_bytes(b"x")
    with pytest.raises(CheckpointStorageError, match="No space left") as refused:
        await store.acquire("one")
    assert "flowckpt store clear RUN" in refused.value.remedy
    if command == "prune":
        report = await prune(store, keep=1)
        assert [each.workflow_id for each in report.runs] == ["one"]
    else:
        await store.clear("one")
    assert [each.workflow_id for each in await store.list_runs()] == ["two"]
    assert {each.severity for each in await store.check()} == {"ok"}
    assert not (small_disk / "store" / "runs" / "one").exists()
    (small_disk / "more").write_bytes(b"x")
    await store.clear("two")
    store.close()


@pytest.mark.usefixtures("sqlite_library")
@pytest.mark.parametrize("command", ["clear", "prune", "prune many"])
async def test_runs_can_be_removed_from_a_database_on_a_full_disk(tmp_path, command):
    steps = results(*["x" * 300] * 100)
    runs = [f"run-{number:02}" for number in range(30 if command.endswith("many") else 2)]
    with mounted_disk(tmp_path / "disk", "16m") as place:
        store = SqliteCheckpointStore(place / "runs.db")
        for run in runs:
            await store.save(run, checkpoint(1, steps, status=Status.COMPLETED))
            await store.release(run)
        store.close()
        with contextlib.suppress(OSError), (place / "ballast").open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        store = SqliteCheckpointStore(place / "runs.db")
        assert len(await store.list_runs()) == len(runs)
        with pytest.raises(DiskFullError):
            await store.acquire("run-00")
        with pytest.raises(OSError, match="No space left"):
            (place / "more").write_bytes(b"x")
        if command == "clear":
            await store.clear("run-00")
        else:
            report = await prune(store, keep=1)
            assert [each.workflow_id for each in report.runs] == runs[-2::-1]
        assert [each.workflow_id for each in await store.list_runs()] == runs[-1:]
        store.close()
        (place / "more").write_bytes(b"x")
        assert (place / "runs.db-reserve").stat().st_blocks * 512 >= 512 * 1024
        store = SqliteCheckpointStore(place / "runs.db")
        assert {each.severity for each in await store.check()} == {"ok"}
        await store.clear(runs[-1])
        store.close()


def fill(place):
    with contextlib.suppress(OSError), (place / "ballast").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    with pytest.raises(OSError, match="No space left"):
        (place / "more").write_bytes(b"x")


async def save_run(store, name, length, *, steps=20):
    recorded = results(*[f"{n}" + "x" * length for n in range(steps)])
    for n in range(1, steps + 1):
        status = Status.COMPLETED if n == steps else Status.RUNNING
        await store.save(name, checkpoint(n, recorded[:n], status=status))
    await store.release(name)


@pytest.mark.usefixtures("sqlite_library")
@pytest.mark.parametrize("kind", ["file", "sealed", "sqlite"])
async def test_checkpoints_of_one_run_can_be_removed_from_a_full_disk(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(rows, "DELETED_AT_ONCE", 7)
    with mounted_disk(tmp_path / "disk", "4m") as place:
        keys = KeyRing([new_key(AUTHENTICATE)]) if kind == "sealed" else None

        def opened():
            if kind == "sqlite":
                return SqliteCheckpointStore(place / "runs.db")
            return FileCheckpointStore(place / "store", keys=keys)

        reserve = place / ("runs.db-reserve" if kind == "sqlite" else "store/reserve")
        store = opened()
        for name in ("one", "two"):
            await save_run(store, name, 300)
        store.close()
        assert reserve.stat().st_blocks * 512 >= 512 * 1024
        fill(place)
        store = opened()
        with pytest.raises(DiskFullError):
            await store.acquire("one")
        for name in ("one", "two"):
            gone, freed = await prune_checkpoints(store, name, keep=3)
            assert (sorted(gone), freed > 0) == (list(range(1, 18)), True)
            assert [each.sequence for each in await store.list_checkpoints(name)] == [20, 19, 18]
        store.close()
        assert reserve.stat().st_blocks * 512 >= 512 * 1024, "the room is kept again"
        store = opened()
        assert {each.severity for each in await store.check()} == {"ok"}
        assert len((await store.load("one", "c20")).step_results) == 20
        store.close()


async def test_a_run_that_has_no_room_to_be_rewritten_stays_whole_and_the_error_says_what_makes_room(tmp_path):
    with mounted_disk(tmp_path / "disk", "4m") as place:
        store = FileCheckpointStore(place / "store")
        for name in ("one", "two"):
            await save_run(store, name, 50_000)
        fill(place)
        with pytest.raises(DiskFullError, match=r"rewritten run needs about 1,0\d\d,\d{3} bytes") as refused:
            await prune_checkpoints(store, "one", keep=3)
        assert refused.value.remedy.startswith("Remove other runs first ('flowckpt store clear RUN'")
        assert [each.sequence for each in await store.list_checkpoints("one")] == [20, 19, 18]
        assert len((await store.load("one", "c20")).step_results) == 20
        assert {each.severity for each in await store.check()} == {"ok"}
        await store.clear("two")  # the room for it
        gone, freed = await prune_checkpoints(store, "one", keep=3)
        assert (gone, freed > 0) == ([], True)
        assert {each.severity for each in await store.check()} == {"ok"}
        store.close()


@pytest.mark.usefixtures("sqlite_library")
@pytest.mark.parametrize("number", [errno.EIO, None])
async def test_a_page_that_cannot_be_read_is_an_error_of_the_disk_and_no_damage(tmp_path, monkeypatch, number):
    """SQLite says "malformed" of both: a page whose read fails, and one that holds something else."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    path = tmp_path / "runs.db"
    store = SqliteCheckpointStore(path)
    await save_run(store, "one", 300)
    store.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * len(content[4096:])
    path.write_bytes(content)
    if number is not None:
        monkeypatch.setattr(os, "pread", refuse)
    with pytest.raises(CheckpointStorageError if number else CheckpointCorruptedError) as found:
        await SqliteCheckpointStore(path).load_latest("one")
    assert ("Input/output error" if number else "malformed") in found.value.message


class Failing(PosixFileSystem):
    """Fails the n-th call of one kind, counted from when it is armed."""

    def __init__(self):
        self.left = {}
        self.calls = []

    def arm(self, call, left=1):
        self.left[call] = left

    def hit(self, call):
        self.calls.append(call)
        if call in self.left:
            self.left[call] -= 1
            if self.left[call] == 0:
                del self.left[call]
                raise OSError(errno.EIO, "Input/output error")

    def write(self, file, data):
        self.hit("write")
        return super().write(file, data)

    def sync_data(self, file):
        self.hit("sync_data")
        super().sync_data(file)

    def sync(self, file):
        self.hit("sync")
        super().sync(file)

    def rename(self, parent, source, target):
        self.hit("rename")
        super().rename(parent, source, target)

    def is_untouched(self, *given):
        self.hit("is_untouched")
        return super().is_untouched(*given)


@pytest.mark.parametrize("call", ["write", "sync_data", "is_untouched"])
def test_a_failed_save_is_never_tried_again_by_the_same_writer(tmp_path, call):
    filesystem = Failing()
    store = FileCheckpointStore(tmp_path / "store", filesystem=filesystem)
    steps = results("a", "b", "c")
    store.runs.save(RUN, checkpoint(1, steps[:1]))
    filesystem.arm(call)
    filesystem.calls.clear()
    is_refused_for_good(store, 2, steps[:2])
    assert (filesystem.calls.count("write"), filesystem.calls.count("sync_data")) == (1, int(call != "write"))
    store.close()
    again = FileCheckpointStore(tmp_path / "store")
    lease = again.runs.acquire(RUN, take_over=False)
    assert lease.attempt == 2
    assert lease.last_sequence in (1, 2)
    again.runs.save(RUN, checkpoint(3, steps, attempt=2))
    assert shown(tmp_path / "store") in ([3, 1], [3, 2, 1])


@pytest.mark.parametrize("call", ["write", "sync_data", "sync", "rename"])
def test_a_large_value_that_cannot_be_written_is_a_failed_save(tmp_path, call):
    filesystem = Failing()
    store = FileCheckpointStore(tmp_path / "store", filesystem=filesystem)
    store.runs.save(RUN, checkpoint(1))
    filesystem.arm(call)
    is_refused_for_good(store, 2, results("x" * 70_000))
    store.close()
    again = FileCheckpointStore(tmp_path / "store")
    again.runs.acquire(RUN, take_over=False)
    again.runs.save(RUN, checkpoint(2, results("x" * 70_000), attempt=2))
    assert FileCheckpointStore(tmp_path / "store").runs.load(RUN, "c2").step_results[0].output == "x" * 70_000
    assert not list((tmp_path / "store").rglob(".new-*"))


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("left", [1, 2, 3, 4])
def test_a_claim_that_fails_leaves_the_run_to_the_next_one(tmp_path, call, left):
    store = FileCheckpointStore(tmp_path / "store")
    store.runs.save(RUN, checkpoint(1))
    store.close()
    filesystem = Failing()
    failing = FileCheckpointStore(tmp_path / "store", filesystem=filesystem)
    filesystem.arm(call, left)
    try:
        failing.runs.acquire(RUN, take_over=False)
    except CheckpointStorageError as error:
        assert not error.is_outcome_unknown
        assert error.operation == "acquire"
    failing.close()
    again = FileCheckpointStore(tmp_path / "store")
    lease = again.runs.acquire(RUN, take_over=False)
    again.runs.save(RUN, checkpoint(2, attempt=lease.attempt))
    assert shown(tmp_path / "store") == [2, 1]
    assert not list((tmp_path / "store").rglob(".new-*"))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError, GeneratorExit])
def test_an_interrupted_save_poisons_the_writer_too(tmp_path, interruption):
    class Interrupted(PosixFileSystem):
        armed = False

        def sync_data(self, file):
            if self.armed:
                raise interruption
            super().sync_data(file)

    filesystem = Interrupted()
    store = FileCheckpointStore(tmp_path / "store", filesystem=filesystem)
    store.runs.save(RUN, checkpoint(1))
    filesystem.armed = True
    with pytest.raises(interruption):
        store.runs.save(RUN, checkpoint(2))
    filesystem.armed = False
    with pytest.raises(CheckpointStorageError, match="earlier save"):
        store.runs.save(RUN, checkpoint(2))


def test_a_value_that_is_refused_does_not_poison_the_writer(tmp_path):
    store = FileCheckpointStore(tmp_path / "store")
    store.runs.save(RUN, checkpoint(1))
    with pytest.raises(EncodingError):
        store.runs.save(RUN, checkpoint(2, results(object())))
    store.runs.save(RUN, checkpoint(2))
    assert shown(tmp_path / "store") == [2, 1]
