"""Large values that a writer adds when its run was cleared already: it takes them away again, or the process that tidies does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from flowckpt.errors import CheckpointStorageError, FencedError
from flowckpt.maintenance.prune import prune
from flowckpt.stores import open_store
from flowckpt.testing.contract import checkpoint, results

pytestmark = pytest.mark.usefixtures("in_place")

RUN = "run-1"
LARGE = "x" * 100_000
WRITER = """
import os, signal, sys
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import FencedError
from flowckpt.stores import open_store
from flowckpt.testing.contract import checkpoint, results

store = open_store(sys.argv[1])
bucket, steps = store.runs.bucket, results(*[str(n) + "x" * 100_000 for n in range(5)])
create_all = bucket.create_all

def sleepy(bodies, workflow_id, operation):
    if operation == "save" and len(steps) == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
    create_all(bodies, workflow_id, operation)
    if operation == "save" and sys.argv[2] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)

with blocking_allowed(True):
    store.runs.save("run-1", checkpoint(1))
    bucket.create_all = sleepy
    try:
        store.runs.save("run-1", checkpoint(2, steps))
    except FencedError:
        sys.exit(75)
"""


@pytest.fixture
def store(s3, bucket):
    made = open_store(s3.spec(bucket))
    yield made
    made.close()


@pytest.fixture
def asleep(s3, bucket):
    """Start a writer that stops in the middle of its save; return it once it sleeps."""
    started = []

    def start(then):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, s3.spec(bucket), then])
        started.append(writer)
        _, status = os.waitpid(writer.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        return writer

    yield start
    for writer in started:
        writer.kill()
        writer.wait()


@pytest.fixture
def values(s3, bucket):
    """What large values there are."""
    return lambda: [key for key in s3.keys(bucket) if ".values/" in key]


def taken_and_cleared(store):
    store.runs.acquire(RUN, take_over=True)
    store.runs.clear(RUN)


def wake(writer):
    writer.send_signal(signal.SIGCONT)
    return writer.wait(120)


def test_a_writer_that_wakes_up_behind_a_clear_leaves_nothing(store, asleep, values):
    writer = asleep("sees")
    taken_and_cleared(store)
    assert wake(writer) == 75
    assert values() == []
    assert [finding.severity for finding in store.runs.check(None)] == []


def test_it_leaves_the_values_of_the_run_that_was_begun_anew(store, asleep, values):
    writer = asleep("sees")
    taken_and_cleared(store)
    store.runs.save(RUN, checkpoint(1, results("0" + LARGE)))
    mine = values()
    assert wake(writer) == 75
    assert values() == mine
    assert [finding.severity for finding in store.runs.check(None)] == ["ok"]


@pytest.mark.parametrize("how", ["clear", "prune"])
def test_what_a_writer_leaves_that_dies_there_is_noticed_and_swept(how, store, asleep, values):
    writer = asleep("dies")
    taken_and_cleared(store)
    store.runs.save(RUN, checkpoint(1, results("0" + LARGE)))
    mine = values()
    assert wake(writer) == -signal.SIGKILL
    assert len(values()) == len(mine) + 5
    severities = {finding.workflow_id: finding.severity for finding in store.runs.check(None)}
    assert severities == {RUN: "ok", "": "notice"}
    assert [finding.severity for finding in store.runs.check(RUN)] == ["ok"]
    if how == "clear":
        store.runs.clear(RUN)
        mine = []
    else:
        import asyncio

        asyncio.run(prune(store))
    assert values() == mine
    assert "notice" not in [finding.severity for finding in store.runs.check(None)]


def test_a_first_save_that_is_refused_leaves_no_values_when_the_run_is_given_up(store, values, monkeypatch):
    store.runs.acquire(RUN, take_over=False)

    def refused(*arguments, **options):
        raise CheckpointStorageError("403", workflow_id=RUN, operation="save")

    with monkeypatch.context() as patch:
        patch.setattr(store.runs.owned[RUN].writer, "_put", refused)
        with pytest.raises(CheckpointStorageError):
            store.runs.save(RUN, checkpoint(1, results(LARGE)))
    assert len(values()) == 1
    store.runs.release(RUN)
    assert values() == []
    assert store.runs.acquire(RUN, take_over=False).attempt == 1


def test_values_of_a_run_that_goes_on_stay_when_an_attempt_is_given_up(store, values, monkeypatch):
    store.runs.save(RUN, checkpoint(1, results(LARGE)))
    store.runs.release(RUN)
    lease = store.runs.acquire(RUN, take_over=False)
    store.runs.release(RUN)
    assert lease.attempt == 2
    assert store.runs.load_latest(RUN).step_results[0].output == LARGE
    with pytest.raises(FencedError):
        store.runs.save(RUN, checkpoint(2, attempt=1))
    assert len(values()) == 1
