"""Stores of each kind, as a function that opens the same one again, like a new process would."""

import sys
from pathlib import Path

import pytest

from flowckpt import CheckpointManager
from flowckpt.testing import FakeClock
from tests.reopening import reopened_files, reopened_memory

sys.path.insert(0, str(Path(__file__).parent))

from five_methods import FiveMethods


@pytest.fixture(params=["memory", "file", "five methods"])
def reopen(request, tmp_path):
    open_again = reopened_files(tmp_path / "store") if request.param == "file" else reopened_memory()
    yield (lambda: FiveMethods(open_again())) if request.param == "five methods" else open_again
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
    """Return a manager as a new process has it; the process that had the tasks before is dead."""

    def start_again(**settings):
        return CheckpointManager(reopen(), world, clock=clock, **settings)

    return start_again


@pytest.fixture
def able(reopen):
    """Skip a test whose store cannot do more than the five methods."""
    if isinstance(reopen(), FiveMethods):
        pytest.skip("a store of five methods has not that ability")
