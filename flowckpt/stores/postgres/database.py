"""The PostgreSQL implementation of the port: broken connections are replaced, and operations retried.

A commit whose answer was lost may have succeeded. So after a lost connection, a save checks on another one whether its rows
exist before it writes them again; all other operations can be repeated harmlessly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import psycopg
from psycopg import IsolationLevel

from flowckpt.errors import CheckpointStorageError, FlowckptError, ForeignRecordError, ReadOnlyStoreError
from flowckpt.stores.postgres.connection import (
    LACKING,
    LOCKED,
    WRITABLE,
    Connection,
    ConnectionPool,
    OutageNotice,
    PostgresAddress,
    Retry,
    check_server,
    describe_grants,
    is_read_only,
    lock_migrations,
    select_cause,
    translate_error,
    unusable_error,
)
from flowckpt.stores.sql import rows
from flowckpt.stores.sql.database import (
    Addition,
    GroupingDatabase,
    Item,
    Outcome,
    Row,
    Separate,
    Session,
    ShortWaits,
    Work,
    closed_on_error,
    prepare_again,
)
from flowckpt.stores.sql.layout import (
    MIGRATIONS,
    NEWEST_APPLIED,
    OWN_TABLES,
    VERSION_TABLE,
    Dialect,
    check_version,
    find_missing_parts,
    migrate,
    missing_parts_error,
    read_version,
)

# A save in PostgreSQL: one statement, which is one transaction and one message to the server and back.
#
# It writes the fence, the checkpoint and usually one result. Anything else follows within a transaction.
#
# A group of saves is one statement, too: each column is sent as an array. Sent row by row, in one message, they take three
# times as much processor time of the client (`python -m benchmarks --only "many runs"`).


T = TypeVar("T")

_TYPES = {
    "int": "bigint",
    "real": "double precision",
    "bool": "boolean",
    "time": "timestamptz",
    "json": "json",
    "text": "text",
}


def convert_placeholders(statement: str) -> bytes:
    """Return a statement with psycopg's placeholders."""
    return statement.replace("%", "%%").replace("?", "%s").encode()


def _insert_values(name: str, table: str, columns: Mapping[str, str]) -> str:
    values = ", ".join(f"%s::{_TYPES[kind]}" for kind in columns.values())
    return f"{name} AS (INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM fenced)"  # noqa: S608


_FENCED = f"WITH fenced AS ({rows.ADVANCE.replace('?', '%s')} RETURNING run)"
_CHECKPOINT = _insert_values("checkpointed", "checkpoints", rows.CHECKPOINT_COLUMNS)
_RESULT = _insert_values("resulted", "step_results", rows.RESULT_COLUMNS)
_WITHOUT_RESULT = f"{_FENCED}, {_CHECKPOINT} SELECT count(*) FROM fenced".encode()  # noqa: S608
_WITH_RESULT = f"{_FENCED}, {_CHECKPOINT}, {_RESULT} SELECT count(*) FROM fenced".encode()  # noqa: S608


def _unnest(columns: Mapping[str, str]) -> str:
    values = ", ".join(f"%s::{_TYPES[kind]}[]" for kind in columns.values())
    return f"(SELECT * FROM unnest({values}) AS _ ({', '.join(columns)}))"  # noqa: S608


def _insert_joined(table: str, columns: Mapping[str, str], source: str) -> str:
    names = ", ".join(columns)
    return f"(INSERT INTO {table} ({names}) SELECT {names} FROM {source} JOIN fenced USING (item))"  # noqa: S608


_MOST_RESULTS = 100
"""Results of a save in that statement, which holds 1 GB at most; the others follow row by row."""

_ITEM = {"item": "int"}
_NO_RESULTS: list[Row] = [()] * (len(rows.RESULT_COLUMNS) + 1)
_TOGETHER = f"""
WITH given AS {_unnest({**rows.CHECKPOINT_COLUMNS, "writer": "text", **_ITEM})},
fenced AS (
  UPDATE runs SET last_sequence = given.sequence, latest_sequence = given.sequence, steps = given.steps,
    status = given.status, updated_at = given.saved_at
  FROM given
  WHERE runs.run = given.run AND runs.writer = given.writer AND runs.last_sequence < given.sequence
  RETURNING item
),
checkpointed AS {_insert_joined("checkpoints", rows.CHECKPOINT_COLUMNS, "given")},
resulted AS {_insert_joined("step_results", rows.RESULT_COLUMNS, f"{_unnest({**rows.RESULT_COLUMNS, **_ITEM})} AS results")}
SELECT item FROM fenced
""".encode()  # noqa: S608 - constants


def add(connection: Connection, addition: Addition) -> bool:
    """Write the rows of a save and commit; return False if the fence does not hold.

    Args:
        connection: a connection that commits each statement.
        addition: the rows.
    """
    if len(addition.results) > 1:
        holds: bool = write_group(connection, [addition])[0]
        return holds
    if not addition.others:
        return _add_alone(connection, addition)
    with connection.transaction(), connection.cursor() as cursor:
        if not _add_alone(connection, addition):
            return False
        _add_all_others(cursor, [addition])
    return True


def _add_alone(connection: Connection, addition: Addition) -> bool:
    statement = _WITH_RESULT if addition.results else _WITHOUT_RESULT
    result = addition.results[0] if addition.results else ()
    row = connection.saver.execute(statement, (*addition.advance, *addition.checkpoint, *result)).fetchone()
    return row is not None and row[0] == 1


def write_group(connection: Connection, items: Sequence[Item]) -> list[Outcome]:
    """Write saves and other work in one transaction, and all saves in one statement.

    Saves alone need one message to the server and one back. What a save writes besides its checkpoint and results goes with
    a second one, if the fence of the save holds.

    Args:
        connection: a connection that commits each statement.
        items: the items; at most one save per owner.

    Returns:
        The outcome of each, as `GroupCommit` takes them.
    """
    additions = {index: item for index, item in enumerate(items) if isinstance(item, Addition)}
    if len(additions) == len(items) and not any(map(_select_remaining, additions.values())):
        holding = _write_saves(connection.saver, additions)
        return [index in holding for index in range(len(items))]
    outcomes: dict[int, Outcome] = {}
    asking = {index: item for index, item in enumerate(items) if isinstance(item, Work) and not item.statements}
    at_once = contextlib.nullcontext() if asking or len(items) == 1 else connection.pipeline()
    with at_once, connection.transaction(), connection.cursor() as cursor:
        for index, work in asking.items():
            try:
                with connection.transaction():
                    outcomes[index] = work.do(PostgresSession(connection))
            except psycopg.Error:
                raise
            except Exception as error:  # it was refused and rolled back
                outcomes[index] = error
        for statement, parameters in _group_by_statement(items).items():
            cursor.executemany(statement, [values for _, values in parameters], returning=True)
            for index, _ in parameters:
                outcomes[index] = cursor.fetchall() if cursor.description else []
                cursor.nextset()
        if additions:
            holding = _write_saves(cursor, additions)
            outcomes.update((index, index in holding) for index in additions)
            _add_all_others(cursor, [additions[index] for index in sorted(holding)])
    return [outcomes[index] for index in range(len(items))]


def _write_saves(cursor: psycopg.Cursor[Row], additions: Mapping[int, Addition]) -> set[int]:
    """Write the checkpoints and results of the saves whose fences hold, and return their keys."""
    checkpoints = [(*each.checkpoint, each.writer, index) for index, each in additions.items()]
    results = [(*row, index) for index, each in additions.items() for row in each.results[:_MOST_RESULTS]]
    columns = [*zip(*checkpoints, strict=True), *(zip(*results, strict=True) if results else _NO_RESULTS)]
    # Not prepared: a plan that was made while the tables were small would read all of a large one.
    return {index for (index,) in cursor.execute(_TOGETHER, [*map(_format_array, columns)], prepare=False)}


def _format_array(values: Sequence[Any]) -> str:
    """Return an array in PostgreSQL's text format; psycopg needs 11 µs for each document."""
    return "{" + ",".join(["NULL" if each is None else _quote(str(each)) for each in values]) + "}"


def _quote(text: str) -> str:
    if '"' in text or "\\" in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _add_all_others(cursor: psycopg.Cursor[Row], additions: Sequence[Addition]) -> None:
    """Write the other rows of saves, each statement once for all saves that share it."""
    alike: dict[tuple[str, ...], list[Sequence[tuple[str, Sequence[Row]]]]] = {}
    for each in additions:
        rest = _select_remaining(each)
        alike.setdefault(tuple(statement for statement, _ in rest), []).append(rest)
    for statements, group in alike.items():
        for place, statement in enumerate(statements):
            values = [row for rest in group for row in rest[place][1]]
            cursor.execute(convert_placeholders(statement), values[0]) if len(values) == 1 else cursor.executemany(
                convert_placeholders(statement), values
            )


def _select_remaining(addition: Addition) -> Sequence[tuple[str, Sequence[Row]]]:
    """Return the rows of a save that are not in the group's common statement."""
    late = addition.results[_MOST_RESULTS:]
    return [(rows.ADD_RESULT, late), *addition.others] if late else addition.others


def _group_by_statement(items: Sequence[Item]) -> dict[bytes, list[tuple[int, Row]]]:
    """Return the values for each statement of the work that needs no answers in between, with the index of its item."""
    values: dict[bytes, list[tuple[int, Row]]] = {}
    for index, item in enumerate(items):
        if isinstance(item, Work):
            for text, row in item.statements:
                values.setdefault(convert_placeholders(text), []).append((index, row))
    return values


def is_saved(connection: Connection, addition: Addition) -> bool:
    """Return whether a save with a lost answer was committed.

    It locks the row of the run first: a server process that still works on the save holds that lock, so it ends before us.

    Args:
        connection: another connection than the lost one.
        addition: the rows.
    """
    with connection.transaction():
        connection.execute(b"SELECT 1 FROM runs WHERE run = %s FOR UPDATE", (addition.run,))
        row = connection.execute(convert_placeholders(rows.IS_SAVED), addition.identity).fetchone()
    return row is not None


DIALECT = Dialect(
    "postgresql",
    {
        "key": "bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
        **_TYPES,
        "bytes": "bytea",
        "strict": "",
        "rowless": "",
        "often": " WITH (fillfactor = 50)",
        "now": "clock_timestamp()",
        "figures": "t.document ->> 'figures'",
        "day": "to_char(saved_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
        # Locked first, so that of two runs removed at the same time, the second sees the removal of the first.
        "drop_contents": """
DO $do$ BEGIN
  CREATE FUNCTION drop_contents() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $drop$ BEGIN
    PERFORM 1 FROM blob_contents WHERE name = OLD.name FOR UPDATE;
    DELETE FROM blob_contents WHERE name = OLD.name AND NOT EXISTS (SELECT 1 FROM blobs WHERE name = OLD.name);
    RETURN NULL;
  END $drop$;
  CREATE TRIGGER drop_contents AFTER DELETE ON blobs FOR EACH ROW EXECUTE FUNCTION drop_contents();
END $do$
""",
        "median": "percentile_cont(0.5) WITHIN GROUP (ORDER BY duration_ms)",
        "tables": "(SELECT tablename::text AS name FROM pg_tables WHERE schemaname = current_schema()) AS tables",
        "columns": "(SELECT c.relname::text AS name, a.attname::text AS of_it FROM pg_class c JOIN pg_attribute a "
        "ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p', 'v')) AS columns",
    },
    lock=" FOR UPDATE",
    claim_new=f"""
WITH made AS (
  INSERT INTO runs (workflow_id, newest_attempt, writer)
  SELECT ?, ?::bigint, ? WHERE ({NEWEST_APPLIED}) <= ?::bigint
  ON CONFLICT (workflow_id) DO NOTHING RETURNING run
), claimed AS (
  INSERT INTO attempts (
    run, attempt, writer, host, boot_id, pid, start_time, acquired_at, heartbeat_at, lease_expires_at
  )
  SELECT run, ?::bigint, ?, ?, ?, ?::bigint, ?::bigint, now.moment, now.moment,
    now.moment + ?::double precision * interval '1 second'
  FROM made, (SELECT clock_timestamp() AS moment) AS now
)
SELECT run, ?::bigint FROM made
""",  # noqa: S608 - constants
    release="""
WITH freed AS (UPDATE runs SET writer = '' WHERE run = ? AND writer = ?)
UPDATE attempts SET released_at = clock_timestamp() WHERE run = ? AND writer = ? AND begun_at IS NOT NULL
""",
    announcement="SELECT pg_notify('flowckpt_' || md5(current_schema()), ?)",
)

_SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "extra_float_digits": "1",
    "lock_timeout": "2s",  # retried until the total limit: between two tries, the holder of the lock can be found
    "idle_in_transaction_session_timeout": "60s",  # so that a vanished client does not keep a run locked
    "client_min_messages": "warning",
}


class PostgresSession:
    """An open transaction."""

    dialect = DIALECT

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        cursor = self._connection.execute(convert_placeholders(statement), parameters)
        return cursor.fetchall() if cursor.description else []

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        return self._connection.execute(convert_placeholders(statement), parameters).rowcount

    def now(self) -> datetime:
        """Return the time of the server, the clock that all owners share."""
        row = self._connection.execute(b"SELECT clock_timestamp()").fetchone()
        assert row is not None, "a SELECT of a constant has a row"
        return cast("datetime", row[0])


class PostgresDatabase(GroupingDatabase):
    """A schema of a database.

    Args:
        address: the address of the store.
        patience_seconds: how long to retry while the server is unreachable.
    """

    def __init__(self, address: PostgresAddress, *, patience_seconds: float = 30.0) -> None:
        super().__init__()
        self.address = address
        self._patience = patience_seconds
        self._pool = ConnectionPool(self._connect)
        self._outage = OutageNotice(address)
        self._hurry = ShortWaits(f"the PostgreSQL store {address.shown}")
        self._is_up_to_date = False

    def __str__(self) -> str:
        return self.address.shown

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect."""
        return DIALECT

    def close(self) -> None:
        """Close the connections that are not in use."""
        self._pool.close()

    # --- the port --------------------------------------------------------------------------------------------------

    def read(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Run reading work in one transaction with one snapshot."""

        def read_once(connection: Connection) -> T:
            with connection.transaction():
                connection.execute(b"SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                return work(PostgresSession(connection))

        return self._retry(workflow_id, operation, read_once, is_write=False)

    def write(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Run writing work in one transaction, and commit it durably."""
        result: T = self._write_work(Work(workflow_id, operation, work))
        return result

    def _write_group(self, items: Sequence[Item]) -> Sequence[Outcome]:
        """Write items in one transaction; if that fails, each is written separately."""
        if len(items) == 1:
            return [self._try_to_write(items[0])]
        connection: Connection | None = None
        is_uncertain = False
        try:
            connection = self._pool.take()
            outcomes = write_group(connection, items)
        except psycopg.Error as error:
            if connection is not None:
                is_uncertain = _is_lost(error, connection)
                self._pool.drop(connection) if _is_gone(error, connection) else self._pool.give_back(connection)
        except BaseException:
            if connection is not None:
                self._pool.give_back(connection)
            raise
        else:
            self._pool.give_back(connection)
            return outcomes
        return [Separate(prepare_again(each, is_uncertain=is_uncertain)) for each in items]

    def _write_work(self, work: Work) -> Any:
        untried = work.statements

        def do_once(connection: Connection) -> Any:
            nonlocal untried
            session, statements, untried = PostgresSession(connection), untried, ()
            if len(statements) == 1:  # which is a transaction
                return session.execute(*statements[0])
            with connection.transaction():
                return [session.execute(*each) for each in statements][-1] if statements else work.do(session)

        return self._retry(work.workflow_id, work.operation, do_once)

    def write_once(self, addition: Addition) -> bool:
        """Write the rows of a save with unknown outcome, unless they exist; return whether the fence holds."""
        return self._add(addition, is_uncertain=True, patience=0.0)

    def _write_addition(self, addition: Addition) -> bool:
        return self._add(addition, is_uncertain=addition.may_be_saved)

    def probe(self) -> None:
        """Check that the server answers."""
        self._retry("", "save", lambda connection: connection.execute(b"SELECT 1"), patience=0.0)

    def _add(self, addition: Addition, *, is_uncertain: bool, patience: float | None = None) -> bool:
        def add_once(connection: Connection) -> bool:
            nonlocal is_uncertain
            was_uncertain = is_uncertain
            if was_uncertain and is_saved(connection, addition):
                return True
            is_uncertain = True
            try:
                holds = add(connection, addition)
            except psycopg.Error as error:
                is_uncertain = was_uncertain or _is_lost(error, connection)
                raise
            # A request in flight when the connection broke may have arrived in between.
            return holds or (was_uncertain and is_saved(connection, addition))

        try:
            return self._retry(addition.workflow_id, "save", add_once, patience=patience)
        except CheckpointStorageError as error:
            error.is_outcome_unknown = is_uncertain
            raise

    def find_damage(self) -> list[str]:
        """Return the tables that a crash of the server would empty; damaged pages are found when they are read."""
        statement = (
            "SELECT relname FROM pg_class WHERE relnamespace = ?::regnamespace AND relkind = 'r' "
            "AND relpersistence <> 'p'"
        )
        names = self.read("", "check", lambda session: session.execute(statement, (self.address.schema,)))
        return [f"table {name} is not logged: a crash of the server empties it" for (name,) in names]

    def total_bytes(self) -> int:
        """Return the sizes of the tables of the schema and of their indexes."""
        statement = (
            "SELECT COALESCE(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relkind = 'r' "
            "AND relnamespace = to_regnamespace(?)"
        )
        ((size,),) = self.read("", "read", lambda session: session.execute(statement, (self.address.schema,)))
        return int(size)

    # --- connections -----------------------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        connection = Connection.connect(self.address.conninfo, autocommit=True)
        with closed_on_error(connection):
            for name, value in {**_SETTINGS, "search_path": self.address.schema}.items():
                connection.execute(b"SELECT set_config(%s, %s, false)", (name, value))
            why_read_only = check_server(connection, self.address)
            # Whatever the server's default: after waiting for a lock, a transaction must see earlier commits.
            connection.isolation_level = IsolationLevel.READ_COMMITTED
            if not self._is_up_to_date:
                self._migrate_if_needed(connection, why_read_only)
                self._is_up_to_date = True
        return connection

    def _migrate_if_needed(self, connection: Connection, why_read_only: str) -> None:
        session = PostgresSession(connection)
        tables = self._list_tables(session)
        lacks = f"the schema {self.address.schema!r} contains no store yet"
        if VERSION_TABLE in tables:
            version = read_version(session)
            check_version(version)
            if version == len(MIGRATIONS):
                return
            lacks = f"its tables have version {version} and must first be migrated to version {len(MIGRATIONS)}"
        cause = None
        if not why_read_only:
            try:
                self._migrate(connection, session)
            except psycopg.Error as error:
                if not is_read_only(error):
                    raise
                why_read_only, cause = "this role has no write permission", select_cause(error, self.address)
            else:
                return
        reason = f"{lacks}, and {why_read_only}"
        raise ReadOnlyStoreError(str(self), reason=reason, operation="read", remedy=WRITABLE) from cause

    def _migrate(self, connection: Connection, session: PostgresSession) -> None:
        with connection.transaction():
            lock_migrations(session, self.address)
            tables = self._list_tables(session)
            if tables and VERSION_TABLE not in tables and not OWN_TABLES.issubset(tables):
                raise ForeignRecordError(
                    f"the schema {self.address.schema!r} of {self.address.shown} belongs to another program: it has "
                    f"{', '.join(tables[:5])}",
                    workflow_id="",
                    found=", ".join(tables[:5]),
                    remedy="Use a separate schema for flowckpt: postgresql://…?schema=NAME.",
                )
            session.execute(f"CREATE SCHEMA IF NOT EXISTS {self.address.schema}")
            if VERSION_TABLE in tables and read_version(session) < len(MIGRATIONS):
                # No claim can see the old version and commit after the new one.
                session.execute("LOCK TABLE runs IN EXCLUSIVE MODE")
            migrate(session, self.address.shown)

    def _list_tables(self, session: PostgresSession) -> list[str]:
        tables = session.execute(
            "SELECT c.relname::text, has_schema_privilege(n.oid, 'USAGE') "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE n.nspname = ? AND c.relkind IN ('r', 'p', 'v', 'm', 'f') ORDER BY 1",
            (self.address.schema,),
        )
        if not all(may_use for _, may_use in tables):  # to such a role, the tables would only appear to be missing
            raise unusable_error(self.address, "permission denied for its schema", describe_grants(self.address))
        return [name for name, _ in tables]

    def _retry(
        self,
        workflow_id: str,
        operation: str,
        act: Callable[[Connection], T],
        *,
        is_write: bool = True,
        patience: float | None = None,
    ) -> T:
        """Run an operation on a connection, and retry it on another one if the connection broke, up to the time limit."""
        seconds = self._patience if patience is None else patience
        tries = Retry(self.address, seconds, self._outage, is_hurried=self._hurry.is_on)
        try:
            while True:
                connection: Connection | None = None
                try:
                    connection = self._pool.take()
                    result = act(connection)
                except psycopg.Error as error:
                    is_lost = connection is None or _is_gone(error, connection)
                    if connection is not None and is_lost:
                        self._pool.drop(connection)
                    elif connection is not None:
                        tries.check_migration(error, connection)
                        self._pool.give_back(connection)
                    if tries.is_over(error, is_lost=is_lost):
                        raise self._translate_failure(
                            error, workflow_id, operation, is_write=is_write
                        ) from select_cause(error, self.address)
                except BaseException:
                    if connection is not None:
                        self._pool.give_back(connection)
                    raise
                else:
                    self._outage.is_over()
                    self._hurry.is_on = False
                    self._pool.give_back(connection)
                    return result
        except KeyboardInterrupt:
            self._hurry.is_on = True
            raise

    def _translate_failure(
        self, error: psycopg.Error, workflow_id: str, operation: str, *, is_write: bool
    ) -> FlowckptError:
        if error.sqlstate in LACKING and (parts := self._find_missing_parts()):
            return missing_parts_error(parts, self.address.shown)
        if self._hurry.is_on and error.sqlstate == LOCKED:
            return self._hurry.busy_error(workflow_id, operation)
        return translate_error(error, self.address, workflow_id, operation, is_write=is_write)

    def _find_missing_parts(self) -> list[str]:
        """Return the missing parts of the schema, in words; empty if they cannot be determined now."""
        with contextlib.suppress(psycopg.Error, FlowckptError):
            connection = self._pool.take()
            try:
                with connection.transaction():
                    return find_missing_parts(PostgresSession(connection))
            finally:
                self._pool.give_back(connection)
        return []


def _is_gone(error: psycopg.Error, connection: Connection) -> bool:
    """Return whether a connection is unusable. A broken socket may look intact: then no server has answered."""
    is_unanswered = isinstance(error, psycopg.OperationalError) and error.sqlstate is None
    return connection.closed or connection.broken or is_unanswered


def _is_lost(error: psycopg.Error, connection: Connection) -> bool:
    """Return whether the outcome of the transaction is unknown, because the server did not report a refusal."""
    return connection.closed or connection.broken or error.sqlstate is None or error.sqlstate.startswith(("08", "57P"))
