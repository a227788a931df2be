"""The store in object storage beyond the contract: its requests, its objects, damage, crashes, and what it refuses."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import attrs
import obstore
import pytest
from obstore.store import MemoryStore

from flowckpt import WorkflowEngine, step, workflow
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.process import current_process
from flowckpt.errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    EncodingError,
    FencedError,
    FlowckptError,
    RunLockedError,
    StoreSpecError,
)
from flowckpt.stores import ObjectCheckpointStore, open_store
from flowckpt.stores.objects import attempt as attempt_module
from flowckpt.stores.objects import claim, layout
from flowckpt.stores.objects import reader as reader_module
from flowckpt.stores.objects.attempt import FENCED, AttemptEnd, AttemptTail
from flowckpt.stores.objects.bucket import Bucket
from flowckpt.stores.objects.layout import AttemptKeys, parse_record_number, parse_run_keys
from flowckpt.stores.objects.run_writer import BUNDLE
from flowckpt.testing.contract import checkpoint, results
from tests.faulty_proxy import FaultyProxy
from tests.ports import free_port
from tests.s3 import PAGE, await_answer

pytestmark = pytest.mark.usefixtures("in_place")

RUN = "run-1"
FIRST = "runs/run-1/000001.000000000001"


@pytest.fixture
def store(driver):
    made = ObjectCheckpointStore(driver)
    yield made
    made.close()


def keys(driver):
    return sorted(each["path"] for page in obstore.list(driver) for each in page)


def content(driver, key):
    return bytes(obstore.get(driver, key).bytes())


def shown(store, run=RUN):
    return [(ref.sequence, ref.checkpoint_id) for ref in store.runs.references(run)]


def fill(store, count, *, first=1, attempt=1, run=RUN, output=lambda number: number):
    steps = [*(store.runs.load_latest(run) or checkpoint()).step_results]
    for sequence in range(first, first + count):
        steps += results(output(sequence), first=len(steps) + 1)
        store.runs.save(run, checkpoint(sequence, steps, attempt=attempt))
    return steps


@pytest.fixture
def watched(s3):
    """A store in S3, and the requests that it makes."""
    proxy = FaultyProxy(s3.endpoint, share=0.0, seed=0)
    made = open_store(f"s3://{s3.make_bucket()}/in/here?endpoint={proxy.endpoint}&region=us-east-1")
    yield made, proxy.requests
    made.close()
    proxy.close()


def verbs(requests):
    return [request.partition(" ")[0] for request in requests]


# --- requests --------------------------------------------------------------------------------------------------------


def test_a_save_is_one_request_however_long_the_run_is(watched):
    store, requests = watched
    steps = fill(store, 3)
    for sequence in (4, 5, 6):
        steps += results(sequence, first=sequence)
        requests.clear()
        store.runs.save(RUN, checkpoint(sequence, steps))
        assert verbs(requests) == ["PUT"]


def test_a_new_run_begins_with_few_requests_and_a_released_one_is_listed_with_three(watched):
    store, requests = watched
    store.runs.acquire("warm", take_over=False)  # asks once a process whether the server honours conditions
    requests.clear()
    store.runs.acquire(RUN, take_over=False)
    assert verbs(requests) == ["GET", "PUT", "GET"]
    fill(store, 1)
    store.runs.release(RUN)
    store.runs.release("warm")
    requests.clear()
    assert [info.workflow_id for info in store.runs.list_runs()] == [RUN]
    assert verbs(requests) == ["GET"] * 4  # one for all, and three for each run


def test_a_long_run_is_resumed_from_bundles_and_its_lists_are_read_page_by_page(watched):
    store, requests = watched
    count = 2 * BUNDLE + 10
    assert count > 2 * PAGE
    steps = fill(store, count)
    store.runs.release(RUN)
    requests.clear()
    assert list(store.runs.load_latest(RUN).step_results) == steps
    reads = [request for request in requests if "list-type" not in request]
    assert len(reads) == 2 + 11 + 1  # two bundles; what they do not hold, and the end
    assert len(requests) - len(reads) > 2


def test_a_run_with_more_records_than_a_list_is_asked_for_is_read_from_the_last_bundle_on(store, driver, monkeypatch):
    monkeypatch.setattr(attempt_module, "PAGE", 20)
    steps = fill(store, BUNDLE + 5)
    asked = []
    listing = Bucket.list_objects
    monkeypatch.setattr(
        Bucket,
        "list_objects",
        lambda self, *args, **more: asked.append(more.get("after")) or listing(self, *args, **more),
    )
    assert list(store.runs.load_latest(RUN).step_results) == steps
    assert f"{FIRST}/records/{BUNDLE - 1:012d}" in asked
    store.runs.release(RUN)
    assert store.runs.acquire(RUN, take_over=False).attempt == 2
    assert list(store.runs.load_latest(RUN).step_results) == steps


def test_a_check_reads_each_object_twice_however_many_attempts_go_on_from_it(watched):
    """Once as it was written, and once as readers read it, who prefer bundles."""
    store, requests = watched
    for attempt in range(1, 7):
        lease = store.runs.acquire(RUN, take_over=False)
        assert lease.attempt == attempt
        fill(store, 2, first=lease.last_sequence + 1, attempt=attempt)
        store.runs.release(RUN)
    requests.clear()
    assert [finding.severity for finding in store.runs.check(RUN)] == ["ok"]
    reads = Counter(request for request in requests if "list-type" not in request)
    assert sum("/records/" in request for request in reads) == 6 * (1 + 2 + 1)  # claim, checkpoints, end
    assert set(reads.values()) == {2}


def test_many_runs_are_listed_over_pages(s3):
    store = open_store(s3.spec(s3.make_bucket()))
    names = [f"run-{number:03d}" for number in range(PAGE // 2 + 3)]  # two objects each
    for name in names:
        store.runs.save(name, checkpoint())
    assert sorted(info.workflow_id for info in store.runs.list_runs()) == names
    store.close()


def test_without_bundles_a_run_is_read_all_the_same(store, driver, monkeypatch, caplog):
    def refuse(self, key, body, workflow_id, operation):
        raise CheckpointStorageError("no", operation=operation)

    monkeypatch.setattr(Bucket, "overwrite", refuse)
    steps = fill(store, BUNDLE + 5)
    assert "were not bundled" in caplog.text
    monkeypatch.undo()
    steps += results("more", first=len(steps) + 1)
    more = BUNDLE + 6
    store.runs.save(RUN, checkpoint(more, steps))
    assert list(store.runs.load_latest(RUN).step_results) == steps
    steps = fill(store, BUNDLE, first=more + 1)  # the next bundle is written, and leaves the first ones out
    bundles = [key for key in keys(driver) if "/bundles/" in key]
    assert len(bundles) == 1
    assert list(store.runs.load_latest(RUN).step_results) == steps
    assert [finding.severity for finding in store.runs.check(None)] == ["ok"]


# --- objects ---------------------------------------------------------------------------------------------------------


def test_a_run_lies_in_objects_that_people_can_read(store, driver):
    fill(store, 2)
    store.runs.release(RUN)
    store.runs.acquire(RUN, take_over=False)
    fill(store, 1, first=3, attempt=2)
    second = "runs/run-1/000001.000000000002"
    assert keys(driver) == [
        f"{FIRST}/records/000000000000",
        f"{FIRST}/records/000000000001",
        f"{FIRST}/records/000000000002",
        f"{FIRST}/records/000000000003",
        f"{second}/records/000000000000",
        f"{second}/records/000000000001",
        "store.json",
    ]
    said = [json.loads(content(driver, f"{FIRST}/records/{number:012d}")) for number in range(4)]
    assert (said[0]["workflow_id"], said[0]["owner"]["pid"]) == (RUN, os.getpid())
    assert (said[1]["checkpoint_id"], said[2]["results"]) == ("c1", 2)
    assert (said[3]["kind"], said[3]["run"]["status"], said[3]["run"]["steps"]) == ("released", "running", 2)
    adopts, record = content(driver, f"{second}/records/000000000001").splitlines()
    assert json.loads(adopts)["adopts"]["segment"] == 1
    assert json.loads(record)["results"] == 3


def test_a_large_value_is_put_once_and_compressed_and_says_so_itself(s3):
    bucket = s3.make_bucket()
    store = open_store(s3.spec(bucket))
    fill(store, 3, output=lambda _: "same" * 50_000)
    values = [key for key in s3.keys(bucket) if "values" in key]
    assert len(values) == 1
    body = s3.read(bucket, values[0])
    assert len(body) < 5_000
    assert json.loads(gzip.decompress(body)) == "same" * 50_000
    store.runs.save("random", checkpoint(1, results(os.urandom(70_000).hex() + os.urandom(70_000).hex())))
    assert store.runs.load("random", "c1").step_results[0].output
    store.close()


@pytest.mark.parametrize("length", [0, 1, layout.SHORTEST - 1, layout.SHORTEST, 100_000])
@pytest.mark.parametrize("text", [b"x", b"\x1f\x8b", None], ids=["text", "like gzip", "random"])
def test_what_is_packed_comes_back(length, text):
    data = os.urandom(length) if text is None else (text * length)[:length]
    assert layout.unpack(layout.pack(data)) == data


def test_nothing_inflates_to_more_than_it_may_be(store, driver):
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(layout.InflationError, match="more than 1000 bytes"):
        layout.unpack(bomb, 1_000)
    for broken in (bomb[:-1], bomb + b"x", b"\x1f\x8b" + b"\0" * 20):
        with pytest.raises(layout.InflationError):
            layout.unpack(broken)
    fill(store, 1, output=lambda _: "x" * 70_000)
    (value,) = [key for key in keys(driver) if "values" in key]
    obstore.put(driver, value, bomb)
    with pytest.raises(CheckpointCorruptedError, match="inflates to more"):
        _ = store.runs.load_latest(RUN).step_results[0].output


def test_large_values_of_a_fork_are_copied_by_the_server(watched):
    store, requests = watched
    steps = fill(store, 1, output=lambda _: "x" * 70_000)
    held = store.runs.load_latest(RUN).step_results
    sizes = {blob.digest: blob.size for blobs in held.history.blobs.values() for blob in blobs.values()}
    store.runs.acquire("fork", take_over=False)
    store.runs.share_values(RUN, "fork", sizes)
    requests.clear()
    store.runs.save("fork", checkpoint(1, held))
    assert len(requests) == 1
    store.runs.clear(RUN)
    assert list(store.runs.load_latest("fork").step_results) == steps


# --- damage ----------------------------------------------------------------------------------------------------------


def filled(driver, *, is_released=True):
    store = ObjectCheckpointStore(driver)
    fill(store, 2)
    store.runs.release(RUN)
    store.runs.acquire(RUN, take_over=False)
    fill(store, BUNDLE + 2, first=3, attempt=2, output=lambda number: "x" * 70_000 if number == 5 else number)
    if is_released:
        store.runs.release(RUN)
    return store.runs.load_latest(RUN)


@pytest.mark.parametrize("is_released", [True, False], ids=["ended", "open"])
def test_a_byte_that_flips_in_any_object_or_is_cut_off_is_noticed(driver, is_released, is_soak):
    whole = filled(driver, is_released=is_released)
    store = ObjectCheckpointStore(driver)
    for key in keys(driver):
        if key == "store.json" or (3 < (parse_record_number(key) or 0) < BUNDLE - 1 and not is_soak):
            continue
        good = content(driver, key)
        flipped = [bytearray(good) for _ in range(6)]
        for bad, place in zip(flipped, (0, 1, len(good) // 3, len(good) // 2, -2, -1), strict=True):
            bad[place] ^= 0x04
        shorter = [good[:-1], good[:-10], good[:5], b"", good[: len(good) // 2].ljust(len(good), b"\0")]
        for bad in [*flipped, *shorter]:
            obstore.put(driver, key, bytes(bad))
            (finding,) = store.runs.check(RUN)
            assert finding.severity == "corrupt", (key, bad)
            try:
                found = store.runs.load_latest(RUN)
                assert found == whole
            except CheckpointCorruptedError as error:
                assert error.location
        obstore.put(driver, key, good)
    assert store.runs.load_latest(RUN) == whole


def test_a_record_that_is_missing_is_noticed(driver):
    whole = filled(driver)
    store = ObjectCheckpointStore(driver)
    for key in keys(driver):
        if "/records/" not in key:
            continue
        good = content(driver, key)
        obstore.delete(driver, key)
        is_end = b'"flowckpt":"end"' in good
        try:
            severities = [finding.severity for finding in store.runs.check(RUN)]
        except CheckpointNotFoundError:
            severities = ["corrupt"]
        assert severities == (["ok"] if is_end else ["corrupt"]), key
        try:
            assert store.runs.load_latest(RUN) == whole, key
        except CheckpointCorruptedError:
            pass
        obstore.put(driver, key, good)


def test_records_of_another_run_are_not_taken_for_ones_own(store, driver):
    fill(store, 1)
    for number in range(2):
        body = content(driver, f"{FIRST}/records/{number:012d}")
        obstore.put(driver, f"runs/other/000001.000000000001/records/{number:012d}", body)
    with pytest.raises(FlowckptError, match="is segment 1 of run 'run-1'"):
        store.runs.load_latest("other")


def test_a_damaged_run_hides_no_other_in_the_list_and_can_be_cleared(store, driver, caplog):
    fill(store, 1)
    fill(store, 1, run="good")
    store.runs.release(RUN)
    store.runs.release("good")
    for number in (0, 1, 2):
        obstore.put(driver, f"{FIRST}/records/{number:012d}", b"nonsense")
    assert [info.workflow_id for info in store.runs.list_runs()] == ["good"]
    assert {finding.severity for finding in store.runs.check(None)} == {"corrupt", "ok"}
    store.runs.clear(RUN)
    assert [finding.severity for finding in store.runs.check(None)] == ["ok"]
    fill(store, 1)
    assert shown(store) == [(1, "c1")]


# --- crashes ---------------------------------------------------------------------------------------------------------


class Died(BaseException):
    """The process has died."""


class MortalBucket(Bucket):
    """Dies at its n-th request: before it is carried out, or after."""

    def __init__(self, driver, *, at, is_after):
        super().__init__(driver, "memory", patience_seconds=5)
        self.left, self.is_after, self.count = at, is_after, 0

    def _retry_request(self, workflow_id, operation, request, **more):
        self.count += 1
        if self.left == 0 and not self.is_after:
            raise Died
        found = super()._retry_request(workflow_id, operation, request, **more)
        if self.left == 0:
            raise Died
        self.left -= 1
        return found


def live(store, told):
    """A life of a run, with each kind of write; `told` is what was acknowledged."""
    for attempt in (1, 2):
        assert store.runs.acquire(RUN, take_over=False).attempt == attempt
        for sequence in (2 * attempt - 1, 2 * attempt):
            steps = results(*(["x" * 70_000] if sequence > 1 else []), *range(2, sequence))
            store.runs.save(RUN, checkpoint(sequence, steps, attempt=attempt))
            told.append(sequence)
        store.runs.release(RUN)
    store.runs.delete_checkpoint(RUN, "c1")
    told.remove(1)
    told.append("clearing")
    store.runs.clear(RUN)
    told[:] = ["cleared"]
    fill(store, 1)
    told[:] = [1]
    store.runs.release(RUN)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_wherever_a_process_dies_what_was_acknowledged_is_there_and_the_run_goes_on(is_after):
    at, is_done = 0, False
    while not is_done:
        driver, told = MemoryStore(), []
        store = ObjectCheckpointStore(driver)
        store.runs.bucket = MortalBucket(driver, at=at, is_after=is_after)
        try:
            live(store, told)
            is_done = True
        except Died:
            pass
        store.runs._heartbeat.stop()
        heir = ObjectCheckpointStore(driver)
        lease = heir.runs.acquire(RUN, take_over=True)
        held = [sequence for sequence, _ in reversed(shown(heir))]
        if told == ["cleared"] or not told:
            assert held in ([], [1])
        elif "clearing" in told:
            assert held in (told[:-1], []), "half of a cleared run came back"
        else:
            deleting = [sequence for sequence in told if sequence != 1]
            assert held in (told, [*told, told[-1] + 1], deleting), (at, told, held)
        sequence = lease.last_sequence + 1
        steps = [*(lease.latest.step_results if lease.latest else ()), *results("heir", first=99)]
        heir.runs.save(RUN, checkpoint(sequence, steps, attempt=lease.attempt, checkpoint_id="heir"))
        store.runs.bucket.left = 10**9  # the dead one was only asleep
        if RUN in store.runs.owned:
            attempt = store.runs.owned[RUN].writer.keys.attempt
            with pytest.raises((FencedError, CheckpointStorageError)):
                store.runs.save(RUN, checkpoint(sequence + 1, steps, attempt=attempt))
        assert shown(heir)[0] == (sequence, "heir")
        assert list(heir.runs.load_latest(RUN).step_results) == steps
        heir.runs.release(RUN)
        assert [finding.severity for finding in heir.runs.check(None)] == ["ok"]
        assert [info.workflow_id for info in heir.runs.list_runs()] == [RUN]
        at += 1
    assert at > 40


def test_a_cleared_run_leaves_its_tombstone_and_nothing_else(store, driver):
    fill(store, 2, output=lambda _: "x" * 70_000)
    store.runs.release(RUN)
    store.runs.clear(RUN)
    assert keys(driver) == [
        "runs/run-1/000001.000000000002/records/000000000001",
        "runs/run-1/000001.cleared",
        "store.json",
    ]
    assert store.runs.list_runs() == store.runs.check(None) == []
    store.runs.clear(RUN)
    fill(store, 1)
    assert "runs/run-1/000002.000000000001/records/000000000001" in keys(driver)


def test_the_end_that_fences_a_sleeping_writer_outlives_the_clear(store, driver):
    fill(store, 1)
    thief = ObjectCheckpointStore(driver)
    thief.runs.acquire(RUN, take_over=True)
    thief.runs.clear(RUN)
    fill(thief, 1)
    thief.runs.clear(RUN)
    with pytest.raises(FencedError) as refused:
        store.runs.save(RUN, checkpoint(2, results(1, 2)))
    assert refused.value.newest_attempt is None
    assert shown(thief) == []


def test_a_writer_in_full_swing_is_ended(store, driver):
    fill(store, 2)
    keys_of = AttemptKeys("runs/run-1", 1, 1)
    old = attempt_module.read_tail(store.runs.bucket, keys_of, RUN)
    steps = fill(store, 20, first=3)  # while the claimer has looked, and not yet put its end
    end = AttemptEnd(FENCED, "2026-01-01T00:00:00Z", "token")
    tail = claim._put_end(store.runs.bucket, keys_of, old, end, RUN)
    assert isinstance(tail, AttemptTail)
    assert tail.number == 23
    numbers = [int(key[-12:]) for key in keys(driver) if "/records/" in key]
    assert numbers == [*range(24), 7 + 64]
    with pytest.raises(FencedError):
        store.runs.save(RUN, checkpoint(23, [*steps, *results("late", first=23)]))
    assert list(store.runs.load_latest(RUN).step_results) == steps
    assert store.runs.acquire(RUN, take_over=True).attempt == 2
    assert [finding.severity for finding in store.runs.check(None)] == ["ok"]


def test_an_owner_that_shows_no_sign_of_life_elsewhere_writes_one_when_it_does_not_save(store, driver):
    store.runs._process = lambda: attrs.evolve(current_process(), host="another-machine")
    fill(store, 1)
    owned = store.runs.owned[RUN]
    owned.send_heartbeat(60.0)
    assert f"{FIRST}/alive" not in keys(driver)  # the save was one
    owned.send_heartbeat(0.0)
    assert f"{FIRST}/alive" in keys(driver)
    store.runs.release(RUN)
    owned.send_heartbeat(0.0)
    assert store.runs.owner(RUN) is None


def after_look(monkeypatch, number, act):
    """Do something after the n-th look of a claimer at the run, and before it does anything else."""
    looks, true_look = [], claim.read_keys

    def look(bucket, workflow_id):
        found = true_look(bucket, workflow_id)
        looks.append(found)
        if len(looks) == number:
            act()
        return found

    monkeypatch.setattr(claim, "read_keys", look)


def test_a_claim_that_a_higher_one_has_overtaken_gives_way(store, driver, monkeypatch):
    fill(store, 1)
    store.runs.release(RUN)
    other = ObjectCheckpointStore(driver)
    after_look(monkeypatch, 1, lambda: other.runs.acquire(RUN, take_over=False, at_least=7))
    with pytest.raises(RunLockedError, match=f"process {os.getpid()} "):
        store.runs.acquire(RUN, take_over=True)
    assert [key for key in keys(driver) if "000000000002/" in key] == []
    other.runs.save(RUN, checkpoint(2, results(1, 2), attempt=7))
    assert shown(store) == [(2, "c2"), (1, "c1")]


def test_a_claim_in_a_run_that_is_cleared_meanwhile_begins_anew(store, driver, monkeypatch):
    fill(store, 2)
    store.runs.release(RUN)
    other = ObjectCheckpointStore(driver)
    after_look(monkeypatch, 1, lambda: other.runs.clear(RUN))
    lease = store.runs.acquire(RUN, take_over=False)
    assert (lease.attempt, lease.latest) == (1, None)
    fill(store, 1)
    assert shown(other) == [(1, "c1")]
    assert "runs/run-1/000002.000000000001/records/000000000001" in keys(driver)
    assert [finding.severity for finding in store.runs.check(None)] == ["ok"]


def test_an_owner_is_fenced_also_where_the_one_between_died_with_its_claim_alone(store, driver):
    fill(store, 1)
    bucket = store.runs.bucket
    between = claim.Claimer(bucket, RUN, current_process(), 30.0, datetime.now(UTC), take_over=True)
    between.create(claim.read_keys(bucket, RUN), 2)
    last = ObjectCheckpointStore(driver)
    assert last.runs.acquire(RUN, take_over=True).attempt == 3
    with pytest.raises(FencedError):
        store.runs.save(RUN, checkpoint(2, results(1, 2)))
    assert shown(last) == [(1, "c1")]


def test_a_claim_above_a_tombstone_is_none(store, driver, monkeypatch):
    fill(store, 2)
    store.runs.release(RUN)
    other = ObjectCheckpointStore(driver)
    monkeypatch.setattr("flowckpt.stores.objects.runs.finish_clearing", lambda *_: None)
    after_look(monkeypatch, 1, lambda: other.runs.clear(RUN))
    lease = store.runs.acquire(RUN, take_over=False, at_least=5)
    assert (lease.attempt, lease.latest) == (5, None)
    assert "runs/run-1/000002.000000000005/records/000000000000" in keys(driver)


def test_a_clear_that_died_at_its_tombstone_is_finished_by_the_next_claim(store, driver, monkeypatch):
    fill(store, 2)
    store.runs.release(RUN)
    monkeypatch.setattr("flowckpt.stores.objects.runs.finish_clearing", lambda *_: None)
    ObjectCheckpointStore(driver).runs.clear(RUN)
    assert f"{FIRST}/records/000000000001" in keys(driver)
    assert shown(store) == store.runs.list_runs() == []
    assert (store.runs.acquire(RUN, take_over=False).attempt, shown(store)) == (1, [])
    assert f"{FIRST}/records/000000000001" not in keys(driver)


def test_a_reader_that_meets_a_takeover_has_all_that_was_added_before_it(store, driver, monkeypatch):
    """Attempts are read beside each other: the one that is taken over before its end, and the one that continues from it."""
    steps = fill(store, 2)
    reader, thief = ObjectCheckpointStore(driver), ObjectCheckpointStore(driver)
    claimed = attrs.evolve(claim.read_keys(reader.runs.bucket, RUN), attempts=(1, 2, 3))
    monkeypatch.setattr(reader_module, "read_keys", lambda bucket, run: claimed)
    true_read, is_taken = attempt_module.read_attempt, threading.Event()

    def read_attempt(bucket, at, run, **options):
        if bucket is reader.runs.bucket and at == claimed.at(1) and not is_taken.is_set():
            found = true_read(bucket, at, run, **options)
            with blocking_allowed(True):
                store.runs.save(RUN, checkpoint(3, [*steps, *results(3, first=3)]))
                thief.runs.acquire(RUN, take_over=True, at_least=2)
                thief.runs.save(RUN, checkpoint(4, [*steps, *results(3, 4, first=3)], attempt=2))
            is_taken.set()
            return found
        if bucket is reader.runs.bucket and at == claimed.at(2):
            assert is_taken.wait(120)
        return true_read(bucket, at, run, **options)

    monkeypatch.setattr(reader_module, "read_attempt", read_attempt)
    assert shown(reader) == [(4, "c4"), (3, "c3"), (2, "c2"), (1, "c1")]


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_server_that_ignores_the_condition_of_a_put_is_refused(tmp_path, monkeypatch):
    port = free_port()
    (tmp_path / "bucket").mkdir()
    program = Path(os.sys.executable).with_name("rclone")
    server = subprocess.Popen(
        [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "tests,secret-of-tests", tmp_path],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-tests")
    try:
        await_answer(f"http://127.0.0.1:{port}/", server)
        spec = f"s3://bucket/x?endpoint=http://127.0.0.1:{port}&region=us-east-1"
        for _ in range(2):
            store = open_store(spec)
            assert store.runs.list_runs() == []  # to look is harmless
            with pytest.raises(CheckpointStorageError, match="If-None-Match") as refused:
                store.runs.acquire(RUN, take_over=False)
            assert not refused.value.is_outcome_unknown
            with pytest.raises(CheckpointStorageError, match="If-None-Match"):
                store.runs.save(RUN, checkpoint())
            assert store.runs.list_runs() == []
    finally:
        server.kill()
        server.wait(120)


def test_a_bucket_that_is_not_there_is_told_from_a_run_that_is_not_there(s3):
    store = open_store(s3.spec("no-such-bucket"))
    for act in (
        lambda: store.runs.load_latest(RUN),
        lambda: store.runs.load(RUN, "c1"),
        lambda: store.runs.list_runs(),
        lambda: store.runs.acquire(RUN, take_over=False),
        lambda: store.runs.bucket.get("x", RUN),
    ):
        with pytest.raises(CheckpointStorageError, match="NoSuchBucket") as refused:
            act()
        assert not refused.value.is_outcome_unknown


def test_a_server_that_is_not_there_is_an_error_after_the_patience():
    store = open_store("s3://bucket/x?endpoint=http://127.0.0.1:1&region=us-east-1")
    store.runs.bucket._patience = 0.1
    with pytest.raises(CheckpointStorageError) as refused:
        store.runs.list_runs()
    assert not refused.value.is_outcome_unknown
    with pytest.raises(CheckpointStorageError) as refused:
        store.runs.acquire(RUN, take_over=False)
    assert not refused.value.is_outcome_unknown  # what it wrote, if anything, is not a part of a run


@pytest.mark.parametrize(
    "spec",
    [
        "s3:",
        "s3://",
        "s3:///prefix",
        "s3:bucket",
        "s3://hidden:hidden@bucket/x",
        "s3://bucket/x?secret_access_key=hidden",
        "s3://bucket/x?password=hidden",
        "s3://bucket/x?request_seconds=hidden0",
        "s3://bucket/x?request_seconds=0",
        "gs:///x",
        "az://",
        "objects+file:///tmp/x",
    ],
)
def test_an_address_that_cannot_be_is_refused_and_shows_no_secret(spec):
    with pytest.raises(StoreSpecError) as refused:
        open_store(spec)
    if "hidden0" not in spec:
        assert "hidden" not in str(refused.value)
        assert "hidden" not in refused.value.spec


def test_credentials_are_shown_nowhere(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none-of-your-business")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a-name-of-mine")
    store = open_store("s3://bucket/x?endpoint=http://127.0.0.1:1&region=us-east-1")
    store.runs.bucket._patience = 0.0
    with pytest.raises(CheckpointStorageError) as refused:
        store.runs.save(RUN, checkpoint())
    for text in (repr(store), str(refused.value), repr(refused.value.__cause__), str(refused.value.__cause__)):
        assert "none-of-your-business" not in text
        assert "a-name-of-mine" not in text


def test_numbers_beyond_the_names_are_refused_before_anything_is_written(store, driver):
    with pytest.raises(EncodingError):
        store.runs.save(RUN, checkpoint(1, attempt=10**12))
    assert keys(driver) == ["store.json"]


# --- the rest --------------------------------------------------------------------------------------------------------


def test_names_under_a_run_say_which_life_it_is_in():
    def said(*names):
        found = parse_run_keys("runs/x", names)
        return found.life, found.attempts, [(each.life, each.attempt) for each in found.former]

    assert said() == (1, (), [])
    assert said("000001.000000000002", "000001.000000000010", "000001.values") == (1, (2, 10), [])
    assert said("000001.000000000002", "000001.cleared") == (2, (), [(1, 2)])
    assert said("000001.cleared", "000002.000000000001") == (2, (1,), [])
    assert said("junk", ".DS_Store", "000001.00002") == (1, (), [])


@workflow("etl")
def etl(count: int = 3):
    total = 0
    for number in range(count):
        total += yield step("add").python(int, number).checkpoint()
    return total


def test_a_workflow_runs_and_resumes(store):
    engine = WorkflowEngine(store)
    result = engine.run_sync(etl, workflow_id=RUN, count=4).unwrap()
    assert result == 6
    (info,) = store.runs.list_runs()
    assert (info.status, info.steps) == ("completed", 4)
    assert engine.resume_sync(etl, workflow_id=RUN).unwrap() == 6
