"""`.rollback(fn)` with the step's arguments by name, and failures that are final."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, WorkflowEngine, parallel, step, workflow
from flowckpt.errors import FinalError, RunFinalError, StepDefinitionError

undone: list[Any] = []
calls: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    undone.clear()
    calls.clear()


def charge(account: str, amount: int = 7) -> str:
    return f"{amount} from {account}"


def refund(receipt: str, amount: int, *, account: str, note: str = "sorry") -> None:
    undone.append((receipt, amount, account, note))


def wants_more(receipt: str, currency: str) -> None: ...


@workflow
def child(account: str) -> Generator[Any, Any, str]:
    return (yield step("inner").python(charge, account))


def close(output: str, account: str) -> None:
    undone.append((output, account))


@workflow
def paying(then: str = "fails") -> Generator[Any, Any, None]:
    yield step("one").python(charge, "ann").rollback(refund).checkpoint()
    yield step("two").rollback(refund).python(charge, account="bob", amount=2)
    yield step("each").map(charge, ["cid", "dan"]).rollback(refund)
    yield step("child").workflow(child, account="eve").rollback(close).checkpoint()
    if then == "fails":
        raise KeyError("end")
    yield step("ask").wait("go")


WHOLE = [
    ("7 from eve", "eve"),
    ("7 from dan", 7, "dan", "sorry"),
    ("7 from cid", 7, "cid", "sorry"),
    ("2 from bob", 2, "bob", "sorry"),
    ("7 from ann", 7, "ann", "sorry"),
]


def test_it_gets_the_output_and_the_arguments_it_names() -> None:
    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(paying)
    assert not result.rollback_failures
    assert sorted(undone, key=str) == sorted(WHOLE, key=str)  # members of a map may end in any order


def test_so_does_that_of_restored_steps(reopen: Callable[[], Any]) -> None:
    WorkflowEngine(reopen()).run_sync(paying, workflow_id="run", then="waits")
    WorkflowEngine(reopen()).cancel_sync("run", workflow=paying)
    assert sorted(undone, key=str) == sorted(WHOLE, key=str)  # members of a map may end in any order


@pytest.mark.parametrize(
    "made",
    [
        step("a").python(charge, "ann").rollback(wants_more),
        step("a").rollback(wants_more).map(charge, ["ann"]),
        step("a").command(["true"]).rollback(close),
        step("a").workflow(child, account="x").rollback(wants_more),
    ],
    ids=["python", "map", "command", "child"],
)
def test_a_name_that_no_argument_has_is_refused_before_the_step_runs(made: Any) -> None:
    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield made

    result = WorkflowEngine(MemoryCheckpointStore()).run_sync(flow)
    assert isinstance(result.error, StepDefinitionError)
    assert "wants the argument" in result.error.message and result.steps.executed == 0


def test_a_function_without_a_place_for_the_output_is_refused() -> None:
    with pytest.raises(StepDefinitionError, match="needs a function of the recorded output"):
        step("a").python(charge, "ann").rollback(lambda: None)


# --- failures that are final -------------------------------------------------------------------------------------------


class WithdrawnError(FinalError):
    pass


def withdrawn(times: int = 1) -> str:
    calls.append(times)
    raise WithdrawnError("the order was withdrawn")


@workflow
def ordering() -> Generator[Any, Any, Any]:
    yield step("one").python(charge, "ann").rollback(refund).checkpoint()
    return (yield step("ship").python(withdrawn).retry(9))


@workflow
def in_itself() -> Generator[Any, Any, Any]:
    yield step("one").python(charge, "ann").checkpoint()
    raise WithdrawnError("the order was withdrawn")


@workflow
def in_a_group() -> Generator[Any, Any, Any]:
    yield parallel(step("ship").python(withdrawn), step("one").python(charge, "ann"))


@pytest.mark.parametrize("what", [ordering, in_itself, in_a_group], ids=lambda w: w.name)
def test_a_final_failure_is_neither_retried_nor_resumed(what: Any, reopen: Callable[[], Any]) -> None:
    assert WorkflowEngine(reopen()).run_sync(what, workflow_id="run").status == "failed"
    assert len(calls) <= 1
    engine = WorkflowEngine(reopen())
    for how in ({}, {"force": True}, {"on_stale": "rerun"}):
        with pytest.raises(RunFinalError, match="its failure is final: .*WithdrawnError: the order was withdrawn"):
            engine.resume_sync(what, workflow_id="run", options=RunOptions(**how))
    plan = engine.plan_sync(what, workflow_id="run")
    assert plan.is_final and "final" in plan.stops
    with pytest.raises(RunFinalError):
        engine.run_sync(what, workflow_id="run", if_exists="resume")
    assert engine.run_sync(what, workflow_id="run", if_exists="return").status == "failed"
    assert len(calls) <= 1


def test_only_from_runs_again(reopen: Callable[[], Any]) -> None:
    WorkflowEngine(reopen()).run_sync(ordering, workflow_id="run")
    assert [each[0] for each in undone] == ["7 from ann"]
    engine = WorkflowEngine(reopen())
    how = RunOptions(from_step="ship")
    assert not engine.plan_sync(ordering, workflow_id="run", options=how).is_final
    engine.resume_sync(ordering, workflow_id="run", options=how)
    assert len(calls) == 2
    assert engine.fork_sync("run", new_id="new", workflow=ordering).workflow_id == "new"
    engine.resume_sync(ordering, workflow_id="new")
    assert len(calls) == 3


def test_a_final_failure_that_is_handled_ends_nothing(reopen: Callable[[], Any]) -> None:
    @workflow
    def handles() -> Generator[Any, Any, str]:
        try:
            yield step("ship").python(withdrawn)
        except Exception:
            yield step("ask").wait("go")
        return "done"

    WorkflowEngine(reopen()).run_sync(handles, workflow_id="run")
    engine = WorkflowEngine(reopen())
    engine.signal_sync("run", "go")
    assert engine.resume_sync(handles, workflow_id="run").output == "done"
