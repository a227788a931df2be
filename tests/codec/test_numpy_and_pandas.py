"""What numpy and pandas return: taken where an annotation says the plain type, refused elsewhere with the way to go."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import attrs
import numpy as np
import pandas as pd
import pydantic
import pytest

from flowckpt import MemoryCheckpointStore, WorkflowEngine, step, workflow
from flowckpt.core import codec
from flowckpt.core.codec import tags
from flowckpt.core.identity import classes
from flowckpt.errors import EncodingError


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (np.float64(1.5), float, 1.5),
        (np.float32(0.5), float, 0.5),
        (np.int64(3), int, 3),
        (np.int64(3), float, 3),
        (np.bool_(True), bool, True),
        (np.str_("a"), str, "a"),
        ([np.int64(1), 2], list[int], [1, 2]),
        ({"a": np.float64(2.0)}, dict[str, float], {"a": 2.0}),
        ((np.int64(1), "b"), tuple[int, str], (1, "b")),
        ((np.int64(1), np.int64(2)), tuple[int, ...], (1, 2)),
        (np.float64(1.0), float | None, 1.0),
        ({np.str_("k"): [np.int64(1)]}, dict[str, list[int]], {"k": [1]}),
        ({np.int64(1)}, set[int], {1}),
        ([np.float64(1.0)], Sequence[float], [1.0]),
        ({"a": np.float64(1.0)}, Mapping[str, float], {"a": 1.0}),
    ],
)
def test_a_scalar_is_taken_where_the_annotation_says_its_plain_type(value, annotation, expected):
    decoded = codec.decode(codec.encode(value, annotation), annotation)
    assert repr(decoded) == repr(expected)


@dataclasses.dataclass(frozen=True)
class Scores:
    mean: float
    count: int
    is_good: bool
    name: str
    each: list[float]
    by_name: dict[str, float]
    pair: tuple[int, str]
    best: float | None
    last: int | str | None


@attrs.frozen
class Model:
    loss: float
    scores: Scores | None = None


class Row(NamedTuple):
    x: float
    n: int


class Record(TypedDict):
    x: float
    rows: list[Row]


class Checked(pydantic.BaseModel):
    x: float
    each: list[float]
    inner: Checked | None = None


@dataclasses.dataclass
class Loose:
    items: list
    anything: Any = None


@dataclasses.dataclass
class Bare:
    table: dict
    pair: tuple = ()
    names: set = dataclasses.field(default_factory=set)


def scores(f: Any, i: Any, b: Any, s: Any) -> Scores:
    return Scores(f(1.5), i(3), b(True), s("a"), [f(0.5), i(1)], {s("k"): f(2)}, (i(3), "b"), f(1), i(4))


def row(f: Any, i: Any) -> Row:
    return Row(f(1.5), i(2))


def unchecked(number: Any) -> Checked:
    inner = Checked.model_construct(x=number(1.5), each=[])
    return Checked.model_construct(x=number(0.5), each=[number(2.0)], inner=inner)


NUMPY, PLAIN = (np.float32, np.int64, np.bool_, np.str_), (float, int, bool, str)


TYPED_FIELDS = pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (scores(*NUMPY), Scores, scores(*PLAIN)),
        ([scores(*NUMPY)], list[Scores], [scores(*PLAIN)]),
        ({"a": Model(np.float64(0.5), scores(*NUMPY))}, dict[str, Model], {"a": Model(0.5, scores(*PLAIN))}),
        (row(np.float64, np.int16), Row, row(float, int)),
        (unchecked(np.float64), Checked, unchecked(float)),
    ],
)


@TYPED_FIELDS
def test_a_scalar_is_taken_in_a_field_whose_annotation_says_its_plain_type(value, annotation, expected):
    assert repr(codec.decode(codec.encode(value, annotation), annotation)) == repr(expected)


@TYPED_FIELDS
def test_so_it_is_where_the_step_says_nothing_and_the_class_is_in_the_program(value, annotation, expected, monkeypatch):
    monkeypatch.setattr(tags, "_PROGRAM", [classes])

    def find():
        return value

    @workflow
    def returning():
        return (yield step("value").python(find).checkpoint())

    assert repr(WorkflowEngine(MemoryCheckpointStore()).run_sync(returning).unwrap()) == repr(expected)


def test_a_scalar_is_taken_in_a_typed_dict():
    decoded = codec.decode(codec.encode({"x": np.float64(1), "rows": [row(np.float64, np.int64)]}, Record), Record)
    assert repr(decoded) == "{'x': 1.0, 'rows': [Row(x=1.5, n=2)]}"


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (Loose([np.float64(1)]), r"items\[0\] is a numpy.float64"),
        (Loose([], np.int64(1)), r"anything is a numpy.int64"),
        (Loose([np.str_("a")]), r"items\[0\] is a numpy.str_"),
        (Loose([[{"a": np.str_("a")}]]), r"items\[0\]\[0\].a is a numpy.str_"),
        (Loose([], np.str_("a")), r"anything is a numpy.str_"),
        (Bare({np.str_("a"): 1}), r"key np.str_\('a'\)"),
        (Bare({"a": np.str_("a")}), r"table.a is a numpy.str_"),
        (Bare({}, (np.str_("a"),)), r"pair\[0\] is a numpy.str_"),
        (Bare({}, (), {np.str_("a")}), r"names\{…\} is a numpy.str_"),
        (dataclasses.replace(scores(*PLAIN), count=np.float64(1.5)), r"count is a numpy.float64"),
    ],
)
def test_a_scalar_is_refused_in_a_field_whose_annotation_does_not_say_its_plain_type(value, place):
    with pytest.raises(EncodingError, match=place):
        codec.encode(value, type(value))


@pytest.mark.parametrize(
    ("value", "annotation", "advice"),
    [
        (np.float64(1.5), object, r"Call float\(x\)"),
        (np.float64(1.5), int, r"Call float\(x\)"),
        ({"n": np.int64(1)}, dict, r"Call int\(x\)"),
        (np.bool_(True), str, r"Call bool\(x\)"),
        (np.datetime64("2026-01-01"), object, r"Call \.astype\('datetime64\[us\]'\)\.item\(\)"),
        (np.arange(3), object, r"return the path.*\.tolist\(\)"),
        (pd.DataFrame({"a": [1]}), object, "Write it to a file, return the path, and claim the file"),
        (pd.Series([1]), object, r"return the path.*\.tolist\(\)"),
        (pd.Timestamp("2026-01-01"), object, r"\.to_pydatetime\(\)"),
        (pd.Timedelta("1s"), object, r"\.to_pytimedelta\(\)"),
        ([pd.NaT], object, "Return None"),
        ({"a": pd.NA}, object, "Return None"),
    ],
)
def test_anything_else_is_refused_with_the_way_to_go(value, annotation, advice):
    with pytest.raises(EncodingError, match=advice):
        codec.encode(value, annotation)


def mean() -> float:
    return np.mean([1, 2])  # type: ignore[return-value]


def test_the_generator_gets_the_plain_value_on_the_first_run_too():
    seen = []

    @workflow
    def means():
        value = yield step("mean").python(mean).checkpoint()
        seen.append(type(value))
        return value

    assert WorkflowEngine(MemoryCheckpointStore()).run_sync(means).output == 1.5
    assert seen == [float]
