"""A step's result as JSON: its canonical bytes, which every store keeps unchanged.

Fields at their defaults are left out. The text is built by hand, because it is written once per step, and `json.dumps`
of the same dict takes three times as long (6 µs instead of 2).

NOTE: written for speed; measured by `python -m benchmarks --only "durable step"` and `--only "light step"`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from json.encoder import encode_basestring as quote  # the C version of what dumps() does to a string
from typing import Any

import attrs

from flowckpt.core.codec.blob import Blob, Fetch, Line, Recorded, pack, unpack
from flowckpt.core.codec.tags import LARGEST, SMALLEST, Json, dumps, encode, is_itself
from flowckpt.core.records import History, HistoryView, StepError, StepResult
from flowckpt.core.records.result import UNREAD, result_of
from flowckpt.core.system.declared import type_name
from flowckpt.core.system.numbers import is_finite_number
from flowckpt.errors import DecodingError, EncodingError

Blobs = Mapping[str, Blob]


def encode_result(result: StepResult, *, is_common: bool = False) -> tuple[bytes, Blobs]:
    """Return the canonical bytes of a result, and the large values that they refer to.

    Args:
        result: the result.
        is_common: whether the result is known to have only the fields of nearly every fresh result.

    Raises:
        EncodingError: its output is outside the closed set, or another field is not valid JSON.
    """
    held = result._output
    path, name, started_at, arguments = result.path, result.name, result.started_at, result.arguments
    blob: Blob | None = None
    if type(held) is int and SMALLEST <= held < LARGEST:
        outcome = f',"output":{held}'
    else:
        if isinstance(held, Blob):
            output, blob = dumps(held.reference()), held
        else:
            output, blob = pack(held.tree if type(held) is Recorded else encode(held, f"{path}: output"))
        outcome = "" if output == "null" else f',"output":{output}'
    duration = repr(result.duration_ms)
    if duration[-1] not in "0123456789":  # nan, inf or no number: the record could not be read again
        raise _refusal(path, "duration_ms", result.duration_ms, f"{result.duration_ms!r:.80} is not a finite number")
    what = "" if _name_from_path(path) == name else f',"name":{quote(name)}'
    if result.step_type != "python":
        what += f',"step_type":{quote(result.step_type)}'
    rest = f',"arguments":{_encode_arguments(arguments)}' if arguments else ""
    if not is_common and not _COMMON.issuperset(vars(result)):
        if not result.success:
            what += ',"success":false'
        if result.error is not None:
            outcome += f',"error":{dumps(encode_error(result.error))}'
        rest += _encode_rare_fields(result)
    when = "" if started_at is None else f',"started_at":"{encode_time(started_at)}"'
    origin = _encode_origin(
        result.attempt, result.tries, result.function, result.version, result.location, result.fingerprint
    )
    text = f'{{"path":{quote(path)}{what}{outcome},"duration_ms":{duration}{when}{origin}{rest}}}'
    return text.encode(), {blob.digest: blob} if blob else _EMPTY


def _encode_rare_fields(result: StepResult) -> str:
    """Return the fields that few results have, in the order in which records have them."""
    text = "" if result.evidence is None else f',"evidence":{dumps(copy_extra(result.evidence))}'
    if result.marks:
        text += f',"marks":{dumps(list(result.marks))}'
    if result.signal:
        text += f',"signal":{quote(result.signal)}'
    for name, checked in _CHECKED_FIELDS.items():
        if given := getattr(result, name):
            try:
                text += f',"{name}":{dumps(checked(given))}'
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise _refusal(result.path, name, given, error) from error
    if result.argument_values:
        text += f',"argument_values":{dumps(copy_extra(result.argument_values))}'
    if result.extra:
        text += f",{dumps(copy_extra(result.extra))[1:-1]}"
    return text


_COMMON = frozenset(
    [
        "name",
        "step_type",
        "path",
        "_output",
        "duration_ms",
        "started_at",
        "attempt",
        "tries",
        "function",
        "version",
        "location",
        "fingerprint",
        "arguments",
    ]
)
"""The fields that nearly every fresh result has, and no others: see `Recorder.record`."""


def _refusal(path: str, name: str, value: object, problem: object) -> EncodingError:
    place = f"{path}: {name}"
    return EncodingError(f"{place}: {problem}", place=place, type_name=type_name(type(value)))


def copy_extra(extra: Mapping[str, Any]) -> dict[str, Json]:
    """Return a copy of unknown fields, which must be plain JSON.

    Raises:
        EncodingError: they are not plain JSON.
    """
    try:
        copied: dict[str, Json] = json.loads(json.dumps(dict(extra), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise EncodingError(f"extra fields must be plain JSON: {error}", place="extra") from error
    return copied


def _encode_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the text of recorded arguments: mostly a few numbers and digests (0.2 µs; dumps() would take 0.5)."""
    text = ""
    try:
        for name, value in arguments.items():
            if type(value) is int:
                text += f",{quote(name)}:{value}"
            elif type(value) is str:
                text += f",{quote(name)}:{quote(value)}"
            else:
                return dumps(arguments)
    except TypeError:  # a name that is not text
        return dumps(arguments)
    return f"{{{text[1:]}}}"


def _check_figures(figures: Mapping[str, Any]) -> dict[str, int | float]:
    """Return a copy of recorded figures.

    Raises:
        ValueError: a figure is not a finite number.
    """
    for name, value in figures.items():
        if not is_finite_number(value):
            raise ValueError(f"the figure {name!r:.80} is {value!r:.80}, which is not a finite number")
    return dict(figures)


def _check_source(found: Any) -> dict[str, str]:
    """Return the source of a result: where it was first computed.

    Raises:
        ValueError: the source is malformed.
    """
    source = dict(found)
    if source.keys() != {"workflow_id", "path", "ended_at"}:
        raise ValueError(f"the source {source!r:.80} does not name a run, a path and a time")
    datetime.fromisoformat(source["ended_at"])
    return {name: str(text) for name, text in source.items()}


def _check_published(found: Mapping[str, Any]) -> dict[str, dict[str, Json]]:
    """Return a copy of a step's published values.

    Raises:
        ValueError: they are malformed.
    """
    for name, entry in found.items():
        if not isinstance(name, str) or entry.keys() != {"value", "at"}:
            raise ValueError(f"{name!r:.80} was not published as a value and a time")
        datetime.fromisoformat(entry["at"])
    return {name: {"value": entry["value"], "at": entry["at"]} for name, entry in found.items()}


_CHECKED_FIELDS: dict[str, Callable[[Any], Any]] = {
    "figures": _check_figures,
    "source": _check_source,
    "published": _check_published,
}
"""The fields that have the same form before writing and after reading, with the functions that check it."""


def _name_from_path(path: str) -> str:
    """Return the name contained in a path; a record leaves out the name of a step if it is the same."""
    if "/" not in path:
        if path[-1:] != "]":
            return path
        name, bracket, _ = path.rpartition("[")
        return name if bracket else path
    end = len(path)
    while path[end - 1 : end] == "]" and (start := path.rfind("[", 0, end)) >= 0:
        end = start
        if path[end - 1 : end] != "/":
            break
        end -= 1  # a member of a map has the map's name
    return path[path.rfind("/", 0, end) + 1 : end]


@functools.lru_cache(maxsize=1024)
def _encode_origin(
    attempt: int, tries: int, function: str, version: str | None, location: str, fingerprint: str
) -> str:
    """Return the fields for the attempt and the code of a result, which many results share."""
    parts = []
    if attempt != 1:
        parts.append(f',"attempt":{attempt:d}')
    if tries != 1:
        parts.append(f',"tries":{tries:d}')
    if function:
        parts.append(f',"function":{quote(function)}')
    if version is not None:
        parts.append(f',"version":{quote(version)}')
    if location:
        parts.append(f',"location":{quote(location)}')
    if fingerprint:
        parts.append(f',"fingerprint":{quote(fingerprint)}')
    return "".join(parts)


_EMPTY: dict[str, Any] = {}
"""One shared empty mapping for all results: halves the number of objects in a long history."""

_SELDOM = {"success", "error", "evidence", "marks", "signal", "figures", "source", "published", "argument_values"}
_KNOWN = {*_COMMON - {"_output"}, "output"} | _SELDOM


def decode_result(document: Json, fetch: Fetch | None = None) -> tuple[StepResult, Blobs]:
    """Return the result of a parsed document; its output is decoded when it is accessed.

    Args:
        document: the parsed canonical bytes.
        fetch: reads large values from the store that the document came from.

    Raises:
        DecodingError: the document is not that of a result.
    """
    if not isinstance(document, Mapping):
        raise DecodingError(f"a recorded result is malformed: {document!r:.120}")
    return make_result({**document}, fetch)


def make_result(
    document: dict[str, Any], fetch: Fetch | None = None, line: Line | None = None, place: int = 0
) -> tuple[StepResult, Blobs]:
    """Like `decode_result`, for a document that no other code uses: the result keeps the document itself.

    Args:
        document: the parsed canonical bytes.
        fetch: reads large values from the store that the document came from.
        line: the line of the record that it was parsed from, if there is no tag in it.
        place: its place among the results of that line.

    Raises:
        DecodingError: the document is not that of a result.
    """
    try:
        path: str = document["path"]
        document["duration_ms"]
        if not _KNOWN.issuperset(document):
            document["extra"] = {key: document.pop(key) for key in list(document) if key not in _KNOWN}
        if "name" not in document:
            document["name"] = _name_from_path(path)
        if (started_at := document.get("started_at")) is not None:
            document["started_at"] = datetime.fromisoformat(started_at)
        if (error := document.get("error")) is not None:
            document["error"] = decode_error(error)
        if "marks" in document:
            document["marks"] = tuple(document["marks"])
        for name in document.keys() & _CHECKED_FIELDS:
            document[name] = _CHECKED_FIELDS[name](document[name])
        if "argument_values" in document:
            document["argument_values"] = dict(document["argument_values"].items())
        held = document.pop("output", None)
        if not is_itself(held):
            held = unpack(held, fetch) if line is None else Recorded(held, line, place)
        document["_output"] = held
    except (KeyError, TypeError, ValueError, AttributeError) as failure:
        raise DecodingError(f"a recorded result is malformed: {failure!r:.120}") from failure
    return result_of(document), ({held.digest: held} if isinstance(held, Blob) else _EMPTY)


# Plain results: Python steps that succeeded at the first try, without claims, alone in a line.
#
# NOTE: of a plain line, only the parts that every resume needs are parsed, and the pattern proves the form of the rest.
# So a long history is read in half the time and half the memory; measured by `python -m benchmarks --only users`, a
# further finished step and the peak.

TIME = rb"[0-9]{4}-[0-9][0-9]-[0-9][0-9]T[0-9][0-9]:[0-9][0-9]:[0-9][0-9](?:\.[0-9]{6})?Z"
_QUOTED = rb'"[^"]*+"'
_TEXT = rb'"[^"\\\x00-\x1f]*+"'
_NUMBER = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
_ARGUMENT = _TEXT + rb":(?:" + _NUMBER + rb"|" + _TEXT + rb"|null|true|false)"
AFTER_OUTPUT = b',"duration_ms":'
AFTER_PLAIN_OUTPUT = (
    AFTER_OUTPUT
    + rb'(?:0|[1-9][0-9]*+)\.[0-9]++,"started_at":"'
    + TIME
    + rb'"(?P<origin>(?:,"attempt":[1-9][0-9]*+)?,"function":'
    + _QUOTED
    + rb',"location":'
    + _QUOTED
    + rb',"fingerprint":'
    + _QUOTED
    + rb')(?P<arguments>(?:,"arguments":\{'
    + _ARGUMENT
    + rb"(?:,"
    + _ARGUMENT
    + rb")*+\})?)\}"
)
"""The canonical bytes of a plain result after its output; `check_origin` checks the texts of its origin, once for many results."""


class PlainResult(StepResult):
    """A plain result of a line: its path and its output. Other fields are defaults, or read at the first access.

    It becomes a `StepResult` when its name, its output or its times are accessed.

    Attributes:
        origin: the bytes for the attempt and the code that made it: one object for many results.
        arguments_text: the bytes of its arguments.
    """

    origin: bytes
    arguments_text: bytes
    _line: Line

    def _read(self) -> None:
        if type(self) is not PlainResult:
            return  # another thread was first
        if "_line" in vars(self):
            read, _ = make_result(json.loads(self._line.opened)["step_results"][0], None, self._line)
            object.__setattr__(self, "__dict__", vars(read))
        object.__setattr__(self, "__class__", StepResult)

    def take(self) -> Any:
        """Return the output for a caller that may change it; a later access reads it again."""
        return take_output(vars(self))

    def __eq__(self, other: object) -> bool:
        for each in (self, other):
            if isinstance(each, PlainResult):
                each._read()
        return StepResult.__eq__(self, other)

    def __hash__(self) -> int:
        self._read()
        return StepResult.__hash__(self)

    def __repr__(self) -> str:
        self._read()
        return StepResult.__repr__(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._read()
        return StepResult.__reduce_ex__(self, protocol)


class _Unread:
    """A field that a plain result reads at the first access."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, result: PlainResult, owner: type[PlainResult]) -> Any:
        held = vars(result)
        if self._name in _ORIGIN and "origin" in held:
            return origin_fields(held["origin"])[self._name]
        if self._name == "arguments" and "arguments_text" in held:
            return json.loads(held["arguments_text"][len(_ARGUMENTS) :] or b"{}")
        result._read()
        return getattr(result, self._name)


_ORIGIN = ("function", "location", "fingerprint", "attempt")
_ARGUMENTS = b',"arguments":'
for _name in ("name", "_output", "duration_ms", "started_at", "arguments", *_ORIGIN):
    setattr(PlainResult, _name, _Unread(_name))


def make_plain_result(fields: dict[str, Any], origin: bytes, arguments: bytes, line: Line) -> PlainResult:
    """Return the plain result of a line.

    Args:
        fields: its path and its output, parsed; the result keeps this object.
        origin: the match of `AFTER_PLAIN_OUTPUT` for the origin.
        arguments: the match for the arguments.
        line: the line.
    """
    fields["origin"], fields["arguments_text"], fields["_line"] = origin, arguments, line
    result = _new_plain(PlainResult)
    _set_fields(result, fields)
    return result


_new_plain, _set_fields = object.__new__, vars(StepResult)["__dict__"].__set__
_TAKEN: Any = object()


@functools.lru_cache(maxsize=1024)
def origin_fields(origin: bytes) -> dict[str, Any]:
    """Return the fields for the attempt and the code that made a result."""
    fields: dict[str, Any] = json.loads(b"{%b}" % origin[1:])
    return {"attempt": 1, **fields}


def take_output(held: dict[str, Any]) -> Any:
    """Remove and return the output from the fields of a plain result."""
    output, held["output"] = held["output"], _TAKEN
    return output if output is not _TAKEN else json.loads(held["_line"].opened)["step_results"][0].get("output")


def encode_arguments(arguments: Mapping[str, Any]) -> bytes:
    """Return the bytes of recorded arguments, as they are in a line."""
    return f',"arguments":{_encode_arguments(arguments)}'.encode() if arguments else b""


def check_origin(origin: bytes) -> bytes:
    """Return an origin that `AFTER_PLAIN_OUTPUT` matched, if its texts are valid JSON.

    Raises:
        ValueError: it is not JSON, or has other fields.
    """
    fields = json.loads(b"{%b}" % origin[1:])
    if not fields.keys() <= {*_ORIGIN} or any(type(fields[name]) is not str for name in _ORIGIN[:3]):
        raise ValueError(f"the origin {origin!r:.200} has other fields")
    return origin


def arguments_format(names: Sequence[str]) -> bytes:
    """Return a format for the bytes of integer arguments with these names."""
    held = ",".join(f"{quote(name)}:%d" for name in names).encode()
    return b"%b{%b}" % (_ARGUMENTS, held) if names else b""


def take_plain_output(result: StepResult) -> Any:
    """Return the recorded output of a result if it needs no decoding; else `UNREAD`."""
    if type(result) is PlainResult:
        return result.take()
    held = result.held_output
    if is_itself(held):
        return held
    return held.take() if type(held) is Recorded and held.is_untagged else UNREAD


def append_result(history: History, result: StepResult, *, is_common: bool = False) -> None:
    """Append a result to a history, with its canonical bytes.

    Args:
        history: the history.
        result: the result.
        is_common: as for `encode_result`.
    """
    encoded, blobs = encode_result(result, is_common=is_common)
    if blobs:  # from here on only the blob has the large value, and releases it once it is saved
        result = attrs.evolve(result, output=next(iter(blobs.values())))
    history.append(result, encoded, blobs)


def as_view(results: Sequence[StepResult]) -> HistoryView:
    """Return results as a view of a history; a plain sequence is converted."""
    if isinstance(results, HistoryView):
        return results
    history = History()
    for result in results:
        append_result(history, result)
    return history.view()


def encode_error(error: StepError) -> Json:
    """Return the document of an error."""
    fields = {
        "bases": list(error.bases),
        "traceback": error.traceback,
        "path": error.path,
        "tries": error.tries if error.tries != 1 else None,
        "causes": list(error.causes),
        "remedy": error.remedy,
    }
    optional = {name: value for name, value in fields.items() if value}
    return {
        "type": error.type,
        "message": error.message,
        **optional,
        **(copy_extra(error.extra) if error.extra else {}),
    }


def decode_error(document: Json) -> StepError:
    """Return the error of a document."""
    return StepError(
        document["type"],
        document["message"],
        tuple(document.get("bases", ())),
        document.get("traceback", ""),
        document.get("path", ""),
        document.get("tries", 1),
        tuple(document.get("causes", ())),
        {} if document.keys() <= _KNOWN_OF_ERROR else {k: document[k] for k in document if k not in _KNOWN_OF_ERROR},
        document.get("remedy", ""),
    )


_KNOWN_OF_ERROR = {"type", "message", "bases", "traceback", "path", "tries", "causes", "remedy"}


def encode_time(moment: datetime) -> str:
    """Return an aware time in UTC in recorded form: `2026-11-20T15:30:00.123456Z`."""
    start, end, shown = _last_second[0]
    if moment.tzinfo is UTC and start < moment <= end:
        return f"{shown}{moment.microsecond:06d}Z"
    text = moment.isoformat()
    if text[-6:] != "+00:00":
        return text
    if moment.tzinfo is UTC and moment.microsecond:
        second = moment.replace(microsecond=0)
        _last_second[0] = (second, moment.replace(microsecond=999_999), text[:20])
    return f"{text[:-6]}Z"


_last_second = [(datetime(2000, 1, 1, tzinfo=UTC), datetime(2000, 1, 1, tzinfo=UTC), "")]
"""The last encoded second, its end, and its text: the two times of a step mostly share it (0.3 µs, not 1.0)."""
