"""What goes in comes out: values whose type an annotation gives."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import decimal
import functools
import json
import re
import sqlite3
import typing
from collections.abc import Awaitable, Collection, Coroutine, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Annotated, Any, Literal, NewType, Optional, SupportsInt, Union

import annotated
import attrs
import pydantic
import pytest
from annotated import (
    Access,
    Bits,
    Box,
    Circle,
    Color,
    Counted,
    Holder,
    Inner,
    Kept,
    Label,
    Level,
    Maker,
    Mixed,
    Model,
    Node,
    OldLabel,
    Options,
    Point,
    Point3,
    Row,
    make_nodes,
    make_point,
    make_point_later,
)
from closed_set import same
from hypothesis import given, settings
from hypothesis import strategies as st

from flowckpt.core.codec import decode, dumps, encode, register_type
from flowckpt.core.codec.annotations import return_annotation
from flowckpt.errors import DecodingError, EncodingError
from tests.stable_ids import stable

Id = NewType("Id", Point)


def through_json(value, annotation):
    return decode(json.loads(dumps(encode(value, annotation))), annotation)


KEPT = [
    (Point(1), Point),
    (Point(1, 2), Point),  # an int where float is annotated stays an int
    (Point(True), Point),  # and True stays True where int is annotated
    (Kept("s", [Point(1)]), Kept),
    (Node(1, [Node(2, [], Color.BOTH)]), Node),
    (Circle(Point(1), 0.5), Circle),
    (Counted(1), Counted),
    (Color.RED, Color),
    (Color.BOTH, Color),
    (Access.READ | Access.WRITE, Access),
    (Label.A, Label),
    (OldLabel.A, OldLabel),
    (Level.LOW, Level),
    (Bits.READ | Bits.WRITE, Bits),
    ([Label.A, None], list[Label | None]),
    ({Label.A: {Level.LOW}}, dict[Label, set[Level]]),
    (Box(Level.LOW), Box[Level]),
    (Row(Point(1)), Row),
    ({"point": Point(1)}, Options),
    (Model(color=Color.RED, max=3, inner=[Inner(at=(1, 2))]), Model),
    ([Model(color=Color.BOTH, max=3)], list[Model]),
    (Box(1), Box[int]),
    (Box(Point(1)), Box[Point]),
    (Box([Box(1)]), Box[list[Box[int]]]),
    ([Point(1), Point(2)], list[Point]),
    ((Point(1), Point(2)), tuple[Point, ...]),
    ((Point(1), 2, (3,)), tuple[Point, int, tuple[int]]),
    ({"a": [Point(1)]}, dict[str, list[Point]]),
    ({1: Point(1)}, dict[int, Point]),
    ({True: Point(1)}, dict[int, Point]),
    ({Color.RED: Point(1)}, dict[Color, Point]),
    ({"a": Point(1)}, Mapping[str, Point]),
    ([Point(1)], Sequence[Point]),
    ((Point(1),), Sequence[Point]),
    ([Point(1)], Iterable[Point]),
    ([Point(1)], Collection[Point]),
    ({Point(1), Point(2)}, set[Point]),
    (frozenset({Point(1)}), frozenset[Point]),
    ({Point(1)}, AbstractSet[Point]),
    (frozenset({Point(1)}), AbstractSet[Point]),
    ({Color.RED}, set[Color]),
    (collections.deque([Point(1)]), collections.deque[Point]),
    (collections.Counter("aab"), collections.Counter[str]),
    (collections.OrderedDict(a=Point(1)), collections.OrderedDict[str, Point]),
    (collections.defaultdict(list, {"a": [Point(1)]}), collections.defaultdict[str, list[Point]]),
    (None, Optional[Point]),  # noqa: UP045
    (Point(1), Optional[Point]),  # noqa: UP045
    (Point(1), Union[Point, Circle]),  # noqa: UP007
    (Circle(Point(1), 1.0), Point | Circle),
    ([Point(1), None, 3, Circle(Point(1), 1.5)], list[Point | Circle | int | None]),
    (Path("a"), Path | Point),
    ((1, 2), tuple[int, int] | Point),
    (1j, complex | Point),
    ("text", Color | str),
    ({"x": "free"}, Point | dict[str, str]),
    (Point(1), Annotated[Point, "unhashable", ["list"]]),
    (Point(1), Id),
    (Color.RED, Literal[Color.RED]),
    (
        Mixed(
            Color.RED,
            "a",
            Access.READ,
            frozenset({"x"}),
            {"p": (Point(1), 1)},
            Circle(Point(0), 1.0),
            collections.deque([1]),
        ),
        Mixed,
    ),
    # The annotation says nothing that the value does not say itself.
    (5, Hashable),
    (5, SupportsInt),
    ("x", Path),
    (5, list[str]),
    (2, float),
    (True, int),
    ([1, (2,)], list),
    ({"a": (1,)}, Any),
    (decimal.Decimal(1), object),
    ({1: ("x",)}, Mapping[int, Any]),
]


@pytest.mark.parametrize(("value", "annotation"), KEPT, ids=stable)
def test_an_annotated_value_comes_back_the_same(value, annotation):
    found = through_json(value, annotation)
    assert type(found) is type(value)
    assert found == value
    assert repr(found).replace("list[annotated.Point]", "<class 'list'>") == repr(value)  # the fields' types too


@given(
    st.recursive(
        st.builds(Node, st.integers(), st.just([]), st.none() | st.sampled_from(Color)),
        lambda inner: st.builds(Node, st.integers(), st.lists(inner, max_size=3), st.none() | st.sampled_from(Color)),
        max_leaves=6,
    )
)
@settings(max_examples=50, deadline=None)
def test_a_tree_of_dataclasses_comes_back_the_same(node):
    assert through_json(node, Node) == node


@given(st.sets(st.builds(Point, st.integers(-3, 3), st.floats(allow_nan=False)), max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_set_of_objects_is_written_alike_in_whatever_order_it_was_filled(points):
    backwards = set()
    for point in sorted(points, key=repr, reverse=True):
        backwards.add(point)
    assert dumps(encode(points, set[Point])) == dumps(encode(backwards, set[Point]))


REFUSED = [
    (Point3(1), Point, "value is a annotated.Point3 and would come back as a annotated.Point"),
    ([Point(1), Point3(1)], list[Point], r"value\[1\] is a annotated.Point3"),
    (Circle(Point3(1), 1.0), Circle, r"value.center is a annotated.Point3"),
    ({"a": Point3(1)}, dict[str, Point], r"value\['a'\] is a annotated.Point3"),
    ([1, {"p": Point(1)}], Any, r"value\[1\].p is a annotated.Point"),
    (Point(1), object, "value is a annotated.Point"),
    ([Point(1)], list, r"value\[0\] is a annotated.Point"),
    (Point("one"), Point, "'one' is a str, not a int"),
    (Point(1.5), Point, "1.5 is a float, not a int"),
    ("r", Color, "annotated.Color"),
    ([Point(1)], Point, "value is a list"),
    (Point(1), Circle, "value is a annotated.Point"),
    (Point(1), list[Point], "value is a annotated.Point"),
    ((Point(1),), list[Point], "value is a tuple and would come back as a list"),
    ({Point(1)}, frozenset[Point], "value is a set and would come back as a frozenset"),
    (1.5, int | Point, "1.5"),
    ({"a": Point(1)}, dict[Label | str, Point], "value key 'a' is a str and would come back as a annotated.Label"),
    ({"a"}, set[Label | str], "would come back as 'annotated.Label' instead of 'str'"),
    ("a", Label | str, "value is a str and would come back as a annotated.Label"),
    ({Point(1): 1}, dict[Point, int], "dict"),
    (collections.OrderedDict(a=Point(1)), dict[str, Point], "OrderedDict"),
    (collections.deque([1], maxlen=3), collections.deque[int], "value.maxlen"),
    (collections.defaultdict(lambda: 5, {"a": 1}), collections.defaultdict[str, int], "default_factory"),
]


@pytest.mark.parametrize(("value", "annotation", "said"), REFUSED, ids=stable)
def test_what_would_come_back_as_something_else_is_refused_when_it_is_recorded(value, annotation, said):
    with pytest.raises(EncodingError, match=said) as caught:
        encode(value, annotation)
    assert caught.value.remedy
    assert caught.value.type_name


def test_a_field_that_the_constructor_does_not_take_and_that_changed_is_refused():
    counted = Counted(1)
    counted.seen = 3
    with pytest.raises(EncodingError, match=r"value.seen would come back as 0 instead of 3"):
        encode(counted, Counted)


@dataclasses.dataclass
class Beside:
    a: int
    made_of: dataclasses.InitVar[int] = 0

    def __post_init__(self, made_of):
        self.made = made_of

    @functools.cached_property
    def twice(self):
        return 2 * self.a

    @property
    def half(self):
        return self.a / 2


class Private(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = 0
    _kept: int = pydantic.PrivateAttr(default=1)


@attrs.define(slots=False, unsafe_hash=True, cache_hash=True)
class Open:
    a: int


@pytest.mark.parametrize(
    ("value", "name", "held", "said"),
    [
        (Beside(1), "extra", 5, "value.extra would be lost"),
        (Beside(1, 9), "a", 2, "value.made would come back as 0 instead of 9"),
        (Open(1), "extra", 5, "value.extra would be lost"),
        (Private(), "_kept", 7, "value._kept would come back as 1 instead of 7"),
        (Private(), "more", Point(1), "value.more is a annotated.Point and would come back as a dict"),
    ],
    ids=["an attribute", "of an InitVar", "of attrs", "private of pydantic", "extra of pydantic"],
)
def test_what_an_object_holds_beside_its_fields_is_never_lost_in_silence(value, name, held, said):
    setattr(value, name, held)
    with pytest.raises(EncodingError, match=re.escape(said)):
        encode(value, type(value))


def test_what_is_only_kept_so_as_not_to_be_worked_out_twice_may_be_lost():
    value = Beside(3)
    assert (value.twice, value.half) == (6, 1.5)
    assert through_json(value, Beside) == value
    hashed = Open(1)
    assert hash(hashed)
    assert through_json(hashed, Open) == hashed
    model = Private(a=2, more=[1, "b"])
    assert through_json(model, Private) == model


def test_an_object_that_contains_itself_is_refused_and_said_to():
    node = Node("a")
    node.children.append(node)
    with pytest.raises(
        EncodingError, match="value is a annotated.Node that is nested too deep, or contains itself"
    ) as caught:
        encode(node, Node)
    assert "flatter" in caught.value.remedy


def test_a_field_that_holds_a_connection_is_refused_by_its_place():
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(EncodingError, match=r"^fetch: output\[1\].conn is a sqlite3.Connection") as caught:
            encode([Holder("a", 1), Holder("b", connection)], list[Holder], place="fetch: output")
        assert caught.value.place == "fetch: output[1].conn"
        with pytest.raises(EncodingError, match="value is a sqlite3.Connection"):
            encode(connection, sqlite3.Connection)


def test_an_any_field_keeps_the_closed_set_exactly():
    value = Holder("a", {1: (2, {3}), "nan": float("nan")})
    assert same(through_json(value, Holder).conn, value.conn)


# --- what a function says that it returns ----------------------------------------------------------------------------


def plain():
    return 1


def unresolvable() -> NoSuchName:  # noqa: F821
    return 1


def awaitable() -> Awaitable[Point]:
    raise NotImplementedError


def coroutine() -> Coroutine[Any, Any, list[Point]]:
    raise NotImplementedError


@functools.wraps(make_point)
def wrapped(*args):
    return make_point(*args)


@functools.lru_cache
def cached() -> Point:
    return Point(1)


class Unhashable:
    __hash__ = None

    def __call__(self) -> Point:
        return Point(1)


@pytest.mark.parametrize(
    ("function", "annotation"),
    [
        (plain, Any),
        (unresolvable, Any),
        (make_point, Point),
        (make_nodes, list[Node]),
        (make_point_later, Point),
        (awaitable, Point),
        (coroutine, list[Point]),
        (wrapped, Point),
        (cached, Point),
        (functools.partial(functools.partial(make_point), 1), Point),
        (Maker().method, dict[str, Point]),
        (Maker(), Circle),
        (Unhashable(), Point),
        (Point, Point),
        (functools.partial(Point, 1), Point),
        (len, Any),
        (sorted, Any),
    ],
    ids=stable,
)
def test_the_annotation_of_whatever_can_be_called_is_found_and_resolved(function, annotation):
    assert return_annotation(function) == annotation


def test_an_annotation_is_resolved_although_another_one_of_the_function_is_not():
    def mine(source: NoSuchName) -> list[Point]:  # noqa: F821
        raise NotImplementedError

    assert return_annotation(mine) == list[Point]


# --- registered types ------------------------------------------------------------------------------------------------


@attrs.frozen
class Registered:
    x: int


@attrs.frozen
class LateRegistered:
    x: int


class Foreign:
    def __init__(self, cents):
        self.cents = cents

    def __eq__(self, other):
        return type(other) is Foreign and other.cents == self.cents

    def __hash__(self):
        return hash(self.cents)


@attrs.frozen
class Bill:
    total: Foreign


def test_a_registered_attrs_class_needs_no_annotation():
    register_type(Registered)
    for value in (Registered(1), [Registered(1)], {"a": (Registered(2),)}, {Registered(3): 1}, {Registered(4)}):
        for annotation in (Any, object, list, dict):
            assert through_json(value, annotation) == value


def test_a_class_of_another_kind_is_registered_with_two_functions():
    register_type(Foreign, name="money", to_plain=lambda value: value.cents, from_plain=Foreign)
    assert encode(Foreign(5)) == {"$as": ["money", 5]}
    for value, annotation in [
        ([Foreign(1)], Any),
        ([Foreign(1)], list[Foreign]),
        (Foreign(1), Foreign),
        (Foreign(1), Foreign | None),
        ({"a": Foreign(1)}, dict[str, Foreign]),
        (Bill(Foreign(1)), Bill),
        ([Bill(Foreign(1)), None], list[Bill | None]),
    ]:
        assert through_json(value, annotation) == value


def test_what_was_recorded_before_a_class_was_registered_is_read_after_it():
    values = {LateRegistered: LateRegistered(1), list[LateRegistered]: [LateRegistered(1)]}
    values[LateRegistered | None] = LateRegistered(2)
    before = {annotation: dumps(encode(value, annotation)) for annotation, value in values.items()}
    register_type(LateRegistered)
    from flowckpt.core.codec import annotations

    annotations._is_structured.cache_clear()  # as in the next process
    for annotation, text in before.items():
        assert decode(json.loads(text), annotation) == values[annotation]
        assert dumps(encode(values[annotation], annotation)) == text


@pytest.mark.parametrize(
    ("cls", "functions"),
    [
        (sqlite3.Connection, {}),
        (sqlite3.Connection, {"to_plain": str}),
        (Foreign, {"from_plain": Foreign}),
        (int, {"to_plain": str, "from_plain": int}),
        (dict, {"to_plain": list, "from_plain": dict}),
        (decimal.Decimal, {"to_plain": str, "from_plain": decimal.Decimal}),
    ],
)
def test_a_registration_that_could_not_work_is_refused(cls, functions):
    with pytest.raises(EncodingError, match=cls.__name__):
        register_type(cls, **functions)
    assert through_json({"a": 1}, Any) == {"a": 1}


def test_a_name_that_another_class_has_is_refused_and_the_same_class_may_come_again():
    @attrs.frozen
    class One:
        x: int

    @attrs.frozen
    class Two:
        x: int

    register_type(One, name="tests.one")
    register_type(One, name="tests.one")
    with pytest.raises(EncodingError, match=r"'tests.one' is registered for .*One already"):
        register_type(Two, name="tests.one")


def test_what_is_refused_inside_a_registered_object_is_named():
    @attrs.frozen
    class Wrapper:
        inner: object

    register_type(Wrapper, name="tests.Wrapper")
    with pytest.raises(EncodingError, match=r"value\[0\].inner\[1\] is a object"):
        encode([Wrapper([1, object()])])


# --- a class that changed since --------------------------------------------------------------------------------------


def version_of(**fields):
    return attrs.make_class("Config", fields, frozen=True)


def test_a_new_field_with_a_default_reads_what_was_recorded_without_it():
    old, new = (
        version_of(x=attrs.field(type=int)),
        version_of(x=attrs.field(type=int), y=attrs.field(type=int, default=7)),
    )
    assert decode(encode(old(1), old), new) == new(1, 7)


@pytest.mark.parametrize("annotate", [lambda c: c, lambda c: list[c], lambda c: c | None, lambda c: dict[str, c]])
def test_a_new_field_without_a_default_and_a_removed_one_are_errors_with_a_remedy(annotate):
    one = version_of(x=attrs.field(type=int))
    two = version_of(x=attrs.field(type=int), y=attrs.field(type=int))

    def wrap(value):
        origin = typing.get_origin(annotate(type(value)))
        return [value] if origin is list else {"k": value} if origin is dict else value

    for old, new in ((one(1), two), (two(1, 2), one)):
        tree = encode(wrap(old), annotate(type(old)))
        with pytest.raises(DecodingError, match="Config") as caught:
            decode(tree, annotate(new), place="fetch: output")
        assert "fetch: output" in str(caught.value)
        assert "defaults" in caught.value.remedy


def test_a_changed_enum_or_model_is_an_error_with_a_remedy():
    with pytest.raises(DecodingError, match=r"annotated.Color.*'green'") as caught:
        decode("green", Color)
    assert caught.value.remedy
    with pytest.raises(DecodingError, match=r"annotated.Inner"):
        decode({"at": [1]}, Inner)
    assert issubclass(Inner, pydantic.BaseModel)
    assert annotated.Inner is Inner


@attrs.frozen
class Leaf:
    number: int
    rows: list[int] = attrs.field(factory=list)


@attrs.frozen
class Other:
    text: str


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Leaf, Leaf("x"), "'x' is a str, not a int, at out.number"),
        (Leaf | None, Leaf(1, [1, "x"]), "'x' is a str, not a int, at out.rows[1]"),
        (list[Leaf | None], [None, Leaf(1, [2.5])], "2.5 is a float, not a int, at out[1].rows[0]"),
        (dict[str, Leaf], {"a b": Leaf("y")}, "'y' is a str, not a int, at out['a b'].number"),
    ],
)
def test_what_is_not_as_annotated_is_refused_with_its_place_in_the_value(annotation, value, said):
    with pytest.raises(EncodingError) as refused:
        encode(value, annotation, place="out")
    assert refused.value.message.endswith(said)


def test_a_union_of_several_classes_names_no_place_of_one_that_was_not_meant():
    with pytest.raises(EncodingError, match="fits none of"):
        encode(Leaf("x"), Leaf | Other, place="out")


# --- which fields were set -------------------------------------------------------------------------------------------


class Part(pydantic.BaseModel):
    size: int = 1
    color: str = "red"


class Order(pydantic.BaseModel):
    number: int
    note: str = ""
    part: Part = Part()
    parts: list[Part] = []
    by_name: dict[str, tuple[Part, ...]] = {}
    made: str = pydantic.Field(default_factory=lambda: "now")


@pytest.mark.parametrize(
    "order",
    [
        Order(number=1),
        Order(number=1, note="", part=Part(size=1), made="then"),
        Order(number=1, parts=[Part(color="blue"), Part()], by_name={"a": (Part(size=1), Part())}),
    ],
)
def test_a_model_knows_after_a_resume_which_of_its_fields_were_set(order):
    found = decode(encode(order, Order), Order)
    assert found == order
    assert found.model_dump(exclude_unset=True) == order.model_dump(exclude_unset=True)
    assert found.model_fields_set == order.model_fields_set
    assert decode(encode([order], list[Order]), list[Order])[0].model_fields_set == order.model_fields_set


def test_a_model_whose_fields_were_all_set_is_recorded_as_its_fields():
    assert encode(Part(size=2, color="blue"), Part) == {"size": 2, "color": "blue"}
