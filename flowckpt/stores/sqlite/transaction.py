"""A transaction, and its COMMIT: the one statement that is made again by itself.

Before the journal is a WAL, a COMMIT waits for the readers that are in the file, and SQLite keeps new ones out of it
meanwhile. Who finds it busy still has the transaction open. To roll it back would let new readers in, and have all of
its work done again: among readers who come all the time, a large migration again and again.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator

from flowckpt.stores.sqlite.failures import BUSY_SECONDS, is_busy

_PAUSE_SECONDS = 0.001


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    """Do the block in a transaction, which is rolled back where the block or the COMMIT fails.

    Args:
        connection: the connection.
        begin: the statement that begins it.

    Raises:
        sqlite3.Error: what SQLite says.
    """
    connection.execute(begin)
    try:
        yield
        commit(connection)
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def commit(connection: sqlite3.Connection) -> None:
    """Commit, and wait for the readers who are in the file; nothing is rolled back here.

    Args:
        connection: the connection, with an open transaction.

    Raises:
        sqlite3.Error: what SQLite says; that it is busy, where the readers stay for too long.
    """
    end = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if not (is_busy(error) and connection.in_transaction) or time.monotonic() > end:
                raise
            time.sleep(_PAUSE_SECONDS)
        else:
            return
