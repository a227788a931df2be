"""The connections of a store: kept open for the next who needs one, and never used by another process.

`psycopg_pool` keeps its connections with threads, which a forked child has not, and which a run of one step at a time
does not need. This is a list.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import Any

import psycopg


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection, with a cursor that is there for all its saves: making one takes 13 µs."""

    @functools.cached_property
    def saver(self) -> psycopg.Cursor[tuple[Any, ...]]:
        """The cursor."""
        return self.cursor()


_inherited: list[Connection] = []
"""Connections of a parent process: a child must not close them, as that would be told to the server."""


class ConnectionPool:
    """Open connections, the last one given back first.

    Args:
        connect: opens a connection.
        most_idle: how many are kept open that nobody uses.
    """

    def __init__(self, connect: Callable[[], Connection], *, most_idle: int = 4) -> None:
        self._connect = connect
        self._most_idle = most_idle
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    def take(self) -> Connection:
        """Return an open connection, which belongs to the caller until it gives it back."""
        self._leave_to_parent()
        with self._lock:
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def give_back(self, connection: Connection) -> None:
        """Take a connection back; one that is broken, in a transaction or too many is closed."""
        self._leave_to_parent()
        is_usable = not connection.closed and connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if is_usable and len(self._idle) < self._most_idle:
                self._idle.append(connection)
                return
        connection.close()

    def drop(self, connection: Connection) -> None:
        """Close a connection that has failed, and those that lead to the same server."""
        connection.close()
        self.close()

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._leave_to_parent()
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self.close()

    def _leave_to_parent(self) -> None:
        if self._pid != os.getpid():
            _inherited.extend(self._idle)
            self._pid, self._lock, self._idle = os.getpid(), threading.Lock(), []
