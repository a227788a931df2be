"""A save in PostgreSQL: one statement, which is one transaction and one message to the server and back.

The fence, the checkpoint and, as nearly always, its one result. What is rarer follows within a transaction.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowckpt.stores.postgres.pool import Connection
from flowckpt.stores.sql import rows
from flowckpt.stores.sql.database import Addition

_TYPES = {
    "int": "bigint",
    "real": "double precision",
    "bool": "boolean",
    "time": "timestamptz",
    "json": "json",
    "text": "text",
}


def placed(statement: str) -> bytes:
    """Return a statement with psycopg's placeholders."""
    return statement.replace("%", "%%").replace("?", "%s").encode()


def _added(name: str, table: str, columns: Mapping[str, str]) -> str:
    values = ", ".join(f"%s::{_TYPES[kind]}" for kind in columns.values())
    return f"{name} AS (INSERT INTO {table} ({', '.join(columns)}) SELECT {values} FROM fenced)"  # noqa: S608


_FENCED = f"WITH fenced AS ({rows.ADVANCE.replace('?', '%s')} RETURNING run)"
_CHECKPOINT = _added("checkpointed", "checkpoints", rows.CHECKPOINT_COLUMNS)
_RESULT = _added("resulted", "step_results", rows.RESULT_COLUMNS)
_WITHOUT_RESULT = f"{_FENCED}, {_CHECKPOINT} SELECT count(*) FROM fenced".encode()  # noqa: S608
_WITH_RESULT = f"{_FENCED}, {_CHECKPOINT}, {_RESULT} SELECT count(*) FROM fenced".encode()  # noqa: S608


def add(connection: Connection, addition: Addition) -> bool:
    """Write the rows of a save and commit, or tell that the fence does not hold.

    Args:
        connection: a connection that commits each statement.
        addition: the rows.
    """
    if len(addition.results) > 1 or addition.others:
        with connection.transaction():
            return _add_many(connection, addition)
    return _add_first(connection, addition)


def _add_first(connection: Connection, addition: Addition) -> bool:
    if addition.results:
        statement, values = _WITH_RESULT, (*addition.advance, *addition.checkpoint, *addition.results[0])
    else:
        statement, values = _WITHOUT_RESULT, (*addition.advance, *addition.checkpoint)
    row = connection.saver.execute(statement, values).fetchone()
    return row is not None and row[0] == 1


def _add_many(connection: Connection, addition: Addition) -> bool:
    if not _add_first(connection, addition):
        return False
    with connection.cursor() as cursor:
        if len(addition.results) > 1:
            cursor.executemany(placed(rows.ADD_RESULT), addition.results[1:])
        for statement, others in addition.others:
            if len(others) == 1:
                cursor.execute(placed(statement), others[0])
            else:
                cursor.executemany(placed(statement), others)
    return True


def is_there(connection: Connection, addition: Addition) -> bool:
    """Tell whether a save was committed whose answer was lost.

    The row of the run is locked first: a server process that is still at it has locked it too, and ends before us.

    Args:
        connection: another connection than the lost one.
        addition: the rows.
    """
    with connection.transaction():
        connection.execute(b"SELECT 1 FROM runs WHERE run = %s FOR UPDATE", (addition.run,))
        found = connection.execute(
            placed(rows.IS_THERE),
            addition.identity,
        ).fetchone()
    return found is not None
