"""The crash checks can fail for a sealed store, too: each rule of the word of the end and of the identity is needed."""

from __future__ import annotations

import itertools

import pytest

import flowckpt.stores.file.store_keys
from flowckpt.stores.file.directory import TruncationGuard
from flowckpt.stores.file.layout import IDENTITY, keys_name
from flowckpt.stores.file.run_writer import FileRunWriter, SegmentWriter
from flowckpt.stores.log.sealing.keys import Key, KeyRing
from flowckpt.stores.log.segment import START, chain_line
from tests.crash.test_mutants import SCENES, caught, in_turn
from tests.crash.workload import Tally, Workload, patched

SEALED = ({"keys": KeyRing([Key(bytes(range(32)), "encrypt")])},)


def earlier_words_that_go_first(monkeypatch):
    """Remove the words of earlier attempts before the first line is written: if none is, the run looks cut."""
    begin = TruncationGuard.begin

    def begin_alone(self):
        begin(self)
        self._remove_earlier()
        self._directory.sync()

    monkeypatch.setattr(TruncationGuard, "begin", begin_alone)


def a_word_that_is_not_synced(monkeypatch):
    """Leave the first word to the page cache: behind a power cut, the run looks as if somebody had taken it."""

    def begin(self):
        self._file = self._directory.open_lock(self.name)
        self._filesystem.disk.root.names["runs"].names["run"].names[self.name].role = "head"
        self._filesystem.write_at(self._file, self._encode_head(""), 0)

    monkeypatch.setattr(TruncationGuard, "begin", begin)


def a_word_ahead_of_the_line(monkeypatch):
    """Note the line before it is on the disk: a torn one then looks as if it had been cut."""
    make, append = FileRunWriter.__init__, SegmentWriter.append

    def made(self, *given, **options):
        make(self, *given, **options)
        self.writer.note = self._guard.note

    def hasty(self, body):
        sealed = self.seal.seal(body, self._lines, self.digest)
        if b"adopts" not in body[:12]:
            self.note(chain_line(sealed, self.digest)[1])
        append(self, body)

    monkeypatch.setattr(FileRunWriter, "__init__", made)
    monkeypatch.setattr(SegmentWriter, "append", hasty)


def an_identity_that_is_not_synced(monkeypatch):
    """Begin to seal for a store whose identity a power cut may take."""

    def make_identity(root):
        file = root.create(IDENTITY)
        root.calls.write(file, b'{"store_id":"here"}')
        root.calls.close(file)
        return "here"

    monkeypatch.setattr(flowckpt.stores.file.store_keys, "make_identity", make_identity)


def a_note_of_keys_that_is_not_synced(monkeypatch):
    """Begin to seal with a key whose note a power cut may leave empty: then nobody knows whose store it is."""

    def add_keys(root, keys, store_id, known):
        file = root.create(keys_name(1))
        text, _ = chain_line(
            b'{"store_id":"%b","keys":[%b]'
            % (
                store_id.encode(),
                b",".join(
                    b'{"id":"%b","use":"%b","proof":"%b"}'
                    % (key.id.encode(), key.use.encode(), key.make_proof(store_id).encode())
                    for key in keys
                ),
            ),
            START,
        )
        root.calls.write(file, text)
        root.calls.close(file)
        return True

    monkeypatch.setattr(flowckpt.stores.file.store_keys, "add_keys", add_keys)


MUTANTS = {
    earlier_words_that_go_first: in_turn,
    a_word_that_is_not_synced: in_turn,
    a_word_ahead_of_the_line: in_turn,
    an_identity_that_is_not_synced: in_turn,
    a_note_of_keys_that_is_not_synced: in_turn,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_sealed_store_that_breaks_one_rule_is_caught(monkeypatch, mutant):
    mutant(monkeypatch)
    found = caught(monkeypatch, lives=30, first=MUTANTS[mutant], protections=SEALED)
    assert found, f"nobody noticed {mutant.__name__}: {mutant.__doc__}"


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_the_sealed_store_as_it_is_is_not_caught(monkeypatch, scene):
    """In each scene, with a crash at every tenth call; random lives are cut at every call elsewhere."""
    life = Workload(0, patched(monkeypatch), Tally(), states=0, protections=SEALED)
    calls, examine = itertools.count(), life.examine
    monkeypatch.setattr(life, "examine", lambda: examine() if next(calls) % 10 == 0 else None)
    scene(life)


@pytest.mark.soak
def test_the_sealed_store_as_it_is_is_not_caught_at_any_call(monkeypatch):
    assert caught(monkeypatch, lives=10, protections=SEALED) is None


def test_two_that_make_a_sealed_store_at_once_leave_one_that_can_be_begun(monkeypatch):
    """The second one notes its key for an identity whose name a power cut may still take: that is made durable first."""
    processes = patched(monkeypatch)
    for count in range(12):
        life = Workload(count, processes, Tally(), states=8, protections=SEALED)
        points = iter(range(count, -1, -1))

        def at_point(name, role, life=life, points=points):
            if next(points, None) == 0:
                life.may_nest = False
                life.attach()
                life.acquire(take_over=True)
                life.disk.before_change = lambda name, role: None

        life.disk.before_change = at_point
        life.acquire(take_over=False)
