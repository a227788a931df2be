"""Python values as JSON trees, and back, with value and type kept exactly.

The rules:

- JSON's own types stand for themselves: None, bool, int, float, str, list, and dict with text keys.
- Everything else of the closed set is an object with one key that begins with `$`, the tag: `{"$tuple": [1, 2]}`.
- A dict that JSON cannot express (keys that are no text, or that begin with `$`) is a tag too:
  `{"$dict": [[1, "a"], …]}`.
- Types are matched exactly. A subclass (a namedtuple, a defaultdict, numpy's numbers) is refused, not flattened:
  it would come back as another type.
- Decoding looks tags up in a table. It never imports or calls a name that the bytes chose.
- Trees are at most `MAX_DEPTH` deep, so what was written can also be read, whatever the reader's stack.
"""

from __future__ import annotations

import binascii
import importlib
import math
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from json import JSONEncoder
from pathlib import Path
from typing import Any, TypeAlias

import attrs

from flowckpt.errors import DecodingError, EncodingError, type_name

Json: TypeAlias = Any
"""A JSON tree: None, bool, int, float, str, and lists and text-keyed dicts of them."""

MAX_DEPTH = 100

dumps = JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
"""Write a tree as compact JSON text."""

_SMALLEST, _LARGEST = -(2**63), 2**64  # what other JSON readers still take as an integer


class _RefusedError(Exception):
    """A value is not of the closed set; `_locate` finds out where."""


# --- encoding --------------------------------------------------------------------------------------------------------


def encode(value: Any, place: str = "value") -> Json:
    """Return the tree of a value.

    Args:
        value: any value of the closed set (design: values).
        place: what to call the value in an error.

    Raises:
        EncodingError: something in it is not of the closed set; the error names the place.
    """
    encoder = _ENCODERS.get(type(value))
    try:
        return encoder(value, 0) if encoder else _encode_other(value, 0)
    except (_RefusedError, RecursionError):
        raise _refusal(value, place) from None


def _encode(value: Any, depth: int) -> Json:
    encoder = _ENCODERS.get(type(value))
    return encoder(value, depth) if encoder else _encode_other(value, depth)


def _encode_other(value: Any, depth: int) -> Json:
    """Encode a type seen for the first time: a registered one, or one whose module is loaded only now."""
    if type(value).__module__ in _RARE_MODULES:
        _load_rare()
        if encoder := _ENCODERS.get(type(value)):
            return encoder(value, depth)
    raise _RefusedError


def _self(value: Any, _: int) -> Json:
    return value


def _int(value: int, _: int) -> Json:
    return value if _SMALLEST <= value < _LARGEST else {"$int": hex(value)}  # hex has no digit limit


def _float(value: float, _: int) -> Json:
    return value if math.isfinite(value) else {"$float": repr(value)}


def _str(value: str, _: int) -> Json:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates, as in undecodable file names: UTF-8 cannot hold them
        return {"$str": _b64(value.encode("utf-8", "surrogatepass"))}
    return value


def _list(value: list[Any], depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise _RefusedError
    depth += 1
    return [_encode(item, depth) for item in value]


def _dict(value: dict[Any, Any], depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise _RefusedError
    depth += 1
    for key in value:
        if type(key) is not str or key[:1] == "$" or not (key.isascii() or _str(key, 0) is key):
            return {"$dict": [[_encode(k, depth), _encode(v, depth)] for k, v in value.items()]}
    return {key: _encode(item, depth) for key, item in value.items()}


def _tagged_items(tag: str) -> Callable[[Any, int], Json]:
    return lambda value, depth: {tag: _list(value, depth)}


def _tagged_set(tag: str) -> Callable[[Any, int], Json]:
    # Sorted by their text, so that equal sets have equal bytes in every process.
    return lambda value, depth: {tag: sorted(_list(value, depth), key=dumps)}


def _complex(value: complex, _: int) -> Json:
    return {"$complex": [_float(value.real, 0), _float(value.imag, 0)]}


def _moment(tag: str) -> Callable[[Any, int], Json]:
    def encode_moment(value: datetime | time, _: int) -> Json:
        zone = value.tzinfo
        if zone is None:
            return {tag: value.isoformat() if not value.fold else [value.isoformat(), value.fold, None]}
        text = value.replace(tzinfo=None).isoformat()
        return {tag: [text, value.fold, _encode_zone(zone)]}

    return encode_moment


def _encode_zone(zone: tzinfo) -> Json:
    if type(zone) is timezone:
        arguments = zone.__getinitargs__()  # type: ignore[attr-defined]  # (offset,) or (offset, name)
        return [_timedelta(arguments[0], 0)["$timedelta"], *arguments[1:]]
    if type(zone).__module__.partition(".")[0] == "zoneinfo":
        key = getattr(zone, "key", None)
        if key is not None:
            return str(key)
    raise _RefusedError


def _timedelta(value: timedelta, _: int) -> Any:
    return {"$timedelta": [value.days, value.seconds, value.microseconds]}


def _b64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


PathType = type(Path())

_ENCODERS: dict[type, Callable[[Any, int], Json]] = {
    type(None): _self,
    bool: _self,
    int: _int,
    float: _float,
    str: _str,
    list: _list,
    dict: _dict,
    tuple: _tagged_items("$tuple"),
    set: _tagged_set("$set"),
    frozenset: _tagged_set("$frozenset"),
    bytes: lambda value, _: {"$bytes": _b64(value)},
    complex: _complex,
    date: lambda value, _: {"$date": value.isoformat()},
    time: _moment("$time"),
    datetime: _moment("$datetime"),
    timedelta: _timedelta,
    PathType: lambda value, _: {"$path": _str(str(value), 0)},
}

_RARE_MODULES = frozenset({"decimal", "_pydecimal", "fractions", "uuid"})


def _load_rare() -> None:
    # Their modules take 7 to 16 ms to import, as much as all of flowckpt; most runs never meet one of these values.
    importlib.import_module("flowckpt.codec.rare")


# --- decoding --------------------------------------------------------------------------------------------------------


def decode(tree: Json, place: str = "value") -> Any:
    """Return the value of a tree: a fresh one, that shares nothing with the tree.

    Args:
        tree: what `encode` returned, perhaps by way of JSON text.
        place: what to call the value in an error.

    Raises:
        DecodingError: a tag is unknown, or what it holds is malformed.
    """
    kind = type(tree)
    if kind is not dict and kind is not list:
        return tree
    try:
        return _decode(tree)
    except DecodingError:
        raise
    except RecursionError:
        raise DecodingError(f"{place} is nested too deep to be read", place=place) from None
    except (
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        AttributeError,
        binascii.Error,
    ) as error:
        raise DecodingError(f"{place} holds a malformed tag: {error}", place=place) from error


def _decode(tree: Json) -> Any:
    kind = type(tree)
    if kind is dict:
        if len(tree) == 1:
            for key in tree:
                if key[:1] == "$":
                    return _decode_tag(key, tree[key])
        return {key: _decode(item) for key, item in tree.items()}
    if kind is list:
        return [_decode(item) for item in tree]
    return tree


def _decode_tag(tag: str, body: Json) -> Any:
    decoder = _DECODERS.get(tag)
    if decoder is None and tag in _RARE_TAGS:
        _load_rare()
        decoder = _DECODERS.get(tag)
    if decoder is None:
        raise DecodingError(
            f"a recorded value has the tag {tag!r}, which this flowckpt does not know",
            remedy="It was written by a newer version: upgrade flowckpt.",
        )
    return decoder(body)


def _decode_int(body: str) -> int:
    if len(body) > 1 << 26:
        raise ValueError("an integer of more than 2**28 bits")
    return int(body, 16)


def _decode_float(body: str) -> float:
    return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[body]


def _decode_moment(cls: type[datetime] | type[time]) -> Callable[[Any], Any]:
    def decode_moment(body: Any) -> datetime | time:
        if isinstance(body, str):
            return cls.fromisoformat(body)
        text, fold, zone = body
        moment = cls.fromisoformat(text).replace(fold=fold)
        return moment if zone is None else moment.replace(tzinfo=_decode_zone(zone))

    return decode_moment


def _decode_zone(body: Any) -> tzinfo:
    if isinstance(body, list):
        offset, *name = body
        if offset == [0, 0, 0] and not name:
            return timezone.utc
        return timezone(timedelta(*offset), *name)
    _load_rare()
    zone: tzinfo = _DECODERS["$zone"](body)
    return zone


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$int": _decode_int,
    "$float": _decode_float,
    "$str": lambda body: b64decode(body, validate=True).decode("utf-8", "surrogatepass"),
    "$dict": lambda body: {_decode(key): _decode(item) for key, item in body},
    "$tuple": lambda body: tuple([_decode(item) for item in body]),
    "$set": lambda body: {_decode(item) for item in body},
    "$frozenset": lambda body: frozenset([_decode(item) for item in body]),
    "$bytes": lambda body: b64decode(body, validate=True),
    "$complex": lambda body: complex(*[_decode(part) for part in body]),
    "$date": date.fromisoformat,
    "$time": _decode_moment(time),
    "$datetime": _decode_moment(datetime),
    "$timedelta": lambda body: timedelta(*body),
    "$path": lambda body: Path(_decode(body)),
    "$as": lambda body: _decode_registered(body),
}
_RARE_TAGS = frozenset({"$decimal", "$fraction", "$uuid", "$zone"})


# --- types that the program registers ------------------------------------------------------------------------------


@attrs.frozen
class _Registered:
    cls: type
    name: str
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]


_REGISTERED: dict[str, _Registered] = {}


def add(tag: str, cls: type, to_body: Callable[[Any], Json], from_body: Callable[[Any], Any]) -> None:
    """Add a type of the closed set, by its tag; for this package's own modules."""
    _ENCODERS[cls] = lambda value, _: {tag: to_body(value)}
    _DECODERS[tag] = from_body


def add_decoder(tag: str, from_body: Callable[[Any], Any]) -> None:
    """Add the reading half of a tag that stands only inside others; for this package's own modules."""
    _DECODERS[tag] = from_body


def add_registered(cls: type, name: str, to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]) -> None:
    """Add a type of the program under a name of its choice; see `flowckpt.codec.register`."""
    known = _REGISTERED.get(name)
    if known is not None and type_name(known.cls) != type_name(cls):
        raise EncodingError(
            f"the name {name!r} is registered for {type_name(known.cls)} already",
            type_name=type_name(cls),
            remedy="Give another name: register(…, name=…).",
        )
    _REGISTERED[name] = _Registered(cls, name, to_plain, from_plain)
    _ENCODERS[cls] = lambda value, depth: {"$as": [name, _encode_registered(to_plain, value, depth)]}


def _encode_registered(to_plain: Callable[[Any], Any], value: Any, depth: int) -> Json:
    if depth > MAX_DEPTH:
        raise _RefusedError
    return _encode(to_plain(value), depth + 1)


def _decode_registered(body: Any) -> Any:
    name, plain = body
    known = _REGISTERED.get(name) if isinstance(name, str) else None
    if known is None:
        raise DecodingError(
            f"a recorded value is of the registered type {name!r}, which this program has not registered",
            remedy="Call flowckpt.codec.register(…) at the top of the module that defines the workflow.",
        )
    return known.from_plain(_decode(plain))


def is_registered(cls: type) -> bool:
    """Tell whether a class was registered by the program."""
    return any(known.cls is cls for known in _REGISTERED.values())


def is_closed(cls: type) -> bool:
    """Tell whether values of exactly this type need no annotation to come back as they are."""
    return cls in _ENCODERS or cls.__module__ in _RARE_MODULES


# --- where a value was refused --------------------------------------------------------------------------------------


def _refusal(value: Any, place: str) -> EncodingError:
    for where, found in _walk(value, place, 0):
        try:
            if isinstance(found, list | dict | tuple | set | frozenset) and type(found) in _ENCODERS:
                continue
            _encode(found, 0)
        except _RefusedError:
            return _refusal_of(found, where)
    return EncodingError(
        f"{place} is nested more than {MAX_DEPTH} deep, or contains itself",
        place=place,
        type_name=type_name(type(value)),
        remedy="Return a flatter value, or write it to a file and return the path.",
    )


def _walk(value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    yield place, value
    if depth > MAX_DEPTH:
        return
    if type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield from _walk(item, f"{place}[{index}]", depth + 1)
    elif type(value) in (set, frozenset):
        for item in value:
            yield from _walk(item, f"{place}{{…}}", depth + 1)
    elif type(value) is dict:
        for key, item in value.items():
            yield from _walk(key, f"key {key!r:.60} of {place}", depth + 1)
            step = f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r:.60}]"
            yield from _walk(item, place + step, depth + 1)


def _refusal_of(found: Any, place: str) -> EncodingError:
    name = type_name(type(found))
    return EncodingError(
        f"{place} is a {name}, which cannot be recorded so that it comes back the same",
        place=place,
        type_name=name,
        remedy="Annotate what the function returns, register the type (flowckpt.codec.register), "
        "or mark the step .ephemeral().",
    )
