"""Objects that inherit equality, hash and repr by their fields behave as those for which attrs writes them."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import threading

import attrs
import pytest

from flowckpt import events
from flowckpt.core.system.attrs_base import FieldEquality, lazy_define, lazy_frozen


def _class(base: type, **options: bool) -> type:
    @attrs.frozen(**options)
    class Point(base):
        x: int
        label: str = attrs.field(default="", eq=str.lower)
        seen: int = attrs.field(default=0, eq=False)
        kept: int = attrs.field(default=0, hash=False)
        secret: str = attrs.field(default="s", repr=False)
        shown: str = attrs.field(default="s", repr=lambda value: f"<{value}>")

    return Point


OURS = _class(FieldEquality, eq=False, repr=False)
ATTRS = _class(object)
VALUES = [
    *((1,), (2,), (1, "A"), (1, "a"), (1, "b"), (1, "a", 5), (1, "a", 0, 7)),
    *((1, "", 0, 0, "t"), (1, "", 0, 0, "s", "u")),
]


@pytest.mark.parametrize("one", VALUES)
@pytest.mark.parametrize("other", VALUES)
def test_two_objects_are_equal_where_attrs_says_so_and_then_have_one_hash(one, other):
    is_equal = ATTRS(*one) == ATTRS(*other)
    assert (OURS(*one) == OURS(*other)) is is_equal
    assert (OURS(*one) != OURS(*other)) is not is_equal
    if is_equal:
        assert hash(OURS(*one)) == hash(OURS(*other))


@pytest.mark.parametrize("value", VALUES)
def test_an_object_is_printed_as_attrs_prints_it(value):
    assert repr(OURS(*value)) == repr(ATTRS(*value))


def test_a_field_that_is_not_hashed_does_not_move_the_hash():
    assert hash(OURS(1, kept=1)) == hash(OURS(1, kept=2)) != hash(OURS(2, kept=1))


def test_objects_of_different_classes_are_not_equal():
    class Sub(OURS):
        pass

    assert OURS(1) != Sub(1)
    assert OURS(1) != ATTRS(1)
    assert OURS(1) != 1


def test_what_holds_a_mapping_has_no_hash():
    from flowckpt import CheckpointData

    data = CheckpointData("c", "w", "h", [], None)
    with pytest.raises(TypeError, match="unhashable"):
        hash(data)


# Classes that are completed late.


def _late_class(make=lazy_frozen) -> type:
    @make(eq=False, repr=False)
    class Point(FieldEquality):
        x: int
        label: str = attrs.field(default="", eq=str.lower)
        parts: list[int] = attrs.field(factory=list)
        _hidden: int = 0

    return Point


@pytest.mark.parametrize(
    "first_look",
    [
        lambda cls: cls(1),
        attrs.fields,
        attrs.has,
        inspect.signature,
        lambda cls: attrs.frozen(eq=False, repr=False)(
            type("Derived", (cls,), {"__annotations__": {"y": int}, "y": 2})
        ),
    ],
)
def test_a_late_class_is_complete_at_the_first_look(first_look):
    cls = _late_class()
    first_look(cls)
    assert list(inspect.signature(cls).parameters) == ["x", "label", "parts", "hidden"]
    assert [field.name for field in attrs.fields(cls)] == ["x", "label", "parts", "_hidden"]
    point = cls(1, "A", hidden=3)
    assert point == cls(1, label="a", hidden=3)
    assert attrs.evolve(point, x=2) == cls(2, "A", hidden=3)
    assert repr(point).endswith("Point(x=1, label='A', parts=[], _hidden=3)")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        point.x = 2
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        cls()


def test_a_late_class_can_be_inherited_and_changed():
    base = _late_class(lazy_define)

    @lazy_define(eq=False, repr=False)
    class Derived(base):
        y: int = 5

    derived = Derived(1, y=7)
    derived.x = 4
    assert (derived.x, derived.y, derived.parts) == (4, 7, [])


def test_objects_of_a_late_class_are_read_back_in_a_process_that_made_none():
    held = pickle.dumps(events.StepRetrying("run", "fetch", 1, 0.5, "E", "no"))
    code = f"import pickle; print(pickle.loads({held!r}))"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert shown.startswith("StepRetrying(workflow_id='run', path='fetch'")


def test_threads_that_make_the_first_object_at_once_get_whole_ones():
    for _ in range(20):
        cls, start, made = _late_class(), threading.Barrier(4), []

        def make(cls=cls, start=start, made=made) -> None:
            start.wait()
            made.append(cls(1, label="a").label)

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert made == ["a"] * 4
