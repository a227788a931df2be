"""`maybe_commit`: a loop is checkpointed by one line, and continues after a crash."""

import pytest

from flowckpt import EvidencePack
from flowckpt.errors import EvidenceNotVerifiedError, SettingError
from flowckpt.evidence import artifact_exists


async def test_a_loop_continues_from_its_last_commit(start):
    async def loop(manager, crash_after):
        task = await manager.restore("train")
        state = {"epoch": 0, "loss": 1.0} if task is None or task.checkpoint is None else task.snapshot
        seen = []
        while state["epoch"] < 10:
            state = {"epoch": state["epoch"] + 1, "loss": state["loss"] / 2}
            seen.append(state["epoch"])
            await manager.maybe_commit("train", state, every=3)
            if state["epoch"] == crash_after:
                return seen
        await manager.finish_task("train")
        return state

    assert await loop(start(), 5) == [1, 2, 3, 4, 5]
    assert await loop(start(), 7) == [4, 5, 6, 7]
    assert await loop(start(), 0) == {"epoch": 10, "loss": 1 / 1024}


async def test_a_commit_is_due_by_calls_or_by_time(start, clock):
    manager = start()
    made = [await manager.maybe_commit("one", number, every=3) for number in range(7)]
    assert [each is not None for each in made] == [False, False, True, False, False, True, False]
    assert (await manager.get_checkpoint(made[5])).snapshot == 5
    assert await manager.maybe_commit("two", 1, every=100, interval=60) is None
    clock.advance(59)
    assert await manager.maybe_commit("two", 2, every=100, interval=60) is None
    clock.advance(1)
    assert await manager.maybe_commit("two", 3, every=100, interval=60) is not None
    assert await manager.maybe_commit("two", 4, every=100, interval=60) is None


async def test_evidence_is_checked_and_leaves_nothing_in_doubt(start, world):
    manager = start()
    (world / "model").touch()
    claim = artifact_exists("model")
    made = await manager.maybe_commit("train", 1, claim)
    assert (await manager.verify_checkpoint(made)).verified
    (world / "model").unlink()
    with pytest.raises(EvidenceNotVerifiedError):
        await manager.maybe_commit("train", 2, EvidencePack([claim]))
    assert list(await manager.in_doubt("train")) == []
    (world / "model").touch()
    assert await manager.maybe_commit("train", 2, claim) is not None


@pytest.mark.parametrize("wrong", [{"every": 0}, {"every": True}, {"interval": -1}, {"interval": float("nan")}])
async def test_settings_that_make_no_sense_are_refused(start, wrong):
    with pytest.raises(SettingError):
        await start().maybe_commit("train", 1, **wrong)
