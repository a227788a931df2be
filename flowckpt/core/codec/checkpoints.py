"""A checkpoint as JSON: the head (all fields except the results), and the whole document for export.

Fields that stay the same in a run (workflow, inputs, target) are carried from checkpoint to checkpoint: a store writes
them only if they differ from the previous checkpoint, so a save costs the same with large inputs as with none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from flowckpt.core.codec.blob import Blob, Fetch, Recorded, pack, plain_tree, unpack
from flowckpt.core.codec.results import (
    Blobs,
    copy_extra,
    decode_error,
    decode_result,
    encode_error,
    encode_result,
    encode_time,
)
from flowckpt.core.codec.tags import Json, decode, encode
from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.records import result as partials
from flowckpt.core.records.checkpoint import SCHEMA_VERSION, STATUS_OF_REASON, Reason
from flowckpt.errors import DecodingError, UnsupportedSchemaError

CARRIED = ("workflow_name", "inputs_hash", "fingerprint", "inputs", "metadata")
_HELD = {"inputs": "held_inputs", "snapshot": "held_snapshot", "output": "held_output"}
_KNOWN = {
    *CARRIED,
    "checkpoint_id",
    "sequence",
    "attempt",
    "reason",
    "status",
    "saved_at",
    "evidence",
    "in_flight",
    "snapshot",
    "output",
    "error",
    "partial",
}


def encode_head(data: CheckpointData, previous: CheckpointData | None = None) -> tuple[dict[str, Json], Blobs]:
    """Return the head of a checkpoint, and the large values that it refers to.

    Args:
        data: the checkpoint.
        previous: the previous checkpoint in the same place; equal fields are left out.

    Raises:
        EncodingError: it contains a value outside the closed set.
        UnsupportedSchemaError: its version is newer than this program can write.
    """
    if data.schema_version != SCHEMA_VERSION:
        check_schema(data.schema_version)
    head: dict[str, Json] = {
        "sequence": data.sequence,
        "checkpoint_id": data.checkpoint_id,
        "attempt": data.attempt,
        "reason": data.reason.value,
        "saved_at": encode_time(data.saved_at),
    }
    blobs: dict[str, Blob] = {}
    if data.status is not STATUS_OF_REASON[data.reason]:
        head["status"] = data.status.value
    if data.evidence:
        head["evidence"] = encode(list(data.evidence), "evidence")
    if data.in_flight:
        head["in_flight"] = list(data.in_flight)
    if data.error is not None:
        head["error"] = encode_error(data.error)
    if data.held_snapshot is not None:
        head["snapshot"] = _pack_field(data.held_snapshot, "snapshot", blobs)
    if data.held_output is not None:
        head["output"] = _pack_field(data.held_output, "output", blobs)
    if data.partial:
        head["partial"] = {path: _encode_partial(path, each, blobs) for path, each in data.partial.items()}
    if data.extra:
        head.update(copy_extra(data.extra))
    if previous is not None and data.carries_same_objects(previous):
        return head, blobs
    for name in CARRIED:
        held = getattr(data, _HELD.get(name, name))
        before = None if previous is None else getattr(previous, _HELD.get(name, name))
        if previous is not None and (held is before or (name not in _HELD and held == before)):
            continue
        if name == "inputs":
            head[name] = _pack_field(held, "inputs", blobs)
        elif name == "metadata":
            head[name] = encode(dict(held), "metadata")
        else:
            head[name] = held
    return head, blobs


def _pack_field(held: Any, place: str, blobs: dict[str, Blob]) -> Json:
    if isinstance(held, Blob):
        blobs[held.digest] = held
        return held.reference()
    tree = held.tree if isinstance(held, Recorded) else encode(held, place)
    _, blob = pack(tree)
    if blob is None:
        return tree
    blobs[blob.digest] = blob
    return blob.reference()


def _encode_partial(path: str, partial: partials.PartialState, blobs: dict[str, Blob]) -> Json:
    return _partial_document(partial, _pack_field(partial.held_state, f"{path}: saved state", blobs))


def _partial_document(partial: partials.PartialState, state: Json) -> Json:
    document: dict[str, Json] = {"state": state}
    for name in ("function", "fingerprint", "version"):
        if value := getattr(partial, name):
            document[name] = value
    if partial.arguments:
        document["arguments"] = dict(partial.arguments)
    return document


def _export_partials(partial: Mapping[str, partials.PartialState]) -> dict[str, Json]:
    return {
        path: _partial_document(each, plain_tree(each.held_state, f"{path}: saved state"))
        for path, each in partial.items()
    }


def _decode_partial(document: Mapping[str, Json], fetch: Fetch | None) -> partials.PartialState:
    return partials.PartialState(
        unpack(document["state"], fetch),
        document.get("function", ""),
        document.get("fingerprint", ""),
        document.get("arguments", {}),
        document.get("version"),
    )


def decode_head(head: Mapping[str, Json], results: Sequence[StepResult], fetch: Fetch | None = None) -> CheckpointData:
    """Return the checkpoint of a head and its results.

    Args:
        head: a head of `encode_head` from a store, completed by the carried fields that it left out.
        results: the whole history up to the checkpoint.
        fetch: reads large values from the store that the head came from.

    Raises:
        DecodingError: the head is malformed.
    """
    try:
        reason = Reason(head["reason"])
        error = head.get("error")
        return CheckpointData(
            checkpoint_id=head["checkpoint_id"],
            workflow_name=head["workflow_name"],
            inputs_hash=head["inputs_hash"],
            step_results=results,
            saved_at=datetime.fromisoformat(head["saved_at"]),
            sequence=head["sequence"],
            attempt=head["attempt"],
            reason=reason,
            status=head.get("status", STATUS_OF_REASON[reason]),
            inputs=unpack(head["inputs"], fetch),
            fingerprint=head["fingerprint"],
            evidence=tuple(decode(head.get("evidence", []))),
            in_flight=tuple(head.get("in_flight", ())),
            snapshot=unpack(head["snapshot"], fetch) if "snapshot" in head else None,
            metadata=decode(head["metadata"]),
            output=unpack(head["output"], fetch) if "output" in head else None,
            error=None if error is None else decode_error(error),
            partial={path: _decode_partial(each, fetch) for path, each in head.get("partial", {}).items()},
            extra={} if head.keys() <= _KNOWN else {key: head[key] for key in head if key not in _KNOWN},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as failure:
        raise DecodingError(f"a recorded checkpoint is malformed: {failure!r:.120}") from failure


def check_schema(version: object) -> None:
    """Refuse a record of a newer major version.

    Raises:
        UnsupportedSchemaError: the version is newer than `SCHEMA_VERSION`, or invalid.
    """
    if type(version) is not int or not 1 <= version <= SCHEMA_VERSION:
        raise UnsupportedSchemaError(found=version, supported=SCHEMA_VERSION)


def export_document(data: CheckpointData) -> dict[str, Json]:
    """Return a checkpoint as one JSON document for people and for git, including large values."""
    return {
        "schema_version": data.schema_version,
        "checkpoint_id": data.checkpoint_id,
        "workflow_name": data.workflow_name,
        "inputs_hash": data.inputs_hash,
        "sequence": data.sequence,
        "attempt": data.attempt,
        "reason": data.reason.value,
        "status": data.status.value,
        "inputs": plain_tree(data.held_inputs, "inputs"),
        "fingerprint": data.fingerprint,
        "metadata": encode(dict(data.metadata), "metadata"),
        "step_results": [result_document(result) for result in data.step_results],
        "evidence": encode(list(data.evidence), "evidence"),
        "in_flight": list(data.in_flight),
        "snapshot": plain_tree(data.held_snapshot, "snapshot"),
        "output": plain_tree(data.held_output, "output"),
        "error": None if data.error is None else encode_error(data.error),
        **({"partial": _export_partials(data.partial)} if data.partial else {}),
        "saved_at": encode_time(data.saved_at),
        **data.extra,
    }


def read_export(document: Json) -> CheckpointData:
    """Return the checkpoint of an export: the opposite of `export_document`.

    Args:
        document: the parsed export; it is not changed.

    Raises:
        UnsupportedSchemaError: its version is newer than this program can read, or missing.
        DecodingError: it is not the export of a checkpoint.
    """
    if not isinstance(document, Mapping) or "schema_version" not in document or "step_results" not in document:
        raise DecodingError(f"this is not the export of a checkpoint: {document!r:.120}")
    check_schema(document["schema_version"])
    found = document["step_results"]
    if not isinstance(found, list):
        raise DecodingError(f"step_results of an export is an array, not {found!r:.80}", place="step_results")
    head = {name: document[name] for name in document if name not in ("schema_version", "step_results")}
    for name in ("snapshot", "output", "error"):
        if head.get(name) is None:
            head.pop(name, None)
    return decode_head(head, [decode_result(each)[0] for each in found])


def result_document(result: StepResult) -> dict[str, Json]:
    """Return a result as a JSON document with every field, for export and for `--json`."""
    document = json.loads(encode_result(result)[0])
    ordered = {
        "name": result.name,
        "path": document.pop("path"),
        "step_type": document.pop("step_type", "python"),
        "success": document.pop("success", True),
        "output": plain_tree(result.held_output, "output"),
        "duration_ms": document.pop("duration_ms"),
        "error": document.pop("error", None),
        "started_at": document.pop("started_at", None),
        "attempt": document.pop("attempt", 1),
        "evidence": document.pop("evidence", None),
    }
    document.pop("output", None)
    document.pop("name", None)
    return {**ordered, **document}


def export_text(data: CheckpointData) -> str:
    """Return the export as text, indented, one key a line, ending in a line feed."""
    return json.dumps(export_document(data), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
