"""A finished run is a program like any other: an edit of its workflow is seen, planned and run.

The oracle is a clean run of the edited code, and a ledger of what the steps did.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, WorkflowEngine, WorkflowResult, in_sync, step, workflow
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import Status
from flowckpt.engine import RunOptions
from flowckpt.engine.rules.plan import Decision, ResumePlan
from flowckpt.errors import WorkflowChangedError

ledger: list[str] = []
Body = Callable[[], Generator[Any, Any, Any]]


@pytest.fixture(autouse=True)
def _empty_ledger() -> None:
    ledger.clear()


def act(name: str) -> str:
    ledger.append(name)
    return name.upper()


def made(name: str) -> Any:
    return step(name).python(act, name).checkpoint()


def named(body: Body) -> Workflow[Any, Any]:
    return workflow("finished")(body)


def first() -> Generator[Any, Any, Any]:
    a = yield made("a")
    b = yield made("b")
    return [a, b]


def appended() -> Generator[Any, Any, Any]:
    a = yield made("a")
    b = yield made("b")
    yield made("c")
    return [a, b]


def renamed() -> Generator[Any, Any, Any]:
    a = yield made("a")
    b = yield made("c")
    return [a, b]


def inserted() -> Generator[Any, Any, Any]:
    a = yield made("a")
    yield made("c")
    b = yield made("b")
    return [a, b]


def shortened() -> Generator[Any, Any, Any]:
    a = yield made("a")
    return [a]


def returning() -> Generator[Any, Any, Any]:
    a = yield made("a")
    b = yield made("b")
    return [b, a]


def raising() -> Generator[Any, Any, Any]:
    yield made("a")
    yield made("b")
    raise ValueError("checked at last")


def parent(*names: str) -> Body:
    def inner() -> Generator[Any, Any, Any]:
        outputs = []
        for name in names:
            outputs.append((yield made(name)))
        return outputs[:2]

    def outer() -> Generator[Any, Any, Any]:
        return (yield step("inner").workflow(named(inner)))

    return outer


class Finished:
    """A finished run, and what its plan and its resume make of edited code."""

    def __init__(self, store: Any, body: Body = first) -> None:
        self.engine = WorkflowEngine(store)
        assert self.engine.run_sync(named(body), workflow_id="run").status is Status.COMPLETED
        ledger.clear()

    def plan(self, body: Body) -> ResumePlan:
        return in_sync(self.engine).plan(named(body), workflow_id="run")

    def resume(self, body: Body, **options: Any) -> WorkflowResult:
        return self.engine.resume_sync(named(body), workflow_id="run", options=RunOptions(**options))


def clean(body: Body) -> Any:
    """What a clean run returns; the ledger is left as it was."""
    before = [*ledger]
    output = WorkflowEngine(MemoryCheckpointStore()).run_sync(named(body)).unwrap()
    ledger[:] = before
    return output


@pytest.fixture(params=["memory", "file"])
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> Finished:
    return Finished(MemoryCheckpointStore() if request.param == "memory" else FileCheckpointStore(tmp_path))


def decisions(plan: ResumePlan) -> dict[str, Decision]:
    return {each.path: each.decision for each in plan.steps}


def test_unchanged_code_has_nothing_to_run(finished):
    assert finished.plan(first).is_nothing_to_do
    result = finished.resume(first)
    assert (result.output, result.attempt, ledger) == (clean(first), 1, [])


def test_a_step_added_at_the_end_is_new_and_runs(finished):
    plan = finished.plan(appended)
    assert decisions(plan) == {"a": Decision.REUSE, "b": Decision.REUSE, "c": Decision.NEW}
    assert not plan.is_nothing_to_do
    assert finished.resume(appended).output == clean(appended)
    assert ledger == ["c"]
    assert finished.plan(appended).is_nothing_to_do
    assert finished.resume(appended).output == clean(appended)
    assert ledger == ["c"]


@pytest.mark.parametrize("body", [renamed, inserted, shortened])
def test_a_missing_step_stops_the_resume(finished, body):
    plan = finished.plan(body)
    assert decisions(plan)["b"] is Decision.ORPHANED
    assert plan.stops
    with pytest.raises(WorkflowChangedError):
        finished.resume(body)
    assert ledger == []
    assert finished.resume(body, force=True).output == clean(body)
    assert ledger == {renamed: ["c"], inserted: ["c", "b"], shortened: []}[body]


def test_another_return_value_is_seen_and_returned(finished):
    plan = finished.plan(returning)
    assert not plan.is_nothing_to_do
    assert "returns" in plan.ends_otherwise
    result = finished.resume(returning)
    assert (result.output, ledger) == (clean(returning), [])
    assert finished.plan(returning).is_nothing_to_do
    assert finished.resume(returning).attempt == result.attempt


def test_an_error_after_the_last_step_fails_the_run(finished):
    plan = finished.plan(raising)
    assert not plan.is_nothing_to_do
    assert "checked at last" in plan.ends_otherwise
    assert finished.resume(raising).status is Status.FAILED
    assert ledger == []


def test_a_step_added_to_a_child_is_seen(tmp_path):
    finished = Finished(FileCheckpointStore(tmp_path), parent("a", "b"))
    plan = finished.plan(parent("a", "b", "c"))
    assert decisions(plan)["inner/c"] is Decision.NEW
    assert finished.resume(parent("a", "b", "c")).output == clean(parent("a", "b", "c"))
    assert ledger == ["c"]


def test_an_ephemeral_step_of_an_unchanged_run_leaves_no_new_attempt(finished):
    def using() -> Generator[Any, Any, Any]:
        a = yield made("a")
        b = yield made("b")
        model = yield step("model").python(act, "model").ephemeral()
        return [a, b, model.lower()][:2]

    result = finished.resume(using)
    assert (result.output, result.attempt, ledger) == (clean(first), 1, ["model"])
