"""Messages of the file store on the disk: durable in the right order, whole or not there, gone with their run."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import attrs
import pytest

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, CheckpointStorageError
from flowckpt.stores import FileCheckpointStore
from flowckpt.testing.abilities import signal
from flowckpt.testing.contract import RUN, checkpoint

pytestmark = pytest.mark.usefixtures("in_place")


@pytest.fixture
def path(tmp_path):
    store = FileCheckpointStore(tmp_path)
    store.runs.save(RUN, checkpoint())
    store.close()
    return tmp_path


def folder(path: Path) -> Path:
    return path / "runs" / RUN / "signals"


class Recording(PosixFileSystem):
    """Notes the calls that make something durable, and those that name something; may die at the n-th."""

    def __init__(self, dies_at: int = -1) -> None:
        self.calls: list[str] = []
        self._dies_at = dies_at

    def _note(self, what: str) -> None:
        if len(self.calls) == self._dies_at:
            raise OSError(5, "the power went")
        self.calls.append(what)

    def make_directory(self, parent, name):
        self._note(f"make {name}")
        super().make_directory(parent, name)

    def create(self, parent, name):
        self._note("create")
        return super().create(parent, name)

    def write(self, file, data):
        self._note("write")
        return super().write(file, data)

    def sync(self, file):
        self._note("sync directory" if self.status(file).is_directory else "sync file")
        super().sync(file)

    def link(self, parent, source, target):
        self._note("link")
        super().link(parent, source, target)


def test_a_message_is_on_the_disk_before_it_has_its_name_and_its_name_before_it_is_acknowledged(path):
    filesystem = Recording()
    FileCheckpointStore(path, filesystem=filesystem).runs.send_signal(RUN, signal("one"))
    assert filesystem.calls == [
        "make signals",
        "sync directory",
        "create",
        "write",
        "sync file",
        "link",
        "sync directory",
    ]
    assert [file.stat().st_mode & 0o777 for file in folder(path).iterdir()] == [0o600]
    assert folder(path).stat().st_mode & 0o777 == 0o700


def test_whatever_call_fails_a_message_is_whole_or_not_there_and_can_be_sent_again(path):
    for number in range(7):
        name = f"signal-{number}"
        with pytest.raises(CheckpointStorageError):
            FileCheckpointStore(path, filesystem=Recording(number)).runs.send_signal(RUN, signal(name, number))
        store = FileCheckpointStore(path)
        assert {each.signal_id for each in store.runs.signals(RUN)} <= {f"signal-{n}" for n in range(number + 1)}
        store.runs.send_signal(RUN, signal(name, number))
        assert name in {each.signal_id for each in store.runs.signals(RUN)}
    assert len(FileCheckpointStore(path).runs.signals(RUN)) == 7
    assert not [file for file in folder(path).iterdir() if file.name.startswith(".new")]


def test_sending_never_touches_the_record(path):
    def record():
        return {file.name: file.read_bytes() for file in (path / "runs" / RUN).iterdir() if file.is_file()}

    before = record()
    FileCheckpointStore(path).runs.send_signal(RUN, signal("one"))
    assert record() == before


def test_a_damaged_message_is_refused_by_name_and_found_by_the_check(path):
    store = FileCheckpointStore(path)
    store.runs.send_signal(RUN, signal("one", "x" * 50))
    [file] = folder(path).iterdir()
    content = file.read_bytes()
    for damaged in (b"", content[:-1], content[:50], content.replace(b"xxx", b"xyx", 1), content + content):
        file.write_bytes(damaged)
        with pytest.raises(CheckpointCorruptedError, match=file.name):
            store.runs.signals(RUN)
        assert [each.severity for each in store.runs.check(RUN)] == ["corrupt"]
        assert store.runs.load_latest(RUN) is not None
    file.write_bytes(content)
    assert store.runs.signals(RUN) == [signal("one", "x" * 50)]


def test_a_planted_link_is_never_followed(path, tmp_path):
    store = FileCheckpointStore(path)
    store.runs.send_signal(RUN, signal("one"))
    [file] = folder(path).iterdir()
    outside = tmp_path / "outside"
    file.rename(outside)
    file.symlink_to(outside)
    with pytest.raises(CheckpointCorruptedError):
        store.runs.signals(RUN)


def test_what_a_dead_sender_left_unfinished_is_swept_by_the_next(path):
    pid = os.fork()
    if pid == 0:
        try:
            FileCheckpointStore(path, filesystem=Dying()).runs.send_signal(RUN, signal("dead"))
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
    assert [file.name[:5] for file in folder(path).iterdir()] == [".new-"]
    store = FileCheckpointStore(path)
    assert store.runs.signals(RUN) == []
    store.runs.send_signal(RUN, signal("one"))
    assert [file.name[:5] for file in folder(path).iterdir()] != [".new-"]
    assert len(list(folder(path).iterdir())) == 1


class Dying(PosixFileSystem):
    """Dies as by kill -9 before the link."""

    def link(self, parent, source, target):
        os._exit(9)


def test_messages_sent_while_their_run_is_cleared_again_and_again_are_there_or_refused(path):
    answers: list[str] = []

    def send(sender: int) -> None:
        store = FileCheckpointStore(path)
        with blocking_allowed(True):
            for number in range(40):
                try:
                    store.runs.send_signal(RUN, signal(f"{sender}-{number}"))
                    answers.append("sent")
                except CheckpointNotFoundError:
                    answers.append("refused")

    senders = [threading.Thread(target=send, args=(sender,)) for sender in range(3)]
    for each in senders:
        each.start()
    store = FileCheckpointStore(path)
    while any(each.is_alive() for each in senders):
        store.runs.clear(RUN)
        store.runs.save(RUN, checkpoint())
        assert store.runs.load_latest(RUN) is not None
    for each in senders:
        each.join()
    assert len(answers) == 120
    store.runs.clear(RUN)
    assert store.runs.signals(RUN) == []
    with pytest.raises(CheckpointNotFoundError):
        store.runs.send_signal(RUN, signal("late"))
    store.runs.save(RUN, checkpoint())
    assert store.runs.signals(RUN) == []


def test_a_message_for_another_run_is_refused(path):
    store = FileCheckpointStore(path)
    store.runs.save("other", checkpoint())
    store.runs.send_signal("other", attrs.evolve(signal("one")))
    folder(path).mkdir(mode=0o700)
    [file] = (path / "runs" / "other" / "signals").iterdir()
    (folder(path) / file.name).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointCorruptedError, match="another run"):
        store.runs.signals(RUN)
