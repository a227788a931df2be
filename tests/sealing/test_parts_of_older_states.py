"""An attacker without the key who has kept every state of a run's directory, and puts back parts of them.

Each segment and each word of how far an attempt has come may be in any of its versions, or be missing, independently of
the others. What a reader with the key accepts then must be the run as it stood once, and every file must be as old as
that: a run that looks older than it is cannot be made by putting back less than all of it.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from flowckpt.core.system.filesystem import Directory, PosixFileSystem
from flowckpt.errors import CheckpointCorruptedError, FlowckptError
from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.file.directory import read_image
from flowckpt.stores.file.layout import parse_head_number, segment_numbers
from flowckpt.testing.contract import checkpoint
from tests.sealing.sealed_runs import RINGS, RUN, segment, steps

CHANGES = ("write", "write_at", "link", "rename", "unlink")


def is_proof(name):
    return bool(segment_numbers([name])) or parse_head_number(name) is not None


class Witness(PosixFileSystem):
    """Keeps each state of the run's directory, in the order in which a reader could meet them."""

    def __init__(self, path):
        self.path, self.states = path / "runs" / RUN, [{}]

    def look(self):
        names = [each for each in self.path.iterdir() if is_proof(each.name)] if self.path.exists() else []
        state = {each.name: each.read_bytes() for each in names}
        if state != self.states[-1]:
            self.states.append(state)


def _watched(name):
    def call(self, *given):
        try:
            return getattr(PosixFileSystem, name)(self, *given)
        finally:
            self.look()

    return call


for change in CHANGES:
    setattr(Witness, change, _watched(change))


class Files:
    """A directory in memory, as far as a reader needs one."""

    def __init__(self, files):
        self.files = files

    def names(self, _):
        return list(self.files)

    def exists(self, _, name):
        return name in self.files

    def open_read(self, _, name):
        return self.files[name]

    def status(self, file):
        return SimpleNamespace(size=len(file))

    def read(self, file, size, offset):
        return file[offset : offset + size]

    def close(self, _):
        pass


def two_attempts(store):
    save(store, [1, 2])
    save(store, [3, 4])


def three_attempts(store):
    save(store, [1])
    save(store, [2])
    save(store, [3])


def an_attempt_that_saved_nothing(store):
    save(store, [1, 2])
    save(store, [])
    save(store, [3])


def a_deletion(store):
    save(store, [1, 2])
    store.runs.acquire(RUN, take_over=False)
    store.runs.delete_checkpoint(RUN, "c1")
    store.runs.release(RUN)


def a_compaction(store):
    save(store, [1])
    save(store, [2])
    store.runs.compact(RUN)


HISTORIES = (two_attempts, three_attempts, an_attempt_that_saved_nothing, a_deletion, a_compaction)


def save(store, counts):
    lease = store.runs.acquire(RUN, take_over=False)
    for count in counts:
        store.runs.save(RUN, checkpoint(count, steps()[:count], attempt=lease.attempt))
    store.runs.release(RUN)


def effect(files, seals):
    """Return the lines that count for a reader with the key; None where the run is refused."""
    try:
        image = read_image(Directory(Files(files), 0), RUN, lambda _: b"", seals=seals)
    except FlowckptError:
        return None
    return tuple(record.digest for record in image.records)


def mixtures(states):
    """Return every mixture of the versions of the files."""
    names = sorted({name for state in states for name in state})
    versions = [list(dict.fromkeys(state.get(name) for state in states)) for name in names]
    for chosen in itertools.product(*versions):
        yield {name: data for name, data in zip(names, chosen, strict=True) if data is not None}


def is_claim(data):
    """Return whether a segment was claimed and holds no record yet: it proves nothing, and hides nothing if it stays."""
    return data.startswith(b'{"flowckpt":"segment"') and b'{"step_results"' not in data and b'{"deletes"' not in data


def broken_rules(states, seals):
    """Return the mixtures that are accepted and should not be, and how many there were in all."""
    effects = [effect(state, seals) for state in states]
    assert None not in effects  # what an honest owner leaves at any moment is accepted
    newest = {found: index for index, found in enumerate(effects)}
    broken, count = [], 0
    for files in mixtures(states):
        count += 1
        found = effect(files, seals)
        if not found:  # refused; or no line is left, as where the whole directory was removed
            continue
        until = newest.get(found)
        known = {(name, data) for state in states[: (until or -1) + 1] for name, data in state.items()}
        if until is None or any(not is_claim(data) and (name, data) not in known for name, data in files.items()):
            broken.append({name: len(data) for name, data in files.items()})
    return broken, count


@pytest.mark.parametrize("history", HISTORIES, ids=lambda each: each.__name__)
def test_only_an_older_copy_of_the_whole_directory_is_accepted(tmp_path, history):
    filesystem = Witness(tmp_path / "store")
    store = FileCheckpointStore(tmp_path / "store", keys=RINGS["authenticate"], filesystem=filesystem)
    history(store)
    states, seals = filesystem.states, store.runs.seals
    store.close()
    broken, count = broken_rules(states, seals)
    assert broken == []
    assert count > 50


def test_an_older_word_hides_no_line_that_was_taken_away(tmp_path):
    """The attack as it was found: an older `head`, then two lines of the newest segment are gone."""
    path, kept = tmp_path / "store", {}
    for end in (2, 4):
        store = FileCheckpointStore(path, keys=RINGS["encrypt"])
        save(store, [end - 1, end])
        kept = kept or {each.name: each.read_bytes() for each in (path / "runs" / RUN).glob("head*")}
        store.close()
    for name, data in kept.items():
        (path / "runs" / RUN / name).write_bytes(data)
    newest = segment(path, 2)
    whole = newest.read_bytes()
    for content in (b"".join(whole.splitlines(keepends=True)[:-2]), None):
        newest.unlink(missing_ok=True) if content is None else newest.write_bytes(content)
        store = FileCheckpointStore(path, keys=RINGS["encrypt"])
        with pytest.raises(CheckpointCorruptedError, match="missing"):
            store.runs.load_latest(RUN)
        assert "corrupt" in [finding.severity for finding in store.runs.check(None)]
