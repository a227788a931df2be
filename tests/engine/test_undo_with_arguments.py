"""`.rollback(fn)` with the step's arguments by name, and failures that are final."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Generator
from typing import Any

import attrs
import pytest

from flowckpt import MemoryCheckpointStore, RunOptions, Secret, WorkflowEngine, in_sync, parallel, step, workflow
from flowckpt.errors import FinalError, NotUndoableError, RunFinalError, StaleStepError, StepDefinitionError

undone: list[Any] = []
calls: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    undone.clear()
    calls.clear()


def charge(account: str, amount: int = 7) -> str:
    return f"{amount} from {account}"


def fetch(url: str) -> str:
    return "fetched"


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
    in_sync(WorkflowEngine(reopen())).cancel("run", workflow=paying)
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
    assert "has a parameter" in result.error.message and result.steps.executed == 0


def test_a_function_without_a_place_for_the_output_is_refused() -> None:
    with pytest.raises(StepDefinitionError, match="needs a function of the recorded output"):
        step("a").python(charge, "ann").rollback(lambda: None)


# --- an argument that has moved since --------------------------------------------------------------------------------------


def edited(kind: str, amount: int | None) -> Any:
    """Return a workflow as it was written first, or as it was edited since."""
    given = {} if amount is None else {"amount": amount}

    @workflow("pays")
    def pays() -> Generator[Any, Any, None]:
        made = step("one").python(charge, "ann", **given).rollback(refund)
        yield (parallel(made, step("two").python(charge, "bob", **given)) if kind == "group" else made).checkpoint()
        yield step("ask").wait("go")
        raise KeyError("end")

    return pays


@pytest.mark.parametrize(
    ("kind", "amount", "then", "reuse"),
    [("step", 5, 6, "prefix"), ("step", None, 7, "inputs"), ("group", 5, None, "prefix"), ("group", 5, 6, "inputs")],
)
def test_a_result_that_was_reused_in_spite_of_an_edit_is_not_undone_with_the_new_argument(
    kind: str, amount: int | None, then: int | None, reuse: str, reopen: Callable[[], Any]
) -> None:
    WorkflowEngine(reopen()).run_sync(edited(kind, amount), workflow_id="run")
    engine, later, said = WorkflowEngine(reopen()), edited(kind, then), "the code now passes another 'amount'"
    with pytest.raises(NotUndoableError, match=said):
        in_sync(engine).cancel("run", workflow=later)
    in_sync(engine).signal("run", "go")
    result = engine.resume_sync(later, workflow_id="run", options=RunOptions(on_stale="reuse", reuse=reuse))
    assert result.status == "failed" and undone == []
    assert result.steps.executed == 1, "the wait"
    assert said in str(result.rollback_failures[0])


def give_back(output: int, factor: int) -> None:
    undone.append((output, factor))


def with_children(factor: int, form: str) -> Any:
    """Return a workflow of children with a default that may have been edited since, or with the same input given."""

    @workflow("child")
    def item(number: int, factor: int = factor) -> Generator[Any, Any, int]:
        return (yield step("keep").python(int, number).checkpoint()) * factor

    @workflow("items")
    def items() -> Generator[Any, Any, list[int]]:
        if form == "map":
            found = yield step("items").map(item, [1, 2], concurrency=1).rollback(give_back).checkpoint()
        else:
            found = yield step("item").workflow(item, number=3).rollback(give_back).checkpoint()
        yield step("ask").wait("go")
        return found

    return items


@pytest.mark.parametrize(("form", "held"), [("map", [(4, 2), (2, 2)]), ("child", [(6, 2)])])
def test_the_compensation_of_a_child_gets_the_default_of_an_input(form: str, held: Any, reopen: Any) -> None:
    WorkflowEngine(reopen()).run_sync(with_children(2, form), workflow_id="run")
    in_sync(WorkflowEngine(reopen())).cancel("run", workflow=with_children(2, form))
    assert undone == held


@pytest.mark.parametrize(("form", "path", "ends"), [("map", "items/[0]", [5, 10]), ("child", "item", 15)])
def test_an_edited_default_of_a_child_is_a_changed_argument(form: str, path: str, ends: Any, reopen: Any) -> None:
    WorkflowEngine(reopen()).run_sync(with_children(2, form), workflow_id="run")
    later = with_children(5, form)
    with pytest.raises(NotUndoableError, match="the code now passes another 'factor'"):
        in_sync(WorkflowEngine(reopen())).cancel("run", workflow=later)
    in_sync(WorkflowEngine(reopen())).signal("run", "go")
    with pytest.raises(StaleStepError, match="factor: 2 → 5") as refused:  # what can be undone is not repeated unasked
        WorkflowEngine(reopen()).resume_sync(later, workflow_id="run")
    assert refused.value.path == path and undone == []
    resumed = WorkflowEngine(reopen()).resume_sync(later, workflow_id="run", options=RunOptions(on_stale="rerun"))
    clean = WorkflowEngine(MemoryCheckpointStore())
    clean.run_sync(later, workflow_id="clean")
    in_sync(clean).signal("clean", "go")
    assert resumed.output == ends == clean.resume_sync(later, workflow_id="clean").output


def test_a_secret_in_an_argument_of_a_compensation_is_no_edit(reopen: Callable[[], Any]) -> None:
    def close(output: str, url: str) -> None:
        undone.append(url)

    @workflow
    def calls_out(token: Secret[str]) -> Generator[Any, Any, None]:
        yield step("open").python(str.upper, "x").checkpoint()
        yield step("call").python(fetch, f"https://x/?t={token.reveal()}").rollback(close).checkpoint()
        yield step("ask").wait("go")

    WorkflowEngine(reopen()).run_sync(calls_out, workflow_id="run", token="hunter2-hunter2")
    in_sync(WorkflowEngine(reopen())).cancel("run", workflow=calls_out, token="hunter2-hunter2")
    assert undone == ["https://x/?t=hunter2-hunter2"]


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
    plan = in_sync(engine).plan(what, workflow_id="run")
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
    assert not in_sync(engine).plan(ordering, workflow_id="run", options=how).is_final
    engine.resume_sync(ordering, workflow_id="run", options=how)
    assert len(calls) == 2
    assert in_sync(engine).fork("run", new_id="new", workflow=ordering).workflow_id == "new"
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
    in_sync(engine).signal("run", "go")
    assert engine.resume_sync(handles, workflow_id="run").output == "done"


# --- arguments that the workflow changes in place after the step ------------------------------------------------------


@attrs.define
class Order:
    items: list[str]


def book(order: Any) -> str:
    return "receipt"


def cancel(receipt: str, order: Any) -> None:
    undone.append(copy.deepcopy(order))
    (order.items if isinstance(order, Order) else order).append("changed by the compensation")


def raise_error(order: Any) -> None:
    raise OSError("no truck")


@workflow
def booked(order: Any) -> Generator[Any, Any, None]:
    return (yield step("book").python(book, order))


def end_of(order: Any, how: str) -> Generator[Any, Any, None]:
    if how != "fails":
        yield step("ask").wait(how)
    yield step("ship").python(raise_error, order)


@workflow
def one_by_one(how: str, in_place: bool) -> Generator[Any, Any, None]:
    done: list[int] = []
    for seat in range(3):
        yield step("book").python(book, done).rollback(cancel).checkpoint()
        done = done if in_place else [*done]
        done.append(seat)
    yield from end_of(done, how)


@workflow
def of_a_class(how: str, in_place: bool) -> Generator[Any, Any, None]:
    order = Order(["tea"])
    yield step("book").python(functools.partial(book, order=order)).rollback(cancel).checkpoint()
    order = order if in_place else copy.deepcopy(order)
    order.items.append("receipt")
    yield from end_of(order, how)


@workflow
def of_a_map(how: str, in_place: bool) -> Generator[Any, Any, None]:
    orders = [["tea"], ["milk"]]
    yield step("all").map(book, orders, concurrency=1).rollback(cancel).checkpoint()
    orders = orders if in_place else copy.deepcopy(orders)
    orders[0].append("receipt")
    yield from end_of(orders, how)


@workflow
def of_a_child(how: str, in_place: bool) -> Generator[Any, Any, None]:
    order = ["tea"]
    yield step("child").workflow(booked, order=order).rollback(cancel).checkpoint()
    order = order if in_place else copy.deepcopy(order)
    order.append("receipt")
    yield from end_of(order, how)


@workflow
def shared(how: str, in_place: bool) -> Generator[Any, Any, None]:
    order = ["tea"]
    yield step("one").python(book, order).rollback(cancel).checkpoint()
    yield step("two").python(book, order if in_place else ["tea"]).rollback(cancel)
    yield from end_of(order, how)


@workflow
def of_a_loser(how: str, in_place: bool) -> Generator[Any, Any, None]:
    inner = step("slow").workflow(of_a_class, how="never", in_place=in_place)
    yield parallel(inner, step("fast").wait("fast"), min_success=1)
    yield from end_of([], how)


@pytest.mark.parametrize("end", ["fails", "is resumed and fails", "is cancelled"])
@pytest.mark.parametrize(
    "flow", [one_by_one, of_a_class, of_a_map, of_a_child, shared, of_a_loser], ids=lambda w: w.name
)
def test_a_compensation_gets_an_argument_as_the_step_had_it(flow: Any, end: str) -> None:
    found = []
    for in_place in (False, True):
        undone.clear()
        engine = WorkflowEngine(store := MemoryCheckpointStore())
        engine.run_sync(flow, workflow_id="run", how="fails" if end == "fails" else "go", in_place=in_place)
        if flow is of_a_loser:
            in_sync(engine).signal("run", "fast")
            engine.resume_sync(flow, workflow_id="run")
        if end == "is resumed and fails":
            in_sync(engine).signal("run", "go")
            assert WorkflowEngine(store).resume_sync(flow, workflow_id="run").status == "failed"
        elif end == "is cancelled":
            in_sync(WorkflowEngine(store)).cancel("run", workflow=flow)
        found.append([*undone])
    assert found[1] == found[0] != []
