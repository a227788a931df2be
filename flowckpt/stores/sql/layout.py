"""The tables and views, written once for both databases.

A run consists of attempts that continue each other (`continues_…`). Results and checkpoints are rows that their attempt
added; rows of results never change. The run is the newest attempt that wrote (`runs.head_attempt`) and those that it
continues; discarded rows of attempts are kept for readers.
"""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence

import attrs

from flowckpt._version import __version__
from flowckpt.errors import CheckpointCorruptedError, CheckpointStorageError, UnsupportedSchemaError
from flowckpt.stores.sql.database import Session
from flowckpt.stores.sql.rows import add_missing_tags, extend_leases, format_time

VERSION_TABLE = "flowckpt_schema"


@attrs.frozen
class Dialect:
    """The differences between the two databases.

    Attributes:
        name: `sqlite` or `postgresql`.
        words: the replacements of names in braces.
        lock: the suffix of a SELECT that locks its row until the transaction ends.
        announcement: the statement that notifies listeners of a message for a run, given its digest; empty without
            support for listeners.
        claim_new: the statement that claims a new run, with the values of `Claim.values_of_new_run`; it returns the run's key and
            the attempt, and nothing if the run exists. Empty if the database needs several statements.
        release: the statement that releases a written run, given its key and the writer, twice. Empty if the database
            needs several statements.
    """

    name: str
    words: Mapping[str, str]
    lock: str = ""
    announcement: str = ""
    claim_new: str = ""
    release: str = ""

    def render(self, statement: str) -> str:
        """Return a statement in this dialect."""
        for name, word in self.words.items():
            statement = statement.replace("{" + name + "}", word)
        return statement.strip()


VERSION_1 = (
    """
CREATE TABLE runs (
  run {key},
  workflow_id TEXT NOT NULL UNIQUE,
  workflow_name TEXT,
  status TEXT,
  steps {int} NOT NULL DEFAULT 0,
  started_at {time},
  updated_at {time},
  metadata {json},
  newest_attempt {int} NOT NULL DEFAULT 0,
  writer TEXT NOT NULL DEFAULT '',
  head_attempt {int},
  latest_sequence {int},
  last_sequence {int} NOT NULL DEFAULT 0
){strict}{often}
""",
    "CREATE INDEX runs_by_status ON runs (status, started_at)",
    """
CREATE TABLE attempts (
  run {int} NOT NULL REFERENCES runs (run) ON DELETE CASCADE,
  attempt {int} NOT NULL,
  writer TEXT NOT NULL UNIQUE,
  host TEXT NOT NULL,
  boot_id TEXT NOT NULL,
  pid {int} NOT NULL,
  start_time {int} NOT NULL,
  acquired_at {time} NOT NULL,
  heartbeat_at {time} NOT NULL,
  lease_expires_at {time} NOT NULL,
  released_at {time},
  begun_at {time},
  continues_attempt {int},
  continues_sequence {int},
  continues_results {int},
  head {json},
  PRIMARY KEY (run, attempt)
){strict}
""",
    """
CREATE TABLE checkpoints (
  run {int} NOT NULL,
  sequence {int} NOT NULL,
  attempt {int} NOT NULL,
  checkpoint_id TEXT NOT NULL,
  reason TEXT NOT NULL,
  status TEXT NOT NULL,
  steps {int} NOT NULL,
  saved_at {time} NOT NULL,
  size {int} NOT NULL,
  verified {bool},
  error_type TEXT,
  error_message TEXT,
  chain TEXT NOT NULL,
  digest TEXT NOT NULL,
  document {json},
  deleted_at {time},
  PRIMARY KEY (run, sequence),
  FOREIGN KEY (run, attempt) REFERENCES attempts (run, attempt) ON DELETE CASCADE
){rowless}
""",
    "CREATE INDEX checkpoints_by_attempt ON checkpoints (run, attempt, sequence)",
    """
CREATE TABLE step_results (
  run {int} NOT NULL,
  attempt {int} NOT NULL,
  position {int} NOT NULL,
  path TEXT NOT NULL,
  name TEXT NOT NULL,
  step_type TEXT NOT NULL,
  success {bool} NOT NULL,
  duration_ms {real} NOT NULL,
  started_at {time},
  executed_in {int} NOT NULL,
  tries {int} NOT NULL,
  function TEXT NOT NULL,
  version TEXT,
  error_type TEXT,
  error_message TEXT,
  document {json} NOT NULL,
  PRIMARY KEY (run, attempt, position),
  FOREIGN KEY (run, attempt) REFERENCES attempts (run, attempt) ON DELETE CASCADE
){rowless}
""",
    "CREATE INDEX failed_results ON step_results (run) WHERE NOT success",
    """
CREATE TABLE evidence (
  run {int} NOT NULL,
  attempt {int} NOT NULL,
  position {int} NOT NULL,
  claim {int} NOT NULL,
  evidence_type TEXT NOT NULL,
  description TEXT NOT NULL,
  status TEXT,
  verified_at {time},
  error TEXT,
  document {json} NOT NULL,
  PRIMARY KEY (run, attempt, position, claim),
  FOREIGN KEY (run, attempt, position) REFERENCES step_results (run, attempt, position) ON DELETE CASCADE
){rowless}
""",
    "CREATE INDEX evidence_by_status ON evidence (status) WHERE status <> 'verified'",
    """
CREATE TABLE blob_contents (
  name TEXT NOT NULL PRIMARY KEY,
  content {bytes} NOT NULL
){strict}
""",
    """
CREATE TABLE blobs (
  run {int} NOT NULL REFERENCES runs (run) ON DELETE CASCADE,
  digest TEXT NOT NULL,
  size {int} NOT NULL,
  name TEXT NOT NULL REFERENCES blob_contents (name),
  PRIMARY KEY (run, digest)
){rowless}
""",
    "CREATE INDEX blobs_by_name ON blobs (name)",
    "{drop_contents}",
    """
CREATE VIEW lineage AS
WITH RECURSIVE line (run, attempt, upto_sequence, upto_position) AS (
  SELECT run, head_attempt, CAST(NULL AS {int}), CAST(NULL AS {int}) FROM runs WHERE head_attempt IS NOT NULL
  UNION ALL
  SELECT a.run, a.continues_attempt, a.continues_sequence, a.continues_results
  FROM line JOIN attempts a ON a.run = line.run AND a.attempt = line.attempt
  WHERE a.continues_attempt IS NOT NULL
)
SELECT run, attempt, upto_sequence, upto_position FROM line
""",
    """
CREATE VIEW run_results AS
SELECT r.workflow_id, r.workflow_name, s.*
FROM lineage l
JOIN step_results s ON s.run = l.run AND s.attempt = l.attempt
  AND (l.upto_position IS NULL OR s.position <= l.upto_position)
JOIN runs r ON r.run = s.run
""",
    """
CREATE VIEW run_checkpoints AS
SELECT r.workflow_id, r.workflow_name, c.*
FROM lineage l
JOIN checkpoints c ON c.run = l.run AND c.attempt = l.attempt
  AND (l.upto_sequence IS NULL OR c.sequence <= l.upto_sequence)
JOIN runs r ON r.run = c.run
WHERE c.deleted_at IS NULL
""",
    """
CREATE VIEW run_list AS
SELECT r.run, r.workflow_id, r.workflow_name,
  CASE WHEN r.status = 'running' AND (a.writer IS NULL OR a.lease_expires_at < {now}) THEN 'crashed'
    ELSE r.status END AS status,
  r.steps, r.started_at, r.updated_at, r.newest_attempt AS attempts, a.host, a.pid, a.lease_expires_at
FROM runs r LEFT JOIN attempts a ON a.writer = r.writer
WHERE r.status IS NOT NULL
""",
    """
CREATE VIEW status_of_runs AS
SELECT workflow_name, status, count(*) AS runs FROM run_list GROUP BY workflow_name, status
""",
    """
CREATE VIEW slowest_steps AS
SELECT workflow_name, name, count(*) AS times, avg(duration_ms) AS mean_ms, max(duration_ms) AS longest_ms,
  sum(duration_ms) AS total_ms
FROM run_results GROUP BY workflow_name, name
""",
    """
CREATE VIEW failures_by_step AS
SELECT r.workflow_name, s.name, s.error_type, count(*) AS failures, count(DISTINCT s.run) AS runs,
  max(s.started_at) AS newest
FROM step_results s JOIN runs r ON r.run = s.run
WHERE NOT s.success GROUP BY r.workflow_name, s.name, s.error_type
""",
    """
CREATE VIEW checkpoints_per_day AS
SELECT {day} AS day, count(*) AS checkpoints, sum(size) AS bytes FROM checkpoints GROUP BY {day}
""",
)
"""The statements that create version 1 of the schema."""

VERSION_2 = (
    """
CREATE TABLE signals (
  run {int} NOT NULL REFERENCES runs (run) ON DELETE CASCADE,
  signal_id TEXT NOT NULL,
  kind TEXT NOT NULL,
  name TEXT NOT NULL,
  sent_by TEXT NOT NULL,
  sent_at {time} NOT NULL,
  document {json} NOT NULL,
  PRIMARY KEY (run, signal_id)
){strict}
""",
)
"""Version 2 adds messages for runs."""

VERSION_3 = (
    "DROP INDEX runs_by_status",
    "CREATE INDEX runs_by_status ON runs (status, started_at, run)",
    "CREATE INDEX runs_by_workflow ON runs (workflow_name, status, started_at, run)",
    """
CREATE TABLE run_tags (
  run {int} NOT NULL REFERENCES runs (run) ON DELETE CASCADE,
  name TEXT NOT NULL,
  value TEXT NOT NULL,
  started_at {time} NOT NULL,
  PRIMARY KEY (run, name)
){rowless}
""",
    "CREATE INDEX tags_by_value ON run_tags (name, value, started_at, run)",
    "CREATE INDEX tags_by_name ON run_tags (name, started_at, run)",
)
"""Version 3 adds an index for each filter of a list, in the order of the list."""

VERSION_4 = (
    "CREATE INDEX IF NOT EXISTS runs_by_start ON runs (started_at, workflow_id)",
    "CREATE INDEX IF NOT EXISTS deleted_checkpoints ON checkpoints (run) WHERE deleted_at IS NOT NULL",
    """
CREATE TABLE IF NOT EXISTS pins (
  run {int} NOT NULL REFERENCES runs (run) ON DELETE CASCADE,
  sequence {int} NOT NULL,
  pinned_at {time} NOT NULL,
  PRIMARY KEY (run, sequence)
){rowless}
""",
)
"""Version 4 adds the tables of retention, which some databases of versions 2 and 3 already have."""

VERSION_5 = (
    """
CREATE TABLE result_index (
  name TEXT NOT NULL PRIMARY KEY,
  content {bytes} NOT NULL
){strict}
""",
)
"""Version 5 adds the index of results for `.cache()`; it is derived from the runs, and may be emptied."""

VERSION_6 = ("DROP INDEX IF EXISTS checkpoints_by_attempt",)
"""Version 6 drops an index that each save had to write: the primary key finds checkpoints (`AttemptLink`)."""


# The migrations of the schema. Existing ones are never changed.
#
# A database is migrated to the newest version when it is opened for use, in one exclusive transaction. A newer version
# than this program supports is refused when the database is opened, and when a run in it is claimed, because another
# program may have migrated it meanwhile.

Step = str | Callable[[Session], None]
"""A statement, or a function that changes existing rows."""

MIGRATIONS: Sequence[Sequence[Step]] = (
    VERSION_1,
    VERSION_2,
    (*VERSION_3, add_missing_tags),
    VERSION_4,
    VERSION_5,
    VERSION_6,
)
"""The migrations from version n to n + 1, at index n."""

NEWEST_APPLIED = f"SELECT max(version) FROM {VERSION_TABLE}"  # noqa: S608 - a constant
"""The query of a database's version, as a statement or subquery."""

_CREATED = re.compile(r"CREATE TABLE (?!IF NOT EXISTS)(\w+)")
"""The tables that a statement creates, except those that may already exist."""

OWN_TABLES = frozenset({"attempts", "checkpoints", "runs", "step_results"})
"""Tables that together identify a database of flowckpt, even if the table of versions is missing."""

_TABLE = f"""
CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (
  version {{int}} NOT NULL PRIMARY KEY,
  applied_at {{time}} NOT NULL,
  program TEXT NOT NULL
){{strict}}
"""


def migrate(session: Session, where: str) -> None:
    """Migrate a database to the newest version, within an exclusive transaction.

    It may take longer than a lease, which cannot be renewed meanwhile, so leases are extended by that time.

    Args:
        session: the open transaction.
        where: the database, for people.

    Raises:
        UnsupportedSchemaError: the database has a newer version.
        CheckpointCorruptedError: it has tables of a newer version than its own.
    """
    dialect = session.dialect
    session.execute(dialect.render(_TABLE))
    version = read_version(session)
    check_version(version)
    _check_tables(session, version, where)
    start = session.now()
    for number, steps in enumerate(MIGRATIONS[version:], version + 1):
        for step in steps:
            if isinstance(step, str):
                session.execute(dialect.render(step))
            else:
                step(session)
        session.execute(
            f"INSERT INTO {VERSION_TABLE} (version, applied_at, program) VALUES (?, ?, ?)",  # noqa: S608 - a constant
            (number, format_time(session.now()), __version__),
        )
    if 0 < version < len(MIGRATIONS):
        extend_leases(session, start)


def _check_tables(session: Session, version: int, where: str) -> None:
    """Refuse a database with tables of a newer version than its table of versions shows."""
    names = {name for (name,) in session.execute(session.dialect.render("SELECT name FROM {tables}"))}
    for number, steps in enumerate(MIGRATIONS[version:], version + 1):
        created = {name for step in steps if isinstance(step, str) for name in _CREATED.findall(step)}
        for name in sorted(created & names):
            raise CheckpointCorruptedError(
                "",
                location=where,
                detail=f"table {VERSION_TABLE} says version {version}, but version {number} made table {name}, which "
                f"exists: rows of {VERSION_TABLE} were removed or changed",
                remedy=f"Nothing was changed. Restore the database from a backup, or insert the missing rows of {VERSION_TABLE}.",
            )


_COLUMNS = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\w+) \(\n(.*?)\n\)", re.DOTALL)
_COLUMN = re.compile(r"^  ([a-z]\w*) ", re.MULTILINE)
_VIEW = re.compile(r"CREATE VIEW (\w+)")


def find_missing_parts(session: Session) -> list[str]:
    """Return the missing tables, columns and views of a database of the newest version, in words.

    The result for a database without any tables is empty: it was removed, not damaged.
    """
    present: dict[str, set[str]] = {}
    for name, column in session.execute(session.dialect.render("SELECT name, of_it FROM {columns}")):
        present.setdefault(name, set()).add(column)
    statements = [step for steps in MIGRATIONS for step in (*steps, _TABLE) if isinstance(step, str)]
    tables = {table: _COLUMN.findall(body) for each in statements for table, body in _COLUMNS.findall(each)}
    if not present.keys() & tables.keys():
        return []
    missing = [f"table {table}" for table in sorted(tables.keys() - present.keys())]
    for table in sorted(tables.keys() & present.keys()):
        missing += [f"column {name} of table {table}" for name in tables[table] if name not in present[table]]
    views = {view for each in statements for view in _VIEW.findall(each)}
    return missing + [f"view {view}" for view in sorted(views - present.keys())]


def missing_parts_error(parts: Sequence[str], where: str = "") -> CheckpointCorruptedError:
    """Return the error for a database that lacks tables, columns or views.

    Args:
        parts: the missing parts, in words.
        where: the database, for people.
    """
    return CheckpointCorruptedError(
        "",
        location=where,
        detail=f"the database lacks {', '.join(parts)}, removed or renamed by another program",
        remedy="Nothing was changed. Undo that change, or restore the database from a backup.",
    )


def read_version(session: Session) -> int:
    """Return the version of a database with a table of versions; 0 if nothing was applied yet."""
    return int(session.execute(NEWEST_APPLIED)[0][0] or 0)


def check_version(version: int, *, is_open: bool = False) -> None:
    """Refuse a database of a newer version than this program supports.

    Args:
        version: the version of the database.
        is_open: whether this program has opened it before, so that a newer program has migrated it since.

    Raises:
        UnsupportedSchemaError: it is newer.
    """
    if version > len(MIGRATIONS):
        advice = _MIGRATED_MEANWHILE if is_open else {}
        raise UnsupportedSchemaError(found=version, supported=len(MIGRATIONS), what="database", **advice)


_MIGRATED_MEANWHILE = {
    "detail": "a newer flowckpt has migrated it while this program had it open",
    "remedy": "Upgrade flowckpt in this program's environment, and start the program again. Nothing was changed.",
}


# Waiting for another process that migrates a database, which may take minutes.


_log = logging.getLogger("flowckpt")

NOTICE_SECONDS = 2.0
"""Seconds to wait before a log message."""

PATIENCE_SECONDS = 600.0
"""Maximum seconds to wait."""

_LONGEST_PAUSE = 0.5


class MigrationWait:
    """A wait for a migration, in short pauses, with one log message.

    Args:
        store: the store, for people.
        start: when the wait started, in seconds of `time.monotonic`; now by default.
    """

    def __init__(self, store: str, *, start: float | None = None) -> None:
        self._store = store
        self._start = time.monotonic() if start is None else start
        self._pause = 0.02
        self._has_warned = False

    def pause(self) -> None:
        """Wait for a moment.

        Raises:
            CheckpointStorageError: the wait has taken too long.
        """
        waited = time.monotonic() - self._start
        if waited > PATIENCE_SECONDS:
            raise CheckpointStorageError(
                f"another process has been migrating the tables of {self._store} for more than "
                f"{PATIENCE_SECONDS:g} s, and they cannot be used meanwhile",
                operation="wait for a migration",
                remedy="Check that process, and try again after it has ended. Nothing was changed here.",
            )
        if waited > NOTICE_SECONDS and not self._has_warned:
            _log.warning(
                "another process is migrating the tables of %s to its version; waiting for it, at most %g s",
                self._store,
                PATIENCE_SECONDS,
            )
            self._has_warned = True
        time.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - not all at once
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE)
