"""Messages for runs in a bucket: there once or not at all, whatever request fails, and gone with their run."""

from __future__ import annotations

import contextlib
import itertools
import json

import attrs
import obstore
import pytest
from obstore.store import MemoryStore

from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, CheckpointStorageError
from flowckpt.stores import ObjectCheckpointStore, open_store
from flowckpt.stores.file.layout import signal_name
from flowckpt.stores.log import segment
from flowckpt.stores.objects import signals
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.testing.abilities import NOON, signal
from flowckpt.testing.contract import RUN, checkpoint, results
from tests.faulty_proxy import TIMEOUT, FaultyProxy, hang_up
from tests.s3 import PAGE

pytestmark = pytest.mark.usefixtures("in_place")

UNDER = f"runs/{RUN}/000001.signals"


@pytest.fixture
def store(driver):
    made = ObjectCheckpointStore(driver)
    made.runs.save(RUN, checkpoint())
    yield made
    made.close()


class DyingProxy(FaultyProxy):
    """Passes requests on until the client "dies": the n-th is cut, before or behind the server, and all after it."""

    def __init__(self, target, *, dies_at, is_carried_out):
        super().__init__(target, share=0.0, seed=0)
        self._dies_at, self._is_carried_out = dies_at, is_carried_out

    def serve(self, handler, body):
        self.requests.append(f"{handler.command} {handler.path}")
        if len(self.requests) <= self._dies_at:
            return super_serve(self, handler, body)
        if len(self.requests) == self._dies_at + 1 and self._is_carried_out:
            self.pass_on(handler.command, handler.path, dict(handler.headers), body)
        return hang_up(handler)


def super_serve(proxy, handler, body):
    proxy.requests.pop()
    FaultyProxy.serve(proxy, handler, body)


def behind(proxy, bucket, patience=0.0):
    store = open_store(f"s3://{bucket}/some/where?endpoint={proxy.endpoint}&region=us-east-1&request_seconds={TIMEOUT}")
    store.runs.bucket._patience = patience
    return store


def ids(store, run=RUN):
    return [each.signal_id for each in store.runs.signals(run)]


def keys(driver, under=""):
    return sorted(each["path"] for page in obstore.list(driver, under or None) for each in page)


def every_cut(act, world, check):
    """Do something that dies at its first request, at its second …, until it does not die any more.

    Args:
        act: what is done with a store.
        world: makes a store through which nothing fails, and one that dies, given the number and whether that request
            is carried out.
        check: looks at what came of it, through the one that does not fail.
    """
    for number in itertools.count():
        outcomes = []
        for is_carried_out in (False, True):
            with world(number, is_carried_out) as (calm, dying):
                try:
                    outcomes.append(act(dying))
                except CheckpointStorageError as error:
                    outcomes.append(error)
                check(calm, outcomes[-1])
        if not any(isinstance(outcome, CheckpointStorageError) for outcome in outcomes):
            return number
    raise AssertionError("unreachable")


def with_run(calm):
    calm.runs.save(RUN, checkpoint())
    calm.runs.release(RUN)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_a_message_whose_sender_dies_at_any_request_is_there_whole_or_not_and_sent_again_it_is_there_once(s3):
    doubts = []

    def check(calm, outcome):
        found = ids(calm)
        if isinstance(outcome, CheckpointStorageError):
            doubts.append(outcome.is_outcome_unknown)
            assert outcome.is_outcome_unknown or not found
            if outcome.is_outcome_unknown:
                assert "'one'" in outcome.remedy
        else:
            assert (outcome, found) == (True, ["one"])
        assert calm.runs.send_signal(RUN, signal("one", 5)) is not bool(found)
        assert [(each.signal_id, each.data) for each in calm.runs.signals(RUN)] == [("one", 5)]
        assert [finding.severity for finding in calm.runs.check(None)] == ["ok"]

    @contextlib.contextmanager
    def world(number, is_carried_out):
        bucket = s3.make_bucket()
        calm = open_store(s3.spec(bucket))
        with_run(calm)
        proxy = DyingProxy(s3.endpoint, dies_at=number, is_carried_out=is_carried_out)
        yield calm, behind(proxy, bucket)
        proxy.close()
        calm.close()

    count = every_cut(lambda store: store.runs.send_signal(RUN, signal("one", 5)), world, check)
    assert count >= 5
    assert set(doubts) == {True, False}


def test_a_clear_that_dies_at_any_request_leaves_a_run_with_its_messages_or_none_that_anybody_sees():
    class Dying(Bucket):
        left, is_carried_out = 0, False

        def _retry_request(self, workflow_id, operation, request, **more):
            self.left -= 1
            if self.left < 0:
                if self.left == -1 and self.is_carried_out:
                    request()
                raise CheckpointStorageError("died", operation=operation)
            return super()._retry_request(workflow_id, operation, request, **more)

    @contextlib.contextmanager
    def world(number, is_carried_out):
        driver = MemoryStore()
        calm, dying = ObjectCheckpointStore(driver), ObjectCheckpointStore(driver)
        with_run(calm)
        for name in ("one", "two"):
            calm.runs.send_signal(RUN, signal(name))
        dying.runs.bucket.__class__ = Dying
        dying.runs.bucket.left, dying.runs.bucket.is_carried_out = number, is_carried_out
        yield calm, dying
        calm.close()

    def check(calm, outcome):
        if calm.runs.references(RUN):
            assert isinstance(outcome, CheckpointStorageError)
            assert ids(calm) == ["one", "two"]
        else:
            assert ids(calm) == []
            with pytest.raises(CheckpointNotFoundError):
                calm.runs.send_signal(RUN, signal("three"))
        calm.runs.acquire(RUN, take_over=True)  # from the dead, who is of this process
        calm.runs.clear(RUN)
        calm.runs.save(RUN, checkpoint())
        assert ids(calm) == []
        calm.runs.clear(RUN)
        assert [name for name in calm.runs.bucket.list_names(f"runs/{RUN}", RUN) if name.endswith(".signals")] == []

    assert every_cut(lambda store: store.runs.clear(RUN), world, check) >= 8


def test_with_patience_every_fault_is_overcome_and_each_message_is_new_once(s3, is_soak):
    bucket = s3.make_bucket()
    calm = open_store(s3.spec(bucket))
    with_run(calm)
    proxy = FaultyProxy(s3.endpoint, share=0.35, seed=4)
    store, sent = behind(proxy, bucket, patience=60.0), []
    while sum(proxy.injected.values()) < (200 if is_soak else 20):
        sent.append(f"{len(sent):06d}")
        assert store.runs.send_signal(RUN, signal(sent[-1])) is True
        assert store.runs.send_signal(RUN, signal(sent[-1])) is False
    assert ids(store) == sent
    store.runs.remove_signals(RUN, sent[1:])
    proxy.close()
    assert ids(calm) == sent[:1]


# --- with the run ----------------------------------------------------------------------------------------------------


def test_a_message_that_is_sent_while_its_run_is_cleared_is_refused_and_leaves_nothing(store, driver, monkeypatch):
    true_look, looks = signals.read_keys, []

    def look(bucket, workflow_id):
        looks.append(workflow_id)
        if len(looks) == 2:  # the message is there by now
            assert keys(driver, UNDER)
            store.runs.clear(RUN)
        return true_look(bucket, workflow_id)

    monkeypatch.setattr(signals, "read_keys", look)
    with pytest.raises(CheckpointNotFoundError):
        ObjectCheckpointStore(driver).runs.send_signal(RUN, signal("one"))
    assert keys(driver, UNDER) == []


@pytest.mark.parametrize("begins_anew", [True, False])
def test_what_a_sender_left_that_died_while_the_run_was_cleared_is_seen_by_nobody_and_removed_by_the_next_clear(
    store, driver, begins_anew
):
    store.runs.send_signal(RUN, signal("one"))
    [key] = keys(driver, UNDER)
    body = bytes(obstore.get(driver, key).bytes())
    store.runs.clear(RUN)
    obstore.put(driver, key, body)
    if begins_anew:
        store.runs.save(RUN, checkpoint())
        store.runs.send_signal(RUN, signal("two"))
        assert ids(store) == ["two"]
    else:
        assert ids(store) == []
    store.runs.clear(RUN)
    assert [each for each in keys(driver) if ".signals/" in each] == []


def test_messages_of_a_run_that_is_owned_elsewhere_are_removed_by_whoever_may_and_its_saves_go_on(store, driver):
    other = ObjectCheckpointStore(driver)
    other.runs.send_signal(RUN, signal("one"))
    other.runs.send_signal(RUN, signal("two"))
    other.runs.remove_signals(RUN, ["one", "never sent"])
    other.runs.remove_signals(RUN, ["one"])
    store.runs.save(RUN, checkpoint(2, results(1)))
    assert ids(store) == ["two"]
    store.runs.remove_signals(RUN, ["two"])
    assert ids(other) == []
    assert store.runs.attempts(RUN) == [1]


def test_messages_are_those_of_one_life_of_one_run_only(store, driver):
    store.runs.send_signal(RUN, signal("one"))
    other = ObjectCheckpointStore(driver)
    other.runs.save("run-2", checkpoint())
    assert ids(other, "run-2") == []
    assert ids(other, "no-such-run") == []


def test_many_messages_are_listed_page_by_page_and_a_look_that_finds_none_is_one_request(s3):
    bucket = s3.make_bucket()
    proxy = FaultyProxy(s3.endpoint, share=0.0, seed=0)
    store = behind(proxy, bucket, patience=10.0)
    try:
        store.runs.save(RUN, checkpoint())
        proxy.requests.clear()
        assert ids(store) == []
        assert len(proxy.requests) == 1
        names = [f"{number:03d}" for number in range(PAGE + 5)]
        assert store.runs.send_signal(RUN, signal(names[0]))
        proxy.requests.clear()
        assert store.runs.send_signal(RUN, signal(names[1]))
        assert len(proxy.requests) <= 5
        bodies = [(f"{UNDER}/{signal_name(each)}", signals._encode(RUN, signal(each))) for each in names[2:]]
        store.runs.bucket.create_all([(key, lambda body=body: body) for key, body in bodies], RUN, "signal")
        assert ids(store) == names
        proxy.requests.clear()
        store.runs.remove_signals(RUN, names)
        assert len(proxy.requests) <= 2  # the run is owned here: nothing has to be looked up
        assert ids(store) == []
    finally:
        store.close()
        proxy.close()


# --- damage ----------------------------------------------------------------------------------------------------------


def resealed(body, **changes):
    said = {key: value for key, value in json.loads(body).items() if key != "sha256"}
    return segment.chain_line(json.dumps({**said, **changes})[:-1].encode(), segment.START)[0]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda body: body[:-1], "checksum"),
        (lambda body: body.replace(b'"ann"', b'"bob"'), "checksum"),
        (lambda body: b"", "checksum"),
        (lambda body: b"\x1f\x8b" + body, "malformed"),
        (lambda body: resealed(body, workflow_id="run-2"), "for another run, 'run-2'"),
        (lambda body: resealed(body, signal={}), "malformed"),
        (lambda body: resealed(body, signal={**json.loads(body)["signal"], "signal_id": "two"}), "name of another"),
    ],
    ids=["cut", "changed", "empty", "no gzip", "another run", "nothing in it", "another name"],
)
def test_a_damaged_message_is_told_by_name_and_the_check_finds_it(store, driver, damage, said):
    store.runs.send_signal(RUN, signal("one"))
    key = f"{UNDER}/{signal_name('one')}"
    obstore.put(driver, key, damage(bytes(obstore.get(driver, key).bytes())))
    with pytest.raises(CheckpointCorruptedError, match=said) as refused:
        store.runs.signals(RUN)
    assert refused.value.location == key
    [finding] = store.runs.check(RUN)
    assert (finding.severity, key in finding.detail) == ("corrupt", True)


def test_a_message_of_megabytes_is_compressed_and_comes_back(store, driver):
    large = attrs.evolve(signal("one"), data="x" * 3_000_000, sent_at=NOON)
    store.runs.send_signal(RUN, large)
    [key] = keys(driver, UNDER)
    assert len(bytes(obstore.get(driver, key).bytes())) < 100_000
    assert store.runs.signals(RUN) == [large]
