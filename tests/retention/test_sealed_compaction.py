"""A compaction in a store with a key: what was sealed stays sealed, under the key of today, and proves what it proved."""

from __future__ import annotations

import asyncio
import shutil

import attrs
import pytest

from flowckpt.core.records.wait import WaitKind
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import (
    CheckpointCorruptedError,
    ForeignRecordError,
    KeyMissingError,
    UnauthenticatedRecordError,
    WrongKeyError,
)
from flowckpt.maintenance.prune import prune
from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.file.compaction import find_needed_names
from flowckpt.stores.log.sealing.keys import Key, KeyRing
from flowckpt.stores.log.sealing.lines import ValueSeal
from flowckpt.testing.abilities import signal
from flowckpt.testing.contract import checkpoint, results
from flowckpt.testing.retention import read_everything
from tests.sealing.sealed_runs import (
    AUTHENTICATE,
    ENCRYPT,
    NEXT,
    RINGS,
    RUN,
    SECRET,
    bodies,
    heads,
    make,
    rechained,
    save_attempt,
    segment,
    steps,
)

LARGE = SECRET * 4_000
NAMED = (CheckpointCorruptedError, ForeignRecordError, UnauthenticatedRecordError)


class Watching(PosixFileSystem):
    """Remembers every byte that is written, also to files that go again."""

    def __init__(self):
        self.written = bytearray()

    def write(self, file, data):
        self.written += data
        return super().write(file, data)

    def write_at(self, file, data, offset):
        self.written += data
        super().write_at(file, data, offset)


def compact(path, **options):
    store = FileCheckpointStore(path, **options)
    try:
        return asyncio.run(store.compact(RUN, is_forced=True))
    finally:
        store.close()


def seen(path, **options):
    store = FileCheckpointStore(path, **options)
    try:
        return asyncio.run(read_everything(store))
    finally:
        store.close()


def severities(path, **options):
    return [finding.severity for finding in FileCheckpointStore(path, **options).runs.check(None)]


def numbers(path):
    return sorted(int(file.stem) for file in (path / f"runs/{RUN}").glob("*.jsonl"))


def contents(path):
    """What every file holds; but for the marks that a claimer sets, and the lock."""
    files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith((".fenced", "lock"))]
    return {str(file): file.read_bytes() for file in files}


def with_large(path, **options):
    """Three attempts, the second of which went back; large values in two of them."""
    save_attempt(path, (1, 2), results(LARGE, "second"), **options)
    save_attempt(path, (1, 2), results(LARGE, LARGE + "2"), **options)
    save_attempt(path, (3,), [*results(LARGE, LARGE + "2"), *results("third")], **options)
    return path


@pytest.mark.parametrize("use", RINGS)
def test_a_sealed_run_is_compacted_and_every_attempt_tells_what_it_told(tmp_path, use):
    path = with_large(tmp_path / "store", keys=RINGS[use])
    before = seen(path, keys=RINGS[use])
    watching = Watching()
    assert compact(path, keys=RINGS[use], filesystem=watching).is_changed
    assert numbers(path) == [5]
    assert seen(path, keys=RINGS[use]) == before
    assert severities(path, keys=RINGS[use]) == ["ok"]
    save_attempt(path, (4,), [*results(LARGE, LARGE + "2"), *results("third", "fourth")], keys=RINGS[use])
    assert len(seen(path, keys=RINGS[use])["checkpoints"]) == len(before["checkpoints"]) + 1
    assert (SECRET.encode() in watching.written) is (use == "authenticate")
    assert compact(path, keys=RINGS[use]).is_changed
    assert severities(path, keys=RINGS[use]) == ["ok"]


def test_after_a_rotation_a_compaction_seals_all_of_a_run_with_the_new_key(tmp_path):
    path, both = with_large(tmp_path / "store", keys=KeyRing([ENCRYPT])), KeyRing([NEXT, ENCRYPT])
    save_attempt(path, (4,), [*results(LARGE, LARGE + "2"), *results("third", "fourth")], keys=both)
    before = seen(path, keys=both)
    with pytest.raises(WrongKeyError):
        seen(path, keys=KeyRing([NEXT]))
    watching = Watching()
    store = FileCheckpointStore(path, keys=both, filesystem=watching)
    assert asyncio.run(prune(store)).compacted == 1  # also where nobody names the run
    assert SECRET.encode() not in watching.written
    assert seen(path, keys=KeyRing([NEXT])) == before
    assert severities(path, keys=KeyRing([NEXT])) == ["ok"]
    assert len(list((path / f"runs/{RUN}/blobs").iterdir())) == 2
    assert asyncio.run(prune(store)).compacted == 0


def test_after_a_rotation_messages_are_sealed_with_the_new_key_even_if_nothing_else_is_left_to_do(tmp_path):
    path, both = make(tmp_path / "store", keys=RINGS["encrypt"]), KeyRing([NEXT, ENCRYPT])
    compact(path, keys=both)
    sent = [signal("one", SECRET), attrs.evolve(signal("two"), kind=WaitKind.VERIFICATION)]
    for each in sent:
        FileCheckpointStore(path, keys=KeyRing([ENCRYPT, NEXT])).runs.send_signal(RUN, each)
    before, there = numbers(path), contents(path)
    store = FileCheckpointStore(path, keys=both)
    with pytest.raises(WrongKeyError):
        FileCheckpointStore(path, keys=KeyRing([NEXT])).runs.signals(RUN)
    assert asyncio.run(prune(store)).compacted == 1
    assert FileCheckpointStore(path, keys=KeyRing([NEXT])).runs.signals(RUN) == sent
    assert numbers(path) == before  # the record is not written again
    assert contents(path).keys() == there.keys()
    assert severities(path, keys=KeyRing([NEXT])) == ["ok"]
    assert asyncio.run(prune(store)).compacted == 0


def test_a_damaged_message_keeps_no_record_from_the_new_key(tmp_path):
    path, both = make(tmp_path / "store", keys=RINGS["encrypt"]), KeyRing([NEXT, ENCRYPT])
    FileCheckpointStore(path, keys=RINGS["encrypt"]).runs.send_signal(RUN, signal("one", SECRET))
    (message,) = path.rglob("signals/*.json")
    message.write_bytes(message.read_bytes()[:-9] + b"}\n")
    assert asyncio.run(prune(FileCheckpointStore(path, keys=both))).compacted == 1
    assert FileCheckpointStore(path, keys=KeyRing([NEXT])).runs.load_latest(RUN) is not None


def test_what_is_encrypted_stays_so_where_the_newest_key_only_authenticates(tmp_path):
    path = with_large(tmp_path / "store", keys=KeyRing([ENCRYPT]))
    FileCheckpointStore(path, keys=KeyRing([ENCRYPT])).runs.send_signal(RUN, signal("one", SECRET))
    ring, watching = KeyRing([AUTHENTICATE, ENCRYPT]), Watching()
    before = seen(path, keys=ring)
    assert compact(path, keys=ring, filesystem=watching).is_changed
    assert not compact(path, keys=ring).is_changed
    assert SECRET.encode() not in watching.written
    assert seen(path, keys=KeyRing([ENCRYPT])) == before


def test_a_key_that_only_authenticates_from_now_on_stays_the_key_of_what_it_encrypted(tmp_path):
    path, ring = make(tmp_path / "store", keys=RINGS["encrypt"]), KeyRing([Key(ENCRYPT.secret, "authenticate")])
    before, watching = seen(path, keys=ring), Watching()
    assert compact(path, keys=ring, filesystem=watching).is_changed
    assert SECRET.encode() not in watching.written
    assert seen(path, keys=RINGS["encrypt"]) == before


def cut_lines(path):
    file = segment(path, 4)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def cut_pack(path):
    segment(path, 4).unlink()


def cut_all(path):
    segment(path, 4).unlink()
    heads(path)[-1].unlink()


def put_back(path):
    segment(path, 4).unlink()
    for number in (1, 2):
        shutil.copy(segment(path.parent / "before", number), segment(path, number))


def edit(path):
    found = bodies(path, 4)
    segment(path, 4).write_bytes(
        rechained([*found[:-1], found[-1][:99] + bytes([found[-1][99] ^ 1]) + found[-1][100:]])
    )


def swap(path):
    found = bodies(path, 4)
    segment(path, 4).write_bytes(rechained([*found[:-2], found[-1], found[-2]]))


def strip(path):
    """The same pack as somebody without the key writes it."""
    plain = make(path.parent / "plain")
    compact(plain)
    shutil.copy(segment(plain, 4), segment(path, 4))


def swap_runs(path):
    strange = make(path.parent / "strange", keys=RINGS["encrypt"])
    compact(strange, keys=RINGS["encrypt"])
    shutil.copy(segment(strange, 4), segment(path, 4))


@pytest.mark.parametrize("use", RINGS)
@pytest.mark.parametrize(
    "change", [cut_lines, cut_pack, put_back, edit, swap, strip, swap_runs], ids=lambda change: change.__name__
)
def test_a_pack_that_was_cut_replaced_or_edited_is_found(tmp_path, use, change):
    path = make(tmp_path / "store", keys=RINGS[use])
    shutil.copytree(path, tmp_path / "before")
    compact(path, keys=RINGS[use])
    assert numbers(path) == [4]
    change(path)
    with pytest.raises(NAMED):
        seen(path, keys=RINGS[use])
    assert "corrupt" in severities(path, keys=RINGS[use])
    there = contents(path)
    with pytest.raises(NAMED):
        compact(path, keys=RINGS[use])
    assert contents(path) == there


def test_the_cut_of_a_record_behind_a_pack_is_found(tmp_path):
    path, ring = make(tmp_path / "store", keys=RINGS["encrypt"]), RINGS["encrypt"]
    compact(path, keys=ring)
    save_attempt(path, (5, 6), [*steps(), *results("fifth", "sixth")], keys=ring)
    file = segment(path, 5)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(CheckpointCorruptedError, match="acknowledged"):
        seen(path, keys=ring)


def test_without_the_key_nothing_is_compacted(tmp_path):
    for use, ring in RINGS.items():
        path = make(tmp_path / use, keys=ring)
        there = contents(path)
        with pytest.raises(KeyMissingError):
            compact(path)
        assert contents(path) == there
        (path / "store.json").unlink()
        with pytest.raises(CheckpointCorruptedError, match=r"store\.json"):
            compact(path)
        for file in (*path.glob("keys-*.json"), *heads(path)):
            file.unlink()
        there = contents(path)
        with pytest.raises(KeyMissingError):  # also where nothing says any more that a key is needed
            compact(path)
        assert contents(path) == there


def test_a_run_that_is_older_than_the_key_is_compacted_once_it_is_trusted_and_encrypted_then(tmp_path):
    path, ring = make(tmp_path / "store"), RINGS["encrypt"]
    before = seen(path)
    with pytest.raises(UnauthenticatedRecordError):
        compact(path, keys=ring)
    trusting = FileCheckpointStore(path, keys=ring, trust=True)
    asyncio.run(trusting.trust(RUN))
    assert SECRET.encode() in b"".join(contents(path).values())
    assert compact(path, keys=ring).is_changed
    assert SECRET.encode() not in b"".join(contents(path).values())
    after = seen(path, keys=ring)
    assert (after["latest"], after["checkpoints"]) == (before["latest"], before["checkpoints"])
    assert severities(path, keys=ring) == ["ok"]


def test_what_nobody_vouches_for_does_not_become_authentic_by_a_compaction(tmp_path):
    """Behind the point where an old run went back, a trusted segment holds no digest of what stands there."""
    path, ring = tmp_path / "store", RINGS["encrypt"]
    save_attempt(path, (1, 2), results("first", "second"))
    save_attempt(path, (1,), results("first"))
    store = FileCheckpointStore(path)
    image = store.runs.load_image(RUN)
    store.runs.acquire(RUN, take_over=False)
    data = checkpoint(image.last_sequence + 1, results("other"), attempt=3)
    store.runs.save(RUN, data)
    store.close()
    trusting = FileCheckpointStore(path, keys=ring, trust=True)
    asyncio.run(trusting.trust(RUN))
    assert severities(path, keys=ring) == ["ok"]
    with pytest.raises(UnauthenticatedRecordError):
        compact(path, keys=ring)
    assert numbers(path)[:3] == [1, 2, 3]
    assert compact(path, keys=ring, trust=True).is_changed
    assert severities(path, keys=ring) == ["ok"]


@pytest.mark.parametrize("has_saved", [False, True], ids=["before its first save", "after a save"])
def test_the_word_of_steps_that_a_killed_process_left_is_still_read(tmp_path, has_saved):
    """Also without the key that the word was hidden with: a compaction seals it anew."""
    path, both = make(tmp_path / "store", keys=RINGS["encrypt"]), KeyRing([NEXT, ENCRYPT])
    store = FileCheckpointStore(path, keys=RINGS["encrypt"])
    lease = store.runs.acquire(RUN, take_over=False)
    if has_saved:
        data = checkpoint(lease.last_sequence + 1, [*steps(), *results("fifth")], attempt=lease.attempt)
        store.runs.save(RUN, data)
    store.note_started(RUN, SECRET)
    for each in store.runs.owned.values():
        each.close()  # as a kill does
    store.runs.owned.clear()
    for keys in (RINGS["encrypt"], both, KeyRing([NEXT])):
        compact(path, keys=keys)
        assert FileCheckpointStore(path, keys=keys).runs.started_steps(RUN) == (3, (SECRET,))
        store = FileCheckpointStore(path, keys=keys)
        store.runs.delete_sequences(RUN, [store.runs.references(RUN)[-1].sequence])  # so that there is more to compact
        store.close()
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())


def test_a_forged_tombstone_clears_nothing(tmp_path):
    path, ring = make(tmp_path / "store", keys=RINGS["encrypt"]), RINGS["encrypt"]
    plain = make(tmp_path / "plain")
    body = bodies(plain, 2)[0].replace(b'"segment":2', b'"segment":3')
    segment(path, 3).write_bytes(rechained([body + b',"kind":"cleared"']))
    there = contents(path)
    store = FileCheckpointStore(path, keys=ring)
    with pytest.raises(UnauthenticatedRecordError):
        asyncio.run(prune(store, keep=0))
    store.runs.tidy()
    assert contents(path) == there


def test_a_value_under_a_key_that_is_not_at_hand_is_not_taken_for_left_over():
    digest, other = "a" * 64, "b" * 64
    line = b'{"step_results":[{"output":{"$blob":["%b",70000]}}],"x":"%b"' % (digest.encode(), other.encode())
    there = {"c" * 64 + ".sealed", "d" * 64, other + ".gz"}
    values = ValueSeal(lambda: "store", KeyRing([NEXT]))
    assert find_needed_names([line], there, values) == {"c" * 64 + ".sealed", other + ".gz"}
    assert find_needed_names([line], there | {digest + ".zst"}, values) == {digest + ".zst", other + ".gz"}
