"""The form of the documents of results and checkpoints.

An import refuses a file in any other form, and the check of a store reports such a record even if its digests are
correct: flowckpt never writes it, and code that reads it later may fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from flowckpt.core.codec import Json, decode
from flowckpt.core.records import Reason, Status
from flowckpt.core.records.listing import AUTHENTICATED
from flowckpt.core.records.wait import WaitKind

MOST_PATH = 4096
"""The longest name of a step, a checkpoint or a workflow."""


class MalformedError(Exception):
    """A file is malformed; the text says how. The reader adds the place, and refuses the file."""


def check_name(name: object, what: str) -> str:
    """Return the name of a step, a checkpoint or a workflow, if it is valid.

    Raises:
        MalformedError: the name is empty, too long, or has control characters.
    """
    if type(name) is not str or not name or len(name) > MOST_PATH or has_controls(name):
        raise MalformedError(f"{what} must be 1 to {MOST_PATH} characters without control characters, not {name!r:.80}")
    return name


def has_controls(text: str) -> bool:
    """Return whether a text has control characters, which could affect a terminal."""
    return any(ord(character) < 32 or 127 <= ord(character) < 160 for character in text)


_MOST_NUMBER = 2**53
_HASH = re.compile(r"[\x21-\x7e]{0,200}")
Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return type(value) is str


def is_count(value: Any, least: int = 0) -> bool:
    """Return whether a value is an integer of at least `least` that any store can store."""
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


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _one_of(names: Collection[str]) -> Check:
    return lambda value: type(value) is str and value in names


def _is_resumption(value: Any) -> bool:
    """Return whether a value describes an attempt of a generation: its number, its number of results, and its time."""
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


def _is_process(value: Any) -> bool:
    return type(value) is list and [type(each) for each in value] == [str, str, int, int]


def _object(needed: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    """Return the check of an object with required and optional fields."""
    checks = {**needed, **(optional or {})}
    return lambda value: (
        type(value) is dict
        and needed.keys() <= value.keys()
        and all(check(value[name]) for name, check in checks.items() if name in value)
    )


_is_positive = partial(is_count, least=1)
_is_reason = _one_of({*Reason})
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
    {"kind": _one_of({*WaitKind}), "since": _is_moment},
    {
        "name": _is_text,
        "due_at": _is_moment,
        "request": _is_text,
        "claims": _is_mapping,
        "arguments": _object({}, {"tries": is_count, "figures": _mapping_of(_is_number)}),
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
"""The present generation of a run, and earlier ones."""
_is_decision = _object(
    {"step": _is_text, "done": _is_bool, "at": _is_moment},
    {"by": _is_optional_text, "comment": _is_optional_text},
)
"""A user's decision about a step in doubt."""

_RESULT_FIELDS: Mapping[str, Check] = {
    "path": _is_text,
    "name": _is_text,
    "step_type": _is_text,
    "success": _is_bool,
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
    "status": _one_of({*Status} - {Status.CRASHED}),
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
    "failed_at": _is_text,
    "rolling_back": _none_or(_object({"reason": _is_reason, "error": _is_error})),
    "superseded": _list_of(_is_mapping),
    "packages": lambda value: _mapping_of(_is_text_mapping)(value) and all(map(str.isdecimal, map(str, value))),
    "settled": _sequence_of(_is_decision),
    "started_once": _is_text_mapping,
    "runners": _mapping_of(_list_of(_is_process)),
    "reusable_from": _list_of(_is_positive),
    "not_reusable": _is_texts,
    "manager": _object({}, {"head": lambda value: type(value) is int, "plan": _sequence_of(_is_text)}),
}


def check_result(document: Json) -> None:
    """Refuse an invalid document of a result.

    Raises:
        MalformedError: the document is invalid.
    """
    _check_fields(document, _RESULT_FIELDS, "a result", ("path", "duration_ms"))
    check_name(document["path"], "the path of a step")
    check_name(document.get("name", "x"), "the name of a step")


def check_head(document: Json) -> None:
    """Refuse an invalid head of a checkpoint.

    Args:
        document: the parsed document; carried fields may be missing.

    Raises:
        MalformedError: it is not valid.
    """
    _check_fields(document, _HEAD, "a checkpoint", ("sequence", "checkpoint_id", "attempt", "reason", "saved_at"))
    check_name(document["checkpoint_id"], "the id of a checkpoint")
    check_name(document.get("workflow_name", "x"), "the name of a workflow")
    if "metadata" in document:
        check_metadata(decode(document["metadata"]))


def check_metadata(metadata: Any) -> None:
    """Refuse metadata whose keys of the engine have an invalid form.

    Raises:
        MalformedError: the metadata are invalid.
    """
    if type(metadata) is not dict or not all(type(key) is str for key in metadata):
        raise MalformedError("the metadata of a checkpoint is not an object")
    _check_fields(metadata, _METADATA, "the metadata of a checkpoint", ())
    for result in metadata.get("superseded", ()):
        _check_fields(result, _RESULT_FIELDS, "a result that no longer counts", ("path", "duration_ms"))


def _check_fields(document: Json, checks: Mapping[str, Check], what: str, needed: tuple[str, ...]) -> None:
    if type(document) is not dict:
        raise MalformedError(f"{what} is not an object")
    for name in needed:
        if name not in document:
            raise MalformedError(f"{what} has no {name!r}")
    for name, check in checks.items():
        if name in document and not check(document[name]):
            raise MalformedError(f"{name!r} of {what} is {document[name]!r:.80}")
