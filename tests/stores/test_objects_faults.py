"""What a store in S3 makes of a server and a network that fail: nothing lost, nothing twice, nothing guessed."""

from __future__ import annotations

import contextlib

import pytest

from flowckpt.errors import CheckpointStorageError, FencedError
from flowckpt.stores import open_store
from flowckpt.testing.contract import checkpoint, results
from tests.faulty_proxy import FAULTS, TIMEOUT, FaultyProxy, answer

pytestmark = pytest.mark.usefixtures("in_place")

RUN = "run-1"


@pytest.fixture
def calm(s3, bucket):
    """A door to the bucket through which nothing fails."""
    made = open_store(s3.spec(bucket))
    yield made
    made.close()


@pytest.fixture
def faulty(s3, bucket):
    """Make a store behind a proxy that fails, and the proxy."""
    with contextlib.ExitStack() as opened:

        def make(*, share, seed, patience):
            proxy = FaultyProxy(s3.endpoint, share=share, seed=seed)
            opened.callback(proxy.close)
            spec = f"s3://{bucket}/some/where?endpoint={proxy.endpoint}&region=us-east-1&request_seconds={TIMEOUT}"
            store = open_store(spec)
            store.runs.bucket._patience = patience
            return store, proxy

        yield make


@pytest.mark.timeout(1_200)
def test_with_patience_every_fault_is_overcome_and_each_checkpoint_is_there_once(faulty, calm, is_soak):
    wanted = 200 if is_soak else 25
    store, proxy = faulty(share=0.35, seed=1, patience=60.0)
    expected, steps, sequence = [], [], 0
    while sum(proxy.injected.values()) < wanted:
        attempt = store.runs.acquire(RUN, take_over=False).attempt
        for _ in range(4):
            sequence += 1
            steps += results("x" * 70_000 if sequence % 5 == 0 else sequence, first=sequence)
            store.runs.save(RUN, checkpoint(sequence, steps, attempt=attempt))
            expected.append((attempt, sequence))
        store.runs.release(RUN)
    if is_soak:
        assert set(proxy.injected) == set(FAULTS)
    assert [(ref.attempt, ref.sequence) for ref in reversed(calm.runs.references(RUN))] == expected
    assert list(calm.runs.load_latest(RUN).step_results) == steps
    assert [finding.severity for finding in calm.runs.check(None)] == ["ok"]
    assert calm.runs.owner(RUN) is None


@pytest.mark.timeout(1_200)
def test_without_patience_what_was_not_acknowledged_is_found_out_by_taking_the_run_over(faulty, calm, is_soak):
    store, proxy = faulty(share=0.1, seed=2, patience=0.0)
    told, doubts, wanted = {}, 0, 200 if is_soak else 25
    while sum(proxy.injected.values()) < wanted or doubts <= 3:
        proxy.share = 0.1  # it takes ten requests
        try:
            lease = store.runs.acquire(RUN, take_over=True)
        except CheckpointStorageError:
            continue
        held = {ref.sequence: ref.checkpoint_id for ref in calm.runs.references(RUN)}
        assert told.items() <= held.items(), "lost"
        told, steps = held, list(lease.latest.step_results) if lease.latest else []
        sequence, proxy.share = lease.last_sequence, 0.4
        with contextlib.suppress(CheckpointStorageError, FencedError):  # a claim that came late may have fenced us
            for _ in range(6):
                sequence += 1
                steps += results(sequence, first=len(steps) + 1)
                name = f"{lease.attempt}-{sequence}"
                try:
                    store.runs.save(RUN, checkpoint(sequence, steps, attempt=lease.attempt, checkpoint_id=name))
                except CheckpointStorageError as error:
                    doubts += error.is_outcome_unknown
                    assert error.is_outcome_unknown
                    with pytest.raises(CheckpointStorageError, match="unknown"):
                        store.runs.save(RUN, checkpoint(sequence, steps, attempt=lease.attempt))
                    raise
                assert sequence not in told
                told[sequence] = name
    held = {ref.sequence: ref.checkpoint_id for ref in calm.runs.references(RUN)}
    assert told.items() <= held.items()
    assert [finding.severity for finding in calm.runs.check(None)] == ["ok"]


def test_a_save_that_the_server_refuses_for_good_was_not_carried_out_and_can_be_made_again(faulty, calm, monkeypatch):
    store, proxy = faulty(share=0.0, seed=3, patience=5.0)
    store.runs.acquire(RUN, take_over=False)
    store.runs.save(RUN, checkpoint(1, results(1)))
    refusal = b"<Error><Code>AccessDenied</Code><Message>No.</Message></Error>"
    monkeypatch.setattr(proxy, "serve", lambda handler, body: answer(handler, 403, refusal))
    with pytest.raises(CheckpointStorageError, match="403 AccessDenied \\(No.\\)") as refused:
        store.runs.save(RUN, checkpoint(2, results(1, 2)))
    assert not refused.value.is_outcome_unknown
    assert "credentials" in refused.value.remedy
    monkeypatch.undo()
    store.runs.save(RUN, checkpoint(2, results(1, 2)))
    assert len(calm.runs.references(RUN)) == 2
