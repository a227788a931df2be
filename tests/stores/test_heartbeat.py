"""The thread of the signs of life: it continues as long as something is owned, whatever happens on the way."""

from __future__ import annotations

import logging
import signal
import threading
import time

import pytest

from flowckpt.stores.leases import Heartbeat
from flowckpt.stores.sqlite.store import SqliteCheckpointStore
from flowckpt.testing.contract import checkpoint


class Owner:
    """Something to keep alive, whose renewals can be held up."""

    def __init__(self):
        self.is_owner = True
        self.is_held_up = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()
        self.failure = None
        self.beats = 0
        self.heartbeat = Heartbeat(self.renew, 0.01)

    def renew(self):
        is_owner = self.is_owner
        self.is_held_up.set()
        assert self.may_end.wait(120)
        self.beats += 1
        if self.failure is not None:
            raise self.failure
        return is_owner

    def has_beats_after(self, count):
        end = time.monotonic() + 120
        while self.beats <= count and time.monotonic() < end:
            time.sleep(0.005)
        return self.beats > count


@pytest.fixture
def owner():
    owner = Owner()
    yield owner
    owner.may_end.set()
    owner.heartbeat.stop()


def test_a_run_taken_while_the_thread_finds_nothing_left_is_kept_alive(owner):
    owner.is_owner = False
    owner.may_end.clear()
    owner.heartbeat.start()
    assert owner.is_held_up.wait(120)  # it has seen that nothing is owned, and is about to end
    owner.is_owner = True
    owner.heartbeat.start()
    owner.may_end.set()
    assert owner.has_beats_after(3)


def test_the_thread_ends_when_nothing_is_owned_and_begins_again_with_the_next_run(owner):
    owner.is_owner = False
    owner.heartbeat.start()
    thread = owner.heartbeat._thread
    thread.join(120)
    assert not thread.is_alive()
    beats, owner.is_owner = owner.beats, True
    owner.heartbeat.start()
    assert owner.has_beats_after(beats + 2)


def test_an_error_that_nobody_foresaw_is_logged_and_the_heart_beats_on(owner, caplog):
    owner.failure = ZeroDivisionError("a defect of a driver")
    with caplog.at_level(logging.ERROR, logger="flowckpt"):
        owner.heartbeat.start()
        assert owner.has_beats_after(2)
    assert "a lease could not be renewed" in caplog.text
    assert "a defect of a driver" in caplog.text


def test_its_thread_takes_no_signal_that_is_for_the_main_thread():
    """A signal for the process may go to any thread that does not block it; in this one it would wake nobody."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    asked = threading.Event()
    blocked = []

    class Owner:
        def renew(self):
            blocked.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
            asked.set()
            return False

    owner = Owner()
    heartbeat = Heartbeat(owner.renew, 0.01)
    heartbeat.start()
    assert asked.wait(120)
    heartbeat.stop()
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGRTMIN + 7} <= blocked[0]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_a_beat_between_two_generations_does_not_end_the_heartbeats(tmp_path, monkeypatch):
    runs = SqliteCheckpointStore(tmp_path / "runs.db").runs
    runs._heartbeat.set_interval(0.01)
    runs.save("endless", checkpoint(1))
    read, beats = runs._read_image, []

    def read_slowly(*args, **options):
        thread = runs._heartbeat._thread
        thread.join(0.5)  # meanwhile this process owns no run, so the thread may end
        beats.append(thread.is_alive())
        return read(*args, **options)

    monkeypatch.setattr(runs, "_read_image", read_slowly)
    runs.begin_generation("endless")
    assert beats == [False] and runs._heartbeat._thread.is_alive()
    runs.close()
