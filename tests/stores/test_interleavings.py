"""Of two processes each sees the other's work as done or as not begun: another one comes before any single call of a first.

What both are told, and what is there in the end, is what one of the two orders leads to. A process that meets an owner may be
refused, and has done nothing then.
"""

from __future__ import annotations

import itertools
import shutil
from random import Random

import attrs
import pytest
from obstore.store import MemoryStore

from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import CheckpointNotFoundError, FlowckptError, RunLockedError
from flowckpt.stores import FileCheckpointStore, ObjectCheckpointStore
from flowckpt.stores.base import Ability
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.testing.abilities import signal
from flowckpt.testing.contract import checkpoint, results
from tests.crash.workload import done
from tests.sealing.sealed_runs import RINGS

RUN = "run-1"
LARGE = "x" * 70_000
STEPS = results("first", {"a": (1, 2)}, [LARGE, "end"], "fourth", "fifth")
OLD, NEW = signal("old", None), signal("new", None)


# --- what two processes do -------------------------------------------------------------------------------------------


def save_attempt(store, *ends):
    lease = done(store.acquire(RUN))
    for number, end in enumerate(ends, 1):
        done(store.save(RUN, checkpoint(lease.last_sequence + number, STEPS[:end], attempt=lease.attempt)))
    return lease.last_sequence


def listed(run):
    return run and (run.workflow_id, run.status, run.steps)


def whole(data):
    return [result.output for result in data.step_results]


def there(found):
    """Some say that nothing is there, and are refused where the large values of it are gone by then."""
    if not found:
        raise CheckpointNotFoundError(RUN)
    return found


def resumed(store):
    """Save one checkpoint more, and end: somebody who looks later finds no owner."""
    last = save_attempt(store, 5)
    done(store.release(RUN))
    return last


CHANGES = {
    "resume": resumed,
    "clear": lambda store: done(store.clear(RUN)) and None,  # of two both may say that they did
    "delete": lambda store: done(store.delete_checkpoint(RUN, "c3")),
    "delete two": lambda store: done(store.delete_sequences(RUN, [2, 3])),
    "send": lambda store: done(store.send_signal(RUN, NEW)),
    "take": lambda store: done(store.remove_signals(RUN, ["old"])),
    "pin": lambda store: done(store.pin(RUN, 2)),
    "unpin": lambda store: done(store.unpin(RUN, 1)),
    "compact": lambda store: done(store.compact(RUN, is_forced=True)) and None,
    "tidy": lambda store: done(store.tidy()),
    "receive": lambda store: done(store.receive_run("copy", lambda: [checkpoint(7, STEPS[:3])])),
}
LOOKS = {
    "load": lambda store: whole(done(store.load(RUN, "c4"))),
    "checkpoints": lambda store: [ref.sequence for ref in done(store.list_checkpoints(RUN))],
    "runs": lambda store: [listed(run) for run in done(store.list_runs())],
    "describe": lambda store: listed(done(store.describe_run(RUN))),
    "attempts": lambda store: done(store.attempts(RUN)),
    "an attempt": lambda store: there([(data.sequence, whole(data)) for data in done(store.read_attempt(RUN, 2))]),
    "the end of an attempt": lambda store: whole(there(done(store.load_attempt(RUN, 2)))),
    "signals": lambda store: [each.signal_id for each in done(store.signals(RUN))],
    "pins": lambda store: sorted(done(store.pinned(RUN))),
    "check": lambda store: [(finding.severity, finding.detail) for finding in done(store.check(None))],
}


def outcome(work, store):
    try:
        return work(store)
    except AttributeError as error:
        assert error.obj is store, "it lacks the ability"
        return None
    except FlowckptError as error:
        return type(error)


def end(store):
    """What is there in the end, and what the owner that continues finds."""
    looks = [LOOKS[look] for look in ("checkpoints", "load", "runs", "attempts", "signals", "pins", "check")]
    return [outcome(look, store) for look in (*looks, resumed, *looks)]


# --- where they do it ------------------------------------------------------------------------------------------------


class Unsynced(PosixFileSystem):
    """A disk that is never cut off from power."""

    def sync(self, file):
        pass

    def sync_data(self, file):
        pass


class Calls(Unsynced):
    """A disk that tells of each call before it is made."""

    tell = None

    def __getattribute__(self, name):
        if name[0] != "_" and name != "tell" and self.tell is not None:
            self.tell()
        return super().__getattribute__(name)


class Requests(Bucket):
    """A bucket that tells of each request before it is made."""

    tell = None

    def _retry_request(self, *given, **told):
        if self.tell is not None:
            self.tell()
        return super()._retry_request(*given, **told)


class Files:
    """A store in files."""

    def __init__(self, path, **told):
        self._path, self._told, self._copies = path, told, itertools.count()
        self._make(path / "first")

    def _make(self, place):
        for ends in ((1, 3), (1, 2), (3, 4)):
            store, _ = self.opened(place)
            save_attempt(store, *ends)
            store.close()
            if ends == (1, 3):  # it had a life before
                done(store.clear(RUN))
        store, _ = self.opened(place)
        if store.has(Ability.PINS):
            done(store.pin(RUN, 1))
        done(store.send_signal(RUN, OLD))
        store.close()

    def copied(self):
        return shutil.copytree(self._path / "first", self._path / str(next(self._copies)))

    def opened(self, place):
        calls = Calls()
        return FileCheckpointStore(place, filesystem=calls, **self._told), calls

    def removed(self, place):
        shutil.rmtree(place)


class Objects(Files):
    """A store in a bucket."""

    def __init__(self):
        self._bucket = MemoryStore()
        self._make(self._bucket)

    def copied(self):
        copy = MemoryStore()
        for some in self._bucket.list():
            for each in some:
                copy.put(each["path"], self._bucket.get(each["path"]).bytes())
        return copy

    def opened(self, place):
        store = ObjectCheckpointStore(place)
        calls = Requests(place, "a bucket", patience_seconds=0)
        store.runs.bucket = calls
        return store, calls

    def removed(self, place):
        pass


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Nobody lets go of a lock while somebody else waits for it: they are one thread."""
    monkeypatch.setattr("flowckpt.stores.file.directory._LOCK_TRIES", 1)


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """The stores, each with a run of two attempts, which was cleared once before."""
    path = tmp_path_factory.mktemp("worlds")
    return {
        "files": Files(path / "files"),
        "sealed files": Files(path / "sealed", keys=RINGS["encrypt"]),
        "objects": Objects(),
    }


# --- in which order --------------------------------------------------------------------------------------------------


@attrs.frozen
class Told:
    """What two processes were told, and what was there in the end."""

    first: object
    second: object
    end: list


def told(world, first, second, before):
    """Let a second process come before a call of the first, by number; behind all of them, where it makes fewer.

    Returns:
        What they were told, and how many calls the first one made.
    """
    place = world.copied()
    one, calls = world.opened(place)
    other, _ = world.opened(place)
    try:
        seen, counted = [], itertools.count()

        def come():
            if next(counted) == before:
                seen.append(outcome(second, other))

        calls.tell = come
        answer = outcome(first, one)
        calls.tell = None
        if not seen:
            seen.append(outcome(second, other))
        one.close()
        other.close()
        later, _ = world.opened(place)
        found = Told(answer, seen[0], end(later))
        later.close()
        return found, next(counted)
    finally:
        world.removed(place)


def mixed(world, first, second, points=None):
    """Return what neither order explains, by the call: of all calls, or of some at random."""
    (behind, count), (ahead, _) = told(world, first, second, -1), told(world, first, second, 0)
    only_first, only_second = (told(world, idle, work, -1)[0] for work in (first, second))
    explained = [
        behind,
        ahead,
        # Where one met the other as the owner:
        Told(only_first.second, RunLockedError, only_first.end),
        Told(RunLockedError, only_second.second, only_second.end),
    ]
    chosen = range(count) if points is None else Random(count).sample(range(count), min(points, count))
    seen = {before: told(world, first, second, before)[0] for before in chosen}
    return {before: each for before, each in seen.items() if each not in explained}


def idle(store):
    """Do nothing."""


MET_ALREADY = [
    ("files", "describe", "clear"),
    ("files", "check", "clear"),
    ("files", "take", "clear"),
    ("files", "send", "compact"),
    ("objects", "load", "clear"),
    ("objects", "check", "clear"),
    ("objects", "attempts", "clear"),
]
"""Where it was otherwise once."""
WORKS = {**CHANGES, **LOOKS}
PAIRS = [*itertools.product(["files", "sealed files", "objects"], WORKS, CHANGES)]


@pytest.mark.parametrize(("world", "first", "second"), MET_ALREADY)
def test_no_process_sees_a_half_of_what_another_does(worlds, world, first, second):
    assert mixed(worlds[world], WORKS[first], CHANGES[second]) == {}


@pytest.mark.parametrize("world", ["files", "sealed files", "objects"])
def test_a_message_that_replaces_another_one_is_seen_or_the_other_one_is(worlds, world):
    def replaced(store):
        done(store.send_signal(RUN, NEW))
        done(store.remove_signals(RUN, ["old"]))

    assert mixed(worlds[world], LOOKS["signals"], replaced) == {}


def test_no_process_sees_a_half_of_anything(worlds):
    for world, first, second in Random().sample(PAIRS, 12):
        assert mixed(worlds[world], WORKS[first], CHANGES[second], points=2) == {}, (world, first, second)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("world", ["files", "sealed files", "objects"])
def test_no_process_sees_a_half_of_anything_at_any_call(worlds, world):
    for first, second in itertools.product(WORKS, CHANGES):
        assert mixed(worlds[world], WORKS[first], CHANGES[second]) == {}, (first, second)
