"""The figures of an SQL store: the database adds up, so that a million runs need no memory here.

What no longer counts is counted too, deleted checkpoints are not, and a result counts for the attempt that executed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import date

from flowckpt.core.records import Status
from flowckpt.core.records.result import COMPOSITES
from flowckpt.core.records.statistics import (
    RunStatistics,
    StepStatistics,
    StoreStatistics,
    claims_in_order,
    days_in_order,
    failures_in_order,
)
from flowckpt.stores.sql.database import Row, Session
from flowckpt.stores.sql.rows import OWNER_COLUMNS, REFERENCE, holder_of, id_text, name_of, reference_of
from flowckpt.stores.sql.schema import Dialect

_STATUSES = "SELECT status, count(*) FROM runs t WHERE status IS NOT NULL{one} GROUP BY status"
_RUNNING = f"""
SELECT {OWNER_COLUMNS} FROM runs t LEFT JOIN attempts a ON a.writer = t.writer WHERE t.status = 'running'{{one}}
"""  # noqa: S608 - constants
_RUNS_PER_DAY = "SELECT {started_day}, count(*) FROM runs t WHERE status IS NOT NULL{one} GROUP BY 1"
_CHECKPOINTS_PER_DAY = """
SELECT {day}, count(*), sum(size) FROM checkpoints t WHERE deleted_at IS NULL{one} GROUP BY 1
"""
_LARGEST_RUNS = """
SELECT r.workflow_id, r.workflow_name, s.checkpoints, s.size
FROM (SELECT run, count(*) AS checkpoints, sum(size) AS size FROM checkpoints t WHERE deleted_at IS NULL{one}
  GROUP BY run ORDER BY 3 DESC, run LIMIT ?) s
JOIN runs r ON r.run = s.run ORDER BY s.size DESC, r.workflow_id
"""
_LARGEST_CHECKPOINTS = f"""
SELECT r.workflow_id, {", ".join(f"c.{name}" for name in REFERENCE.split(", "))}
FROM (SELECT run, {REFERENCE} FROM checkpoints t WHERE deleted_at IS NULL{{one}} ORDER BY size DESC, run, sequence LIMIT ?) c
JOIN runs r ON r.run = c.run ORDER BY c.size DESC, r.workflow_id, c.sequence
"""  # noqa: S608 - constants
_FAILED_ATTEMPTS = """
SELECT error_type, count(*) FROM checkpoints t
WHERE reason = 'failed' AND error_type IS NOT NULL AND deleted_at IS NULL{one} AND NOT EXISTS
  (SELECT 1 FROM checkpoints n
  WHERE n.run = t.run AND n.attempt = t.attempt AND n.sequence > t.sequence AND n.deleted_at IS NULL)
GROUP BY error_type
"""
_FAILED_STEPS = """
SELECT COALESCE(error_type, ''), count(*) FROM step_results t
WHERE NOT success AND executed_in = attempt AND {simple}{one} GROUP BY 1
"""
_CLAIMS = """
SELECT e.evidence_type, COALESCE(e.status, ''), count(*) FROM evidence e
JOIN step_results t ON t.run = e.run AND t.attempt = e.attempt AND t.position = e.position
WHERE t.executed_in = t.attempt{one} GROUP BY 1, 2
"""
_STEPS = "SELECT count(*) FROM step_results t WHERE executed_in = attempt AND {simple}{one}"
_SLOWEST = """
SELECT r.workflow_name, t.path, count(*), {median}, max(t.duration_ms)
FROM step_results t JOIN runs r ON r.run = t.run WHERE t.executed_in = t.attempt AND {simple}{one}
GROUP BY r.workflow_name, t.path ORDER BY 4 DESC, 5 DESC, r.workflow_name, t.path LIMIT ?
"""

_SIMPLE = f"step_type NOT IN ({', '.join(repr(name) for name in sorted(COMPOSITES))})"


def read_figures(session: Session, dialect: Dialect, workflow_id: str | None, limit: int) -> StoreStatistics | None:
    """Return the figures of all runs or of one; None where there is no such run.

    Args:
        session: the transaction.
        dialect: the database's.
        workflow_id: one run, or None for all.
        limit: how many of the largest and the slowest.
    """
    one = ""
    if workflow_id is not None:
        found = session.execute(
            "SELECT run FROM runs WHERE workflow_id = ? AND status IS NOT NULL", (id_text(workflow_id),)
        )
        if not found:
            return None
        one = f" AND t.run = {int(found[0][0])}"
    day, median = dialect.words["day"], dialect.words["median"]
    # Those of the schema are of one column each.
    words = {
        "one": one,
        "day": day,
        "started_day": day.replace("saved_at", "started_at"),
        "median": median,
        "simple": _SIMPLE,
    }

    def rows(statement: str, *parameters: int) -> list[Row]:
        for word, text in words.items():
            statement = statement.replace("{" + word + "}", text)
        return session.execute(statement, parameters)

    def counted(statement: str) -> dict[str, int]:
        return dict(rows(statement))

    days = {date.fromisoformat(day): (n, int(size)) for day, n, size in rows(_CHECKPOINTS_PER_DAY)}
    claims: dict[str, Counter[str]] = {}
    for kind, answer, count in rows(_CLAIMS):
        claims.setdefault(kind, Counter())[answer] += count
    statuses = {Status(status): count for status, count in counted(_STATUSES).items()}
    return StoreStatistics(
        statuses=_with_crashed(statuses, _crashed(session, rows(_RUNNING)) if Status.RUNNING in statuses else 0),
        checkpoints=sum(count for count, _ in days.values()),
        steps=rows(_STEPS)[0][0],
        size=sum(size for _, size in days.values()),
        days=days_in_order({date.fromisoformat(day): count for day, count in counted(_RUNS_PER_DAY).items()}, days),
        largest_runs=tuple(
            RunStatistics(name_of(run), name_of(name), count, int(size))
            for run, name, count, size in rows(_LARGEST_RUNS, limit)
        ),
        largest_checkpoints=tuple(
            reference_of(name_of(run), tuple(columns)) for run, *columns in rows(_LARGEST_CHECKPOINTS, limit)
        ),
        claims=claims_in_order(claims),
        failures=failures_in_order(counted(_FAILED_STEPS), counted(_FAILED_ATTEMPTS)),
        slowest_steps=tuple(
            StepStatistics(name_of(name), path, times, median, longest)
            for name, path, times, median, longest in rows(_SLOWEST, limit)
        ),
    )


def _crashed(session: Session, running: list[Row]) -> int:
    now = session.now()
    holders = [holder_of(columns) for columns in running]
    return sum(holder is None or not holder.holds(now) for holder in holders)


def _with_crashed(statuses: Mapping[Status, int], crashed: int) -> dict[Status, int]:
    found = {**statuses, Status.CRASHED: crashed}
    if crashed:
        found[Status.RUNNING] -= crashed
    return {status: count for status, count in found.items() if count}
