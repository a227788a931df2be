"""Values of PostgreSQL: which Python value fits which type, how it is bound, and when two are the same.

A value is bound as text and cast to the column's own type, so that the server neither rounds nor guesses: what does not
fit a column exactly is in none of its rows. Numbers are compared as they are written: 0.1 is 0.1, whether numeric or
float. Types that Python has nothing like (enums, networks, ranges …) are compared as the text that the server shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import attrs

from flowckpt.evidence.checks import http
from flowckpt.evidence.checks.base import MalformedClaimError
from flowckpt.evidence.databases.base import NoSuchThingError
from flowckpt.evidence.documents import is_digest, matches

_INTEGERS = {"int2": 2**15, "int4": 2**31, "int8": 2**63}
_FLOATS = frozenset({"float4", "float8"})
_JSON = frozenset({"json", "jsonb"})
_NUMBER_TYPES = (int, float, Decimal)
_FITTING: dict[str, tuple[type, ...]] = {
    **dict.fromkeys((*_INTEGERS, *_FLOATS, "numeric"), _NUMBER_TYPES),
    **dict.fromkeys(_JSON, (dict, list, str, int, float, bool)),
    "bool": (bool,),
    "text": (str,),
    "varchar": (str,),
    "bytea": (bytes,),
    "uuid": (UUID,),
    "date": (date,),
    "time": (time,),
    "timetz": (time,),
    "timestamp": (datetime,),
    "timestamptz": (datetime,),
    "interval": (timedelta,),
}
_AWARE = {"time": False, "timestamp": False, "timetz": True, "timestamptz": True}
_UNBOUNDED = frozenset({"text", "varchar", "bytea", *_JSON})
_KNOWN = (type(None), *{each for fitting in _FITTING.values() for each in fitting})


@attrs.frozen(repr=False)
class JsonDocument:
    """A JSON value of a column: its null is not the database's NULL."""

    document: Any

    def __repr__(self) -> str:
        return "JSON null" if self.document is None else repr(self.document)


@attrs.frozen
class Column:
    """A column, as the catalogue describes it.

    Attributes:
        name: its name.
        type_name: its type, under any domain; empty for one that is not PostgreSQL's own.
        is_array: whether it holds arrays of that type.
    """

    name: str
    type_name: str
    is_array: bool

    @property
    def is_known(self) -> bool:
        """Whether Python has values of the type."""
        return self.type_name in _FITTING

    def selected(self, identifier: str) -> str:
        """Return the expression that reads the column."""
        is_plain = self.is_known and (self.is_array or self.type_name not in _JSON)
        return identifier if is_plain else f"{identifier}::pg_catalog.text"

    def size(self, identifier: str) -> str:
        """Return the expression of a value's size; empty where no value is large."""
        if self.is_known and not self.is_array and self.type_name not in _UNBOUNDED:
            return ""
        is_bytes = self.type_name == "bytea" and not self.is_array
        return f"pg_catalog.octet_length({identifier}{'' if is_bytes else '::pg_catalog.text'})"

    def condition(self, identifier: str, value: Any) -> str:
        """Return the condition that the column has a value, which is bound where it is not None.

        Not `IS NOT DISTINCT FROM`, which says the same of a bound value and uses no index.
        """
        if value is None:
            return f"{identifier} IS NULL"
        if self.type_name in _FLOATS:
            left, cast = f"{identifier}::pg_catalog.text::pg_catalog.numeric", "numeric"
        elif self.type_name in _JSON:
            left, cast = f"{identifier}::pg_catalog.jsonb", "jsonb"
        elif self.is_known:
            left, cast = identifier, self.type_name
        else:
            left, cast = f"{identifier}::pg_catalog.text", "text"
        return f"{left} OPERATOR(pg_catalog.=) %s::pg_catalog.{cast}"

    def bound(self, value: Any) -> str:
        """Return the text that is bound for a value.

        Args:
            value: the value; not None.

        Raises:
            MalformedClaimError: nothing can be selected by the value.
            NoSuchThingError: no row of a column of this type can have it.
        """
        check_value(self.name, value)
        if self.is_array:
            raise MalformedClaimError(f"{self.name!r:.80} holds arrays, and no row can be selected by one")
        fitting = _FITTING.get(self.type_name, (str,))
        is_aware = _AWARE.get(self.type_name)
        if type(value) not in fitting or (is_aware is not None and (value.utcoffset() is not None) != is_aware):
            raise self._unlike(value)
        if self.type_name in _JSON:
            return _json_text(self.name, value)
        if isinstance(value, _NUMBER_TYPES) and self.type_name != "bool":
            return self._number_text(value)
        if isinstance(value, str) and "\0" in value:
            raise self._unlike(value)
        return _text(value)

    def loaded(self, value: Any) -> Any:
        """Return the Python value of what the driver returned."""
        if value is not None and self.type_name in _JSON and not self.is_array:
            return JsonDocument(json.loads(value))
        return value

    def _number_text(self, value: float | Decimal) -> str:
        number = _as_written(value)
        if self.type_name in _INTEGERS:
            if not number.is_finite() or number != number.to_integral_value() or not self._holds(number):
                raise self._unlike(value)
            return str(int(number))
        return str(number)

    def _holds(self, number: Decimal) -> bool:
        bound = _INTEGERS[self.type_name]
        return -bound <= number < bound

    def _unlike(self, value: Any) -> NoSuchThingError:
        return NoSuchThingError(
            f"no row matches: {self.name!r:.80} is a column of {self.type_name or 'a type of its own'}, "
            f"and holds no such {type(value).__name__}"
        )


def check_value(name: str, value: Any) -> None:
    """Check that a claim's value is one that rows can be selected by.

    Raises:
        MalformedClaimError: it is not.
    """
    if type(value) not in _KNOWN:
        raise MalformedClaimError(
            f"the value of {name!r:.80} is a {type(value).__name__} that PostgreSQL does not hold",
            remedy="Write None, a bool, a number, a text, bytes, a date or time, a UUID, or JSON.",
        )
    if isinstance(value, float | Decimal) and _as_written(value).is_nan():
        raise MalformedClaimError(f"the value of {name!r:.80} is not a number")
    if isinstance(value, str):
        encodable(value)


def encodable(text: str) -> str:
    """Return a text that a database can be asked about."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedClaimError(f"{text!r:.80} is not a text") from None
    return text


def is_same(wanted: Any, found: Any) -> bool:
    """Tell whether a row's value is the one that was promised."""
    if is_digest(wanted):
        return any(matches(wanted, form) for form in _forms(found))
    if isinstance(found, JsonDocument):
        return wanted is not None and http.is_same(wanted, found.document)
    if type(wanted) in _NUMBER_TYPES and type(found) in _NUMBER_TYPES:
        one, other = _as_written(wanted), _as_written(found)
        return not one.is_nan() and not other.is_nan() and one == other
    if type(wanted) in (list, tuple) and type(found) is list:
        return len(wanted) == len(found) and all(map(is_same, wanted, found))
    return type(wanted) is type(found) and bool(wanted == found)


def _as_written(number: float | Decimal) -> Decimal:
    return Decimal(repr(number)) if isinstance(number, float) else Decimal(number)


def _forms(found: Any) -> Iterator[Any]:
    """Yield a value as a program may have written it."""
    if isinstance(found, JsonDocument):
        found = found.document
    yield found
    if isinstance(found, Decimal) and found.is_finite():
        yield int(found) if found == found.to_integral_value() else float(found)


def _json_text(name: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise MalformedClaimError(f"the value of {name!r:.80} is not JSON") from None


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, timedelta):
        return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"
    return value.isoformat() if isinstance(value, date | time) else str(value)
