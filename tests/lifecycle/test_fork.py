"""A fork: a new run from another's history, with edits; the other one is only read."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workshop import Rows, latest, paths, ran, shop, superseded, world

from flowckpt import FileCheckpointStore, RunOptions, WorkflowEngine, in_sync, step, workflow
from flowckpt.core.records import Reason, Status
from flowckpt.core.system.filesystem import PosixFileSystem
from flowckpt.errors import (
    CheckpointNotFoundError,
    EncodingError,
    InputError,
    RunExistsError,
    StaleCheckpointError,
    StaleStepError,
    StepInDoubtError,
    StepNotFoundError,
    WorkflowChangedError,
)

Reopen = Callable[[], Any]


def started(reopen: Reopen) -> WorkflowEngine:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    ran.clear()
    return WorkflowEngine(reopen())


def resumed(reopen: Reopen, run: str = "new", **options: Any) -> Any:
    return WorkflowEngine(reopen()).resume_sync(shop, workflow_id=run, options=RunOptions(**options))


def test_it_begins_with_the_results_before_a_step(reopen: Reopen) -> None:
    before = latest(started(reopen).store)
    made = in_sync(WorkflowEngine(reopen())).fork("run", new_id="new", from_step="report")
    assert (made.workflow_id, made.source_id, made.steps, made.dropped) == ("new", "run", 4, ("report",))
    data = latest(reopen(), "new")
    assert (data.sequence, data.attempt, data.reason, data.status) == (1, 1, Reason.MANUAL, Status.SUSPENDED)
    assert data.metadata["forked_from"] == {"workflow_id": "run", "checkpoint_id": "@completed", "sequence": 8}
    assert {each.attempt for each in data.step_results} == {0}
    assert resumed(reopen).output == "3 names, paid 7"
    assert ran == ["report"]
    assert latest(reopen(), "run") == before


def test_without_anything_it_is_the_same_run_again(reopen: Reopen) -> None:
    in_sync(started(reopen)).fork("run", new_id="new")
    result = resumed(reopen)
    assert (result.output, result.steps.restored, ran) == ("3 names, paid 7", 5, [])
    made = in_sync(WorkflowEngine(reopen())).fork("new")
    assert len(made.workflow_id) == 26
    assert made.source_id == "new"


def test_an_output_is_replaced_and_what_came_after_it_is_dropped(reopen: Reopen) -> None:
    made = in_sync(started(reopen)).fork("run", new_id="new", outputs={"clean": ["a", "b"]}, workflow=shop)
    assert (made.edited, made.dropped, made.steps) == (("clean",), ("pay", "report"), 3)
    edited = latest(reopen(), "new").step_results[-1]
    assert (edited.output, edited.marks, edited.started_at, edited.evidence) == (["a", "b"], ("edited",), None, None)
    assert resumed(reopen, force=True).output == "2 names, paid 7"
    assert ran == ["pay 7", "report"]


def test_an_output_has_the_type_of_its_step(reopen: Reopen) -> None:
    engine = started(reopen)
    rows = Rows(("one",), Path("other.csv"))
    in_sync(engine).fork("run", new_id="new", outputs={"fetch": rows}, workflow=shop)
    assert resumed(reopen, force=True).output == "1 names, paid 7"
    with pytest.raises(EncodingError):
        in_sync(engine).fork("run", new_id="other", outputs={"fetch": {"names": 3}}, workflow=shop)
    assert latest(reopen(), "other") is None


def test_several_edits_stand_side_by_side(reopen: Reopen) -> None:
    engine = started(reopen)
    in_sync(engine).fork("run", new_id="new", outputs={"pay": "paid by hand", "clean": ["a"]}, workflow=shop)
    assert paths(reopen(), "new") == ["fetch", "rent", "clean", "pay"]
    assert latest(reopen(), "new").step_results[3].marks == ("edited", "at_most_once")
    assert resumed(reopen).output == "1 names, paid by hand"
    assert ran == ["report"]
    with pytest.raises(InputError, match="'pay' is between"):
        in_sync(WorkflowEngine(reopen())).fork("run", outputs={"clean": [], "report": ""}, workflow=shop)
    with pytest.raises(InputError, match="does not fit the edits"):
        in_sync(WorkflowEngine(reopen())).fork("run", outputs={"clean": []}, from_step="report", workflow=shop)
    fits = in_sync(WorkflowEngine(reopen())).fork("run", outputs={"clean": []}, from_step="pay", workflow=shop)
    assert fits.steps == 3


def test_inputs_change_and_the_resume_runs_what_depends_on_them(reopen: Reopen) -> None:
    made = in_sync(started(reopen)).fork("run", new_id="new", inputs={"limit": 5}, workflow=shop)
    assert made.inputs == {"limit": ("3", "5")}
    assert made.steps == 5
    data = latest(reopen(), "new")
    assert data.inputs == {"limit": 5, "price": 7}
    assert data.inputs_hash != latest(reopen(), "run").inputs_hash
    stopped = resumed(reopen)
    assert isinstance(stopped.error, StepInDoubtError), "the payment has the same arguments: it was done by the source"
    assert ran == ["fetch", "rent", "clean"], "and the source's machine was not given back"
    assert resumed(reopen, force=True).output == "5 names, paid 7"


def test_a_payment_of_another_amount_is_another_payment_if_a_person_says_so(reopen: Reopen) -> None:
    in_sync(started(reopen)).fork("run", new_id="new", inputs={"price": 9}, workflow=shop)
    with pytest.raises(StaleStepError, match="count: 7 → 9"):
        resumed(reopen)
    assert ran == []
    assert resumed(reopen, on_stale="rerun").output == "3 names, paid 9"
    assert ran == ["pay 9", "report"]


def test_a_payment_behind_the_place_of_the_fork_is_asked_about(reopen: Reopen) -> None:
    in_sync(started(reopen)).fork("run", new_id="new", from_step="clean")
    assert superseded(reopen(), "new") == ["pay"]
    assert isinstance(resumed(reopen).error, StepInDoubtError)
    assert ran == ["clean"]


def test_what_the_source_rented_is_not_given_back_by_its_fork(reopen: Reopen) -> None:
    in_sync(started(reopen)).fork("run", new_id="new", from_step="rent")
    resumed(reopen, force=True)
    assert ran == ["rent", "clean", "pay 7", "report"]
    ran.clear()
    resumed(reopen, from_step="rent", force=True)
    assert ran[:2] == ["give back machine-3", "rent"], "its own it does give back"
    other = in_sync(WorkflowEngine(reopen())).fork("run", outputs={"rent": "mine"}, workflow=shop).workflow_id
    ran.clear()
    resumed(reopen, other, from_step="rent", force=True)
    assert "give back mine" not in ran


def test_an_edit_that_a_resume_would_drop_is_refused(reopen: Reopen) -> None:
    with pytest.raises(InputError, match="'fetch' is before an edited one and would run again: arguments: limit"):
        in_sync(started(reopen)).fork("run", outputs={"clean": []}, inputs={"limit": 5}, workflow=shop)
    fits = in_sync(WorkflowEngine(reopen())).fork(
        "run", new_id="new", outputs={"clean": ["a"]}, inputs={"price": 9}, workflow=shop
    )
    assert fits.edited == ("clean",)
    assert resumed(reopen, on_stale="rerun").output == "1 names, paid 9"


def test_a_failed_run_is_forked_before_its_failure_or_with_an_output_in_its_place(reopen: Reopen) -> None:
    world["fails"] = True
    engine = started(reopen)
    assert in_sync(engine).fork("run", new_id="new").dropped == ("report",)
    assert paths(reopen(), "new") == ["fetch", "rent", "clean", "pay"]
    in_sync(engine).fork("run", new_id="other", outputs={"report": "written by hand"}, workflow=shop)
    assert resumed(reopen, "other").output == "written by hand"
    assert ran == []


def test_a_live_run_can_be_forked_and_its_step_in_doubt_stays_one(reopen: Reopen) -> None:
    store = reopen()

    def fork_the_live_run() -> str:
        made: str = in_sync(WorkflowEngine(store)).fork("run", new_id="new").workflow_id
        return made

    @workflow("forking")
    def forking() -> Any:
        yield step("a").python(abs, -1).checkpoint()
        return (yield step("b").python(fork_the_live_run).at_most_once())

    assert asyncio.run(WorkflowEngine(store).run(forking, workflow_id="run")).output == "new"
    data = latest(store, "new")
    assert data.in_flight == ("b",)
    assert [each.path for each in data.step_results] == ["a"]


def test_results_that_are_no_longer_true_are_not_taken_over(reopen: Reopen) -> None:
    engine = started(reopen)
    Path("raw.csv").write_text("something else")
    with pytest.raises(StaleCheckpointError, match="Fork before it: 'flowckpt fork run --from fetch'"):
        in_sync(engine).fork("run", new_id="new")
    assert latest(reopen(), "new") is None
    assert in_sync(engine).fork("run", new_id="new", from_step="fetch").steps == 0
    with pytest.raises(StaleCheckpointError):
        in_sync(engine).fork("run", new_id="other", outputs={"clean": []}, workflow=shop)
    assert in_sync(engine).fork("run", outputs={"fetch": Rows((), Path())}, workflow=shop).steps == 1


def test_the_same_fork_again_is_the_same_run_and_another_is_refused(reopen: Reopen) -> None:
    engine = started(reopen)
    assert in_sync(engine).fork("run", new_id="new", from_step="pay").is_new
    before = latest(reopen(), "new")
    assert not in_sync(WorkflowEngine(reopen())).fork("run", new_id="new", from_step="pay").is_new
    assert latest(reopen(), "new") == before
    for how in ({"from_step": "clean"}, {"inputs": {"limit": 4}, "workflow": shop}, {}):
        with pytest.raises(RunExistsError):
            in_sync(WorkflowEngine(reopen())).fork("run", new_id="new", **how)
    with pytest.raises(RunExistsError):
        in_sync(WorkflowEngine(reopen())).fork("run", new_id="run")
    resumed(reopen, force=True)
    with pytest.raises(RunExistsError):
        in_sync(WorkflowEngine(reopen())).fork("run", new_id="new", from_step="pay")


def test_what_cannot_be_is_said(reopen: Reopen) -> None:
    engine = started(reopen)
    with pytest.raises(CheckpointNotFoundError):
        in_sync(engine).fork("nobody")
    with pytest.raises(StepNotFoundError):
        in_sync(engine).fork("run", from_step="nothing")
    with pytest.raises(StepNotFoundError):
        in_sync(engine).fork("run", outputs={"nothing": 1}, workflow=shop)
    with pytest.raises(InputError, match="need the workflow"):
        in_sync(engine).fork("run", outputs={"clean": []})
    with pytest.raises(InputError):
        in_sync(engine).fork("run", inputs={"unknown": 1}, workflow=shop)

    @workflow("another")
    def another() -> Any:
        yield step("a").python(abs, 1)

    with pytest.raises(WorkflowChangedError):
        in_sync(engine).fork("run", outputs={"clean": []}, workflow=another)
    assert [each.workflow_id for each in asyncio.run(reopen().list_runs())] == ["run"]


def opened() -> list[int]:
    return [1, 2]


def total(numbers: list[int]) -> int:
    return sum(numbers)


def test_a_step_behind_one_that_is_never_recorded(reopen: Reopen) -> None:
    @workflow("uses")
    def uses() -> Any:
        numbers = yield step("open").python(opened).ephemeral()
        found = yield step("total").python(total, numbers).checkpoint()
        many = yield step("more").python(abs, found).checkpoint()
        if numbers[0] > 1:
            yield step("never").python(abs, 1)
        return (yield step("last").python(abs, many).checkpoint())

    WorkflowEngine(reopen()).run_sync(uses, workflow_id="run")
    engine = WorkflowEngine(reopen())
    in_sync(engine).fork("run", new_id="new", outputs={"more": 10}, workflow=uses)
    assert WorkflowEngine(reopen()).resume_sync(uses, workflow_id="new").output == 10
    with pytest.raises(InputError, match="needs the output of 'open'"):
        in_sync(engine).fork("run", outputs={"last": 10}, workflow=uses)


def test_large_values_are_shared_and_outlive_their_source(reopen: Reopen, tmp_path: Path) -> None:
    @workflow("large")
    def large(text: str = "y" * 100_000) -> Any:
        big = yield step("big").python(_large).checkpoint()
        return (yield step("size").python(len, big).checkpoint())

    WorkflowEngine(reopen()).run_sync(large, workflow_id="run")
    in_sync(WorkflowEngine(reopen())).fork("run", new_id="new", from_step="size")
    files = list(tmp_path.glob("store/runs/*/blobs/*"))
    assert len({file.stat().st_ino for file in files}) == len({file.name for file in files}) == len(files) // 2
    asyncio.run(reopen().clear("run"))
    data = latest(reopen(), "new")
    assert data.step_results[0].output == _large()
    assert data.inputs == {"text": "y" * 100_000}
    assert WorkflowEngine(reopen()).resume_sync(large, workflow_id="new").output == 200_000


def _large() -> str:
    return "x" * 200_000


def test_large_values_that_cannot_be_shared_are_copied(tmp_path: Path) -> None:
    @workflow("large")
    def large() -> Any:
        yield step("big").python(_large).checkpoint()

    class NoLinks(PosixFileSystem):
        def link_into(self, parent: int, other: int, name: str) -> None:
            raise OSError(errno.EXDEV, "no")

    WorkflowEngine(FileCheckpointStore(tmp_path / "store")).run_sync(large, workflow_id="run")
    in_sync(WorkflowEngine(FileCheckpointStore(tmp_path / "store", filesystem=NoLinks()))).fork("run", new_id="new")
    files = list(tmp_path.glob("store/runs/*/blobs/*"))
    assert len(files) == 2
    assert files[0].read_bytes() == files[1].read_bytes()
    in_sync(WorkflowEngine(FileCheckpointStore(tmp_path / "store"))).fork("run", new_id="third", from_step="big")
