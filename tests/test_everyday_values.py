"""Arguments of everyday types: an equal value is the same argument in every process, and another value is a change."""

from __future__ import annotations

import array
import cmath
import collections
import copyreg
import dataclasses
import decimal
import enum
import functools
import math
import operator
import os
import pathlib
import random
import re
import subprocess
import sys
import threading
import time
import types
import typing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flowckpt.core.identity.fingerprint import STEP_FORM
from flowckpt.core.identity.values import UNKNOWN, ValueTree, code_part, digest_value, is_incomplete


class Text(str): ...


class Rows(list): ...


class Names(set): ...


class Client:
    def __init__(self, rate: int, parent: Any = None) -> None:
        self.rate = rate
        self.names = {"a", "b", "c"}
        self.child = None if parent else Client(rate, self)
        self.parent = parent

    def bill(self, count: int) -> int:
        return count * self.rate


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate: int) -> None:
        self.rate = rate


def twice(value: int) -> int:
    return 2 * value


def thrice(value: int) -> int:
    return 3 * value


def scaled(rate: int) -> Any:
    return lambda value: rate * value


PLUS, TIMES = lambda value: value + 1, lambda value: value * 10


def composed(first: Any, second: Any) -> Any:
    return lambda value: second(first(value))


def counted(text: str) -> Any:
    made = collections.defaultdict(list)
    for letter in text:
        made[letter].append(letter)
    return made


def error(note: str) -> ValueError:
    made = ValueError("a")
    made.note = note
    return made


def frame(rows: int, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": range(rows), "b": ["x"] * rows, **columns})


VALUES = {
    "range": (range, 3, 4),
    "slice": (slice, 3, 4),
    "Counter": (collections.Counter, "abb", "ab"),
    "OrderedDict": (lambda keys: collections.OrderedDict.fromkeys(keys, 1), "ab", "ba"),
    "defaultdict": (counted, "ab", "abb"),
    "deque": (lambda size: collections.deque([1, 2], size), 3, 4),
    "bytearray": (bytearray, b"a", b"b"),
    "array": (lambda item: array.array("d", [item]), 1.0, 2.0),
    "str subclass": (Text, "a", "b"),
    "list subclass": (Rows, [1], [2]),
    "set subclass": (Names, "abc", "abd"),
    "SimpleNamespace": (lambda rate: types.SimpleNamespace(rate=rate), 1, 2),
    "Pattern": (re.compile, "a", "b"),
    "ZoneInfo": (ZoneInfo, "Europe/Berlin", "Europe/Rome"),
    "timezone": (lambda hours: timezone(timedelta(hours=hours)), 1, 2),
    "exception": (ValueError, "a", "b"),
    "exception with a field": (error, "b", "c"),
    "itemgetter": (operator.itemgetter, 1, 2),
    "keys": (lambda text: dict.fromkeys(text).keys(), "ab", "ac"),
    "values": (lambda text: dict(enumerate(text)).values(), "ab", "ac"),
    "PurePosixPath": (pathlib.PurePosixPath, "a", "b"),
    "numpy scalar": (np.float32, 1, 2),
    "array of numbers": (np.arange, 3, 4),
    "array of other numbers": (lambda kind: np.zeros(3, kind), "i4", "f4"),
    "array of objects": (lambda item: np.array([item, None], dtype=object), "a", "b"),
    "Timestamp": (pd.Timestamp, "2026-01-01", "2026-01-02"),
    "Series": (pd.Series, [1, 2], [1, 3]),
    "DataFrame": (frame, 3, 4),
    "DataFrame with another text": (lambda item: pd.DataFrame({"a": [item]}, dtype="str"), "north", "south"),
    "DataFrame with another name": (lambda item: frame(2).rename(columns={"b": item}), "zone", "region"),
    "table of Arrow": (lambda item: pa.table({"a": [item, None]}), "north", "south"),
    "array of Arrow": (lambda item: pa.array(["x", item])[1:], "north", "south"),
    "DataFrame with another column": (lambda item: frame(2, c=[item, None]), "a", "b"),
    "partial": (lambda rate: functools.partial(twice, rate), 1, 2),
    "closure": (scaled, 1, 2),
    "beside a client": (lambda limit: {"api": Client(1), "limit": limit}, 1, 2),
    "function": (lambda name: {"twice": twice, "thrice": thrice}[name], "twice", "thrice"),
    "class": (lambda name: {"Client": Client, "Slotted": Slotted}[name], "Client", "Slotted"),
    "builtin": (lambda name: {"len": len, "max": max}[name], "len", "max"),
    "function of a library": (lambda module: module.sqrt, math, cmath),
    "cached function": (functools.cache, twice, thrice),
    "lambdas in an order": (lambda way: [PLUS, TIMES][::way], 1, -1),
    "set of lambdas": (lambda number: {PLUS, TIMES, *[composed(PLUS, TIMES)][:number]}, 0, 1),
    "closure of functions": (lambda way: composed(*[PLUS, TIMES][::way]), 1, -1),
    "closure of library functions": (lambda way: composed(*[int, len][::way]), 1, -1),
    "in a list": (lambda stop: [range(stop)], 1, 2),
    "in a dict": (lambda stop: {"to": slice(stop), "at": datetime(2026, 1, 1, tzinfo=UTC)}, 1, 2),
    "beside a function": (lambda limit: {"key": twice, "limit": limit}, 1, 2),
}


def digest(name: str, which: int) -> Any:
    make, *arguments = VALUES[name]
    return digest_value(make(arguments[which]))


@pytest.mark.parametrize("name", VALUES)
def test_an_equal_value_is_the_same_argument_and_another_value_is_not(name):
    assert digest(name, 0) == digest(name, 0) != UNKNOWN
    assert digest(name, 1) == digest(name, 1) != UNKNOWN
    assert digest(name, 0) != digest(name, 1)


def test_a_value_is_the_same_argument_in_every_process():
    program = "from tests.test_everyday_values import *; print([digest(name, 0) for name in VALUES])"
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.stdout.strip() == repr([digest(name, 0) for name in VALUES]), done.stderr


def test_a_library_that_changes_how_exceptions_are_pickled_changes_no_argument(monkeypatch):
    before = digest("exception", 0)
    monkeypatch.setitem(copyreg.dispatch_table, ValueError, lambda error: (ValueError, ("pickled otherwise",)))
    assert digest("exception", 0) == before


def test_the_way_in_which_python_pickles_a_path_changes_no_argument(monkeypatch):
    before = digest("PurePosixPath", 0)
    assert before == "ByrUQyGarkoYNtjzA4b2-w"
    monkeypatch.setattr(pathlib.PurePath, "__reduce__", lambda path: (type(path), (str(path),)))
    assert digest("PurePosixPath", 0) == before


def test_the_name_of_a_comprehension_around_a_function_changes_no_argument():
    """A comprehension is a function of its own before Python 3.12."""
    function = composed(PLUS, TIMES)
    before = digest_value(function)
    function.__qualname__ = "composed.<locals>.<listcomp>.<lambda>"
    assert digest_value(function) == before


def test_functions_and_classes_count_as_code():
    lambdas = {"lambdas in an order", "set of lambdas", "closure of functions", "closure of library functions"}
    with_code = {name for name in VALUES if code_part(digest(name, 0))}
    of_values = {"str subclass", "list subclass", "set subclass"}
    functions = {"partial", "closure", "function", "class", "beside a function", "beside a client", "cached function"}
    assert with_code == functions | lambdas | of_values


@dataclasses.dataclass
class Fields:
    rate: int = 7


@dataclasses.dataclass
class Derived(Fields):
    more: int = 8


class Size(enum.Enum):
    SMALL = 1


class Color(enum.Enum):
    RED = 1

    @property
    def text(self) -> str:
        return self.name


class Price(decimal.Decimal):
    @functools.cached_property
    def gross(self) -> decimal.Decimal:
        return self * 2


@dataclasses.dataclass
class Order:
    net: int = 1

    @classmethod
    @functools.lru_cache
    def free(cls) -> Order:
        return cls(0)


class Special(Order): ...


class Vector(typing.NamedTuple):
    x: int = 1
    y: int = 2

    def length(self) -> float:
        return abs(complex(*self))


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        *((each, False) for each in (Fields(), Derived(), Size.SMALL, Text("a"), Rows(), {"a": [Fields()]})),
        *((each, True) for each in (Color.RED, Price(1), Order(), Special(), Vector(), [{"a": (Order(),)}])),
    ],
    ids=repr,
)
def test_the_definition_of_a_value_counts_if_it_has_methods_that_the_step_may_call(value, counts):
    walk = ValueTree()
    walk.of(value)
    assert [code.startswith(STEP_FORM) for code in walk.codes] == [counts]


class Cached:
    """It compares by its name, and contains more."""

    def __init__(self, name: str) -> None:
        self.name, self.made_at = name, time.time_ns()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cached) and other.name == self.name

    __hash__ = None


@dataclasses.dataclass(eq=False)
class Service:
    calls: int = 0


@pytest.mark.parametrize(
    "make",
    [lambda: Client(1), lambda: Slotted(1), lambda: Cached("a"), Service, lambda: [Client(1), {"b": Client(2)}]],
    ids=["client", "slots", "own equality", "data class that compares by identity", "in a list"],
)
def test_the_state_of_an_object_does_not_count_but_its_class_does(make):
    form = digest_value(make())
    assert is_incomplete(form) and code_part(form)
    changed = make()
    for each in changed if isinstance(changed, list) else [changed]:
        if not isinstance(each, dict):
            each.rate = 7  # a cache that was filled, or a counter
    assert digest_value(changed) == form


@pytest.mark.parametrize("make", [lambda: os.environ, lambda: random.Random(1), threading.Lock, lambda: iter([1])])
def test_what_changes_by_itself_is_not_compared(make):
    assert digest_value(make()) == UNKNOWN


def test_what_would_take_long_to_read_at_each_call_is_not_compared(monkeypatch):
    monkeypatch.setattr("flowckpt.core.identity.values.MAX_ITEMS", 1 << 20)
    assert digest_value(np.zeros(1 << 24)) == UNKNOWN
