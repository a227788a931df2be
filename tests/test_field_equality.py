"""Objects that inherit equality, hash and repr by their fields behave as those for which attrs writes them."""

from __future__ import annotations

import attrs
import pytest

from flowckpt.core.system.attrs_base import FieldEquality


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
