"""A store that goes away while a run is under way costs its patience once: no step waits for it, nor does the end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from datetime import UTC, datetime
from typing import Any

import obstore
import pytest

from flowckpt import MemoryCheckpointStore, Retention, WorkflowEngine, step, workflow
from flowckpt.core.records import CheckpointData, HistoryView
from flowckpt.engine.run.inbox import make_cancel_request
from flowckpt.errors import CheckpointStorageError
from flowckpt.events import CheckpointFailed, Event
from flowckpt.stores import open_store
from flowckpt.stores.base import Lease
from flowckpt.stores.objects import bucket
from flowckpt.testing import FakeClock

PATIENCE = 1.5


class Library:
    """The library for buckets, which refuses everything, or hangs, once it is told to."""

    def __init__(self) -> None:
        self.is_away = False
        self.hangs = 0.0

    def __getattr__(self, name):
        real = getattr(obstore, name)

        def call(*args, **given):
            if self.is_away:
                time.sleep(self.hangs)
                raise OSError("connection refused")
            return real(*args, **given)

        return call


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(bucket, "obstore", made)
    yield made


@pytest.fixture
def store(tmp_path, library):
    made: Any = open_store(f"objects+file://{tmp_path / 'bucket'}?allow_unsafe=true")
    made.runs.bucket._patience = PATIENCE
    yield made
    library.is_away = False
    made.close()


def flow_of(library, naps=12, *, saves=True):
    def nap(index):
        library.is_away = library.is_away or index == 1
        time.sleep(0.3)
        return index

    @workflow("naps")
    def naps_flow():
        total = 0
        for index in range(naps):
            one = step("nap").python(nap, index)
            total += yield one.checkpoint() if saves else one
        return total

    return naps_flow


@pytest.mark.parametrize("hangs", [0.0, 4.0], ids=["refuses", "hangs"])
def test_no_step_waits_for_a_store_that_is_away(store, library, caplog, hangs):
    library.hangs = hangs
    started = time.monotonic()
    engine = WorkflowEngine(store, on_save_error="continue")
    done = engine.run_sync(flow_of(library, saves=hangs == 0), workflow_id="one")
    seconds = time.monotonic() - started
    assert (done.output, done.is_saved) == (66, False)
    last_save = hangs + PATIENCE if hangs else PATIENCE
    assert seconds < 12 * 0.3 + last_save + 3.0, seconds  # the looks, the way back, and a machine that is busy
    said = [each for each in caplog.records if "requests to the run" in each.getMessage()]
    assert len(said) <= 1
    assert any("its lease could not be released" in each.getMessage() for each in caplog.records)


def test_the_process_is_not_kept_by_what_the_store_has_not_answered(store, library):
    library.hangs = 4.0
    started = time.monotonic()
    done = WorkflowEngine(store, on_save_error="fail").run_sync(flow_of(library, 5, saves=False), workflow_id="one")
    left = [each for each in threading.enumerate() if each.name == "flowckpt-left"]
    assert not done.is_saved
    assert left
    assert all(each.daemon for each in left)
    assert time.monotonic() - started < 5 * 0.3 + 4.0 + 3.0  # the last save is waited for, and nothing else


def test_a_store_that_comes_back_is_asked_again(store, library, caplog):
    caplog.set_level(logging.WARNING)

    def nap(index):
        library.is_away = 2 <= index < 6
        time.sleep(0.3)
        if index == 7:
            newest = store.runs.load_latest("one")
            store.runs.send_signal("one", make_cancel_request("c1", datetime.now(UTC), newest, rolls_back=False))

    @workflow("naps")
    def naps_flow():
        for index in range(40):
            yield step("nap").python(nap, index)

    engine = WorkflowEngine(store, on_save_error="continue")
    done = engine.run_sync(naps_flow, workflow_id="one")
    assert done.status == "cancelled"


class HungStore(MemoryCheckpointStore):
    """A store that, once it is away, takes half a minute to refuse a save, and a minute to refuse to be asked."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.clock, self.is_away, self.asked, self.asked_for_pins = clock, False, 0, 0

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        if self.is_away:
            self.clock.advance(30)
            raise CheckpointStorageError("no answer")
        await super().save(workflow_id, data)

    async def pinned(self, workflow_id: str) -> frozenset[int]:
        self.asked_for_pins += self.is_away
        return await super().pinned(workflow_id)

    async def make_savable(self, workflow_id: str, history: HistoryView) -> Lease | None:
        self.asked += 1
        if self.is_away:
            self.clock.advance(60)
            raise CheckpointStorageError("no answer")
        return await super().make_savable(workflow_id, history)


@pytest.mark.parametrize("pause", [0, 601])
def test_a_store_that_hangs_is_asked_again_after_ten_times_as_long_and_at_the_end(pause):
    clock = FakeClock()
    store = HungStore(clock)

    def work(number):
        store.is_away = number >= 1 and not (pause and number >= 5)
        clock.advance(pause if number == 5 else 1)
        return number

    @workflow("hung")
    def hung():
        for number in range(8):
            yield step("work").python(work, number).checkpoint()

    events: list[Event] = []
    engine = WorkflowEngine(store, on_save_error="continue", clock=clock, listeners=[events.append])
    done = engine.run_sync(hung, workflow_id="run")
    failed = [event.checkpoint_id for event in events if isinstance(event, CheckpointFailed)]
    saved = asyncio.run(store.load_latest("run"))
    if pause:  # it is back, and a step finds that out
        assert (store.asked, done.is_saved) == (2, True)
        assert failed == [f"work[{number}]" for number in range(1, 5)]
        assert len(saved.step_results) == 8
    else:
        assert (store.asked, done.is_saved, len(saved.step_results)) == (2, False, 1)
        assert len(failed) >= 7


def test_a_store_that_hangs_is_not_asked_for_pins_before_a_save_that_it_will_not_get():
    clock = FakeClock()
    store = HungStore(clock)

    def work(number):
        store.is_away = number >= 30
        return number

    @workflow("hung")
    def hung():
        for number in range(60):
            yield step("work").python(work, number).checkpoint()

    engine = WorkflowEngine(store, on_save_error="continue", clock=clock, retention=Retention(keep_last=3))
    assert not engine.run_sync(hung, workflow_id="run").is_saved
    assert not store.asked_for_pins
