"""Results, evidence and checkpoints as rows, and the statements that add them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from flowckpt.core.codec import decode, dumps
from flowckpt.core.records import CheckpointData, Reason, StepResult
from flowckpt.core.records.checkpoint import recorded_claims
from flowckpt.core.records.listing import CheckpointRef, Owner
from flowckpt.core.system.declared import is_unicode
from flowckpt.errors import CheckpointCorruptedError, DecodingError, RunLockedError
from flowckpt.stores.leases import LeaseHolder
from flowckpt.stores.sql.database import Addition, Row, Session

# Ids, messages and times in a form that both databases can store.


def encode_id(name: str) -> str:
    """Return an id as text that any database can store: itself, or JSON if it has a NUL or a lone surrogate.

    Args:
        name: any text; `decode_id` is the inverse.
    """
    return name if name[:1] != '"' and "\0" not in name and is_unicode(name) else json.dumps(name)


def decode_id(text: str) -> str:
    """Return the id from the text of a column; the inverse of `encode_id`."""
    if text[:1] != '"':
        return text
    name: str = json.loads(text)
    return name


def find_run_key(session: Session, workflow_id: str, *, is_locked: bool = False, has_saved: bool = False) -> int | None:
    """Return the key of a run; None if there is no such run.

    Args:
        session: the transaction.
        workflow_id: the run.
        is_locked: whether to lock its row until the end of the transaction.
        has_saved: only a run that has been saved, not only claimed.
    """
    condition = " AND head_attempt IS NOT NULL" if has_saved else ""
    lock = session.dialect.lock if is_locked else ""
    statement = f"SELECT run FROM runs WHERE workflow_id = ?{condition}{lock}"  # noqa: S608 - constants
    keys = session.execute(statement, (encode_id(workflow_id),))
    return int(keys[0][0]) if keys else None


def replace_nul(text: str) -> str:
    """Return text for people and queries, with a replacement for NUL, which PostgreSQL cannot store."""
    return text.replace("\0", "\u2400") if "\0" in text else text


def format_time(moment: datetime) -> str:
    """Return a time in UTC with six digits, so that texts and times have the same order."""
    if moment.tzinfo is not UTC:
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return f"{moment.isoformat(timespec='microseconds')[:-6]}Z"


def parse_time(column: Any) -> datetime:
    """Return the time in a column: text from SQLite, a datetime from PostgreSQL."""
    moment = column if isinstance(column, datetime) else datetime.fromisoformat(column)
    return moment.astimezone(UTC)


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


def insert_into(table: str, columns: Collection[str]) -> str:
    """Return the statement that adds a row to a table."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608


ADVANCE = (
    "UPDATE runs SET last_sequence = ?, latest_sequence = ?, steps = ?, status = ?, updated_at = ? "
    "WHERE run = ? AND writer = ? AND last_sequence < ?"
)
"""The fence: it changes the row only if the writer still owns the run, and locks it until the commit."""

ADVANCE_ALONE = (
    "UPDATE runs SET last_sequence = ?1, latest_sequence = ?2, steps = ?3, updated_at = ?5 "
    "WHERE run = ?6 AND writer = ?7 AND last_sequence < ?8 AND status = ?4"
)
"""`ADVANCE` for an unchanged status: SQLite rewrites the indexes of each column that a statement sets."""

REPLACE_INDEX = (
    insert_into("result_index", ("name", "content")) + " ON CONFLICT (name) DO UPDATE SET content = excluded.content"
)

REPLACE_LIVE_NOTES = (
    "INSERT INTO result_index (name, content) SELECT * FROM unnest(?::text[], ?::bytea[]) "
    "ON CONFLICT (name) DO UPDATE SET content = excluded.content"
)
"""For all runs of a process at once, in PostgreSQL."""

DROP_LIVE_NOTE = "DELETE FROM result_index WHERE name = ?"


def live_note_name(run: int) -> str:
    """Return the name of a run's live note in the table of hints."""
    return f"live-{run}"


IS_SAVED = (
    "SELECT 1 FROM checkpoints c JOIN attempts a ON a.run = c.run AND a.attempt = c.attempt "
    "WHERE c.run = ? AND c.sequence = ? AND c.digest = ? AND a.writer = ?"
)
"""Whether the rows of a save exist, by its digest and its writer."""

ADD_RESULT = insert_into("step_results", RESULT_COLUMNS)
ADD_CHECKPOINT = insert_into("checkpoints", CHECKPOINT_COLUMNS)
ADD_EVIDENCE = insert_into("evidence", _EVIDENCE_COLUMNS)
ADD_CONTENT = insert_into("blob_contents", ("name", "content"))
ADD_BLOB = insert_into("blobs", ("run", "digest", "size", "name"))
SHARE_BLOB = (
    "INSERT INTO blobs (run, digest, size, name) "
    "SELECT r.run, b.digest, b.size, b.name FROM blobs b JOIN runs s ON s.run = b.run, runs r "
    "WHERE s.workflow_id = ? AND b.digest = ? AND b.size = ? AND r.run = ? ON CONFLICT (run, digest) DO NOTHING"
)
"""The other run gets a reference to the content, not a copy."""

NAMED_BLOBS = "SELECT digest FROM blobs WHERE run = ?"
DESCRIBE = "UPDATE runs SET workflow_name = ?, metadata = ? WHERE run = ?"
SET_HEAD = "UPDATE attempts SET head = ? WHERE run = ? AND attempt = ?"
BEGIN_ATTEMPT = (
    "UPDATE attempts SET begun_at = COALESCE(?, acquired_at), continues_attempt = ?, continues_sequence = ?, "
    "continues_results = ?, head = ? WHERE run = ? AND attempt = ?"
)
DELETE_CHECKPOINT = (
    "UPDATE checkpoints SET deleted_at = ?, document = NULL WHERE run = ? AND sequence = ? AND deleted_at IS NULL"
)
DELETED_AT_ONCE = 250
"""Maximum checkpoints deleted, or removed with their rows, in one transaction."""
REMOVE_DELETED = (
    "DELETE FROM checkpoints WHERE run = ? AND sequence IN "
    "(SELECT sequence FROM checkpoints WHERE run = ? AND deleted_at IS NOT NULL ORDER BY sequence LIMIT ?)"
)
CHECK_FENCE = "UPDATE runs SET writer = writer WHERE run = ? AND writer = ?"
"""The fence of a write without a checkpoint."""

DROP_ATTEMPTS = "DELETE FROM attempts WHERE run = ? AND attempt < ?"
"""Removes their results and checkpoints, too, by foreign keys."""
DROP_ALL = ("DELETE FROM blobs WHERE run = ?", "DELETE FROM pins WHERE run = ?")
"""The other rows of earlier generations."""

SET_HEAD_ATTEMPT = "UPDATE runs SET head_attempt = ? WHERE run = ?"
BEGIN_RUN = "UPDATE runs SET head_attempt = ?, started_at = COALESCE(started_at, ?), workflow_name = ?, metadata = ? WHERE run = ?"


def add_rows(session: Session, addition: Addition, fences: Sequence[str] = (ADVANCE,)) -> bool:
    """Write the rows of a save; return False if its fence does not hold.

    Args:
        session: the transaction.
        addition: the rows.
        fences: the forms of the fence, tried in order.
    """
    change = session.change
    if not any(change(fence, addition.advance) for fence in fences):
        return False
    for row in addition.results:
        change(ADD_RESULT, row)
    change(ADD_CHECKPOINT, addition.checkpoint)
    for statement, others in addition.others:
        for row in others:
            change(statement, row)
    return True


def fence_all(session: Session, run: int) -> None:
    """Fence all previous owners of a run permanently, because they may rely on rows that are about to be removed."""
    moment = format_time(session.now())
    session.change("UPDATE runs SET writer = '' WHERE run = ?", (run,))
    session.change("UPDATE attempts SET released_at = ? WHERE run = ? AND released_at IS NULL", (moment, run))


def result_row(result: StepResult, encoded: bytes, run: int, attempt: int, position: int) -> Row:
    """Return the row of a result.

    Args:
        result: the result.
        encoded: its canonical bytes.
        run: the run's key.
        attempt: the attempt that adds it.
        position: its position in the history, from 1.
    """
    error, started_at = result.error, result.started_at
    return (
        run,
        attempt,
        position,
        replace_nul(result.path),
        replace_nul(result.name),
        replace_nul(result.step_type),
        result.success,
        float(result.duration_ms),
        None if started_at is None else format_time(started_at),
        result.attempt,
        result.tries,
        replace_nul(result.function),
        None if result.version is None else replace_nul(result.version),
        None if error is None else replace_nul(error.type),
        None if error is None else replace_nul(error.message),
        encoded.decode(),
    )


def evidence_rows(result: StepResult, run: int, attempt: int, position: int) -> list[Row]:
    """Return a row for each claim of a result, with its verdict.

    Args:
        result: the result; its evidence may be malformed.
        run: the run's key.
        attempt: the attempt that adds it.
        position: its position in the history, from 1.
    """
    rows: list[Row] = []
    for number, (claim, verdict) in enumerate(recorded_claims(result.evidence or {}), 1):
        fields = claim if isinstance(claim, Mapping) else {"evidence_type": "", "description": ""}
        description = fields.get("description")
        rows.append(
            (
                run,
                attempt,
                position,
                number,
                replace_nul(str(fields.get("evidence_type"))),
                replace_nul(description if isinstance(description, str) else dumps(description)),
                _text_or_none(verdict.get("status")),
                _time_or_none(verdict.get("verified_at")),
                _text_or_none(verdict.get("error")),
                dumps({"claim": claim, "verdict": dict(verdict)}),
            )
        )
    return rows


def _text_or_none(value: Any) -> str | None:
    return None if value is None else replace_nul(str(value))


def _time_or_none(value: Any) -> str | None:
    try:
        return format_time(datetime.fromisoformat(value))
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
        steps: the number of its results.
        size: its size in bytes, including new results.
        is_verified: whether the claims of its results were found to hold.
        chain: the chain digest of its results, in hex.
        document: its other fields as JSON, besides its columns and the head of its attempt.
        head: the unfinished SHA-256 of the head of its attempt; it is copied.
    """
    error = data.error
    saved_at = format_time(data.saved_at)
    reason, status = str(data.reason), str(data.status)  # four times as fast as `.value`
    digest = checkpoint_digest(
        head, (data.sequence, data.attempt, data.checkpoint_id, reason, status, steps, saved_at, chain), document
    )
    return (
        run,
        data.sequence,
        data.attempt,
        encode_id(data.checkpoint_id),
        reason,
        status,
        steps,
        saved_at,
        size,
        is_verified,
        None if error is None else replace_nul(error.type),
        None if error is None else replace_nul(error.message),
        chain,
        digest,
        document,
    )


def checkpoint_digest(head: Any, columns: tuple[Any, ...], document: str) -> str:
    """Return the digest of a checkpoint.

    Args:
        head: the unfinished SHA-256 of the head of its attempt; it is copied.
        columns: sequence, attempt, id, reason, status, results, time, chain.
        document: its other fields.
    """
    digest = head.copy()
    digest.update(f"{columns!r}{document}".encode())
    text: str = digest.hexdigest()
    return text


def head_digest(head: str) -> Any:
    """Return the unfinished SHA-256 of the head of an attempt, to copy and continue."""
    return sha256(head.encode())


# The reference to a checkpoint, from the columns of its row.


REFERENCE = "checkpoint_id, sequence, attempt, reason, saved_at, steps, size, verified"


def parse_reference(workflow_id: str, row: Row) -> CheckpointRef:
    """Return the reference to a checkpoint.

    Args:
        workflow_id: the run.
        row: the columns of `REFERENCE`.

    Raises:
        CheckpointCorruptedError: a column has an invalid value.
    """
    name, sequence, attempt, reason, saved_at, steps, size, verified = row
    is_verified = None if verified is None else bool(verified)
    try:
        return CheckpointRef(
            workflow_id,
            decode_id(name),
            sequence,
            attempt,
            Reason(reason),
            parse_time(saved_at),
            steps,
            size,
            is_verified,
        )
    except (ValueError, TypeError) as error:
        raise CheckpointCorruptedError(workflow_id, location=f"checkpoint {sequence}", detail=str(error)) from error


# The tags of runs as rows, to find runs by them. The exact tags are in the metadata of the run.


ADD_TAG = (
    "INSERT INTO run_tags (run, name, value, started_at) SELECT run, ?, ?, started_at FROM runs "
    "WHERE run = ? AND started_at IS NOT NULL ON CONFLICT (run, name) DO UPDATE SET value = excluded.value"
)
_LONGEST = 200
_PAGE = 1000


def encode_tag(text: str) -> str:
    """Return the name or value of a tag in a form that any database can index: a long one as its digest.

    Args:
        text: any text.
    """
    if len(text) <= _LONGEST:
        return encode_id(text)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def tag_rows(metadata: Mapping[str, Any], run: int) -> list[Row]:
    """Return the parameters of `ADD_TAG` for each tag of a run.

    Args:
        metadata: of the run; its tags may be malformed.
        run: the run's key.
    """
    tags = metadata.get("tags")
    if not isinstance(tags, Mapping):
        return []
    return [(encode_tag(name), encode_tag(str(value)), run) for name, value in tags.items() if isinstance(name, str)]


def add_missing_tags(session: Session) -> None:
    """Add the rows of all runs, for a database from before there were such rows."""
    last = 0
    while page := session.execute(
        "SELECT run, CAST(metadata AS TEXT) FROM runs WHERE run > ? AND metadata IS NOT NULL ORDER BY run LIMIT ?",
        (last, _PAGE),
    ):
        for run, text in page:
            for row in _read_tag_rows(text, run):
                session.change(ADD_TAG, row)
        last = page[-1][0]


def _read_tag_rows(text: str, run: int) -> list[Row]:
    try:
        metadata = decode(json.loads(text))
    except (DecodingError, ValueError, TypeError):  # a damaged run must not affect the others
        return []
    return tag_rows(metadata, run) if isinstance(metadata, Mapping) else []


# The owner of a run in the tables.


OWNER_COLUMNS = "a.host, a.boot_id, a.pid, a.start_time, a.acquired_at, a.lease_expires_at"


def parse_holder(columns: Row, workflow_id: str = "") -> LeaseHolder | None:
    """Return the holder in the values of `OWNER_COLUMNS`; None if they are empty, because the run has no owner.

    Raises:
        CheckpointCorruptedError: a time is damaged.
    """
    host, boot_id, pid, start_time, acquired_at, expires_at = columns
    if host is None:
        return None
    try:
        return LeaseHolder(Owner(host, boot_id, pid, start_time, parse_time(acquired_at)), parse_time(expires_at))
    except (ValueError, TypeError, OverflowError) as error:
        raise CheckpointCorruptedError(
            workflow_id,
            location="attempts",
            detail=f"a time of the lease of its owner, process {pid} on {host}, is damaged: {error}"[:300],
            remedy="If that process has ended, 'flowckpt resume RUN --steal' makes a new lease. Nothing was changed.",
        ) from error


def find_live_owner(session: Session, run: int) -> Owner | None:
    """Return the live owner of a run, as far as this process can tell."""
    rows = session.execute(
        f"SELECT r.workflow_id, {OWNER_COLUMNS} FROM runs r JOIN attempts a ON a.writer = r.writer WHERE r.run = ?",  # noqa: S608
        (run,),
    )
    holder = parse_holder(rows[0][1:], decode_id(rows[0][0])) if rows else None
    return holder.owner if holder is not None and holder.holds(session.now()) else None


def check_unowned(session: Session, run: int, workflow_id: str) -> None:
    """Refuse to change a run that has a live owner.

    Raises:
        RunLockedError: it has one.
    """
    if (owner := find_live_owner(session, run)) is not None:
        raise RunLockedError(workflow_id, holder=str(owner))


def extend_leases(session: Session, since: datetime) -> None:
    """Extend all running leases by a time in which no owner could renew them.

    Args:
        session: the transaction.
        since: when that time began, by the store's clock.
    """
    running = session.execute(
        "SELECT run, attempt, lease_expires_at FROM attempts WHERE released_at IS NULL AND lease_expires_at >= ?",
        (format_time(since),),
    )
    passed = session.now() - since
    for run, attempt, expires_at in running:
        session.change(
            "UPDATE attempts SET lease_expires_at = ? WHERE run = ? AND attempt = ?",
            (format_time(parse_time(expires_at) + passed), run, attempt),
        )
