"""Owned runs of an SQL store: claimed, released, cleared, imported, kept small."""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import attrs

from flowckpt.core.records import CheckpointData
from flowckpt.core.records.listing import RunInfo
from flowckpt.core.records.wait import Signal
from flowckpt.core.system.process import ProcessIdentity, current_process
from flowckpt.errors import CheckpointNotFoundError, DiskFullError, FencedError, RunExistsError
from flowckpt.stores.base import Lease
from flowckpt.stores.leases import LeaseTimes
from flowckpt.stores.queries import Compacted, Repaired
from flowckpt.stores.runs_base import Claimed
from flowckpt.stores.sql import repair, rows, signals
from flowckpt.stores.sql.database import Addition, Completion, Database, Item, Outcome, Session, Work, unwrap_outcome
from flowckpt.stores.sql.image import RunImage, open_image, read_page, read_run_info
from flowckpt.stores.sql.layout import MIGRATIONS, NEWEST_APPLIED, Dialect, check_version
from flowckpt.stores.sql.reader import SqlReader
from flowckpt.stores.sql.rows import (
    DROP_LIVE_NOTE,
    NAMED_BLOBS,
    check_unowned,
    decode_id,
    encode_id,
    fence_all,
    find_run_key,
    format_time,
    insert_into,
    live_note_name,
)
from flowckpt.stores.sql.run_writer import SqlRunWriter

_RUNS_AT_ONCE = 50
"""Maximum runs removed in one transaction, because other processes wait for it."""

_NAMED = re.compile(r'"([0-9a-f]{64})"')
_ROW_BYTES = 200
"""Approximate bytes of a row besides its documents."""

_TEXTS = (
    "SELECT CAST(document AS TEXT) FROM step_results WHERE run = ?",
    "SELECT CAST(document AS TEXT) FROM checkpoints WHERE run = ? AND document IS NOT NULL",
    "SELECT CAST(head AS TEXT) FROM attempts WHERE run = ? AND head IS NOT NULL",
)
"""All records that can refer to a large value."""


class SqlRuns(SqlReader):
    """The runs of an SQL store, including those that this process owns.

    Args:
        database: the database.
        lease_seconds: how long a run stays owned without a heartbeat of its owner.

    Attributes:
        owned: the runs that this process owns.
    """

    def __init__(self, database: Database, *, lease_seconds: float) -> None:
        self._times = LeaseTimes(lease_seconds)
        super().__init__(database, self._times.interval)
        self._process = current_process
        self._noted: set[str] = set()  # the owners that have written a live note

    def close(self) -> None:
        """Release every run that this process owns, and close the database."""
        super().close()
        self.database.close()

    def _claim(self, workflow_id: str, *, take_over: bool, at_least: int) -> Claimed[SqlRunWriter]:
        previous = self.owned.get(workflow_id)
        instead_of = previous.token if previous is not None and previous.is_mine else ""
        claim = self._make_claim(workflow_id, at_least=at_least, take_over=take_over, instead_of=instead_of)
        run, attempt = self.database.write(workflow_id, "acquire", claim.write)
        if previous is not None:
            self.owned.pop(workflow_id).close()
        fetch = self._make_fetch(workflow_id)

        def read(session: Session, image: RunImage) -> tuple[RunImage, CheckpointData | None]:
            image.read_results(session, fetch)
            image.blobs = {digest for (digest,) in session.execute(NAMED_BLOBS, (image.run,))}
            return image, image.load_newest(session, fetch)

        with self._released_on_error(claim, run):
            loaded = self._read_image(workflow_id, read)
            if loaded is None:
                raise CheckpointNotFoundError(workflow_id, detail="it was cleared")
        image, latest = loaded
        return self._make_writer(claim, image, attempt), latest, ()

    def _claim_next(self, writer: SqlRunWriter) -> SqlRunWriter:
        workflow_id = writer.workflow_id
        claim = self._make_claim(workflow_id, take_over=True, instead_of=writer.token, after=writer.attempt)
        run, attempt = self.database.write(workflow_id, "acquire", claim.write)
        self.owned.pop(workflow_id).close()
        with self._released_on_error(claim, run):
            image = self._read_image(workflow_id, lambda _, image: image)
            if image is None:
                raise FencedError(workflow_id, attempt=attempt, newest_attempt=None)
        return self._make_writer(claim, image, attempt)

    def _make_writer(self, claim: Claim, image: RunImage, attempt: int) -> SqlRunWriter:
        fetch = self._make_fetch(claim.workflow_id)
        return SqlRunWriter(self.database, image, attempt=attempt, token=claim.writer, fetch=fetch)

    @contextmanager
    def _released_on_error(self, claim: Claim, run: int) -> Iterator[None]:
        """Release a claimed run if the block fails."""
        try:
            yield
        except BaseException:
            self.database.write(claim.workflow_id, "release", partial(release_run, run=run, writer=claim.writer))
            raise

    def _make_claim(self, workflow_id: str, **options: Any) -> Claim:
        writer, process = secrets.token_hex(16), self._process()
        return Claim(workflow_id, writer, process, self._times.seconds, **options)

    def acquire_new(self, workflow_id: str) -> Lease | None:
        """Claim a new run; return None if it exists, because it must be read."""
        if not self.database.dialect.claim_new:
            return None
        work, complete = self._make_new_claim(workflow_id)
        lease: Lease | None = complete(self.database.write_now(work))
        return lease

    def acquire_new_later(self, workflow_id: str) -> asyncio.Future[Lease | None]:
        """Claim a new run with the next group; None if it exists."""
        return self.database.write_later(*self._make_new_claim(workflow_id))

    def _make_new_claim(self, workflow_id: str) -> tuple[Work, Completion]:
        """Return the claim of a new run, and the function that handles its outcome."""
        self._prepare_leases()
        claim = self._make_claim(workflow_id)
        dialect = self.database.dialect

        def work(session: Session) -> list[tuple[int, int]]:
            writers = session.execute("SELECT writer FROM runs WHERE workflow_id = ?", (claim.key,))
            return [claim.write(session)] if writers in ([], [(claim.writer,)]) else []

        def complete(outcome: Outcome) -> Lease | None:
            claimed = unwrap_outcome(outcome)
            if not claimed:
                return None
            run, attempt = claimed[0]
            writer = self._make_writer(claim, RunImage(workflow_id, run, []), attempt)
            return self._register_writer(writer, None, ())

        statements = [(dialect.claim_new, claim.values_of_new_run)] if dialect.claim_new else []
        return Work(workflow_id, "acquire", work, statements), complete

    def save_later(self, workflow_id: str, data: CheckpointData) -> asyncio.Future[None] | None:
        """Save a checkpoint with the next group."""
        writer = self.owned.get(workflow_id)
        return None if writer is None else writer.save_later(data)

    def release_later(self, workflow_id: str, token: str) -> asyncio.Future[None] | None:
        """Release a run with the next group if the owner with that token still owns it."""
        writer = self.owned.get(workflow_id)
        if writer is None or token not in ("", writer.token) or not writer.is_mine:
            return None
        writer.close()
        released = self.database.write_later(self._make_release(writer), unwrap_outcome)
        del self.owned[workflow_id]
        return released

    def _make_release(self, writer: SqlRunWriter) -> Work:
        dialect, run, token = self.database.dialect, writer.run, writer.token
        statements: list[tuple[str, tuple[Any, ...]]] = []
        if dialect.release and writer.is_adopted:
            statements.append((dialect.release, (run, token, run, token)))
        if token in self._noted and statements:
            self._noted.discard(token)
            statements.append((rows.DROP_LIVE_NOTE, (rows.live_note_name(run),)))
        return Work(writer.workflow_id, "release", partial(release_run, run=run, writer=token), statements)

    def renew_leases(self) -> bool:
        """Renew the leases of all owned runs, report lost ones, and return whether any are owned."""
        writers = {writer.token: writer for writer in [*self.owned.values()] if writer.is_mine}
        if writers:
            seconds = self._times.seconds
            lost = self.database.write("", "renew", lambda session: renew_rows(session, [*writers], seconds))
            for writer in map(writers.__getitem__, lost):
                if self.owned.get(writer.workflow_id) is writer:  # not released or cleared by this process meanwhile
                    writer.report_loss()
        return bool(writers)

    def _give_up(self, writer: SqlRunWriter) -> None:
        writer.close()
        if writer.is_mine:
            self.database.write_now(self._make_release(writer))

    def share_values(self, source_id: str, workflow_id: str, sizes: Mapping[str, int]) -> None:
        """Share large values of another run with an owned run, without a copy."""
        writer = self.owned.get(workflow_id)
        if writer is not None:
            writer.share_values_from(source_id, sizes)

    def clear(self, workflow_id: str) -> None:
        """Remove a run with all its rows."""
        owned = self.owned.get(workflow_id)
        mine = owned.token if owned is not None and owned.is_mine else ""
        self.database.write(workflow_id, "clear", lambda session: clear_run(session, workflow_id, mine=mine))
        if owned is not None:
            self.owned.pop(workflow_id).close()

    def receive_run(self, workflow_id: str, checkpoints: Callable[[], Iterable[CheckpointData]]) -> None:
        """Add a whole run, in one transaction."""
        arrival = BulkImport(workflow_id, checkpoints, self._process(), self._times.seconds)
        self.database.write(workflow_id, "receive", arrival.write)

    def repair(self, workflow_id: str) -> Repaired:
        """Set aside the damaged parts of a run, and keep the rest, in one transaction."""
        self._refuse_own_run(workflow_id)
        return self.database.write(
            workflow_id, "repair", lambda session: repair.repair_run(session, workflow_id, self.place)
        )

    def send_signal(self, workflow_id: str, signal: Signal) -> bool:
        """Add a message for a run, which another process may own; return whether it is new."""
        return self.database.write(workflow_id, "signal", lambda session: signals.send(session, workflow_id, signal))

    def signals_later(self, workflow_id: str) -> asyncio.Future[list[Signal]] | None:
        """Read the messages for an owned run with the next group; each run polls about once a second."""
        writer = self.owned.get(workflow_id)
        if writer is None or not writer.is_mine:
            return None
        query = signals.SELECT_SIGNALS, (encode_id(workflow_id),)
        work = Work(workflow_id, "read", lambda session: session.execute(*query), [query])
        return self.database.write_later(work, lambda outcome: signals.parse(workflow_id, unwrap_outcome(outcome)))

    def remove_signals(self, workflow_id: str, signal_ids: Collection[str]) -> None:
        """Remove messages for a run."""
        if signal_ids:
            self.database.write(workflow_id, "signal", lambda session: signals.remove(session, workflow_id, signal_ids))

    # --- the live note ---------------------------------------------------------------------------------------------

    def note_live(self, writer: SqlRunWriter, content: bytes) -> None:
        """Replace the live note of an owned run."""
        self.note_live_all({writer.workflow_id: content})

    def note_live_all(self, notes: Mapping[str, bytes]) -> None:
        """Replace the live notes of the runs that this process owns, in one transaction."""
        writers = [(self.owned.get(workflow_id), content) for workflow_id, content in notes.items()]
        mine = {writer: content for writer, content in writers if writer is not None and writer.is_mine}
        if not mine:
            return
        self._noted.update(writer.token for writer in mine)
        names = [rows.live_note_name(writer.run) for writer in mine]

        def work(session: Session) -> None:
            session.execute("SET LOCAL synchronous_commit TO off")  # only PostgreSQL keeps live notes in a table
            session.change(rows.REPLACE_LIVE_NOTES, (names, [*mine.values()]))

        self.database.write(next(iter(notes)) if len(notes) == 1 else "", "note", work)

    # --- the index of results --------------------------------------------------------------------------------------

    def read_index(self, name: str) -> bytes | None:
        """Return a part of the index of results."""
        statement = "SELECT content FROM result_index WHERE name = ?"
        contents = self.database.read("", "read the index", lambda session: session.execute(statement, (name,)))
        return bytes(contents[0][0]) if contents else None

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

        def work(session: Session) -> bool:
            run = find_run_key(session, workflow_id, is_locked=True)
            if run is not None:
                session.change(
                    "INSERT INTO pins (run, sequence, pinned_at) VALUES (?, ?, ?) ON CONFLICT (run, sequence) DO NOTHING",
                    (run, sequence, format_time(session.now())),
                )
            return run is not None

        if not self.database.write(workflow_id, "pin", work):
            raise CheckpointNotFoundError(workflow_id)

    def unpin(self, workflow_id: str, sequence: int) -> None:
        """Remove a pin."""
        statement = "DELETE FROM pins WHERE sequence = ? AND run IN (SELECT run FROM runs WHERE workflow_id = ?)"
        key = encode_id(workflow_id)
        self.database.write(workflow_id, "unpin", lambda session: session.change(statement, (sequence, key)))

    def pinned(self, workflow_id: str) -> frozenset[int]:
        """Return the pinned sequences."""
        statement = "SELECT p.sequence FROM pins p JOIN runs r ON r.run = p.run WHERE r.workflow_id = ?"
        return frozenset(sequence for (sequence,) in self._query(workflow_id, statement))

    # --- one run ---------------------------------------------------------------------------------------------------

    def compactable(self, after: str, limit: int) -> list[str]:
        """Return the runs with deleted checkpoints, in the order of their keys."""

        def read(session: Session) -> list[str]:
            start = find_run_key(session, after) if after else None
            keys = session.execute(
                "SELECT workflow_id FROM runs WHERE run IN "
                "(SELECT DISTINCT run FROM checkpoints WHERE deleted_at IS NOT NULL AND run > ? ORDER BY run LIMIT ?) "
                "ORDER BY run",
                (start or 0, limit),
            )
            return [decode_id(key) for (key,) in keys]

        return self.database.read("", "list", read)

    def compact(self, workflow_id: str, *, is_forced: bool = False) -> Compacted:
        """Remove the rows of deleted checkpoints in small groups, then the large values that no row refers to.

        Previous owners are fenced permanently.
        """
        self._refuse_own_run(workflow_id)

        def work(session: Session) -> tuple[int, bool]:
            run = find_run_key(session, workflow_id, is_locked=True)
            if run is None:
                return 0, False
            check_unowned(session, run, workflow_id)
            fence_all(session, run)
            removed = session.change(rows.REMOVE_DELETED, (run, run, rows.DELETED_AT_ONCE))
            is_more = removed == rows.DELETED_AT_ONCE
            return removed * _ROW_BYTES + (0 if is_more else _remove_unnamed(session, run)), is_more

        total, is_more = 0, True
        while is_more:
            freed, is_more = self.database.write(workflow_id, "compact", work)
            total += freed
        return Compacted(total > 0, total)

    def total_bytes(self) -> int:
        """Return the size of the database in bytes, including indexes."""
        return self.database.total_bytes()

    def stored_bytes(self, workflow_ids: Sequence[str]) -> list[int]:
        """Return the approximate size of each run in bytes."""
        # Not the sizes of checkpoints: results stay when the checkpoint that added them is removed.
        rows_of = ", ".join(
            f"COALESCE((SELECT sum(COALESCE(length(CAST(t.{document} AS TEXT)), 0) + {_ROW_BYTES}) "  # noqa: S608
            f"FROM {table} t WHERE t.run = r.run), 0)"
            for table, document in (("step_results", "document"), ("checkpoints", "document"), ("attempts", "head"))
        )
        values = "COALESCE((SELECT sum(size) FROM blobs b WHERE b.run = r.run), 0)"
        statement = f"SELECT {rows_of}, {values} FROM runs r WHERE r.workflow_id = ?"  # noqa: S608 - constants

        def read(session: Session) -> list[int]:
            sizes = [session.execute(statement, (encode_id(each),)) for each in workflow_ids]
            return [sum(map(int, size[0])) if size else 0 for size in sizes]

        return self.database.read("", "read", read)

    # --- many runs -------------------------------------------------------------------------------------------------

    def page_runs(self, before: RunInfo | None, limit: int) -> list[RunInfo]:
        """Return runs, most recently started first."""
        while True:
            page, is_more = self.database.read("", "list", partial(read_page, before=before, limit=limit))
            if page or not is_more:
                return page
            limit *= 2  # a page of damaged runs: read more

    def tidy(self) -> None:
        """Return free pages to the system if the database can do so cheaply."""
        self.database.release_space()

    def clear_unchanged(self, runs: Sequence[RunInfo]) -> list[str]:
        """Remove the runs that have neither an owner nor a pin and are unchanged since they were listed."""
        removed: list[str] = []
        for start in range(0, len(runs), _RUNS_AT_ONCE):
            part = [each for each in runs[start : start + _RUNS_AT_ONCE] if each.workflow_id not in self.owned]
            try:
                removed += self._clear_some(part)
            except DiskFullError:  # the journal for all is too large: each removed run frees space for the next
                for info in sorted(part, key=lambda each: each.steps):
                    removed += self._clear_some([info])
        return removed

    def _clear_some(self, runs: Sequence[RunInfo]) -> list[str]:
        def work(session: Session) -> list[str]:
            removed = []
            # Locked in one order, so that two processes that prune at the same time do not deadlock.
            for info in sorted(runs, key=lambda each: each.workflow_id):
                run = find_run_key(session, info.workflow_id, is_locked=True)
                if run is None or session.execute("SELECT 1 FROM pins WHERE run = ? LIMIT 1", (run,)):
                    continue
                current = read_run_info(session, info.workflow_id)
                if current is not None and current.owner is None and current == info:
                    _delete_run(session, run)
                    removed.append(info.workflow_id)
            return removed

        return self.database.write("", "prune", work) if runs else []


def _remove_unnamed(session: Session, run: int) -> int:
    """Remove the large values that no row of a run refers to; return their total bytes."""
    values = session.execute("SELECT digest, size FROM blobs WHERE run = ?", (run,))
    if not values:
        return 0
    named: set[str] = set()
    for statement in _TEXTS:
        for (text,) in session.execute(statement, (run,)):
            named.update(_NAMED.findall(text))
    freed = 0
    for digest, size in values:
        if digest not in named:
            session.change("DELETE FROM blobs WHERE run = ? AND digest = ?", (run, digest))
            freed += size
    return freed


# Claim and release of a run, each in one transaction.
#
# The attempt is the fencing token, and `runs.writer` is the fence: a random name of the newest owner. Every save
# updates the row of the run only if the name is still its own, in the transaction that adds its rows. So a process that
# writes a new name there fences all previous owners, whatever they are doing.
#
# A claim also checks the version of the schema. Otherwise a program that had the database open while a newer one
# migrated it would continue, and its runs would lack the rows of new tables.

_ADD_ATTEMPT = insert_into(
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
        writer: the random name of the claimer.
        process: the claimer's process.
        lease_seconds: the duration of its lease.
        at_least: the lowest allowed number of the attempt.
        take_over: whether to take it from a live owner.
        instead_of: the claimer's own previous name, which this claim replaces; may be empty.
        after: the claimer's own attempt, which must be the newest; 0 for any.
    """

    workflow_id: str
    writer: str
    process: ProcessIdentity
    lease_seconds: float
    at_least: int = 1
    take_over: bool = False
    instead_of: str = ""
    after: int = 0

    @property
    def key(self) -> str:
        """The run's id, as the column holds it."""
        return encode_id(self.workflow_id)

    @property
    def values_of_new_run(self) -> tuple[Any, ...]:
        """The values of `Dialect.claim_new`."""
        process = self.process
        return (
            *(self.key, self.at_least, self.writer, len(MIGRATIONS)),
            *(self.at_least, self.writer, process.host, process.boot_id, process.pid, process.start_time),
            *(self.lease_seconds, self.at_least),
        )

    def write(self, session: Session) -> tuple[int, int]:
        """Write the claim, and return the run's key and the attempt.

        Raises:
            RunLockedError: the run has a live owner.
            FencedError: `after` is not the newest attempt.
            UnsupportedSchemaError: a newer program has migrated the database since it was opened.
        """
        lock = session.dialect.lock
        select = f"SELECT run, newest_attempt, writer, ({NEWEST_APPLIED}) FROM runs WHERE workflow_id = ?{lock}"  # noqa: S608
        insert = "INSERT INTO runs (workflow_id) VALUES (?) ON CONFLICT (workflow_id) DO NOTHING"
        while not (found := session.execute(select, (self.key,))):  # others may repeatedly give it up without a write
            if self.after:
                raise FencedError(self.workflow_id, attempt=self.after, newest_attempt=None)
            session.change(insert, (self.key,))
        run, newest, writer, version = found[0]
        if writer == self.writer:  # it was done, but the answer was lost
            return run, newest
        if self.after and newest != self.after:
            raise FencedError(self.workflow_id, attempt=self.after, newest_attempt=newest)
        check_version(version or 0, is_open=True)
        if not self.take_over and writer:
            check_unowned(session, run, self.workflow_id)
        now = session.now()
        moment = format_time(now)
        if self.instead_of:
            session.change("UPDATE attempts SET released_at = ? WHERE writer = ?", (moment, self.instead_of))
        attempt = max(newest + 1, self.at_least)
        process = self.process
        session.change(
            _ADD_ATTEMPT,
            (
                *(run, attempt, self.writer, process.host, process.boot_id, process.pid, process.start_time),
                *(moment, moment, format_lease_end(now, self.lease_seconds)),
            ),
        )
        session.change("UPDATE runs SET newest_attempt = ?, writer = ? WHERE run = ?", (attempt, self.writer, run))
        return run, attempt


def format_lease_end(now: datetime, seconds: float) -> str:
    """Return the end of a lease that starts now, in the form of the column."""
    return format_time(now + timedelta(seconds=seconds))


def release_run(session: Session, run: int, writer: str) -> None:
    """Release a run; a claim without a write leaves no trace.

    Then the previous owner owns the run again, unless it has released it, too.

    Args:
        session: the transaction.
        run: the run's key.
        writer: the name of the owner.
    """
    runs = session.execute(f"SELECT writer FROM runs WHERE run = ?{session.dialect.lock}", (run,))  # noqa: S608
    mine = session.execute("SELECT attempt, begun_at FROM attempts WHERE run = ? AND writer = ?", (run, writer))
    if not runs or not mine:
        return
    attempt, begun_at = mine[0]
    if begun_at is not None:
        moment = format_time(session.now())
        session.change("UPDATE attempts SET released_at = ? WHERE run = ? AND attempt = ?", (moment, run, attempt))
        session.change("UPDATE runs SET writer = '' WHERE run = ? AND writer = ?", (run, writer))
        return
    session.change("DELETE FROM attempts WHERE run = ? AND attempt = ?", (run, attempt))
    previous = session.execute(
        "SELECT attempt, writer, released_at FROM attempts WHERE run = ? ORDER BY attempt DESC LIMIT 1", (run,)
    )
    if not previous:
        _delete_run(session, run)
    elif runs[0][0] == writer:
        before, name, released_at = previous[0]
        session.change(
            "UPDATE runs SET newest_attempt = ?, writer = ? WHERE run = ?",
            (before, name if released_at is None else "", run),
        )


def clear_run(session: Session, workflow_id: str, *, mine: str) -> None:
    """Remove a run with all its rows.

    Args:
        session: the transaction.
        workflow_id: the run.
        mine: the caller's name if it owns the run; otherwise empty.

    Raises:
        RunLockedError: the run has another live owner.
    """
    statement = f"SELECT run, writer FROM runs WHERE workflow_id = ?{session.dialect.lock}"  # noqa: S608
    for run, writer in session.execute(statement, (encode_id(workflow_id),)):
        if writer not in ("", mine):
            check_unowned(session, run, workflow_id)
        _delete_run(session, run)


def _delete_run(session: Session, run: int) -> None:
    session.change("DELETE FROM runs WHERE run = ?", (run,))
    session.change(DROP_LIVE_NOTE, (live_note_name(run),))


def renew_rows(session: Session, writers: list[str], seconds: float) -> list[str]:
    """Renew leases, and return the lost ones: the run was removed, or a later attempt has saved to it.

    A later attempt that has saved nothing may still fail and release the run.

    Args:
        session: the transaction.
        writers: the names of the owners.
        seconds: the duration of a lease.
    """
    now = session.now()
    values = (format_time(now), format_lease_end(now, seconds))
    renewal = "UPDATE attempts SET heartbeat_at = ?, lease_expires_at = ? WHERE writer = ? AND released_at IS NULL"
    for writer in writers:
        session.change(renewal, (*values, writer))
    return [writer for writer in writers if not session.execute(_STILL_NEWEST, (writer,))]


# Receiving a whole run: all its saves in one transaction.

T = TypeVar("T")


class OneTransaction(Database):
    """A database whose operations are part of an open transaction.

    Args:
        session: the transaction.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect."""
        return self._session.dialect

    def read(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Read."""
        return work(self._session)

    def write(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Write."""
        return work(self._session)

    def write_now(self, item: Item) -> Any:
        """Write a save or other work."""
        return item.do(self._session) if isinstance(item, Work) else self.write_once(item)

    def write_once(self, addition: Addition) -> bool:
        """Write the rows of a save; within one transaction, no outcome is unknown."""
        return rows.add_rows(self._session, addition)


@attrs.frozen
class BulkImport:
    """A run to import.

    Attributes:
        checkpoints: returns its checkpoints, by attempt, oldest first.
        process: the importing process.
        lease_seconds: the duration of a lease.
    """

    _workflow_id: str
    _checkpoints: Callable[[], Iterable[CheckpointData]]
    _process: ProcessIdentity
    _lease_seconds: float
    _token: str = attrs.field(init=False, factory=partial(secrets.token_hex, 12))

    def write(self, session: Session) -> None:
        """Write the whole run. If repeated because the answer was lost, it does nothing.

        Raises:
            RunExistsError: the run exists.
            RunLockedError: another process is about to start it.
        """
        if session.execute("SELECT 1 FROM attempts WHERE writer LIKE ?", (f"{self._token}-%",)):
            return
        self._remove_empty(session)
        database = OneTransaction(session)
        for attempt, checkpoints in itertools.groupby(self._checkpoints(), lambda data: data.attempt):
            writer = self._claim_attempt(session, database, attempt)
            for data in checkpoints:
                writer.save(data)
            release_run(session, writer.run, writer.token)

    def _remove_empty(self, session: Session) -> None:
        """Remove a run without saves."""
        run = find_run_key(session, self._workflow_id, is_locked=True)
        if run is not None:  # locked, so it stays the same until the commit
            if session.execute("SELECT 1 FROM attempts WHERE run = ? AND begun_at IS NOT NULL LIMIT 1", (run,)):
                raise RunExistsError(self._workflow_id)
            clear_run(session, self._workflow_id, mine="")

    def _claim_attempt(self, session: Session, database: OneTransaction, attempt: int) -> SqlRunWriter:
        writer = f"{self._token}-{attempt}"
        claim = Claim(self._workflow_id, writer, self._process, self._lease_seconds, at_least=attempt)
        claim.write(session)
        image = open_image(session, self._workflow_id)
        assert image is not None, "it was just claimed"
        image.read_results(session, self._refuse_read)
        image.blobs = {digest for (digest,) in session.execute(rows.NAMED_BLOBS, (image.run,))}
        return SqlRunWriter(database, image, attempt=attempt, token=writer, fetch=self._refuse_read)

    def _refuse_read(self, digest: str, size: int) -> bytes:
        raise RuntimeError(f"the large value {digest} of {size} bytes is not to be read before it is there")
