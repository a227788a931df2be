"""What is wrong with a map, a group or a child workflow is said early, and with what to do about it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NewType

import attrs
import pytest

from flowckpt import MemoryCheckpointStore, Secret, WorkflowEngine, parallel, step, workflow
from flowckpt.errors import FanOutFailedError, InputError, StepDefinitionError, StepFailedError

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    seen.clear()


def note(item: Any) -> Any:
    seen.append(item)
    return item


def nothing() -> int:
    return 1


def failure_of(make: Callable[[], Any], engine: WorkflowEngine | None = None, run: str = "run") -> Any:
    @workflow
    def flow() -> Generator[Any, Any, Any]:
        return (yield make())

    engine = engine or WorkflowEngine(MemoryCheckpointStore())
    result = engine.run_sync(flow, workflow_id=run)
    if result.error is not None:
        again = engine.resume_sync(flow, workflow_id=run)
        assert str(again.error) == str(result.error)
    return result.error


def some(count: int) -> Iterator[int]:
    yield from range(count)


# --- more are to succeed than there are ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: step("m").map(note, [1, 2], min_success=5),
        lambda: step("m").map(note, [], min_success=1),
        lambda: parallel(step("a").python(note, 1), name="m", min_success=2),
    ],
    ids=["two items", "no items", "a group"],
)
def test_more_than_there_are_is_refused_before_anything_is_done(make: Callable[[], Any]) -> None:
    error = failure_of(make)
    assert isinstance(error, StepDefinitionError)
    assert "min_success=" in str(error)
    assert "Require fewer" in str(error)
    assert seen == []


def test_where_the_size_is_not_known_the_end_says_so() -> None:
    error = failure_of(lambda: step("m").map(note, some(2), min_success=5))
    assert isinstance(error, FanOutFailedError)
    assert "min_success=5, but there were only 2" in str(error)
    assert "Require fewer" in str(error)


def test_no_items_made_one_by_one_are_too_few_as_well() -> None:
    error = failure_of(lambda: step("m").map(note, some(0), min_success=1))
    assert "min_success=1, but there were only 0" in str(error)


# --- what makes the items, and their keys ----------------------------------------------------------------------------


def test_a_key_function_that_fails_is_named_with_the_item() -> None:
    long = "x" * 500
    error = failure_of(lambda: step("m").map(note, ["a", long], key=lambda item: 1 // (2 - len(item[:2]))))
    assert isinstance(error, StepFailedError)
    assert error.failed_with(ZeroDivisionError)
    assert "the key function failed for item 1, 'xxx" in str(error)
    assert long not in str(error)


def broken() -> Iterator[int]:
    yield 7
    raise RuntimeError("the database went away")


def test_an_iterator_that_fails_is_named_with_the_item() -> None:
    error = failure_of(lambda: step("m").map(note, broken()))
    assert error.failed_with(RuntimeError)
    assert "the iterator of the items failed at item 1: the database went away" in str(error)
    assert seen[:1] == [7]


# --- what has no order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [{"a", "b"}, frozenset("ab")], ids=["set", "frozenset"])
def test_a_set_is_refused(items: Any) -> None:
    with pytest.raises(StepDefinitionError, match=r"sorted\(items\)"):
        step("m").map(note, items)


def test_the_views_of_a_dict_have_an_order() -> None:
    made: dict[str, int] = {"b": 1, "a": 2}
    for items, ordered in (
        (made, ["b", "a"]),
        (made.keys(), ["b", "a"]),
        (made.values(), [1, 2]),
        (made.items(), [("b", 1), ("a", 2)]),
    ):
        seen.clear()

        @workflow
        def flow() -> Generator[Any, Any, Any]:
            return (yield step("m").map(note, items, concurrency=1))

        assert [*WorkflowEngine(MemoryCheckpointStore()).run_sync(flow).unwrap()] == ordered
        assert seen == ordered


# --- the wrong thing, in short words ---------------------------------------------------------------------------------


@workflow
def child(n: int) -> Generator[Any, Any, int]:
    return (yield step("note").python(note, n))


def yields() -> Iterator[int]:
    yield 1


def test_a_workflow_is_no_function_of_a_step() -> None:
    with pytest.raises(StepDefinitionError, match=r"the workflow 'child'.*\.workflow\(child"):
        step("m").python(child, 3)


def test_a_generator_that_a_function_returns_is_refused_with_the_way_out() -> None:
    assert ".workflow(child)" in str(failure_of(lambda: step("m").python(yields)))


def test_what_an_error_says_is_to_be_done_is_said_of_the_step_too() -> None:
    def local() -> int:
        return 1

    error = failure_of(lambda: step("m").python(local).on("process"))
    assert "top of a module" in str(error)
    members = failure_of(lambda: step("m").map(_generated, [3]))
    assert ".workflow(child)" in str(members)


def _generated(item: int) -> Iterator[int]:
    yield item


@pytest.mark.parametrize("modifier", ["rollback", "on_rerun"])
def test_what_undoes_takes_one_argument(modifier: str) -> None:
    made = step("m").python(note, 1)
    for_more = () if modifier == "rollback" else (lambda a, b: a, Undo().of_two)  # which gets arguments of the step
    for bad in (nothing, lambda: 1, *for_more):
        with pytest.raises(StepDefinitionError, match=r"one argument|function of the recorded output"):
            getattr(made, modifier)(bad)
    for good in (note, print, lambda a, b=1: a, Undo(), Undo().of_one, lambda *a: a, int):
        assert getattr(getattr(made, modifier)(good).modifiers, modifier) == good


class Undo:
    def __call__(self, output: Any) -> None:
        del output

    def of_one(self, output: Any) -> None:
        del output

    def of_two(self, output: Any, more: Any) -> None:
        del output, more


@pytest.mark.parametrize(
    "make",
    [
        lambda: step("m").map(step("x").python(note, 1), [3]),  # type: ignore[call-overload]
        lambda: parallel(step("a")),  # type: ignore[call-overload]
        lambda: step("m").workflow(step("x").python(note, 1)),  # type: ignore[arg-type]
        lambda: step("m").python(step("x")),  # type: ignore[call-overload]
    ],
    ids=["map", "parallel", "workflow", "python"],
)
def test_a_step_in_the_wrong_place_is_told_in_short_words(make: Callable[[], Any]) -> None:
    with pytest.raises(StepDefinitionError) as refused:
        make()
    assert "Modifiers(" not in str(refused.value)
    assert "<step " in str(refused.value)


# --- the inputs of a child -------------------------------------------------------------------------------------------

Id = NewType("Id", int)


@attrs.frozen
class Limits:
    most: int


@workflow
def typed(
    n: int = 0,
    x: float = 0.0,
    names: Sequence[str] = (),
    rows: list[int] | None = None,
    by: dict[str, int] = {},  # noqa: B006 - never changed
    limits: Limits | None = None,
    key: Id = Id(1),  # noqa: B008
    token: Secret[str] | None = None,
    late: int = None,  # type: ignore[assignment]  # noqa: RUF013 - many write it
    free: Any = None,
) -> Generator[Any, Any, int]:
    seen.append((n, x, names, rows, by, limits, key, token and token.reveal(), late, free))
    return (yield step("note").python(note, n))


@pytest.mark.parametrize(
    "inputs",
    [{"n": "x"}, {"x": "1"}, {"names": 5}, {"rows": ["a"]}, {"by": {1: 1}}, {"key": "k"}, {"limits": {"most": 1}}],
    ids=lambda inputs: next(iter(inputs)),
)
def test_an_input_of_another_type_fails_the_step_before_the_child_begins(inputs: Any) -> None:
    error = failure_of(lambda: step("m").workflow(typed, **inputs))
    assert isinstance(error, StepFailedError)
    assert repr(next(iter(inputs))) in str(error) or f"input {next(iter(inputs))}" in str(error)
    assert seen == []


def test_what_is_of_its_type_goes_in() -> None:
    given: Any = {"n": True, "x": 1, "names": ["a"], "rows": [1], "by": {"a": 1}, "limits": Limits(1), "token": "t"}
    assert failure_of(lambda: step("m").workflow(typed, **given, free=(1, {2})), run="a") is None
    assert seen == [(True, 1, ["a"], [1], {"a": 1}, Limits(1), 1, "t", None, (1, {2})), True]
    assert seen[0][0] is True
    seen.clear()
    assert failure_of(lambda: step("m").workflow(typed), run="b") is None
    assert seen == [(0, 0.0, (), None, {}, None, 1, None, None, None), 0]


def test_what_no_record_could_hold_fails_the_step_and_names_the_input() -> None:
    error = failure_of(lambda: step("m").workflow(typed, free=[threading.Lock()]))
    assert "m: input free[0] is a _thread.lock" in str(error)
    assert ".ephemeral()" in str(error)
    assert seen == []


def test_the_inputs_of_a_map_of_a_workflow_are_checked_as_well() -> None:
    error = failure_of(lambda: step("m").map(child, [1, "x"], concurrency=1))
    assert isinstance(error, FanOutFailedError)
    assert error.failed_with(InputError)
    assert seen == [1]


@workflow
def handles() -> Generator[Any, Any, tuple[str, int]]:
    said = ""
    try:
        yield step("m").workflow(child, n="x")  # type: ignore[arg-type]
    except StepFailedError as error:
        said = error.error_message
    return said, (yield step("behind").python(note, 1).checkpoint())


def test_a_refusal_that_the_parent_handles_is_replayed_and_nothing_runs_again() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    first = engine.run_sync(handles, workflow_id="run").unwrap()
    assert "must be of type int, got 'x'" in first[0]
    plan = asyncio.run(engine.plan(handles, workflow_id="run"))
    assert {each.path: each.decision.value for each in plan.steps} == {"m": "reuse", "behind": "reuse"}
    again = engine.resume_sync(handles, workflow_id="run")
    assert again.unwrap() == first
    assert seen == [1]
    assert again.steps.executed == 0


def test_a_failure_of_the_items_that_the_workflow_handles_is_replayed() -> None:
    @workflow
    def flow() -> Generator[Any, Any, str]:
        try:
            yield step("m").map(note, broken(), concurrency=1)
        except StepFailedError as error:
            yield step("behind").python(note, "behind").checkpoint()
            return error.error_message
        return ""

    engine = WorkflowEngine(MemoryCheckpointStore())
    first = engine.run_sync(flow, workflow_id="run").unwrap()
    plan = asyncio.run(engine.plan(flow, workflow_id="run"))
    assert {each.decision.value for each in plan.steps} == {"reuse"}
    assert engine.resume_sync(flow, workflow_id="run").unwrap() == first
    assert seen == [7, "behind"]
