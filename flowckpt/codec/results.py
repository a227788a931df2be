"""A step's result as JSON: its canonical bytes, which every store keeps as they are.

Fields at their defaults are left out; the text is put together by hand, because it is written once a step and
`json.dumps` of the same dict takes three times as long (6 µs against 2).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from json.encoder import encode_basestring as quote  # the C version of what dumps() does to a string
from typing import Any

import attrs

from flowckpt.checkpoint import History, HistoryView, LazyValue, StepError, StepResult
from flowckpt.codec.blob import Blob, Fetch, Recorded, pack, unpack
from flowckpt.codec.tags import Json, dumps, encode
from flowckpt.errors import DecodingError, EncodingError, type_name

Blobs = Mapping[str, Blob]


def encode_result(result: StepResult) -> tuple[bytes, Blobs]:
    """Return the canonical bytes of a result, and the large values that they name.

    Args:
        result: the result.

    Raises:
        EncodingError: its output is not of the closed set, or another field is not what JSON can hold.
    """
    held = result.held_output
    blob: Blob | None
    if isinstance(held, Blob):
        output, blob = dumps(held.reference()), held
    else:
        tree = held.tree if isinstance(held, Recorded) else encode(held, f"{result.path}: output")
        output, blob = pack(tree)
    path = result.path
    parts = ['{"path":', quote(path)]
    if _name_in(path) != result.name:
        parts.append(f',"name":{quote(result.name)}')
    if result.step_type != "python":
        parts.append(f',"step_type":{quote(result.step_type)}')
    if not result.success:
        parts.append(',"success":false')
    if output != "null":
        parts.append(f',"output":{output}')
    if result.error is not None:
        parts.append(f',"error":{dumps(encode_error(result.error))}')
    duration = repr(result.duration_ms)
    if duration[-1] not in "0123456789":  # nan, inf, and what is no number: the record could not be read again
        raise _no_field(result, "duration_ms", result.duration_ms)
    parts.append(f',"duration_ms":{duration}')
    if result.started_at is not None:
        parts.append(f',"started_at":"{encode_time(result.started_at)}"')
    if result.attempt != 1:
        parts.append(f',"attempt":{result.attempt:d}')
    if result.tries != 1:
        parts.append(f',"tries":{result.tries:d}')
    parts.append(_origin(result.function, result.version, result.location, result.fingerprint))
    if result.arguments:
        parts.append(f',"arguments":{dumps(result.arguments)}')
    if result.evidence is not None:
        parts.append(f',"evidence":{dumps(checked_extra(result.evidence))}')
    if result.extra:
        parts.append(f",{dumps(checked_extra(result.extra))[1:-1]}")
    parts.append("}")
    return "".join(parts).encode(), ({blob.digest: blob} if blob else {})


def _no_field(result: StepResult, name: str, value: object) -> EncodingError:
    return EncodingError(
        f"{result.path}: {name} is {value!r:.80}, which is no finite number",
        place=f"{result.path}: {name}",
        type_name=type_name(type(value)),
    )


def checked_extra(extra: Mapping[str, Any]) -> dict[str, Json]:
    """Return a copy of unknown fields, which must be JSON as they came.

    Args:
        extra: the fields by name.

    Raises:
        EncodingError: they are not.
    """
    try:
        copied: dict[str, Json] = json.loads(json.dumps(dict(extra), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise EncodingError(f"extra fields must be plain JSON: {error}", place="extra") from error
    return copied


def _name_in(path: str) -> str:
    """Return the name that a path shows by itself; a record leaves it out where that is the step's name."""
    return path[: path.rindex("[")] if path[-1:] == "]" and "[" in path else path


@functools.lru_cache(maxsize=1024)
def _origin(function: str, version: str | None, location: str, fingerprint: str) -> str:
    """Return the fields that say which code made a result: few, and the same again and again."""
    parts = []
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
"""One for all the results that have nothing to put in: a long history is read, and collected, in half the objects."""

_KNOWN = {
    "name",
    "step_type",
    "path",
    "success",
    "output",
    "error",
    "duration_ms",
    "started_at",
    "attempt",
    "tries",
    "function",
    "version",
    "location",
    "fingerprint",
    "arguments",
    "evidence",
}


def decode_result(document: Json, fetch: Fetch | None = None) -> tuple[StepResult, Blobs]:
    """Return the result of a parsed document; its output is decoded when it is looked at.

    Args:
        document: the parsed canonical bytes.
        fetch: reads large values from the store that the document came from.

    Raises:
        DecodingError: the document is not that of a result.
    """
    try:
        path: str = document["path"]
        get = document.get
        started, error = get("started_at"), get("error")
        held = unpack(get("output"), fetch)
        result = StepResult(
            _name_in(path) if (name := get("name")) is None else name,
            get("step_type", "python"),
            get("success", True),
            held,
            document["duration_ms"],
            None if error is None else decode_error(error),
            path,
            None if started is None else datetime.fromisoformat(started),
            get("attempt", 1),
            get("tries", 1),
            get("function", ""),
            get("version"),
            get("location", ""),
            get("fingerprint", ""),
            get("arguments", _EMPTY),
            get("evidence"),
            _EMPTY if _KNOWN.issuperset(document) else {k: v for k, v in document.items() if k not in _KNOWN},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as failure:
        raise DecodingError(f"a recorded result is malformed: {failure!r:.120}") from failure
    return result, ({held.digest: held} if isinstance(held, Blob) else _EMPTY)


def append_result(history: History, result: StepResult) -> None:
    """Append a result to a history, with its canonical bytes.

    Args:
        history: the history.
        result: the result.
    """
    encoded, blobs = encode_result(result)
    for blob in blobs.values():  # from here on the large value is the blob's, which lets go of it once it is saved
        result = attrs.evolve(result, output=blob)
    history.append(result, encoded, blobs)


def as_view(results: Sequence[StepResult]) -> HistoryView:
    """Return results as a view of a history, making one where they are a plain sequence.

    Args:
        results: a view, or any sequence of results.
    """
    if isinstance(results, HistoryView):
        return results
    history = History()
    for result in results:
        append_result(history, result)
    return history.view()


def encode_error(error: StepError) -> Json:
    """Return the document of an error."""
    document: dict[str, Any] = {"type": error.type, "message": error.message}
    if error.bases:
        document["bases"] = list(error.bases)
    if error.traceback:
        document["traceback"] = error.traceback
    if error.path:
        document["path"] = error.path
    if error.tries != 1:
        document["tries"] = error.tries
    return document


def decode_error(document: Json) -> StepError:
    """Return the error of a document."""
    return StepError(
        document["type"],
        document["message"],
        tuple(document.get("bases", ())),
        document.get("traceback", ""),
        document.get("path", ""),
        document.get("tries", 1),
    )


def encode_time(moment: datetime) -> str:
    """Write an aware time in UTC as records do: `2026-11-20T15:30:00.123456Z`."""
    text = moment.isoformat()
    return f"{text[:-6]}Z" if text.endswith("+00:00") else text


def plain_tree(held: Any, place: str) -> Json:
    """Return the tree of a value that a record holds, reading a large one from its store."""
    return held.tree if isinstance(held, Recorded | Blob) else encode(_plain(held), place)


def _plain(held: Any) -> Any:
    return held.value() if isinstance(held, LazyValue) else held
