"""The messages for the runs of an SQL store: rows that any process can add without owning the run."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from hashlib import sha256

from flowckpt.core.codec import dumps
from flowckpt.core.records.wait import Signal
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError
from flowckpt.stores.runs_base import refused_as_encoding_error
from flowckpt.stores.sql import rows
from flowckpt.stores.sql.database import Row, Session
from flowckpt.stores.sql.rows import encode_id, find_run_key, format_time, replace_nul

_ADD = (
    rows.insert_into("signals", ("run", "signal_id", "kind", "name", "sent_by", "sent_at", "document"))
    + " ON CONFLICT (run, signal_id) DO NOTHING"
)


def send(session: Session, workflow_id: str, signal: Signal) -> bool:
    """Add a message; return whether it is new.

    Args:
        session: the transaction.
        workflow_id: the run.
        signal: the message.

    Raises:
        CheckpointNotFoundError: there is no such run.
        EncodingError: the message contains text that cannot be recorded.
    """
    run = find_run_key(session, workflow_id, is_locked=True, has_saved=True)
    if run is None:
        raise CheckpointNotFoundError(workflow_id)
    with refused_as_encoding_error():
        document = dumps(signal.to_document())
        document.encode()
        names = (encode_id(signal.signal_id), str(signal.kind), replace_nul(signal.name), replace_nul(signal.by))
    is_new = bool(session.change(_ADD, (run, *names, format_time(signal.sent_at), document)))
    if is_new and (announcement := session.dialect.announcement):
        session.execute(announcement, (run_digest(workflow_id),))  # delivered at the commit
    return is_new


def run_digest(workflow_id: str) -> str:
    """Return the short name of a run in announcements, which does not reveal its id to listeners."""
    return sha256(encode_id(workflow_id).encode()).hexdigest()[:32]


SELECT_SIGNALS = (
    "SELECT CAST(s.document AS TEXT) FROM signals s JOIN runs r ON r.run = s.run "
    "WHERE r.workflow_id = ? ORDER BY s.sent_at, s.signal_id"
)
"""The query of the messages for a run, in the order of sending."""


def parse(workflow_id: str, selected: Sequence[Row]) -> list[Signal]:
    """Return the messages in the rows of `SELECT_SIGNALS`.

    Raises:
        CheckpointCorruptedError: a message is malformed.
    """
    try:
        return [Signal.from_document(json.loads(document)) for (document,) in selected]
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointCorruptedError(workflow_id, location="signals", detail=str(error)) from error


def remove(session: Session, workflow_id: str, signal_ids: Collection[str]) -> None:
    """Remove messages.

    Args:
        session: the transaction.
        workflow_id: the run.
        signal_ids: the ids of the messages.
    """
    for each in signal_ids:
        session.change(
            "DELETE FROM signals WHERE signal_id = ? AND run = (SELECT run FROM runs WHERE workflow_id = ?)",
            (encode_id(each), encode_id(workflow_id)),
        )
