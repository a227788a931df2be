"""Maps, groups and child workflows as they are written: what is refused and where; and how many members may fail."""

from __future__ import annotations

import functools
from collections.abc import Generator
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt import parallel, step, workflow
from flowckpt.core.dsl.composites import ALL, Completion, make_completion
from flowckpt.errors import InputError, StepDefinitionError


def work(item: Any) -> Any:
    return item


def scaled(item: int, *, factor: int = 1) -> int:
    return item * factor


@functools.wraps(scaled)
def logged_and_scaled(*args: Any, note: str = "", **named: Any) -> int:
    return scaled(*args, **named)


@workflow
def child(n: int) -> Generator[Any, Any, int]:
    return (yield step("a").python(work, n))


@workflow
def two_inputs(n: int, m: int) -> Generator[Any, Any, int]:
    return (yield step("a").python(work, n + m))


# --- how many may fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "failed", "total", "cannot_succeed", "is_met"),
    [
        (ALL, 0, 5, False, True),
        (ALL, 1, 5, True, False),
        (ALL, 1, None, True, False),
        (Completion(tolerate=2), 2, 5, False, True),
        (Completion(tolerate=2), 3, 5, True, False),
        (Completion(tolerate=2), 3, None, True, False),
        (Completion(tolerate=0.5), 2, 5, False, True),
        (Completion(tolerate=0.5), 3, 5, True, False),
        (Completion(tolerate=0.5), 3, None, False, False),
        (Completion(min_success=3), 2, 5, False, True),
        (Completion(min_success=3), 3, 5, True, False),
        (Completion(min_success=3), 3, None, False, False),
        (Completion(min_success=0.5), 2, 5, False, True),
        (Completion(min_success=0.5), 3, 5, True, False),
        (Completion(min_success=1.0), 1, 5, True, False),
        (Completion(min_success=0), 5, 5, False, True),
        (Completion(tolerate=1.0), 5, 5, False, True),
        (Completion(min_success=3, tolerate=1), 2, 9, True, False),
        (Completion(min_success=0.1, tolerate=0.1), 1, 10, False, True),
        (Completion(min_success=0.7), 3, 10, False, True),
    ],
    ids=repr,
)
def test_a_fan_out_is_lost_as_soon_as_too_many_have_failed(
    completion: Completion, failed: int, total: int | None, cannot_succeed: bool, is_met: bool
) -> None:
    assert completion.cannot_succeed(failed, total) is cannot_succeed
    assert completion.is_met(failed, total or 5) is is_met


@given(
    st.none() | st.integers(0, 20) | st.floats(0, 1),
    st.none() | st.integers(0, 20) | st.floats(0, 1),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_what_is_lost_is_never_met_and_with_a_known_size_the_two_agree(
    min_success: Any, tolerate: Any, failed: int, total: int
) -> None:
    failed = min(failed, total)
    completion = make_completion("x", min_success, tolerate)
    if completion.cannot_succeed(failed, None) or completion.cannot_succeed(failed, total):
        assert not completion.is_met(failed, total)
    elif failed:
        assert completion.is_met(failed, total)


def test_more_successes_than_there_are_members_are_never_reached() -> None:
    assert not Completion(min_success=3).is_met(0, 2)


@pytest.mark.parametrize("number", [-1, 1.5, -0.1, True, "2", float("nan")], ids=repr)
@pytest.mark.parametrize("name", ["min_success", "tolerate"])
def test_a_number_that_says_nothing_is_refused_with_its_place(name: str, number: Any) -> None:
    with pytest.raises(StepDefinitionError, match=name) as caught:
        step("pages").map(work, [1], **{name: number})
    assert caught.value.where.startswith(__file__)


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda: step("m").map(work, "text"), "needs items"),
        (lambda: step("m").map(work, 5), "needs items"),
        (lambda: step("m").map(work, pd.DataFrame({"a": [1]})), "DataFrame, which iterates over its columns"),
        (lambda: step("m").map(lambda x: x, [1]), "lambda"),
        (lambda: step("m").map(5, [1]), "map"),
        (lambda: step("m").map(work, [1], key="name"), "must be a function"),
        (lambda: step("m").map(work, [1], concurrency=0), "from 1"),
        (lambda: step("m").map(work, [1], concurrency=True), "from 1"),
        (lambda: step("m").map(work, [1]).python(work, 1), "second action|two actions|already"),
        (lambda: step("w").workflow(work, n=1), "needs a workflow"),
        (lambda: step("w").workflow(child, 1), "by name"),
        (lambda: parallel(step("a")), "expected steps with an action"),
        (lambda: parallel([step("a").python(work, 1)]), "expected steps with an action"),
        (lambda: parallel(step("a").python(work, 1), name=" "), "blank"),
    ],
    ids=[
        "text", "number", "frame", "lambda", "no function", "key", "no concurrency", "true", "two actions", "no workflow",
        "by position", "no action", "a list", "blank name",
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_where_it_is_written(write: Any, said: str) -> None:
    with pytest.raises(StepDefinitionError, match=said) as caught:
        write()
    assert __file__ in str(caught.value) or caught.value.where.startswith(__file__)


def test_a_wrong_input_of_a_child_is_refused_when_it_is_written() -> None:
    with pytest.raises(InputError, match="wrong"):
        step("w").workflow(child, wrong=1)


def members(made: Any) -> list[str]:
    return [place for place, _ in made.action.members(made)]


def test_members_are_named_by_their_number_their_key_or_their_step() -> None:
    assert members(step("m").map(work, (x for x in "ab"))) == ["[0]", "[1]"]
    assert members(step("m").map(work, ["de", "a/b"], key=str)) == ["[de]", "[a%2Fb]"]
    a, b = step("a").python(work, 1), step("b").python(work, 1)
    assert members(parallel(a, b, a)) == ["[a]", "[b]", "[a][1]"]
    assert members(parallel()) == []


@pytest.mark.parametrize(
    ("key", "said"),
    [(lambda x: "same", "two items"), (lambda x: None, "text or a whole number"), (lambda x: " ", "not be blank"),
     (lambda x: "k" * 201, "200 characters"), (lambda x: True, "text or a whole number")],
    ids=["same", "none", "blank", "long", "bool"],
)  # fmt: skip
def test_a_key_that_names_no_item_is_refused(key: Any, said: str) -> None:
    with pytest.raises(StepDefinitionError, match=said):
        members(step("m").map(work, [1, 2], key=key))


def test_a_map_over_a_workflow_needs_one_that_takes_one_item() -> None:
    assert members(step("m").map(child, [1, 2])) == ["[0]", "[1]"]
    with pytest.raises(StepDefinitionError, match="one input without a default"):
        members(step("m").map(two_inputs, [1]))


def test_a_misspelt_option_of_a_map_is_refused_at_its_line() -> None:
    step("m").map(scaled, [1, 2], concurrency=2, factor=3)
    said = "has no option 'max_parallel', and .*scaled has no such parameter"
    with pytest.raises(StepDefinitionError, match=said) as raised:
        step("m").map(scaled, [1, 2], max_parallel=2, factor=3)
    assert "concurrency" in raised.value.remedy and "item, factor" in raised.value.remedy
    assert __file__ in raised.value.where
    step("m").map(logged_and_scaled, [1, 2], note="a wrapper may take more than the function that it wraps")
    step("m").map(functools.partial(scaled, factor=2), [1, 2])
