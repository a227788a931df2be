"""A workflow: a generator function whose inputs all have names."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from flowckpt import step, workflow
from flowckpt.core.dsl import Workflow
from flowckpt.errors import InputError, WorkflowDefinitionError


def work():
    return 1


@workflow("etl")
def etl(source: Path, limit: int = 1000, *, strict: bool = False) -> Generator[Any, Any, int]:
    """Say what it does."""
    rows = yield step("fetch").python(work)
    return rows


def line_of(function):
    return f"{__file__}:{inspect.unwrap(function).__code__.co_firstlineno}"


def test_a_workflow_keeps_its_name_its_signature_and_its_documentation():
    assert type(etl) is Workflow
    assert etl.name == "etl"
    assert etl.__doc__ == "Say what it does."
    assert list(etl.signature.parameters) == ["source", "limit", "strict"]
    assert inspect.signature(etl) == etl.signature
    assert etl.function_name.endswith(":etl")
    assert etl.where == line_of(etl.function)
    assert etl.where in repr(etl)
    assert etl.hints["source"] is Path
    assert etl.output_type is int


def test_the_name_is_the_functions_own_where_none_is_given():
    @workflow
    def bare():
        yield

    @workflow()
    def called():
        yield

    assert (bare.name, called.name) == ("bare", "called")
    assert bare.output_type is Any


def test_calling_a_workflow_gives_its_plain_generator():
    generator = etl(Path("a"), limit=3)
    assert inspect.isgenerator(generator)
    assert next(generator) == step("fetch").python(work)
    with pytest.raises(StopIteration) as stop:
        generator.send(7)
    assert stop.value.value == 7


def test_attributes_of_the_function_do_not_displace_those_of_the_workflow():
    def tagged(a):
        yield

    tagged.name = tagged.function = tagged.signature = "something else"
    made = workflow("mine")(tagged)
    assert (made.name, made.function) == ("mine", tagged)
    assert made.bind({"a": 1}) == {"a": 1}


def test_a_decorator_below_is_looked_through():
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @workflow("wrapped")
    @logged
    def wrapped(a: int):
        yield

    assert wrapped.bind({"a": 1}) == {"a": 1}
    assert wrapped.hints["a"] is int


# --- refusals --------------------------------------------------------------------------------------------------------


def no_generator():
    return 1


async def coroutine():
    pass


async def async_generator():
    yield


def varargs(*rows):
    yield


def keywords(**rows):
    yield


def by_place(a, /):
    yield


def reserved(workflow_id):
    yield


def reserved_options(a, options=None):
    yield


def sound(a):
    yield


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (no_generator, "is not a generator function"),
        (coroutine, "is an async function"),
        (async_generator, "is an async function"),
        (varargs, re.escape("has an input '*rows' that cannot be passed by name")),
        (keywords, re.escape("has an input '**rows' that cannot be passed by name")),
        (by_place, "has an input 'a' that cannot be passed by name"),
        (reserved, "has an input 'workflow_id' with the name of an engine argument"),
        (reserved_options, "has an input 'options' with the name of an engine argument"),
    ],
)
def test_what_is_no_workflow_is_refused_with_the_place_of_its_definition(function, said):
    for decorate in (workflow("w"), workflow, workflow()):
        with pytest.raises(WorkflowDefinitionError, match=said) as caught:
            decorate(function)
        assert caught.value.where == line_of(function)
        assert caught.value.where in str(caught.value)
        assert caught.value.remedy


@pytest.mark.parametrize("name", ["", "  ", "\n", 5, b"etl", "a\nb", "a\x1b[0m", "a\u202eb", "x" * 201])
def test_a_name_that_is_none_is_refused_with_the_place_of_the_definition(name):
    with pytest.raises(WorkflowDefinitionError) as caught:
        workflow(name)(sound)
    assert caught.value.where == line_of(sound)
    assert repr(name[:60] if isinstance(name, str) else name) in str(caught.value)


@pytest.mark.parametrize("thing", [5, "text", Path("a")])
def test_what_is_no_function_is_refused_where_it_was_decorated(thing):
    with pytest.raises(WorkflowDefinitionError, match=re.escape(repr(thing))) as caught:
        workflow("w")(thing)
    assert caught.value.where == f"{__file__}:{inspect.currentframe().f_lineno - 1}"


def test_a_class_is_refused_where_it_was_decorated():
    with pytest.raises(WorkflowDefinitionError, match="workflow 'Etl' is not a generator function") as caught:

        @workflow
        class Etl:
            pass

    assert caught.value.where.startswith(f"{__file__}:")


def test_a_partial_is_refused_as_it_has_no_name_to_be_found_by():
    for decorate in (workflow("w"), workflow, workflow()):
        with pytest.raises(WorkflowDefinitionError, match=r"is a functools\.partial: functools\.partial") as caught:
            decorate(functools.partial(sound, 1))
        assert caught.value.where == f"{__file__}:{inspect.currentframe().f_lineno - 1}"
        assert "Write 'def name" in caught.value.remedy


class Pipelines:
    def of_an_object(self, source):
        yield

    @classmethod
    def of_a_class(cls):
        yield

    @staticmethod
    def of_nobody(source):
        yield


def test_a_method_is_refused_before_anybody_has_to_give_it_its_self():
    with pytest.raises(WorkflowDefinitionError, match="is a method: nothing would pass its 'self'") as caught:
        workflow("w")(Pipelines.of_an_object)
    assert caught.value.where == line_of(Pipelines.of_an_object)


def test_what_needs_no_self_may_stand_in_a_class():
    assert [*workflow("w")(Pipelines.of_nobody).signature.parameters] == ["source"]
    assert [*workflow("w")(Pipelines().of_an_object).signature.parameters] == ["source"]
    assert [*workflow("w")(Pipelines.of_a_class).signature.parameters] == []


def test_an_annotation_that_names_nothing_is_an_error_with_a_remedy():
    @workflow
    def lost(a: NoSuchType):  # noqa: F821
        yield

    with pytest.raises(WorkflowDefinitionError, match="NoSuchType") as caught:
        lost.hints
    assert "TYPE_CHECKING" in caught.value.remedy


# --- inputs ----------------------------------------------------------------------------------------------------------


def test_inputs_are_bound_in_the_order_of_the_signature_with_defaults_applied():
    bound = etl.bind({"strict": True, "source": "a"})
    assert bound == {"source": "a", "limit": 1000, "strict": True}
    assert list(bound) == ["source", "limit", "strict"]


def test_an_input_may_be_called_like_any_word_of_the_engine_but_its_two():
    @workflow
    def free(self, workflow, store, name, function, steal, target, tags, inputs, args, kwargs, trigger):
        yield

    given = dict.fromkeys(free.signature.parameters, 1)
    assert free.bind(given) == given


def test_an_unknown_input_is_refused_and_the_known_ones_are_said():
    with pytest.raises(InputError, match=r"no input 'sauce'") as caught:
        etl.bind({"sauce": 1})
    assert caught.value.parameter == "sauce"
    assert "source, limit, strict" in caught.value.remedy


def test_missing_inputs_are_all_named():
    @workflow
    def three(a, b, c=1):
        yield

    with pytest.raises(InputError, match=r"lacks its input 'a', 'b'") as caught:
        three.bind({})
    assert caught.value.parameter == "a"
