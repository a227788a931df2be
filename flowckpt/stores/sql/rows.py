"""Results, evidence and checkpoints as rows, and the statements that add them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

from flowckpt.checkpoint import CheckpointData, StepResult
from flowckpt.checkpoint.verified import recorded_claims
from flowckpt.codec import dumps
from flowckpt.stores.sql.database import Row
from flowckpt.stores.sql.texts import id_text, shown, sql_time

RESULT_COLUMNS = {
    "run": "int", "attempt": "int", "position": "int", "path": "text", "name": "text", "step_type": "text",
    "success": "bool", "duration_ms": "real", "started_at": "time", "executed_in": "int", "tries": "int",
    "function": "text", "version": "text", "error_type": "text", "error_message": "text", "document": "json",
}  # fmt: skip
CHECKPOINT_COLUMNS = {
    "run": "int", "sequence": "int", "attempt": "int", "checkpoint_id": "text", "reason": "text", "status": "text",
    "steps": "int", "saved_at": "time", "size": "int", "verified": "bool", "error_type": "text",
    "error_message": "text", "chain": "text", "digest": "text", "document": "json",
}  # fmt: skip
_EVIDENCE_COLUMNS = (
    *("run", "attempt", "position", "claim", "evidence_type", "description", "status", "verified_at", "error"),
    "document",
)


def insertion(table: str, columns: Mapping[str, str] | tuple[str, ...]) -> str:
    """Return the statement that adds a row to a table."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608


ADVANCE = (
    "UPDATE runs SET last_sequence = ?, latest_sequence = ?, steps = ?, status = ?, updated_at = ? "
    "WHERE run = ? AND writer = ? AND last_sequence < ?"
)
"""The fence: it changes a row only where the writer still owns the run, and keeps the row until the commit."""

IS_THERE = (
    "SELECT 1 FROM checkpoints c JOIN attempts a ON a.run = c.run AND a.attempt = c.attempt "
    "WHERE c.run = ? AND c.sequence = ? AND c.digest = ? AND a.writer = ?"
)
"""Whether the rows of a save are there: by its digest, and by whose they are."""

ADD_RESULT = insertion("step_results", RESULT_COLUMNS)
ADD_CHECKPOINT = insertion("checkpoints", CHECKPOINT_COLUMNS)
ADD_EVIDENCE = insertion("evidence", _EVIDENCE_COLUMNS)
ADD_CONTENT = insertion("blob_contents", ("name", "content"))
ADD_BLOB = insertion("blobs", ("run", "digest", "size", "name"))
SHARE_BLOB = (
    "INSERT INTO blobs (run, digest, size, name) "
    "SELECT r.run, b.digest, b.size, b.name FROM blobs b JOIN runs s ON s.run = b.run, runs r "
    "WHERE s.workflow_id = ? AND b.digest = ? AND b.size = ? AND r.run = ? ON CONFLICT (run, digest) DO NOTHING"
)
"""The other run gets a name for the content: there are no two copies of it."""

NAMED_BLOBS = "SELECT digest FROM blobs WHERE run = ?"
DESCRIBE = "UPDATE runs SET workflow_name = ?, metadata = ? WHERE run = ?"
SAY_HEAD = "UPDATE attempts SET head = ? WHERE run = ? AND attempt = ?"
BEGIN_ATTEMPT = (
    "UPDATE attempts SET begun_at = ?, continues_attempt = ?, continues_sequence = ?, continues_results = ? "
    "WHERE run = ? AND attempt = ?"
)
DELETE_CHECKPOINT = (
    "UPDATE checkpoints SET deleted_at = ?, document = NULL WHERE run = ? AND sequence = ? AND deleted_at IS NULL"
)
HOLD_RUN = "UPDATE runs SET writer = writer WHERE run = ? AND writer = ?"
"""The fence where no checkpoint is added."""

GO_BACK = "UPDATE runs SET head_attempt = ? WHERE run = ?"
BEGIN_RUN = "UPDATE runs SET head_attempt = ?, started_at = COALESCE(started_at, ?) WHERE run = ?"


def result_row(result: StepResult, encoded: bytes, run: int, attempt: int, position: int) -> Row:
    """Return the row of a result.

    Args:
        result: the result.
        encoded: its canonical bytes.
        run: the run's key.
        attempt: the attempt that adds it.
        position: its place in the history, from 1.
    """
    error, started_at = result.error, result.started_at
    return (
        run,
        attempt,
        position,
        shown(result.path),
        shown(result.name),
        shown(result.step_type),
        result.success,
        float(result.duration_ms),
        None if started_at is None else sql_time(started_at),
        result.attempt,
        result.tries,
        shown(result.function),
        None if result.version is None else shown(result.version),
        None if error is None else shown(error.type),
        None if error is None else shown(error.message),
        encoded.decode(),
    )


def evidence_rows(result: StepResult, run: int, attempt: int, position: int) -> list[Row]:
    """Return a row for each claim of a result, with the answer to it.

    Args:
        result: the result; what it says of its evidence may be of any form.
        run: the run's key.
        attempt: the attempt that adds it.
        position: its place in the history, from 1.
    """
    rows: list[Row] = []
    for number, (claim, verdict) in enumerate(recorded_claims(result.evidence or {}), 1):
        kind = claim.get("evidence_type") if isinstance(claim, Mapping) else ""
        description = claim.get("description") if isinstance(claim, Mapping) else ""
        rows.append(
            (
                run,
                attempt,
                position,
                number,
                shown(str(kind)),
                shown(description if isinstance(description, str) else dumps(description)),
                _optional(verdict.get("status")),
                _moment(verdict.get("verified_at")),
                _optional(verdict.get("error")),
                dumps({"claim": claim, "verdict": dict(verdict)}),
            )
        )
    return rows


def _optional(value: Any) -> str | None:
    return None if value is None else shown(str(value))


def _moment(value: Any) -> str | None:
    try:
        return sql_time(datetime.fromisoformat(value))
    except (TypeError, ValueError, OverflowError):
        return None


def checkpoint_row(
    data: CheckpointData,
    run: int,
    steps: int,
    size: int,
    is_verified: bool | None,
    chain: str,
    document: str,
    head: Any,
) -> Row:
    """Return the row of a checkpoint.

    Args:
        data: the checkpoint.
        run: the run's key.
        steps: how many results it holds.
        size: bytes that it takes, new results included.
        is_verified: whether the claims of its results were found to hold.
        chain: the chain digest of its results, in hex.
        document: what its columns and the head of its attempt do not say, as JSON.
        head: SHA-256 of the head of its attempt, begun; it is copied.
    """
    error = data.error
    saved_at = sql_time(data.saved_at)
    reason, status = data.reason.value, data.status.value
    digest = checkpoint_digest(
        head, (data.sequence, data.attempt, data.checkpoint_id, reason, status, steps, saved_at, chain), document
    )
    return (
        run,
        data.sequence,
        data.attempt,
        id_text(data.checkpoint_id),
        reason,
        status,
        steps,
        saved_at,
        size,
        is_verified,
        None if error is None else shown(error.type),
        None if error is None else shown(error.message),
        chain,
        digest,
        document,
    )


def checkpoint_digest(head: Any, said: tuple[Any, ...], document: str) -> str:
    """Return the digest over all that a checkpoint says.

    Args:
        head: SHA-256 of the head of its attempt, begun; it is copied.
        said: sequence, attempt, id, reason, status, results, time, chain.
        document: the rest.
    """
    digest = head.copy()
    digest.update(f"{said!r}{document}".encode())
    found: str = digest.hexdigest()
    return found


def head_digest(head: str) -> Any:
    """Return SHA-256 over the head of an attempt, to be copied and continued."""
    return sha256(head.encode())
