"""Runs that have seen something: three attempts, of which one went back; large values; ids that come again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowckpt import MemoryCheckpointStore
from flowckpt.core.system.blocking import blocking_allowed

sys.path.insert(0, str(Path(__file__).parent))


def done(coroutine):
    """Run a coroutine of a store to its end without a loop: where it may block, it never waits."""
    with blocking_allowed(allowed=True):
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
    raise RuntimeError("it waited")


@pytest.fixture
def source():
    import runs

    store = MemoryCheckpointStore()
    runs.fill(store, "run")
    return store
