"""Stores of each kind, and stores that are opened again like a new process would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from flowckpt import FileCheckpointStore, MemoryCheckpointStore


def reopened_memory() -> Callable[[], MemoryCheckpointStore]:
    """Return what opens the same memory again and again: the process that owned its runs is gone."""
    memory = MemoryCheckpointStore()

    def open_again() -> MemoryCheckpointStore:
        memory.runs.owned.clear()
        return memory

    return open_again


def reopened_files(path: Path) -> Callable[[], FileCheckpointStore]:
    """Return what opens the same directory again and again; the kernel closed the files of the process before."""
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
    """Return the description of an empty store of a kind; a module that asks for `s3` imports its fixture."""
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
