"""Becoming the owner of a run and ceasing to be: what is written for it, each in one transaction.

The attempt is the fencing number, and `runs.writer` is the fence: a random name of the newest owner. Every save changes
the row of the run where the name is still the saver's, in the transaction that adds its rows; so whoever has written a
new name there has fenced all who came before, in whatever state they are.

A claim also looks at the version of the schema. A program that had the database open while a newer one brought it forward
would go on without a word, and its runs would have no rows in what is new.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import attrs

from flowckpt.core.system.process import ProcessIdentity
from flowckpt.errors import RunLockedError
from flowckpt.stores.sql.database import Session
from flowckpt.stores.sql.migrations import NEWEST_APPLIED, check_version_since_opened
from flowckpt.stores.sql.rows import insertion, live_owner, sql_time

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
        steal: whether to take it from a living owner.
        instead_of: the claimer's own former name, which ends with this claim; empty where it has none.
    """

    workflow_id: str
    key: str
    writer: str
    process: ProcessIdentity
    lease_seconds: float
    at_least: int = 1
    steal: bool = False
    instead_of: str = ""

    def make(self, session: Session, lock: str) -> tuple[int, int]:
        """Write the claim, and return the run's key and the attempt.

        Args:
            session: the transaction.
            lock: what keeps a selected row from others.

        Raises:
            RunLockedError: the run has a living owner.
            UnsupportedSchemaError: a newer program has brought the database forward since it was opened.
        """
        select = f"SELECT run, newest_attempt, writer, ({NEWEST_APPLIED}) FROM runs WHERE workflow_id = ?{lock}"  # noqa: S608
        insert = "INSERT INTO runs (workflow_id) VALUES (?) ON CONFLICT (workflow_id) DO NOTHING"
        while not (rows := session.execute(select, (self.key,))):  # others may give it up unwritten, again and again
            session.change(insert, (self.key,))
        run, newest, writer, version = rows[0]
        if writer == self.writer:  # done before, and the answer was lost
            return run, newest
        check_version_since_opened(version)
        if not self.steal and writer and (owner := live_owner(session, run)) is not None:
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

    The one that it was stolen from is its owner again then, if it has not given it up as well.

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
