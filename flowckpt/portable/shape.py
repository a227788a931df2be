"""What the documents in a file must look like, so that whoever reads them from a store later finds what it expects."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from flowckpt.checkpoint import Reason, Status
from flowckpt.codec import Json, decode
from flowckpt.portable.names import check_name
from flowckpt.portable.strict_json import MalformedError

_MOST_NUMBER = 2**53
_HASH = re.compile(r"[\x21-\x7e]{0,200}")
Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_optional_text(value: Any) -> bool:
    return value is None or type(value) is str


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


def _is_texts(value: Any) -> bool:
    return type(value) is list and all(type(each) is str for each in value)


def _is_mapping(value: Any) -> bool:
    return type(value) is dict


def _is_optional_mapping(value: Any) -> bool:
    return value is None or type(value) is dict


def _is_text_mapping(value: Any) -> bool:
    return type(value) is dict and all(type(each) is str for each in value.values())


def _is_error(value: Any) -> bool:
    return value is None or (
        type(value) is dict
        and _is_text(value.get("type"))
        and _is_text(value.get("message"))
        and _is_texts(value.get("bases", []))
        and _is_text(value.get("traceback", ""))
        and _is_text(value.get("path", ""))
        and is_count(value.get("tries", 1))
        and _is_texts(value.get("causes", []))
    )


def _is_partial(value: Any) -> bool:
    """Tell whether a value is what a step saved of itself."""
    return (
        type(value) is dict
        and "state" in value
        and _is_text(value.get("function", ""))
        and _is_text(value.get("fingerprint", ""))
        and _is_optional_text(value.get("version"))
        and _is_mapping(value.get("arguments", {}))
    )


def _is_way_back(value: Any) -> bool:
    """Tell whether a value says how a run ends whose steps are being undone."""
    return (
        type(value) is dict
        and _is_reason(value.get("reason"))
        and "error" in value
        and _is_error(_as_written(value["error"]))
    )


def _as_written(error: Any) -> Any:
    """Return an error as JSON holds it; in metadata its lists may be tuples."""
    if type(error) is not dict:
        return error
    return {key: [*value] if type(value) is tuple else value for key, value in error.items()}


def _is_reason(value: Any) -> bool:
    return type(value) is str and value in {reason.value for reason in Reason}


_RESULT: Mapping[str, Check] = {
    "path": _is_text,
    "name": _is_text,
    "step_type": _is_text,
    "success": lambda value: type(value) is bool,
    "error": _is_error,
    "duration_ms": _is_number,
    "started_at": lambda value: value is None or _is_moment(value),
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
    "sequence": lambda value: is_count(value, 1),
    "checkpoint_id": _is_text,
    "attempt": lambda value: is_count(value, 1),
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
    "partial": lambda value: type(value) is dict and all(map(_is_partial, value.values())),
}
_METADATA: Mapping[str, Check] = {
    "target": _is_text_mapping,
    "tags": _is_text_mapping,
    "defaulted": _is_texts,
    "base_path": _is_text,
    "saving": _is_mapping,
    "limits": lambda value: type(value) is dict and all(map(is_count, value.values())),
    "deaths": lambda value: (
        type(value) is dict
        and is_count(value.get("count"), 1)
        and is_count(value.get("results"))
        and type(value.get("paths")) in (list, tuple)
        and _is_texts([*value["paths"]])
        and _is_text(value.get("since"))
        and _is_text(value.get("partial"))
    ),
    "executors": _is_text_mapping,
    "forked_from": _is_optional_mapping,
    "rolled_back_to": _is_optional_mapping,
    "rolling_back": lambda value: value is None or _is_way_back(value),
    "superseded": lambda value: type(value) is list and all(type(each) is dict for each in value),
    "reusable_from": lambda value: type(value) is list and all(is_count(each, 1) for each in value),
    "not_reusable": _is_texts,
    "manager": lambda value: (
        type(value) is dict
        and type(value.get("head", 0)) is int
        and _is_texts([*value["plan"]] if type(value.get("plan", [])) in (list, tuple) and "plan" in value else [])
    ),
}


def check_result(document: Json) -> None:
    """Refuse what is not the document of a result.

    Args:
        document: the parsed document.

    Raises:
        MalformedError: it is none.
    """
    _check(document, _RESULT, "a result", ("path", "duration_ms"))
    check_name(document["path"], "the path of a step")
    check_name(document.get("name", "x"), "the name of a step")


def check_head(document: Json) -> None:
    """Refuse what are not the fields of a checkpoint beside its results.

    Args:
        document: the parsed document; carried fields may be missing.

    Raises:
        MalformedError: it is none.
    """
    _check(document, _HEAD, "a checkpoint", ("sequence", "checkpoint_id", "attempt", "reason", "saved_at"))
    check_name(document["checkpoint_id"], "the id of a checkpoint")
    check_name(document.get("workflow_name", "x"), "the name of a workflow")
    if "metadata" in document:
        check_metadata(decode(document["metadata"]))


def check_metadata(metadata: Any) -> None:
    """Refuse metadata in which what the engine wrote is not what it writes.

    Args:
        metadata: the decoded metadata.

    Raises:
        MalformedError: it is none.
    """
    if type(metadata) is not dict or not all(type(key) is str for key in metadata):
        raise MalformedError("the metadata of a checkpoint is no object")
    _check(metadata, _METADATA, "the metadata of a checkpoint", ())
    for result in metadata.get("superseded", ()):
        _check(result, _RESULT, "a result that no longer counts", ("path", "duration_ms"))


def _check(document: Json, checks: Mapping[str, Check], what: str, needed: tuple[str, ...]) -> None:
    if type(document) is not dict:
        raise MalformedError(f"{what} is no object")
    for name in needed:
        if name not in document:
            raise MalformedError(f"{what} has no {name!r}")
    for name, check in checks.items():
        if name in document and not check(document[name]):
            raise MalformedError(f"{name!r} of {what} is {document[name]!r:.80}")
