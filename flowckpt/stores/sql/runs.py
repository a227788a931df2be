"""Owned runs of an SQL store: claimed, released, cleared, imported, kept small."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import attrs

from flowckpt.core.records import CheckpointData
from flowckpt.core.records.listing import RunInfo
from flowckpt.core.records.wait import Signal
from flowckpt.core.system.process import ProcessIdentity, current_process
from flowckpt.errors import CheckpointNotFoundError, DiskFullError, FencedError, RunExistsError, RunLockedError
from flowckpt.stores.base import Lease
from flowckpt.stores.leases import LeaseTimes
from flowckpt.stores.queries import Compacted, Repaired
from flowckpt.stores.sql import repair, rows, signals
from flowckpt.stores.sql.database import Addition, Database, End, Item, Outcome, Session, Work, answer_of
from flowckpt.stores.sql.image import RunImage, open_image, page_of_runs, run_infos
from flowckpt.stores.sql.layout import MIGRATIONS, NEWEST_APPLIED, Dialect, check_version_since_opened
from flowckpt.stores.sql.reader import SqlReader
from flowckpt.stores.sql.rows import (
    DROP_LIVE_NOTE,
    NAMED_BLOBS,
    id_text,
    insertion,
    key_of_run,
    live_name,
    live_owner,
    name_of,
    sql_time,
)
from flowckpt.stores.sql.run_writer import SqlRunWriter

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


class SqlRuns(SqlReader):
    """The runs of an SQL store, and those among them that this process owns.

    Args:
        database: where they are.
        lease_seconds: how long a run stays owned without a heartbeat of its owner.

    Attributes:
        owned: the runs that this process owns.
    """

    def __init__(self, database: Database, *, lease_seconds: float) -> None:
        self._times = LeaseTimes(lease_seconds)
        super().__init__(database, self._times.interval)
        self._process = current_process
        self._noted: set[str] = set()  # the owners that wrote a live note

    def close(self) -> None:
        """Release every run that this process owns, and close the database."""
        super().close()
        self.database.close()

    def _claim(
        self, workflow_id: str, *, take_over: bool, at_least: int, previous: SqlRunWriter | None
    ) -> tuple[SqlRunWriter, CheckpointData | None, tuple[str, ...]]:
        lock = self.database.dialect.lock
        instead_of = previous.token if previous is not None and previous.is_mine else ""
        claim = self._new_claim(workflow_id, at_least=at_least, take_over=take_over, instead_of=instead_of)
        run, attempt = self.database.write(workflow_id, "acquire", lambda session: claim.make(session, lock))
        if previous is not None:
            self.owned.pop(workflow_id).close()
        fetch = self._fetch(workflow_id)

        def read(session: Session, image: RunImage) -> tuple[RunImage, CheckpointData | None]:
            image.read_results(session, fetch)
            image.blobs = {digest for (digest,) in session.execute(NAMED_BLOBS, (image.run,))}
            return image, image.newest(session, fetch)

        try:
            found = self._with_image(workflow_id, read)
            if found is None:
                raise CheckpointNotFoundError(workflow_id, detail="it was cleared meanwhile")
        except BaseException:
            self.database.write(workflow_id, "release", lambda session: give_up(session, lock, run, claim.writer))
            raise
        image, latest = found
        return SqlRunWriter(self.database, image, attempt=attempt, token=claim.writer, fetch=fetch), latest, ()

    def _claim_next(self, writer: SqlRunWriter) -> SqlRunWriter:
        workflow_id = writer.workflow_id
        claim = self._new_claim(workflow_id, take_over=True, instead_of=writer.token, after=writer.attempt)
        lock = self.database.dialect.lock
        _, attempt = self.database.write(workflow_id, "acquire", lambda session: claim.make(session, lock))
        self.owned.pop(workflow_id).close()
        image = self._with_image(workflow_id, lambda _, found: found)
        if image is None:
            raise FencedError(workflow_id, attempt=attempt, newest_attempt=None)
        return SqlRunWriter(self.database, image, attempt=attempt, token=claim.writer, fetch=self._fetch(workflow_id))

    def _new_claim(self, workflow_id: str, **options: Any) -> Claim:
        writer, process = secrets.token_hex(16), self._process()
        return Claim(workflow_id, id_text(workflow_id), writer, process, self._times.seconds, **options)

    def acquire_new(self, workflow_id: str) -> Lease | None:
        """Claim a run that is not there yet; return None if it is there: it has to be read."""
        if not self.database.dialect.claim_new:
            return None
        work, end = self._new(workflow_id)
        lease: Lease | None = end(self.database.now(work))
        return lease

    def acquire_new_later(self, workflow_id: str) -> asyncio.Future[Lease | None]:
        """Do the same with the next group."""
        return self.database.later(*self._new(workflow_id))

    def _new(self, workflow_id: str) -> tuple[Work, End]:
        """Return the claim of a run that is not there yet, and what becomes of it."""
        self._prepare_leases()
        claim = self._new_claim(workflow_id)
        dialect = self.database.dialect

        def work(session: Session) -> list[tuple[int, int]]:
            found = session.execute("SELECT writer FROM runs WHERE workflow_id = ?", (claim.key,))
            return [claim.make(session, dialect.lock)] if not found or found[0][0] == claim.writer else []

        def end(outcome: Outcome) -> Lease | None:
            claimed = answer_of(outcome)
            if not claimed:
                return None
            run, attempt = claimed[0]
            image = RunImage(workflow_id, run, [])
            fetch = self._fetch(workflow_id)
            writer = SqlRunWriter(self.database, image, attempt=attempt, token=claim.writer, fetch=fetch)
            self.owned[workflow_id] = writer
            self._prepare_leases()
            return Lease(workflow_id, attempt, None, token=claim.writer)

        statements = [(dialect.claim_new, claim.of_new)] if dialect.claim_new else []
        return Work(workflow_id, "acquire", work, statements), end

    def save_later(self, workflow_id: str, data: CheckpointData) -> asyncio.Future[None] | None:
        """Save a checkpoint with the next group."""
        writer = self.owned.get(workflow_id)
        return None if writer is None else writer.save_later(data)

    def release_later(self, workflow_id: str, token: str) -> asyncio.Future[None] | None:
        """Release a run with the next group, if the owner with that token still owns it."""
        writer = self.owned.get(workflow_id)
        if writer is None or token not in ("", writer.token) or not writer.is_mine:
            return None
        released = self.database.later(self._giving_up(writer), answer_of)
        del self.owned[workflow_id]
        writer.close()
        return released

    def _giving_up(self, writer: SqlRunWriter) -> Work:
        dialect, run, token = self.database.dialect, writer.run, writer.token
        statements: list[tuple[str, tuple[Any, ...]]] = []
        if dialect.release and writer.is_adopted:
            statements.append((dialect.release, (run, token, run, token)))
        if token in self._noted and statements:
            self._noted.discard(token)
            statements.append((rows.DROP_LIVE_NOTE, (rows.live_name(run),)))
        return Work(
            writer.workflow_id, "release", lambda session: give_up(session, dialect.lock, run, token), statements
        )

    def maintain_owned(self) -> bool:
        """Renew the leases of all owned runs, and tell of those that are lost; return whether there are any."""
        mine = {owned.token: (workflow_id, owned) for workflow_id, owned in [*self.owned.items()] if owned.is_mine}
        if mine:
            seconds = self._times.seconds
            lost = self.database.write("", "renew", lambda session: renew(session, [*mine], seconds))
            for workflow_id, owned in map(mine.__getitem__, lost):
                if self.owned.get(workflow_id) is owned:  # else it was given up or cleared here, meanwhile
                    owned.report_loss()
        return bool(mine)

    def _give_up(self, writer: SqlRunWriter) -> None:
        writer.close()
        if writer.is_mine:
            self.database.now(self._giving_up(writer))

    def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Let an owned run have large values of another without a copy."""
        owned = self.owned.get(workflow_id)
        if owned is not None:
            owned.share_from(source_id, sizes)

    def clear(self, workflow_id: str) -> None:
        """Remove a run, with all that belongs to it."""
        key, lock = id_text(workflow_id), self.database.dialect.lock
        owned = self.owned.get(workflow_id)
        mine = owned.token if owned is not None and owned.is_mine else ""
        self.database.write(workflow_id, "clear", lambda session: clear_run(session, lock, workflow_id, key, mine=mine))
        if owned is not None:
            self.owned.pop(workflow_id).close()

    def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Add a whole run, in one transaction."""
        dialect, seconds = self.database.dialect, self._times.seconds
        arrival = BulkImport(workflow_id, checkpoints, self._process(), seconds, dialect)
        self.database.write(workflow_id, "receive", arrival.write)

    def repair(self, workflow_id: str) -> Repaired:
        """Set aside what is damaged of a run, and keep the rest, in one transaction."""
        if workflow_id in self.owned:
            raise RunLockedError(workflow_id, holder=f"this process, by a store in {self.database}")
        dialect = self.database.dialect
        return self.database.write(
            workflow_id, "repair", lambda session: repair.repair_run(session, dialect, workflow_id, self.place)
        )

    def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Add a message for a run, also one owned elsewhere; return whether it is new."""
        dialect = self.database.dialect
        return self.database.write(
            workflow_id, "signal", lambda session: signals.send(session, dialect, workflow_id, signal)
        )

    def signals_later(self, workflow_id: str) -> asyncio.Future[list[Signal]] | None:
        """Read the messages for an owned run with the next group; each run looks for them about once a second."""
        writer = self.owned.get(workflow_id)
        if writer is None or not writer.is_mine:
            return None
        asked = signals.SENT, (id_text(workflow_id),)
        work = Work(workflow_id, "read", lambda session: session.execute(*asked), [asked])
        return self.database.later(work, lambda outcome: signals.parsed(workflow_id, answer_of(outcome)))

    def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages for a run."""
        if signal_ids:
            self.database.write(workflow_id, "signal", lambda session: signals.remove(session, workflow_id, signal_ids))

    # --- the live note ---------------------------------------------------------------------------------------------

    def note_live(self, writer: SqlRunWriter, content: bytes) -> None:
        """Replace the live note of an owned run."""
        self.note_live_all({writer.workflow_id: content})

    def note_live_all(self, notes: Mapping[str, bytes]) -> None:
        """Replace the live notes of those of the runs that this process owns, in one transaction."""
        writers = [(self.owned.get(workflow_id), content) for workflow_id, content in notes.items()]
        mine = {writer: content for writer, content in writers if writer is not None and writer.is_mine}
        if not mine:
            return
        self._noted.update(writer.token for writer in mine)
        names = [rows.live_name(writer.run) for writer in mine]

        def work(session: Session) -> None:
            session.execute("SET LOCAL synchronous_commit TO off")  # only PostgreSQL has its notes in a table
            session.change(rows.REPLACE_LIVE_NOTES, (names, [*mine.values()]))

        self.database.write(next(iter(notes)) if len(notes) == 1 else "", "note", work)

    # --- the index of results --------------------------------------------------------------------------------------

    def read_index(self, name: str) -> bytes | None:
        """Return a part of the index of results."""
        statement = "SELECT content FROM result_index WHERE name = ?"
        found = self.database.read("", "read the index", lambda session: session.execute(statement, (name,)))
        return bytes(found[0][0]) if found else None

    def write_index(self, name: str, content: bytes) -> None:
        """Replace a part of the index of results."""
        self.database.write("", "write the index", lambda session: session.change(rows.REPLACE_INDEX, (name, content)))

    def clear_index(self) -> None:
        """Remove the index of results."""
        self.database.write("", "clear the index", lambda session: session.change("DELETE FROM result_index"))

    # --- keeping it small ------------------------------------------------------------------------------------------

    def pin(self, workflow_id: str, sequence: int) -> None:
        """Pin a checkpoint."""
        references = self.references(workflow_id)
        if all(each.sequence != sequence for each in references):
            raise CheckpointNotFoundError(workflow_id, str(sequence) if references else None)
        lock = self.database.dialect.lock

        def work(session: Session) -> bool:
            run = key_of_run(session, workflow_id, lock)
            if run is not None:
                session.change(
                    "INSERT INTO pins (run, sequence, pinned_at) VALUES (?, ?, ?) ON CONFLICT (run, sequence) DO NOTHING",
                    (run, sequence, sql_time(session.now())),
                )
            return run is not None

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
        return frozenset(sequence for (sequence,) in self._rows(workflow_id, statement))

    # --- one run ---------------------------------------------------------------------------------------------------

    def compactable(self, after: str, limit: int) -> list[str]:
        """Return the runs that have deleted checkpoints, in the order of their keys."""

        def read(session: Session) -> list[str]:
            start = key_of_run(session, after) if after else None
            found = session.execute(
                "SELECT workflow_id FROM runs WHERE run IN "
                "(SELECT DISTINCT run FROM checkpoints WHERE deleted_at IS NOT NULL AND run > ? ORDER BY run LIMIT ?) "
                "ORDER BY run",
                (start or 0, limit),
            )
            return [name_of(key) for (key,) in found]

        return self.database.read("", "list", read)

    def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Remove the rows of deleted checkpoints, some at a time, and then the large values that no row names.

        A process that owned the run and is gone is fenced for good: it may believe of a value that it is there still.
        """
        if workflow_id in self.owned:
            raise RunLockedError(workflow_id, holder=f"this process, by a store in {self.database}")
        lock = self.database.dialect.lock

        def work(session: Session) -> tuple[Compacted, bool]:
            run = key_of_run(session, workflow_id, lock)
            if run is None:
                return Compacted(), False
            if (owner := live_owner(session, run)) is not None:
                raise RunLockedError(workflow_id, holder=str(owner))
            moment = sql_time(session.now())
            session.change("UPDATE runs SET writer = '' WHERE run = ?", (run,))
            session.change("UPDATE attempts SET released_at = ? WHERE run = ? AND released_at IS NULL", (moment, run))
            removed = session.change(rows.REMOVE_DELETED, (run, run, rows.DELETED_AT_ONCE))
            is_more = removed == rows.DELETED_AT_ONCE
            freed = removed * _ROW_BYTES + (0 if is_more else _remove_unnamed(session, run))
            return Compacted(freed > 0, freed), is_more

        freed, is_more = 0, True
        while is_more:
            done, is_more = self.database.write(workflow_id, "compact", work)
            freed += done.bytes_freed
        return Compacted(freed > 0, freed)

    def total_bytes(self) -> int:
        """Return how many bytes the database takes, with its indexes."""
        return self.database.total_bytes()

    def stored_bytes(self, workflow_ids: Sequence[str]) -> list[int]:
        """Return about how many bytes each run takes."""
        # Not the sizes of the checkpoints: results stay when the checkpoint that added them is removed.
        rows_of = ", ".join(
            f"COALESCE((SELECT sum(COALESCE(length(CAST(t.{document} AS TEXT)), 0) + {_ROW_BYTES}) "  # noqa: S608
            f"FROM {table} t WHERE t.run = r.run), 0)"
            for table, document in (("step_results", "document"), ("checkpoints", "document"), ("attempts", "head"))
        )
        values = "COALESCE((SELECT sum(size) FROM blobs b WHERE b.run = r.run), 0)"
        statement = f"SELECT {rows_of}, {values} FROM runs r WHERE r.workflow_id = ?"  # noqa: S608 - constants

        def read(session: Session) -> list[int]:
            found = [session.execute(statement, (id_text(each),)) for each in workflow_ids]
            return [sum(map(int, rows[0])) if rows else 0 for rows in found]

        return self.database.read("", "read", read)

    # --- many runs -------------------------------------------------------------------------------------------------

    def page_runs(self, before: RunInfo | None, limit: int) -> list[RunInfo]:
        """Return runs in the order in which they were started, the last one first."""
        while True:
            found, is_more = self.database.read("", "list", partial(page_of_runs, before=before, limit=limit))
            if found or not is_more:
                return found
            limit *= 2  # a page of damaged runs: look at more

    def tidy(self) -> None:
        """Give free pages back to the system, where the database can do so in passing."""
        self.database.give_back_space()

    def clear_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        """Remove those of the runs that have no owner, that have no pin, and that stand as they did."""
        gone: list[str] = []
        for start in range(0, len(runs), _AT_ONCE):
            part = [each for each in runs[start : start + _AT_ONCE] if each.workflow_id not in self.owned]
            try:
                gone += self._clear_some(part)
            except DiskFullError:  # the journal of all is too large: each one that has gone makes room for the next
                for info in sorted(part, key=lambda each: each.steps):
                    gone += self._clear_some([info])
        return gone

    def _clear_some(self, runs: Sequence[RunInfo]) -> list[str]:
        lock = self.database.dialect.lock

        def work(session: Session) -> list[str]:
            gone = []
            # Locked in one order, so that two who prune at once do not wait for each other.
            for info in sorted(runs, key=lambda each: each.workflow_id):
                run = key_of_run(session, info.workflow_id, lock)
                if run is None or session.execute("SELECT 1 FROM pins WHERE run = ? LIMIT 1", (run,)):
                    continue
                now = run_infos(session, id_text(info.workflow_id))
                if now and now[0].owner is None and now[0] == info:
                    session.change("DELETE FROM runs WHERE run = ?", (run,))
                    session.change(DROP_LIVE_NOTE, (live_name(run),))
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


# Becoming the owner of a run and ceasing to be: what is written for it, each in one transaction.
#
# The attempt is the fencing number, and `runs.writer` is the fence: a random name of the newest owner. Every save changes
# the row of the run where the name is still the saver's, in the transaction that adds its rows; so the process that has written a
# new name there has fenced all who came before, in whatever state they are.
#
# A claim also looks at the version of the schema. A program that had the database open while a newer one brought it forward
# would continue without a word, and its runs would have no rows in what is new.

_ADD_ATTEMPT = insertion(
    "attempts",
    (
        *("run", "attempt", "writer", "host", "boot_id", "pid", "start_time"),
        *("acquired_at", "heartbeat_at", "lease_expires_at"),
    ),
)
_STILL_NEWEST = (
    "SELECT 1 FROM attempts AS mine WHERE mine.writer = ? AND NOT EXISTS (SELECT 1 FROM attempts AS later "
    "WHERE later.run = mine.run AND later.attempt > mine.attempt AND later.begun_at IS NOT NULL)"
)


@attrs.frozen
class Claim:
    """A claim on the next attempt of a run.

    Attributes:
        workflow_id: the run.
        key: its id as the column holds it.
        writer: the random name of the claimer.
        process: the claimer's process.
        lease_seconds: how long its lease lasts.
        at_least: the lowest number that the attempt may have.
        take_over: whether to take it from a living owner.
        instead_of: the claimer's own former name, which ends with this claim; empty if it has none.
        after: the claimer's own attempt, which must be the newest; 0 for any.
    """

    workflow_id: str
    key: str
    writer: str
    process: ProcessIdentity
    lease_seconds: float
    at_least: int = 1
    take_over: bool = False
    instead_of: str = ""
    after: int = 0

    @property
    def of_new(self) -> tuple[Any, ...]:
        """The values of `Dialect.claim_new`."""
        process = self.process
        return (
            *(self.key, self.at_least, self.writer, len(MIGRATIONS)),
            *(self.at_least, self.writer, process.host, process.boot_id, process.pid, process.start_time),
            *(self.lease_seconds, self.at_least),
        )

    def make(self, session: Session, lock: str) -> tuple[int, int]:
        """Write the claim, and return the run's key and the attempt.

        Raises:
            RunLockedError: the run has a living owner.
            FencedError: it is to follow an attempt that is not the newest.
            UnsupportedSchemaError: a newer program has brought the database forward since it was opened.
        """
        select = f"SELECT run, newest_attempt, writer, ({NEWEST_APPLIED}) FROM runs WHERE workflow_id = ?{lock}"  # noqa: S608
        if self.after and not session.execute(select, (self.key,)):
            raise FencedError(self.workflow_id, attempt=self.after, newest_attempt=None)
        insert = "INSERT INTO runs (workflow_id) VALUES (?) ON CONFLICT (workflow_id) DO NOTHING"
        while not (rows := session.execute(select, (self.key,))):  # others may give it up unwritten, again and again
            session.change(insert, (self.key,))
        run, newest, writer, version = rows[0]
        if writer == self.writer:  # done before, and the answer was lost
            return run, newest
        if self.after and newest != self.after:
            raise FencedError(self.workflow_id, attempt=self.after, newest_attempt=newest)
        check_version_since_opened(version)
        if not self.take_over and writer and (owner := live_owner(session, run)) is not None:
            raise RunLockedError(self.workflow_id, holder=str(owner))
        now = session.now()
        moment = sql_time(now)
        if self.instead_of:
            session.change("UPDATE attempts SET released_at = ? WHERE writer = ?", (moment, self.instead_of))
        attempt = max(newest + 1, self.at_least)
        process = self.process
        session.change(
            _ADD_ATTEMPT,
            (
                *(run, attempt, self.writer, process.host, process.boot_id, process.pid, process.start_time),
                *(moment, moment, lease_end(now, self.lease_seconds)),
            ),
        )
        session.change("UPDATE runs SET newest_attempt = ?, writer = ? WHERE run = ?", (attempt, self.writer, run))
        return run, attempt


def lease_end(now: datetime, seconds: float) -> str:
    """Return when a lease ends that is given or renewed now, as the column holds it."""
    return sql_time(now + timedelta(seconds=seconds))


def give_up(session: Session, lock: str, run: int, writer: str) -> None:
    """Give a run up; a claim under which nothing was written leaves no trace.

    Then the previous owner owns the run again, unless it has released it as well.

    Args:
        session: the transaction.
        lock: what keeps a selected row from others.
        run: the run's key.
        writer: who gives it up.
    """
    runs = session.execute(f"SELECT writer FROM runs WHERE run = ?{lock}", (run,))  # noqa: S608
    mine = session.execute("SELECT attempt, begun_at FROM attempts WHERE run = ? AND writer = ?", (run, writer))
    if not runs or not mine:
        return
    attempt, begun_at = mine[0]
    if begun_at is not None:
        moment = sql_time(session.now())
        session.change("UPDATE attempts SET released_at = ? WHERE run = ? AND attempt = ?", (moment, run, attempt))
        session.change("UPDATE runs SET writer = '' WHERE run = ? AND writer = ?", (run, writer))
        return
    session.change("DELETE FROM attempts WHERE run = ? AND attempt = ?", (run, attempt))
    left = session.execute(
        "SELECT attempt, writer, released_at FROM attempts WHERE run = ? ORDER BY attempt DESC LIMIT 1", (run,)
    )
    if not left:
        session.change("DELETE FROM runs WHERE run = ?", (run,))
    elif runs[0][0] == writer:
        before, name, released_at = left[0]
        session.change(
            "UPDATE runs SET newest_attempt = ?, writer = ? WHERE run = ?",
            (before, name if released_at is None else "", run),
        )


def clear_run(session: Session, lock: str, workflow_id: str, key: str, *, mine: str = "") -> None:
    """Remove a run with all that belongs to it.

    Args:
        session: the transaction.
        lock: what keeps a selected row from others.
        workflow_id: the run.
        key: its id as the column holds it.
        mine: the name under which the caller owns it, if it does.

    Raises:
        RunLockedError: the run has another living owner.
    """
    rows = session.execute(f"SELECT run, writer FROM runs WHERE workflow_id = ?{lock}", (key,))  # noqa: S608
    if not rows:
        return
    run, writer = rows[0]
    if writer not in ("", mine) and (owner := live_owner(session, run)) is not None:
        raise RunLockedError(workflow_id, holder=str(owner))
    session.change("DELETE FROM runs WHERE run = ?", (run,))
    session.change(DROP_LIVE_NOTE, (live_name(run),))


def renew(session: Session, writers: list[str], seconds: float) -> list[str]:
    """Renew leases, and return those that are lost: the run was removed, or a later attempt has saved to it.

    A later attempt that has saved nothing may yet be refused, and give the run back.

    Args:
        session: the transaction.
        writers: the names under which runs are owned.
        seconds: how long a lease lasts.
    """
    now = session.now()
    values = (sql_time(now), lease_end(now, seconds))
    renewal = "UPDATE attempts SET heartbeat_at = ?, lease_expires_at = ? WHERE writer = ? AND released_at IS NULL"
    for writer in writers:
        session.change(renewal, (*values, writer))
    return [writer for writer in writers if not session.execute(_STILL_NEWEST, (writer,))]


# Taking in a whole run: each of its saves as it would be done, and all of them in one transaction.

T = TypeVar("T")


class OneTransaction(Database):
    """A database whose every work is part of a transaction that is open already.

    Args:
        dialect: how statements are written.
    """

    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self._dialect = dialect

    @property
    def dialect(self) -> Dialect:
        """How statements are written."""
        return self._dialect

    def read(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Do work that reads."""
        return work(self._session)

    def write(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Do work that writes."""
        return work(self._session)

    def now(self, item: Item) -> Any:
        """Write a save or other work."""
        return item.do(self._session) if isinstance(item, Work) else self.settle(item)

    def settle(self, addition: Addition) -> bool:
        """Write the rows of a save: within one transaction no outcome is unknown."""
        change = self._session.change
        if not change(rows.ADVANCE, addition.advance):
            return False
        for row in addition.results:
            change(rows.ADD_RESULT, row)
        change(rows.ADD_CHECKPOINT, addition.checkpoint)
        for statement, others in addition.others:
            for row in others:
                change(statement, row)
        return True


@attrs.frozen
class BulkImport:
    """A run that is to be taken in.

    Attributes:
        checkpoints: returns its checkpoints, attempt by attempt and the oldest first.
        process: who takes it in.
        lease_seconds: how long a lease would last.
        dialect: how statements are written.
    """

    _workflow_id: str
    _checkpoints: Callable[[], Iterable[CheckpointData]]
    _process: ProcessIdentity
    _lease_seconds: float
    _dialect: Dialect
    _token: str = attrs.field(init=False, factory=partial(secrets.token_hex, 12))

    def write(self, session: Session) -> None:
        """Write all of it. Done again, after its answer was lost, it finds that it was done.

        Raises:
            RunExistsError: there is such a run.
            RunLockedError: another process is about to begin it.
        """
        if session.execute("SELECT 1 FROM attempts WHERE writer LIKE ?", (f"{self._token}-%",)):
            return
        self._make_way(session)
        database = OneTransaction(session, self._dialect)
        owned: SqlRunWriter | None = None
        for data in self._checkpoints():
            if owned is None or data.attempt != owned.attempt:
                if owned is not None:
                    give_up(session, self._dialect.lock, owned.run, owned.token)
                owned = self._claimed(session, database, data.attempt)
            owned.save(data)
        if owned is not None:
            give_up(session, self._dialect.lock, owned.run, owned.token)

    def _make_way(self, session: Session) -> None:
        """Remove a run under which nothing was ever saved."""
        select = f"SELECT run, writer FROM runs WHERE workflow_id = ?{self._dialect.lock}"  # noqa: S608
        for run, writer in session.execute(select, (id_text(self._workflow_id),)):
            if session.execute("SELECT 1 FROM attempts WHERE run = ? AND begun_at IS NOT NULL LIMIT 1", (run,)):
                raise RunExistsError(self._workflow_id)
            if writer and (owner := live_owner(session, run)) is not None:
                raise RunLockedError(self._workflow_id, holder=str(owner))
            session.change("DELETE FROM runs WHERE run = ?", (run,))

    def _claimed(self, session: Session, database: OneTransaction, attempt: int) -> SqlRunWriter:
        key = id_text(self._workflow_id)
        writer = f"{self._token}-{attempt}"
        claim = Claim(self._workflow_id, key, writer, self._process, self._lease_seconds, at_least=attempt)
        claim.make(session, self._dialect.lock)
        image = open_image(session, self._workflow_id, key)
        assert image is not None, "it was claimed just now"
        image.read_results(session, self._not_read)
        image.blobs = {digest for (digest,) in session.execute(rows.NAMED_BLOBS, (image.run,))}
        return SqlRunWriter(database, image, attempt=attempt, token=writer, fetch=self._not_read)

    def _not_read(self, digest: str, size: int) -> bytes:
        raise RuntimeError(f"the large value {digest} of {size} bytes is not to be read before it is there")
