"""Stores of each kind, as a function that opens the same one again, like a new process would."""

import sys
from pathlib import Path

import pytest

from flowckpt import CheckpointManager, FileCheckpointStore, MemoryCheckpointStore
from flowckpt.testing import FakeClock

sys.path.insert(0, str(Path(__file__).parent))

from five_methods import FiveMethods


@pytest.fixture(params=["memory", "file", "five methods"])
def reopen(request, tmp_path):
    memory = MemoryCheckpointStore()
    opened = []

    def open_again():
        if request.param == "file":
            for store in opened:
                for owned in store.runs.owned.values():
                    owned.close()  # the kernel closes a dead process's files; nothing else happens
                store.runs.owned.clear()
            opened.append(FileCheckpointStore(tmp_path / "store"))
            return opened[-1]
        for run in memory._runs.values():
            run.is_owned = False  # the process that owned it is gone
        return memory if request.param == "memory" else FiveMethods(memory)

    yield open_again
    open_again()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def world(tmp_path):
    """The directory in which steps leave their files."""
    path = tmp_path / "world"
    path.mkdir()
    return path


@pytest.fixture
def start(reopen, world, clock):
    """Return a manager as a new process has it; whoever had the tasks before is dead."""

    def start_again(**settings):
        return CheckpointManager(reopen(), world, clock=clock, **settings)

    return start_again


@pytest.fixture
def able(reopen):
    """Skip a test whose store cannot do more than the five methods."""
    if isinstance(reopen(), FiveMethods):
        pytest.skip("a store of five methods has not that ability")
