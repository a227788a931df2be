"""Stores of each kind, as a function that reopens the same one as by a new process."""

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
    """The directory for the files of steps."""
    path = tmp_path / "world"
    path.mkdir()
    return path


@pytest.fixture
def start(reopen, world, clock):
    """Return a manager as in a new process, after the death of the previous owner of its tasks."""

    def start_again(**settings):
        return CheckpointManager(reopen(), world, clock=clock, **settings)

    return start_again


@pytest.fixture
def able(reopen):
    """Skip a test if its store has only the five methods."""
    if isinstance(reopen(), FiveMethods):
        pytest.skip("a store of five methods has not that ability")
