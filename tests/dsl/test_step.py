"""A step as a value: immutable, and the same in whatever order it was written."""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import operator
import re
from datetime import timedelta
from enum import Enum, StrEnum

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowckpt.core.dsl import Modifiers, PythonAction, RetryPolicy, Step, StepBuilder, step
from flowckpt.core.dsl.step import function_name
from flowckpt.errors import StepDefinitionError
from tests.stable_ids import stable

BEYOND = 10**400
"""An integer that no float can hold."""


def work(*args, **kwargs):
    return args, kwargs


def here(offset=0):
    """`file:line` of the caller, so many lines further down."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno + offset}"


# --- what a step is --------------------------------------------------------------------------------------------------


def test_a_step_has_a_name_an_action_and_plain_modifiers():
    made = step("fetch").python(work, 1, 2, key=3)
    assert type(made) is Step
    assert (made.name, made.action, made.modifiers) == ("fetch", PythonAction(work, (1, 2), {"key": 3}), Modifiers())
    assert made.action.step_type == "python"
    assert made.action.function_name.endswith(":work")


MODIFIERS = {
    "checkpoint": lambda s: s.checkpoint("id"),
    "retry": lambda s: s.retry(3, backoff=2, on=ValueError),
    "timeout": lambda s: s.timeout(5),
    "version": lambda s: s.version("2"),
    "ephemeral": lambda s: s.ephemeral(),
}
ACTION = {"python": lambda s: s.python(work, 1, key=2)}
COMPATIBLE = [
    chosen
    for size in range(len(MODIFIERS) + 1)
    for chosen in itertools.combinations(MODIFIERS, size)
    if not {"checkpoint", "ephemeral"} <= set(chosen)
]


def applied(names, begun):
    return functools.reduce(lambda s, name: {**MODIFIERS, **ACTION}[name](s), names, begun)


@given(st.sampled_from(COMPATIBLE).flatmap(lambda chosen: st.permutations([*chosen, "python"])))
@settings(max_examples=200, deadline=None)
def test_the_order_in_which_a_step_is_written_never_changes_what_it_means(order):
    made = applied(order, step("s"))
    assert type(made) is Step
    assert made == applied([*sorted(set(order) - {"python"}), "python"], step("s"))
    assert made.modifiers == Modifiers(
        has_checkpoint="checkpoint" in order,
        checkpoint_id="id" if "checkpoint" in order else None,
        retry=RetryPolicy(3, 2.0, 60.0, 0.0, (ValueError,)) if "retry" in order else None,
        timeout_seconds=5.0 if "timeout" in order else None,
        is_ephemeral="ephemeral" in order,
        version="2" if "version" in order else None,
    )


@given(st.sampled_from(COMPATIBLE).flatmap(st.permutations), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_step_is_never_changed_by_what_is_made_of_it(order, has_action):
    begun = ACTION["python"](step("s")) if has_action else step("s")
    before = (begun.name, begun.modifiers)
    made = applied(order, begun)
    assert (begun.name, begun.modifiers) == before == ("s", Modifiers())
    assert (made == begun) == (not order)
    for field in ("name", "modifiers", "action"):
        with pytest.raises((attrs.exceptions.FrozenInstanceError, AttributeError)):
            setattr(made, field, None)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made.modifiers.version = "x"


def test_a_bare_checkpoint_is_the_same_before_and_after_the_action():
    expected = Step("s", Modifiers(has_checkpoint=True), PythonAction(work, (), {}))
    assert step("s").checkpoint().python(work) == step("s").python(work).checkpoint() == expected


# --- modifiers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODIFIERS)
@pytest.mark.parametrize("where", ["before", "after", "around"])
def test_a_modifier_given_twice_is_refused_wherever_it_stands(name, where):
    modifier, begun = MODIFIERS[name], step("s")
    once = modifier(begun) if where != "after" else begun.python(work)
    once = modifier(once) if where == "after" else once.python(work) if where == "around" else once
    with pytest.raises(StepDefinitionError, match=rf"step 's': \.{name}\(\) is given twice") as caught:
        modifier(once)
    assert caught.value.step == "s"
    assert __file__ in caught.value.where


def test_a_bare_checkpoint_given_twice_is_refused_too():
    for begun in (step("s"), step("s").python(work)):
        with pytest.raises(StepDefinitionError, match="twice"):
            begun.checkpoint().checkpoint()
        with pytest.raises(StepDefinitionError, match="twice"):
            begun.checkpoint("a").checkpoint()
        with pytest.raises(StepDefinitionError, match="twice"):
            begun.checkpoint().checkpoint("a")


def test_an_ephemeral_step_with_a_checkpoint_is_refused_in_either_order():
    for begun in (step("s"), step("s").python(work)):
        with pytest.raises(StepDefinitionError, match=r"ephemeral\(\) and has a .checkpoint\(\)"):
            begun.ephemeral().checkpoint()
        with pytest.raises(StepDefinitionError, match=r"ephemeral\(\) and has a .checkpoint\(\)"):
            begun.checkpoint("a").ephemeral()


def test_a_second_action_is_refused():
    with pytest.raises(StepDefinitionError, match=r"step 's': it has an action already: .python\(\)") as caught:
        step("s").python(work).checkpoint().python(work)
    assert caught.value.where == here(-1)


def test_every_action_is_refused_after_another():
    for name in ("python", "command", "map", "workflow", "start", "signal", "reply", "sleep", "wait", "approval"):
        with pytest.raises(StepDefinitionError, match=r"it has an action already: .python\(\)"):
            getattr(step("s").python(work), name)()


@pytest.mark.parametrize(
    "arguments",
    [
        {"attempts": 0}, {"attempts": -1}, {"attempts": 1.5}, {"attempts": True}, {"attempts": "3"},
        {"backoff": -1}, {"backoff": math.nan}, {"backoff": math.inf}, {"backoff": "1"}, {"backoff": True},
        {"backoff": BEYOND},
        {"max_delay": -1}, {"max_delay": math.inf}, {"factor": 0.9}, {"factor": None}, {"max_delay": BEYOND},
        {"jitter": -0.1}, {"jitter": 1.1}, {"jitter": math.nan}, {"jitter": True}, {"jitter": BEYOND},
        {"deadline": BEYOND},
        {"on": "ValueError"}, {"on": (ValueError, "x")}, {"on": KeyboardInterrupt}, {"on": BaseException},
        {"on": ValueError("x")}, {"on": int}, {"on": None},
    ],
    ids=stable,
)  # fmt: skip
def test_a_senseless_retry_is_refused_and_says_the_argument_and_the_place(arguments):
    (name, value), *_ = arguments.items()
    with pytest.raises(StepDefinitionError) as caught:
        step("s").retry(**{"attempts": 3, **arguments})
    assert caught.value.where == here(-1)
    assert name in str(caught.value)
    assert f"{value[1] if isinstance(value, tuple) else value!r:.80}" in str(caught.value)


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, True, "5", None, BEYOND], ids=stable)
def test_a_senseless_timeout_is_refused(seconds):
    with pytest.raises(StepDefinitionError, match=re.escape(f".timeout({seconds!r:.80})")) as caught:
        step("s").timeout(seconds)
    assert caught.value.where == here(-1)


@pytest.mark.parametrize("bad", ["", "  ", 5, None, "\ud800", "x" * 501])
def test_a_senseless_checkpoint_id_or_version_is_refused(bad):
    with pytest.raises(StepDefinitionError, match="version tag"):
        step("s").version(bad)
    if bad is not None:
        with pytest.raises(StepDefinitionError, match="checkpoint id"):
            step("s").checkpoint(bad)


# --- waits between tries ---------------------------------------------------------------------------------------------


def test_waits_double_up_to_their_limit():
    policy = RetryPolicy(10, backoff=1.5, max_delay=10)
    assert [policy.delay(n, random=0.9) for n in range(1, 6)] == [1.5, 3, 6, 10, 10]
    assert RetryPolicy(3).delay(2, random=0.5) == 0
    assert policy.delay(10**9, random=0) == 10


@given(
    st.integers(1, 10**6),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1),
    st.floats(0, 1, exclude_max=True),
)
def test_a_wait_is_never_negative_and_jitter_varies_it_by_its_fraction_both_ways(tries, backoff, limit, jitter, random):
    policy = RetryPolicy(tries + 1, backoff, limit, jitter)
    plain = attrs.evolve(policy, jitter=0.0).delay(tries, random=random)
    wait = policy.delay(tries, random=random)
    assert 0 <= plain <= limit
    assert plain * (1 - jitter) * 0.999 <= wait <= plain * (1 + jitter) * 1.001
    assert policy.delay(tries, random=0.5) == plain


# --- names -----------------------------------------------------------------------------------------------------------


class Steps(StrEnum):
    FETCH = "fetch"


class OldSteps(str, Enum):  # noqa: UP042
    FETCH = "fetch"


@pytest.mark.parametrize("name", [Steps.FETCH, OldSteps.FETCH, type("Text", (str,), {})("fetch")])
def test_a_name_of_a_kind_of_text_is_that_text(name):
    assert type(step(name).name) is str
    assert step(name).name == "fetch"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "blank, got ''"),
        (" \t\n", "blank"),
        (None, "must be text, got None"),
        (5, "must be text, got 5"),
        (b"a", "got b'a'"),
        (["a"], "list"),
        ("x" * 501, "got 501"),
        ("a\udc80", "valid Unicode"),
    ],
)
def test_a_name_that_is_none_is_refused_where_it_was_written_every_time(name, said):
    for _ in range(2):  # nothing about a refused name is remembered
        with pytest.raises(StepDefinitionError, match=re.escape(said)) as caught:
            step(name)
        assert caught.value.where == here(-1)
    assert step("x" * 500).name == "x" * 500


# --- functions and arguments -----------------------------------------------------------------------------------------


def test_a_lambda_is_refused_also_inside_a_partial():
    for function in (lambda: 1, functools.partial(lambda x: x, 1), functools.partial(functools.partial(lambda: 1))):
        with pytest.raises(StepDefinitionError, match="got a lambda") as caught:
            step("s").python(function)
        assert caught.value.where == here(-1)
        assert __file__ in str(caught.value)
        assert "def name" in caught.value.remedy


@pytest.mark.parametrize("function", [None, 5, "work", work()])
def test_what_cannot_be_called_is_refused_with_its_repr(function):
    with pytest.raises(StepDefinitionError, match=re.escape(repr(function))) as caught:
        step("s").python(function)
    assert "separately" in caught.value.remedy


class Callables:
    def method(self):
        pass

    def __call__(self):
        pass


@pytest.mark.parametrize(
    "function",
    [
        work,
        len,
        print,
        int,
        Callables,
        Callables(),
        Callables().method,
        functools.partial(work, 1),
        functools.cache(work),
    ],
)
def test_everything_else_that_can_be_called_may_be_a_step(function):
    assert step("s").python(function, 1).action == PythonAction(function, (1,), {})
    assert ":" in function_name(function)


def takes_args(args):
    return args


def takes_kwargs(a, *, kwargs):
    return a, kwargs


def takes_both(args, kwargs=None):
    return args, kwargs


def takes_none(a=0, b=0):
    return a, b


def takes_args_by_place(args, /, b=0):
    return args, b


EXPLICIT = [
    (takes_none, {"args": (1, 2)}, (1, 2)),
    (takes_none, {"args": [1], "kwargs": {"b": 2}}, (1, 2)),
    (takes_none, {"kwargs": {"a": 1, "b": 2}}, (1, 2)),
    (takes_none, {"args": (1,), "kwargs": None}, (1, 0)),
    (work, {"args": (1, 2), "kwargs": {"c": 3}}, ((1, 2), {"c": 3})),
    (work, {"args": (1,)}, ((1,), {})),
    (work, {"kwargs": {"args": 1}}, ((), {"args": 1})),
    (takes_args_by_place, {"args": (1, 2)}, (1, 2)),
    (len, {"args": ([1, 2],)}, 2),
    (dict, {"kwargs": {"a": 1}}, {"a": 1}),
    # The function's own parameters win: that is what the call reads like.
    (takes_args, {"args": (1, 2)}, (1, 2)),
    (takes_both, {"args": (1, 2), "kwargs": {"b": 2}}, ((1, 2), {"b": 2})),
    (takes_both, {"args": (1, 2)}, ((1, 2), None)),
]


@pytest.mark.parametrize(("function", "given_as", "expected"), EXPLICIT)
def test_arguments_may_be_given_explicitly(function, given_as, expected):
    action = step("s").python(function, **given_as).action
    assert type(action.args) is tuple
    assert action.function(*action.args, **action.kwargs) == expected


def test_args_and_kwargs_beside_other_arguments_are_plain_keywords():
    assert step("s").python(takes_kwargs, 1, kwargs={"x": 2}).action == PythonAction(
        takes_kwargs, (1,), {"kwargs": {"x": 2}}
    )
    assert step("s").python(work, args=1, b=2).action.kwargs == {"args": 1, "b": 2}


@pytest.mark.parametrize("bad", [{"args": "text"}, {"args": b"x"}, {"args": 5}, {"args": {1}}, {"kwargs": [1]}])
def test_explicit_arguments_of_another_kind_are_refused(bad):
    with pytest.raises(StepDefinitionError, match="args= takes a sequence and kwargs= a mapping") as caught:
        step("s").python(takes_none, **bad)
    assert repr(next(iter(bad.values()))) in str(caught.value)


def test_explicit_arguments_are_copied():
    args, kwargs = [1], {"b": 2}
    made = step("s").python(takes_none, args=args, kwargs=kwargs)
    args.append(3)
    kwargs["c"] = 4
    assert (made.action.args, made.action.kwargs) == ((1,), {"b": 2})


def test_yield_from_yields_the_very_step_and_returns_the_answer():
    made = step("s").python(operator.add, 1, 2)
    delegated = iter(made)
    assert next(delegated) is made
    with pytest.raises(StopIteration) as stop:
        delegated.send("answer")
    assert stop.value.value == "answer"


def test_a_step_without_an_action_is_no_step():
    assert type(step("s").checkpoint()) is StepBuilder
    assert not hasattr(step("s"), "action")
    assert not isinstance(next(iter(step("s"))), Step)  # what `yield from` hands to the engine, which refuses it


def test_times_may_be_given_as_timedeltas():
    hours = (
        step("one")
        .timeout(timedelta(hours=2))
        .retry(3, timedelta(seconds=5), timedelta(minutes=2), deadline=timedelta(days=1))
    )
    seconds = step("one").timeout(7200).retry(3, 5, 120, deadline=86_400)
    assert hours.modifiers == seconds.modifiers
    for refused in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(StepDefinitionError):
            step("one").timeout(refused)
        with pytest.raises(StepDefinitionError):
            step("one").retry(2, deadline=refused)
