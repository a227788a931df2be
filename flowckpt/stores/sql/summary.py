"""What the row of a run says of its newest checkpoint, so that a list need not read any other table."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from datetime import datetime

from flowckpt.core.codec import decode, dumps
from flowckpt.core.records import Status
from flowckpt.core.records.listing import RunInfo
from flowckpt.errors import CheckpointCorruptedError, DecodingError
from flowckpt.stores.base import Finding, RunSurvey
from flowckpt.stores.sql.database import Row, Session
from flowckpt.stores.sql.image import checkpoint_rows, lineage
from flowckpt.stores.sql.rows import ADD_TAG, OWNER_COLUMNS, holder_of, id_text, moment_of, name_of, sql_time, tag_rows

_log = logging.getLogger("flowckpt")

LISTED = (
    "r.workflow_id, r.workflow_name, r.status, c.attempt, r.started_at, r.updated_at, r.steps, "
    f"CAST(r.metadata AS TEXT), {OWNER_COLUMNS}"
)
"""The columns that `info_of` takes, of `runs r`, `checkpoints c` and `attempts a`."""

_LIST = f"""
SELECT {LISTED}
FROM runs r
JOIN checkpoints c ON c.run = r.run AND c.sequence = r.latest_sequence
LEFT JOIN attempts a ON a.writer = r.writer
"""  # noqa: S608 - constants


_PAGE = "ORDER BY r.started_at DESC, r.workflow_id DESC LIMIT ?"


def run_infos(session: Session, key: str | None = None) -> list[RunInfo]:
    """Return the runs as a list shows them, the one started last first.

    Args:
        session: the transaction.
        key: one run's id as the column holds it; None for all.
    """
    if key is None:
        found = session.execute(f"{_LIST}ORDER BY r.started_at DESC")
    else:
        found = session.execute(f"{_LIST}WHERE r.workflow_id = ?", (key,))
    now = session.now()
    if key is not None:
        return [info_of(row, now) for row in found]
    infos, left_out = readable(found, now)
    tell_left_out(left_out)
    return infos


def tell_left_out(findings: Sequence[Finding]) -> None:
    """Tell the log which runs a list leaves out.

    Args:
        findings: the runs.
    """
    for finding in findings:
        _log.warning("a run is left out of the list: %s ('flowckpt store check' says more)", finding.detail)


def survey(session: Session) -> RunSurvey:
    """Return all runs, the one started last first, and those whose row is damaged.

    Args:
        session: the transaction.
    """
    return RunSurvey(*readable(session.execute(f"{_LIST}ORDER BY r.started_at DESC"), session.now()))


def unreadable(session: Session, after: int, limit: int) -> tuple[list[Finding], int | None]:
    """Return the runs of a page whose row is damaged, and behind which key the next page begins; None for none.

    Args:
        session: the transaction.
        after: go on behind this key of a run.
        limit: how many rows to look at.
    """
    keys = session.execute("SELECT run FROM runs WHERE run > ? ORDER BY run LIMIT ?", (after, limit))
    if not keys:
        return [], None
    last = keys[-1][0]
    rows = session.execute(f"{_LIST}WHERE r.run > ? AND r.run <= ?", (after, last))
    return readable(rows, session.now())[1], last


def readable(rows: Sequence[Row], now: datetime) -> tuple[list[RunInfo], list[Finding]]:
    """Return the runs of some rows, and what is said of those that are damaged.

    Args:
        rows: the values of `LISTED`, a row each.
        now: the time by the database's clock.
    """
    infos, left_out = [], []
    for row in rows:
        try:
            infos.append(info_of(row, now))
        except CheckpointCorruptedError as error:
            left_out.append(Finding(error.workflow_id, "corrupt", error.message))
    return infos, left_out


def info_of(row: Row, now: datetime) -> RunInfo:
    """Return a run as a list shows it.

    Args:
        row: the values of `LISTED`.
        now: the time by the database's clock.

    Raises:
        CheckpointCorruptedError: they are none of a run.
    """
    workflow_id, workflow_name, status, attempt, started_at, updated_at, steps, metadata, *owner = row
    holder = holder_of(tuple(owner))
    try:
        return RunInfo(
            name_of(workflow_id),
            name_of(workflow_name),
            Status(status),
            attempt,
            moment_of(started_at),
            moment_of(updated_at),
            steps,
            decode(json.loads(metadata)),
        ).with_owner(holder.owner if holder is not None and holder.holds(now) else None)
    except (DecodingError, ValueError, TypeError) as error:
        raise CheckpointCorruptedError(name_of(workflow_id), location="runs", detail=str(error)) from error


def page_of_runs(session: Session, before: RunInfo | None, limit: int) -> tuple[list[RunInfo], bool]:
    """Return runs in the order in which they were started, the last one first, and whether there may be more.

    Args:
        session: the transaction.
        before: go on behind this run; None to begin.
        limit: how many rows to look at; a damaged one is left out.
    """
    if before is None:
        found = session.execute(f"{_LIST}WHERE r.started_at IS NOT NULL {_PAGE}", (limit,))
    else:
        moment, key = sql_time(before.started_at), id_text(before.workflow_id)
        # The first condition is for the index; one on the pair of columns would need the run's key, which may be gone.
        place = "WHERE r.started_at <= ? AND (r.started_at < ? OR r.workflow_id < ?) "
        found = session.execute(f"{_LIST}{place}{_PAGE}", (moment, moment, key, limit))
    return readable(found, session.now())[0], len(found) == limit


def describe_again(session: Session, run: int, workflow_id: str) -> None:
    """Write into the row of a run what its newest checkpoint says, after others were deleted.

    Args:
        session: the transaction.
        run: the run's key.
        workflow_id: the run, for errors.
    """
    head_attempt = session.execute("SELECT head_attempt FROM runs WHERE run = ?", (run,))[0][0]
    links = lineage(session, run, head_attempt, workflow_id)
    columns = "sequence, attempt, steps, status, saved_at, CAST(document AS TEXT)"
    found = checkpoint_rows(session, run, links, columns, is_newest_only=True)
    if not found:
        session.change("UPDATE runs SET latest_sequence = NULL, status = NULL, steps = 0 WHERE run = ?", (run,))
        return
    sequence, attempt, steps, status, saved_at, document = found[0]
    heads = session.execute("SELECT CAST(head AS TEXT) FROM attempts WHERE run = ? AND attempt = ?", (run, attempt))
    said = {**json.loads(heads[0][0]), **json.loads(document)}
    session.change(
        "UPDATE runs SET latest_sequence = ?, status = ?, steps = ?, updated_at = ?, workflow_name = ?, metadata = ? "
        "WHERE run = ?",
        (sequence, status, steps, saved_at, id_text(said["workflow_name"]), dumps(said["metadata"]), run),
    )
    for row in tag_rows(decode(said["metadata"]), run):
        session.change(ADD_TAG, row)
