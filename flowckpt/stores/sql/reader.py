"""The runs of an SQL store, read without owning them and without writing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, TypeVar

from flowckpt.core.codec.blob import Fetch
from flowckpt.core.records import CheckpointData, Status
from flowckpt.core.records.listing import EVERY, CheckpointRef, Owner, RunFilter, RunInfo, Selection
from flowckpt.core.records.result import COMPOSITES
from flowckpt.core.records.statistics import (
    RunStatistics,
    StepStatistics,
    StoreStatistics,
    sort_claims,
    sort_days,
    sort_failures,
    sort_figures,
)
from flowckpt.core.records.wait import Signal
from flowckpt.core.system.process import ProcessIdentity
from flowckpt.errors import CheckpointCorruptedError, CheckpointNotFoundError, CheckpointStorageError, FlowckptError
from flowckpt.stores.base import Finding, RunSurvey, make_ok_finding
from flowckpt.stores.content import check_values
from flowckpt.stores.queries import parse_verifications
from flowckpt.stores.runs_base import RunsBase
from flowckpt.stores.sql import rows, signals
from flowckpt.stores.sql.database import Database, Row, Session
from flowckpt.stores.sql.image import (
    LISTED,
    RunImage,
    find_unreadable,
    open_image,
    parse_run_rows,
    read_blob,
    read_run_info,
    survey_all,
)
from flowckpt.stores.sql.layout import find_missing_parts, missing_parts_error
from flowckpt.stores.sql.rows import (
    OWNER_COLUMNS,
    REFERENCE,
    decode_id,
    encode_id,
    encode_tag,
    find_live_owner,
    find_run_key,
    format_time,
    parse_holder,
    parse_reference,
    parse_time,
)
from flowckpt.stores.sql.run_writer import SqlRunWriter

# The check of an SQL store: the database itself, and all runs, results and large values in it.


def check_all(database: Database, fetch_for: Callable[[str], Fetch]) -> list[Finding]:
    """Verify the database and all runs in it.

    Args:
        database: the database.
        fetch_for: returns the function that reads the large values of a run.
    """
    findings = [Finding("", "corrupt", damage) for damage in database.find_damage()]
    try:
        if lost := find_lost_parts(database):
            return [*findings, *lost]
        keys = database.read("", "check", lambda session: session.execute("SELECT workflow_id FROM runs ORDER BY run"))
    except CheckpointStorageError:
        if not findings:
            raise
        return findings
    except FlowckptError as error:
        known = {finding.detail for finding in findings}  # the database may have reported the same
        return findings if error.message in known else [*findings, Finding("", "corrupt", error.message)]
    for (key,) in keys:
        workflow_id = decode_id(key)
        finding = check_run(database, workflow_id, fetch_for(workflow_id))
        if finding is not None:
            findings.append(finding)
    return findings


def find_lost_parts(database: Database) -> list[Finding]:
    """Return a finding if the database lacks tables, columns or views.

    Args:
        database: the database.
    """
    lost = database.read("", "check", find_missing_parts)
    return [Finding("", "corrupt", missing_parts_error(lost).detail)] if lost else []


def check_run(database: Database, workflow_id: str, fetch: Fetch) -> Finding | None:
    """Verify a run, including discarded rows of its attempts; None if there is none.

    Args:
        database: the database.
        workflow_id: the run.
        fetch: reads its large values.
    """
    try:
        return database.read(workflow_id, "check", lambda session: verify_run(session, workflow_id, fetch))
    except CheckpointNotFoundError:  # cleared meanwhile
        return None
    except CheckpointStorageError:  # an unavailable database does not mean that the run is damaged
        raise
    except FlowckptError as error:
        return Finding(workflow_id, "corrupt", error.message)


def find_orphan_rows(session: Session, run: int) -> list[tuple[str, int]]:
    """Return the tables and attempts of rows without a started attempt, which no reader sees."""
    return [
        (table, attempt)
        for table in ("checkpoints", "step_results")
        for (attempt,) in session.execute(
            f"SELECT DISTINCT t.attempt FROM {table} t LEFT JOIN attempts a ON a.run = t.run AND a.attempt = t.attempt "  # noqa: S608
            "AND a.begun_at IS NOT NULL WHERE t.run = ? AND a.run IS NULL ORDER BY t.attempt",
            (run,),
        )
    ]


def verify_run(session: Session, workflow_id: str, fetch: Fetch) -> Finding | None:
    """Verify a run within a transaction; None if there is none.

    Args:
        session: the transaction.
        workflow_id: the run.
        fetch: reads its large values.

    Raises:
        CheckpointCorruptedError: the run is damaged.
    """
    current = open_image(session, workflow_id)
    if current is None:
        return None
    attempts = session.execute("SELECT attempt FROM attempts WHERE run = ? AND begun_at IS NOT NULL", (current.run,))
    checkpoint_count, result_count = 0, 0
    for (attempt,) in attempts:
        image = open_image(session, workflow_id, attempt=attempt)
        assert image is not None, "a transaction reads one snapshot"
        _check_attempt(session, image, attempt, fetch)
        if current.links and attempt == current.links[-1].attempt:
            checkpoints = image.load_all(session, fetch)
            checkpoint_count, result_count = len(checkpoints), len(image.history.results)
            _check_row(image, read_run_info(session, workflow_id), checkpoints)
    for table, attempt in find_orphan_rows(session, current.run):
        raise current.corrupt_error(
            f"attempt {attempt}", f"{table} belong to it, but the run has not started such an attempt"
        )
    for digest, size in session.execute("SELECT digest, size FROM blobs WHERE run = ?", (current.run,)):
        read_blob(session, workflow_id, digest, size)
    signals.parse(workflow_id, session.execute(signals.SELECT_SIGNALS, (encode_id(workflow_id),)))
    if not attempts:
        return None
    return make_ok_finding(workflow_id, checkpoint_count, result_count)


def _check_row(image: RunImage, info: RunInfo | None, newest_first: list[CheckpointData]) -> None:
    """Compare the row of the run, used by lists, with its checkpoints."""
    field = "latest_sequence" if info is not None or newest_first else ""
    if info is not None and newest_first:
        field = info.contradicted_by(newest_first[0], CheckpointRef.of(image.workflow_id, newest_first[-1]))
    if field:
        raise image.corrupt_error("runs", f"its column {field} does not match its checkpoints")


def _check_attempt(session: Session, image: RunImage, attempt: int, fetch: Fetch) -> None:
    """Verify an attempt, given the run as it left it: all results, and its own checkpoints."""
    image.read_results(session, fetch)
    misplaced = "SELECT min(sequence) FROM checkpoints WHERE run = ? AND attempt = ? AND sequence <= ?"
    ((sequence,),) = session.execute(misplaced, (image.run, attempt, image.links[-1].after_sequence))
    if sequence is not None:
        raise image.misplaced_error(sequence)
    _check_columns(session, image, attempt)
    for sequence, stored, verdict in image.compute_verdicts(session, attempt):
        if stored is not verdict:
            raise image.corrupt_error(f"checkpoint {sequence}", "its column verified does not match its results")
    check_values(blob for blobs in image.history.blobs.values() for blob in blobs.values())
    for data in image.load_all(session, fetch, Selection(attempt=attempt)):
        check_values(data.held_values)


def _check_columns(session: Session, image: RunImage, attempt: int) -> None:
    """Compare the columns of an attempt's own results, used by queries, with the documents."""
    columns = ", ".join(name for name in rows.RESULT_COLUMNS if name != "document")
    stored_rows = session.execute(
        f"SELECT {columns}, CAST(document AS TEXT) FROM step_results WHERE run = ? AND attempt = ? ORDER BY position",  # noqa: S608
        (image.run, attempt),
    )
    for stored_row in stored_rows:
        row = dict(zip(rows.RESULT_COLUMNS, stored_row, strict=True))
        position, started_at = row["position"], row["started_at"]
        place = f"result {position} of attempt {attempt}"
        if position > len(image.history.results):
            raise image.corrupt_error(place, "it is after the end of its attempt")
        row["success"] = bool(row["success"])
        try:
            row["started_at"] = None if started_at is None else format_time(parse_time(started_at))
        except ValueError as error:
            raise image.corrupt_error(place, f"its column started_at: {error}") from error
        result, document = image.history.results[position - 1], row["document"]
        try:
            is_alike = (*row.values(),) == rows.result_row(result, document.encode(), image.run, attempt, position)
        except (ValueError, TypeError, AttributeError) as error:
            raise image.corrupt_error(place, f"its document: {error}") from error
        if not is_alike:
            raise image.corrupt_error(place, "its columns do not match its document")


T = TypeVar("T")
_PAGE = 1000
_OF_ATTEMPT = "FROM attempts JOIN runs ON runs.run = attempts.run WHERE runs.workflow_id = ? AND attempts.attempt = ?"


class SqlReader(RunsBase[SqlRunWriter]):
    """The runs of an SQL store, read without owning them and without writing.

    Args:
        database: the database.
        seconds: the interval of an owner's heartbeats.
    """

    def __init__(self, database: Database, seconds: float) -> None:
        super().__init__(seconds)
        self.database = database

    @property
    def place(self) -> str:
        """The database, for messages."""
        return str(self.database)

    def _make_fetch(self, workflow_id: str) -> Fetch:
        def fetch(digest: str, size: int) -> bytes:
            content = self.database.read(
                workflow_id, "read", lambda session: read_blob(session, workflow_id, digest, size)
            )
            if content is None:
                raise CheckpointNotFoundError(workflow_id, detail="it was cleared")
            return content

        return fetch

    def _query(self, workflow_id: str, statement: str, *values: Any) -> list[Row]:
        """Return the rows of a statement whose first parameter is the id of the run."""
        parameters = (encode_id(workflow_id), *values)
        return self.database.read(workflow_id, "read", lambda session: session.execute(statement, parameters))

    def _read_image(
        self, workflow_id: str, work: Callable[[Session, RunImage], T], *, attempt: int | None = None
    ) -> T | None:
        """Read from a run in its current state, or as an attempt left it; None if there is no such run or attempt."""

        def read(session: Session) -> T | None:
            image = open_image(session, workflow_id, attempt=attempt)
            return None if image is None else work(session, image)

        return self.database.read(workflow_id, "read", read)

    def _load_newest(
        self,
        workflow_id: str,
        checkpoint_id: str | None = None,
        selection: Selection = EVERY,
        *,
        left_by: int | None = None,
    ) -> CheckpointData | None:
        fetch = self._make_fetch(workflow_id)

        def load(session: Session, image: RunImage) -> CheckpointData | None:
            image.read_results(session, fetch)
            return image.load_newest(session, fetch, checkpoint_id, selection)

        return self._read_image(workflow_id, load, attempt=left_by)

    def load_latest(self, workflow_id: str, *, attempt: int | None = None) -> CheckpointData | None:
        """Return the newest checkpoint, of all or of an attempt."""
        return self._load_newest(workflow_id, selection=Selection(attempt=attempt))

    def _select_checkpoints(self, workflow_id: str, wanted: Selection) -> list[CheckpointRef]:
        return self.references(workflow_id, wanted)  # the database selects

    def load_attempt(self, workflow_id: str, attempt: int) -> CheckpointData | None:
        """Return the last checkpoint of an attempt as it left it."""
        data = self._load_newest(workflow_id, left_by=attempt)
        return data if data is not None and data.attempt == attempt else None

    def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of an id."""
        data = self._load_newest(workflow_id, encode_id(checkpoint_id))
        if data is not None:
            return data
        if not self.references(workflow_id):
            raise CheckpointNotFoundError(workflow_id)
        raise CheckpointNotFoundError(workflow_id, checkpoint_id)

    def references(
        self, workflow_id: str, selection: Selection = EVERY, *, left_by: int | None = None
    ) -> list[CheckpointRef]:
        """Return the selected checkpoints of a run, or of a run as an attempt left it, newest first."""
        checkpoints = self._read_image(
            workflow_id,
            lambda session, image: image.read_rows(session, REFERENCE, selection),
            attempt=left_by,
        )
        return [parse_reference(workflow_id, row) for row in checkpoints or ()]

    def list_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointRef]:
        """Return the checkpoints of an attempt as it left them, oldest first."""
        return self.references(workflow_id, Selection(attempt=attempt), left_by=attempt)[::-1]

    def attempts(self, workflow_id: str) -> list[int]:
        """Return the ascending numbers of the attempts that wrote."""
        statement = (
            "SELECT a.attempt FROM attempts a JOIN runs r ON r.run = a.run "
            "WHERE r.workflow_id = ? AND a.begun_at IS NOT NULL ORDER BY a.attempt"
        )
        return [attempt for (attempt,) in self._query(workflow_id, statement)]

    def figures(self, workflow_id: str | None = None, *, limit: int = 10) -> StoreStatistics:
        """Return the statistics of all runs, or of one run."""

        def read(session: Session) -> StoreStatistics | None:
            try:
                return read_figures(session, workflow_id, limit)
            except (TypeError, ValueError) as error:  # an invalid date or status
                raise CheckpointCorruptedError(
                    workflow_id or "", location="the database", detail=f"the statistics cannot be read: {error}"
                ) from error

        statistics = self.database.read(workflow_id or "", "count", read)
        if statistics is None:
            raise CheckpointNotFoundError(workflow_id or "")
        return statistics

    def read_attempt(self, workflow_id: str, attempt: int) -> list[CheckpointData]:
        """Return the complete checkpoints of an attempt as it left them, oldest first."""
        fetch = self._make_fetch(workflow_id)

        def load(session: Session, image: RunImage) -> list[CheckpointData]:
            image.read_results(session, fetch)
            return image.load_all(session, fetch, Selection(attempt=attempt))

        return (self._read_image(workflow_id, load, attempt=attempt) or [])[::-1]

    def owner(self, workflow_id: str) -> Owner | None:
        """Return the live owner of a run."""

        def read(session: Session) -> Owner | None:
            run = find_run_key(session, workflow_id)
            return None if run is None else find_live_owner(session, run)

        return self.database.read(workflow_id, "read", read)

    def live_note(self, workflow_id: str) -> bytes | None:
        """Return the live note of a run."""
        statement = (
            "SELECT i.content FROM runs r JOIN result_index i ON i.name = 'live-' || r.run WHERE r.workflow_id = ?"
        )
        notes = self._query(workflow_id, statement)
        return bytes(notes[0][0]) if notes else None

    def claimed_by(self, workflow_id: str, attempt: int) -> ProcessIdentity | None:
        """Return the process named in the row of an attempt."""
        claims = self._query(workflow_id, f"SELECT host, boot_id, pid, start_time {_OF_ATTEMPT}", attempt)
        return ProcessIdentity(*claims[0]) if claims else None

    def last_seen(self, workflow_id: str, attempt: int) -> datetime | None:
        """Return when the owner of an attempt last renewed its lease."""
        heartbeats = self._query(workflow_id, f"SELECT heartbeat_at {_OF_ATTEMPT}", attempt)
        try:
            return parse_time(heartbeats[0][0]) if heartbeats else None
        except (ValueError, OverflowError):  # damaged: used only for the duration of a killed try
            return None

    def survey_runs(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the selected runs, and damaged rows; with a filter, only the damaged rows met on the way."""
        if wanted is None or wanted == RunFilter():
            return self.database.read("", "list", survey_all)
        return find_runs(self.database, wanted)

    def unreadable_runs(self) -> list[Finding]:
        """Return the runs with a damaged row, reading page by page."""
        findings: list[Finding] = []
        after: int | None = 0
        while after is not None:
            page, after = self.database.read("", "list", partial(find_unreadable, after=after, limit=_PAGE))
            findings += page
        return findings

    def find_runs(self, wanted: RunFilter) -> list[RunInfo]:
        """Return the selected runs, most recently started first, by an index."""
        survey = find_runs(self.database, wanted)
        self._log_unreadable(survey.unreadable)
        return [*survey.runs]

    def describe_run(self, workflow_id: str) -> RunInfo | None:
        """Return one run as listed; None if there is none."""
        return self.database.read(workflow_id, "read", lambda session: read_run_info(session, workflow_id))

    def signals(self, workflow_id: str) -> list[Signal]:
        """Return the messages for a run, in the order of sending."""
        return signals.parse(workflow_id, self._query(workflow_id, signals.SELECT_SIGNALS))

    def check(self, workflow_id: str | None = None) -> list[Finding]:
        """Verify one run, or all of them and the database."""
        if workflow_id is None:
            return check_all(self.database, self._make_fetch)
        if lost := find_lost_parts(self.database):
            return lost
        finding = check_run(self.database, workflow_id, self._make_fetch(workflow_id))
        if finding is None:
            raise CheckpointNotFoundError(workflow_id)
        return [finding]


# Selected runs are found by an index and read page by page, up to the limit.
#
# First the keys are selected: the newest ones of each status, in the order of an index, and then the newest of all.
# Only for these the full rows are read. So no other runs are scanned.

_SMALLEST, _LARGEST = 50, 5_000
_STORED = tuple(sorted(status.value for status in Status if status is not Status.CRASHED))
_HEAD = f"SELECT {LISTED}, p.started_at, p.run FROM "  # noqa: S608 - constants
_TAIL = (
    " CROSS JOIN runs r "  # CROSS JOIN keeps this order: the selected keys first
    "LEFT JOIN checkpoints c ON c.run = r.run AND c.sequence = r.latest_sequence "
    "LEFT JOIN attempts a ON a.writer = r.writer "
    "WHERE r.run = p.run ORDER BY p.started_at DESC, p.run DESC"
)


Place = tuple[str, int]
"""A run in the order of the list: when it was started, in the form of the column, and its key."""


def find_runs(database: Database, wanted: RunFilter) -> RunSurvey:
    """Return the selected runs, most recently started first, and the damaged rows met on the way.

    Args:
        database: the database.
        wanted: the filter.
    """
    limit = wanted.limit
    count = _LARGEST if limit is None else min(max(limit, _SMALLEST), _LARGEST)
    runs: list[RunInfo] = []
    findings: list[Finding] = []
    after = None if wanted.before is None else database.read("", "list", lambda session: _find_place(session, wanted))
    while limit is None or len(runs) < limit:
        statement, parameters = select_runs(wanted, after, count)
        read = partial(_read_page, statement=statement, parameters=parameters)
        page, damaged, after, row_count = database.read("", "list", read)
        runs += [info for info in page if wanted.takes(info)]
        findings += damaged
        if row_count < count:
            break
        count = min(2 * count, _LARGEST)
    return RunSurvey(runs[:limit], findings)


def _find_place(session: Session, wanted: RunFilter) -> Place:
    """Return the place after which the list continues; for a removed run, after all runs with the same start time."""
    assert wanted.before is not None
    started_at, workflow_id = wanted.before
    return format_time(started_at), find_run_key(session, workflow_id) or 0


def _text_condition(wanted: RunFilter) -> tuple[str, list[Any]]:
    """Return the condition that an id contains a text; the databases agree only on the case of ASCII letters."""
    if (
        not (wanted.text and wanted.text.isascii() and wanted.text.isprintable())
        or '"' in wanted.text
        or "\\" in wanted.text
    ):
        return "", []  # `RunFilter.takes` checks each run
    escaped = re.sub(r"[!%_]", r"!\g<0>", wanted.text.lower())
    return "lower(r.workflow_id) LIKE ? ESCAPE '!' AND ", [f"%{escaped}%"]


def select_runs(wanted: RunFilter, after: Place | None, count: int) -> tuple[str, list[Any]]:
    """Return the statement that reads some of the runs, and its parameters.

    Args:
        wanted: the filter; some of the rows may not match, because a stored `running` may be a crash.
        after: continue after this run; None to start.
        count: the maximum number of rows; it is part of the statement, so that the query planner knows it.
    """
    if wanted.statuses is None:
        statuses = _STORED
    else:
        statuses = tuple(sorted({"running" if each is Status.CRASHED else each.value for each in wanted.statuses}))
    picked, parameters = (_select_by_tag if wanted.tags else _select_by_status)(wanted, statuses, after, count)
    return f"{_HEAD}({picked}) p{_TAIL}", parameters


def _select_by_status(
    wanted: RunFilter, statuses: Sequence[str], after: Place | None, count: int
) -> tuple[str, list[Any]]:
    parts, parameters = [], []
    text, texts = _text_condition(wanted)
    workflow = {} if wanted.workflow is None else {"workflow_name": encode_id(wanted.workflow)}
    for number, status in enumerate(statuses):
        places, values = _order_newest_first("r", {**workflow, "status": status}, after, count)
        picked = f"SELECT r.run, r.started_at FROM runs r WHERE {text}{places}"  # noqa: S608 - constants
        parts.append(f"SELECT run, started_at FROM ({picked}) s{number}")  # noqa: S608
        parameters += [*texts, *values]
    if not parts:
        return "SELECT run, started_at FROM runs WHERE 1 = 0", []
    union = " UNION ALL ".join(parts)
    newest = f"ORDER BY started_at DESC, run DESC LIMIT {count:d}"
    return f"SELECT run, started_at FROM ({union}) u {newest}", parameters  # noqa: S608


def _select_by_tag(
    wanted: RunFilter, statuses: Sequence[str], after: Place | None, count: int
) -> tuple[str, list[Any]]:
    (name, value), *others = sorted(wanted.tags, key=lambda tag: tag[1] is None)  # a tag with a value is more selective
    conditions: list[str] = []
    parameters: list[Any] = []
    text, texts = _text_condition(wanted)
    if is_of_runs := wanted.statuses is not None or wanted.workflow is not None or bool(text):
        conditions += ["r.run = t.run", f"r.status IN ({', '.join('?' * len(statuses)) or 'NULL'})"]
        parameters += statuses
    for other, of_it in others:
        more = "" if of_it is None else " AND o.value = ?"
        conditions.append(f"EXISTS (SELECT 1 FROM run_tags o WHERE o.run = t.run AND o.name = ?{more})")  # noqa: S608
        parameters += [encode_tag(each) for each in (other, of_it) if each is not None]
    if wanted.workflow is not None:
        conditions.append("r.workflow_name = ?")
        parameters.append(encode_id(wanted.workflow))
    if text:
        conditions.append(text.removesuffix(" AND "))
        parameters += texts
    tag = {"name": encode_tag(name)} if value is None else {"name": encode_tag(name), "value": encode_tag(value)}
    places, values = _order_newest_first("t", tag, after, count)
    tables = "run_tags t CROSS JOIN runs r" if is_of_runs else "run_tags t"
    source = f"{tables} WHERE {' AND '.join([*conditions, places])}"
    return f"SELECT t.run, t.started_at FROM {source}", [*parameters, *values]  # noqa: S608


def _order_newest_first(table: str, equal: Mapping[str, str], after: Place | None, count: int) -> tuple[str, list[Any]]:
    """Return the condition and the order of the newest rows whose first columns have these values.

    Equality is written as a range, and the columns are part of the order, so that only the index over these columns and
    the time can be used. With plain equality, a planner might scan all runs by time instead, expecting matches at
    regular distances; if all matches are old, it would scan all other runs.
    """
    names = [f"{table}.{name}" for name in equal]
    ends = [f"{table}.started_at", f"{table}.run"]
    values: list[Any] = [*equal.values()]
    if after is None:
        upper, least = f"({', '.join(names)}) <= ({_placeholders(values)})", values
    else:
        least = [*values, *after]
        upper = f"({', '.join([*names, *ends])}) < ({_placeholders(least)})"
    order = ", ".join(f"{name} DESC" for name in [*names, *ends])
    return (
        f"({', '.join(names)}) >= ({_placeholders(values)}) AND {upper} ORDER BY {order} LIMIT {count:d}",
        [*values, *least],
    )


def _placeholders(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _read_page(
    session: Session, statement: str, parameters: Sequence[Any]
) -> tuple[list[RunInfo], list[Finding], Place | None, int]:
    """Return the runs of a page, the damaged rows, the place of the last row, and the number of rows read."""
    page = session.execute(statement, parameters)
    infos, findings = parse_run_rows([row[:-2] for row in page], session.now())
    last = (format_time(parse_time(page[-1][-2])), page[-1][-1]) if page else None
    return infos, findings, last, len(page)


# The statistics of an SQL store: computed by the database, so that a million runs need no memory here.
#
# Discarded rows are included, deleted checkpoints are not, and a result counts for the attempt that executed it.

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
_VERIFICATIONS = "SELECT CAST(t.document AS TEXT) FROM signals t WHERE t.kind = 'verification'{one}"
_FIGURES = """
SELECT {figures} FROM step_results t
WHERE executed_in = attempt AND {figures} IS NOT NULL AND {simple}{one}
"""
_STEPS = "SELECT count(*) FROM step_results t WHERE executed_in = attempt AND {simple}{one}"
_SLOWEST = """
SELECT r.workflow_name, t.path, count(*), {median}, max(t.duration_ms)
FROM step_results t JOIN runs r ON r.run = t.run WHERE t.executed_in = t.attempt AND {simple}{one}
GROUP BY r.workflow_name, t.path ORDER BY 4 DESC, 5 DESC, r.workflow_name, t.path LIMIT ?
"""

_SIMPLE = f"step_type NOT IN ({', '.join(repr(name) for name in sorted(COMPOSITES))})"


def read_figures(session: Session, workflow_id: str | None, limit: int) -> StoreStatistics | None:
    """Return the statistics of all runs or of one; None if there is no such run.

    Args:
        session: the transaction.
        workflow_id: one run, or None for all.
        limit: how many of the largest and slowest to return.
    """
    one = ""
    if workflow_id is not None:
        keys = session.execute(
            "SELECT run FROM runs WHERE workflow_id = ? AND status IS NOT NULL", (encode_id(workflow_id),)
        )
        if not keys:
            return None
        one = f" AND t.run = {int(keys[0][0])}"
    known = session.dialect.words
    day = known["day"]
    # The words of the schema refer to one column each.
    words = {
        **{name: known[name] for name in ("figures", "median", "day")},
        "one": one,
        "started_day": day.replace("saved_at", "started_at"),
        "simple": _SIMPLE,
    }

    def select(statement: str, *parameters: int) -> list[Row]:
        for word, text in words.items():
            statement = statement.replace("{" + word + "}", text)
        return session.execute(statement, parameters)

    days = {date.fromisoformat(day): (n, int(size)) for day, n, size in select(_CHECKPOINTS_PER_DAY)}
    claims = parse_verifications(Signal.from_document(json.loads(text)) for (text,) in select(_VERIFICATIONS)).claims
    for kind, answer, count in select(_CLAIMS):
        claims.setdefault(kind, Counter())[answer] += count
    return StoreStatistics(
        statuses=_count_statuses(select(_STATUSES), select(_RUNNING), session.now()),
        checkpoints=sum(count for count, _ in days.values()),
        steps=select(_STEPS)[0][0],
        size=sum(size for _, size in days.values()),
        days=sort_days({date.fromisoformat(day): count for day, count in select(_RUNS_PER_DAY)}, days),
        largest_runs=tuple(
            RunStatistics(decode_id(run), decode_id(name), count, int(size))
            for run, name, count, size in select(_LARGEST_RUNS, limit)
        ),
        largest_checkpoints=tuple(
            parse_reference(decode_id(run), tuple(columns)) for run, *columns in select(_LARGEST_CHECKPOINTS, limit)
        ),
        claims=sort_claims(claims),
        failures=sort_failures(dict(select(_FAILED_STEPS)), dict(select(_FAILED_ATTEMPTS))),
        figures=sort_figures(map(json.loads, (text for (text,) in select(_FIGURES)))),
        slowest_steps=tuple(
            StepStatistics(decode_id(name), path, times, median, longest)
            for name, path, times, median, longest in select(_SLOWEST, limit)
        ),
    )


def _count_statuses(stored: list[Row], running: list[Row], now: datetime) -> dict[Status, int]:
    """Return the counts of statuses, where stored `running` runs without a live owner count as crashed."""
    holders = [parse_holder(columns) for columns in running]
    crashed = sum(holder is None or not holder.holds(now) for holder in holders)
    counts = Counter({Status(status): count for status, count in stored})
    counts.update({Status.RUNNING: -crashed, Status.CRASHED: crashed})
    return {status: count for status, count in counts.items() if count}
