"""A compaction takes numbers of attempts in a file store; they are not crashes of the run."""

from __future__ import annotations

from flowckpt.engine.run.resumption import count_crashes, read_started_steps
from flowckpt.stores import FileCheckpointStore
from flowckpt.testing.contract import checkpoint, results


async def test_a_crashed_run_that_was_compacted_again_and_again_has_died_once(tmp_path):
    store = FileCheckpointStore(tmp_path / "store")
    for sequence in (1, 2, 3, 4, 5):
        await store.save("run", checkpoint(sequence, results(*"abcde"[:sequence])))
    await store.release("run")
    for name in ("c1", "c2"):
        assert await store.delete_checkpoint("run", name)
        assert (await store.compact("run", is_forced=True)).is_changed
    lease = await store.acquire("run")
    assert lease.attempt > 4
    started = await read_started_steps(store, lease.workflow_id, lease.latest)
    assert (await count_crashes(store, lease, lease.latest, started)).count == 1
