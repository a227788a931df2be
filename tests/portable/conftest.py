"""Runs with history: three attempts, one of them after a rollback; large values; repeated checkpoint ids."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowckpt import MemoryCheckpointStore

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def source():
    import runs

    store = MemoryCheckpointStore()
    runs.fill(store, "run")
    return store
