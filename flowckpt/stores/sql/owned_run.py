"""A run that this process owns: the saves."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence

from flowckpt.core.codec import dumps, encode
from flowckpt.core.codec.blob import Fetch
from flowckpt.core.codec.checkpoints import CARRIED, encode_head
from flowckpt.core.codec.results import Blobs, as_view, encode_time
from flowckpt.core.records import CheckpointData, HistoryView
from flowckpt.core.records.checkpoint import verified_after
from flowckpt.errors import CheckpointStorageError, FencedError, ForeignRecordError, SaveConflictError, VanishedError
from flowckpt.stores.async_store import refusal_of_field
from flowckpt.stores.sql import rows
from flowckpt.stores.sql.database import Addition, Database, Row, Session
from flowckpt.stores.sql.image import RunImage, last_record
from flowckpt.stores.sql.rows import ADD_TAG, id_text, sql_time, tag_rows
from flowckpt.stores.sql.summary import describe_again

_DIGEST = [*rows.CHECKPOINT_COLUMNS].index("digest")
_IN_COLUMNS = ("sequence", "checkpoint_id", "attempt", "reason", "status", "saved_at")


class OwnedRun:
    """A run that this process owns: the only thing that writes to it.

    Args:
        database: the database.
        image: the run as it was read after the claim.
        attempt: the attempt that was claimed.
        writer: the name under which.
        fetch: reads large values.

    Attributes:
        attempt: the attempt.
        writer: the name of this owner in the table.
        last_sequence: the highest sequence that the run ever had.
        on_lost: told when the run is found to be another's; None where nobody wants to know.
    """

    def __init__(self, database: Database, image: RunImage, *, attempt: int, writer: str, fetch: Fetch) -> None:
        self.attempt = attempt
        self.writer = writer
        self.last_sequence = image.last_sequence
        self.run = image.run
        self._workflow_id = image.workflow_id
        self._database = database
        self._image: RunImage | None = image
        self._fetch = fetch
        self._saved: HistoryView = image.history.view(0)
        self._is_verified: bool | None = None  # the answer of the evidence in what is saved
        self._blobs = set(image.blobs)
        self._first: CheckpointData | None = None
        self._described: CheckpointData | None = None
        self._head = rows.head_digest("")
        self._evicted: set[int] = set()
        self._is_begun = False
        self._is_closed = False
        self._is_poisoned = False
        self._pending: tuple[Addition, Callable[[], None]] | None = None
        self._mark = database.mark()
        self._newest: int | None = None
        self._is_fenced = False
        self.on_lost: Callable[[FencedError], None] | None = None
        self._pid = os.getpid()
        self._one_at_a_time = threading.Lock()

    @property
    def is_mine(self) -> bool:
        """Whether this process made it: a forked child inherits it and may not use it."""
        return os.getpid() == self._pid

    def close(self) -> None:
        """Save nothing more."""
        self._is_closed = True

    def evict_with_next_save(self, sequences: Sequence[int]) -> None:
        """Let the next save remove checkpoints, too."""
        self._evicted.update(sequences)

    def save(self, data: CheckpointData) -> None:
        """Add a checkpoint with the results that are new in it."""
        self._check_usable()
        with self._one_at_a_time:
            self._check_usable()
            if data.attempt != self.attempt:
                raise FencedError(self._workflow_id, attempt=data.attempt, newest_attempt=self.attempt)
            if data.sequence <= self.last_sequence:
                raise SaveConflictError(self._workflow_id, sequence=data.sequence, last_sequence=self.last_sequence)
            try:
                view = as_view(data.step_results)
                document, head, blobs = self._documents(data)
                data.checkpoint_id.encode()
            except (TypeError, ValueError, RecursionError) as error:
                raise refusal_of_field(error) from error
            others: list[tuple[str, Sequence[Row]]] = []
            saved = self._saved
            if not self._is_begun:
                begin, saved = self._beginning(view)
                others += [*begin, (rows.BEGIN_RUN, [(self.attempt, sql_time(data.saved_at), self.run)])]
            if not view.continues(saved):
                raise ForeignRecordError(
                    f"the history to be saved for run {self._workflow_id!r} does not continue the one that the store "
                    "holds",
                    workflow_id=self._workflow_id,
                    found=f"{len(saved)} results held, {len(view)} given",
                )
            try:
                self._add(data, view, len(saved), document, head, blobs, others)
            except OverflowError as error:  # a number that no column holds; nothing was written
                self._is_poisoned = False
                raise refusal_of_field(error) from error

    def _documents(self, data: CheckpointData) -> tuple[str, str | None, Blobs]:
        """Return what the columns do not say, the head where it is the attempt's first, and the large values."""
        first = self._first
        saved_at = (
            ""
            if data.saved_at.utcoffset() is not None and not data.saved_at.utcoffset()
            else encode_time(data.saved_at)
        )
        if first is not None and not saved_at and data.says_only_its_place(first):
            return "{}", None, {}
        said, blobs = encode_head(data, first)
        for name in _IN_COLUMNS:
            said.pop(name, None)
        if saved_at:
            said["saved_at"] = saved_at
        head = None
        if first is None:
            head = dumps({name: said.pop(name) for name in CARRIED})
            head.encode()
        document = dumps(said)
        document.encode()
        return document, head, blobs

    def _beginning(self, view: HistoryView) -> tuple[list[tuple[str, Sequence[Row]]], HistoryView]:
        """Return what says which attempt this one continues, up to where, and the history that is held there."""
        image = self._image
        assert image is not None, "a run that is not begun has its image"
        known = image.history.view().shared_length(view)

        def look(session: Session) -> tuple[Row, int]:
            found = last_record(session, image.run, image.links, steps=known)
            continued = (None, 0, 0) if found is None else (found[1], found[0], found[2])
            return (sql_time(session.now()), *continued, self.run, self.attempt), continued[2]

        row, kept = self._database.read(self._workflow_id, "save", look)
        self._is_verified = verified_after(None, view.history.results[:kept])
        return [(rows.BEGIN_ATTEMPT, [row])], view.history.view(kept)

    def _add(
        self,
        data: CheckpointData,
        view: HistoryView,
        held: int,
        document: str,
        head: str | None,
        head_blobs: Blobs,
        others: list[tuple[str, Sequence[Row]]],
    ) -> None:
        run, attempt, history = self.run, self.attempt, view.history
        count = len(view)
        size = len(document)
        added: list[Row] = []
        evidence: list[Row] = []
        for index, encoded in enumerate(history.encoded_between(held, count), held):
            result = history.results[index]
            size += len(encoded)
            added.append(rows.result_row(result, encoded, run, attempt, index + 1))
            if result.evidence is not None:
                evidence += rows.evidence_rows(result, run, attempt, index + 1)
        if evidence:
            others.append((rows.ADD_EVIDENCE, evidence))
        blobs = list(head_blobs.values())
        if history.blobs:
            for index in range(held, count):
                blobs.extend(history.blobs.get(index, {}).values())
        missing = {blob.digest: blob for blob in blobs if blob.digest not in self._blobs}
        if missing:
            named = [(secrets.token_hex(16), blob) for blob in missing.values()]
            others.append((rows.ADD_CONTENT, [(name, blob.content()) for name, blob in named]))
            others.append((rows.ADD_BLOB, [(run, blob.digest, blob.size, name) for name, blob in named]))
        if head is not None:
            self._head = rows.head_digest(head)
            others.append((rows.SAY_HEAD, [(head, run, attempt)]))
        if self._is_to_be_described(data):
            metadata = dumps(encode(dict(data.metadata)))
            others.append((rows.DESCRIBE, [(id_text(data.workflow_name), metadata, run)]))
            if tagged := tag_rows(data.metadata, run):
                others.append((ADD_TAG, tagged))
        if self._evicted:
            moment = sql_time(data.saved_at)
            evicted = sorted(each for each in self._evicted if each < data.sequence)  # never the one that is saved
            others.append((rows.DELETE_CHECKPOINT, [(moment, run, each) for each in evicted]))
        answer = verified_after(self._is_verified, history.results[held:count])
        checkpoint = rows.checkpoint_row(data, run, count, max(size, 1), answer, view.chain.hex(), document, self._head)
        _, sequence, _, _, _, status, steps, saved_at, *_ = checkpoint
        advance = (sequence, sequence, steps, status, saved_at, run, self.writer, sequence)
        addition = Addition(
            run,
            self._workflow_id,
            attempt,
            self.writer,
            sequence,
            checkpoint[_DIGEST],
            advance,
            checkpoint,
            added,
            others,
        )

        def acknowledged() -> None:
            self._is_verified = answer
            self._blobs.update(missing)
            self._is_begun, self._image = True, None
            self._saved, self.last_sequence, self._described = view, data.sequence, data
            self._first = self._first or data
            self._evicted.clear()
            for blob in blobs:
                blob.settle(self._fetch)

        self._pending = addition, acknowledged
        self._write(self._database.add, addition, acknowledged)

    def _is_to_be_described(self, data: CheckpointData) -> bool:
        before = self._described
        return before is None or data.metadata is not before.metadata or data.workflow_name != before.workflow_name

    def _write(self, write: Callable[[Addition], bool], addition: Addition, acknowledged: Callable[[], None]) -> None:
        was_poisoned = self._is_poisoned
        self._is_poisoned = True  # until it is acknowledged: any exception from here on, of whatever kind
        try:
            holds = write(addition)
        except CheckpointStorageError as error:
            self._is_poisoned = was_poisoned or error.is_outcome_unknown
            raise
        self._is_poisoned, self._pending = False, None
        if not holds:
            raise self._fenced()
        acknowledged()

    def settle(self) -> None:
        """Do again a save whose outcome is unknown, so that more can be saved; it comes to the same where it was done.

        Raises:
            FencedError: another owner has the run, or it was removed.
            CheckpointStorageError: the database still fails.
        """
        with self._one_at_a_time:
            if self._is_poisoned and not self._is_fenced and not self._is_closed and self._pending is not None:
                self._write(self._database.settle, *self._pending)
            else:
                self._database.probe()

    def delete(self, sequences: Sequence[int]) -> None:
        """Delete checkpoints; their results stay.

        Args:
            sequences: which.
        """
        self._check_usable()
        with self._one_at_a_time:
            self._check_usable()
            begin: list[tuple[str, Sequence[Row]]] = []
            saved = self._saved
            if not self._is_begun:  # what the owner was told is the newest is what it will go on from
                begin, saved = self._beginning(self._newest_view())
                begin.append((rows.GO_BACK, [(self.attempt, self.run)]))

            def work(session: Session) -> bool:
                if not session.change(
                    "UPDATE runs SET writer = writer WHERE run = ? AND writer = ?", (self.run, self.writer)
                ):
                    return False
                for statement, parameters in begin:
                    for row in parameters:
                        session.change(statement, row)
                moment = sql_time(session.now())
                for sequence in sequences:
                    session.change(rows.DELETE_CHECKPOINT, (moment, self.run, sequence))
                describe_again(session, self.run, self._workflow_id)
                return True

            if not self._database.write(self._workflow_id, "delete", work):
                raise self._fenced()
            self._is_begun, self._saved, self._described = True, saved, None

    def share_from(self, source_id: str, sizes: Mapping[str, int]) -> None:
        """Name large values of another run in this one, without a second copy; those that it has not are left out.

        Args:
            source_id: the run that has them.
            sizes: the length of each in bytes, by its digest.
        """
        self._check_usable()
        key, lock = id_text(source_id), self._database.dialect.lock
        wanted = [(digest, size) for digest, size in sizes.items() if digest not in self._blobs]

        def work(session: Session) -> set[str] | None:
            # The source first, as whoever clears it: it is there until we are done, or it is gone.
            session.execute(f"SELECT 1 FROM runs WHERE workflow_id = ?{lock}", (key,))  # noqa: S608
            if not session.change(rows.HOLD_RUN, (self.run, self.writer)):
                return None
            for digest, size in wanted:
                session.change(rows.SHARE_BLOB, (key, digest, size, self.run))
            return {digest for (digest,) in session.execute(rows.NAMED_BLOBS, (self.run,))}

        with self._one_at_a_time:
            named = self._database.write(self._workflow_id, "share", work)
            if named is None:
                raise self._fenced()
            self._blobs = named

    def _newest_view(self) -> HistoryView:
        image = self._image
        assert image is not None, "a run that is not begun has its image"
        return image.history.view(self._database.read(self._workflow_id, "delete", image.newest_steps))

    def _fenced(self) -> FencedError | VanishedError:
        def newest_attempt(session: Session) -> int | None:
            found = session.execute(
                "SELECT newest_attempt FROM runs WHERE workflow_id = ?", (id_text(self._workflow_id),)
            )
            return int(found[0][0]) if found else None

        self._newest = self._database.read(self._workflow_id, "save", newest_attempt)
        if self._newest is None and self._database.mark() != self._mark:
            return VanishedError(str(self._database), workflow_id=self._workflow_id)
        self._is_fenced = True
        return FencedError(self._workflow_id, attempt=self.attempt, newest_attempt=self._newest)

    def tell_lost(self) -> None:
        """Save nothing more, and tell whoever wants to know; the run was found to be another's."""
        error = self._fenced()
        if isinstance(error, FencedError) and self.on_lost is not None and not self._is_closed:
            self.on_lost(error)

    def _check_usable(self) -> None:
        """Refuse to write from a forked child, after a failure, and after another attempt has begun."""
        if not self.is_mine:
            raise CheckpointStorageError(
                f"run {self._workflow_id!r} is owned by the process that this one was forked from",
                workflow_id=self._workflow_id,
                operation="save",
                remedy="Save from the parent, or open a store in the child for runs of its own.",
            )
        if self._is_closed:
            raise FencedError(self._workflow_id, attempt=self.attempt, newest_attempt=self.attempt)
        if self._is_fenced:
            raise FencedError(self._workflow_id, attempt=self.attempt, newest_attempt=self._newest)
        if self._is_poisoned:
            raise CheckpointStorageError(
                f"an earlier save of run {self._workflow_id!r} failed, so what is in the database is unknown",
                workflow_id=self._workflow_id,
                operation="save",
                is_outcome_unknown=True,
                remedy="Nothing more is written by this attempt; the next one finds out.",
            )
