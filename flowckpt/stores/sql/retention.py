"""The runs of an SQL store, to be kept small: pins, compaction, and the removal of very many runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from flowckpt.core.records.listing import RunInfo
from flowckpt.errors import CheckpointNotFoundError, RunLockedError
from flowckpt.stores.base import Compacted
from flowckpt.stores.sql.database import Session
from flowckpt.stores.sql.rows import id_text, live_owner, name_of, sql_time
from flowckpt.stores.sql.runs import SqlRuns
from flowckpt.stores.sql.summary import page_of_runs, run_infos

_AT_ONCE = 50
"""Runs that are removed in one transaction: others wait for it."""

_NAMED = re.compile(r'"([0-9a-f]{64})"')
_ROW_BYTES = 200
"""About what a row takes beside its documents."""

_TEXTS = (
    "SELECT CAST(document AS TEXT) FROM step_results WHERE run = ?",
    "SELECT CAST(document AS TEXT) FROM checkpoints WHERE run = ? AND document IS NOT NULL",
    "SELECT CAST(head AS TEXT) FROM attempts WHERE run = ? AND head IS NOT NULL",
)
"""All that can name a large value."""


class RetainedRuns(SqlRuns):
    """The runs of an SQL store, with what keeps them small."""

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def delete_sequences(self, workflow_id: str, sequences: Collection[int]) -> int:
        """Delete checkpoints; return how many."""
        return self.delete_where(workflow_id, lambda reference: reference.sequence in sequences)

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Delete checkpoints in the transaction of the next save."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.evict_with_next_save(sequences)

    def pin(self, workflow_id: str, sequence: int) -> None:
        """Pin a checkpoint."""
        references = self.references(workflow_id)
        if all(each.sequence != sequence for each in references):
            raise CheckpointNotFoundError(workflow_id, str(sequence) if references else None)
        key, lock = id_text(workflow_id), self.database.dialect.lock

        def work(session: Session) -> bool:
            runs = session.execute(f"SELECT run FROM runs WHERE workflow_id = ?{lock}", (key,))  # noqa: S608
            if runs:
                session.change(
                    "INSERT INTO pins (run, sequence, pinned_at) VALUES (?, ?, ?) ON CONFLICT (run, sequence) DO NOTHING",
                    (runs[0][0], sequence, sql_time(session.now())),
                )
            return bool(runs)

        if not self.database.write(workflow_id, "pin", work):
            raise CheckpointNotFoundError(workflow_id)

    def unpin(self, workflow_id: str, sequence: int) -> None:
        """Take a pin away."""
        statement = "DELETE FROM pins WHERE sequence = ? AND run IN (SELECT run FROM runs WHERE workflow_id = ?)"
        key = id_text(workflow_id)
        self.database.write(workflow_id, "unpin", lambda session: session.change(statement, (sequence, key)))

    def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the sequences that are pinned."""
        statement = "SELECT p.sequence FROM pins p JOIN runs r ON r.run = p.run WHERE r.workflow_id = ?"
        key = id_text(workflow_id)
        found = self.database.read(workflow_id, "read", lambda session: session.execute(statement, (key,)))
        return frozenset(sequence for (sequence,) in found)

    # --- one run ---------------------------------------------------------------------------------------------------

    def compactable(self, after: str, limit: int) -> list[str]:
        """Return the runs that have deleted checkpoints, in the order of their keys."""

        def look(session: Session) -> list[str]:
            start = session.execute("SELECT run FROM runs WHERE workflow_id = ?", (id_text(after),)) if after else []
            found = session.execute(
                "SELECT workflow_id FROM runs WHERE run IN "
                "(SELECT DISTINCT run FROM checkpoints WHERE deleted_at IS NOT NULL AND run > ? ORDER BY run LIMIT ?) "
                "ORDER BY run",
                (start[0][0] if start else 0, limit),
            )
            return [name_of(key) for (key,) in found]

        return self.database.read("", "list", look)

    def compact(self, workflow_id: str, *, is_forced: bool) -> Compacted:
        """Remove the rows of deleted checkpoints, and the large values that no row names, in one transaction.

        Whoever owned the run and is gone is fenced for good: it may believe of a value that it is there still.
        """
        del is_forced  # it costs little
        if workflow_id in self.owned:
            raise RunLockedError(workflow_id, holder=f"this process, by a store in {self.database}")
        key, lock = id_text(workflow_id), self.database.dialect.lock

        def work(session: Session) -> Compacted:
            runs = session.execute(f"SELECT run FROM runs WHERE workflow_id = ?{lock}", (key,))  # noqa: S608
            if not runs:
                return Compacted()
            run = runs[0][0]
            if (owner := live_owner(session, run)) is not None:
                raise RunLockedError(workflow_id, holder=str(owner))
            moment = sql_time(session.now())
            session.change("UPDATE runs SET writer = '' WHERE run = ?", (run,))
            session.change("UPDATE attempts SET released_at = ? WHERE run = ? AND released_at IS NULL", (moment, run))
            rows = session.change("DELETE FROM checkpoints WHERE run = ? AND deleted_at IS NOT NULL", (run,))
            freed = rows * _ROW_BYTES + _remove_unnamed(session, run)
            return Compacted(freed > 0, freed)

        return self.database.write(workflow_id, "compact", work)

    def stored_bytes(self, workflow_ids: Sequence[str]) -> list[int]:
        """Return about how many bytes each run takes."""
        statement = (
            "SELECT COALESCE((SELECT sum(size) FROM checkpoints c WHERE c.run = r.run), 0), "
            "COALESCE((SELECT sum(size) FROM blobs b WHERE b.run = r.run), 0) FROM runs r WHERE r.workflow_id = ?"
        )

        def look(session: Session) -> list[int]:
            found = [session.execute(statement, (id_text(each),)) for each in workflow_ids]
            return [sum(map(int, rows[0])) if rows else 0 for rows in found]

        return self.database.read("", "read", look)

    # --- many runs -------------------------------------------------------------------------------------------------

    def page(self, before: RunInfo | None, limit: int) -> list[RunInfo]:
        """Return runs in the order in which they were started, the last one first."""
        found, is_more = self.database.read("", "list", lambda session: page_of_runs(session, before, limit))
        while is_more and not found:  # a page of damaged runs: look at more
            limit *= 2
            found, is_more = self._larger(before, limit)
        return found

    def _larger(self, before: RunInfo | None, limit: int) -> tuple[list[RunInfo], bool]:
        return self.database.read("", "list", lambda session: page_of_runs(session, before, limit))

    def tidy(self) -> None:
        """Give free pages back to the system, where the database can do so in passing."""
        self.database.give_back_space()

    def clear_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        """Remove those of the runs that nobody owns, that have no pin, and that stand as they did."""
        gone: list[str] = []
        for start in range(0, len(runs), _AT_ONCE):
            part = [each for each in runs[start : start + _AT_ONCE] if each.workflow_id not in self.owned]
            gone += self._clear_some(part)
        return gone

    def _clear_some(self, runs: Sequence[RunInfo]) -> list[str]:
        lock = self.database.dialect.lock

        def work(session: Session) -> list[str]:
            gone = []
            # Locked in one order, so that two who prune at once do not wait for each other.
            for info in sorted(runs, key=lambda each: each.workflow_id):
                key = id_text(info.workflow_id)
                rows = session.execute(f"SELECT run FROM runs WHERE workflow_id = ?{lock}", (key,))  # noqa: S608
                if not rows or session.execute("SELECT 1 FROM pins WHERE run = ? LIMIT 1", rows[0]):
                    continue
                now = run_infos(session, key)
                if now and now[0].owner is None and now[0] == info:
                    session.change("DELETE FROM runs WHERE run = ?", rows[0])
                    gone.append(info.workflow_id)
            return gone

        return self.database.write("", "prune", work) if runs else []


def _remove_unnamed(session: Session, run: int) -> int:
    """Remove the large values that no row of a run names; return how many bytes they took."""
    held = session.execute("SELECT digest, size FROM blobs WHERE run = ?", (run,))
    if not held:
        return 0
    named: set[str] = set()
    for statement in _TEXTS:
        for (text,) in session.execute(statement, (run,)):
            named.update(_NAMED.findall(text))
    freed = 0
    for digest, size in held:
        if digest not in named:
            session.change("DELETE FROM blobs WHERE run = ? AND digest = ?", (run, digest))
            freed += size
    return freed
