"""Fixtures of the store tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flowckpt.stores.leases import Heartbeat
from flowckpt.stores.sqlite import database, library

WITHOUT_APSW = Path(__file__).with_name("without_apsw")


@pytest.fixture
def own_sqlite(monkeypatch):
    """Use Python's own SQLite, in this process and in its children."""
    if library.OWN.version >= library.WAL_IS_SAFE:
        pytest.skip("Python's own SQLite may use WAL, so it is always used")
    monkeypatch.setitem(sys.modules, "apsw", None)
    monkeypatch.setenv("PYTHONPATH", str(WITHOUT_APSW), prepend=os.pathsep)
    monkeypatch.syspath_prepend(WITHOUT_APSW)  # inherited by processes of the fork server
    library.library.cache_clear()
    yield library.library()
    library.library.cache_clear()


@pytest.fixture(params=["wal", "truncate"])
def sqlite_library(request):
    """Use both SQLite libraries: one that may use WAL, and one that may not."""
    if request.param == "truncate":
        return request.getfixturevalue("own_sqlite")
    if library.library().version < library.WAL_IS_SAFE:
        pytest.skip("apsw is not installed")
    return library.library()


@pytest.fixture
def url(postgres, postgres_database):
    return f"{postgres.url(postgres_database)}?allow_unsafe=true"


@pytest.fixture
def driver():
    from obstore.store import MemoryStore

    return MemoryStore()


@pytest.fixture
def bucket(s3):
    return s3.make_bucket()


@pytest.fixture(autouse=True)
def closed_databases(monkeypatch):
    """Close the databases of a test, and end its heartbeats.

    Since Python 3.13, a connection that is dropped while open fails a later test. A heartbeat that finds its connection
    closed logs an error, which a later test would count as one of its own.
    """
    connections, heartbeats = [], []
    connect, start = database.connect, Heartbeat.start

    def remembered(*arguments, **options):
        connections.append(connect(*arguments, **options))
        return connections[-1]

    def start_remembered(heartbeat):
        heartbeats.append(heartbeat)
        start(heartbeat)

    monkeypatch.setattr(database, "connect", remembered)
    monkeypatch.setattr(Heartbeat, "start", start_remembered)
    yield
    for heartbeat in heartbeats:
        heartbeat.stop()
    for connection in connections:
        connection.close()
