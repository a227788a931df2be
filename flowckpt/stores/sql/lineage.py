"""Which rows are a run: its attempts, each cut where the next one goes on from."""

from __future__ import annotations

import attrs

from flowckpt.checkpoint.selection import EVERY, Selection
from flowckpt.errors import CheckpointCorruptedError
from flowckpt.stores.sql.database import Row, Session

_ENDLESS = 2**63 - 1
PLACE = "sequence, attempt, steps"


@attrs.frozen
class Link:
    """The part of an attempt that belongs to a run.

    Attributes:
        attempt: the attempt.
        upto_sequence: its last checkpoint that belongs to the run.
        upto_position: its last result that does.
    """

    attempt: int
    upto_sequence: int = _ENDLESS
    upto_position: int = _ENDLESS


def lineage(session: Session, run: int, attempt: int | None, workflow_id: str) -> list[Link]:
    """Return the parts that make up a run as an attempt left it, oldest first.

    Args:
        session: the transaction.
        run: the run's key.
        attempt: the attempt; None where none has written yet.
        workflow_id: the run, for errors.

    Raises:
        CheckpointCorruptedError: an attempt is missing, or they go on from one another in a circle.
    """
    if attempt is None:
        return []
    rows = session.execute(
        "SELECT attempt, continues_attempt, continues_sequence, continues_results FROM attempts "
        "WHERE run = ? AND attempt <= ? AND begun_at IS NOT NULL",
        (run, attempt),
    )
    attempts = {row[0]: row[1:] for row in rows}
    link = Link(attempt)
    links: list[Link] = []
    while True:
        if link.attempt not in attempts or (links and link.attempt >= links[-1].attempt):
            raise CheckpointCorruptedError(
                workflow_id,
                location="attempts",
                detail=f"attempt {link.attempt} is missing or out of order, and a later one continues it",
                remedy="Nothing was changed. Restore the database from a backup.",
            )
        links.append(link)
        continued, sequence, results = attempts[link.attempt]
        if continued is None:
            return links[::-1]
        link = Link(continued, sequence, results)


def last_record(session: Session, run: int, links: list[Link], *, steps: int) -> tuple[int, int, int] | None:
    """Return sequence, attempt and results of the last checkpoint that holds so many results or fewer.

    A deleted one counts: results may have been saved with it.

    Args:
        session: the transaction.
        run: the run's key.
        links: the run's parts.
        steps: the most results that it may hold.
    """
    for link in reversed(links):
        found = session.execute(
            f"SELECT {PLACE} FROM checkpoints WHERE run = ? AND attempt = ? AND sequence <= ? AND steps <= ? "  # noqa: S608
            "ORDER BY sequence DESC LIMIT 1",
            (run, link.attempt, link.upto_sequence, steps),
        )
        if found:
            sequence, attempt, count = found[0]
            return sequence, attempt, count
    return None


def checkpoint_rows(
    session: Session,
    run: int,
    links: list[Link],
    columns: str,
    *,
    checkpoint_id: str | None = None,
    selection: Selection = EVERY,
    is_newest_only: bool = False,
) -> list[Row]:
    """Return columns of the checkpoints of a run that were not deleted, newest first.

    Args:
        session: the transaction.
        run: the run's key.
        links: the run's parts.
        columns: which columns.
        checkpoint_id: only those of this id, as the column holds it.
        selection: only those that it wants.
        is_newest_only: only the newest one.
    """
    found: list[Row] = []
    limit = 1 if is_newest_only else selection.limit
    for link in reversed(links):
        if selection.attempt not in (None, link.attempt):
            continue
        if limit is not None and len(found) >= limit:
            break
        statement = (
            f"SELECT {columns} FROM checkpoints "  # noqa: S608 - the columns are ours
            "WHERE run = ? AND attempt = ? AND sequence <= ? AND deleted_at IS NULL"
        )
        parameters: list[object] = [run, link.attempt, link.upto_sequence]
        if checkpoint_id is not None:
            statement += " AND checkpoint_id = ?"
            parameters.append(checkpoint_id)
        if selection.reason is not None:
            statement += " AND reason = ?"
            parameters.append(selection.reason.value)
        if selection.verified is not None:
            statement += " AND verified = ?"
            parameters.append(selection.verified)
        statement += " ORDER BY sequence DESC"
        if limit is not None:
            statement += " LIMIT ?"
            parameters.append(limit - len(found))
        found += session.execute(statement, parameters)
    return found
