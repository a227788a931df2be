"""What a run saves: every checkpoint that was asked for, each with its own step in it, with one sync and its own bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core.system.filesystem import PosixFileSystem


class Counting(PosixFileSystem):
    """Counts the syncs of data."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync_data(self, file: int) -> None:
        self.syncs += 1
        super().sync_data(file)


@workflow
def loop(n: int) -> Generator[Any, Any, int]:
    for number in range(n):
        yield step("work").python(int, number).checkpoint()
    return n


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_every_checkpoint_that_is_asked_for_is_saved_and_holds_its_own_step(kind: str, tmp_path: Path) -> None:
    store: Any = MemoryCheckpointStore() if kind == "memory" else FileCheckpointStore(tmp_path)
    WorkflowEngine(store).run_sync(loop, workflow_id="run", n=12)
    references = list(reversed(asyncio.run(store.list_checkpoints("run"))))
    names = ["work", *(f"work[{number}]" for number in range(1, 12))]
    assert [each.checkpoint_id for each in references] == ["@started", *names, "@completed"]
    for number, name in enumerate(names):
        data = asyncio.run(store.load("run", name))
        assert [result.output for result in data.step_results] == list(range(number + 1))


def test_a_checkpoint_is_one_sync_and_its_bytes_do_not_grow_with_the_run(tmp_path: Path) -> None:
    counting = Counting()
    store = FileCheckpointStore(tmp_path, filesystem=counting)
    WorkflowEngine(store).run_sync(loop, workflow_id="run", n=300)
    assert counting.syncs == 302  # the start and the end are checkpoints too
    sizes = [each.size for each in reversed(asyncio.run(store.list_checkpoints("run")))]
    assert max(sizes[100:-1]) - min(sizes[100:-1]) < 20
    assert max(sizes[2:-1]) <= 400


def test_runs_without_an_id_stay_apart() -> None:
    store = MemoryCheckpointStore()
    engine = WorkflowEngine(store)

    async def three() -> list[str]:
        results = await asyncio.gather(*(engine.run(loop, n=number) for number in (1, 2, 3)))
        assert [result.output for result in results] == [1, 2, 3]
        return [result.workflow_id for result in results]

    assert len(set(asyncio.run(three()))) == 3


def test_a_long_run_has_no_cap(tmp_path: Path) -> None:
    @workflow
    def long(n: int) -> Generator[Any, Any, int]:
        for number in range(n):
            yield step("work").python(int, number)
        yield step("fails").python(int, "x")
        return n

    engine = WorkflowEngine(FileCheckpointStore(tmp_path))
    assert engine.run_sync(long, workflow_id="run", n=60_000).status == "failed"
    again = engine.resume_sync(long, workflow_id="run")
    assert (again.steps.restored, again.steps.executed) == (60_000, 1)
