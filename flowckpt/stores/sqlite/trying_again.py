"""How long something is tried again that a file did not take, because another process keeps it locked."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from flowckpt.stores.sql.hurry import HURRIED_SECONDS, Hurry
from flowckpt.stores.sql.migration_wait import NOTICE_SECONDS, MigrationWait
from flowckpt.stores.sqlite.failures import BUSY_SECONDS, is_busy
from flowckpt.stores.sqlite.migrating import is_going_on

T = TypeVar("T")


class TryingAgain:
    """The patience with one file.

    SQLite's own waiting sleeps up to 100 ms at a time, so among many writers it waits far too long.

    Args:
        path: the file.
        hurry: says whether somebody has stopped a wait, so that the next one is short.
    """

    def __init__(self, path: Path, hurry: Hurry) -> None:
        self._path = path
        self._hurry = hurry

    def until_done(self, act: Callable[[], T], workflow_id: str, operation: str) -> T:
        """Do something again while another process keeps the file locked; for longer while it brings the tables forward.

        Args:
            act: does it once.
            workflow_id: the run, for errors.
            operation: what is done to it, for errors.

        Raises:
            sqlite3.Error: it failed, or the file was locked for too long.
            CheckpointStorageError: it was locked, and somebody is in a hurry.
        """
        began = time.monotonic()
        look_at, end = began + NOTICE_SECONDS, began + BUSY_SECONDS
        migration: MigrationWait | None = None
        try:
            while True:
                try:
                    done = act()
                except sqlite3.Error as error:
                    if not is_busy(error):
                        raise
                    now = time.monotonic()
                    if self._hurry.is_on and now > began + HURRIED_SECONDS:
                        raise self._hurry.error(f"the SQLite store {self._path}", workflow_id, operation) from error
                    is_migrated = now > min(look_at, end) and is_going_on(self._path)
                    if now > end and not is_migrated:
                        raise
                else:
                    self._hurry.is_on = False
                    return done
                if is_migrated:
                    migration = migration or MigrationWait(f"the SQLite store {self._path}", began=began)
                    migration.pause()
                    end = time.monotonic() + BUSY_SECONDS
                    continue
                if now > look_at:
                    look_at = now + NOTICE_SECONDS
                time.sleep(random.uniform(0.0002, 0.004))  # noqa: S311 - so that two do not meet again and again
        except KeyboardInterrupt:
            self._hurry.is_on = True
            raise
