"""Stores of each kind, reopened as by a new process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowckpt import FileCheckpointStore, MemoryCheckpointStore


def reopened_memory() -> Callable[[], MemoryCheckpointStore]:
    """Return a function that reopens the same memory store, without the owners of its runs."""
    memory = MemoryCheckpointStore()

    def open_again() -> MemoryCheckpointStore:
        memory.runs.owned.clear()
        return memory

    return open_again


def reopened_files(path: Path) -> Callable[[], FileCheckpointStore]:
    """Return a function that reopens the same directory, with the files of the previous process closed."""
    opened: list[FileCheckpointStore] = []

    def open_again() -> FileCheckpointStore:
        for store in opened:
            for owned in store.runs.owned.values():
                owned.close()
            store.runs.owned.clear()
        opened.append(FileCheckpointStore(path))
        return opened[-1]

    return open_again


def spec_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the spec of an empty store of a kind; modules that use `s3` must import its fixture."""
    if kind == "postgresql":
        server, name = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_database")
        return f"{server.url(name)}?allow_unsafe=true"
    if kind == "s3":
        bucket = request.getfixturevalue("s3")
        return str(bucket.spec(bucket.make_bucket()))
    places = {
        "memory": "memory:",
        "file": f"file:{tmp_path}/store",
        "sqlite": f"sqlite:{tmp_path}/runs.db",
        "objects": f"objects+file://{tmp_path}/store?allow_unsafe=true",
    }
    return places[kind]


@pytest.fixture(params=["memory", "file"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    open_again = reopened_memory() if request.param == "memory" else reopened_files(tmp_path / "store")
    yield open_again
    open_again()
