"""Taking a task up again: restore, roll back, and what remains to be done."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from flowckpt import CheckpointManager, EvidencePack, MemoryCheckpointStore, WorkflowEngine
from flowckpt.errors import (
    CheckpointNotFoundError,
    SettingError,
    StaleStepError,
    StepDefinitionError,
    StepNotStartedError,
)
from flowckpt.evidence import EvidenceVerifier, artifact_exists, file_sha256
from flowckpt.testing import FakeClock


async def write(manager, world, name, text, state):
    """One step that leaves a file and claims it."""
    begun = await manager.begin_step("task", "write", state, name)
    (world / name).write_text(text)
    return await manager.commit_step(begun, EvidencePack([file_sha256(name)]), snapshot=state)


async def steps(manager, *states, kind="train"):
    """Steps that claim nothing."""
    found = []
    for state in states:
        found.append(await manager.commit_step(await manager.begin_step("task", kind, None), None, snapshot=state))
    return found


def paths(restored):
    return [step.path for step in restored.completed]


# --- restore ---------------------------------------------------------------------------------------------------------


async def test_a_task_goes_on_behind_its_newest_checkpoint(start):
    manager = start()
    await steps(manager, 1, 2, 3)
    for each in (manager, start()):
        restored = await each.restore("task")
        assert restored.snapshot == 3
        assert paths(restored) == ["train", "train[1]", "train[2]"]
        assert (restored.remaining, restored.in_doubt, restored.is_finished) == (None, (), False)


async def test_a_task_that_was_begun_and_never_committed_has_no_state_but_a_doubt(start):
    begun = await start().begin_step("task", "train", "before")
    restored = await start().restore("task")
    assert (restored.checkpoint, restored.snapshot, restored.completed) == (None, None, ())
    assert [step.step_id for step in restored.in_doubt] == [begun]


async def test_a_checkpoint_can_be_restored_without_changing_where_the_task_stands(start):
    manager = start()
    first, _, _ = await steps(manager, 1, 2, 3)
    await manager.plan_steps("task", ["train"] * 4)
    for each in (manager, start()):
        restored = await each.restore_by_id(first)
        assert (restored.snapshot, paths(restored), restored.remaining) == (1, ["train"], ("train",) * 3)
        assert (await each.restore("task")).snapshot == 3


async def test_what_is_no_longer_true_is_not_restored(start, world):
    manager = start()
    first = await write(manager, world, "a", "one", 1)
    second = await write(manager, world, "b", "two", 2)
    (world / "b").unlink()
    for each in (manager, start()):
        with pytest.raises(StaleStepError, match=r"b does not exist.*rollback_to_checkpoint") as refused:
            await each.restore("task")
        assert (refused.value.workflow_id, refused.value.path) == ("task", "write[1]")
        with pytest.raises(StaleStepError):
            await each.restore_by_id(second)
        assert (await each.restore_by_id(first)).snapshot == 1
    assert (await start(auto_verify=False).restore("task")).snapshot == 2


async def test_a_step_that_led_to_a_checkpoint_must_be_true_as_well(start, world):
    manager = start()
    found = [await write(manager, world, name, name, name) for name in "abcd"]
    await steps(manager, "behind")
    (world / "b").unlink()
    (world / "d").write_text("half")
    for each in (manager, start()):
        with pytest.raises(StaleStepError, match=r"'write\[1\]'.*b does not exist.*'write\[3\]'.*d: ") as refused:
            await each.restore("task")
        assert (refused.value.workflow_id, refused.value.path) == ("task", "write[1]")
        assert refused.value.reasons == ("evidence: b does not exist",)
        assert [*refused.value.others] == ["write[3]"]
        assert refused.value.others["write[3]"][0].startswith("evidence: d: ")
        with pytest.raises(StaleStepError) as refused:  # what came later is not asked
            await each.restore_by_id(found[2])
        assert (refused.value.path, refused.value.others) == ("write[1]", {})
        assert (await each.restore_by_id(found[0])).snapshot == "a"
    restored = await start(auto_verify=False).restore("task")
    assert (restored.snapshot, len(restored.completed)) == ("behind", 5)
    (world / "b").write_text("b")
    (world / "d").write_text("d")
    assert (await start().restore("task")).snapshot == "behind"


async def test_one_goes_back_to_before_the_oldest_step_that_is_no_longer_true(start, world, reopen):
    manager = start()
    found = [await write(manager, world, name, name, name) for name in "abcd"]
    (world / "c").unlink()
    good = await start().get_last_verified_checkpoint("task")
    assert good.id == found[1]
    before = await reopen().list_checkpoints("task")
    for verify in (True, False):
        with pytest.raises(StaleStepError, match="c does not exist"):  # restore would refuse it
            await start(auto_verify=verify).rollback_to_checkpoint(found[3])
    assert await reopen().list_checkpoints("task") == before
    assert await start().rollback_to_checkpoint(good.id) == "b"
    assert (await start().restore("task")).snapshot == "b"
    (world / "a").unlink()
    assert await start().get_last_verified_checkpoint("task") is None


async def test_the_claims_of_all_steps_are_checked_in_one_go(start, world, monkeypatch):
    manager = start()
    for name in "abc":
        await write(manager, world, name, name, name)
    await steps(manager, "behind")
    asked, verify = [], EvidenceVerifier.verify_packs

    async def noted(verifier, packs, **settings):
        asked.append(len(packs))
        return await verify(verifier, packs, **settings)

    monkeypatch.setattr(EvidenceVerifier, "verify_packs", noted)
    await start().restore("task")
    assert asked == [3]


async def test_a_checkpoint_that_was_removed_vouches_for_nothing_any_more(start, world, able):
    manager = start(max_per_task=2)
    for name in "abcd":
        await write(manager, world, name, name, name)
    (world / "a").unlink()
    (world / "b").unlink()
    restored = await start().restore("task")
    assert (restored.snapshot, len(restored.completed)) == ("d", 4)
    (world / "c").unlink()
    with pytest.raises(StaleStepError, match="c does not exist"):
        await start().restore("task")
    assert await start().delete_checkpoint("task@write[2]")
    assert (await start().restore("task")).snapshot == "d"


async def test_a_step_that_is_committed_again_under_the_same_id_answers_for_both(start, world):
    manager = start()
    for text in ("one", "two"):
        begun = await manager.begin_step("task", "write", None)
        (world / "model").write_text(text)
        await manager.commit_step(begun, EvidencePack([file_sha256("model")]), "model", snapshot=text)
    for each in (manager, start()):
        assert (await each.restore("task")).snapshot == "two"


async def test_the_last_verified_checkpoint_is_the_newest_whose_evidence_holds_now(start, world):
    manager = start()
    first = await write(manager, world, "a", "one", 1)
    second = await write(manager, world, "b", "two", 2)
    await steps(manager, 3)
    found = await manager.get_last_verified_checkpoint("task")
    assert (found.id, found.snapshot) == (second, 2)
    assert await start().get_last_verified_checkpoint("task", "train") is None
    (world / "b").write_text("changed")
    assert (await start().get_last_verified_checkpoint("task", "write")).id == first
    (world / "a").unlink()
    assert await start().get_last_verified_checkpoint("task") is None


async def test_checkpoints_are_listed_by_type_and_by_whether_their_own_evidence_held(start, world):
    manager = start()
    first = await write(manager, world, "a", "one", 1)
    (plain,) = await steps(manager, 2)
    second = await write(manager, world, "b", "two", 3)
    (world / "a").unlink()  # what holds now does not matter here
    for each in (manager, start()):
        every = [step.id for step in await each.list_checkpoints("task")]
        assert every == [second, plain, first]
        assert [step.id for step in await each.list_checkpoints("task", verified=True)] == [second, first]
        assert [step.id for step in await each.list_checkpoints("task", verified=False)] == [plain]
        assert [step.id for step in await each.list_checkpoints("task", 1, "write", verified=True)] == [second]


async def test_a_claim_that_need_be_true_only_once_is_not_asked_again(start, world):
    (world / "lock").touch()
    manager = start()
    begun = await manager.begin_step("task", "upload", 1)
    found = await manager.commit_step(begun, EvidencePack([artifact_exists("lock").transient()]))
    (world / "lock").unlink()
    assert (await start().restore("task")).snapshot == 1
    assert await start().rollback_to_checkpoint(found) == 1
    assert not (await start().verify_checkpoint(found)).verified


# --- the plan --------------------------------------------------------------------------------------------------------


async def test_what_remains_is_the_plan_without_what_was_committed(start):
    manager = start()
    await manager.plan_steps("task", ["load", "epoch-1", "epoch-2", "report", "report"])
    assert (await start().restore("task")).remaining == ("load", "epoch-1", "epoch-2", "report", "report")
    manager = start()
    for kind, item in (("load", None), ("train", "epoch-2"), ("report", "weekly"), ("unplanned", None)):
        await manager.commit_step(await manager.begin_step("task", kind, None, item), None)
    await manager.begin_step("task", "train", None, "epoch-1")  # in doubt is not done
    for each in (manager, start()):
        assert (await each.restore("task")).remaining == ("epoch-1", "report")


async def test_the_same_plan_again_saves_nothing_and_another_one_takes_its_place(start, reopen):
    await start().plan_steps("task", ["a", "b"])
    before = await reopen().list_checkpoints("task")
    await start().plan_steps("task", ("a", "b"))
    assert await reopen().list_checkpoints("task") == before
    await start().plan_steps("task", ["c"])
    assert (await start().restore("task")).remaining == ("c",)
    await start().plan_steps("task", [])
    assert (await start().restore("task")).remaining == ()


@pytest.mark.parametrize("plan", ["train", 5, None, [""], [5], [None]])
async def test_a_plan_is_a_list_of_names(start, plan):
    with pytest.raises(SettingError):
        await start().plan_steps("task", plan)


async def test_a_plan_costs_its_bytes_once_and_not_at_every_step(start, reopen):
    manager = start()
    await manager.plan_steps("task", [f"item {number}" for number in range(2000)])
    await steps(manager, 1, 2, 3)
    plan, *later = reversed(await reopen().list_checkpoints("task"))
    assert plan.size > 20_000
    assert all(reference.size < 2000 for reference in later)


async def test_a_finished_task_is_completed_and_given_up_and_can_be_taken_up_again(start, reopen):
    manager = start()
    await steps(manager, 1)
    await manager.finish_task("task")
    assert (await reopen().load_latest("task")).status == "completed"
    restored = await start().restore("task")
    assert (restored.is_finished, restored.snapshot) == (True, 1)
    await steps(start(), 2)
    assert (await start().restore("task")).is_finished is False
    with pytest.raises(CheckpointNotFoundError):
        await start().finish_task("another")
    assert await reopen().load_latest("another") is None


# --- rollback --------------------------------------------------------------------------------------------------------


async def test_a_rollback_is_durable_and_what_follows_goes_on_from_there(start):
    manager = start()
    await manager.plan_steps("task", ["train"] * 4)
    first, second, third = await steps(manager, 1, 2, 3)
    assert await manager.rollback_to_checkpoint(first) == 1
    for each in (manager, start()):
        restored = await each.restore("task")
        assert (restored.snapshot, paths(restored), restored.remaining) == (1, ["train"], ("train",) * 3)
    manager = start()
    await steps(manager, "2b")
    for each in (manager, start()):
        assert paths(await each.restore("task")) == ["train", "train[3]"]
        assert (await each.restore("task")).snapshot == "2b"
        assert [step.id for step in await each.list_checkpoints("task")][1:] == [third, second, first]


async def test_one_can_roll_forward_to_what_was_left(start):
    manager = start()
    first, _, third = await steps(manager, 1, 2, 3)
    await manager.rollback_to_checkpoint(first)
    await steps(manager, "2b")
    assert await start().rollback_to_checkpoint(third) == 3
    assert paths(await start().restore("task")) == ["train", "train[1]", "train[2]"]


async def test_a_rollback_to_what_is_no_longer_true_is_refused_and_changes_nothing(start, world, reopen):
    manager = start(auto_verify=False)
    first = await write(manager, world, "a", "one", 1)
    await write(manager, world, "b", "two", 2)
    assert (await manager.verify_checkpoint(first)).verified
    (world / "a").write_text("half")
    before = await reopen().list_checkpoints("task")
    for verify in (True, False):
        with pytest.raises(StaleStepError, match="a: "):
            await start(auto_verify=verify).rollback_to_checkpoint(first)
    assert await reopen().list_checkpoints("task") == before
    assert (await start(auto_verify=False).restore("task")).snapshot == 2
    (world / "a").write_text("one")
    assert await start().rollback_to_checkpoint(first) == 1


async def test_a_rollback_gives_up_the_steps_that_are_begun(start):
    manager = start()
    (first,) = await steps(manager, 1)
    begun = await manager.begin_step("task", "train", 1)
    await manager.rollback_to_checkpoint(first)
    for each in (manager, start()):
        assert await each.in_doubt("task") == ()
        with pytest.raises(StepNotStartedError, match="rollback"):
            await each.commit_step(begun, None)


async def test_the_last_verified_checkpoint_is_not_one_that_was_rolled_back(start, world):
    manager = start()
    first = await write(manager, world, "a", "one", 1)
    second = await write(manager, world, "b", "two", 2)
    await manager.rollback_to_checkpoint(first)
    assert (await start().get_last_verified_checkpoint("task")).id == first
    assert (await start().verify_checkpoint(second)).verified


@pytest.mark.parametrize("given", ["task@nothing", "other@train", "nothing", "task@[2]train", "task@@plan"])
async def test_a_checkpoint_that_is_not_there_is_not_found(start, reopen, given):
    manager = start()
    await manager.plan_steps("task", ["train"])
    await steps(manager, 1)
    before = await reopen().list_checkpoints("task")
    manager = start()
    for call in (
        manager.get_checkpoint,
        manager.verify_checkpoint,
        manager.restore_by_id,
        manager.rollback_to_checkpoint,
    ):
        with pytest.raises(CheckpointNotFoundError):
            await call(given)
    assert await reopen().list_checkpoints("task") == before
    with pytest.raises(SettingError):
        await manager.get_checkpoint(5)


# --- listing ---------------------------------------------------------------------------------------------------------


async def test_the_list_is_newest_first_limited_and_by_type(start):
    manager = start()
    for number in range(3):
        await steps(manager, number, kind="train")
        await steps(manager, number, kind="check")
    for each in (manager, start()):
        listed = await each.list_checkpoints("task")
        assert [step.path for step in listed[:3]] == ["check[2]", "train[2]", "check[1]"]
        assert len(await each.list_checkpoints("task", 4)) == 4
        assert await each.list_checkpoints("task", 0) == []
        assert [step.path for step in await each.list_checkpoints("task", 2, "train")] == ["train[2]", "train[1]"]
        assert await each.list_checkpoints("task", checkpoint_type="none") == []
        for limit in (-1, True, None, 1.5):
            with pytest.raises(SettingError):
                await each.list_checkpoints("task", limit)


async def test_the_list_holds_no_more_than_a_hundred_where_nothing_is_said(start):
    await steps(manager := start(), *range(105))
    assert len(await manager.list_checkpoints("task")) == 100


# --- what a program writes in an `if` --------------------------------------------------------------------------------


async def test_a_checkpoint_whose_file_changed_is_false_in_an_if(start, world):
    manager = start()
    found = await write(manager, world, "a", "a", 1)
    assert await manager.verify_checkpoint(found)
    (world / "a").write_text("b")
    report = await manager.verify_checkpoint(found)
    assert not report
    assert not report.verdicts[0]


async def test_a_checkpoint_without_evidence_is_false_in_an_if(start):
    manager = start()
    (found,) = await steps(manager, 1)
    assert not await manager.verify_checkpoint(found)


async def test_mistakes_are_named_with_what_was_given_and_no_line_of_flowckpt(start):
    manager = start()
    step = await manager.begin_step("task", "train", 1)
    for wrong in (manager.commit_step("train", None), manager.abandon_step("train")):
        with pytest.raises(SettingError, match="step_id is 'train', and the id of a step is written TASK@STEP"):
            await wrong
    with pytest.raises(StepDefinitionError, match="it takes a list, got the text 'ls'") as caught:
        await manager.run_command("ls", step_id=step)
    assert caught.value.where == "" and "manager.py" not in str(caught.value)
    with pytest.raises(SettingError, match=r"migrations has 1 \(int\), which cannot be called"):
        CheckpointManager(MemoryCheckpointStore(), migrations=[1])
    with pytest.raises(SettingError, match=r"listeners has 'log' \(str\), which cannot be called"):
        WorkflowEngine(MemoryCheckpointStore(), listeners=["log"])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("verifier", 3), ("verifier", EvidenceVerifier), ("clock", "noon"), ("clock", FakeClock), ("listeners", 3)],
)
def test_a_port_of_a_wrong_type_is_refused_at_once(setting, value):
    with pytest.raises(SettingError, match=f"^{setting}="):
        WorkflowEngine(MemoryCheckpointStore(), **{setting: value})
    if setting != "listeners":
        with pytest.raises(SettingError, match=f"^{setting}="):
            CheckpointManager(MemoryCheckpointStore(), **{setting: value})


# --- several event loops ---------------------------------------------------------------------------------------------


def test_one_manager_serves_the_loops_of_several_threads(start):
    """As in a service with a loop in each thread; they use the same task, and one of their own."""
    manager, begin = start(), threading.Barrier(6)

    async def work(own):
        begin.wait()
        for number in range(10):
            for task in (own, "shared"):
                step = await manager.begin_step(task, "write", None, f"{own} {number}")
                await manager.commit_step(step, None, snapshot=number)

    def in_its_own_loop(own):
        asyncio.run(asyncio.wait_for(work(own), 60))

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(in_its_own_loop, [f"t{number}" for number in range(6)]))
    for task, count in {"t0": 10, "t5": 10, "shared": 60}.items():
        assert len(asyncio.run(manager.restore(task)).completed) == count


async def test_one_who_gives_up_waiting_for_a_task_keeps_nobody_waiting(start):
    manager = start()
    lock = (await manager._tasks._take("task")).one_at_a_time
    async with lock:
        waiting = [asyncio.create_task(manager.begin_step("task", "write", None, str(number))) for number in range(4)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        waiting[2].cancel()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in ended] == [True, False, True, False]


def test_a_loop_that_was_closed_with_a_waiting_task_keeps_no_other_task_waiting(start):
    lock = start()._tasks._taking

    async def wait():
        async with lock:
            return "entered"

    async def hold(closed):
        async with lock:
            closed.call_soon_threadsafe(waiting.append, closed.create_task(wait()))
            await asyncio.get_running_loop().run_in_executor(None, closed.run_until_complete, asyncio.sleep(0.05))
            closed.close()
        return await asyncio.wait_for(wait(), 10)

    waiting = []
    assert asyncio.run(hold(asyncio.new_event_loop())) == "entered"
    waiting[0]._log_destroy_pending = False
