"""Stores of each kind, reopened as by a new process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowckpt import FileCheckpointStore, MemoryCheckpointStore
from flowckpt.stores import SqliteCheckpointStore


@pytest.fixture(params=["memory", "file", "sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    memory = MemoryCheckpointStore()
    opened: list[Any] = []

    def open_again() -> Any:
        if request.param == "memory":
            memory.runs.owned.clear()
            return memory
        for store in opened:
            store.close()
        opened.clear()
        kind = FileCheckpointStore if request.param == "file" else SqliteCheckpointStore
        opened.append(kind(tmp_path / ("store" if request.param == "file" else "store.db")))
        return opened[-1]

    yield open_again
    open_again()
    for store in opened:
        store.close()
