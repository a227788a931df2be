"""One value of the command line: what fits becomes what the annotation says, and what does not fit says why."""

from __future__ import annotations

import dataclasses
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict
from uuid import UUID

import attrs
import pydantic
import pytest

from flowckpt import step, workflow
from flowckpt.cli.arguments import convert_inputs, read_inputs_file
from flowckpt.cli.values import MisfitError, expected_text, from_json, from_text
from flowckpt.errors import InputError


class Color(Enum):
    RED = "r"
    BLUE = 2


@attrs.frozen
class Limits:
    rows: int
    where: Path = Path()
    _hidden: bool = False


@dataclasses.dataclass
class Window:
    since: date
    limits: Limits | None = None


class Point(NamedTuple):
    x: int
    y: int = 0


class Row(TypedDict, total=False):
    name: str


class Model(pydantic.BaseModel):
    count: int


RowCount = NewType("RowCount", int)

TEXTS = [
    (str, "a=b", "a=b"),
    (Any, "5", "5"),
    (int, "-5", -5),
    (RowCount, "7", 7),
    (Annotated[int, "rows"], "7", 7),
    (float, "1e-3", 0.001),
    (complex, "1+2j", 1 + 2j),
    (bytes, "é", "é".encode()),
    *[(bool, word, True) for word in ("true", "TRUE", "1", "yes", "on")],
    *[(bool, word, False) for word in ("false", "0", "no", "Off")],
    (Path, "a b/c", Path("a b/c")),
    (PurePosixPath, "a", PurePosixPath("a")),
    (datetime, "2026-11-20T15:30:00Z", datetime(2026, 11, 20, 15, 30, tzinfo=UTC)),
    (date, "2026-11-20", date(2026, 11, 20)),
    (time, "15:30", time(15, 30)),
    (timedelta, "90", timedelta(seconds=90)),
    (timedelta, "1.5", timedelta(seconds=1.5)),
    (timedelta, "1h 30m", timedelta(minutes=90)),
    (timedelta, "2d", timedelta(days=2)),
    (timedelta, "1w 500ms", timedelta(weeks=1, milliseconds=500)),
    (Decimal, "1.10", Decimal("1.10")),
    (Fraction, "1/3", Fraction(1, 3)),
    (UUID, "12345678123456781234567812345678", UUID("12345678123456781234567812345678")),
    (Color, "RED", Color.RED),
    (Color, "r", Color.RED),
    (Color, "2", Color.BLUE),
    (Literal["a", 1], "1", 1),
    (Optional[int], "null", None),  # noqa: UP045 - the old spelling is another type at run time
    (int | None, "3", 3),
    (str | None, "null", "null"),
    (int | str, "3", 3),
    (str | int, "3", 3),
    (int | str, "x", "x"),
    (list[int], "[1, 2]", [1, 2]),
    (list, '["a", 1]', ["a", 1]),
    (dict[int, Path], '{"1": "a"}', {1: Path("a")}),
    (tuple[int, str], '[1, "a"]', (1, "a")),
    (tuple[int, ...], "[1, 2, 3]", (1, 2, 3)),
    (set[str], '["a", "a"]', {"a"}),
    (Limits, '{"rows": 3, "where": "x", "hidden": true}', Limits(3, Path("x"), True)),
    (Window, '{"since": "2026-11-20", "limits": {"rows": 1}}', Window(date(2026, 11, 20), Limits(1))),
    (Point, "[1]", Point(1)),
    (Point, '{"x": 1, "y": 2}', Point(1, 2)),
    (Row, '{"name": "a"}', {"name": "a"}),
    (Model, '{"count": 3}', Model(count=3)),
]


@pytest.mark.parametrize(("annotation", "text", "value"), TEXTS)
def test_text_becomes_what_the_annotation_says(annotation, text, value):
    found = from_text(text, annotation)
    assert found == value and type(found) is type(value)


MISFITS = [
    (int, "1.5", "an integer", ""),
    (int, "", "an integer", ""),
    (float, "x", "a number", ""),
    (bool, "2", "true or false", ""),
    (date, "20.11.2026", "a date like 2026-11-20", ""),
    (timedelta, "1x", "seconds, or a time span like 1h30m", ""),
    (timedelta, "1h x", "seconds, or a time span like 1h30m", ""),
    (Decimal, "x", "Decimal", ""),
    (UUID, "x", "UUID", ""),
    (Color, "GREEN", "one of RED, BLUE", ""),
    (Literal["a", 1], "b", "one of a, 1", ""),
    (int | bool, "x", "an integer or true or false", ""),
    (list[int], "1,2", "list[int], written as JSON", ""),
    (list[str], '"abc"', "list[str]", ""),
    (list[int], '[1, "2"]', "an integer", "[1]"),
    (list[int], "[1, true]", "an integer", "[1]"),
    (dict[str, bool], '{"a": 1}', "true or false", ".a"),
    (tuple[int, str], "[1]", "a list of 2", ""),
    (Limits, '{"row": 3}', "Limits with the fields rows, where, hidden", ""),
    (Window, '{"since": "2026-11-20", "limits": {"rows": "3"}}', "an integer", ".limits.rows"),
    (set[Any], "[[1]]", "set[typing.Any] whose items can be hashed", ""),
    (type(test_text_becomes_what_the_annotation_says), "1", "function, which cannot be given on the command line", ""),
]


@pytest.mark.parametrize(("annotation", "text", "expected", "place"), MISFITS)
def test_what_does_not_fit_is_refused_with_what_was_expected(annotation, text, expected, place):
    with pytest.raises(MisfitError) as caught:
        from_text(text, annotation)
    assert (caught.value.expected, caught.value.place) == (expected, place)


JSON = [
    (int, 3, 3),
    (float, 3, 3.0),
    (Decimal, 1.5, Decimal("1.5")),
    (timedelta, 90, timedelta(seconds=90)),
    (datetime, datetime(2026, 11, 20), datetime(2026, 11, 20)),
    (Path, "a", Path("a")),
    (Color, 2, Color.BLUE),
    (int | None, None, None),
    (int | str, "3", "3"),
    (bool | int, 1, 1),
    (Any, {"a": [1]}, {"a": [1]}),
]


@pytest.mark.parametrize(("annotation", "given", "value"), JSON)
def test_json_is_taken_at_its_word(annotation, given, value):
    found = from_json(given, annotation)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("annotation", "given"), [(int, "3"), (bool, 1), (str, 3), (float, "1"), (int, 1.0), (None, 0)]
)
def test_json_of_another_type_is_refused(annotation, given):
    with pytest.raises(MisfitError):
        from_json(given, annotation)


def test_expected_text_names_a_union():
    assert expected_text(int | None) == "an integer or null"


@workflow
def sums(source: Path, rows: list[int], untyped=1, text=None):
    yield step("sum").python(sum, rows)


def test_inputs_are_converted_by_annotation_then_by_default():
    found = convert_inputs(sums, {"source": "a", "untyped": "2", "text": "3"}, {"rows": [1], "untyped": 9})
    assert found == {"rows": [1], "source": Path("a"), "untyped": 2, "text": "3"}


def test_an_unknown_input_lists_the_known_ones():
    with pytest.raises(InputError) as caught:
        convert_inputs(sums, {"sorce": "a"})
    assert caught.value.parameter == "sorce"
    assert "source: Path, rows: list[int], untyped = 1, text = None" in caught.value.remedy


def test_an_input_that_does_not_fit_is_named_with_its_place_and_value():
    with pytest.raises(InputError) as caught:
        convert_inputs(sums, {"rows": '[1, "\\u001b[2J"]'})
    assert caught.value.parameter == "rows"
    assert "input 'rows' of workflow 'sums' must be an integer at rows[1], got '\\x1b[2J'" in caught.value.message


def test_a_file_of_inputs(tmp_path):
    (tmp_path / "a.toml").write_text("rows = [1]\nday = 2026-11-20\n")
    assert read_inputs_file(str(tmp_path / "a.toml")) == {"rows": [1], "day": date(2026, 11, 20)}
    (tmp_path / "a.json").write_text("[1]")
    for name, said in (("a.json", "must be an object"), ("none", "cannot be read"), ("bad", "not valid JSON")):
        (tmp_path / "bad").write_text("{")
        with pytest.raises(InputError, match=said):
            read_inputs_file(str(tmp_path / name))
