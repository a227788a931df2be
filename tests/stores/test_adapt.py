"""A third party's store with five methods, used as a `StoreBase`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowckpt import WorkflowEngine, step, workflow
from flowckpt.core.records import Reason, Status
from flowckpt.core.records.listing import RunFilter
from flowckpt.core.records.wait import Signal
from flowckpt.errors import CheckpointNotFoundError, SettingError, StoreAbilityError
from flowckpt.stores import Ability, MemoryCheckpointStore, StoreBase, adapt, store_statistics
from flowckpt.stores.queries import Compacted
from flowckpt.testing.contract import NOON, RUN, checkpoint, results
from tests.manager.five_methods import FiveMethods


class Five(FiveMethods):
    """The five methods, and nothing else."""

    def __init__(self, inner: MemoryCheckpointStore | None = None) -> None:
        super().__init__(inner or MemoryCheckpointStore())

    def __repr__(self) -> str:
        return "Five()"

    async def save(self, workflow_id, data):
        latest = await self._inner.load_latest(workflow_id)
        if latest is not None and data.attempt > latest.attempt:
            await self._inner.release(workflow_id)  # it has owners, and these five methods have none
        await super().save(workflow_id, data)


class Listing(Five):
    async def list_runs(self):
        return await self._inner.list_runs()


async def filled(store: Any) -> StoreBase:
    store = adapt(store)
    steps = results("a", "b", "c")
    await store.save(RUN, checkpoint(1, reason=Reason.STARTED))
    await store.save(RUN, checkpoint(2, steps[:1]))
    await store.save(RUN, checkpoint(3, steps, attempt=2, saved_at=NOON + timedelta(seconds=1)))
    return store


def test_a_store_of_ours_is_adapted_to_itself():
    store = MemoryCheckpointStore()
    assert adapt(store) is store


def test_adapters_of_one_object_are_equal_and_show_it():
    store = Five()
    assert adapt(store) == adapt(store) != adapt(Five())
    assert hash(adapt(store)) == hash(adapt(store))
    assert (repr(adapt(store)), adapt(store).kind) == ("Five()", "Five")


@pytest.mark.parametrize("store", ["file:runs", Five, object(), None])
def test_what_is_not_a_store_is_refused(store):
    with pytest.raises(SettingError, match="where=.* is not a store"):
        adapt(store, "where")


def test_abilities_are_those_whose_methods_are_all_there():
    assert adapt(Five()).abilities == frozenset()
    assert adapt(Listing()).abilities == {Ability.LIST}

    class Half(Five):
        async def acquire(self, workflow_id, *, take_over=False): ...

    assert not adapt(Half()).has(Ability.OWNERS)
    assert MemoryCheckpointStore().has(Ability.OWNERS)
    assert not MemoryCheckpointStore().has(Ability.FIND)


async def test_checkpoints_are_picked_by_the_adapter():
    store = await filled(Five())
    assert [each.sequence for each in await store.list_checkpoints(RUN, attempt=1)] == [2, 1]
    assert [each.sequence for each in await store.list_checkpoints(RUN, reason="started")] == [1]
    assert [each.sequence for each in await store.list_checkpoints(RUN, limit=1)] == [3]
    for attempt, sequence in ((1, 2), (2, 3)):
        latest = await store.load_latest(RUN, attempt=attempt)
        assert latest is not None
        assert latest.sequence == sequence
    assert await store.load_latest(RUN, attempt=3) is None
    with pytest.raises(SettingError):
        await store.list_checkpoints(RUN, attempt=0)


async def test_an_attempts_newest_checkpoint_that_cannot_be_told_from_a_later_one_is_not_found():
    store = await filled(Five())
    await store.save(RUN, checkpoint(4, results("a", "b", "c"), checkpoint_id="c2", attempt=2))
    with pytest.raises(CheckpointNotFoundError, match="has the same id"):
        await store.load_latest(RUN, attempt=1)


async def test_what_can_be_derived_is_derived():
    store = await filled(Five())
    lease = await store.acquire(RUN)
    assert (lease.attempt, lease.last_sequence, lease.token) == (3, 3, "")
    await store.release(RUN)
    assert (await store.acquire("new")).attempt == 1
    assert await store.owner(RUN) is None
    assert list(await store.attempts(RUN)) == [1, 2]
    assert [each.sequence for each in await store.list_attempt(RUN, 1)] == [1, 2]
    info = await store.describe_run(RUN)
    assert info is not None
    assert (info.status, info.attempt, info.started_at, info.steps) == (Status.RUNNING, 2, NOON, 3)
    assert info.updated_at == NOON + timedelta(seconds=1)
    assert await store.describe_run("missing") is None
    figures = await store_statistics(store, RUN)
    assert (figures.runs, figures.checkpoints, figures.steps) == (1, 3, 3)


async def test_what_needs_no_answer_does_nothing():
    store = await filled(Five())
    assert await store.started_steps(RUN) == (0, ())
    assert (await store.signals(RUN), await store.pinned(RUN)) == ((), frozenset())
    assert (await store.compact(RUN), await store.compactable("", 9)) == (Compacted(), ())
    assert await store.stored_bytes([RUN, "other"]) == [None, None]
    async with store.announcements() as heard:
        assert heard is None
    store.note_started(RUN, "a")
    store.call_when_lost(RUN, print)
    await store.remove_signals(RUN, ["one"])
    await store.unpin(RUN, 1)
    await store.share_values(RUN, "other", {})
    await store.tidy()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list_runs", ()),
        ("find_runs", (RunFilter(),)),
        ("survey_runs", ()),
        ("figures", ()),
        ("page_runs", (None, 1)),
        ("check", ()),
        ("load_attempt", (RUN, 1)),
        ("read_attempt", (RUN, 1)),
        ("receive_run", (RUN, list)),
        ("send_signal", (RUN, Signal("one", "go", NOON))),
        ("delete_checkpoint", (RUN, "c1")),
        ("delete_sequences", (RUN, [1])),
        ("pin", (RUN, 1)),
    ],
)
async def test_what_cannot_be_done_says_which_ability_is_missing(name, arguments):
    store = adapt(Five())
    with pytest.raises(StoreAbilityError, match=r"Five\(\) cannot .*Ability\.[A-Z]+"):
        await getattr(store, name)(*arguments)
    with pytest.raises(StoreAbilityError):
        store.evict_with_next_save(RUN, [1])


async def test_a_store_that_lists_its_runs_can_be_searched_paged_and_emptied():
    store = await filled(Listing())
    await store.save("other", checkpoint(1, workflow_name="other"))
    runs = await store.list_runs()
    assert list(await store.page_runs(None, 1)) == list(runs)
    assert await store.page_runs(runs[-1], 1) == ()
    survey = await store.survey_runs()
    assert ([*survey.runs], survey.unreadable) == ([*runs], ())
    described = [info for each in runs if (info := await store.describe_run(each.workflow_id))]
    await store.save("other", checkpoint(2, workflow_name="other", saved_at=NOON + timedelta(seconds=9)))
    assert await store.clear_unchanged(described) == [RUN]
    assert [each.workflow_id for each in await store.list_runs()] == ["other"]


def test_the_engine_resumes_on_five_methods(tmp_path):
    ready = tmp_path / "ready"

    def work(number: int) -> int:
        if number == 1 and not ready.exists():
            raise ValueError(number)
        return number

    @workflow("five")
    def five():
        made = []
        for number in range(3):
            made.append((yield step("work").python(work, number).checkpoint()))
        return made

    store = Five()
    assert WorkflowEngine(store).run_sync(five, workflow_id=RUN).status is Status.FAILED
    ready.touch()
    assert WorkflowEngine(store).resume_sync(five, workflow_id=RUN).output == [0, 1, 2]
