"""Fill a database with many runs quickly: one run is saved as usual, and the database copies its rows.

The digests of a run do not cover its id, so each copy is a valid run. Some kinds of runs are equally frequent in a small
and in a large store, so that lists return the same number of runs: crashed runs, waiting runs, those of a rare workflow,
and those with a rare tag.
"""

from __future__ import annotations

from typing import Any

from benchmarks import pipelines
from flowckpt import RunOptions, WorkflowEngine
from flowckpt.core.codec import dumps, encode

TEMPLATE = "template"
RARE = 60
"""The least number of runs of each rare kind."""

_COPIES = (
    """
INSERT INTO runs (run, workflow_id, workflow_name, status, steps, started_at, updated_at, metadata, newest_attempt,
  writer, head_attempt, latest_sequence, last_sequence)
SELECT 1000 + n, {id}, CASE WHEN n % {mark} = 5 THEN 'rare' ELSE 'workflow-' || (n % 2) END,
  CASE WHEN n % {mark} = 3 THEN 'running' WHEN n % {mark} = 4 THEN 'suspended' WHEN n % 5 = 0 THEN 'failed'
    WHEN n % 10 = 1 THEN 'cancelled' ELSE 'completed' END,
  t.steps, {moment}, {moment}, CASE WHEN n % {mark} = 6 THEN {rare} ELSE {often} END, 1, '', 1, t.latest_sequence,
  t.last_sequence
FROM runs t, {numbers} WHERE t.workflow_id = 'template'
""",
    """
INSERT INTO attempts (run, attempt, writer, host, boot_id, pid, start_time, acquired_at, heartbeat_at, lease_expires_at,
  released_at, begun_at, continues_attempt, continues_sequence, continues_results, head)
SELECT 1000 + n, attempt, 'bulk-' || n, host, boot_id, pid, start_time, acquired_at, heartbeat_at, lease_expires_at,
  released_at, begun_at, continues_attempt, continues_sequence, continues_results, head
FROM attempts, {numbers} WHERE run = {template}
""",
    """
INSERT INTO checkpoints (run, sequence, attempt, checkpoint_id, reason, status, steps, saved_at, size, verified,
  error_type, error_message, chain, digest, document)
SELECT 1000 + n, sequence, attempt, checkpoint_id, reason, status, steps, saved_at, size, verified,
  error_type, error_message, chain, digest, document
FROM {numbers}, checkpoints WHERE run = {template} ORDER BY n, sequence
""",
    """
INSERT INTO step_results (run, attempt, position, path, name, step_type, success, duration_ms, started_at, executed_in,
  tries, function, version, error_type, error_message, document)
SELECT 1000 + n, attempt, position, path, name, step_type, success, duration_ms, started_at, executed_in, tries,
  function, version, error_type, error_message, document
FROM {numbers}, step_results WHERE run = {template} ORDER BY n, position
""",
    """
INSERT INTO run_tags (run, name, value, started_at)
SELECT 1000 + n, CASE WHEN n % {mark} = 6 THEN 'ticket' ELSE 'team' END,
  CASE WHEN n % {mark} = 6 THEN '7' ELSE 'data' END, {moment}
FROM {numbers}
""",
)
_SQLITE = {
    "numbers": "(WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {count}) SELECT n FROM c) k",
    "moment": "strftime('%Y-%m-%dT%H:%M:%S.000000Z', '2026-01-01', n || ' seconds')",
    "id": "printf('run-%08d', n)",
}
_POSTGRES = {
    "numbers": "generate_series(1, {count}) AS k (n)",
    "moment": "timestamptz '2026-01-01Z' + n * interval '1 second'",
    "id": "'run-' || lpad(n::text, 8, '0')",
}


def run_id(number: int) -> str:
    """Return the id of a copy, from 1."""
    return f"run-{number:08d}"


def save_template(store: Any) -> None:
    """Create the run to copy."""
    WorkflowEngine(store).run_sync(
        pipelines.durable, workflow_id=TEMPLATE, count=2, options=RunOptions(tags={"team": "data"})
    ).unwrap()


def fill_sqlite(connection: Any, count: int) -> None:
    """Copy the template in an SQLite file that no other process uses."""
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -400000")
    connection.execute("BEGIN")
    for statement in _statements(connection, count, _SQLITE):
        connection.execute(statement)
    connection.execute("COMMIT")


def fill_postgres(connection: Any, count: int) -> None:
    """Copy the template in the schema of the search path, and let the server analyze its tables."""
    with connection.transaction():
        if connection.execute("SELECT current_setting('is_superuser')").fetchone() == ("on",):
            connection.execute("SET LOCAL session_replication_role = replica")  # the keys fit: they are copies
        for statement in _statements(connection, count, _POSTGRES):
            connection.execute(statement)
        # Advance the sequence beyond the numbers of the copies.
        connection.execute(f"ALTER TABLE runs ALTER COLUMN run RESTART WITH {count + 2000}")
    connection.execute("VACUUM ANALYZE")
    connection.execute("CHECKPOINT")


def _statements(connection: Any, count: int, words: dict[str, str]) -> list[str]:
    (template, text) = connection.execute(
        "SELECT run, CAST(metadata AS TEXT) FROM runs WHERE workflow_id = 'template'"
    ).fetchone()
    rare = text.replace(dumps(encode({"team": "data"})), dumps(encode({"ticket": "7"})))
    assert rare != text, "the tags of the template are not found"
    json = "::json" if words is _POSTGRES else ""
    known = {
        "mark": str(max(count // RARE, 7)),
        "template": str(template),
        "often": "'" + text.replace("'", "''") + f"'{json}",
        "rare": "'" + rare.replace("'", "''") + f"'{json}",
        **{name: word.replace("{count}", str(count)) for name, word in words.items()},
    }
    statements = []
    for statement in _COPIES:
        for name, word in known.items():
            statement = statement.replace("{" + name + "}", word)
        statements.append(statement)
    return statements
