"""Removing checkpoints: by name, by number, all of them; and never the ones that are needed."""

import asyncio
import logging

import pytest
from five_methods import FiveMethods

from flowckpt import CheckpointManager, EvidencePack, FileCheckpointStore, MemoryCheckpointStore, in_sync
from flowckpt.errors import CheckpointNotFoundError, CheckpointStorageError, SettingError
from flowckpt.evidence import artifact_exists, file_sha256
from flowckpt.maintenance.prune import prune_checkpoints


@pytest.fixture(autouse=True)
def deleting(request):
    if "reopen" in request.fixturenames:
        request.getfixturevalue("able")


async def steps(manager, *states, pack=None):
    found = []
    for state in states:
        begun = await manager.begin_step("task", "train", None)
        found.append(await manager.commit_step(begun, pack, snapshot=state))
    return found


def ids(listed):
    return [step.id for step in listed]


async def test_a_deleted_checkpoint_is_gone_and_its_step_stays_completed(start):
    manager = start()
    first, second, third = await steps(manager, 1, 2, 3)
    assert await manager.delete_checkpoint(second) is True
    for each in (manager, start()):
        assert ids(await each.list_checkpoints("task")) == [third, first]
        assert len((await each.restore("task")).completed) == 3
        with pytest.raises(CheckpointNotFoundError):
            await each.get_checkpoint(second)
        assert await each.delete_checkpoint(second) is False
        assert await each.delete_checkpoint("nobody@train") is False


async def test_behind_a_deleted_newest_checkpoint_the_task_goes_on_from_the_one_before(start):
    manager = start()
    first, second = await steps(manager, 1, 2)
    assert await manager.delete_checkpoint(second)
    for each in (manager, start()):
        restored = await each.restore("task")
        assert (restored.snapshot, len(restored.completed), restored.in_doubt) == (1, 1, ())
    (again,) = await steps(start(), "2b")
    assert again not in (first, second)
    assert (await start().restore("task")).snapshot == "2b"


async def test_all_can_be_deleted_one_by_one_and_at_once(start, reopen):
    manager = start()
    for each in await steps(manager, 1, 2):
        assert await manager.delete_checkpoint(each)
    assert (await start().restore("task")).snapshot is None
    manager = start()
    await steps(manager, 1, 2, 3)
    assert await manager.delete_all("task") == 3
    assert await reopen().load_latest("task") is None
    assert await manager.delete_all("task") == 0
    assert await steps(manager, "new") == ["task@train"]


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "5"])
async def test_a_task_keeps_one_checkpoint_at_least(reopen, most):
    with pytest.raises(SettingError, match="max_per_task"):
        CheckpointManager(reopen(), max_per_task=most)


@pytest.mark.parametrize("most", [1, 2, 5])
async def test_a_task_keeps_the_newest(start, most):
    manager = start(max_per_task=most)
    for number in range(8):
        found = await steps(manager, number)
        listed = await manager.list_checkpoints("task")
        assert len(listed) == min(most, number + 1)
        assert listed[0].id == found[0]
        assert ids(listed) == ids(await start().list_checkpoints("task"))
        manager = start(max_per_task=most)
    restored = await start().restore("task")
    assert (restored.snapshot, len(restored.completed)) == (7, 8)


async def test_a_finished_task_keeps_no_more_even_if_its_last_commit_died_before_it_removed_any(start, world):
    (world / "old").write_text("what the oldest checkpoints claim")
    keeping_all = start()
    await steps(keeping_all, 0, 1, pack=EvidencePack([file_sha256("old")]))
    await steps(keeping_all, 2, 3, 4)
    await keeping_all.close()
    (world / "new").write_text("what the newest one claims")
    await steps(keeping_all, 5, pack=EvidencePack([file_sha256("new")]))
    await keeping_all.close()
    manager = start(max_per_task=2)
    await manager.finish_task("task")
    (world / "old").unlink()
    restored = await start().restore("task")
    assert (restored.snapshot, restored.is_finished) == (5, True)
    assert [
        step.snapshot
        for step in [await start().get_checkpoint(each) for each in ids(await start().list_checkpoints("task"))]
    ] == [5, 4]


async def test_the_store_keeps_no_record_of_what_was_removed(start, reopen):
    manager = start(max_per_task=2)
    await steps(manager, *range(6))
    assert [each.checkpoint_id for each in await reopen().list_checkpoints("task")] == [
        *("train[5]", "[11]train[5]"),
        *("train[4]", "[9]train[4]"),
    ]


@pytest.mark.parametrize("is_checked", [True, False])
async def test_the_newest_verified_checkpoint_is_never_removed(start, world, is_checked):
    (world / "a").write_text("a")
    manager = start(max_per_task=2, auto_verify=is_checked)
    await steps(manager, 0, pack=EvidencePack([file_sha256("a")]))
    (verified,) = await steps(manager, 1, pack=EvidencePack([file_sha256("a")]))
    for number in range(2, 6):
        (newest,) = await steps(manager, number)
        assert ids(await manager.list_checkpoints("task")) == [newest, verified]
    assert (await start().get_last_verified_checkpoint("task")).id == verified
    assert await start().rollback_to_checkpoint(verified) == 1


async def test_with_room_for_one_the_newest_and_the_newest_verified_both_stay(start, world):
    (world / "a").write_text("a")
    manager = start(max_per_task=1)
    (verified,) = await steps(manager, 0, pack=EvidencePack([artifact_exists("a")]))
    *_, newest = await steps(manager, 1, 2, 3)
    assert ids(await manager.list_checkpoints("task")) == [newest, verified]


async def test_steps_that_are_begun_survive_the_removal(start):
    manager = start(max_per_task=1)
    begun = await manager.begin_step("task", "slow", "state")
    await steps(manager, *range(5))
    (doubtful,) = await start().in_doubt("task")
    assert (doubtful.step_id, doubtful.snapshot) == (begun, "state")
    assert await start(max_per_task=1).commit_step(begun, None) == "task@slow"


async def test_a_removal_that_fails_is_told_and_the_step_stays_committed(caplog):
    class Clumsy(MemoryCheckpointStore):
        async def delete_checkpoint(self, workflow_id, checkpoint_id):
            raise CheckpointStorageError("no room for a tombstone")

    manager = CheckpointManager(Clumsy(), max_per_task=1)
    with caplog.at_level(logging.WARNING, "flowckpt"):
        found = await steps(manager, 1, 2)
    assert "no room for a tombstone" in caplog.text
    assert ids(await manager.list_checkpoints("task")) == found[::-1]


async def test_a_store_of_five_methods_cannot_delete_single_checkpoints_and_says_so():
    store = FiveMethods(MemoryCheckpointStore())
    with pytest.raises(SettingError, match="cannot delete single checkpoints"):
        CheckpointManager(store, max_per_task=5)
    manager = CheckpointManager(store)
    found = await steps(manager, 1, 2)
    with pytest.raises(SettingError, match="cannot delete"):
        await manager.delete_checkpoint(found[0])
    assert await manager.delete_all("task") == 2
    assert await store.load_latest("task") is None


def test_what_each_rerun_of_a_program_leaves_is_gone_after_its_pruning_and_the_task_is_as_it_was(tmp_path):
    place = tmp_path / "store" / "runs" / "train"

    def program():
        with in_sync(CheckpointManager(FileCheckpointStore(tmp_path / "store"), tmp_path)) as manager:
            manager.plan_steps("train", ["a", "b"])
            task = manager.restore("train")
            for item in task.remaining:
                step = manager.begin_step("train", "epoch", item, work_item_id=item)
                manager.commit_step(step, EvidencePack([artifact_exists(".")]), snapshot=item)
            manager.finish_task("train")
            return task.snapshot, tuple(task.remaining)

    assert program() == (None, ("a", "b"))
    for _ in range(3):
        assert program() == ("b", ())
    assert len([*place.glob("*.jsonl")]) == 4 and len([*place.glob(".fenced-*")]) == 3
    removed, freed = asyncio.run(prune_checkpoints(FileCheckpointStore(tmp_path / "store"), "train"))
    assert (removed, freed > 0) == ([], True)
    assert len([*place.glob("*.jsonl")]) == 1 and not [*place.glob(".*")]
    assert program() == ("b", ())
