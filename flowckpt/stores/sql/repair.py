"""Repair of a damaged run in a database: its rows are copied to separate tables, then the damaged ones are removed.

All of it is one transaction. Redundant data is restored: columns for queries from the document; the row of the run from
its checkpoints. A result is proved by the digest of a checkpoint that contains it, and a checkpoint by its own digest.
So a damaged checkpoint affects nothing else, but a damaged result also removes all later ones.
"""

from __future__ import annotations

import json

import attrs

from flowckpt.core.codec.results import result_from
from flowckpt.core.records.checkpoint import verified_after
from flowckpt.core.records.wait import Signal
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, FlowckptError, RunLockedError
from flowckpt.stores.content import check_values
from flowckpt.stores.queries import Loss, Repaired, unrepairable_error
from flowckpt.stores.sql import rows
from flowckpt.stores.sql.database import Row, Session
from flowckpt.stores.sql.image import (
    CHECKPOINT,
    RunImage,
    open_image,
    read_blob,
    read_checkpoint_rows,
    read_lineage,
    refresh_run_row,
)
from flowckpt.stores.sql.layout import Dialect
from flowckpt.stores.sql.reader import find_orphan_rows, verify_run
from flowckpt.stores.sql.rows import encode_id, find_live_owner, format_time

_TABLES = ("runs", "attempts", "checkpoints", "step_results", "evidence", "blobs", "signals", "pins", "run_tags")
_FIND = "SELECT position, CAST(document AS TEXT) FROM step_results WHERE run = ? AND attempt = ?"


def repair_run(session: Session, dialect: Dialect, workflow_id: str, place: str) -> Repaired:
    """Set aside the damaged parts of a run, and keep the rest; see `StoreBase.repair`.

    Args:
        session: the transaction.
        dialect: the database's.
        workflow_id: the run.
        place: the database, for people.
    """
    key = encode_id(workflow_id)
    found = session.execute(f"SELECT run, head_attempt FROM runs WHERE workflow_id = ?{dialect.lock}", (key,))  # noqa: S608
    if not found or found[0][1] is None:
        raise CheckpointNotFoundError(workflow_id)
    run: int = found[0][0]
    if (owner := find_live_owner(session, run)) is not None:
        raise RunLockedError(workflow_id, holder=str(owner))
    repair = _Repair(session, workflow_id, key, run)
    aside = ""
    try:
        verify_run(session, workflow_id, key, repair.fetch)
    except CheckpointCorruptedError:
        aside = repair.set_aside()
        repair.remove_damage()
        verify_run(session, workflow_id, key, repair.fetch)
    image = open_image(session, workflow_id, key)
    assert image is not None, "its row is locked"
    image.read_results(session, repair.fetch)
    newest = image.load_newest(session, repair.fetch)
    if newest is None:
        raise unrepairable_error(workflow_id, place)
    (count,) = session.execute("SELECT count(*) FROM checkpoints WHERE run = ? AND deleted_at IS NULL", (run,))[0]
    kept = f"the tables {aside}* of {place}" if aside else ""
    return Repaired(workflow_id, kept, tuple(repair.lost), count, len(newest.step_results), newest.checkpoint_id)


@attrs.define
class _Repair:
    session: Session
    workflow_id: str
    key: str
    run: int
    lost: list[Loss] = attrs.field(init=False, factory=list)
    _touched: set[int] = attrs.field(init=False, factory=set)  # the attempts with losses

    def fetch(self, digest: str, size: int) -> bytes:
        """Read a large value in the same transaction."""
        content = read_blob(self.session, self.workflow_id, self.key, digest, size)
        assert content is not None, "the row of the run is locked"
        return content

    def set_aside(self) -> str:
        """Copy all rows of the run, byte for byte; return the prefix of the tables' names.

        The run has no owner, and a previous owner that is suspended gets fenced, because it may rely on removed rows.
        """
        moment = self.session.now()
        name = f"damaged_{moment:%Y%m%dt%H%M%S%f}z_"
        for table in _TABLES:
            self.session.change(f"CREATE TABLE {name}{table} AS SELECT * FROM {table} WHERE run = {self.run:d}")  # noqa: S608
        self.session.change(
            f"CREATE TABLE {name}blob_contents AS SELECT * FROM blob_contents "  # noqa: S608
            f"WHERE name IN (SELECT name FROM blobs WHERE run = {self.run:d})"
        )
        self.session.change("UPDATE runs SET writer = '' WHERE run = ?", (self.run,))
        self.session.change(
            "UPDATE attempts SET released_at = ? WHERE run = ? AND released_at IS NULL", (format_time(moment), self.run)
        )
        return name

    def remove_damage(self) -> None:
        """Remove what cannot be read and proved, and update the row of the run."""
        self._remove_orphan_rows()
        for (attempt,) in self.session.execute(
            "SELECT attempt FROM attempts WHERE run = ? AND begun_at IS NOT NULL ORDER BY attempt", (self.run,)
        ):
            self._repair_attempt(attempt)
        self._remove_unproved_results()
        self._remove_damaged_values()
        self._remove_damaged_messages()
        self._update_run_row()

    def _remove_orphan_rows(self) -> None:
        """Remove rows of missing attempts; an attempt with checkpoints was started."""
        self.session.change(
            "UPDATE attempts SET begun_at = acquired_at WHERE run = ? AND begun_at IS NULL AND EXISTS "
            "(SELECT 1 FROM checkpoints c WHERE c.run = attempts.run AND c.attempt = attempts.attempt)",
            (self.run,),
        )
        for table, attempt in find_orphan_rows(self.session, self.run):
            detail = "the run has not started such an attempt"
            if table == "step_results":
                self._drop_results(attempt, 0, detail)
                continue
            place = "WHERE run = ? AND attempt = ? ORDER BY sequence"
            for (sequence,) in self.session.execute(f"SELECT sequence FROM checkpoints {place}", (self.run, attempt)):  # noqa: S608
                self._drop_checkpoint(sequence, detail)

    # --- one attempt -----------------------------------------------------------------------------------------------

    def _repair_attempt(self, attempt: int) -> None:
        try:
            links = read_lineage(self.session, self.run, attempt, self.workflow_id)
        except CheckpointCorruptedError as error:
            self._drop_attempt(attempt, error.message)
            return
        image = RunImage(self.workflow_id, self.run, links)
        for link in links[:-1]:
            image.add_results(link.attempt, self._read_documents(link.attempt, link.upto_position), self.fetch)
        (continued,) = self.session.execute(
            "SELECT continues_results FROM attempts WHERE run = ? AND attempt = ?", (self.run, attempt)
        )[0]
        if len(image.history.results) < (continued or 0):
            self._drop_attempt(attempt, "it continues a lost result")
            return
        good, bad = self._read_sound_results(attempt, len(image.history.results))
        image.add_results(attempt, good, self.fetch)
        if bad is not None:
            self._drop_results(attempt, len(image.history.results) + 1, bad)
        self._remove_damaged_checkpoints(image, attempt, continued or 0)
        self._restore_columns(image, attempt)
        if self._is_emptied(attempt) and not self._find_last_continued(attempt):
            self._drop_attempt(attempt, "none of its checkpoints remains")

    def _read_documents(self, attempt: int, upto: int) -> list[Row]:
        return self.session.execute(f"{_FIND} AND position <= ? ORDER BY position", (self.run, attempt, upto))

    def _read_sound_results(self, attempt: int, before: int) -> tuple[list[Row], str | None]:
        """Return the rows of an attempt's own results before the first unreadable one, and why that cannot be read."""
        good: list[Row] = []
        for (position,) in self.session.execute(
            "SELECT position FROM step_results WHERE run = ? AND attempt = ? ORDER BY position", (self.run, attempt)
        ):
            if position != before + len(good) + 1:
                return good, f"result {before + len(good) + 1} is missing"
            try:
                found = self.session.execute(f"{_FIND} AND position = ?", (self.run, attempt, position))
                result, blobs = result_from(json.loads(found[0][1]), self.fetch)
                check_values([*blobs.values(), result.held_output])
            except Exception as error:  # database errors, too: the bytes may not be text
                return good, _format_error(error)
            good += found
        return good, None

    def _remove_damaged_checkpoints(self, image: RunImage, attempt: int, proved: int) -> None:
        """Remove the damaged checkpoints of an attempt, and results that a checkpoint shows to be damaged."""
        for (sequence,) in self.session.execute(
            "SELECT sequence FROM checkpoints WHERE run = ? AND attempt = ? AND deleted_at IS NULL ORDER BY sequence",
            (self.run, attempt),
        ):
            select = f"SELECT {CHECKPOINT} FROM checkpoints WHERE run = ? AND sequence = ?"  # noqa: S608
            steps = 0
            try:
                if sequence <= image.links[-1].after_sequence:
                    raise image.misplaced_error(sequence)
                (row,) = self.session.execute(select, (self.run, sequence))
                image.verify_head(self.session, row)
                steps, chain = row[5], row[7]
                if steps <= len(image.history.results) and image.history.view(steps).chain.hex() != chain:
                    self._drop_results(attempt, proved + 1, f"checkpoint {sequence} proves that one of them is damaged")
                    image.history = image.history.forked(proved)
                check_values(image.load_checkpoint(self.session, row, self.fetch).held_values)
            except Exception as error:
                self._drop_checkpoint(sequence, _format_error(error))
            else:
                proved = steps

    def _restore_columns(self, image: RunImage, attempt: int) -> None:
        """Restore the columns of results and checkpoints from the documents."""
        change = self.session.change
        names = [name for name in rows.RESULT_COLUMNS if name not in ("run", "attempt", "position", "document")]
        update = f"UPDATE step_results SET {', '.join(f'{name} = ?' for name in names)} "  # noqa: S608
        for position, text in self._read_documents(attempt, len(image.history.results)):
            row = rows.result_row(image.history.results[position - 1], text.encode(), self.run, attempt, position)
            change(f"{update} WHERE run = ? AND attempt = ? AND position = ?", (*row[3:-1], *row[:3]))
        answer: bool | None = None
        before = 0
        for sequence, steps in reversed(read_checkpoint_rows(self.session, self.run, image.links, "sequence, steps")):
            answer = verified_after(answer, image.history.results[before:steps])
            before = steps
            change("UPDATE checkpoints SET verified = ? WHERE run = ? AND sequence = ?", (answer, self.run, sequence))

    def _is_emptied(self, attempt: int) -> bool:
        """Return whether an attempt has lost all its checkpoints; one that only removed checkpoints never had any."""
        select = "SELECT 1 FROM checkpoints WHERE run = ? AND attempt = ? LIMIT 1"
        return attempt in self._touched and not self.session.execute(select, (self.run, attempt))

    # --- the rest --------------------------------------------------------------------------------------------------

    def _remove_unproved_results(self) -> None:
        """Remove results after the last checkpoint of an attempt, except those that a later attempt continues."""
        for attempt, last in self.session.execute(
            "SELECT attempt, max(position) FROM step_results WHERE run = ? GROUP BY attempt ORDER BY attempt DESC",
            (self.run,),
        ):
            (steps,) = self.session.execute(
                "SELECT max(steps) FROM checkpoints WHERE run = ? AND attempt = ?", (self.run, attempt)
            )[0]
            proved = max(steps or 0, self._find_last_continued(attempt))
            if last > proved:
                self._drop_results(attempt, proved + 1, "no remaining checkpoint proves them")

    def _find_last_continued(self, attempt: int) -> int:
        """Return the last result of an attempt that a later one continues."""
        found = self.session.execute(
            "SELECT max(continues_results) FROM attempts WHERE run = ? AND continues_attempt = ? AND begun_at IS NOT NULL",
            (self.run, attempt),
        )
        return int(found[0][0] or 0)

    def _remove_damaged_values(self) -> None:
        """Remove damaged large values, which no remaining row refers to."""
        for digest, size in self.session.execute("SELECT digest, size FROM blobs WHERE run = ?", (self.run,)):
            try:
                self.fetch(digest, size)
            except CheckpointCorruptedError:
                self.session.change("DELETE FROM blobs WHERE run = ? AND digest = ?", (self.run, digest))

    def _remove_damaged_messages(self) -> None:
        for (signal_id,) in self.session.execute("SELECT signal_id FROM signals WHERE run = ?", (self.run,)):
            place = "WHERE run = ? AND signal_id = ?"
            text = ""
            try:
                ((text,),) = self.session.execute(
                    f"SELECT CAST(document AS TEXT) FROM signals {place}",  # noqa: S608
                    (self.run, signal_id),
                )
                Signal.from_document(json.loads(text))
            except Exception as error:
                self.session.change(f"DELETE FROM signals {place}", (self.run, signal_id))  # noqa: S608
                self.lost.append(Loss(f"message {signal_id}", len(text), _format_error(error)))

    def _update_run_row(self) -> None:
        """Update the row of the run from its checkpoints: its head is the newest attempt with a checkpoint."""
        head = self._find_head()
        (last, newest) = self.session.execute(
            "SELECT (SELECT max(sequence) FROM checkpoints WHERE run = ?), (SELECT max(attempt) FROM attempts WHERE run = ?)",
            (self.run, self.run),
        )[0]
        self.session.change("UPDATE runs SET head_attempt = ? WHERE run = ?", (head, self.run))
        greatest = "CASE WHEN {0} < ? THEN ? ELSE {0} END"
        self.session.change(
            f"UPDATE runs SET last_sequence = {greatest.format('last_sequence')}, "  # noqa: S608
            f"newest_attempt = {greatest.format('newest_attempt')} WHERE run = ?",
            (last, last, newest, newest, self.run),
        )
        links = read_lineage(self.session, self.run, head, self.workflow_id)
        sequence, saved_at = read_checkpoint_rows(self.session, self.run, links, "sequence, saved_at")[-1]
        is_wrong = "started_at IS NULL OR started_at > ?" if sequence > 1 else "started_at <> ?"
        self.session.change(
            f"UPDATE runs SET started_at = ? WHERE run = ? AND ({is_wrong})",  # noqa: S608
            (saved_at, self.run, saved_at),
        )
        refresh_run_row(self.session, self.run, self.workflow_id)

    def _find_head(self) -> int:
        """Return the newest attempt that leaves the run a checkpoint; the current head if it does."""
        begun: list[int] = [
            attempt
            for (attempt,) in self.session.execute(
                "SELECT attempt FROM attempts WHERE run = ? AND begun_at IS NOT NULL ORDER BY attempt DESC", (self.run,)
            )
        ]
        (now,) = self.session.execute("SELECT head_attempt FROM runs WHERE run = ?", (self.run,))[0]
        for attempt in [*(each for each in begun if each == now), *begun]:
            links = read_lineage(self.session, self.run, attempt, self.workflow_id)
            if read_checkpoint_rows(self.session, self.run, links, "sequence", is_newest_only=True):
                return attempt
        raise unrepairable_error(self.workflow_id, "the database")

    # --- removals --------------------------------------------------------------------------------------------------

    def _drop_attempt(self, attempt: int, detail: str) -> None:
        (size,) = self.session.execute(
            "SELECT sum(size) FROM checkpoints WHERE run = ? AND attempt = ?", (self.run, attempt)
        )[0]
        self.session.change("DELETE FROM attempts WHERE run = ? AND attempt = ?", (self.run, attempt))
        self.lost.append(Loss(f"attempt {attempt}", int(size or 0), detail))

    def _drop_results(self, attempt: int, first: int, detail: str) -> None:
        (size,) = self.session.execute(
            "SELECT sum(length(CAST(document AS TEXT))) FROM step_results WHERE run = ? AND attempt = ? AND position >= ?",
            (self.run, attempt, first),
        )[0]
        self.session.change(
            "DELETE FROM step_results WHERE run = ? AND attempt = ? AND position >= ?", (self.run, attempt, first)
        )
        self._touched.add(attempt)
        self.lost.append(Loss(f"results from {first} on of attempt {attempt}", int(size or 0), detail))

    def _drop_checkpoint(self, sequence: int, detail: str) -> None:
        place = "WHERE run = ? AND sequence = ?"
        ((attempt, size),) = self.session.execute(
            f"SELECT attempt, size FROM checkpoints {place}",  # noqa: S608
            (self.run, sequence),
        )
        self.session.change(f"DELETE FROM checkpoints {place}", (self.run, sequence))  # noqa: S608
        self.session.change(f"DELETE FROM pins {place}", (self.run, sequence))  # noqa: S608
        self._touched.add(attempt)
        self.lost.append(Loss(f"checkpoint {sequence} of attempt {attempt}", int(size), detail))


def _format_error(error: Exception) -> str:
    return error.message if isinstance(error, FlowckptError) else f"{type(error).__name__}: {error}"
