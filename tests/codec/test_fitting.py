"""Whether a value from outside fits a type, and types that a record tells to whoever has no program."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, NewType

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowckpt import Approval, CommandOutput
from flowckpt.core import codec
from flowckpt.core.codec.fitting import annotation_of, described, fitted, misfit

Name = NewType("Name", str)


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
    assert misfit(value, kind, "data").startswith(said)
    with pytest.raises(ValueError, match=r"data"):
        fitted(codec.encode(value), kind, place="data")


def test_what_fits_is_built():
    assert fitted({"number": 1, "tags": ["a"]}, Order, place="data") == Order(1, ("a",))
    assert fitted([1, 2], set[int], place="data") == {1, 2}
    assert fitted([1], Any, place="data") == [1]


KINDS = [int, bool, str, float, None, list[int], int | None, dict[str, float], tuple[int, str], tuple[int, ...], list]
KINDS += [Literal["a", 1], datetime, set[str], dict, tuple]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)


@given(st.sampled_from(KINDS), json_values)
def test_a_described_type_refuses_what_the_type_itself_refuses(kind, value):
    told = annotation_of(json.loads(json.dumps(described(kind))))
    assert bool(misfit(value, told, "data")) is bool(misfit(value, kind, "data"))


def test_what_cannot_be_told_without_the_program_takes_anything():
    assert described(Order) is None
    assert described(int | Order) is None
    assert misfit("anything", annotation_of(described(list[Order])), "data")  # but that it is a list can be told
    assert not misfit(["anything"], annotation_of(described(list[Order])), "data")
    assert annotation_of(["of", "a", "newer version"]) is Any


def test_what_flowckpt_itself_gives_to_workflows_is_of_the_closed_set():
    approval = Approval(True, "ann", "fine", datetime(2026, 1, 1, tzinfo=UTC), {"report": "ab"})
    output = CommandOutput(0, "out", "\udc80", 3)
    tree = json.loads(json.dumps(codec.encode([approval, {"a": output}])))
    assert codec.decode(tree) == [approval, {"a": output}]
