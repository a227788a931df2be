"""Repair of a damaged run in a database: its rows are copied to separate tables, then the damaged ones are removed.

All of it is one transaction. Redundant data is restored: columns for queries from the document; the row of the run from
its checkpoints. A result is proved by the digest of a checkpoint that contains it, and a checkpoint by its own digest.
So a damaged checkpoint affects nothing else, but a damaged result also removes all later ones.
"""

from __future__ import annotations

import json
from typing import Any

import attrs

from flowckpt.core.codec.results import make_result
from flowckpt.core.records.wait import Signal
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, FlowckptError
from flowckpt.stores.content import check_values
from flowckpt.stores.queries import Loss, Repaired, unrepairable_error
from flowckpt.stores.sql import rows
from flowckpt.stores.sql.database import Row, Session
from flowckpt.stores.sql.image import (
    CHECKPOINT,
    NEWEST,
    RunImage,
    open_image,
    read_blob,
    read_lineage,
    refresh_run_row,
)
from flowckpt.stores.sql.reader import find_orphan_rows, verify_run
from flowckpt.stores.sql.rows import check_unowned, fence_all, find_run_key

_TABLES = ("runs", "attempts", "checkpoints", "step_results", "evidence", "blobs", "signals", "pins", "run_tags")
_ATTEMPTS = "SELECT attempt FROM attempts WHERE run = ? AND begun_at IS NOT NULL"
_DOCUMENTS = "SELECT position, CAST(document AS TEXT) FROM step_results WHERE run = ? AND attempt = ?"


def repair_run(session: Session, workflow_id: str, place: str) -> Repaired:
    """Set aside the damaged parts of a run, and keep the rest; see `StoreBase.repair`.

    Args:
        session: the transaction.
        workflow_id: the run.
        place: the database, for people.
    """
    run = find_run_key(session, workflow_id, is_locked=True, has_saved=True)
    if run is None:
        raise CheckpointNotFoundError(workflow_id)
    check_unowned(session, run, workflow_id)
    repair = _Repair(session, workflow_id, run)
    aside = ""
    try:
        verify_run(session, workflow_id, repair.fetch)
    except CheckpointCorruptedError:
        aside = repair.set_aside()
        repair.remove_damage()
        verify_run(session, workflow_id, repair.fetch)
    image = open_image(session, workflow_id)
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
    run: int
    lost: list[Loss] = attrs.field(init=False, factory=list)
    _touched: set[int] = attrs.field(init=False, factory=set)  # the attempts with losses

    def fetch(self, digest: str, size: int) -> bytes:
        """Read a large value in the same transaction."""
        content = read_blob(self.session, self.workflow_id, digest, size)
        assert content is not None, "the row of the run is locked"
        return content

    def _select(self, statement: str, *values: Any) -> list[Row]:
        """Return the rows of a statement whose first parameter is the key of the run."""
        return self.session.execute(statement, (self.run, *values))

    def _change(self, statement: str, *values: Any) -> None:
        self.session.change(statement, (self.run, *values))

    def set_aside(self) -> str:
        """Copy all rows of the run, byte for byte; return the prefix of the tables' names."""
        name = f"damaged_{self.session.now():%Y%m%dt%H%M%S%f}z_"
        for table in _TABLES:
            self.session.change(f"CREATE TABLE {name}{table} AS SELECT * FROM {table} WHERE run = {self.run:d}")  # noqa: S608
        self.session.change(
            f"CREATE TABLE {name}blob_contents AS SELECT * FROM blob_contents "  # noqa: S608
            f"WHERE name IN (SELECT name FROM blobs WHERE run = {self.run:d})"
        )
        return name

    def remove_damage(self) -> None:
        """Remove what cannot be read and proved, and update the row of the run."""
        fence_all(self.session, self.run)
        for (sequence,) in self._select(
            "SELECT latest_sequence FROM runs WHERE run = ? AND latest_sequence NOT IN "
            "(SELECT c.sequence FROM checkpoints c WHERE c.run = runs.run AND c.deleted_at IS NULL)"
        ):
            self.lost.append(Loss(f"checkpoint {sequence}", 0, "its row is missing"))
        self._remove_orphan_rows()
        for (attempt,) in self._select(f"{_ATTEMPTS} ORDER BY attempt"):
            self._repair_attempt(attempt)
        self._remove_unproved_results()
        self._remove_damaged_values()
        self._remove_damaged_messages()
        self._update_run_row()

    def _remove_orphan_rows(self) -> None:
        """Remove rows of missing attempts; an attempt with checkpoints was started."""
        self._change(
            "UPDATE attempts SET begun_at = acquired_at WHERE run = ? AND begun_at IS NULL AND EXISTS "
            "(SELECT 1 FROM checkpoints c WHERE c.run = attempts.run AND c.attempt = attempts.attempt)"
        )
        for table, attempt in find_orphan_rows(self.session, self.run):
            detail = "the run has not started such an attempt"
            if table == "step_results":
                self._drop_results(attempt, 0, detail)
                continue
            statement = "SELECT sequence FROM checkpoints WHERE run = ? AND attempt = ? ORDER BY sequence"
            for (sequence,) in self._select(statement, attempt):
                self._drop_checkpoint(sequence, detail)

    def _open_attempt(self, attempt: int) -> RunImage:
        links = read_lineage(self.session, self.run, attempt, self.workflow_id)
        return RunImage(self.workflow_id, self.run, links)

    # --- one attempt -----------------------------------------------------------------------------------------------

    def _repair_attempt(self, attempt: int) -> None:
        try:
            image = self._open_attempt(attempt)
        except CheckpointCorruptedError as error:
            self._drop_attempt(attempt, error.message)
            return
        for link in image.links[:-1]:
            image.add_results(link.attempt, self._read_documents(link.attempt, link.upto_position), self.fetch)
        statement = "SELECT continues_results FROM attempts WHERE run = ? AND attempt = ?"
        ((continued,),) = self._select(statement, attempt)
        if len(image.history.results) < (continued or 0):
            self._drop_attempt(attempt, "it continues a lost result")
            return
        sound, problem = self._read_sound_results(attempt, len(image.history.results))
        image.add_results(attempt, sound, self.fetch)
        if problem is not None:
            self._drop_results(attempt, len(image.history.results) + 1, problem)
        self._remove_damaged_checkpoints(image, attempt, continued or 0)
        self._restore_columns(image, attempt)
        if self._is_emptied(attempt) and not self._find_last_continued(attempt):
            self._drop_attempt(attempt, "none of its checkpoints remains")

    def _read_documents(self, attempt: int, upto: int) -> list[Row]:
        return self._select(f"{_DOCUMENTS} AND position <= ? ORDER BY position", attempt, upto)

    def _read_sound_results(self, attempt: int, before: int) -> tuple[list[Row], str | None]:
        """Return the rows of an attempt's own results before the first unreadable one, and why that cannot be read."""
        sound: list[Row] = []
        statement = "SELECT position FROM step_results WHERE run = ? AND attempt = ? ORDER BY position"
        for (position,) in self._select(statement, attempt):
            if position != before + len(sound) + 1:
                return sound, f"result {before + len(sound) + 1} is missing"
            try:
                (row,) = self._select(f"{_DOCUMENTS} AND position = ?", attempt, position)
                result, blobs = make_result(json.loads(row[1]), self.fetch)
                check_values([*blobs.values(), result.held_output])
            except Exception as error:  # database errors, too: the bytes may not be text
                return sound, _format_error(error)
            sound.append(row)
        return sound, None

    def _remove_damaged_checkpoints(self, image: RunImage, attempt: int, proved: int) -> None:
        """Remove the damaged checkpoints of an attempt, and results that a checkpoint shows to be damaged."""
        for (sequence,) in self._select(
            "SELECT sequence FROM checkpoints WHERE run = ? AND attempt = ? AND deleted_at IS NULL ORDER BY sequence",
            attempt,
        ):
            steps = 0
            try:
                if sequence <= image.links[-1].after_sequence:
                    raise image.misplaced_error(sequence)
                (row,) = self._select(f"SELECT {CHECKPOINT} FROM checkpoints WHERE run = ? AND sequence = ?", sequence)  # noqa: S608
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
        for sequence, _, verdict in image.compute_verdicts(self.session, attempt):
            change("UPDATE checkpoints SET verified = ? WHERE run = ? AND sequence = ?", (verdict, self.run, sequence))

    def _is_emptied(self, attempt: int) -> bool:
        """Return whether an attempt has lost all its checkpoints; one that only removed checkpoints never had any."""
        statement = "SELECT 1 FROM checkpoints WHERE run = ? AND attempt = ? LIMIT 1"
        return attempt in self._touched and not self._select(statement, attempt)

    # --- the rest --------------------------------------------------------------------------------------------------

    def _remove_unproved_results(self) -> None:
        """Remove results after the last checkpoint of an attempt, except those that a later attempt continues."""
        for attempt, last in self._select(
            "SELECT attempt, max(position) FROM step_results WHERE run = ? GROUP BY attempt ORDER BY attempt DESC"
        ):
            statement = "SELECT max(steps) FROM checkpoints WHERE run = ? AND attempt = ?"
            ((steps,),) = self._select(statement, attempt)
            proved = max(steps or 0, self._find_last_continued(attempt))
            if last > proved:
                self._drop_results(attempt, proved + 1, "no remaining checkpoint proves them")

    def _find_last_continued(self, attempt: int) -> int:
        """Return the last result of an attempt that a later one continues."""
        ((position,),) = self._select(
            "SELECT max(continues_results) FROM attempts "
            "WHERE run = ? AND continues_attempt = ? AND begun_at IS NOT NULL",
            attempt,
        )
        return int(position or 0)

    def _remove_damaged_values(self) -> None:
        """Remove damaged large values, which no remaining row refers to."""
        for digest, size in self._select("SELECT digest, size FROM blobs WHERE run = ?"):
            try:
                self.fetch(digest, size)
            except CheckpointCorruptedError:
                self._change("DELETE FROM blobs WHERE run = ? AND digest = ?", digest)

    def _remove_damaged_messages(self) -> None:
        for (signal_id,) in self._select("SELECT signal_id FROM signals WHERE run = ?"):
            place = "FROM signals WHERE run = ? AND signal_id = ?"
            text = ""
            try:
                ((text,),) = self._select(f"SELECT CAST(document AS TEXT) {place}", signal_id)
                Signal.from_document(json.loads(text))
            except Exception as error:
                self._change(f"DELETE {place}", signal_id)
                self.lost.append(Loss(f"message {signal_id}", len(text), _format_error(error)))

    def _update_run_row(self) -> None:
        """Update the row of the run from its checkpoints: its head is the newest attempt with a checkpoint."""
        head = self._find_head()
        ((last_sequence,),) = self._select("SELECT max(sequence) FROM checkpoints WHERE run = ?")
        ((newest_attempt,),) = self._select("SELECT max(attempt) FROM attempts WHERE run = ?")
        change = self.session.change
        change("UPDATE runs SET head_attempt = ? WHERE run = ?", (head, self.run))
        for column, least in (("last_sequence", last_sequence), ("newest_attempt", newest_attempt)):
            change(f"UPDATE runs SET {column} = ? WHERE run = ? AND {column} < ?", (least, self.run, least))  # noqa: S608
        sequence, saved_at = self._open_attempt(head).read_rows(self.session, "sequence, saved_at")[-1]
        is_wrong = "started_at IS NULL OR started_at > ?" if sequence > 1 else "started_at <> ?"
        change(
            f"UPDATE runs SET started_at = ? WHERE run = ? AND ({is_wrong})",  # noqa: S608
            (saved_at, self.run, saved_at),
        )
        refresh_run_row(self.session, self.run, self.workflow_id)

    def _find_head(self) -> int:
        """Return the newest attempt that leaves the run a checkpoint; the current head if it does."""
        attempts: list[int] = [attempt for (attempt,) in self._select(f"{_ATTEMPTS} ORDER BY attempt DESC")]
        ((current,),) = self._select("SELECT head_attempt FROM runs WHERE run = ?")
        for attempt in sorted(attempts, key=lambda each: each != current):
            if self._open_attempt(attempt).read_rows(self.session, "sequence", NEWEST):
                return attempt
        raise unrepairable_error(self.workflow_id, "the database")

    # --- removals --------------------------------------------------------------------------------------------------

    def _drop_attempt(self, attempt: int, detail: str) -> None:
        ((size,),) = self._select("SELECT sum(size) FROM checkpoints WHERE run = ? AND attempt = ?", attempt)
        self._change("DELETE FROM attempts WHERE run = ? AND attempt = ?", attempt)
        self.lost.append(Loss(f"attempt {attempt}", int(size or 0), detail))

    def _drop_results(self, attempt: int, first: int, detail: str) -> None:
        place = "FROM step_results WHERE run = ? AND attempt = ? AND position >= ?"
        ((size,),) = self._select(f"SELECT sum(length(CAST(document AS TEXT))) {place}", attempt, first)
        self._change(f"DELETE {place}", attempt, first)
        self._touched.add(attempt)
        self.lost.append(Loss(f"results from {first} on of attempt {attempt}", int(size or 0), detail))

    def _drop_checkpoint(self, sequence: int, detail: str) -> None:
        place = "WHERE run = ? AND sequence = ?"
        ((attempt, size),) = self._select(f"SELECT attempt, size FROM checkpoints {place}", sequence)  # noqa: S608
        self._change(f"DELETE FROM checkpoints {place}", sequence)  # noqa: S608
        self._change(f"DELETE FROM pins {place}", sequence)  # noqa: S608
        self._touched.add(attempt)
        self.lost.append(Loss(f"checkpoint {sequence} of attempt {attempt}", int(size), detail))


def _format_error(error: Exception) -> str:
    return error.message if isinstance(error, FlowckptError) else f"{type(error).__name__}: {error}"
