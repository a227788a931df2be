"""The modules beside this one can be imported by name, here and in worker processes."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from far_processes import children

from flowckpt import DaskExecutor


@pytest.fixture(autouse=True)
def no_process_is_left_behind():
    """Check that every test ends its worker processes."""
    before = children()
    yield
    until = time.monotonic() + 120
    while children() - before and time.monotonic() < until:
        time.sleep(0.02)
    assert children() - before == set()


QUIET = {
    "distributed.admin.tick.interval": "1s",
    "distributed.admin.system-monitor.interval": "10s",
    "distributed.worker.memory.monitor-interval": "10s",
    "distributed.worker.profile.enabled": False,
}
"""By default, a cluster profiles itself a hundred times a second, which takes a seventh of a processor."""


@pytest.fixture(scope="session")
def cluster():
    """A Dask cluster of two worker processes, shared by all tests."""
    dask = pytest.importorskip("dask")
    pytest.importorskip("distributed")
    logging.getLogger("distributed").propagate = False  # it logs at any moment, also while tests check the log
    with dask.config.set(QUIET):
        executor = DaskExecutor(2)
        executor.connect()
        yield executor
        executor.kill()
