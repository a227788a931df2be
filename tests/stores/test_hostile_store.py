"""What somebody planted in the store's directory: nothing is followed, waited for, or mistaken for the run."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import pytest

from flowckpt.core.system import filesystem
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.filesystem import PosixFileSystem, _type_in_table
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointStorageError,
    FlowckptError,
    ForeignRecordError,
    UnsupportedFilesystemError,
    UnsupportedSchemaError,
)
from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.file.layout import run_directory
from flowckpt.stores.log.segment import START, chain_line
from flowckpt.testing.contract import HOSTILE_IDS, checkpoint, results

pytestmark = pytest.mark.usefixtures("in_place")

RUN = "run-1"


@pytest.fixture
def store(tmp_path):
    """A store with a run of two attempts and a large value."""
    for attempt in (1, 2):
        made = FileCheckpointStore(tmp_path / "store")
        made.runs.acquire(RUN, take_over=False)
        made.runs.save(RUN, checkpoint(attempt, results("x" * 70_000, "b")[:attempt], attempt=attempt))
        made.close()
    return FileCheckpointStore(tmp_path / "store")


@pytest.fixture
def outside(tmp_path):
    """A directory that no store may touch."""
    place = tmp_path / "outside"
    place.mkdir()
    (place / "precious").write_text("mine")
    yield place
    assert (place / "precious").read_text() == "mine"
    assert [file.name for file in place.iterdir()] == ["precious"]


def run_path(store):
    return store.path / "runs" / RUN


def everything(store):
    """All the ways in, each as a function."""
    return [
        lambda: store.runs.load_latest(RUN).step_results[0].output,
        lambda: store.runs.load(RUN, "c1").step_results[0].output,
        lambda: store.runs.acquire(RUN, take_over=True),
        lambda: store.runs.save(RUN, checkpoint(9, results("y" * 70_000), attempt=9)),
        lambda: store.runs.clear(RUN),
    ]


def test_a_symbolic_link_in_the_place_of_a_run_is_never_followed(store, outside):
    shutil.rmtree(run_path(store))
    run_path(store).symlink_to(outside, target_is_directory=True)
    for way in everything(store):
        with pytest.raises(CheckpointStorageError, match=r"symbolic link|[Nn]ot a directory"):
            way()


def test_a_symbolic_link_in_the_place_of_a_segment_is_never_followed(store, outside):
    segment = run_path(store) / "00000002.jsonl"
    (outside.parent / "copy").write_bytes(segment.read_bytes())
    segment.unlink()
    segment.symlink_to(outside.parent / "copy")
    for way in everything(store)[:4]:
        with pytest.raises(CheckpointStorageError, match="symbolic link"):
            way()


def test_a_symbolic_link_in_the_place_of_the_lock_is_never_followed(store, outside):
    (run_path(store) / "lock").unlink()
    (run_path(store) / "lock").symlink_to(outside / "made")
    for way in everything(store)[2:]:
        with pytest.raises(CheckpointStorageError, match="symbolic link"):
            way()


def test_a_symbolic_link_in_the_place_of_the_large_values_is_never_followed(store, outside):
    shutil.rmtree(run_path(store) / "blobs")
    (run_path(store) / "blobs").symlink_to(outside, target_is_directory=True)
    for way in everything(store):
        with pytest.raises((CheckpointStorageError, CheckpointCorruptedError)):
            way()


def test_a_symbolic_link_in_the_place_of_one_large_value_is_never_followed(store, outside):
    (blob,) = (run_path(store) / "blobs").iterdir()
    shutil.copy(blob, outside.parent / "copy")
    blob.unlink()
    blob.symlink_to(outside.parent / "copy")
    with pytest.raises(CheckpointCorruptedError):
        everything(store)[0]()


def test_a_clear_removes_a_planted_link_and_not_what_it_points_to(store, outside):
    (run_path(store) / "00000003.jsonl").symlink_to(outside / "precious")
    (run_path(store) / "extra").symlink_to(outside, target_is_directory=True)
    store.runs.clear(RUN)
    assert not run_path(store).exists()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_pipe_in_the_place_of_a_segment_is_refused_and_not_waited_for(store, number):
    segment = run_path(store) / f"{number:08d}.jsonl"
    segment.unlink(missing_ok=True)
    os.mkfifo(segment)
    for way in everything(store)[:4]:
        with pytest.raises(CheckpointStorageError, match="not a regular file"):
            way()
    store.runs.list_runs()
    assert [finding.severity for finding in store.runs.check(None)] == ["corrupt"]


@pytest.mark.timeout(120)
def test_a_pipe_in_the_place_of_the_lock_or_a_value_does_not_hang(store):
    (blob,) = (run_path(store) / "blobs").iterdir()
    blob.unlink()
    os.mkfifo(blob)
    with pytest.raises(CheckpointCorruptedError):
        everything(store)[0]()
    (run_path(store) / "lock").unlink()
    os.mkfifo(run_path(store) / "lock")
    with pytest.raises(FlowckptError):
        everything(store)[0]()
    store.runs.owner(RUN)


def test_a_directory_in_the_place_of_a_segment_is_refused(store):
    (run_path(store) / "00000003.jsonl").mkdir()
    for way in everything(store):
        with pytest.raises(CheckpointStorageError):
            way()


def test_a_file_in_the_place_of_a_run_is_refused(store):
    shutil.rmtree(run_path(store))
    run_path(store).write_text("")
    for way in everything(store):
        with pytest.raises(CheckpointStorageError):
            way()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_an_empty_segment_is_corrupt_and_not_a_new_run(store, number):
    (run_path(store) / f"{number:08d}.jsonl").write_bytes(b"")
    for way in everything(store)[:4]:
        with pytest.raises(CheckpointCorruptedError, match=f"{number:08d}"):
            way()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_segment_of_another_run_is_foreign(store, number):
    for attempt in (1, 2, 3):
        other = FileCheckpointStore(store.path)
        other.runs.acquire("other", take_over=False)
        other.runs.save("other", checkpoint(attempt, attempt=attempt))
        other.close()
    shutil.copy(store.path / f"runs/other/{number:08d}.jsonl", run_path(store))
    with pytest.raises(ForeignRecordError, match="other"):
        store.runs.load_image(RUN)
    with pytest.raises(ForeignRecordError, match="other"):
        store.runs.acquire(RUN, take_over=False)


def test_a_segment_under_another_number_is_foreign(store):
    shutil.copy(run_path(store) / "00000001.jsonl", run_path(store) / "00000003.jsonl")
    with pytest.raises(ForeignRecordError):
        store.runs.load_image(RUN)


def test_a_run_moved_to_another_name_is_foreign(store):
    run_path(store).rename(store.path / "runs/moved")
    with pytest.raises(ForeignRecordError, match="run-1"):
        store.runs.load_image("moved")


@pytest.mark.parametrize("version", [2, 99, 0, "1", None, True])
def test_a_segment_of_another_schema_is_refused_as_such(store, version):
    header = {"flowckpt": "segment", "schema_version": version, "workflow_id": RUN, "segment": 3}
    header["created_at"] = "2026-01-01T00:00:00Z"
    import json

    line, _ = chain_line(json.dumps(header)[:-1].encode(), START)
    (run_path(store) / "00000003.jsonl").write_bytes(line)
    for way in everything(store)[:4]:
        with pytest.raises(UnsupportedSchemaError):
            way()


def test_a_missing_segment_that_a_later_one_continues_is_corrupt(store):
    (run_path(store) / "00000001.jsonl").unlink()
    for way in everything(store)[:4]:
        with pytest.raises(CheckpointCorruptedError, match="missing"):
            way()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_directories_are_0700_and_files_0600_whatever_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        store = FileCheckpointStore(tmp_path / "store")
        store.runs.save(RUN, checkpoint(1, results("x" * 70_000)))
    finally:
        os.umask(before)
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "store").rglob("*")}
    assert len(found) == 7
    for path, mode in found.items():
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "store").stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "fuseblk", "9p", "ceph"])
def test_a_file_system_with_unsound_locks_is_refused_unless_named(tmp_path, kind):
    class Elsewhere(PosixFileSystem):
        def type_of(self, path):
            return kind

    refusing = FileCheckpointStore(tmp_path / "store", filesystem=Elsewhere())
    for _ in range(2):
        with pytest.raises(UnsupportedFilesystemError, match=kind) as refused:
            refusing.runs.save(RUN, checkpoint())
        assert refused.value.filesystem == kind
    accepting = FileCheckpointStore(tmp_path / "store", filesystem=Elsewhere(), allow_filesystems=(kind,))
    accepting.runs.save(RUN, checkpoint())
    assert accepting.runs.load(RUN, "c1").sequence == 1


def test_the_type_of_a_file_system_is_that_of_the_innermost_mount():
    table = (
        "1 0 8:1 / / rw - ext4 /dev/a rw\n"
        "2 1 0:1 / /home rw - nfs4 server:/ rw\n"
        "3 2 0:2 / /home/me/with\\040space rw - tmpfs none rw\n"
        "4 1 0:3 / /homestead rw - xfs /dev/b rw\n"
        "5 2 0:4 / /home rw - btrfs /dev/c rw\n"
    )
    assert _type_in_table(table, "/etc") == "ext4"
    assert _type_in_table(table, "/home/me") == "btrfs"
    assert _type_in_table(table, "/home/me/with space/x") == "tmpfs"
    assert _type_in_table(table, "/homestead") == "xfs"


def test_no_run_id_names_a_place_outside_or_the_place_of_another(tmp_path):
    names = [run_directory(run) for run in HOSTILE_IDS]
    assert len(set(names)) == len({name.lower() for name in names}) == len(HOSTILE_IDS)
    for name in names:
        assert Path(name).name == name
        assert name not in (".", "..", "lock.")
        assert len(name) <= 66
    assert run_directory("A") == "h." + sha256(b"A").hexdigest()
    store = FileCheckpointStore(tmp_path / "inner/store")
    for run in HOSTILE_IDS:
        store.runs.save(run, checkpoint(1, results("x" * 70_000)))
    store.close()
    assert [path.name for path in tmp_path.iterdir()] == ["inner"]
    assert [path.name for path in (tmp_path / "inner").iterdir()] == ["store"]
    assert {path.name for path in (tmp_path / "inner/store").iterdir()} == {"reserve", "runs"}


def test_the_store_directory_itself_may_be_a_link_of_the_user(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real", target_is_directory=True)
    FileCheckpointStore(tmp_path / "link").runs.save(RUN, checkpoint())
    assert FileCheckpointStore(tmp_path / "real").runs.load(RUN, "c1").sequence == 1


def test_a_link_to_nothing_is_no_store_without_runs(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "unmounted", target_is_directory=True)
    store = FileCheckpointStore(tmp_path / "link")
    said = f"it is a symbolic link to {tmp_path / 'unmounted'}, which is not there"
    for use in (
        lambda: store.runs.save(RUN, checkpoint()),
        lambda: store.runs.load(RUN, "c1"),
        lambda: list(store.runs.list_runs()),
        lambda: FileCheckpointStore(tmp_path / "link/inner").runs.save(RUN, checkpoint()),
    ):
        with pytest.raises(CheckpointStorageError, match=re.escape(said)):
            use()
    (tmp_path / "unmounted").mkdir()  # now it is mounted
    store.runs.save(RUN, checkpoint())
    assert store.runs.load(RUN, "c1").sequence == 1


def test_a_directory_that_can_never_be_made_is_told_with_what_the_system_said():
    with pytest.raises(
        CheckpointStorageError, match=r"cannot be made: No such file or directory \(/proc/store\)"
    ) as caught:
        FileCheckpointStore("/proc/store").runs.save(RUN, checkpoint())
    assert "another directory" in caught.value.remedy


@pytest.fixture
def synced(monkeypatch):
    """The directories that are synced."""
    seen, real = [], os.fsync

    def fsync(file):
        seen.append(os.readlink(f"/proc/self/fd/{file}"))
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


def test_each_parent_of_a_new_store_is_synced_and_of_an_old_one_again(tmp_path, monkeypatch, synced):
    monkeypatch.setattr(filesystem, "time", SimpleNamespace(time_ns=lambda: 0))  # each has changed just now
    path = tmp_path / "a/b/store"
    for _ in range(2):
        synced.clear()
        PosixFileSystem().make_root(str(path))
        assert {str(path.parent), str(path.parent.parent), str(tmp_path)} <= set(synced)


def test_a_parent_is_not_synced_again_until_a_name_in_it_changes(tmp_path, monkeypatch, synced):
    monkeypatch.setattr(filesystem, "time", SimpleNamespace(time_ns=lambda: 2**62))  # nothing has changed for long
    path = tmp_path / "a/b/store"
    PosixFileSystem().make_root(str(path))
    synced.clear()
    PosixFileSystem().make_root(str(path))
    assert not {str(path.parent), str(path.parent.parent)} & set(synced)
    changed_at = path.parent.stat().st_ctime_ns
    path.rmdir()
    path.mkdir()  # another one, whose maker may have died before its sync
    while path.parent.stat().st_ctime_ns == changed_at:  # the clock of the file system has ticks
        (path.parent / "other").mkdir()
        (path.parent / "other").rmdir()
    PosixFileSystem().make_root(str(path))
    assert str(path.parent) in synced
    assert str(path.parent.parent) not in synced


def test_a_parent_whose_sync_failed_is_synced_again(tmp_path, monkeypatch, synced):
    monkeypatch.setattr(filesystem, "time", SimpleNamespace(time_ns=lambda: 2**62))

    def broken(file):
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as broken_disk, pytest.raises(OSError, match="injected"):
        broken_disk.setattr(os, "fsync", broken)
        PosixFileSystem().make_root(str(tmp_path / "a/store"))
    PosixFileSystem().make_root(str(tmp_path / "a/store"))
    assert {str(tmp_path / "a"), str(tmp_path)} <= set(synced)


def test_large_values_are_written_once_per_content(tmp_path):
    store = FileCheckpointStore(tmp_path / "store")
    large = "x" * 70_000
    for sequence in range(1, 6):
        store.runs.save(RUN, checkpoint(sequence, results(*[large] * sequence), snapshot=large, inputs={"x": 1}))
    assert len(list((run_path(store) / "blobs").iterdir())) == 1
    assert sum(path.stat().st_size for path in run_path(store).glob("*.jsonl")) < 10_000


def test_a_file_in_the_place_of_a_store_is_named_with_what_to_do(tmp_path):
    (tmp_path / "notes.txt").write_text("no store")
    with blocking_allowed(True), pytest.raises(CheckpointStorageError) as refused:
        FileCheckpointStore(tmp_path / "notes.txt").runs.list_runs()
    assert str(tmp_path / "notes.txt") in refused.value.message
    assert "run ''" not in refused.value.message
    assert "Pass the directory" in refused.value.remedy
