"""Python values as JSON trees, and back, with value and type kept exactly.

The rules:

- JSON's own types are written directly: None, bool, int, float, str, list, and dict with text keys.
- Everything else of the closed set is an object with one key that starts with `$`, the tag: `{"$tuple": [1, 2]}`.
- A dict that JSON cannot express (keys that are not text, or that begin with `$`) is a tag too:
  `{"$dict": [[1, "a"], …]}`.
- Types are matched exactly. A subclass (a namedtuple, a defaultdict, numpy's numbers) is refused, not flattened:
  it would come back as another type.
- Decoding looks tags up in a table. It never imports or calls a name from the bytes.
- Trees are at most `MAX_DEPTH` deep, so that every written tree can also be read, with any stack.
"""

from __future__ import annotations

import math
import threading
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from json import encoder as _json
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeAlias, TypeVar

import attrs

from flowckpt.core import records
from flowckpt.core.system import external
from flowckpt.core.system.attrs_base import lazy_frozen
from flowckpt.core.system.declared import declared_class, short_repr, type_name
from flowckpt.core.system.secret import MARK, Secret, absent_secret
from flowckpt.errors import DecodingError, EncodingError, FanOutFailedError, SecretMissingError, StepFailedError

T = TypeVar("T")
Json: TypeAlias = Any
"""A JSON tree: None, bool, int, float, str, and lists and text-keyed dicts of them."""

MAX_DEPTH = 100
"""How deep containers may be nested."""
SMALLEST, LARGEST = -(2**63), 2**64  # what other JSON readers still take as an integer
_MOST_ALIKE = 1000
"""How many items of a set may share a hash: each of them is compared with all others."""
CONTAINERS = frozenset({list, dict, tuple, set, frozenset})


class RefusedError(Exception):
    """A value is outside the closed set; the text says why, if the type does not explain it."""


def is_itself(value: Any) -> bool:
    """Return whether a value is its own tree and immutable, as most outputs are, so that it need not be encoded."""
    kind = type(value)
    if kind is int:
        is_small: bool = SMALLEST <= value < LARGEST
        return is_small
    return value is None or kind is bool or (kind is str and value.isascii())


# --- dates and times -------------------------------------------------------------------------------------------------
#
# They consist of text for `fromisoformat`, the fold, and the zone. A naive one without a fold is only its text. A zone
# is its key (`"Europe/Berlin"`), or the offset and perhaps the name of a fixed one (`[[0, 3600, 0], "CET"]`).


def encode_moment(value: datetime | time) -> Any:
    """Return the body of a moment's tag, or refuse a zone that could not be made again."""
    zone = value.tzinfo
    if zone is None:
        return value.isoformat() if not value.fold else [value.isoformat(), value.fold, None]
    return [value.replace(tzinfo=None).isoformat(), value.fold, _encode_zone(zone)]


def _encode_zone(zone: tzinfo) -> Any:
    if type(zone) is timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]  # (offset,) or (offset, name)
        if all(type(part) is str and part.isprintable() for part in name):
            return [[offset.days, offset.seconds, offset.microseconds], *name]
    elif type(zone).__module__.partition(".")[0] == "zoneinfo":
        key = getattr(zone, "key", None)
        if key is not None:
            return str(key)
    raise RefusedError(f"its time zone {zone!r:.80} has no name by which it could be made again")


def moment_decoder(cls: type[datetime | time]) -> Callable[[Any], datetime | time]:
    """Return the decoder of a moment's tag."""

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
            return UTC
        return timezone(timedelta(*offset), *name)
    try:
        return external.zoneinfo.ZoneInfo(body)
    except OSError as error:  # a key that names a directory of the time zone database
        raise ValueError(str(error)) from error


# --- text ------------------------------------------------------------------------------------------------------------


def on_fresh_stack(work: Callable[[], T]) -> T:
    """Do work in a separate thread: recursion is limited per thread, and the caller's limit may be nearly reached."""
    outcome: list[Any] = [None, None]

    def do() -> None:
        try:
            outcome[0] = work()
        except BaseException as error:
            outcome[1] = error

    thread = threading.Thread(target=do, name="flowckpt-codec")
    thread.start()
    thread.join()
    value, error = outcome
    if error is not None:
        raise error
    result: T = value
    return result


_slow_dumps = _json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_make_chunks: Any = getattr(_json, "c_make_encoder", None)  # CPython's
_chunks = _make_chunks and _make_chunks(None, _slow_dumps, _json.encode_basestring, None, ":", ",", False, False, False)


def dumps(tree: Json) -> str:
    """Return a tree as compact JSON text."""
    # `JSONEncoder.encode` makes a new C encoder at each call; one made beforehand takes 1.3 µs for a small dict, not 2.
    # A tree has no cycles (its depth is limited), so the encoder need not look for them.
    try:
        return "".join(_chunks(tree, 0)) if _chunks else _slow_dumps(tree)
    except RecursionError:
        return on_fresh_stack(lambda: _slow_dumps(tree))


# --- encoding --------------------------------------------------------------------------------------------------------


def encode(value: Any, place: str = "value") -> Json:
    """Return the tree of a value.

    Args:
        value: any value of the closed set (design: values).
        place: the name of the value in errors.

    Raises:
        EncodingError: it contains a value outside the closed set; the error names the place.
    """
    encoder = _ENCODERS.get(type(value))
    try:
        return encoder(value, 0) if encoder else _encode_other(value, 0)
    except RefusedError:
        raise _refusal(value, place) from None
    except RecursionError:
        return on_fresh_stack(lambda: _encode_again(value, place))


def _encode_again(value: Any, place: str) -> Json:
    try:
        return _encode(value, 0)
    except (RefusedError, RecursionError):
        raise _refusal(value, place) from None


def _encode(value: Any, depth: int) -> Json:
    encoder = _ENCODERS.get(type(value))
    return encoder(value, depth) if encoder else _encode_other(value, depth)


def _encode_other(value: Any, depth: int) -> Json:
    """Encode a type that is seen for the first time: a registered one, or one whose module was loaded just now."""
    if add_late := _LATE_MODULES.get(type(value).__module__):
        add_late()
        if encoder := _ENCODERS.get(type(value)):
            return encoder(value, depth)
    if found := _find_program_class(type(value)):
        return {"$as": [found.name, _encode_registered(found.to_plain, value, depth)]}
    if isinstance(value, StepFailedError) and (encoder := _ENCODERS.get(declared_class(type(value)))):
        return encoder(value, depth)
    raise RefusedError


def _find_program_class(cls: type) -> Registered | None:
    return next((found for each in _PROGRAM if (found := each.of_class(cls))), None)


def _encode_itself(value: Any, _: int) -> Json:
    return value


def _encode_int(value: int, _: int) -> Json:
    return value if SMALLEST <= value < LARGEST else {"$int": hex(value)}  # hex has no digit limit


def _encode_float(value: float, _: int) -> Json:
    return value if math.isfinite(value) else {"$float": repr(value)}


def _encode_str(value: str, _: int) -> Json:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:  # lone surrogates, as in undecodable file names: UTF-8 cannot hold them
        return {"$str": _b64(value.encode("utf-8", "surrogatepass"))}
    return value


def _encode_list(value: list[Any], depth: int) -> Json:
    if depth >= MAX_DEPTH:
        raise RefusedError
    depth += 1
    return [_encode(item, depth) for item in value]


def _encode_dict(value: dict[Any, Any], depth: int) -> Json:
    if depth >= MAX_DEPTH:
        raise RefusedError
    depth += 1
    for key in value:
        if type(key) is not str or key[:1] == "$" or not (key.isascii() or _encode_str(key, 0) is key):
            return {"$dict": [[_encode(k, depth), _encode(v, depth)] for k, v in value.items()]}
    return {key: _encode(item, depth) for key, item in value.items()}


def _set_encoder(tag: str) -> Callable[[Any, int], Json]:
    # Sorted by their text, so that equal sets have equal bytes in every process.
    return lambda value, depth: {tag: sorted(_encode_list(value, depth), key=dumps)}


def _encode_secret(value: Secret[Any], _: int) -> Json:
    if value.is_absent:  # it was read from a record, and is written unchanged
        return dict(MARK)
    raise RefusedError("a secret is never recorded")


def _raise_missing() -> NoReturn:
    raise SecretMissingError(())


def _b64(data: bytes) -> str:
    return b64encode(data).decode("ascii")


PathType = type(Path())

_ENCODERS: dict[type, Callable[[Any, int], Json]] = {
    type(None): _encode_itself,
    bool: _encode_itself,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    list: _encode_list,
    dict: _encode_dict,
    tuple: lambda value, depth: {"$tuple": _encode_list(value, depth)},
    set: _set_encoder("$set"),
    frozenset: _set_encoder("$frozenset"),
    bytes: lambda value, _: {"$bytes": _b64(value)},
    complex: lambda value, _: {"$complex": [_encode_float(value.real, 0), _encode_float(value.imag, 0)]},
    date: lambda value, _: {"$date": value.isoformat()},
    time: lambda value, _: {"$time": encode_moment(value)},
    datetime: lambda value, _: {"$datetime": encode_moment(value)},
    timedelta: lambda value, _: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    Secret: _encode_secret,
    PathType: lambda value, _: {"$path": _encode_str(str(value), 0)},
}


# --- decoding --------------------------------------------------------------------------------------------------------


def decode(tree: Json, place: str = "value", *, _is_again: bool = False) -> Any:
    """Return the value of a tree: a fresh one that shares nothing with the tree.

    Args:
        tree: a tree of `encode`, possibly from JSON text.
        place: the name of the value in errors.

    Raises:
        DecodingError: a tag is unknown, or its content is malformed.
    """
    kind = type(tree)
    if kind is not dict and kind is not list:
        return tree
    try:
        return _decode(tree)
    except DecodingError:
        raise
    except RecursionError:
        if not _is_again:
            return on_fresh_stack(lambda: decode(tree, place, _is_again=True))
        raise DecodingError(f"{place} is nested too deep to be read", place=place) from None
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
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
    if decoder is None and tag in _LATE_TAGS:
        _LATE_TAGS[tag]()
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
    if body not in ("nan", "inf", "-inf"):
        raise ValueError(f"{body!r:.40} is not a float")
    return float(body)  # a new object each time: two NaNs in a set, or as keys of a dict, stay two


def _check_hashes(items: list[Any]) -> list[Any]:
    """Return the items of a set or the keys of a dict; refuse too many equal hashes, which would take minutes."""
    if len(items) > _MOST_ALIKE and len(items) - len({hash(item) for item in items}) > _MOST_ALIKE:
        raise ValueError(f"more than {_MOST_ALIKE} items of a set, or keys of a dict, have the hash of another one")
    return items


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$int": _decode_int,
    "$float": _decode_float,
    "$str": lambda body: b64decode(body, validate=True).decode("utf-8", "surrogatepass"),
    "$dict": lambda body: dict(
        zip(_check_hashes([_decode(key) for key, _ in body]), [_decode(item) for _, item in body], strict=True)
    ),
    "$tuple": lambda body: tuple([_decode(item) for item in body]),
    "$set": lambda body: set(_check_hashes([_decode(item) for item in body])),
    "$frozenset": lambda body: frozenset(_check_hashes([_decode(item) for item in body])),
    "$bytes": lambda body: b64decode(body, validate=True),
    "$complex": lambda body: complex(*[_decode(part) for part in body]),
    "$date": date.fromisoformat,
    "$time": moment_decoder(time),
    "$datetime": moment_decoder(datetime),
    "$timedelta": lambda body: timedelta(*body),
    "$path": lambda body: Path(_decode(body)),
    "$secret": lambda _: absent_secret(_raise_missing),
}


# --- types that are added at the first value of their module ---------------------------------------------------------


def _add_decimal() -> None:
    add_type("$decimal", external.decimal.Decimal, str, external.decimal.Decimal)


def _add_fraction() -> None:
    def from_body(body: list[str]) -> Any:
        numerator, denominator = body
        return external.fractions.Fraction(int(numerator, 16), int(denominator, 16))

    add_type(
        "$fraction",
        external.fractions.Fraction,
        lambda value: [hex(value.numerator), hex(value.denominator)],
        from_body,
    )


def _add_uuid() -> None:
    add_type("$uuid", external.uuid.UUID, str, external.uuid.UUID)


def _add_outputs() -> None:
    """Add flowckpt's own types: written with field names, so that a later version may add fields."""

    def to_body(value: Any) -> Json:
        return encode(attrs.asdict(value, recurse=False))

    add_type("$approval", records.outputs.Approval, to_body, lambda body: records.outputs.Approval(**decode(body)))
    add_type(
        "$command", records.outputs.CommandOutput, to_body, lambda body: records.outputs.CommandOutput(**decode(body))
    )


_LATE_MODULES = {
    "decimal": _add_decimal,
    "_pydecimal": _add_decimal,
    "fractions": _add_fraction,
    "uuid": _add_uuid,
    "flowckpt.core.records.outputs": _add_outputs,
}
_LATE_TAGS = {
    "$decimal": _add_decimal,
    "$fraction": _add_fraction,
    "$uuid": _add_uuid,
    "$approval": _add_outputs,
    "$command": _add_outputs,
}


# --- types that the program registers ------------------------------------------------------------------------------


@lazy_frozen(eq=False, repr=False)
class Registered:
    """A class with a name in records, and the conversion of its values.

    Attributes:
        cls: the class.
        name: its name in records.
        to_plain: converts a value to plain values.
        from_plain: restores it.
        parts: a variant of `to_plain` that finds the refused part; None if they are the same.
    """

    cls: type
    name: str
    to_plain: Callable[[Any], Any]
    from_plain: Callable[[Any], Any]
    parts: Callable[[Any], Any] | None = None


class ProgramClasses(Protocol):
    """The data classes of the program, which need no registration."""

    def of_class(self, cls: type) -> Registered | None:
        """Return the registration for values of a class; None if a record must not name the class."""

    def named(self, name: str) -> Registered | None:
        """Return the class of a name in a record; None if the program has none."""


_REGISTERED: dict[str, Registered] = {}
_PROGRAM: list[ProgramClasses] = []


def use_program_classes(classes: ProgramClasses) -> None:
    """Allow values of the program's own data classes to be recorded by the names of their classes."""
    _PROGRAM[:] = [classes]


def add_type(tag: str, cls: type, to_body: Callable[[Any], Json], from_body: Callable[[Any], Any]) -> None:
    """Add a type of the closed set, by its tag; for this package's own modules."""
    _ENCODERS[cls] = lambda value, _: {tag: to_body(value)}
    _DECODERS[tag] = from_body


def add_nested(tag: str, cls: type, to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]) -> None:
    """Add a type of the closed set that holds values of the closed set; for this package's own modules."""
    _ENCODERS[cls] = lambda value, depth: {tag: _encode_registered(to_plain, value, depth)}
    _DECODERS[tag] = lambda body: from_plain(_decode(body))


def add_registered(cls: type, name: str, to_plain: Callable[[Any], Any], from_plain: Callable[[Any], Any]) -> None:
    """Add a type of the program under a given name; see `flowckpt.register_type`."""
    known = _REGISTERED.get(name)
    if known is not None and type_name(known.cls) != type_name(cls):
        raise EncodingError(
            f"the name {name!r} is registered for {type_name(known.cls)} already",
            type_name=type_name(cls),
            remedy="Give another name: register_type(…, name=…).",
        )
    _REGISTERED[name] = Registered(cls, name, to_plain, from_plain)
    _ENCODERS[cls] = lambda value, depth: {"$as": [name, _encode_registered(to_plain, value, depth)]}


def _encode_registered(to_plain: Callable[[Any], Any], value: Any, depth: int) -> Json:
    if depth >= MAX_DEPTH:
        raise RefusedError
    try:
        plain = to_plain(value)
    except RecursionError:
        raise
    except Exception as error:
        raise RefusedError(f"taking it apart raised {type(error).__name__}: {error}") from error
    return _encode(plain, depth + 1)


def _decode_registered(body: Any) -> Any:
    name, plain = body
    known = None
    if isinstance(name, str):
        known = _REGISTERED.get(name) or next((found for each in _PROGRAM if (found := each.named(name))), None)
    if known is None:
        raise DecodingError(
            f"a recorded value is of the class {name!r}, which the modules that the workflow's module imports do not have, "
            "and which is not registered",
            remedy="Put the class back, or name the one in its place at the top of the module that defines the workflow: "
            f"flowckpt.register_type(…, name={name!r}).",
        )
    made = _decode(plain)
    try:
        return known.from_plain(made)
    except (DecodingError, RecursionError):
        raise
    except Exception as error:
        raise DecodingError(
            f"a recorded {name} cannot be built again: {type(error).__name__}: {error}",
            remedy="If the type was changed, give its new fields defaults.",
        ) from error


_DECODERS["$as"] = _decode_registered


def is_registered(cls: type) -> bool:
    """Return whether a class was registered by the program."""
    return any(known.cls is cls for known in _REGISTERED.values())


def is_closed(cls: type) -> bool:
    """Return whether values of exactly this type are restored unchanged without an annotation."""
    return cls in _ENCODERS or cls.__module__ in _LATE_MODULES


# --- where a value was refused --------------------------------------------------------------------------------------
#
# Places are searched only after a refusal, so that encoding need not track them.


def _refusal(value: Any, place: str) -> EncodingError:
    """Return the error that names the first thing in a value that cannot be recorded."""
    for where, found in _walk(value, place, 0, set()):
        if type(found) not in CONTAINERS and (why := _refusal_reason(found)) is not None:
            return _refusal_of(found, where, why)
    return EncodingError(
        f"{place} is nested more than {MAX_DEPTH} deep, or contains itself",
        place=place,
        type_name=type_name(type(value)),
        remedy="Return a flatter value, or write it to a file and return the path.",
    )


def _walk(value: Any, place: str, depth: int, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, inner parts first; each container once, because it may contain itself."""
    opened = _open_value(value)
    if type(opened) in CONTAINERS and id(value) not in seen and depth < MAX_DEPTH:
        seen.add(id(value))
        for step, item in _items(opened, place):
            yield from _walk(item, step, depth + 1, seen)
    yield place, value


def _items(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if type(value) is dict:
        for key, item in value.items():
            yield f"key {short_repr(key)} of {place}", key
            yield place + (f".{key}" if type(key) is str and key.isidentifier() else f"[{short_repr(key)}]"), item
    elif type(value) in (list, tuple):
        for index, item in enumerate(value):
            yield f"{place}[{index}]", item
    else:
        for item in value:
            yield f"{place}{{…}}", item


def _refusal_of(found: Any, place: str, why: str) -> EncodingError:
    name = type_name(type(found))
    if name == "flowckpt.core.dsl.step.Step":
        message = f"the step {found.name!r}, which was never yielded and so has no output"
        remedy = f'Yield it: value = yield step("{found.name}")…'
    elif isinstance(found, Secret):
        message, remedy = "a secret, and secrets are never recorded: mark a step that returns one .secret(), and ", ""
        message += "annotate a whole input, as 'token: Secret[str]'"
    elif isinstance(found, Generator | AsyncGenerator):
        message = f"a {name}, and a started generator cannot be recorded"
        remedy = (
            "Return a list of what it yields. A generator function that yields steps is a workflow: decorate it with "
            "@workflow, and run it by .workflow(child) or .map(child, items). Or mark the step .ephemeral()."
        )
    else:
        message = f"a {name}, which cannot be stored and restored unchanged{why and f': {why}'}"
        remedy = remedy_of(type(found))
    return EncodingError(f"{place} is {message}", place=place, type_name=name, remedy=remedy)


_FILE = "Write it to a file, return the path, and claim the file: .writes(path), or .evidence(file_sha256(path))."


_OF_PANDAS = {
    "Timestamp": "Call .to_pydatetime() on it.",
    "Timedelta": "Call .to_pytimedelta() on it.",
    "NaTType": "Return None for a missing value.",
    "NAType": "Return None for a missing value.",
}
_TABLES = ("ndarray", "DataFrame", "Series", "Index", "Table", "Tensor")
_NUMPY_KINDS = {"floating": "float", "integer": "int", "bool": "bool", "bool_": "bool", "str_": "str"}


def remedy_of(cls: type) -> str:
    """Return the remedy for a value of a class that cannot be recorded."""
    package, name = cls.__module__.partition(".")[0], cls.__name__
    if package == "pandas" and name in _OF_PANDAS:
        return _OF_PANDAS[name]
    if package in ("numpy", "pandas", "polars", "pyarrow", "torch") and name in _TABLES:
        return _FILE + (" A small one: .tolist()." if name in ("ndarray", "Series", "Index", "Tensor") else "")
    if package == "numpy" and name in ("datetime64", "timedelta64"):
        return f"Call .astype('{name}[us]').item() on it."
    if package == "numpy":
        kind = next((_NUMPY_KINDS[each.__name__] for each in cls.__mro__ if each.__name__ in _NUMPY_KINDS), "")
        if kind:
            return f"Call {kind}(x) on it, or annotate it: a step's function that says '-> {kind}' may return it."
    return (
        "Annotate its type (what a step's function returns; for a workflow Generator[Any, Any, T]), register it "
        "(flowckpt.register_type), or mark the step .ephemeral(). A data class at the top of a module that the workflow's "
        "module imports needs no annotation."
    )


def _refusal_reason(value: Any) -> str | None:
    try:
        _encode(value, 0)
    except RefusedError as refused:
        return str(refused)
    except RecursionError:
        return "it contains itself"
    return None


def _open_value(value: Any) -> Any:
    registered = (known for known in _REGISTERED.values() if known.cls is type(value))
    known = next(registered, None) or _find_program_class(type(value))
    try:
        return (known.parts or known.to_plain)(value) if known else value
    except Exception:
        return value


# Failures of steps as values: a map that tolerates failures returns them in its list, which later steps may record.
#
# They contain only recorded facts, so these are all there is to keep.


_FAILURE_TEXTS = ("path", "error_type", "error_message", "traceback", "remedy")


def _failure_parts(error: StepFailedError) -> dict[str, Any]:
    plain: dict[str, Any] = {name: text for name in _FAILURE_TEXTS if (text := getattr(error, name))}
    if error.error_bases:
        plain["error_bases"] = list(error.error_bases)
    if error.tries != 1:
        plain["tries"] = error.tries
    if isinstance(error, FanOutFailedError) and error.causes:
        plain["causes"] = list(error.causes)
    return plain


def _failure_builder(cls: type[StepFailedError]) -> Any:
    def build(plain: Any) -> StepFailedError:
        given = {"path": "", "error_type": "", "error_message": "", **plain}
        path, tries, causes = given.pop("path"), given.get("tries", 1), given.get("causes", ())
        texts = (path, *(given.get(name, "") for name in _FAILURE_TEXTS[1:]), *given.get("error_bases", ()))
        if type(tries) is not int or any(type(text) is not str for text in texts):
            raise ValueError("a failure consists of texts and a number of tries")
        if any(not isinstance(cause, StepFailedError) for cause in causes):
            raise ValueError("the causes of a failure are failures")
        return cls(path, **given)

    return build


add_nested("$failure", StepFailedError, _failure_parts, _failure_builder(StepFailedError))
add_nested("$failures", FanOutFailedError, _failure_parts, _failure_builder(FanOutFailedError))
