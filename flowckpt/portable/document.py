"""The document of one checkpoint, read again: what `export` prints, perhaps from a hand that has edited it."""

from __future__ import annotations

from typing import Any

from flowckpt.checkpoint import CheckpointData, History
from flowckpt.codec.checkpoints import CARRIED, check_schema, decode_head
from flowckpt.codec.results import append_result, decode_result
from flowckpt.errors import DecodingError, EncodingError
from flowckpt.portable.shape import check_head, check_result
from flowckpt.portable.strict_json import MalformedError, strict_json

_EMPTY = ("snapshot", "output", "error")
"""Fields that a document always has, and a record only where there is something in them."""


def checkpoint_in(text: bytes) -> CheckpointData:
    """Return the checkpoint of a document.

    Args:
        text: the document.

    Raises:
        MalformedError: it is none.
        UnsupportedSchemaError: a newer flowckpt has written it.
    """
    document = strict_json(text)
    if type(document) is not dict or not {"checkpoint_id", "step_results"} <= document.keys():
        raise MalformedError("it is neither a run nor a checkpoint that flowckpt has exported")
    check_schema(document.pop("schema_version", None))
    listed = document.pop("step_results")
    if type(listed) is not list:
        raise MalformedError("its step_results are no list")
    head: dict[str, Any] = {key: value for key, value in document.items() if key not in _EMPTY or value is not None}
    check_head(head)
    missing = [name for name in CARRIED if name not in head]
    if missing:
        raise MalformedError(f"it has no {missing[0]!r}")
    if type(head["inputs"]) is not dict:
        raise MalformedError("its inputs are no object")
    history, paths = History(), set()
    try:
        for each in listed:
            check_result(each)
            if each["path"] in paths:
                raise MalformedError(f"the step {each['path']!r:.80} stands there twice")
            paths.add(each["path"])
            append_result(
                history, decode_result({key: value for key, value in each.items() if not _is_left_out(key, value)})[0]
            )
        return decode_head(head, history.view())
    except (DecodingError, EncodingError) as error:
        raise MalformedError(error.message) from None


def _is_left_out(key: str, value: object) -> bool:
    """Tell whether a field says what a result without it says, too."""
    return value is None and key in ("error", "started_at", "evidence", "version")
