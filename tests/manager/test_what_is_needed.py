"""What a task continues from is never removed, by any process; what is no longer needed goes."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowckpt import CheckpointManager, EvidencePack, MemoryCheckpointStore
from flowckpt.core.codec.checkpoints import export_text
from flowckpt.core.records import Reason
from flowckpt.errors import ImportRefusedError, RunLockedError
from flowckpt.evidence import artifact_exists
from flowckpt.maintenance import import_run
from flowckpt.maintenance.prune import prune_checkpoints
from flowckpt.stores import SqliteCheckpointStore
from flowckpt.testing import FakeClock
from tests.reopening import reopened_files, reopened_memory

CLAIM = EvidencePack([artifact_exists(".")])


@pytest.fixture(params=["memory", "file", "sqlite"])
def reopen(request, tmp_path):
    if request.param == "memory":
        yield reopened_memory()
        return
    if request.param == "file":
        open_again = reopened_files(tmp_path / "store")
        yield open_again
        open_again()
        return
    opened = []

    def open_again():
        for store in opened:
            store.close()
        opened[:] = [SqliteCheckpointStore(tmp_path / "store.db")]
        return opened[0]

    yield open_again
    opened[0].close()


async def three_of_four(manager):
    await manager.plan_steps("t", list("abcd"))
    found = []
    for item in "abc":
        step = await manager.begin_step("t", "w", None, work_item_id=item)
        found.append(await manager.commit_step(step, None, snapshot=item))
    return found


def seen(task):
    return (
        task.checkpoint and task.checkpoint.id,
        task.snapshot,
        [step.path for step in task.completed],
        task.remaining,
        [(step.step_id, step.snapshot, step.work_item_id, step.metadata) for step in task.in_doubt],
        task.is_finished,
    )


async def killed_in_a_step(manager, _):
    await manager.begin_step("t", "w", 9, work_item_id="d")


async def finished(manager, _):
    await manager.finish_task("t")


async def rolled_back(manager, ids):
    await manager.rollback_to_checkpoint(ids[0])


async def planned_anew(manager, _):
    await manager.plan_steps("t", list("abcde"))


async def abandoned(manager, _):
    await manager.abandon_step(await manager.begin_step("t", "w", 9, work_item_id="d"))


ENDS = [killed_in_a_step, finished, rolled_back, planned_anew, abandoned]


@pytest.mark.parametrize("conditions", [{"keep": 1}, {"older_than": "0s"}, {"max_bytes": 1}], ids=str)
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_a_pruned_task_goes_on_as_before(start, reopen, clock, end, conditions):
    manager = start()
    await end(manager, await three_of_four(manager))
    before = seen(await start().restore("t"))
    clock.advance(60)
    dry, _ = await prune_checkpoints(reopen(), "t", clock=clock, is_dry_run=True, **conditions)
    assert len(await reopen().list_checkpoints("t")) >= 8
    gone, _ = await prune_checkpoints(reopen(), "t", clock=clock, **conditions)
    assert gone == dry != []
    assert seen(await start().restore("t")) == before
    for each in before[4]:
        await start().commit_step(each[0], None)


async def test_the_number_that_stays_is_of_committed_steps(start, reopen):
    manager = start()
    ids = await three_of_four(manager)
    await manager.rollback_to_checkpoint(ids[0])
    await prune_checkpoints(reopen(), "t", keep=3)
    assert [step.id for step in await start().list_checkpoints("t")] == ids[::-1]
    await prune_checkpoints(reopen(), "t", keep=1)
    assert [step.id for step in await start().list_checkpoints("t")] == [ids[2], ids[0]]
    assert await start().rollback_to_checkpoint(ids[2]) == "c"


async def test_the_newest_verified_checkpoint_stays(start, reopen):
    manager = start()
    await manager.commit_step(await manager.begin_step("t", "v", "held"), CLAIM)
    await three_of_four(manager)
    await prune_checkpoints(reopen(), "t", keep=1)
    assert (await start().get_last_verified_checkpoint("t")).snapshot == "held"


async def test_a_claim_that_nobody_has_checked_stays_too(start, reopen):
    manager = start(auto_verify=False)
    await manager.commit_step(await manager.begin_step("t", "v", "held"), CLAIM)
    await three_of_four(manager)
    await prune_checkpoints(reopen(), "t", keep=1)
    assert (await start().get_last_verified_checkpoint("t")).snapshot == "held"


async def test_a_task_that_somebody_owns_is_not_pruned(start, reopen):
    manager = start()
    await three_of_four(manager)
    count = len(await manager.store.list_checkpoints("t"))
    with pytest.raises(RunLockedError):
        await prune_checkpoints(manager.store, "t", keep=1)
    assert len(await manager.store.list_checkpoints("t")) == count


async def test_what_the_task_goes_on_from_is_chosen_again_under_the_ownership(start, reopen):
    """Between the look and the removal another process rolls the task back to what was to go."""
    manager = start()
    ids = await three_of_four(manager)
    store = reopen()
    plain = store.acquire

    async def late(workflow_id, **how):
        store.acquire = plain
        other = CheckpointManager(store, ".")
        await other.rollback_to_checkpoint(ids[0])
        await other.close()
        return await plain(workflow_id, **how)

    store.acquire = late
    gone, _ = await prune_checkpoints(store, "t", keep=1)
    assert gone
    assert (await start().restore("t")).snapshot == "a"


async def test_of_an_id_that_was_used_twice_the_state_that_is_loaded_is_of_the_step_that_is_told(start, reopen):
    manager = start()
    for number in (1, 2):
        step = await manager.begin_step("t", "w", number)
        await manager.commit_step(step, None, "best")
    await three_of_four(manager)
    store = reopen()
    first = min(each.sequence for each in await store.list_checkpoints("t") if each.checkpoint_id == "best")
    await store.pin("t", first)
    await prune_checkpoints(store, "t", keep=1)
    found = await start().get_checkpoint("t@best")
    assert (found.snapshot, found.sequence) == (1, first)


async def test_steps_that_were_begun_again_after_a_crash_leave_nothing(start):
    for number in range(6):
        manager = start(max_per_task=1)
        again = await manager.begin_step("t", "w", number, work_item_id="a")
        if number % 2:
            await manager.commit_step(await manager.begin_step("t", "other", number), None)
            markers = [each for each in await manager.store.list_checkpoints("t") if each.reason is Reason.IN_DOUBT]
            assert len(markers) == 2
    (doubtful,) = await start().in_doubt("t")
    assert (doubtful.step_id, doubtful.snapshot) == (again, 5)


async def test_a_step_in_doubt_keeps_its_state_though_much_was_done_since(start, reopen):
    manager = start()
    begun = await manager.begin_step("t", "slow", "its state", work_item_id="z", metadata={"n": 1})
    await three_of_four(manager)
    before = seen(await start().restore("t"))
    await prune_checkpoints(reopen(), "t", keep=1)
    assert seen(await start().restore("t")) == before
    assert (await start().restore_by_id(await start().commit_step(begun, None))).snapshot == "its state"


@pytest.mark.parametrize("how", ["abandoned", "rolled back"])
async def test_begun_steps_that_were_given_up_leave_nothing(start, reopen, how):
    manager = start(max_per_task=5)
    (first, *_) = await three_of_four(manager)
    step = await manager.begin_step("t", "w", "big", work_item_id="d")
    if how == "abandoned":
        await manager.abandon_step(step)
    else:
        await manager.rollback_to_checkpoint(first)
    await manager.commit_step(await manager.begin_step("t", "x", 0), None)
    assert step.partition("@")[2] not in {each.checkpoint_id for each in await reopen().list_checkpoints("t")}


async def test_a_document_behind_which_no_task_stands_is_refused_by_name(start, reopen, tmp_path):
    manager = start()
    await three_of_four(manager)
    await killed_in_a_step(manager, None)
    source, target = reopen(), MemoryCheckpointStore()
    (marker, commit, *_) = await source.list_checkpoints("t")
    for number, reference in enumerate((marker, commit)):
        data = await source.load("t", reference.checkpoint_id)
        (tmp_path / f"{number}.json").write_text(export_text(data))
    with pytest.raises(ImportRefusedError, match=r"\[8\]w\[3\].*not a committed step of a task") as caught:
        await import_run(target, tmp_path / "0.json", workflow_id="new")
    assert "flowckpt export" in caught.value.remedy
    assert await target.list_runs() == []
    await import_run(target, tmp_path / "1.json", workflow_id="new")
    restored = await CheckpointManager(target).restore("new")
    assert (restored.snapshot, len(restored.completed), restored.remaining) == ("c", 3, ("d",))


# --- any history -----------------------------------------------------------------------------------------------------

ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.sampled_from("ab"), st.sampled_from([None, "x", "y"])),
        st.tuples(st.just("step"), st.sampled_from("ab"), st.sampled_from([None, "x", "y"])),
        st.tuples(st.just("commit"), st.sampled_from([None, "best"]), st.booleans()),
        st.tuples(st.sampled_from(["abandon", "finish", "die", "rollback"]), st.integers(0, 9), st.none()),
        st.tuples(st.just("plan"), st.lists(st.sampled_from("xyab"), max_size=4), st.none()),
        st.tuples(st.just("prune"), st.sampled_from(["keep", "max_bytes", "older_than"]), st.integers(1, 3)),
    ),
    min_size=4,
    max_size=25,
)


class Twin:
    """The same task twice: in a store from which things are removed, and in one where all stays."""

    def __init__(self, kinds: Any, most: int | None, clock: FakeClock, world: Path) -> None:
        self.kinds, self.most, self.clock, self.world = kinds, (most, None), clock, world
        self.begun: list[str] = []
        self.die()

    def die(self) -> None:
        self.managers = [
            CheckpointManager(reopen(), self.world, max_per_task=most, clock=self.clock)
            for reopen, most in zip(self.kinds, self.most, strict=True)
        ]

    async def act(self, what: str, first: Any, second: Any) -> None:
        pruned, _ = self.managers
        listed = [step.id for step in await pruned.list_checkpoints("t")]
        if what == "prune":
            self.die()
            store = self.managers[0].store
            if listed:
                await prune_checkpoints(store, "t", clock=self.clock, **{first: second * 60})
                await prune_checkpoints(store, "t", clock=self.clock, keep=second)
            return
        if what == "die":
            self.die()
        for place, manager in enumerate(self.managers):
            if what in ("begin", "step"):
                step = await manager.begin_step("t", first, {"n": len(self.begun)}, work_item_id=second)
                if what == "step":
                    await manager.commit_step(step, None, snapshot=[len(self.begun)])
                elif place:
                    self.begun.append(step)
            elif what in ("commit", "abandon"):
                doubtful = await manager.in_doubt("t")
                if doubtful and what == "commit":
                    await manager.commit_step(doubtful[-1].step_id, CLAIM if second else None, first)
                elif doubtful:
                    await manager.abandon_step(doubtful[first % len(doubtful)].step_id)
            elif what == "plan":
                await manager.plan_steps("t", first)
            elif what == "finish" and await manager.restore("t") is not None:
                await manager.finish_task("t")
            elif what == "rollback" and listed:
                await manager.rollback_to_checkpoint(listed[first % len(listed)])

    async def check(self) -> None:
        one, other = [await manager.restore("t") for manager in self.managers]
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert seen(one) == seen(other)


def proved(kinds: Any, actions: Any, most: int | None, world: Path) -> None:
    async def main() -> None:
        clock = FakeClock()
        twin = Twin(kinds, most, clock, world)
        for action in actions:
            await twin.act(*action)
            clock.advance(30)
            await twin.check()
        twin.die()
        await twin.check()

    asyncio.run(main())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, st.sampled_from([None, 1, 2]))
def test_whatever_a_task_did_and_whatever_was_removed_it_goes_on_from_the_same(actions, most):
    proved([reopened_memory(), reopened_memory()], actions, most, Path.cwd())


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, st.sampled_from([None, 1, 2]))
def test_likewise_in_files(actions, most):
    with tempfile.TemporaryDirectory() as place:
        reopen = reopened_files(Path(place) / "store")
        proved([reopen, reopened_memory()], actions, most, Path(place))
        reopen()


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, st.sampled_from([None, 1, 2]))
def test_likewise_in_a_database(actions, most):
    opened: list[SqliteCheckpointStore] = []
    with tempfile.TemporaryDirectory() as place:

        def reopen() -> SqliteCheckpointStore:
            for store in opened:
                store.close()
            opened[:] = [SqliteCheckpointStore(Path(place) / "runs.db")]
            return opened[0]

        proved([reopen, reopened_memory()], actions, most, Path(place))
        opened[0].close()
