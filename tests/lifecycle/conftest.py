"""Stores of each kind, as a function that opens the same one again like a new process would, and a shop to run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flowckpt import FileCheckpointStore, MemoryCheckpointStore

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["memory", "file"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    memory = MemoryCheckpointStore()
    opened: list[FileCheckpointStore] = []

    def open_again() -> Any:
        if request.param == "memory":
            for run in memory._runs.values():
                run.is_owned = False
            return memory
        for store in opened:
            for owned in store.runs.owned.values():
                owned.close()
            store.runs.owned.clear()
        opened.append(FileCheckpointStore(tmp_path / "store"))
        return opened[-1]

    yield open_again
    open_again()


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import workshop

    monkeypatch.chdir(tmp_path)
    workshop.reset()
