"""A failure that the workflow handled is history: a resume replays it, with what followed it, and moves no money."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowckpt import MemoryCheckpointStore, WorkflowEngine, WorkflowResult, parallel, step, workflow
from flowckpt.core.records import Status
from flowckpt.engine import RunOptions
from flowckpt.engine.rules.plan import Decision
from flowckpt.errors import StepFailedError

ledger: list[str] = []
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _new_world() -> None:
    ledger.clear()
    broken.clear()


def act(name: str) -> str:
    if name in broken:
        ledger.append(f"{name} failed")
        raise OSError(f"{name} is broken")
    ledger.append(name)
    return name


def made(name: str) -> Any:
    return step(name).python(act, name).checkpoint()


@workflow("transfer")
def transfer() -> Generator[Any, Any, str]:
    yield made("withdraw")
    try:
        yield made("deposit")
    except StepFailedError:
        yield made("refund")
        raise
    return "transferred"


@workflow("transfer")
def mended() -> Generator[Any, Any, str]:
    yield made("withdraw")
    try:
        yield made("deposit")
    except StepFailedError:
        yield made("refund")
        return "refunded"
    return "transferred"


@workflow("parent")
def parent() -> Generator[Any, Any, Any]:
    return (yield step("inner").workflow(transfer))


@workflow("cleaning")
def cleaning() -> Generator[Any, Any, Any]:
    yield made("withdraw")
    try:
        yield made("deposit")
    finally:
        yield made("refund")


@workflow("members")
def members() -> Generator[Any, Any, Any]:
    try:
        yield step("all").map(act, ["x", "deposit"], key=str)
    except StepFailedError:
        yield made("refund")
        raise


def engine_after(flow: Any) -> WorkflowEngine:
    engine = WorkflowEngine(MemoryCheckpointStore())
    broken.add("deposit")
    assert engine.run_sync(flow, workflow_id="run").status is Status.FAILED
    return engine


@pytest.mark.parametrize("flow", [transfer, parent, cleaning, members], ids=lambda flow: flow.name)
def test_what_was_refunded_is_not_deposited_by_a_resume(flow):
    engine = engine_after(flow)
    before = [*ledger]
    broken.clear()
    plan = engine.plan_sync(flow, workflow_id="run")
    assert {each.decision for each in plan.steps} == {Decision.REUSE}
    assert plan.handled is not None
    result = engine.resume_sync(flow, workflow_id="run")
    assert ledger == before
    assert (result.status, result.attempt) == (Status.FAILED, 1)
    assert result.handled == plan.handled
    assert "deposit" in result.handled.path
    assert result.handled.followed_by[0].endswith("refund")


def test_the_step_is_tried_again_where_somebody_says_so():
    engine = engine_after(transfer)
    broken.clear()
    result = engine.resume_sync(transfer, workflow_id="run", options=RunOptions(from_step="deposit"))
    assert result.output == "transferred"
    assert ledger == ["withdraw", "deposit failed", "refund", "deposit"]


def test_mended_code_goes_another_way_from_the_same_history():
    engine = engine_after(transfer)
    broken.clear()
    result = engine.resume_sync(mended, workflow_id="run")
    assert result.output == "refunded"
    assert ledger == ["withdraw", "deposit failed", "refund"]


def test_a_handler_that_fails_is_tried_again_and_the_failure_before_it_is_not():
    engine = WorkflowEngine(MemoryCheckpointStore())
    broken.update(["deposit", "refund"])
    assert engine.run_sync(transfer, workflow_id="run").handled is None
    broken.clear()
    result = engine.resume_sync(transfer, workflow_id="run")
    assert (result.status, result.handled.path) == (Status.FAILED, "deposit")
    assert ledger == ["withdraw", "deposit failed", "refund failed", "refund"]


def test_a_failure_that_ended_the_run_directly_is_tried_again():
    @workflow
    def direct() -> Generator[Any, Any, str]:
        yield made("withdraw")
        yield made("deposit")
        return "transferred"

    engine = engine_after(direct)
    broken.clear()
    assert engine.resume_sync(direct, workflow_id="run").output == "transferred"
