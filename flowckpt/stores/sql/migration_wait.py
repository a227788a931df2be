"""Waiting for another process that brings the tables of a database forward, which may take minutes."""

from __future__ import annotations

import logging
import random
import time

from flowckpt.errors import CheckpointStorageError

_log = logging.getLogger("flowckpt")

NOTICE_SECONDS = 2.0
"""How long to wait without a word."""

PATIENCE_SECONDS = 600.0
"""How long to wait at all."""

_LONGEST_PAUSE = 0.5


class MigrationWait:
    """One wait, pause by pause, with one notice in the log.

    Args:
        store: where the tables are, as it may be shown.
        began: when the wait began, in seconds of `time.monotonic`; now where not given.
    """

    def __init__(self, store: str, *, began: float | None = None) -> None:
        self._store = store
        self._began = time.monotonic() if began is None else began
        self._pause = 0.02
        self._has_told = False

    def pause(self) -> None:
        """Wait for a moment.

        Raises:
            CheckpointStorageError: it has taken too long.
        """
        waited = time.monotonic() - self._began
        if waited > PATIENCE_SECONDS:
            raise CheckpointStorageError(
                f"another process has been bringing the tables of {self._store} forward for more than "
                f"{PATIENCE_SECONDS:g} s, and nothing can be done with them until it has ended",
                operation="wait for a migration",
                remedy="See whether that process goes on, and try again when it has ended. Nothing was changed here.",
            )
        if waited > NOTICE_SECONDS and not self._has_told:
            _log.warning(
                "another process is bringing the tables of %s forward to its version; this one waits for it, %g s at most",
                self._store,
                PATIENCE_SECONDS,
            )
            self._has_told = True
        time.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - so that many do not come back at once
        self._pause = min(self._pause * 1.5, _LONGEST_PAUSE)
