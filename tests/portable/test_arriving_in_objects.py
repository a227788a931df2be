"""A run that is brought into a bucket: seen whole or not at all, wherever its bringer dies, sleeps or is overtaken."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace

import attrs
import obstore
import pytest
from obstore.store import MemoryStore
from runs import done, exported, history

from flowckpt import MemoryCheckpointStore
from flowckpt.core.system.process import current_process
from flowckpt.errors import CheckpointCorruptedError, CheckpointStorageError, RunExistsError, RunLockedError
from flowckpt.maintenance import copy_run
from flowckpt.stores import ObjectCheckpointStore
from flowckpt.stores.objects import claim
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.testing.contract import checkpoint, results
from tests.faulty_proxy import FaultyProxy

pytestmark = pytest.mark.usefixtures("in_place")

MARK = "runs/run/000001.000000000004/records/000000000001"


class Died(BaseException):
    """The process has died."""


class WatchedBucket(Bucket):
    """Acts before, or right behind, its n-th request, and all that follow where the act raises."""

    def __init__(self, driver, at, act, *, is_after=False):
        super().__init__(driver, "memory", patience_seconds=5)
        self.at, self.act, self.is_after = at, act, is_after
        self.count, self.is_dead, self.counting = 0, False, threading.Lock()

    def _retry_request(self, workflow_id, operation, request, **more):
        if self.is_dead:
            raise Died
        with self.counting:
            self.count += 1
            is_it = self.count == self.at
        if is_it and not self.is_after:
            self._acted()
        found = super()._retry_request(workflow_id, operation, request, **more)
        if is_it and self.is_after:
            self._acted()
        return found

    def _acted(self):
        try:
            self.act()
        except Died:
            self.is_dead = True
            raise


@pytest.fixture(scope="module")
def gone():
    """A process that is dead."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0)"])
    child.wait()
    return attrs.evolve(current_process(), pid=child.pid, start_time=current_process().start_time + 1)


@pytest.fixture
def driver():
    return MemoryStore()


def bringer(driver, at=0, act=lambda: None, process=None, **options):
    store = ObjectCheckpointStore(driver)
    store.runs.bucket = WatchedBucket(driver, at, act, **options)
    if process is not None:
        store.runs._process = lambda: process
    return store


def bring(store, run="run", large="large " * 20_000):
    store.runs.receive_run(run, lambda: iter(history(large)))


def wanted(large="large " * 20_000):
    store = MemoryCheckpointStore()
    done(store.receive_run("run", lambda: iter(history(large))))
    return exported(store)


def keys(driver):
    return sorted(each["path"] for page in obstore.list(driver) for each in page)


def die():
    raise Died


def requests_of(act):
    """How many requests a bringer makes in an empty bucket."""
    store = ObjectCheckpointStore(MemoryStore())
    store.runs.bucket = counting = WatchedBucket(MemoryStore(), 0, lambda: None)
    act(store)
    return counting.count


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "behind"])
def test_its_bringer_may_die_at_every_request_and_it_is_brought_again(gone, is_after):
    whole, seen = wanted(), []
    for at in range(1, requests_of(bring) + 1):
        driver = MemoryStore()
        with pytest.raises(Died):
            bring(bringer(driver, at, die, gone, is_after=is_after))
        store = ObjectCheckpointStore(driver)
        is_seen = done(store.load_latest("run")) is not None
        seen.append(is_seen)
        assert [info.workflow_id for info in done(store.list_runs())] == ["run"] * is_seen
        assert [finding.severity for finding in done(store.check())] == ["ok"] * is_seen
        assert list(done(store.attempts("run"))) == [1, 2, 4] * is_seen
        assert done(store.owner("run")) is None
        if is_seen:
            with pytest.raises(RunExistsError):
                bring(store)
        else:
            bring(store)
        assert exported(store) == whole
        assert [finding.severity for finding in done(store.check())] == ["ok"]
        assert done(store.describe_run("run")).status.value == "completed"
        assert done(store.acquire("run")).attempt == 5
        store.close()
    assert not seen[0] and not seen[-2] and seen == sorted(seen), "it is there with the last request, and not before"


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "behind"])
def test_after_a_bringer_that_died_anybody_may_begin_the_run(gone, is_after):
    for at in range(1, requests_of(bring)):
        driver = MemoryStore()
        with pytest.raises(Died):
            bring(bringer(driver, at, die, gone, is_after=is_after))
        store = ObjectCheckpointStore(driver)
        lease = done(store.acquire("run"))
        assert (lease.latest, lease.last_sequence) == (None, 0)
        done(store.save("run", checkpoint(1, results("mine"), attempt=lease.attempt)))
        done(store.release("run"))
        assert list(done(store.attempts("run"))) == [lease.attempt]
        assert [result.output for result in done(store.load_latest("run")).step_results] == ["mine"]
        assert [finding.severity for finding in done(store.check())] == ["ok"]
        done(store.clear("run"))
        assert [key for key in keys(driver) if "/bundles/" in key or ".values/" in key] == []


def test_nobody_sees_anything_of_it_before_it_is_whole(driver):
    reader, seen = ObjectCheckpointStore(driver), []

    def look():
        seen.append(done(reader.owner("run")) is not None)
        assert done(reader.load_latest("run")) is done(reader.describe_run("run")) is None
        assert list(done(reader.list_runs())) == list(done(reader.list_checkpoints("run"))) == []
        assert list(done(reader.attempts("run"))) == list(done(reader.list_attempt("run", 1))) == []
        assert done(reader.load_attempt("run", 2)) is None
        assert list(done(reader.check())) == []
        if seen[-1]:
            for act in (reader.acquire("run"), reader.clear("run"), reader.save("run", checkpoint())):
                with pytest.raises(RunLockedError):
                    done(act)
            with pytest.raises(RunLockedError):
                bring(reader)

    for at in range(1, requests_of(bring) + 1):
        store = bringer(MemoryStore(), at, look)
        reader = ObjectCheckpointStore(store.runs.bucket._driver)
        bring(store)
        assert exported(reader) == wanted()
    assert seen.count(True) > 10


def test_a_bringer_that_sleeps_is_overtaken_and_brings_nothing():
    ends = []
    for at in range(1, requests_of(bring) + 1):
        driver = MemoryStore()
        other = ObjectCheckpointStore(driver)

        def take(other=other):
            lease = done(other.acquire("run", take_over=True))
            done(other.save("run", checkpoint(1, results("mine"), attempt=lease.attempt)))

        store = bringer(driver, at, take)
        with pytest.raises((RunLockedError, RunExistsError)) as refused:
            bring(store)
        ends.append(refused.type)
        assert [result.output for result in done(other.load_latest("run")).step_results] == ["mine"]
        assert len(done(other.attempts("run"))) == 1
        attempt = done(other.attempts("run"))[0]
        done(other.save("run", checkpoint(2, results("mine", "too"), attempt=attempt)))
        done(other.release("run"))
        assert [finding.severity for finding in done(ObjectCheckpointStore(driver).check())] == ["ok"]
        assert [ref.sequence for ref in done(store.list_checkpoints("run"))] == [2, 1]
    assert set(ends) == {RunLockedError, RunExistsError}


def test_one_that_was_overtaken_while_it_brought_it_ends_without_a_trace(driver):
    other = ObjectCheckpointStore(driver)
    at = requests_of(bring)  # its end

    def take():
        done(other.acquire("run", take_over=True))
        done(other.release("run"))

    with pytest.raises(RunLockedError, match="took it over"):
        bring(bringer(driver, at, take))
    assert done(other.load_latest("run")) is None
    bring(other)
    assert exported(other) == wanted()
    done(other.clear("run"))
    assert [key for key in keys(driver) if "/records/" in key and "000001." in key] == [
        # the end that its bringer found at its next number
        next(key for key in keys(driver) if "000001.000000000004/records/" in key)
    ]


def test_what_another_began_in_the_same_moment_is_not_lost(driver, monkeypatch):
    other, looks, true_look = ObjectCheckpointStore(driver), [], claim.read_keys

    def look(bucket, workflow_id):
        found = true_look(bucket, workflow_id)
        looks.append(found)
        if len(looks) == 1:  # the bringer has seen that there is nothing
            done(other.save("run", checkpoint(1, results("mine"))))
        return found

    monkeypatch.setattr(claim, "read_keys", look)
    with pytest.raises(RunLockedError):
        bring(ObjectCheckpointStore(driver))
    monkeypatch.undo()
    done(other.save("run", checkpoint(2, results("mine", "too"))))
    done(other.release("run"))
    with pytest.raises(RunExistsError):
        bring(ObjectCheckpointStore(driver))
    assert [result.output for result in done(other.load_latest("run")).step_results] == ["mine", "too"]


def test_what_fails_on_the_way_leaves_nothing(driver):
    def failing(count):
        passes = []

        def checkpoints():
            passes.append(1)
            for number, data in enumerate(history()):
                if len(passes) == 2 and number == count:
                    raise CheckpointCorruptedError("source", location="there", detail="a flipped bit")
                yield data

        return checkpoints

    store = ObjectCheckpointStore(driver)
    for count in range(9):
        with pytest.raises(CheckpointCorruptedError):
            done(store.receive_run("run", failing(count)))
        assert done(store.load_latest("run")) is done(store.owner("run")) is None
    bring(store)
    assert exported(store) == wanted()


def test_a_source_that_says_another_thing_the_second_time_is_noticed(driver):
    store = ObjectCheckpointStore(driver)
    for second in (history()[:5], history()[5:7], [], [attrs.evolve(history()[0], attempt=3)]):
        said = [history(), second]
        with pytest.raises(CheckpointStorageError, match="changed during"):
            done(store.receive_run("run", lambda said=said: iter(said.pop(0))))
        assert done(store.load_latest("run")) is done(store.owner("run")) is None
    done(store.receive_run("run", lambda: iter([])))
    assert done(store.load_latest("run")) is None


def test_a_mark_that_is_damaged_is_noticed(driver, gone):
    with pytest.raises(Died):
        bring(bringer(driver, requests_of(bring), die, gone))
    body = bytes(obstore.get(driver, MARK).bytes())
    for at in range(len(body)):
        obstore.put(driver, MARK, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
        assert [finding.severity for finding in done(ObjectCheckpointStore(driver).check())] == ["corrupt"]


def test_signs_of_life_are_given_while_it_is_brought(driver, monkeypatch):
    store = ObjectCheckpointStore(driver)
    monkeypatch.setattr(store.runs, "_times", SimpleNamespace(seconds=30.0, interval=0.0))

    def checkpoints():
        for data in history():
            is_brought = store.runs.renew_leases()
            assert is_brought == ("runs/run/000001.000000000004/alive" in keys(driver))
            yield data

    done(store.receive_run("run", checkpoints))
    assert "runs/run/000001.000000000004/alive" in keys(driver)
    assert not store.runs.renew_leases()


def test_a_long_run_is_brought_to_s3_in_few_requests_and_back_and_is_the_same(s3):
    source, steps = MemoryCheckpointStore(), []
    for number in range(1, 301):
        steps += results(number, first=number)
        done(source.save("run", checkpoint(number, steps)))
    done(source.release("run"))
    proxy = FaultyProxy(s3.endpoint, share=0.0, seed=0)
    store = ObjectCheckpointStore(f"s3://{s3.make_bucket()}/in/here?endpoint={proxy.endpoint}&region=us-east-1")
    try:
        store.runs.list_runs()
        proxy.requests.clear()
        done(copy_run(source, store, "run"))
        assert len(proxy.requests) < 40
        back = MemoryCheckpointStore()
        done(copy_run(store, back, "run"))
        assert exported(back) == exported(source) == exported(store)
    finally:
        store.close()
        proxy.close()
