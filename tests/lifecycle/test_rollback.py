"""Going back: an earlier checkpoint becomes the one to resume from, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import workshop
from workshop import latest, paths, ran, shop, superseded, world

from flowckpt import CheckpointManager, RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.core.records import Reason, Status
from flowckpt.errors import CheckpointNotFoundError, InputError, RunLockedError, StaleCheckpointError, StepInDoubtError
from flowckpt.evidence import claims, predicate

Reopen = Callable[[], Any]


def test_a_resume_goes_on_from_the_checkpoint_that_the_run_went_back_to(reopen: Reopen) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    done = in_sync(WorkflowEngine(reopen())).rollback("run", "rent")
    assert (done.checkpoint_id, done.sequence, done.steps) == ("rent", 3, 2)
    assert done.dropped == ("clean", "pay", "report")
    assert done.is_new
    data = latest(reopen())
    assert (data.reason, data.status, data.output, data.error) == (Reason.MANUAL, Status.SUSPENDED, None, None)
    assert data.metadata["rolled_back_to"] == {"checkpoint_id": "rent", "sequence": 3}
    assert data.evidence[0]["path"] == "fetch"
    assert data.evidence[0]["outcome"] == "verified"
    assert paths(reopen()) == ["fetch", "rent"]
    ran.clear()
    resumed = WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run", options=RunOptions(force=True))
    assert resumed.status == "completed"
    assert resumed.output == "3 names, paid 7"
    assert ran == ["clean", "pay 7", "report"]
    assert superseded(reopen()) == []


def test_a_payment_that_was_dropped_is_not_repeated_without_a_word(reopen: Reopen) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    in_sync(WorkflowEngine(reopen())).rollback("run", "fetch")
    assert superseded(reopen()) == ["rent", "pay"]
    ran.clear()
    stopped = WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run")
    assert isinstance(stopped.error, StepInDoubtError)
    assert ran == ["give back machine-3", "rent", "clean"]
    ran.clear()
    with pytest.raises(StepInDoubtError):
        WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run")
    assert ran == []


def test_it_is_refused_when_what_was_verified_has_moved_since(reopen: Reopen) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    before = latest(reopen())
    Path("raw.csv").unlink()
    with pytest.raises(StaleCheckpointError, match="raw.csv does not exist") as refused:
        in_sync(WorkflowEngine(reopen())).rollback("run", "rent")
    assert refused.value.reasons == {"fetch": ("raw.csv does not exist",)}
    assert latest(reopen()) == before
    # Before that step, nothing is claimed.
    assert in_sync(WorkflowEngine(reopen())).rollback("run", "@started").steps == 0
    assert asyncio.run(reopen().load_attempt("run", 1)).step_results == before.step_results


def test_what_nobody_can_check_is_no_yes(reopen: Reopen, monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow("asks")
    def asks() -> Any:
        yield step("ask").python(abs, 1).evidence(predicate(_is_fine)).checkpoint()
        yield step("more").python(abs, 2).checkpoint()

    WorkflowEngine(reopen()).run_sync(asks, workflow_id="run")
    monkeypatch.setattr(claims, "_FUNCTIONS", {})  # as in a new process
    with pytest.raises(StaleCheckpointError, match="ask"):
        in_sync(WorkflowEngine(reopen())).rollback("run", "ask")
    assert in_sync(WorkflowEngine(reopen())).rollback("run", "ask", workflow=asks).steps == 1


def _is_fine() -> bool:
    return True


def test_doing_it_again_changes_nothing(reopen: Reopen) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    first = in_sync(WorkflowEngine(reopen())).rollback("run", "fetch")
    before = latest(reopen())
    second = in_sync(WorkflowEngine(reopen())).rollback("run", "fetch")
    assert (second.is_new, second.steps, second.attempt) == (False, first.steps, first.attempt)
    assert latest(reopen()) == before


def test_back_to_the_newest_checkpoint_is_where_it_stands(reopen: Reopen) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    before = latest(reopen())
    assert not in_sync(WorkflowEngine(reopen())).rollback("run", "@completed").is_new
    assert latest(reopen()) == before


def test_a_sequence_finds_a_checkpoint_whose_id_was_used_again(reopen: Reopen) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    references = asyncio.run(reopen().list_checkpoints("run"))
    first, newest = sorted(each.sequence for each in references if each.checkpoint_id == "work")
    assert in_sync(WorkflowEngine(reopen())).rollback("run", "work").steps == 5
    done = in_sync(WorkflowEngine(reopen())).rollback("run", str(first))
    assert (done.checkpoint_id, done.sequence, done.steps) == ("work", first, 3)
    for unknown in (str(newest), "999", "nothing", "9" * 5000):
        with pytest.raises(CheckpointNotFoundError):
            in_sync(WorkflowEngine(reopen())).rollback("run", unknown)


def test_a_run_that_failed_goes_on_before_the_step_that_failed(reopen: Reopen) -> None:
    world["fails"] = True
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    assert not in_sync(WorkflowEngine(reopen())).rollback("run", "@failed").is_new
    in_sync(WorkflowEngine(reopen())).rollback("run", "pay")
    WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run")
    world["fails"] = False
    done = in_sync(WorkflowEngine(reopen())).rollback("run", "pay")  # the failure of attempt 3 is left behind
    assert done.dropped == ("report",)
    ran.clear()
    assert WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run").output == "3 names, paid 7"
    assert ran == ["report"]


def test_back_to_a_failure_that_a_later_attempt_overcame(reopen: Reopen) -> None:
    world["fails"] = True
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run", options=RunOptions(force=True))
    found = {each.checkpoint_id for each in asyncio.run(reopen().list_checkpoints("run"))}
    assert "@failed.2" in found
    world["fails"] = False
    ran.clear()
    in_sync(WorkflowEngine(reopen())).rollback("run", "@started.2")
    assert WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run").status == "completed"
    assert ran == ["report"]


def test_a_step_in_doubt_stays_in_doubt(reopen: Reopen) -> None:
    class Died(BaseException):
        pass

    store = reopen()
    plain = store.save

    async def save(workflow_id: str, data: Any) -> None:
        if data.checkpoint_id == "pay":
            raise Died
        await plain(workflow_id, data)

    store.save = save
    with pytest.raises(Died):
        WorkflowEngine(store).run_sync(shop, workflow_id="run")
    del store.save
    assert latest(reopen()).in_flight == ("pay",)
    in_sync(WorkflowEngine(reopen())).rollback("run", "fetch")
    assert latest(reopen()).in_flight == ("pay",)
    ran.clear()
    stopped = WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run")
    assert isinstance(stopped.error, StepInDoubtError)
    assert "pay 7" not in ran


def test_what_was_left_behind_is_not_found_again_by_reuse(reopen: Reopen) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    in_sync(WorkflowEngine(reopen())).rollback("run", "rent")
    ran.clear()
    options = RunOptions(reuse="inputs", force=True)
    WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run", options=options)
    assert ran == ["clean", "pay 7", "report"]


def test_a_run_that_somebody_owns_is_left_alone(reopen: Reopen) -> None:
    store = reopen()
    WorkflowEngine(store).run_sync(shop, workflow_id="run")
    asyncio.run(store.acquire("run"))
    with pytest.raises(RunLockedError):
        in_sync(WorkflowEngine(store)).rollback("run", "fetch")
    asyncio.run(store.release("run"))
    assert in_sync(WorkflowEngine(store)).rollback("run", "fetch").is_new


def test_what_is_no_run_of_a_workflow_is_refused(reopen: Reopen) -> None:
    store = reopen()

    async def task() -> None:
        manager = CheckpointManager(store)
        await manager.commit_step(await manager.begin_step("task", "work", {"n": 1}), None)
        close = getattr(manager, "close", None)
        if close is not None:
            found = close()
            if found is not None:
                await found

    asyncio.run(task())
    with pytest.raises(InputError, match="CheckpointManager"):
        in_sync(WorkflowEngine(reopen())).rollback("task", "work")
    with pytest.raises(InputError, match="CheckpointManager"):
        in_sync(WorkflowEngine(reopen())).fork("task")
    with pytest.raises(CheckpointNotFoundError):
        in_sync(WorkflowEngine(reopen())).rollback("nobody", "work")


async def test_it_works_in_a_loop(reopen: Reopen) -> None:
    engine = WorkflowEngine(reopen())
    await engine.run(shop, workflow_id="run")
    assert (await engine.rollback("run", "fetch")).steps == 1
    assert [each.path for each in (await engine.store.load_latest("run")).step_results] == ["fetch"]
    assert workshop.PATHS[0] == "fetch"
