"""Runs that have seen something: three attempts, of which one went back; large values; ids that come again."""

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
