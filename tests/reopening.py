"""Stores that are opened again like a new process would."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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
