"""Failures of steps are values as any other: what a map that tolerates some returns can continue from there."""

from __future__ import annotations

import json
import pickle
from collections.abc import Generator
from typing import Any

import attrs
import pytest

from flowckpt import FileCheckpointStore, MemoryCheckpointStore, RunOptions, WorkflowEngine, step, workflow
from flowckpt.core import codec
from flowckpt.errors import DecodingError, EncodingError, FanOutFailedError, StepFailedError

ONE = StepFailedError(
    "m/[1]",
    error_type="ValueError",
    error_message="odd ☃ one",
    error_bases=("ValueError", "Exception"),
    traceback="Traceback …",
    tries=3,
    remedy="Give even ones.",
)
TWO = FanOutFailedError(
    "m", error_type="flowckpt.errors.FanOutFailedError", error_message="1 of 2 failed", causes=[ONE, ONE]
)
BARE = StepFailedError("", error_type="", error_message="")


def there_and_back(value: Any, annotation: Any = Any) -> Any:
    return codec.decode(json.loads(codec.dumps(codec.encode(value, annotation))), annotation)


@attrs.frozen
class Summary:
    good: int
    bad: list[StepFailedError]


@pytest.mark.parametrize("error", [ONE, TWO, BARE], ids=["a step", "a fan-out", "nothing said"])
def test_a_failure_comes_back_the_same(error: StepFailedError) -> None:
    back = there_and_back({"failures": [error]})["failures"][0]
    assert type(back) is type(error)
    assert back == error
    assert hash(back) == hash(error)
    assert vars(back) == vars(error)
    assert str(back) == str(error)
    assert back == pickle.loads(pickle.dumps(error))


def test_failures_that_differ_are_not_equal() -> None:
    other = StepFailedError("m/[2]", error_type="ValueError", error_message="odd ☃ one")
    assert other not in (ONE, TWO, BARE)
    assert FanOutFailedError("", error_type="", error_message="") != BARE
    assert FanOutFailedError("m", error_type="x", error_message="", causes=[ONE]) != FanOutFailedError(
        "m", error_type="x", error_message=""
    )


@pytest.mark.parametrize(
    "annotation",
    [list[int | StepFailedError], list[Summary | StepFailedError], list[Any], Any],
    ids=["closed", "structured", "anything", "none"],
)
def test_an_annotation_may_name_it(annotation: Any) -> None:
    assert there_and_back([ONE, TWO], annotation) == [ONE, TWO]


def test_it_may_be_a_field() -> None:
    summary = Summary(1, [ONE])
    assert there_and_back(summary, Summary) == summary


class OwnError(StepFailedError):
    """One of the program's."""


def test_a_class_of_the_program_is_refused_as_all_subclasses_are() -> None:
    with pytest.raises(EncodingError, match="OwnError"):
        codec.encode(OwnError("a", error_type="b", error_message="c"))


@pytest.mark.parametrize(
    "body",
    [{"path": 1}, {"tries": "1"}, {"causes": [1]}, {"error_bases": [None]}, {"who": "knows"}, [], 7],
    ids=["path", "tries", "causes", "bases", "unknown", "list", "number"],
)
def test_a_malformed_failure_is_refused(body: Any) -> None:
    for tag in ("$failure", "$failures"):
        with pytest.raises(DecodingError):
            codec.decode({tag: body})


# --- in a run --------------------------------------------------------------------------------------------------------

told: list[Any] = []


def odd(number: int) -> int:
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number


def count(results: list[Any]) -> int:
    told.append(results)
    return sum(isinstance(each, StepFailedError) for each in results)


@workflow
def some():  # type: ignore[no-untyped-def]
    return (yield from step("m").map(odd, [0, 1, 2, 3], tolerate=2))


@workflow
def outer():  # type: ignore[no-untyped-def]
    found = yield step("child").workflow(some)
    failed = yield step("count").python(count, found).checkpoint()
    again = yield step("again").workflow(counted, found=found)
    return found, failed, again


@workflow
def counted(found):  # type: ignore[no-untyped-def]
    return (yield step("count").python(count, found).checkpoint())


def test_a_list_with_failures_is_the_output_of_a_run(tmp_path: Any) -> None:
    engine = WorkflowEngine(FileCheckpointStore(tmp_path))
    first = engine.run_sync(some, workflow_id="run").unwrap()
    assert [each if isinstance(each, int) else each.path for each in first] == [0, "m/[1]", 2, "m/[3]"]
    again = engine.resume_sync(some, workflow_id="run")
    assert again.unwrap() == first
    assert again.steps.executed == 0


def test_it_goes_from_a_child_into_later_steps_and_is_the_same_at_replay(tmp_path: Any) -> None:
    told.clear()
    engine = WorkflowEngine(FileCheckpointStore(tmp_path))
    found, failed, again = engine.run_sync(outer, workflow_id="run").unwrap()
    assert (failed, again) == (2, 2)
    assert told == [found, found]
    resumed = engine.resume_sync(outer, workflow_id="run")
    assert resumed.unwrap() == (found, failed, again)
    assert resumed.steps.executed == 0
    forced = engine.resume_sync(outer, workflow_id="run", options=RunOptions(from_step="count"))
    assert forced.unwrap() == (found, failed, again)
    assert told == [found] * len(told)


@workflow
def annotated() -> Generator[Any, Any, list[int | StepFailedError]]:
    return (yield from step("m").map(odd, [0, 1], tolerate=1))


def test_an_annotated_output_is_recorded_as_well() -> None:
    engine = WorkflowEngine(MemoryCheckpointStore())
    found = engine.run_sync(annotated, workflow_id="run").unwrap()
    assert type(found[0]) is int
    assert isinstance(found[1], StepFailedError)
    assert isinstance(found[1], ZeroDivisionError | ValueError)
    assert engine.resume_sync(annotated, workflow_id="run").unwrap() == found
