"""Steps of a plain loop: begun, in doubt, committed with what they claim."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from flowckpt import CheckpointManager, EvidencePack, MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core.system.ids import why_invalid_run_id
from flowckpt.errors import (
    CheckpointNotFoundError,
    CheckpointStorageError,
    EncodingError,
    EvidenceError,
    EvidenceNotVerifiedError,
    FencedError,
    ForeignRecordError,
    RunLockedError,
    SettingError,
    StepNotStartedError,
)
from flowckpt.evidence import artifact_exists, command_exit, file_sha256
from flowckpt.stores.base import Ability
from flowckpt.testing.contract import HOSTILE_IDS

NO_EVIDENCE = EvidencePack([])


async def take_step(manager, task="task", kind="train", state=None, pack=None, **more):
    return await manager.commit_step(await manager.begin_step(task, kind, state), pack, **more)


# --- what is committed stays -----------------------------------------------------------------------------------------


async def test_a_committed_step_is_found_by_its_id_alone_after_a_restart(start):
    manager = start()
    begun = await manager.begin_step("task", "train", {"w": (1, 2)}, "epoch-1", {"by": "momo"})
    found = await manager.commit_step(begun, None)
    for each in (manager, start()):
        checkpoint = await each.get_checkpoint(found)
        assert checkpoint.snapshot == {"w": (1, 2)}
        assert checkpoint.id == found == "task@train"
        assert (checkpoint.task_id, checkpoint.step_id, checkpoint.checkpoint_type) == ("task", begun, "train")
        assert (checkpoint.work_item_id, checkpoint.metadata, checkpoint.path) == ("epoch-1", {"by": "momo"}, "train")


async def test_what_a_live_owner_tells_is_what_a_later_process_reads(start, world):
    (world / "a").write_text("a")
    manager = start()
    for number in range(3):
        begun = await manager.begin_step("task", "train", number, f"item-{number}", {"n": (number,)})
        pack = EvidencePack([artifact_exists("a")]) if number else None
        await manager.commit_step(begun, pack, "best" if number == 2 else None)
    await manager.begin_step("task", "report", None, metadata={"x": {1, 2}})
    await manager.plan_steps("task", ["item-0", "item-3"])
    told = await manager.list_checkpoints("task"), await manager.restore("task")
    later = start()
    assert (await later.list_checkpoints("task"), await later.restore("task")) == told


async def test_a_later_change_to_the_state_is_not_seen(start):
    manager, state, notes, after = start(), {"rows": [[1]]}, {"deep": [1]}, [[1]]
    begun = await manager.begin_step("task", "train", state, metadata=notes)
    state["rows"][0].append(2)
    notes["deep"].append(2)
    first = await manager.commit_step(begun, None)
    second = await take_step(manager, state=0, snapshot=after)
    after[0].append(2)
    for _ in range(2):
        checkpoint = await manager.get_checkpoint(first)
        assert checkpoint.snapshot == {"rows": [[1]]}
        assert checkpoint.metadata == {"deep": [1]}
        checkpoint.snapshot["rows"].append(3)
        assert (await manager.get_checkpoint(second)).snapshot == [[1]]
    await manager.begin_step("task", "train", state)
    state["rows"].clear()
    for _ in range(2):
        (doubtful,) = await manager.in_doubt("task")
        assert doubtful.snapshot == {"rows": [[1, 2]]}
        doubtful.snapshot["rows"].append(3)


async def test_a_checkpoint_holds_the_state_after_its_step_where_that_is_given(start):
    manager = start()
    begun = await manager.begin_step("task", "call", {"messages": ["ask"]})
    found = await manager.commit_step(begun, None, snapshot={"messages": ["ask", "answer"]})
    assert (await start().get_checkpoint(found)).snapshot == {"messages": ["ask", "answer"]}
    found = await take_step(start(), state="before", snapshot=None)
    assert (await start().get_checkpoint(found)).snapshot is None


async def test_large_states_come_back(start):
    large = {"text": "ä" * 70_000, "bytes": b"x" * 70_000}
    manager = start()
    begun = await manager.begin_step("task", "train", large)
    assert (await start().in_doubt("task"))[0].snapshot == large
    found = await (again := start()).commit_step(begun, None)
    assert (await again.restore("task")).snapshot == large
    assert (await start().get_checkpoint(found)).snapshot == large


async def test_times_come_from_the_clock_and_order_nothing(start, clock):
    manager = start()
    begun = await manager.begin_step("task", "train", 1)
    clock.advance(2.5)
    await manager.commit_step(begun, None)
    clock.set(datetime(2020, 1, 1, tzinfo=UTC))
    await take_step(manager, state=2)
    newest, oldest = await start().list_checkpoints("task")
    assert (oldest.duration_ms, oldest.saved_at - oldest.begun_at) == (2500, timedelta(seconds=2.5))
    assert newest.saved_at < oldest.saved_at
    assert newest.sequence > oldest.sequence
    assert (await start().restore("task")).snapshot == 2


async def test_sequences_grow_over_restarts_and_ids_differ_between_tasks(start):
    seen = {}
    for _ in range(3):
        manager = start()
        for task in ("a", "b"):
            for _ in range(2):
                found = await take_step(manager, task)
                assert found not in seen
                seen[found] = (await manager.get_checkpoint(found)).sequence
    for task in ("a@", "b@"):
        sequences = [sequence for found, sequence in seen.items() if found.startswith(task)]
        assert sequences == sorted(set(sequences))


@pytest.mark.parametrize(
    "task",
    [name for name in HOSTILE_IDS if not why_invalid_run_id(name)] + ["momo@example.com", "x@[1]train", "../x", "-x"],
)
async def test_whatever_can_be_the_id_of_a_run_can_be_a_task(start, task):
    found = await take_step(start(), task, state=task[:3])
    later = start()
    assert (await later.get_checkpoint(found)).snapshot == task[:3]
    assert (await later.get_checkpoint(found)).task_id == task
    assert await later.restore("another") is None
    assert await later.delete_all(task) == 1


@pytest.mark.parametrize("kind", ["a/b", "a@b", "train[1]", "[3]train", "100%", "\n", "CON", "ä" * 250])
async def test_any_text_can_be_a_type(start, kind):
    if not kind.strip():
        with pytest.raises(SettingError):
            await start().begin_step("task", kind, None)
        return
    manager = start()
    begun = [await manager.begin_step("task", kind, number) for number in range(2)]
    manager = start()
    assert [step.step_id for step in await manager.in_doubt("task")] == begun
    found = [await manager.commit_step(each, None) for each in begun]
    assert [(await start().get_checkpoint(each)).snapshot for each in found] == [0, 1]
    assert [step.checkpoint_type for step in await start().list_checkpoints("task", checkpoint_type=kind)] == [kind] * 2


# --- ids of one's own ------------------------------------------------------------------------------------------------


async def test_a_checkpoint_can_have_an_id_of_ones_own(start):
    manager = start()
    assert await take_step(manager, state=1, checkpoint_id="best") == "task@best"
    assert (await start().get_checkpoint("task@best")).snapshot == 1


async def test_the_newest_of_an_id_is_the_one_that_is_loaded(start):
    manager = start()
    for state in (1, 2):
        await take_step(manager, state=state, checkpoint_id="best")
    for each in (manager, start()):
        assert (await each.get_checkpoint("task@best")).snapshot == 2
        assert [step.id for step in await each.list_checkpoints("task")] == ["task@best"]
        assert len((await each.restore("task")).completed) == 2


async def test_an_id_of_ones_own_is_found_without_its_task_where_only_one_has_it(start, able):
    manager = start()
    await take_step(manager, "a", state="a", checkpoint_id="best")
    assert (await start().get_checkpoint("best")).snapshot == "a"
    await take_step(start(), "b", state="b", checkpoint_id="best")
    with pytest.raises(CheckpointNotFoundError, match="it could be a@best, b@best"):
        await start().get_checkpoint("best")
    with pytest.raises(CheckpointNotFoundError, match="TASK@CHECKPOINT"):
        await start().get_checkpoint("worst")


@pytest.mark.parametrize("chosen", ["", " ", "a@b", "train[1]", 5, "x" * 501])
async def test_an_id_that_could_be_mistaken_is_refused(start, chosen):
    manager = start()
    begun = await manager.begin_step("task", "train", None)
    with pytest.raises(SettingError):
        await manager.commit_step(begun, None, chosen)
    assert [step.step_id for step in await manager.in_doubt("task")] == [begun]


# --- in doubt --------------------------------------------------------------------------------------------------------


async def test_a_step_that_was_begun_is_in_doubt_after_a_crash_with_all_that_is_known_of_it(start, clock):
    manager = start()
    await take_step(manager, state=1)
    begun = await manager.begin_step("task", "pay", {"total": 5}, "invoice-7", {"by": "momo"})
    (doubtful,) = await start().in_doubt("task")
    assert doubtful.step_id == begun
    assert (doubtful.checkpoint_type, doubtful.work_item_id) == ("pay", "invoice-7")
    assert (doubtful.metadata, doubtful.snapshot, doubtful.begun_at) == ({"by": "momo"}, {"total": 5}, clock.now())
    restored = await start().restore("task")
    assert restored.in_doubt == (doubtful,)
    assert restored.snapshot == 1


async def test_a_step_in_doubt_can_be_committed_by_the_next_process(start, world, clock):
    begun = await start().begin_step("task", "write", "before")
    (world / "a").write_text("done")
    clock.advance(60)
    manager = start()
    found = await manager.commit_step(begun, EvidencePack([artifact_exists("a")]), snapshot="after")
    checkpoint = await manager.get_checkpoint(found)
    assert (checkpoint.verified, checkpoint.snapshot, checkpoint.duration_ms) == (True, "after", 0)
    assert await start().in_doubt("task") == ()


async def test_a_task_that_does_not_exist_has_nothing(start):
    manager = start()
    assert await manager.in_doubt("task") == ()
    assert await manager.restore("task") is None
    assert await manager.list_checkpoints("task") == []
    assert await manager.get_last_verified_checkpoint("task") is None
    assert await manager.delete_all("task") == 0


async def test_an_abandoned_step_is_not_in_doubt_and_cannot_be_committed(start):
    manager = start()
    gone, stays = [await manager.begin_step("task", kind, None) for kind in ("a", "b")]
    await manager.abandon_step(gone)
    for each in (manager, start()):
        assert [step.step_id for step in await each.in_doubt("task")] == [stays]
        with pytest.raises(StepNotStartedError, match="abandoned"):
            await each.commit_step(gone, None)
        with pytest.raises(StepNotStartedError):
            await each.abandon_step(gone)


async def test_the_same_work_begun_again_after_a_crash_takes_the_place_of_the_doubtful_one(start):
    manager = start()
    old = await manager.begin_step("task", "train", 1, "epoch-1")
    other = await manager.begin_step("task", "train", 1, "epoch-2")
    manager = start()
    new = await manager.begin_step("task", "train", 1, "epoch-1")
    assert [step.step_id for step in await start().in_doubt("task")] == [other, new]
    with pytest.raises(StepNotStartedError, match="started again"):
        await start().commit_step(old, None)
    assert await start().commit_step(new, None) == "task@train"


async def test_the_same_work_begun_twice_by_one_process_is_two_steps(start):
    manager = start()
    begun = [await manager.begin_step("task", "train", number) for number in range(3)]
    found = [await manager.commit_step(each, None) for each in reversed(begun)]
    assert len(set(found)) == 3
    assert [(await start().get_checkpoint(each)).snapshot for each in found] == [2, 1, 0]


async def test_a_step_is_committed_once(start):
    manager = start()
    begun = await manager.begin_step("task", "train", 1)
    found = await manager.commit_step(begun, None)
    for each in (manager, start()):
        with pytest.raises(StepNotStartedError, match="it was committed as 'task@train'"):
            await each.commit_step(begun, None)
    assert [step.id for step in await start().list_checkpoints("task")] == [found]


@pytest.mark.parametrize("step_id", ["task@[1]train", "task@nonsense", "nonsense", "", "@"])
async def test_a_step_that_was_never_begun_is_refused_and_leaves_no_trace(start, reopen, step_id):
    with pytest.raises((StepNotStartedError, SettingError)):
        await start().commit_step(step_id, None)
    assert await reopen().load_latest("task") is None


# --- evidence --------------------------------------------------------------------------------------------------------


async def test_a_step_whose_evidence_does_not_hold_is_not_committed_and_stays_begun(start, world):
    manager = start()
    begun = await manager.begin_step("task", "write", 1)
    pack = EvidencePack([artifact_exists("a")])
    with pytest.raises(EvidenceNotVerifiedError, match="0 of 1 claims hold") as refused:
        await manager.commit_step(begun, pack)
    assert refused.value.path == "write"
    assert await start().list_checkpoints("task") == []
    assert [step.step_id for step in await start().in_doubt("task")] == [begun]
    (world / "a").write_text("now")
    assert await start().commit_step(begun, pack) == "task@write"


async def test_facts_are_taken_from_the_world_when_the_step_is_committed(start, world):
    (world / "a").write_text("one")
    manager = start()
    found = await take_step(manager, pack=EvidencePack([file_sha256("a")]))
    (claim,) = (await start().get_checkpoint(found)).evidence_pack
    assert claim.is_captured
    assert len(claim.expected["sha256"]) == 64
    assert (await start().verify_checkpoint(found)).verified
    (world / "a").write_text("two")
    report = await start().verify_checkpoint(found)
    assert not report.verified
    assert "sha256 recorded" in report.verdicts[0].error


@pytest.mark.parametrize("pack", [None, NO_EVIDENCE, EvidencePack([], allow_partial=True)])
async def test_no_evidence_is_committed_and_is_never_verified(start, pack):
    manager = start()
    found = await take_step(manager, state=1, pack=pack)
    for each in (manager, start()):
        assert (await each.get_checkpoint(found)).verified is False
        report = await each.verify_checkpoint(found)
        assert (report.verified, report.outcome) == (False, "no_evidence")
        assert await each.get_last_verified_checkpoint("task") is None


async def test_a_pack_that_allows_failures_needs_one_claim_that_holds(start):
    pack = EvidencePack([artifact_exists("a"), artifact_exists("b")], require_all=False, allow_partial=True)
    with pytest.raises(EvidenceNotVerifiedError):
        await take_step(start(), pack=pack)


async def test_without_automatic_verification_a_false_claim_is_committed_and_not_verified(start, world):
    manager = start(auto_verify=False)
    found = await take_step(manager, state=1, pack=EvidencePack([artifact_exists("a"), file_sha256("b")]))
    checkpoint = await start().get_checkpoint(found)
    assert (checkpoint.verified, checkpoint.outcome) == (False, None)
    assert not (await start().verify_checkpoint(found)).verified
    assert await start().get_last_verified_checkpoint("task") is None


async def test_without_automatic_verification_facts_are_captured_all_the_same(start, world):
    (world / "a").write_text("one")
    found = await take_step(start(auto_verify=False), pack=EvidencePack([file_sha256("a")]))
    assert (await start().verify_checkpoint(found)).verified
    assert (await start().get_last_verified_checkpoint("task")).id == found


@pytest.mark.parametrize("pack", [[], {"path": "a"}, "pack"])
async def test_what_is_no_pack_is_refused(start, pack):
    with pytest.raises(EvidenceError, match="EvidencePack"):
        await take_step(start(), pack=pack)


async def test_relative_paths_are_taken_from_where_the_task_was_begun(reopen, tmp_path, monkeypatch):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "a").write_text("a")
    monkeypatch.chdir(tmp_path / "here")
    manager = CheckpointManager(reopen())
    monkeypatch.chdir(tmp_path / "there")
    found = await take_step(manager, pack=EvidencePack([file_sha256("a")]))
    assert (await CheckpointManager(reopen()).verify_checkpoint(found)).verified
    assert not (await CheckpointManager(reopen(), tmp_path / "there").verify_checkpoint(found)).verified


# --- ownership and failures ------------------------------------------------------------------------------------------


async def test_a_task_has_one_owner_and_many_readers(reopen, able):
    store = reopen()
    async with CheckpointManager(store) as first:
        found = await take_step(first, state=1)
        second = CheckpointManager(store)
        with pytest.raises(RunLockedError):
            await second.begin_step("task", "train", 2)
        with pytest.raises(RunLockedError):
            await second.rollback_to_checkpoint(found)
        assert (await second.get_checkpoint(found)).snapshot == 1
        assert (await second.restore("task")).snapshot == 1
        await take_step(second, "another task")
    await take_step(second, state=2)
    assert (await first.restore("task")).snapshot == 2


async def test_an_owner_that_was_robbed_cannot_save(reopen, able):
    store = reopen()
    manager = CheckpointManager(store)
    begun = await manager.begin_step("task", "train", 1)
    assert store.has(Ability.OWNERS)
    thief = reopen()
    await thief.acquire("task", take_over=True)
    before = [reference.sequence for reference in await thief.list_checkpoints("task")]
    with pytest.raises((FencedError, RunLockedError)):
        await manager.commit_step(begun, None)
    assert [reference.sequence for reference in await thief.list_checkpoints("task")] == before


async def test_steps_of_one_task_can_run_beside_one_another(start):
    manager = start()

    async def work(number):
        begun = await manager.begin_step("task", "fetch", number, f"page-{number}")
        await asyncio.sleep(0)
        return await manager.commit_step(begun, None, snapshot=number * 10)

    found = await asyncio.gather(*map(work, range(10)))
    steps = await start().list_checkpoints("task")
    assert {step.id for step in steps} == set(found)
    assert len({step.sequence for step in steps}) == 10
    assert [(await start().get_checkpoint(each)).snapshot for each in found] == [number * 10 for number in range(10)]


async def test_a_cancelled_commit_is_durable_or_not_and_the_task_goes_on(start):
    manager = start()
    begun = await manager.begin_step("task", "train", 1)
    for rounds in range(40):
        commit = asyncio.create_task(manager.commit_step(begun, None))
        for _ in range(rounds):
            await asyncio.sleep(0)
        commit.cancel()
        await asyncio.gather(commit, return_exceptions=True)
        if not await manager.in_doubt("task"):
            break
    else:
        await manager.commit_step(begun, None)
    assert (await start().restore("task")).snapshot == 1
    assert await start().in_doubt("task") == ()


async def test_what_cannot_be_recorded_is_refused_before_anything_is_saved(start, reopen):
    manager = start()
    with pytest.raises(EncodingError, match="snapshot.connection"):
        await manager.begin_step("task", "train", {"connection": object()})
    with pytest.raises(EncodingError, match="metadata"):
        await manager.begin_step("task", "train", None, metadata={"connection": object()})
    assert await reopen().load_latest("task") is None
    manager = start()
    begun = await manager.begin_step("task", "train", 1)
    with pytest.raises(EncodingError):
        await manager.commit_step(begun, None, snapshot=object())
    assert await manager.commit_step(begun, None) == "task@train"


async def test_after_a_save_whose_outcome_is_unknown_the_next_call_finds_out(able, reopen, world):
    store = reopen()

    class Unsure(type(store)):
        is_failing = False

        async def save(self, workflow_id, data):
            await super().save(workflow_id, data)
            if self.is_failing:
                raise OSError("the line went dead")

    store.__class__ = Unsure
    manager = CheckpointManager(store, world)
    begun = await manager.begin_step("task", "train", 1)
    store.is_failing = True
    with pytest.raises(CheckpointStorageError, match="the line went dead") as failed:
        await manager.commit_step(begun, None)
    assert failed.value.is_outcome_unknown
    store.is_failing = False
    with pytest.raises(StepNotStartedError, match="committed as 'task@train'"):
        await manager.commit_step(begun, None)
    await take_step(manager, state=2)
    assert len((await manager.restore("task")).completed) == 2


async def test_a_run_of_the_engine_is_no_task(reopen):
    @workflow
    def etl():
        yield step("fetch").python(str).checkpoint()

    store = MemoryCheckpointStore()
    await WorkflowEngine(store).run(etl, workflow_id="run")
    manager = CheckpointManager(store)
    for call in (
        manager.begin_step("run", "train", None),
        manager.restore("run"),
        manager.list_checkpoints("run"),
        manager.delete_all("run"),
        manager.get_checkpoint("run@fetch"),
    ):
        with pytest.raises(ForeignRecordError, match="workflow 'etl'"):
            await call
    assert (await store.load_latest("run")).status == "completed"
    assert await store.owner("run") is None


@pytest.mark.parametrize(
    ("task", "kind", "item"),
    [
        ("", "train", None),
        (" ", "train", None),
        ("a\0b", "train", None),
        ("x" * 201, "train", None),
        (5, "train", None),
        ("t", "", None),
        ("t", None, None),
        ("t", "k", 5),
    ],
)
async def test_a_name_that_is_none_is_refused_at_once(start, task, kind, item):
    with pytest.raises(SettingError, match="text|characters"):
        await start().begin_step(task, kind, None, item)


async def test_a_verifier_has_a_base_path_of_its_own(reopen, world):
    from flowckpt import EvidenceVerifier

    (world / "a").write_text("a")
    with pytest.raises(SettingError, match="verifier"):
        CheckpointManager(reopen(), world, verifier=EvidenceVerifier(world))
    manager = CheckpointManager(reopen(), verifier=EvidenceVerifier(world))
    assert await take_step(manager, pack=EvidencePack([artifact_exists("a")]))


# --- a program that a step runs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("auto_verify", [True, False])
async def test_the_exit_code_of_a_program_is_the_evidence_of_the_step_that_ran_it(start, auto_verify):
    manager = start(auto_verify=auto_verify)
    step_id = await manager.begin_step("task", "build", 1)
    output = await manager.run_command(["sh", "-c", "echo made; exit 3"])
    assert (output.exit_code, output.stdout) == (3, "made\n")
    if auto_verify:
        with pytest.raises(EvidenceNotVerifiedError, match="3"):
            await manager.commit_step(step_id, EvidencePack([command_exit(0)]))
    checkpoint_id = await manager.commit_step(step_id, EvidencePack([command_exit(3)]))
    assert await start().verify_checkpoint(checkpoint_id)


async def test_a_program_of_a_step_is_that_of_the_named_one_or_of_the_only_one(start):
    manager = start()
    with pytest.raises(SettingError, match="has begun 0 steps"):
        await manager.run_command(["true"])
    one, two = [await manager.begin_step("task", kind, None) for kind in ("build", "test")]
    with pytest.raises(SettingError, match="has begun 2 steps"):
        await manager.run_command(["true"])
    await manager.run_command(["false"], step_id=one)
    await manager.run_command(["true"], step_id=two)
    with pytest.raises(EvidenceNotVerifiedError):
        await manager.commit_step(one, EvidencePack([command_exit()]))
    assert await manager.verify_checkpoint(await manager.commit_step(two, EvidencePack([command_exit()])))
    with pytest.raises(StepNotStartedError):
        await manager.run_command(["true"], step_id=two)
    await manager.run_command(["true"])  # the other one is the only one again
    await manager.abandon_step(one)


async def test_a_manager_without_a_store_keeps_its_tasks_where_an_engine_keeps_its_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with CheckpointManager() as manager:
        await take_step(manager, state=7)
    assert manager.store.path == WorkflowEngine().store.path == tmp_path / ".flowckpt"
    assert (await CheckpointManager().restore("task")).snapshot == 7
