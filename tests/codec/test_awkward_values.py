"""Values whose comparison raises or never holds, and annotations that cannot be hashed: one answer, in each process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import attrs
import pytest

from flowckpt.core import codec
from flowckpt.errors import DecodingError

T = TypeVar("T")
NAN = float("nan")


@attrs.frozen
class Box(Generic[T]):
    it: T


@dataclass
class Crate(Generic[T]):
    it: T


class Pair(NamedTuple):
    first: list[Annotated[int, ["unit"]]]


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (Box(3), Box[Annotated[int, ["unit"]]]),
        (Crate(3), Crate[Annotated[int, {"unit": "s"}]]),
        ([Box([3])], list[Box[Annotated[list[int], {}]]]),
        (Box(Box(3)), Box[Box[Annotated[int, []]]]),
        (Box({"a": Box(1)}), Box[dict[str, Box[Annotated[int, []]]]]),
        (Box((1, "a")), Annotated[Box[tuple[Annotated[int, []], str]], []]),
        (Pair([1]), Pair),
        ([3], list[Annotated[int, []]]),
    ],
)
def test_an_annotation_that_cannot_be_hashed_is_used_without_its_remarks(value: Any, annotation: Any):
    tree = codec.encode(value, annotation)
    assert codec.decode(tree, annotation) == value


@pytest.mark.parametrize("text", ["sNaN", "-sNaN12", "NaN"])
@pytest.mark.parametrize(
    ("made", "annotation"),
    [
        (lambda number: number, Decimal),
        (lambda number: [number], list[Decimal]),
        (Box, Box[Decimal]),
        (Crate, Crate[Decimal]),
        (Box, Box[Decimal | None]),
        (lambda number: {"a": Crate(number)}, dict[str, Crate[Any]]),
        (lambda number: number, Any),
    ],
)
def test_a_decimal_that_is_not_a_number_comes_back(text: str, made: Any, annotation: Any):
    value = made(Decimal(text))
    assert repr(codec.decode(codec.encode(value, annotation), annotation)) == repr(value)


def test_another_decimal_is_a_difference():
    from flowckpt.core.codec.types import difference

    assert difference(Decimal("sNaN"), Decimal("sNaN"), "x") == ""
    assert difference(Decimal("sNaN"), Decimal("NaN"), "x")
    assert difference({(NAN, 1)}, {(float("nan"), 1)}, "x") == ""
    assert difference({(NAN, 1)}, {(float("nan"), 2)}, "x")


PROGRAM = """
import dataclasses, json
from flowckpt.core import codec
from flowckpt.errors import DecodingError

@dataclasses.dataclass(frozen=True)
class D:
    x: float
    t: str = ""

n = [float("nan") for _ in range(9)]
for value, annotation in [
    ({frozenset({D(n[0]), D(1.0)}), frozenset({D(n[1])})}, set[frozenset[D]]),
    ({frozenset({D(n[0], "a"), D(n[1], "b"), D(1.0, "c")}), frozenset({D(n[2], "d")})}, set[frozenset[D]]),
    ([{frozenset({n[0], "a", "b"}), frozenset({n[1], "c"}), n[2]}], list[set[object]]),
    ({"k": {(n[0], "a"), (n[1], "b")}}, dict[str, set[tuple[float, str]]]),
]:
    try:
        tree = codec.encode(value, annotation)
        print(json.dumps(tree), json.dumps(codec.encode(codec.decode(tree, annotation), annotation)) == json.dumps(tree))
    except Exception as error:
        print(type(error), error)
"""


def test_a_nested_set_with_a_nan_has_one_answer_for_every_hash_seed():
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    answers = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env={**env, "PYTHONHASHSEED": str(seed)}, capture_output=True, check=True
        ).stdout
        for seed in range(1, 7)
    }
    (answer,) = answers
    assert answer.count(b"True") == 4, answer


PRIME = 2**61 - 1
"""Integers that differ by it have the same hash."""


@pytest.mark.parametrize("tag", ["$set", "$frozenset", "$dict"])
@pytest.mark.parametrize(
    "item",
    [
        lambda number: {"$int": hex(number * PRIME)},
        lambda number: {"$tuple": [{"$int": hex(number * PRIME)}, "x"]},
        lambda number: {"$decimal": str(number * PRIME)},
    ],
    ids=["integers", "tuples", "decimals"],
)
def test_what_hashes_alike_is_refused_before_it_takes_long(tag, item):
    """Else each is compared with all before it: five minutes for these, which is longer than a test may take."""
    items = [[item(number), 1] if tag == "$dict" else item(number) for number in range(100_000)]
    with pytest.raises(DecodingError, match="hash"):
        codec.decode({tag: items})
    assert len(codec.decode({tag: items[:500]})) == 500


def test_a_large_set_is_decoded():
    numbers = {number * 2**40 for number in range(20_000)} | {float(number) for number in range(20_000)}
    assert codec.decode(codec.encode(numbers)) == numbers
