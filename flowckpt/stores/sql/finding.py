"""Runs that are wanted, found by an index and read page by page, as far as the limit asks for.

What is picked first are keys: for each status the newest ones, in the order of an index, and of those the newest. Only
for them the rows are read that a list shows. So nothing goes through the other runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from flowckpt.core.records import Status
from flowckpt.core.records.listing import RunFilter, RunInfo
from flowckpt.stores.base import Finding, RunSurvey
from flowckpt.stores.sql.database import Database, Session
from flowckpt.stores.sql.rows import id_text, moment_of, sql_time, tag_text
from flowckpt.stores.sql.summary import LISTED, readable

_SMALLEST, _LARGEST = 50, 5_000
_STORED = tuple(sorted(status.value for status in Status if status is not Status.CRASHED))
_HEAD = f"SELECT {LISTED}, p.started_at, p.run FROM "  # noqa: S608 - our own words
_TAIL = (
    " CROSS JOIN runs r "  # taken as it stands: first what was picked, and then the rest of it
    "JOIN checkpoints c ON c.run = r.run AND c.sequence = r.latest_sequence "
    "LEFT JOIN attempts a ON a.writer = r.writer "
    "WHERE r.run = p.run ORDER BY p.started_at DESC, p.run DESC"
)


@attrs.frozen
class Place:
    """A run in the order of the list.

    Attributes:
        started_at: when it was started, as a column takes it.
        run: its key.
    """

    started_at: str
    run: int


def find_runs(database: Database, wanted: RunFilter) -> RunSurvey:
    """Return the runs that are wanted, the one started last first, and the damaged ones among those looked at.

    Args:
        database: the database.
        wanted: which.
    """
    most = wanted.limit
    count = _LARGEST if most is None else min(max(most, _SMALLEST), _LARGEST)
    found: list[RunInfo] = []
    left_out: list[Finding] = []
    behind: Place | None = None
    while most is None or len(found) < most:
        statement, parameters = picking(wanted, behind, count)

        def look(
            session: Session, statement: str = statement, parameters: Sequence[Any] = parameters
        ) -> tuple[list[RunInfo], list[Finding], Place | None, int]:
            return _page(session, statement, parameters)

        page, damaged, behind, looked_at = database.read("", "list", look)
        found += [info for info in page if wanted.takes(info)]
        left_out += damaged
        if looked_at < count:
            break
        count = min(2 * count, _LARGEST)
    return RunSurvey(found[:most], left_out)


def picking(wanted: RunFilter, behind: Place | None, count: int) -> tuple[str, list[Any]]:
    """Return the statement that reads some of the runs, and its parameters.

    Args:
        wanted: which; a stored `running` may turn out to be a crash, so some that are read may not be wanted.
        behind: go on behind this one; None to begin.
        count: so many at most; it stands in the statement, so that the database can plan for it.
    """
    if wanted.statuses is None:
        statuses = _STORED
    else:
        statuses = tuple(sorted({"running" if each is Status.CRASHED else each.value for each in wanted.statuses}))
    picked, parameters = (_by_tag if wanted.tags else _by_status)(wanted, statuses, behind, count)
    return f"{_HEAD}({picked}) p{_TAIL}", parameters


def _by_status(wanted: RunFilter, statuses: Sequence[str], behind: Place | None, count: int) -> tuple[str, list[Any]]:
    parts, parameters = [], []
    for number, status in enumerate(statuses):
        if wanted.workflow is None:
            places, values = _newest("r", {"status": status}, behind, count)
        else:
            places, values = _newest("r", {"workflow_name": id_text(wanted.workflow), "status": status}, behind, count)
        picked = f"SELECT r.run, r.started_at FROM runs r WHERE {places}"  # noqa: S608 - our own words
        parts.append(f"SELECT run, started_at FROM ({picked}) s{number}")  # noqa: S608
        parameters += values
    if not parts:
        return "SELECT run, started_at FROM runs WHERE 1 = 0", []
    union = " UNION ALL ".join(parts)
    newest = f"ORDER BY started_at DESC, run DESC LIMIT {count:d}"
    return f"SELECT run, started_at FROM ({union}) u {newest}", parameters  # noqa: S608


def _by_tag(wanted: RunFilter, statuses: Sequence[str], behind: Place | None, count: int) -> tuple[str, list[Any]]:
    (name, value), *others = sorted(wanted.tags, key=lambda tag: tag[1] is None)  # one with a value is rarer
    conditions: list[str] = []
    parameters: list[Any] = []
    if is_of_runs := wanted.statuses is not None or wanted.workflow is not None:
        conditions += ["r.run = t.run", f"r.status IN ({', '.join('?' * len(statuses)) or 'NULL'})"]
        parameters += statuses
    for other, of_it in others:
        more = "" if of_it is None else " AND o.value = ?"
        conditions.append(f"EXISTS (SELECT 1 FROM run_tags o WHERE o.run = t.run AND o.name = ?{more})")  # noqa: S608
        parameters += [tag_text(each) for each in (other, of_it) if each is not None]
    if wanted.workflow is not None:
        conditions.append("r.workflow_name = ?")
        parameters.append(id_text(wanted.workflow))
    tag = {"name": tag_text(name)} if value is None else {"name": tag_text(name), "value": tag_text(value)}
    places, values = _newest("t", tag, behind, count)
    tables = "run_tags t CROSS JOIN runs r" if is_of_runs else "run_tags t"
    found = f"{tables} WHERE {' AND '.join([*conditions, places])}"
    return f"SELECT t.run, t.started_at FROM {found}", [*parameters, *values]  # noqa: S608


def _newest(table: str, equal: Mapping[str, str], behind: Place | None, count: int) -> tuple[str, list[Any]]:
    """Return the condition and the order of the newest rows whose first columns have these values.

    Equal is written as a range, and the columns stand in the order too: so no other index can serve than the one over
    these columns and the time. A planner that knew them to be equal might walk along the times of all runs instead, in
    the belief that one in so many is of the kind; where all of that kind are old, that is a walk through all the others.
    """
    names = [f"{table}.{name}" for name in equal]
    ends = [f"{table}.started_at", f"{table}.run"]
    values: list[Any] = [*equal.values()]
    if behind is None:
        upper, least = f"({', '.join(names)}) <= ({_marks(values)})", values
    else:
        least = [*values, behind.started_at, behind.run]
        upper = f"({', '.join([*names, *ends])}) < ({_marks(least)})"
    order = ", ".join(f"{name} DESC" for name in [*names, *ends])
    return (
        f"({', '.join(names)}) >= ({_marks(values)}) AND {upper} ORDER BY {order} LIMIT {count:d}",
        [*values, *least],
    )


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _page(
    session: Session, statement: str, parameters: Sequence[Any]
) -> tuple[list[RunInfo], list[Finding], Place | None, int]:
    """Return the runs of a page, the damaged ones, the place of its last one, and how many were read."""
    found = session.execute(statement, parameters)
    infos, left_out = readable([row[:-2] for row in found], session.now())
    place = Place(sql_time(moment_of(found[-1][-2])), found[-1][-1]) if found else None
    return infos, left_out, place, len(found)
