"""Whose store it is: without its key nothing in it is changed, and with another key nothing is done at all."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys

import attrs
import pytest

from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import CheckpointCorruptedError, KeyMissingError, UnauthenticatedRecordError, WrongKeyError
from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.file.runs import FileRuns
from flowckpt.stores.log.sealing.keys import Key, KeyRing
from flowckpt.testing.abilities import signal
from flowckpt.testing.contract import checkpoint
from tests.sealing.sealed_runs import (
    AUTHENTICATE,
    ENCRYPT,
    NEXT,
    RINGS,
    RUN,
    STRANGE,
    heads,
    make,
    save_attempt,
    segment,
    shown,
    steps,
)

SIGNAL = signal("one", None)
DOORS = {
    "acquire": lambda runs: runs.acquire(RUN, take_over=False),
    "steal": lambda runs: runs.acquire(RUN, take_over=True),
    "begin": lambda runs: runs.acquire("new", take_over=False),
    "save": lambda runs: runs.save(RUN, checkpoint(5)),
    "clear": lambda runs: runs.clear(RUN),
    "clear what is not there": lambda runs: runs.clear("none"),
    "clear unchanged": lambda runs: runs.clear_unchanged([]),
    "delete": lambda runs: runs.delete_checkpoint(RUN, "first"),
    "delete sequences": lambda runs: runs.delete_sequences(RUN, [1]),
    "pin": lambda runs: runs.pin(RUN, 2),
    "unpin": lambda runs: runs.unpin(RUN, 1),
    "compact": lambda runs: runs.compact(RUN, is_forced=True),
    "tidy": lambda runs: runs.tidy(),
    "send": lambda runs: runs.send_signal(RUN, SIGNAL),
    "remove signals": lambda runs: runs.remove_signals(RUN, ["two"]),
    "receive": lambda runs: runs.receive_run("new", lambda: [checkpoint(1)]),
}


@pytest.fixture(scope="module", params=sorted(RINGS))
def original(request, tmp_path_factory):
    """A store with a run that is pinned, and has a message."""
    path, ring = tmp_path_factory.mktemp("original") / "store", RINGS[request.param]
    runs = FileCheckpointStore(make(path, keys=ring), keys=ring).runs
    runs.pin(RUN, 1)
    runs.send_signal(RUN, attrs.evolve(SIGNAL, signal_id="two"))
    return path, ring


@pytest.fixture
def copy(original, tmp_path):
    path, ring = original
    shutil.copytree(path, tmp_path / "store")
    return tmp_path / "store", ring


def content(path):
    return {str(file.relative_to(path)): file.is_file() and file.read_bytes() for file in path.rglob("*")}


def notes(path):
    return [[key["id"] for key in json.loads(file.read_text())["keys"]] for file in sorted(path.glob("keys-*.json"))]


def forget_keys(path):
    """Leave a store as it was made before the keys of a store were noted."""
    for file in path.glob("keys-*.json"):
        file.unlink()


# --- doors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", DOORS)
def test_nobody_changes_a_store_without_its_key_or_with_another(original, door):
    path, ring = original
    before = content(path)
    for told, kind in (({}, KeyMissingError), ({"keys": KeyRing([STRANGE])}, WrongKeyError)):
        with pytest.raises(kind) as caught:
            DOORS[door](FileCheckpointStore(path, **told).runs)
        assert caught.value.key_id == ring.newest.id
        assert content(path) == before


def test_every_method_that_writes_is_a_door():
    """What is added to the store is either known to read only, or is tried above."""
    reading = {"load", "owner", "list_runs", "describe_run", "load_attempt", "attempts", "list_attempt", "place"}
    reading |= {"read_attempt", "check", "signals", "pinned", "compactable", "page_runs", "stored_bytes", "survey_runs"}
    reading |= {"total_bytes", "run_limit"}
    reading |= {
        "unreadable_runs",
        "load_latest",
        "list_checkpoints",
        "references",
        "load_run",
        "load_image",
        "started_steps",
        "last_seen",
        "claimed_by",
        "live_note",
    }
    reading |= {"trust_report", "plain_runs", "has_leases", "renew_leases", "call_when_lost"}
    of_an_owned_run = {
        "release",
        "close",
        "begin_generation",
        "share_values",
        "make_savable",
        "note_live",
        "save_later",
        "release_later",
    }
    tried = {"save", "clear", "acquire", "delete_checkpoint", "send_signal", "remove_signals", "delete_sequences"}
    tried |= {"pin", "unpin", "compact", "clear_unchanged", "tidy"}
    tried |= {"receive_run"}
    tried |= {"remove_empty", "trust"}  # a part of receive_run; and tried at the end of this file
    tried |= {"acquire_new_later"}  # below
    of_the_index = {"read_index", "write_index", "clear_index"}  # a hint: each result that it names is read and proved
    found = {name for cls in FileRuns.__mro__ for name in vars(cls) if not name.startswith("_")}
    assert found == reading | of_an_owned_run | tried | of_the_index


def test_a_group_of_claims_refuses_a_store_without_its_key_or_with_another(original):
    path, _ = original
    before = content(path)
    for told, kind in (({}, KeyMissingError), ({"keys": KeyRing([STRANGE])}, WrongKeyError)):
        store = FileCheckpointStore(path, **told)

        async def claimed(store=store):
            return await asyncio.gather(*(store.acquire(f"new-{n}") for n in range(3)), return_exceptions=True)

        assert {type(outcome) for outcome in asyncio.run(claimed())} == {kind}
        assert content(path) == before


def test_nobody_repairs_a_run_without_its_key_or_with_another(original):
    path, _ = original
    before = content(path)
    for told, kind in (({}, KeyMissingError), ({"keys": KeyRing([STRANGE])}, WrongKeyError)):
        with pytest.raises(kind):
            asyncio.run(FileCheckpointStore(path, **told).repair(RUN))
        assert content(path) == before


def test_a_run_that_is_at_work_while_the_key_is_rotated_goes_on(copy):
    path, ring = copy
    store = FileCheckpointStore(path, keys=ring)
    lease = store.runs.acquire(RUN, take_over=False)
    other = FileCheckpointStore(path, keys=KeyRing([NEXT, *ring.keys]))
    other.runs.save("other", checkpoint(1))
    other.close()
    store.runs.save(RUN, checkpoint(lease.last_sequence + 1, steps(), attempt=lease.attempt))
    store.runs.remove_signals(RUN, ["two"])
    store.close()
    store.runs.pin(RUN, 1)  # the old key is still the store's
    assert notes(path) == [[ring.newest.id], [NEXT.id]]


def test_only_reading_is_left_without_the_key_and_only_where_nothing_is_encrypted(copy):
    path, ring = copy
    before, plain = content(path), FileCheckpointStore(path)
    if ring.newest.use == "authenticate":
        assert shown(plain) == shown(FileCheckpointStore(path, keys=ring))
        assert [run.workflow_id for run in plain.runs.list_runs()] == [RUN]
        assert plain.runs.pinned(RUN) == {1}
    else:
        with pytest.raises(KeyMissingError):
            shown(plain)
    assert content(path) == before


# --- the keys of a store ---------------------------------------------------------------------------------------------


def test_another_key_is_refused_at_once_also_where_there_is_no_run(tmp_path):
    path = tmp_path / "store"
    store = FileCheckpointStore(path, keys=RINGS["encrypt"])
    store.runs.acquire(RUN, take_over=False)
    store.close()
    store.runs.clear(RUN)
    assert notes(path) == [[ENCRYPT.id]]
    strange = FileCheckpointStore(path, keys=KeyRing([STRANGE])).runs
    for ask in (
        strange.list_runs,
        lambda: strange.check(None),
        lambda: strange.load_image(RUN),
        lambda: strange.describe_run(RUN),
        lambda: strange.compactable("", 10),
        lambda: strange.signals(RUN),
        lambda: strange.owner(RUN),
        lambda: strange.acquire("new", take_over=False),
    ):
        with pytest.raises(WrongKeyError, match=ENCRYPT.id) as caught:
            ask()
        assert caught.value.is_whole_store
    assert not list((path / "runs").iterdir())


def test_a_rotation_is_noted_once_and_the_old_key_is_not_forgotten(tmp_path):
    path = make(tmp_path / "store", keys=RINGS["encrypt"])
    rotated = KeyRing([NEXT, ENCRYPT])
    save_attempt(path, (4,), steps(), keys=rotated)
    save_attempt(path, (4,), steps(), keys=rotated)
    save_attempt(path, (4,), steps(), keys=KeyRing([ENCRYPT, NEXT]))
    assert notes(path) == [[ENCRYPT.id], [NEXT.id]]
    FileCheckpointStore(path, keys=rotated).runs.compact(RUN, is_forced=True)
    assert shown(FileCheckpointStore(path, keys=KeyRing([NEXT])))[0]  # the old one may be thrown away
    with pytest.raises(WrongKeyError):
        shown(FileCheckpointStore(path, keys=KeyRing([ENCRYPT])))


def test_a_key_that_takes_up_another_use_is_noted_for_both(tmp_path):
    path = make(tmp_path / "store", keys=RINGS["authenticate"])
    both = KeyRing([Key(AUTHENTICATE.secret, "encrypt")])
    save_attempt(path, (4,), steps(), keys=both)
    assert [proof for file in sorted(path.glob("keys-*.json")) for proof in json.loads(file.read_text())["keys"]] == [
        {
            "id": key.id,
            "use": key.use,
            "proof": key.make_proof(json.loads((path / "store.json").read_text())["store_id"]),
        }
        for key in (AUTHENTICATE, both.newest)
    ]


def test_a_note_tells_nothing_of_the_key_and_proves_it_for_one_store_alone(tmp_path):
    path = make(tmp_path / "store", keys=RINGS["encrypt"])
    note = (path / "keys-00000001.json").read_bytes()
    assert ENCRYPT.secret not in note
    assert ENCRYPT.secret.hex().encode() not in note
    assert (path / "keys-00000001.json").stat().st_mode & 0o777 == 0o600
    assert (
        len({ENCRYPT.make_proof("a"), ENCRYPT.make_proof("b"), NEXT.make_proof("a"), AUTHENTICATE.make_proof("a")}) == 4
    )
    other = make(tmp_path / "other", keys=RINGS["encrypt"])
    shutil.copy(path / "keys-00000001.json", other / "keys-00000001.json")
    with pytest.raises(CheckpointCorruptedError, match="its proof of key"):
        shown(FileCheckpointStore(other, keys=RINGS["encrypt"]))


def test_a_store_without_a_note_gets_one_with_the_next_write_by_a_key_that_a_record_proves(copy):
    path, ring = copy
    forget_keys(path)
    assert shown(FileCheckpointStore(path, keys=ring))[0]
    assert notes(path) == []  # who reads writes nothing
    before = content(path)
    for door in ("begin", "pin", "tidy", "clear", "receive"):
        with pytest.raises(WrongKeyError):
            DOORS[door](FileCheckpointStore(path, keys=KeyRing([STRANGE])).runs)
    assert content(path) == before
    FileCheckpointStore(path, keys=KeyRing([NEXT, *ring.keys])).runs.pin(RUN, 1)
    assert notes(path) == [[NEXT.id, ring.newest.id]]


def test_a_header_that_only_names_a_key_proves_nothing(copy):
    """Somebody without the key of the store plants a segment that names the key which he wants to bring in."""
    path, ring = copy
    forget_keys(path)
    planted = path / "runs/planted/00000001.jsonl"
    planted.parent.mkdir()
    text = segment(path, 1).read_bytes().splitlines()[0].replace(ring.newest.id.encode(), STRANGE.id.encode())
    from hashlib import sha256

    body = text[: text.rindex(b',"sha256":"')]
    planted.write_bytes(b'%b,"sha256":"%b"}\n' % (body, sha256(bytes(32) + body).hexdigest().encode()))
    with pytest.raises(WrongKeyError):
        FileCheckpointStore(path, keys=KeyRing([STRANGE])).runs.acquire("new", take_over=False)


def test_of_two_keys_that_come_at_once_one_is_refused(tmp_path):
    """The second process comes before each single call of the first, until the first has noted its key."""

    def begins(path, ring, run, filesystem):
        store = FileCheckpointStore(path, keys=ring, filesystem=filesystem)
        try:
            store.runs.acquire(run, take_over=False)
        except WrongKeyError:
            return False
        finally:
            store.close()
        return True

    class Watched(PosixFileSystem):
        """Another process comes before one call."""

        def __init__(self, path, number):
            self._path, self._left, self._second = path, number, None

        def __getattribute__(self, name):
            if name[0] != "_":
                self._left -= 1
                if self._left == -1:
                    self._second = begins(self._path, KeyRing([STRANGE]), "second", PosixFileSystem())
            return super().__getattribute__(name)

    number, is_second = 0, True
    while is_second:
        path = tmp_path / str(number)
        filesystem = Watched(path, number)
        is_first = begins(path, RINGS["encrypt"], "first", filesystem)
        is_second = filesystem._second
        assert is_second is (not is_first)
        assert notes(path) == [[STRANGE.id if is_second else ENCRYPT.id]]
        assert [each.name for each in (path / "runs").iterdir()] == ["second" if is_second else "first"]
        assert sorted(each.name for each in path.iterdir()) == ["keys-00000001.json", "reserve", "runs", "store.json"]
        number += 1
    assert number > 20


@pytest.mark.parametrize("keys", ["[]", "{}", "7"])
def test_a_note_that_names_no_key_is_damaged(copy, keys):
    path, ring = copy
    from flowckpt.stores.log.segment import START, chain_line

    text, _ = chain_line(f'{{"flowckpt":"keys","schema_version":1,"store_id":"one","keys":{keys}'.encode(), START)
    (path / "keys-00000001.json").unlink()
    (path / "keys-00000001.json").write_bytes(text)
    with pytest.raises(CheckpointCorruptedError, match="keys-00000001"):
        FileCheckpointStore(path, keys=ring).runs.acquire("new", take_over=False)


def test_many_processes_that_begin_a_store_with_different_keys_agree_on_one(tmp_path):
    program = """
import sys
from flowckpt.errors import WrongKeyError
from flowckpt.stores import FileCheckpointStore
from flowckpt.stores.log.sealing.keys import Key, KeyRing
number = int(sys.argv[2])
store = FileCheckpointStore(sys.argv[1], keys=KeyRing([Key(bytes([number]) * 32, "authenticate")]))
sys.stdin.read()
try:
    store.runs.acquire(f"run-{number}", take_over=False)
except WrongKeyError:
    print("refused")
else:
    print("accepted")
"""
    path = tmp_path / "store"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(path), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(1, 5)
    ]
    for process in started:
        process.stdin.close()
    said = []
    for process in started:
        with process.stdout:
            said.append(process.stdout.read().strip())
        process.wait()
    assert sorted(said) == ["accepted", *["refused"] * 3]
    assert len(notes(path)) == 1


@pytest.mark.parametrize("call", ["create", "write", "sync", "link"])
def test_a_note_that_cannot_be_made_durable_begins_no_run(tmp_path, call):
    path = tmp_path / "store"
    FileCheckpointStore(path, keys=RINGS["encrypt"]).runs.acquire("empty", take_over=False)
    forget_keys(path)
    is_broken = []

    def failing(self, *arguments):
        if is_broken:
            raise OSError(28, "No space left on device")
        return getattr(PosixFileSystem, call)(self, *arguments)

    filesystem = type("Failing", (PosixFileSystem,), {call: failing})()
    store = FileCheckpointStore(path, keys=RINGS["encrypt"], filesystem=filesystem)
    is_broken.append(True)
    from flowckpt.errors import CheckpointStorageError

    with pytest.raises(CheckpointStorageError):
        store.runs.acquire("new", take_over=False)
    assert not (path / "runs/new").exists()
    is_broken.clear()
    store.runs.acquire("new", take_over=False)
    store.close()
    assert notes(path) == [[ENCRYPT.id]]
    assert sorted(each.name for each in path.iterdir()) == ["keys-00000001.json", "reserve", "runs", "store.json"]


def test_a_store_that_another_process_begins_to_seal_just_now_has_lost_nothing(tmp_path):
    """Its identity is looked for, then made by the other process with all that follows, then the rest is looked at."""
    path, others = tmp_path / "store", []

    class Slow(PosixFileSystem):
        def exists(self, parent, name):
            found = super().exists(parent, name)
            if name == "store.json" and not found and not others:
                others.append(FileCheckpointStore(path, keys=RINGS["encrypt"]))
                others[0].runs.acquire("other", take_over=False)
            return found

    path.mkdir()
    for told in ({}, {"keys": RINGS["encrypt"]}, {"keys": KeyRing([STRANGE])}):
        shutil.rmtree(path)
        path.mkdir()
        others.clear()
        store = FileCheckpointStore(path, filesystem=Slow(), **told)
        if told.get("keys") is RINGS["encrypt"]:
            store.runs.acquire("mine", take_over=False)
        else:
            with pytest.raises(WrongKeyError if told else KeyMissingError):
                store.runs.acquire("mine", take_over=False)
        store.close()
        others[0].close()


# --- an identity that is lost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "not noted"])
@pytest.mark.parametrize("told", [{}, {"keys": RINGS["encrypt"]}], ids=["no key", "key"])
def test_where_the_identity_is_lost_nothing_is_written_beside_sealed_runs(copy, told, is_noted):
    path, ring = copy
    told = {"keys": ring} if told else {}
    (path / "store.json").unlink()
    if not is_noted:
        forget_keys(path)
    before = content(path)
    for door in DOORS:
        if door not in ("acquire", "save", "steal") or told:
            with pytest.raises((CheckpointCorruptedError, KeyMissingError)):
                DOORS[door](FileCheckpointStore(path, **told).runs)
    assert content(path) == before
    with pytest.raises(CheckpointCorruptedError, match=r"store\.json is corrupt: it is missing") as caught:
        FileCheckpointStore(path, **told).runs.acquire("new", take_over=False)
    (path / "store.json").write_text(caught.value.remedy.partition("it again: ")[2])
    save_attempt(path, (4,), steps(), keys=ring)


def test_a_lost_identity_is_found_among_more_runs_than_a_process_may_open_files(tmp_path):
    import resource

    path = make(tmp_path / "store", keys=RINGS["authenticate"])
    (path / "runs" / RUN).rename(path / "runs" / "zzz")
    (path / "store.json").unlink()
    forget_keys(path)
    for number in range(30):
        (path / f"runs/a{number}").mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 15, hard))
    try:
        for told in ({}, {"keys": RINGS["authenticate"]}):
            with pytest.raises(CheckpointCorruptedError, match=r"store\.json"):
                FileCheckpointStore(path, **told).runs.acquire("new", take_over=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nobody_goes_on_without_the_key_in_a_sealed_run_whatever_was_taken_away(tmp_path):
    path = make(tmp_path / "store", keys=RINGS["authenticate"])
    (path / "store.json").unlink()
    heads(path)[-1].unlink()
    forget_keys(path)
    with pytest.raises(KeyMissingError):
        save_attempt(path, (4,), steps())
    assert not segment(path, 3).exists()


# --- trust -----------------------------------------------------------------------------------------------------------


def test_trust_tells_what_it_took_what_held_and_what_is_lost(tmp_path):
    path, ring = make(tmp_path / "store"), RINGS["encrypt"]
    runs = FileCheckpointStore(path, keys=ring, trust=True).runs
    found = runs.trust(RUN)
    assert (found.is_proved, found.plain, found.sealed, found.lost) == (
        False,
        ("00000001.jsonl", "00000002.jsonl"),
        (),
        "",
    )
    assert (found.checkpoints, found.results, found.message) == (4, 4, "")
    files = content(path)
    again = runs.trust(RUN)
    assert (again.is_proved, again.lost) == (True, "")
    assert content(path) == files  # there was nothing to say
    save_attempt(path, (4,), steps(), keys=ring)
    newest = segment(path, 4)
    newest.write_bytes(b"".join(newest.read_bytes().splitlines(keepends=True)[:2]))
    cut = FileCheckpointStore(path, keys=ring, trust=True).runs.trust(RUN)
    assert "00000004.jsonl" in cut.lost
    assert cut.plain == ("00000001.jsonl", "00000002.jsonl")
    assert not cut.is_proved
    heads(path)[-1].unlink()
    assert "unknown: " in FileCheckpointStore(path, keys=ring, trust=True).runs.trust(RUN).lost


def test_trust_says_that_a_message_without_a_key_stays_refused(tmp_path):
    path, ring = make(tmp_path / "store"), RINGS["authenticate"]
    FileCheckpointStore(path).runs.send_signal(RUN, SIGNAL)
    found = FileCheckpointStore(path, keys=ring, trust=True).runs.trust(RUN)
    assert "signals/" in found.message
    with pytest.raises(UnauthenticatedRecordError):
        FileCheckpointStore(path, keys=ring).runs.signals(RUN)
