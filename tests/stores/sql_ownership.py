"""One writer a run, among real processes, for the stores with leases; a test module subclasses it."""

from __future__ import annotations

import os
import platform
import signal
import threading
import time

import pytest

from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.errors import CheckpointStorageError, FencedError, RunLockedError
from flowckpt.stores import open_store
from flowckpt.testing.contract import checkpoint, results
from tests.stores.peers import RUN, elsewhere, error_of, in_fork, peers_on, shown


def acquired_at_last(store, run=RUN):
    """Take the run as soon as its lease has expired; the clocks of some stores are coarse."""
    until = time.monotonic() + 120
    while True:
        try:
            return store.runs.acquire(run, take_over=False)
        except RunLockedError:
            assert time.monotonic() < until
            time.sleep(0.05)


class SqlOwnership:
    """Subclass it with a fixture `spec`: the description of a new, empty store."""

    @pytest.fixture(autouse=True)
    def in_place(self):
        with blocking_allowed(True):
            yield

    @pytest.fixture
    def peers(self, spec):
        yield from peers_on(spec)

    @pytest.fixture
    def store(self, spec):
        made = open_store(spec)
        yield made
        made.close()

    @pytest.fixture
    def another(self, spec):
        made = open_store(spec)
        yield made
        made.close()

    def test_a_second_process_is_told_who_owns_the_run(self, peers, store):
        owner = peers()
        owner.own_and_save()
        for act in (
            lambda: store.runs.acquire(RUN, take_over=False),
            lambda: store.runs.clear(RUN),
            lambda: store.runs.delete_checkpoint(RUN, "c1"),
            lambda: store.runs.save(RUN, checkpoint(2, results("x"), attempt=2)),
        ):
            with pytest.raises(RunLockedError) as refused:
                act()
            assert f"process {owner.process.pid} on {platform.node()}" in str(refused.value)
        assert store.runs.owner(RUN).pid == owner.process.pid
        assert [info.status for info in store.runs.list_runs()] == ["running"]
        assert shown(store) == [(1, "c1")]

    def test_a_stopped_owner_that_was_stolen_from_is_fenced_when_it_wakes_up(self, peers, store, another):
        owner = peers()
        owner.own_and_save()
        owner.signal(signal.SIGSTOP)
        try:
            with pytest.raises(RunLockedError):
                store.runs.acquire(RUN, take_over=False)
            assert store.runs.acquire(RUN, take_over=True).attempt == 2
            store.runs.save(RUN, checkpoint(2, results("x"), attempt=2, checkpoint_id="new"))
        finally:
            owner.signal(signal.SIGCONT)
        for sequence in (2, 3):
            answer = owner.save(sequence, name="old")
            assert isinstance(answer, FencedError)
            assert answer.newest_attempt == 2
        assert shown(store) == [(2, "new"), (1, "c1")]
        store.runs.save(RUN, checkpoint(3, results("x", "y"), attempt=2))
        assert shown(another) == [(3, "c3"), (2, "new"), (1, "c1")]

    def test_the_run_of_a_killed_owner_is_taken_over_at_once(self, peers, store):
        owner = peers()
        owner.own_and_save()
        owner.end()
        assert store.runs.owner(RUN) is None
        assert [info.status for info in store.runs.list_runs()] == ["crashed"]
        lease = store.runs.acquire(RUN, take_over=False)
        assert (lease.attempt, lease.latest.sequence) == (2, 1)
        store.runs.save(RUN, checkpoint(2, results("x", "y"), attempt=2))
        assert shown(store) == [(2, "c2"), (1, "c1")]

    def test_the_run_of_an_owner_elsewhere_is_taken_over_when_its_lease_has_expired(self, peers, store):
        owner = peers(is_elsewhere=True, lease_seconds=2.0)
        owner.own_and_save()
        with pytest.raises(RunLockedError, match="another-machine"):
            store.runs.acquire(RUN, take_over=False)
        owner.signal(signal.SIGSTOP)
        try:
            assert acquired_at_last(store).attempt == 2
            store.runs.save(RUN, checkpoint(2, results("x"), attempt=2, checkpoint_id="new"))
        finally:
            owner.signal(signal.SIGCONT)
        time.sleep(0.8)  # its heart beats again, and revives nothing
        assert isinstance(owner.save(2, name="old"), FencedError)
        assert store.runs.owner(RUN).pid == os.getpid()
        assert shown(store) == [(2, "new"), (1, "c1")]

    def test_a_busy_owner_elsewhere_keeps_its_lease(self, spec, store, another):
        another.runs._process = elsewhere
        another.runs._times = type(another.runs._times)(2.0)
        another.runs._heartbeat._interval = 0.1
        another.runs.acquire(RUN, take_over=False)
        end = time.monotonic() + 2.2
        while time.monotonic() < end:  # a step that computes
            pass
        with pytest.raises(RunLockedError):
            store.runs.acquire(RUN, take_over=False)

    def test_a_lease_that_expired_and_was_not_taken_is_no_loss(self, store):
        store.runs._times = type(store.runs._times)(-10.0)
        store.runs._process = elsewhere
        store.runs.acquire(RUN, take_over=False)
        assert store.runs.owner(RUN) is None
        store.runs.save(RUN, checkpoint(1, results("x")))
        assert shown(store) == [(1, "c1")]

    def test_an_owner_goes_on_when_the_one_that_stole_from_it_gave_up_unwritten(self, store, another):
        store.runs.acquire(RUN, take_over=False)
        store.runs.save(RUN, checkpoint(1, results("x")))
        for sequence in (2, 3):
            assert another.runs.acquire(RUN, take_over=True).attempt == 2
            another.runs.release(RUN)
            store.runs.save(RUN, checkpoint(sequence, results("x")))
        another.runs.acquire(RUN, take_over=True)
        with pytest.raises(FencedError):
            store.runs.save(RUN, checkpoint(4, results("x")))

    def test_a_writer_whose_run_was_cleared_is_fenced(self, peers, store):
        owner = peers()
        owner.own_and_save()
        owner.signal(signal.SIGSTOP)
        store.runs.acquire(RUN, take_over=True)
        store.runs.clear(RUN)
        owner.signal(signal.SIGCONT)
        answer = owner.save(2)
        assert isinstance(answer, FencedError)
        assert answer.newest_attempt is None
        assert shown(store) == []

    @pytest.mark.filterwarnings("ignore:This process")
    def test_a_forked_child_may_not_write_to_the_run_of_its_parent(self, spec, store):
        store.runs.acquire(RUN, take_over=False)
        for sequence in (1, 2):
            data = checkpoint(sequence, results("x" * 70_000))
            assert in_fork(lambda data=data: error_of(lambda: store.runs.save(RUN, data))) == "CheckpointStorageError"
            in_fork(lambda: (error_of(lambda: store.runs.release(RUN)), store.close()))
            assert in_fork(lambda: error_of(lambda: store.runs.clear(RUN))) == "RunLockedError"
            assert in_fork(lambda: error_of(lambda: open_store(spec).runs.acquire(RUN, take_over=False))) == (
                "RunLockedError"
            )
            store.runs.save(RUN, data)
        assert (
            in_fork(lambda: error_of(lambda: store.runs.delete_checkpoint(RUN, "c1")))
            == CheckpointStorageError.__name__
        )
        assert shown(store) == [(2, "c2"), (1, "c1")]

    @pytest.mark.filterwarnings("ignore:This process")
    def test_a_forked_child_may_save_runs_of_its_own_and_read(self, store):
        store.runs.save(RUN, checkpoint())
        assert in_fork(lambda: error_of(lambda: store.runs.save("other", checkpoint()))) == "nothing"
        assert in_fork(lambda: shown(store)) == "[(1, 'c1')]"
        assert store.runs.load("other", "c1").sequence == 1
        store.runs.save(RUN, checkpoint(2))

    def test_of_many_that_take_a_run_at_once_one_gets_it(self, spec):
        owned, refused, others = [], [], []
        barrier = threading.Barrier(8)
        stores = [open_store(spec) for _ in range(8)]

        def take(store):
            with blocking_allowed(True):
                barrier.wait()
                try:
                    store.runs.acquire(RUN, take_over=False)
                    owned.append(store)
                except RunLockedError:
                    refused.append(store)
                except BaseException as error:
                    others.append(error)

        for _ in range(5):
            threads = [threading.Thread(target=take, args=(store,)) for store in stores]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not others, others
            assert (len(owned), len(refused)) == (1, 7)
            owned.pop().runs.release(RUN)
            refused.clear()
        for store in stores:
            store.close()
