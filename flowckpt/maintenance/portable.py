r"""The lines of an exported run: JSON for people and for `jq`, one record a line.

::

    {"flowckpt":"run","schema_version":1,"workflow_id":"nightly","workflow_name":"etl","status":"failed","target":{…}}
    {"attempt":1,"keeps":0}
    {"checkpoint":{"sequence":1,"checkpoint_id":"@started",…},"results":0,"chain":"…"}
    {"blob":"SHA-256 of the content","size":70002,"content":…}
    {"result":{"path":"fetch",…}}
    {"checkpoint":{"sequence":2,"checkpoint_id":"fetch",…},"results":1,"chain":"…"}
    {"attempt":2,"keeps":1}
    …
    {"end":{"attempts":2,"checkpoints":9,"results":8,"blobs":1,"sha256":"…","key":"…","mac":"…"}}

A result stands there in its canonical bytes and a large value in its own, so that they come out of the file as they went
in. The chain digest of a checkpoint proves the results up to it, and the last line all that stands before it. If the
store has a key, the last line is signed. Nothing else says when or from where it was exported: the same run makes the
same bytes, whatever store it lies in.
"""

from __future__ import annotations

import hmac
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from flowckpt.core.codec import Json, decode, dumps
from flowckpt.core.records import Reason, Status
from flowckpt.core.records.checkpoint import SCHEMA_VERSION
from flowckpt.core.records.listing import AUTHENTICATED
from flowckpt.core.records.wait import WaitKind
from flowckpt.core.system.ids import why_no_run_id
from flowckpt.stores.log.sealing.keys import Key, derived

FORMAT = "run"
_RESULT_PREFIX = b'{"result":'
_SIGNATURE = re.compile(rb',"key":"([0-9a-f]{16})","mac":"[0-9a-f]{64}"\}\}\n')
_BLOB = re.compile(rb'\{"blob":"([0-9a-f]{64})","size":([1-9][0-9]{0,15}),"content":')


@attrs.frozen
class Counts:
    """How much stands in an exported run.

    Attributes:
        attempts: attempts that saved something.
        checkpoints: checkpoints, of all of them.
        results: results, those that no longer count included.
        blobs: large values.
    """

    attempts: int = 0
    checkpoints: int = 0
    results: int = 0
    blobs: int = 0


def header_line(workflow_id: str, workflow_name: str, status: str, target: Mapping[str, Json]) -> bytes:
    """Return the first line.

    Args:
        workflow_id: the run.
        workflow_name: its workflow.
        status: where it stands, according to its newest checkpoint.
        target: where the workflow is found; empty where that is not known.
    """
    return _line(
        {
            "flowckpt": FORMAT,
            "schema_version": SCHEMA_VERSION,
            "workflow_id": workflow_id,
            "workflow_name": workflow_name,
            "status": status,
            "target": dict(target),
        }
    )


def attempt_line(attempt: int, keeps: int) -> bytes:
    """Return the line that begins an attempt.

    Args:
        attempt: its number.
        keeps: with how many of the results before it, it begins; what follows those no longer counts.
    """
    return _line({"attempt": attempt, "keeps": keeps})


def blob_line(digest: str, content: bytes) -> bytes:
    """Return the line of a large value.

    Args:
        digest: SHA-256 of the content, in hex.
        content: its JSON text.
    """
    return b'{"blob":"%b","size":%d,"content":%b}\n' % (digest.encode(), len(content), content)


def result_line(encoded: bytes) -> bytes:
    """Return the line of a result.

    Args:
        encoded: its canonical bytes.
    """
    return b"%b%b}\n" % (_RESULT_PREFIX, encoded)


def checkpoint_line(head: Mapping[str, Json], results: int, chain: str) -> bytes:
    """Return the line of a checkpoint.

    Args:
        head: its fields beside its results, without those that are as in the checkpoint before.
        results: how many results it holds.
        chain: their chain digest, in hex.
    """
    return _line({"checkpoint": dict(head), "results": results, "chain": chain})


def end_line(counts: Counts, sha256: str, key: Key | None = None) -> bytes:
    """Return the last line.

    Args:
        counts: how much stands before it.
        sha256: SHA-256 over all that stands before it, in hex.
        key: the key to sign it with.
    """
    end = {**attrs.asdict(counts), "sha256": sha256}
    if key is None:
        return _line({"end": end})
    mac = hmac.digest(derived(key.secret, purpose=b"exported run"), _line({"end": end}), "sha256")
    return _line({"end": {**end, "key": key.id, "mac": mac.hex()}})


def signing_key(line: bytes, unsigned: bytes) -> str | None:
    """Return the id of the key that signed a last line, or "" if it is unsigned; None if it is not such a line.

    Args:
        line: the line.
        unsigned: the line that belongs there, unsigned.
    """
    if line == unsigned:
        return ""
    match = _SIGNATURE.fullmatch(line.removeprefix(unsigned[:-3]))
    return None if match is None else match[1].decode()


def result_in(line: bytes) -> bytes | None:
    """Return the canonical bytes of a result's line; None where it is another one."""
    return line[len(_RESULT_PREFIX) : -1] if line.startswith(_RESULT_PREFIX) and line.endswith(b"}") else None


def blob_in(line: bytes) -> tuple[str, int, int] | None:
    """Return digest and size of a large value, and where its content begins in the line; None where it is another one."""
    match = _BLOB.match(line)
    return None if match is None else (match[1].decode(), int(match[2]), match.end())


def _line(document: Json) -> bytes:
    return dumps(document).encode() + b"\n"


def is_run(first_line: bytes) -> bool:
    """Tell whether a file that begins so is an exported run."""
    if not first_line.startswith(b"{"):
        return False
    try:
        found = json.loads(first_line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "flowckpt" in found


# How far an import goes with a file that anybody may have made.


MIB = 1024 * 1024
MOST_DEPTH = 260
"""How many brackets may lie in one another: those of the deepest value that can be recorded, and of what holds it."""

MOST_PATH = 4096
"""How long other names may be: of steps, checkpoints and workflows."""

RATIO_FROM = 16 * MIB
"""Up to so many bytes, a compressed file may be of any ratio."""


def _at_least_one(_: object, attribute: attrs.Attribute[int], value: int) -> None:
    if type(value) is not int or value < 1:
        raise ValueError(f"{attribute.name} must be a whole number of at least 1, got {value!r}")


@attrs.frozen(kw_only=True)
class ImportLimits:
    """How much an import accepts. The defaults accept any reasonable run.

    Attributes:
        max_bytes: bytes of the file after decompression.
        max_value_bytes: bytes of one line, which holds at most one large value; about the memory needed.
        max_records: lines of the file.
        max_attempts: the highest number of an attempt.
        max_ratio: the largest ratio of content to compressed file.
    """

    max_bytes: int = attrs.field(default=64 * 1024 * MIB, validator=_at_least_one)
    max_value_bytes: int = attrs.field(default=1024 * MIB, validator=_at_least_one)
    max_records: int = attrs.field(default=10_000_000, validator=_at_least_one)
    max_attempts: int = attrs.field(default=10_000, validator=_at_least_one)
    max_ratio: int = attrs.field(default=200, validator=_at_least_one)


# JSON from anybody: parsed to a tree that every store can hold and every reader can read again, or refused.


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class MalformedError(Exception):
    """Something in a file is not as it must be; its text says what. The reader adds where, and refuses the file."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise MalformedError(f"the key {next(key for key in keys if keys.count(key) > 1)!r:.60} stands there twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise MalformedError(f"the number {text:.40} is too large")
    return value


def _no_constant(text: str) -> Any:
    raise MalformedError(f"{text} is not JSON")


_decode = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_no_constant).decode


def strict_json(text: bytes) -> Json:
    """Parse JSON: UTF-8, no key twice, no NaN, no number beyond what a float holds, not too deep.

    Raises:
        MalformedError: it is not valid.
    """
    try:
        tree = _decode(text.decode())
        if _SURROGATE.search(text):
            json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise MalformedError(f"byte {error.start} is not UTF-8") from None
    except UnicodeEncodeError:
        raise MalformedError("a text in it has half a surrogate pair") from None
    except RecursionError:
        raise MalformedError(f"it is nested more than {MOST_DEPTH} deep") from None
    except ValueError as error:
        raise MalformedError(f"it is not JSON: {error}"[:200]) from None
    if text.count(b"[") + text.count(b"{") > MOST_DEPTH:
        _check_depth(tree)
    return tree


def _check_depth(tree: Json) -> None:
    level = [tree]
    for _ in range(MOST_DEPTH + 1):
        inner: list[Any] = []
        for each in level:
            if type(each) is dict:
                inner.extend(each.values())
            elif type(each) is list:
                inner.extend(each)
        level = [each for each in inner if type(each) in (dict, list)]
        if not level:
            return
    raise MalformedError(f"it is nested more than {MOST_DEPTH} deep")


# Which names a file may bring into a store.
#
# They reach a path only through the stores' own encoder, and a terminal only escaped; but people read and type them.


def check_run_id(name: object) -> str:
    """Return the id of a run that stands in a file, if it is one.

    Raises:
        MalformedError: it can be none.
    """
    if why := why_no_run_id(name):
        raise MalformedError(f"the run id {why} (--id NEW gives it another one)")
    return str(name)


def check_name(name: object, what: str) -> str:
    """Return a name of a step, a checkpoint or a workflow, if it is one.

    Raises:
        MalformedError: it is empty, long, or has control characters.
    """
    if type(name) is not str or not name or len(name) > MOST_PATH or has_controls(name):
        raise MalformedError(
            f"{what} must be 1 to {MOST_PATH} characters, none of them for control, and is {name!r:.80}"
        )
    return name


def has_controls(text: str) -> bool:
    """Tell whether a text has characters that steer a terminal."""
    return any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text)


# What the documents in a file must look like, so that the process that reads them from a store later finds what it expects.


_MOST_NUMBER = 2**53
_HASH = re.compile(r"[\x21-\x7e]{0,200}")
Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return type(value) is str


def is_count(value: Any, least: int = 0) -> bool:
    """Tell whether a value is a whole number of at least `least` that any store can hold."""
    return type(value) is int and least <= value < _MOST_NUMBER


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -_MOST_NUMBER < value < _MOST_NUMBER


def _is_moment(value: Any) -> bool:
    if type(value) is not str or len(value) > 64:
        return False
    try:
        moment = datetime.fromisoformat(value)
        return moment.utcoffset() is not None and 1900 < moment.year < 9999
    except ValueError:
        return False


def _is_mapping(value: Any) -> bool:
    return type(value) is dict


def _is_reason(value: Any) -> bool:
    return type(value) is str and value in {reason.value for reason in Reason}


def _is_resumption(value: Any) -> bool:
    """Return whether a value is an attempt of a generation: its number, how many results it found, and when."""
    return (
        type(value) in (list, tuple)
        and len(value) == 3
        and is_count(value[0], 1)
        and is_count(value[1])
        and _is_moment(value[2])
    )


def _none_or(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _list_of(check: Check) -> Check:
    return lambda value: type(value) is list and all(map(check, value))


def _sequence_of(check: Check, *, length: int | None = None) -> Check:
    """Return the check of a list, which in metadata may be a tuple."""
    return lambda value: type(value) in (list, tuple) and length in (None, len(value)) and all(map(check, value))


def _mapping_of(check: Check) -> Check:
    return lambda value: type(value) is dict and all(map(check, value.values()))


def _object(needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Return the check of an object that has the needed fields, and perhaps the optional ones."""
    checks = {**needed, **(optional or {})}
    return lambda value: (
        type(value) is dict
        and needed.keys() <= value.keys()
        and all(check(value[name]) for name, check in checks.items() if name in value)
    )


_is_positive = partial(is_count, least=1)
_is_texts, _is_text_mapping = _list_of(_is_text), _mapping_of(_is_text)
_is_optional_text, _is_optional_mapping = _none_or(_is_text), _none_or(_is_mapping)
_is_error = _none_or(
    _object(
        {"type": _is_text, "message": _is_text},
        {
            "bases": _sequence_of(_is_text),
            "traceback": _is_text,
            "path": _is_text,
            "tries": is_count,
            "causes": _sequence_of(_is_text),
        },
    )
)
_is_partial = _object(
    {"state": lambda _: True},
    {"function": _is_text, "fingerprint": _is_text, "version": _is_optional_text, "arguments": _is_mapping},
)
"""The partial state that a step saved."""
_is_wait = _object(
    {"kind": lambda value: type(value) is str and value in {kind.value for kind in WaitKind}, "since": _is_moment},
    {
        "name": _is_text,
        "due_at": _is_moment,
        "request": _is_text,
        "claims": _is_mapping,
        "arguments": _is_mapping,
        "voided": _is_text,
    },
)
_is_former = _object(
    {
        "number": _is_positive,
        "steps": is_count,
        "started_at": _is_moment,
        "ended_at": _is_moment,
        "inputs_hash": _is_text,
        "attempts": _sequence_of(_is_positive, length=2),
    }
)
"""A generation that has ended."""
_is_generation = _object(
    {
        "number": partial(is_count, least=2),
        "attempt": _is_positive,
        "started_at": _is_moment,
        "run_started_at": _is_moment,
        "first_inputs": _is_text,
        "former": _sequence_of(_is_former),
    },
    {
        "taken": _sequence_of(_is_text),
        "replies": _sequence_of(_sequence_of(_is_text, length=2)),
        "resumed": _sequence_of(_is_resumption),
    },
)
"""The present generation of a run, and those before."""
_is_decision = _object(
    {"step": _is_text, "done": lambda value: type(value) is bool, "at": _is_moment},
    {"by": _is_optional_text, "comment": _is_optional_text},
)
"""The decision of a person about a step in doubt."""

_RESULT_FIELDS: Mapping[str, Check] = {
    "path": _is_text,
    "name": _is_text,
    "step_type": _is_text,
    "success": lambda value: type(value) is bool,
    "error": _is_error,
    "duration_ms": _is_number,
    "started_at": _none_or(_is_moment),
    "attempt": is_count,
    "tries": is_count,
    "function": _is_text,
    "version": _is_optional_text,
    "location": _is_text,
    "fingerprint": _is_text,
    "arguments": _is_mapping,
    "evidence": _is_optional_mapping,
    "marks": _is_texts,
}
_HEAD: Mapping[str, Check] = {
    "sequence": _is_positive,
    "checkpoint_id": _is_text,
    "attempt": _is_positive,
    "reason": _is_reason,
    "status": lambda value: type(value) is str and value in {each.value for each in Status} - {Status.CRASHED.value},
    "saved_at": _is_moment,
    "workflow_name": _is_text,
    "inputs_hash": lambda value: type(value) is str and _HASH.fullmatch(value) is not None,
    "fingerprint": _is_text,
    "metadata": _is_mapping,
    "evidence": lambda value: type(value) is list,
    "in_flight": _is_texts,
    "error": _is_error,
    "partial": _mapping_of(_is_partial),
}
_METADATA: Mapping[str, Check] = {
    "target": _is_text_mapping,
    "tags": _is_text_mapping,
    "defaulted": _is_texts,
    "base_path": _is_text,
    "saving": _is_mapping,
    "limits": _mapping_of(is_count),
    "deaths": _object(
        {
            "count": _is_positive,
            "results": is_count,
            "paths": _sequence_of(_is_text),
            "since": _is_text,
            "partial": _is_text,
        }
    ),
    "waits": _mapping_of(_is_wait),
    "taken_signals": _sequence_of(_is_text),
    "executors": _is_text_mapping,
    "birth": _is_text,
    "ended": _object({"attempt": _is_positive, "at": _is_moment}),
    "imported": lambda value: value is True or value == AUTHENTICATED,
    "forked_from": _is_optional_mapping,
    "generation": _is_generation,
    "started_by": _object({"workflow_id": _is_text, "path": _is_text, "attempt": _is_positive}),
    "rolled_back_to": _is_optional_mapping,
    "rolling_back": _none_or(_object({"reason": _is_reason, "error": _is_error})),
    "superseded": _list_of(_is_mapping),
    "packages": lambda value: _mapping_of(_is_text_mapping)(value) and all(map(str.isdecimal, map(str, value))),
    "settled": _sequence_of(_is_decision),
    "reusable_from": _list_of(_is_positive),
    "not_reusable": _is_texts,
    "manager": _object({}, {"head": lambda value: type(value) is int, "plan": _sequence_of(_is_text)}),
}


def check_result(document: Json) -> None:
    """Refuse what is not the document of a result.

    Raises:
        MalformedError: it is not valid.
    """
    _check(document, _RESULT_FIELDS, "a result", ("path", "duration_ms"))
    check_name(document["path"], "the path of a step")
    check_name(document.get("name", "x"), "the name of a step")


def check_head(document: Json) -> None:
    """Refuse what are not the fields of a checkpoint beside its results.

    Args:
        document: the parsed document; carried fields may be missing.

    Raises:
        MalformedError: it is not valid.
    """
    _check(document, _HEAD, "a checkpoint", ("sequence", "checkpoint_id", "attempt", "reason", "saved_at"))
    check_name(document["checkpoint_id"], "the id of a checkpoint")
    check_name(document.get("workflow_name", "x"), "the name of a workflow")
    if "metadata" in document:
        check_metadata(decode(document["metadata"]))


def check_metadata(metadata: Any) -> None:
    """Refuse metadata in which what the engine wrote is not what it writes.

    Raises:
        MalformedError: it is not valid.
    """
    if type(metadata) is not dict or not all(type(key) is str for key in metadata):
        raise MalformedError("the metadata of a checkpoint is not an object")
    _check(metadata, _METADATA, "the metadata of a checkpoint", ())
    for result in metadata.get("superseded", ()):
        _check(result, _RESULT_FIELDS, "a result that no longer counts", ("path", "duration_ms"))


def _check(document: Json, checks: Mapping[str, Check], what: str, needed: tuple[str, ...]) -> None:
    if type(document) is not dict:
        raise MalformedError(f"{what} is not an object")
    for name in needed:
        if name not in document:
            raise MalformedError(f"{what} has no {name!r}")
    for name, check in checks.items():
        if name in document and not check(document[name]):
            raise MalformedError(f"{name!r} of {what} is {document[name]!r:.80}")
