"""A run that is kept for a process that starts: nobody else gets it, and nothing is left of that behind."""

from __future__ import annotations

import attrs
import pytest

from flowckpt.core.system.clock import SystemClock
from flowckpt.errors import RunLockedError
from flowckpt.maintenance.recovery import claim_run, find_due_runs
from flowckpt.stores import MemoryCheckpointStore, adapt, open_store
from flowckpt.testing.contract import checkpoint, results
from tests.stores.test_adapt import Five

pytestmark = pytest.mark.usefixtures("in_place")

RUN = "run-1"


@pytest.fixture
def doors(spec):
    """Two recoverers' doors to a store with a crashed run."""
    stores = [open_store(spec) for _ in range(2)]
    stores[0].runs.acquire(RUN, take_over=False)
    stores[0].runs.save(RUN, checkpoint(1, results("x")))
    stores[0].runs.release(RUN)
    yield stores
    for store in stores:
        store.close()


async def due(store):
    return await find_due_runs(store, SystemClock())


async def test_of_two_recoverers_one_keeps_a_run_and_the_other_one_does_not_see_it_any_more(doors):
    mine, other = doors
    (run,) = await due(mine)
    async with claim_run(mine, run) as keeping:
        assert keeping is not None
        assert await due(other) == []
        async with claim_run(other, run) as refused:
            assert refused is None
        with pytest.raises(RunLockedError):
            await other.acquire(RUN)


async def test_once_it_is_given_up_it_is_as_it_was_and_the_next_one_claims_it(doors):
    mine, other = doors
    (run,) = await due(mine)
    async with claim_run(mine, run) as keeping:
        assert await mine.owner(RUN) is not None
        await keeping.release()
        assert await mine.owner(RUN) is None
        assert await due(other) == [run]
        assert (await other.acquire(RUN)).attempt == 2
        await keeping.release()
        await other.save(RUN, checkpoint(2, results("x", "y"), attempt=2))
    await other.save(RUN, checkpoint(3, results("x", "y", "z"), attempt=2))
    assert [*await mine.attempts(RUN)] == [1, 2]


async def test_a_run_that_somebody_has_gone_on_with_is_not_kept(doors):
    mine, other = doors
    (run,) = await due(mine)
    attempt = (await other.acquire(RUN)).attempt
    await other.save(RUN, checkpoint(2, results("x", "y"), attempt=attempt))
    await other.release(RUN)
    async with claim_run(mine, run) as keeping:
        assert keeping is None
    assert await mine.owner(RUN) is None
    assert await due(mine) == [attrs.evolve(run, info=await mine.describe_run(RUN))]


async def test_a_run_that_was_removed_is_not_kept_and_does_not_come_back(doors):
    mine, other = doors
    (run,) = await due(mine)
    await other.clear(RUN)
    async with claim_run(mine, run) as keeping:
        assert keeping is None
    assert list(await mine.list_runs()) == []


async def test_a_store_without_owners_has_one_user():
    memory = MemoryCheckpointStore()
    plain = adapt(Five(memory))
    await memory.save(RUN, checkpoint())
    await memory.release(RUN)
    (run,) = await due(memory)
    async with claim_run(plain, run) as keeping:
        assert (keeping.store, keeping.workflow_id) == (plain, RUN)
        async with claim_run(plain, run) as again:
            assert again is not None
            assert again is not keeping
        await keeping.release()
        await keeping.release()
