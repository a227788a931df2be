"""A run read from its rows: its results, joined and verified, and its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any

import attrs

from flowckpt.core.codec import decode, dumps
from flowckpt.core.codec.blob import Fetch
from flowckpt.core.codec.checkpoints import decode_head
from flowckpt.core.codec.results import encode_time, make_result
from flowckpt.core.records import CheckpointData, History, Status
from flowckpt.core.records.checkpoint import verified_after
from flowckpt.core.records.listing import EVERY, RunInfo, Selection
from flowckpt.core.system.lazy import paused_collector
from flowckpt.errors import CheckpointCorruptedError, DecodingError
from flowckpt.stores.base import Finding, RunSurvey
from flowckpt.stores.sql.database import Row, Session
from flowckpt.stores.sql.rows import (
    ADD_TAG,
    OWNER_COLUMNS,
    checkpoint_digest,
    decode_id,
    encode_id,
    find_run_key,
    format_time,
    head_digest,
    parse_holder,
    parse_time,
    tag_rows,
)

# The rows of a run: those of its attempts, each up to the point where the next one continues.


_UNBOUNDED = 2**63 - 1
NEWEST = Selection(limit=1)
"""Only the newest checkpoint."""


@attrs.frozen
class AttemptLink:
    """The part of an attempt that belongs to a run.

    The sequences of an attempt's checkpoints are unique in the run and greater than the one that the attempt continues.
    So the primary key (run, sequence) finds them, and a run of many attempts is read once, not once for each attempt.

    Attributes:
        attempt: the attempt.
        after_sequence: the checkpoint that it continues; 0 if none.
        upto_sequence: its last checkpoint that belongs to the run.
        upto_position: its last result that belongs to the run.
    """

    attempt: int
    after_sequence: int = 0
    upto_sequence: int = _UNBOUNDED
    upto_position: int = _UNBOUNDED


def read_lineage(session: Session, run: int, attempt: int | None, workflow_id: str) -> list[AttemptLink]:
    """Return the attempts that form a run as an attempt left it, oldest first.

    Args:
        session: the transaction.
        run: the run's key.
        attempt: the last attempt; None if none has written yet.
        workflow_id: the run, for errors.

    Raises:
        CheckpointCorruptedError: an attempt is missing, or the attempts form a cycle.
    """
    if attempt is None:
        return []
    rows = session.execute(
        "SELECT attempt, continues_attempt, continues_sequence, continues_results FROM attempts "
        "WHERE run = ? AND attempt <= ? AND begun_at IS NOT NULL",
        (run, attempt),
    )
    attempts = {row[0]: row[1:] for row in rows}
    links: list[AttemptLink] = []
    each, upto_sequence, upto_position = attempt, _UNBOUNDED, _UNBOUNDED
    while True:
        if each not in attempts or (links and each >= links[-1].attempt):
            raise CheckpointCorruptedError(
                workflow_id,
                location="attempts",
                detail=f"attempt {each} is missing or out of order, but a later one continues it",
                remedy="Nothing was changed. Restore the database from a backup.",
            )
        continued, sequence, results = attempts[each]
        links.append(AttemptLink(each, sequence or 0, upto_sequence, upto_position))
        if continued is None:
            return links[::-1]
        each, upto_sequence, upto_position = continued, sequence, results


CHECKPOINT = "sequence, attempt, checkpoint_id, reason, status, steps, saved_at, chain, digest, CAST(document AS TEXT) AS document"
_REMEDY = (
    "Nothing was changed. 'flowckpt store check' lists the damage. Restore the database from a backup, "
    "or keep the intact part: 'flowckpt store repair RUN'."
)


@attrs.define(eq=False)
class RunImage:
    """A run as read from the database.

    Attributes:
        workflow_id: the run.
        run: its key.
        links: its attempts, oldest first.
        last_sequence: the highest sequence ever used.
        history: all its results, if they were read.
        blobs: the digests of its stored large values, if its owner reads it.
    """

    workflow_id: str
    run: int
    links: list[AttemptLink]
    last_sequence: int = 0
    history: History = attrs.field(factory=History)
    blobs: set[str] = attrs.field(factory=set)

    def read_results(self, session: Session, fetch: Fetch) -> None:
        """Read the results of the run.

        Raises:
            CheckpointCorruptedError: a result is missing or malformed.
        """
        with paused_collector():
            for link in self.links:
                rows = session.execute(
                    "SELECT position, CAST(document AS TEXT) FROM step_results "
                    "WHERE run = ? AND attempt = ? AND position <= ? ORDER BY position",
                    (self.run, link.attempt, link.upto_position),
                )
                self.add_results(link.attempt, rows, fetch)

    def add_results(self, attempt: int, rows: list[Row], fetch: Fetch) -> None:
        """Add the results of an attempt from rows of position and document.

        Raises:
            CheckpointCorruptedError: a result is missing or malformed.
        """
        if not rows:
            return
        first = len(self.history.results) + 1
        last = rows[-1][0]
        place = f"step_results of attempt {attempt}"
        if rows[0][0] != first or last - first + 1 != len(rows):
            raise self.corrupt_error(place, f"a result between {first} and {last} is missing")
        texts = [row[1] for row in rows]
        try:
            # Parsed together, so that the keys are shared.
            documents: list[dict[str, Any]] = json.loads(f"[{','.join(texts)}]")
            if len(documents) != len(texts):
                raise DecodingError("a document contains several documents")
            decoded = [make_result(document, fetch) for document in documents]
        except (DecodingError, ValueError, TypeError, RecursionError) as error:
            raise self.corrupt_error(place, f"results {first} to {last}: {error}") from error
        large = {index: blobs for index, (_, blobs) in enumerate(decoded) if blobs}
        self.history.extend([result for result, _ in decoded], large, lambda: [text.encode() for text in texts])

    def find_last_record(self, session: Session, steps: int) -> tuple[int | None, int, int]:
        """Return attempt, sequence and results of the last checkpoint with at most `steps` results; None and zeros without one.

        Deleted ones count, because results may have been saved with them.
        """
        for link in reversed(self.links):
            rows = session.execute(
                "SELECT sequence, steps FROM checkpoints "
                "WHERE run = ? AND attempt = ? AND sequence > ? AND sequence <= ? AND steps <= ? "
                "ORDER BY sequence DESC LIMIT 1",
                (self.run, link.attempt, link.after_sequence, link.upto_sequence, steps),
            )
            for sequence, count in rows:
                return link.attempt, sequence, count
        return None, 0, 0

    def read_rows(
        self, session: Session, columns: str, selection: Selection = EVERY, checkpoint_id: str | None = None
    ) -> list[Row]:
        """Return columns of the existing checkpoints, newest first.

        Args:
            session: the transaction.
            columns: the columns.
            selection: only the selected ones.
            checkpoint_id: only those with this id, in the form of the column.
        """
        reason = None if selection.reason is None else selection.reason.value
        values = {"checkpoint_id": checkpoint_id, "reason": reason, "verified": selection.verified}
        wanted = {column: value for column, value in values.items() if value is not None}
        conditions = "".join(f" AND {column} = ?" for column in wanted)
        limit = selection.limit
        rows: list[Row] = []
        for link in reversed(self.links):
            if selection.attempt not in (None, link.attempt):
                continue
            if limit is not None and len(rows) >= limit:
                break
            statement = (
                f"SELECT {columns} FROM checkpoints WHERE run = ? AND attempt = ? "  # noqa: S608 - constants
                f"AND sequence > ? AND sequence <= ? AND deleted_at IS NULL{conditions} ORDER BY sequence DESC"
            )
            parameters = [self.run, link.attempt, link.after_sequence, link.upto_sequence, *wanted.values()]
            if limit is not None:
                statement += " LIMIT ?"
                parameters.append(limit - len(rows))
            rows += session.execute(statement, parameters)
        return rows

    def count_newest_results(self, session: Session) -> int:
        """Return the number of results of the newest checkpoint; 0 if there is none."""
        rows = self.read_rows(session, "steps", NEWEST)
        return int(rows[0][0]) if rows else 0

    def load_newest(
        self, session: Session, fetch: Fetch, checkpoint_id: str | None = None, selection: Selection = EVERY
    ) -> CheckpointData | None:
        """Return the newest selected checkpoint, or the newest with an id; the results must have been read."""
        checkpoints = self.load_all(session, fetch, attrs.evolve(selection, limit=1), checkpoint_id)
        return checkpoints[0] if checkpoints else None

    def load_all(
        self, session: Session, fetch: Fetch, selection: Selection = EVERY, checkpoint_id: str | None = None
    ) -> list[CheckpointData]:
        """Return the selected checkpoints, or those with an id, newest first; the results must have been read."""
        rows = self.read_rows(session, CHECKPOINT, selection, checkpoint_id)
        return [self.load_checkpoint(session, row, fetch) for row in rows]

    def compute_verdicts(self, session: Session, attempt: int) -> list[tuple[int, bool | None, bool | None]]:
        """Return sequence, stored and true verdict on the evidence for the checkpoints of an attempt, oldest first."""
        verdicts = []
        verdict: bool | None = None
        before = 0
        rows = self.read_rows(session, "sequence, steps, verified", Selection(attempt=attempt))
        for sequence, steps, stored in reversed(rows):
            verdict = verified_after(verdict, self.history.results[before:steps])
            before = steps
            verdicts.append((sequence, None if stored is None else bool(stored), verdict))
        return verdicts

    def misplaced_error(self, sequence: int) -> CheckpointCorruptedError:
        """Return the error for a checkpoint of the last attempt that is outside of its range."""
        link = self.links[-1]
        detail = (
            f"attempt {link.attempt} continues from checkpoint {link.after_sequence}, so this one cannot belong to it"
        )
        return self.corrupt_error(f"checkpoint {sequence}", detail)

    def verify_head(self, session: Session, row: Row) -> str:
        """Return the head of a checkpoint's attempt, after its row of `CHECKPOINT` was compared with its digest."""
        sequence, attempt, checkpoint_id, reason, status, steps, saved_at, chain, digest, document = row
        place = f"checkpoint {sequence}"
        head: str | None = _read_head(session, self.run, attempt)
        if head is None or document is None:
            raise self.corrupt_error(place, "the head of its attempt is missing")
        try:
            moment = format_time(parse_time(saved_at))
            columns = (sequence, attempt, decode_id(checkpoint_id), reason, status, steps, moment, chain)
            is_whole = checkpoint_digest(head_digest(head), columns, document) == digest
        except (ValueError, TypeError) as error:
            raise self.corrupt_error(place, str(error)) from error
        if not is_whole:
            raise self.corrupt_error(place, "it does not match its digest")
        return head

    def load_checkpoint(self, session: Session, row: Row, fetch: Fetch) -> CheckpointData:
        """Return the checkpoint of a row of `CHECKPOINT`, verified."""
        sequence, attempt, checkpoint_id, reason, status, steps, saved_at, chain, _, document = row
        place = f"checkpoint {sequence}"
        head = self.verify_head(session, row)
        try:
            if steps > len(self.history.results):
                raise self.corrupt_error(place, f"it has {steps} results, but only {len(self.history.results)} exist")
            view = self.history.view(steps)
            if view.chain.hex() != chain:
                raise self.corrupt_error(place, "its results do not match their digest")
            merged = {
                **json.loads(head),
                "saved_at": encode_time(parse_time(saved_at)),
                **json.loads(document),
                "sequence": sequence,
                "attempt": attempt,
                "checkpoint_id": decode_id(checkpoint_id),
                "reason": reason,
                "status": status,
            }
            return decode_head(merged, view, fetch)
        except (DecodingError, ValueError, TypeError) as error:
            raise self.corrupt_error(place, str(error)) from error

    def corrupt_error(self, place: str, detail: str) -> CheckpointCorruptedError:
        """Return the error for damage in the run."""
        return _corrupt_error(self.workflow_id, place, detail)


def _corrupt_error(workflow_id: str, place: str, detail: str) -> CheckpointCorruptedError:
    return CheckpointCorruptedError(workflow_id, location=place, detail=detail, remedy=_REMEDY)


def _read_head(session: Session, run: int, attempt: int) -> Any:
    """Return the text of the head of an attempt, which its checkpoints share; None if it is missing."""
    rows = session.execute("SELECT CAST(head AS TEXT) FROM attempts WHERE run = ? AND attempt = ?", (run, attempt))
    return rows[0][0] if rows else None


_OPEN = (
    "SELECT run, head_attempt, last_sequence, latest_sequence, "
    "(SELECT c.sequence FROM checkpoints c "
    "WHERE c.run = runs.run AND c.sequence = latest_sequence AND c.deleted_at IS NULL), "
    "COALESCE((SELECT max(c.sequence) FROM checkpoints c WHERE c.run = runs.run), 0) FROM runs WHERE workflow_id = ?"
)
"""Includes the newest rows that exist: a run that has lost them would repeat their work."""


def open_image(session: Session, workflow_id: str, *, attempt: int | None = None) -> RunImage | None:
    """Return a run without its results; None if there is none.

    Args:
        session: the transaction.
        workflow_id: the run.
        attempt: as this attempt left it; None for the current state.

    Raises:
        CheckpointCorruptedError: an attempt or the newest checkpoint is missing.
    """
    rows = session.execute(_OPEN, (encode_id(workflow_id),))
    if not rows:
        return None
    run, head, last_sequence, latest, existing, highest = rows[0]
    if attempt is None and latest != existing:
        raise _corrupt_error(workflow_id, f"checkpoint {latest}", "it is the newest one, and its row is missing")
    if attempt is None and highest > last_sequence:
        raise _corrupt_error(workflow_id, "runs", f"its column last_sequence is less than {highest}")
    if attempt is not None:
        begun = session.execute(
            "SELECT 1 FROM attempts WHERE run = ? AND attempt = ? AND begun_at IS NOT NULL", (run, attempt)
        )
        head = attempt if begun else None
    return RunImage(workflow_id, run, read_lineage(session, run, head, workflow_id), last_sequence)


def read_blob(session: Session, workflow_id: str, digest: str, size: int) -> bytes | None:
    """Return the content of a large value, verified; None if the run is gone.

    Args:
        session: the transaction.
        workflow_id: the run.
        digest: SHA-256 of the content, in hex.
        size: its length, according to the record.

    Raises:
        CheckpointCorruptedError: it is missing, or its content does not match the record.
    """
    run = find_run_key(session, workflow_id)
    if run is None:
        return None
    rows = session.execute(
        "SELECT c.content FROM blobs b JOIN blob_contents c ON c.name = b.name WHERE b.run = ? AND b.digest = ?",
        (run, digest),
    )
    content = bytes(rows[0][0]) if rows else b""
    if rows and len(content) == size and sha256(content).hexdigest() == digest:
        return content
    detail = "a large value does not match its digest" if rows else "a large value is missing"
    raise _corrupt_error(workflow_id, f"blob {digest[:12]}", detail)


# The row of a run describes its newest checkpoint, so that a list needs no other table.

LISTED = (
    "r.workflow_id, r.workflow_name, r.status, c.attempt, r.started_at, r.updated_at, r.steps, "
    f"CAST(r.metadata AS TEXT), {OWNER_COLUMNS}"
)
"""The columns for `parse_run_row`, of `runs r`, `checkpoints c` and `attempts a`."""

_LIST = f"""
SELECT {LISTED}
FROM runs r
LEFT JOIN checkpoints c ON c.run = r.run AND c.sequence = r.latest_sequence
LEFT JOIN attempts a ON a.writer = r.writer
WHERE r.latest_sequence IS NOT NULL
"""  # noqa: S608 - constants


_PAGE = "ORDER BY r.started_at DESC, r.workflow_id DESC LIMIT ?"


def read_run_info(session: Session, workflow_id: str) -> RunInfo | None:
    """Return a run as listed; None if it is not."""
    rows = session.execute(f"{_LIST}AND r.workflow_id = ?", (encode_id(workflow_id),))
    return parse_run_row(rows[0], session.now()) if rows else None


def survey_all(session: Session) -> RunSurvey:
    """Return all runs, most recently started first, and those with a damaged row."""
    return RunSurvey(*parse_run_rows(session.execute(f"{_LIST}ORDER BY r.started_at DESC"), session.now()))


def find_unreadable(session: Session, after: int, limit: int) -> tuple[list[Finding], int | None]:
    """Return the runs of a page with damaged rows, and the key after which the next page starts; None at the end.

    Args:
        session: the transaction.
        after: continue after this key of a run.
        limit: the maximum number of rows to read.
    """
    keys = session.execute("SELECT run FROM runs WHERE run > ? ORDER BY run LIMIT ?", (after, limit))
    if not keys:
        return [], None
    last = keys[-1][0]
    rows = session.execute(f"{_LIST}AND r.run > ? AND r.run <= ?", (after, last))
    return parse_run_rows(rows, session.now())[1], last


def parse_run_rows(rows: Sequence[Row], now: datetime) -> tuple[list[RunInfo], list[Finding]]:
    """Return the runs of some rows, and findings about damaged rows.

    Args:
        rows: rows of `LISTED`.
        now: the time by the database's clock.
    """
    infos, findings = [], []
    for row in rows:
        try:
            infos.append(parse_run_row(row, now))
        except CheckpointCorruptedError as error:
            findings.append(Finding(error.workflow_id, "corrupt", error.message))
    return infos, findings


def parse_run_row(row: Row, now: datetime) -> RunInfo:
    """Return a run as listed.

    Args:
        row: the values of `LISTED`.
        now: the time by the database's clock.

    Raises:
        CheckpointCorruptedError: the row is malformed.
    """
    workflow_id, workflow_name, status, attempt, started_at, updated_at, steps, metadata, *owner = row
    holder = parse_holder(tuple(owner), decode_id(workflow_id))
    try:
        if attempt is None:
            raise ValueError("the row of the newest checkpoint is missing")
        return RunInfo(
            decode_id(workflow_id),
            decode_id(workflow_name),
            Status(status),
            attempt,
            parse_time(started_at),
            parse_time(updated_at),
            steps,
            decode(json.loads(metadata)),
        ).with_owner(holder.owner if holder is not None and holder.holds(now) else None)
    except (DecodingError, ValueError, TypeError, OverflowError) as error:
        raise CheckpointCorruptedError(decode_id(workflow_id), location="runs", detail=str(error)) from error


def read_page(session: Session, before: RunInfo | None, limit: int) -> tuple[list[RunInfo], bool]:
    """Return runs, most recently started first, and whether there may be more.

    Args:
        session: the transaction.
        before: continue after this run; None to start.
        limit: the maximum number of rows to read; damaged ones are left out.
    """
    if before is None:
        rows = session.execute(f"{_LIST}AND r.started_at IS NOT NULL {_PAGE}", (limit,))
    else:
        moment, key = format_time(before.started_at), encode_id(before.workflow_id)
        # The first condition is for the index; one on the pair of columns would need the run's key, which may no longer
        # exist.
        place = "AND r.started_at <= ? AND (r.started_at < ? OR r.workflow_id < ?) "
        rows = session.execute(f"{_LIST}{place}{_PAGE}", (moment, moment, key, limit))
    return parse_run_rows(rows, session.now())[0], len(rows) == limit


def refresh_run_row(session: Session, run: int, workflow_id: str) -> None:
    """Update the row of a run from its newest checkpoint, after others were deleted."""
    ((head_attempt,),) = session.execute("SELECT head_attempt FROM runs WHERE run = ?", (run,))
    image = RunImage(workflow_id, run, read_lineage(session, run, head_attempt, workflow_id))
    columns = "sequence, attempt, steps, status, saved_at, CAST(document AS TEXT)"
    rows = image.read_rows(session, columns, NEWEST)
    if not rows:
        session.change("UPDATE runs SET latest_sequence = NULL, status = NULL, steps = 0 WHERE run = ?", (run,))
        return
    sequence, attempt, steps, status, saved_at, document = rows[0]
    fields = {**json.loads(_read_head(session, run, attempt)), **json.loads(document)}
    session.change(
        "UPDATE runs SET latest_sequence = ?, status = ?, steps = ?, updated_at = ?, workflow_name = ?, metadata = ? "
        "WHERE run = ?",
        (sequence, status, steps, saved_at, encode_id(fields["workflow_name"]), dumps(fields["metadata"]), run),
    )
    for row in tag_rows(decode(fields["metadata"]), run):
        session.change(ADD_TAG, row)
