"""A loop that dies at every write, before it is durable and after it, ends as one that never died."""

import random

import pytest
from five_methods import Dying, DyingAndAble, FiveMethods, SimulatedCrashError

from flowckpt import CheckpointManager, EvidencePack, in_sync
from flowckpt.evidence import file_sha256

ITEMS = [f"item-{number}" for number in range(4)]


def work(store, world, *, most=None):
    """A loop as people write it: take the task up, do what remains, each item once and for all."""
    effects = []
    manager = in_sync(CheckpointManager(store, world, max_per_task=most))
    try:
        manager.plan_steps("task", ITEMS)
        restored = manager.restore("task")
        total = restored.snapshot or 0
        doubtful = [step.work_item_id for step in restored.in_doubt]
        for item in restored.remaining:
            begun = manager.begin_step("task", "add", total, item)
            effects.append(item)
            total = total * 10 + ITEMS.index(item) + 1
            (world / item).write_text(str(total))
            manager.commit_step(begun, EvidencePack([file_sha256(item)]), snapshot=total)
        manager.finish_task("task")
    except SimulatedCrashError:
        return None, effects, doubtful if "doubtful" in locals() else []
    finally:
        manager.close_loop()
    return total, effects, doubtful


def dying(store, at, *, is_after):
    kind = Dying if isinstance(store, FiveMethods) else DyingAndAble
    return kind(store, at, is_after=is_after)


def known(store):
    """What a later process knows of the task."""
    return in_sync(CheckpointManager(store, auto_verify=False)).restore("task")


@pytest.mark.parametrize("most", [None, 1, 2])
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_loop_that_died_at_any_write_ends_as_an_uninterrupted_one(reopen, world, is_after, most):
    if most is not None and isinstance(reopen(), FiveMethods):
        pytest.skip("it cannot delete single checkpoints")
    store = dying(reopen(), 10**9, is_after=False)
    assert work(store, world, most=most) == (1234, ITEMS, [])
    writes = store.writes
    assert writes == 2 + 2 * len(ITEMS) + (0 if most is None else 2 * (len(ITEMS) - most))
    for at in range(1, writes + 1):
        in_sync(CheckpointManager(reopen())).delete_all("task")
        total, effects, _ = work(dying(reopen(), at, is_after=is_after), world, most=most)
        assert total is None
        restored = known(reopen())
        done = [] if restored is None else [step.work_item_id for step in restored.completed]
        assert done == ITEMS[: len(done)]
        # What had begun and was not committed is in doubt, and nothing else is.
        doubtful = [] if restored is None else [step.work_item_id for step in restored.in_doubt]
        assert doubtful in ([], ITEMS[len(done) : len(done) + 1])
        assert set(effects) <= set(done) | set(doubtful)
        total, again, told = work(reopen(), world, most=most)
        assert (total, again, told) == (1234, ITEMS[len(done) :], doubtful)
        last = known(reopen())
        assert (last.snapshot, last.remaining, last.in_doubt, last.is_finished) == (1234, (), (), True)
        assert [step.work_item_id for step in last.completed] == ITEMS


@pytest.mark.parametrize("seed", range(8))
def test_a_loop_that_dies_again_and_again_ends_right(reopen, world, seed):
    chance, effects = random.Random(seed), []
    for _ in range(200):
        store = dying(reopen(), chance.randrange(1, 5), is_after=chance.random() < 0.5)
        total, done, _ = work(store, world)
        effects += done
        if total is not None:
            break
    assert total == 1234
    assert sorted(set(effects)) == ITEMS
    assert [step.work_item_id for step in known(reopen()).completed] == ITEMS
    sequences = [reference.sequence for reference in in_sync(reopen()).list_checkpoints("task")]
    assert sequences == sorted(set(sequences), reverse=True)


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_rollback_that_dies_has_happened_or_has_not(reopen, is_after):
    manager = in_sync(CheckpointManager(reopen()))
    found = [
        manager.commit_step(manager.begin_step("task", "train", None), None, snapshot=number) for number in range(3)
    ]
    manager = in_sync(CheckpointManager(dying(reopen(), 1, is_after=is_after)))
    with pytest.raises(SimulatedCrashError):
        manager.rollback_to_checkpoint(found[0])
    assert known(reopen()).snapshot == (0 if is_after else 2)
    assert len(in_sync(CheckpointManager(reopen())).list_checkpoints("task")) == 3
