"""Not waiting as long again for a database that is busy, once somebody has stopped such a wait: the program is to end.

A second Ctrl-C ends the save that waits. What comes behind it, as the run is given back, would find the database busy
still, and wait for minutes once more. It tries for a moment, and says that it did not get through.
"""

from __future__ import annotations

from flowckpt.errors import CheckpointStorageError

HURRIED_SECONDS = 1.0
"""How long to wait where a wait was stopped."""


class Hurry:
    """Whether a wait for a database was stopped, and nothing has gone through since.

    Attributes:
        is_on: whether that is so.
    """

    def __init__(self) -> None:
        self.is_on = False

    def error(self, store: str, workflow_id: str, operation: str) -> CheckpointStorageError:
        """Return what is raised where a database is busy still.

        Args:
            store: the store, as it may be shown.
            workflow_id: the run, or an empty text.
            operation: what was to be done.
        """
        run = f" run {workflow_id!r}" if workflow_id else ""
        return CheckpointStorageError(
            f"{store} could not {operation}{run}: another process keeps it locked, and it was not waited for, as a wait "
            "for it has just been stopped",
            workflow_id=workflow_id,
            operation=operation,
            remedy="See which program has it locked, and try again when that has ended. Nothing was changed here.",
        )
