"""The writer of a run in a database: each save in one transaction."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, timedelta
from functools import partial
from typing import NamedTuple

from flowckpt.core.codec import dumps, encode
from flowckpt.core.codec.blob import Blob, Fetch
from flowckpt.core.codec.checkpoints import CARRIED, encode_head
from flowckpt.core.codec.results import Blobs, encode_time
from flowckpt.core.records import CheckpointData, HistoryView, Reason
from flowckpt.core.records.checkpoint import verified_after
from flowckpt.core.records.generation import start_of_run
from flowckpt.errors import CheckpointStorageError, FencedError, VanishedError
from flowckpt.stores.runs_base import FencedWriter, PreparedSave, RunWriter, as_encoding_error
from flowckpt.stores.sql import rows
from flowckpt.stores.sql.database import Addition, Database, Outcome, Row, Session, unwrap_outcome
from flowckpt.stores.sql.image import RunImage, refresh_run_row
from flowckpt.stores.sql.rows import ADD_TAG, encode_id, find_run_key, format_time, tag_rows

Statement = tuple[str, Sequence[Row]]
_IN_COLUMNS = ("sequence", "checkpoint_id", "attempt", "reason", "status", "saved_at")


class _Pending(NamedTuple):
    """A save that is not acknowledged yet."""

    addition: Addition
    is_verified: bool | None
    blobs: list[Blob]
    missing: Mapping[str, Blob]
    save: PreparedSave


class SqlRunWriter(FencedWriter, RunWriter):
    """Writes to one run in a database. The token is the owner's name in the table.

    Args:
        image: the run as read after the claim.
        attempt: the claimed attempt.
        token: the name of the owner.
    """

    def __init__(self, database: Database, image: RunImage, *, attempt: int, token: str, fetch: Fetch) -> None:
        last_sequence, values = image.last_sequence, set(image.blobs)
        super().__init__(image.workflow_id, attempt, token, last_sequence=last_sequence, values=values, fetch=fetch)
        self.run = image.run
        self._database = database
        self._image: RunImage | None = image
        self._is_verified: bool | None = None  # whether the evidence of the saved results holds
        self._described: CheckpointData | None = None
        self._head = rows.head_digest("")
        self._pending: _Pending | None = None  # the last write
        self._database_identity = database.identify()

    def close(self) -> None:
        """End the writes."""
        self._is_closed = True

    def save(self, data: CheckpointData) -> None:
        """Save a checkpoint with its new results."""
        try:
            super().save(data)
        except OverflowError as error:
            raise as_encoding_error(error) from error

    def _encode(self, data: CheckpointData, view: HistoryView) -> tuple[str, str | None, Blobs]:
        """Return the document, the head for the first checkpoint of an attempt, and the large values."""
        data.checkpoint_id.encode()
        first = self._first
        is_utc = data.saved_at.tzinfo is UTC or data.saved_at.utcoffset() == timedelta()
        if first is not None and is_utc and data.differs_only_in_position(first):
            return "{}", None, {}
        fields, blobs = encode_head(data, first)
        for name in _IN_COLUMNS:
            fields.pop(name, None)
        if not is_utc:
            fields["saved_at"] = encode_time(data.saved_at)
        head = None
        if first is None:
            head = dumps({name: fields.pop(name) for name in CARRIED})
            head.encode()
        document = dumps(fields)
        document.encode()
        return document, head, blobs

    def _begin_attempt(
        self, view: HistoryView, first: CheckpointData | None = None
    ) -> tuple[list[Statement], HistoryView]:
        image = self._image
        assert image is not None, "it exists until the first write"
        nothing: Row = (None, None, 0, 0, None, self.run, self.attempt)  # NULL: the time would take another query
        if first is not None and first.reason is Reason.CONTINUED:
            dropped: list[Statement] = [(each, [(self.run,)]) for each in rows.DROP_ALL]
            return [
                (rows.BEGIN_ATTEMPT, [nothing]),
                (rows.DROP_ATTEMPTS, [(self.run, self.attempt)]),
                *dropped,
            ], view.history.view(0)
        if not image.links:
            return [(rows.BEGIN_ATTEMPT, [nothing])], view.history.view(0)
        known = image.history.view().shared_length(view)

        def read(session: Session) -> tuple[Row, int]:
            continued = image.find_last_record(session, known)
            return (format_time(session.now()), *continued, None, self.run, self.attempt), continued[2]

        row, length = self._database.read(self.workflow_id, "save", read)
        self._is_verified = verified_after(None, view.history.results[:length])
        return [(rows.BEGIN_ATTEMPT, [row])], view.history.view(length)

    def _write(self, save: PreparedSave) -> None:
        self._commit(self._database.write_now, self._make_addition(save))

    def _make_addition(self, save: PreparedSave) -> Addition:
        """Return the rows of a save, and prepare its acknowledgement."""
        data, view, held, (document, head, of_head), beginning, evicted = save
        run, attempt, history, count = self.run, self.attempt, view.history, view.length
        others = [*beginning]
        described, tags = self._describe(data)
        if beginning:
            (statement, [row]), *rest = beginning
            others = [(statement, [(*row[:-3], head, *row[-2:])]), *rest]
            started_at = start_of_run(data.metadata) or data.saved_at
            others.append((rows.BEGIN_RUN, [(attempt, format_time(started_at), *described)]))
        elif described:
            others.append((rows.DESCRIBE, [described]))
        if tags:
            others.append((ADD_TAG, tags))
        size = len(document)
        added: list[Row] = []
        evidence: list[Row] = []
        answer = self._is_verified
        for index, text in enumerate(history.encoded_between(held, count), held):
            result = history.results[index]
            size += len(text)
            added.append(rows.result_row(result, text, run, attempt, index + 1))
            if result.evidence is not None:
                evidence += rows.evidence_rows(result, run, attempt, index + 1)
                answer = verified_after(answer, [result])
        if evidence:
            others.append((rows.ADD_EVIDENCE, evidence))
        blobs, missing = self._find_new_values(save, of_head) if of_head or history.blobs else ([], {})
        if missing:
            named = [(secrets.token_hex(16), blob) for blob in missing.values()]
            others.append((rows.ADD_CONTENT, [(name, blob.content()) for name, blob in named]))
            others.append((rows.ADD_BLOB, [(run, blob.digest, blob.size, name) for name, blob in named]))
        if head is not None:
            self._head = rows.head_digest(head)
            if not beginning:  # checkpoints were deleted before the first save
                others.append((rows.SET_HEAD, [(head, run, attempt)]))
        if evicted:
            moment = format_time(data.saved_at)
            doomed = sorted(each for each in evicted if each < data.sequence)  # never the one being saved
            others.append((rows.DELETE_CHECKPOINT, [(moment, run, each) for each in doomed]))
        checkpoint = rows.checkpoint_row(data, run, count, max(size, 1), answer, view.chain.hex(), document, self._head)
        addition = Addition(self.workflow_id, self.token, checkpoint, added, others)
        self._pending = _Pending(addition, answer, blobs, missing, save)
        return addition

    def _acknowledge(self, save: PreparedSave) -> None:
        super()._acknowledge(save)
        assert self._pending is not None, "it is set before each write"
        _, self._is_verified, blobs, missing, _ = self._pending
        self._image, self._described, self._pending = None, save.data, None
        self._mark_values_durable(blobs, missing)

    def _describe(self, data: CheckpointData) -> tuple[Row, list[Row]]:
        """Return the new description in the row of the run and its tags; empty if nothing has changed."""
        before = self._described
        if before is not None and data.metadata is before.metadata and data.workflow_name == before.workflow_name:
            return (), []
        description = (encode_id(data.workflow_name), dumps(encode(dict(data.metadata))), self.run)
        return description, tag_rows(data.metadata, self.run)

    def save_later(self, data: CheckpointData) -> asyncio.Future[None] | None:
        """Add a checkpoint to the next group of saves, and return without waiting for the commit.

        Returns: None if the save must first wait for another save of the run or, as the first one of a later attempt,
        for a read.
        """
        self._check_process()
        can_begin = self.is_adopted or (self._image is not None and not self._image.links)
        if not can_begin or not self._one_at_a_time.acquire(blocking=False):
            return None
        was_poisoned = self.is_poisoned
        try:
            addition = self._make_addition(self._prepare_save(data))
            self.is_poisoned = True
            return self._database.write_later(addition, partial(self._complete, addition))
        except BaseException as error:  # nothing will be written
            self.is_poisoned = was_poisoned
            self._one_at_a_time.release()
            if isinstance(error, OverflowError):
                raise as_encoding_error(error) from error
            raise

    def _complete(self, addition: Addition, outcome: Outcome) -> None:
        """Handle the outcome of a grouped save, or raise its error."""
        try:
            self.is_poisoned = False
            self._commit(lambda _: unwrap_outcome(outcome), addition)
            self._acknowledge_last()
        finally:
            self._one_at_a_time.release()

    def _acknowledge_last(self) -> None:
        assert self._pending is not None, "it is set before each write"
        self._acknowledge(self._pending.save)

    def _commit(self, write: Callable[[Addition], bool], addition: Addition) -> None:
        was_poisoned = self.is_poisoned
        self.is_poisoned = True  # until it is acknowledged, whatever exception follows
        try:
            holds = write(addition)
        except CheckpointStorageError as error:
            self.is_poisoned = was_poisoned or error.is_outcome_unknown
            raise
        except OverflowError as error:  # a number that no column can store: nothing was written
            self.is_poisoned = was_poisoned
            raise as_encoding_error(error) from error
        self.is_poisoned = False
        if not holds:
            raise self._fenced_error()

    def repeat_unknown_save(self) -> None:
        """Repeat a save whose outcome is unknown; see `RunWriter.repeat_unknown_save`."""
        with self._one_at_a_time:
            if self.is_poisoned and self._fence is None and not self._is_closed and self._pending is not None:
                self._commit(self._database.write_once, self._pending.addition)
                self._acknowledge_last()
            else:
                self._database.probe()

    def delete(self, sequences: list[int]) -> None:
        """Delete checkpoints in small groups, as SQLite's journal needs space on a full disk. Their results stay."""
        for start in range(0, len(sequences), rows.DELETED_AT_ONCE):
            self._delete_some(sequences[start : start + rows.DELETED_AT_ONCE])

    def _delete_some(self, sequences: list[int]) -> None:
        with self._lock_for_write():
            begin: list[Statement] = []
            saved = self.saved
            if not self.is_adopted:  # the owner continues from the newest one that it read
                image = self._image
                assert image is not None, "it exists until the first write"
                newest = self._database.read(self.workflow_id, "delete", image.count_newest_results)
                begin, saved = self._begin_attempt(image.history.view(newest))
                begin.append((rows.SET_HEAD_ATTEMPT, [(self.attempt, self.run)]))

            def work(session: Session) -> bool:
                if not session.change(rows.CHECK_FENCE, (self.run, self.token)):
                    return False
                for statement, parameters in begin:
                    for row in parameters:
                        session.change(statement, row)
                moment = format_time(session.now())
                for sequence in sequences:
                    session.change(rows.DELETE_CHECKPOINT, (moment, self.run, sequence))
                refresh_run_row(session, self.run, self.workflow_id)
                return True

            if not self._database.write(self.workflow_id, "delete", work):
                raise self._fenced_error()
            self.is_adopted, self.saved, self._described = True, saved, None

    def share_values_from(self, source_id: str, sizes: Mapping[str, int]) -> None:
        """Refer to large values of another run in this one, without a copy; skip those that it lacks."""
        key = encode_id(source_id)
        missing = [(digest, size) for digest, size in sizes.items() if digest not in self._values]

        def work(session: Session) -> set[str] | None:
            # Lock the source first, as a clear does: it exists until we are done, or is gone.
            find_run_key(session, source_id, is_locked=True)
            if not session.change(rows.CHECK_FENCE, (self.run, self.token)):
                return None
            for digest, size in missing:
                session.change(rows.SHARE_BLOB, (key, digest, size, self.run))
            return {digest for (digest,) in session.execute(rows.NAMED_BLOBS, (self.run,))}

        with self._lock_for_write():
            named = self._database.write(self.workflow_id, "share", work)
            if named is None:
                raise self._fenced_error()
            self._values = named

    def _fenced_error(self) -> FencedError | VanishedError:
        query = "SELECT newest_attempt FROM runs WHERE workflow_id = ?", (encode_id(self.workflow_id),)
        attempts = self._database.read(self.workflow_id, "save", lambda session: session.execute(*query))
        newest = attempts[0][0] if attempts else None
        if newest is None and self._database.identify() != self._database_identity:
            return VanishedError(str(self._database), workflow_id=self.workflow_id)
        self._fence = FencedError(self.workflow_id, attempt=self.attempt, newest_attempt=newest)
        return self._fence

    def report_loss(self) -> None:
        """End the writes, and report that the run has a new owner."""
        error = self._fenced_error()
        if isinstance(error, FencedError) and self.on_lost is not None and not self._is_closed:
            self.on_lost(error)

    def _check_unfenced(self) -> None:
        if self._fence is not None or self.is_poisoned:
            self._refuse_write(self.workflow_id, self.attempt, "in the database")
