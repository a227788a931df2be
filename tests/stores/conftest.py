"""What all tests of stores share."""

from __future__ import annotations

import pytest

from flowckpt.stores.sqlite import database


@pytest.fixture(autouse=True)
def closed_databases(monkeypatch):
    """Close the databases that a test has opened: from Python 3.13 on one that is dropped open fails a later test."""
    connections = []
    connect = database.connect

    def remembered(*arguments, **options):
        connections.append(connect(*arguments, **options))
        return connections[-1]

    monkeypatch.setattr(database, "connect", remembered)
    yield
    for connection in connections:
        connection.close()
