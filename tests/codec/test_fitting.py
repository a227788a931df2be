"""Whether a value from outside fits a type, and types that a record tells to the process that has no program."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, TypedDict

import attrs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt import Approval, CommandOutput
from flowckpt.core import codec
from flowckpt.core.codec.fitting import describe_type, find_misfit, fit_value, parse_description
from flowckpt.errors import DecodingError

Name = NewType("Name", str)


class Unknown(pydantic.BaseModel):
    """It says by itself what it takes."""

    number: int


@attrs.frozen
class Order:
    number: int
    tags: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ({"number": 1, "tags": "abc"}, Order, "data.tags is 'abc' (str), not tuple[str, ...]"),
        ([{"number": 1}, {"number": "2"}], list[Order], "data[1].number is '2' (str), not int"),
        ({"a": [1, "b"]}, dict[str, list[int]], "data['a'][1] is 'b' (str), not int"),
        ({"a": 1}, dict[int, int], "data key 'a' is 'a' (str), not int"),
        ([1], tuple[int, int], "data has 1 items, not 2"),
        (5, Name, "data is 5 (int), not str"),
        (5, Annotated[str, "text"], "data is 5 (int), not str"),
        (True, float, "data is True (bool), not float"),
        (1, Literal[True], "data is 1 (int)"),
        (None, list, "data is None (NoneType), not list"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_told_with_its_place(value, kind, said):
    assert find_misfit(value, kind, "data").startswith(said)
    with pytest.raises(ValueError, match=r"data"):
        fit_value(codec.encode(value), kind, place="data")


def test_what_fits_is_built():
    assert fit_value({"number": 1, "tags": ["a"]}, Order, place="data") == Order(1, ("a",))
    assert fit_value([1, 2], set[int], place="data") == {1, 2}
    assert fit_value([1], Any, place="data") == [1]


KINDS = [int, bool, str, float, None, list[int], int | None, dict[str, float], tuple[int, str], tuple[int, ...], list]
KINDS += [Literal["a", 1], datetime, set[str], dict, tuple]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@given(st.sampled_from(KINDS), json_values)
def test_a_described_type_refuses_what_the_type_itself_refuses(kind, value):
    told = parse_description(json.loads(json.dumps(describe_type(kind))))
    assert bool(find_misfit(value, told, "data")) is bool(find_misfit(value, kind, "data"))


@dataclasses.dataclass
class Item:
    name: str
    order: Order | None = None
    more: list[Item] = dataclasses.field(default_factory=list)


class Paid(NamedTuple):
    amount: int
    by: str = ""


Address = TypedDict("Address", {"city": str, "street": NotRequired[str]})  # noqa: UP013 - text would hide what is not required


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (5, Order, "data is 5 (int), not Order"),
        ({"number": "x"}, Order, "data.number is 'x' (str), not int"),
        ({}, Order, "data has no 'number', which Order needs"),
        ({"number": 1, "size": 2}, Order, "data has 'size', which Order does not have"),
        ({"number": 1, "tags": ["a"]}, Order, ""),
        ({"name": "a", "order": {"number": "1"}}, Item, "data.order is {'number': '1'}"),
        ({"name": "a", "more": ["anything"]}, Item, ""),
        ({"amount": 1.5}, Paid, "data.amount is 1.5 (float), not int"),
        ({"amount": 1}, Paid, ""),
        ({"street": "a"}, Address, "data has no 'city', which Address needs"),
        ({"city": "a"}, Address, ""),
        ([{"number": 1}, {}], list[Order], "data[1] has no 'number'"),
    ],
)
def test_a_described_data_class_is_checked_by_its_fields(value, kind, said):
    found = find_misfit(value, parse_description(json.loads(json.dumps(describe_type(kind)))), "data")
    assert found.startswith(said) and bool(found) is bool(said)
    if not said and kind is not Item:
        assert fit_value(value, kind, place="data") is not None
    elif said:
        with pytest.raises((ValueError, DecodingError)):
            fit_value(value, kind, place="data")


def test_what_cannot_be_told_without_the_program_takes_anything():
    assert describe_type(Unknown) is None
    assert describe_type(int | Unknown) is None
    assert find_misfit(
        "anything", parse_description(describe_type(list[Unknown])), "data"
    )  # but that it is a list can be told
    assert not find_misfit(["anything"], parse_description(describe_type(list[Unknown])), "data")
    assert parse_description(["of", "a", "newer version"]) is Any


def test_what_flowckpt_itself_gives_to_workflows_is_of_the_closed_set():
    approval = Approval(True, "ann", "fine", datetime(2026, 1, 1, tzinfo=UTC), {"report": "ab"})
    output = CommandOutput(0, "out", "\udc80", 3)
    tree = json.loads(json.dumps(codec.encode([approval, {"a": output}])))
    assert codec.decode(tree) == [approval, {"a": output}]
