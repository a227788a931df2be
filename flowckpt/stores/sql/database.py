"""The port between the rules of the SQL stores and the two databases.

Statements are written with `?`. Work that is handed in may be done again after a lost connection, so it must come to
the same when it was done before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import attrs

from flowckpt.errors import CheckpointStorageError

if TYPE_CHECKING:
    from flowckpt.stores.sql.layout import Dialect

T = TypeVar("T")
Row = tuple[Any, ...]


class Session(Protocol):
    """An open transaction."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        ...

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return how many rows it changed."""
        ...

    def now(self) -> datetime:
        """Return the time that leases are measured by."""
        ...


@attrs.frozen
class Addition:
    """The rows of one save, to be written in one transaction, or not at all where the fence does not hold.

    Attributes:
        run: the run's key.
        workflow_id: the run, for errors.
        attempt: the attempt.
        writer: who may write to the run: the fence.
        sequence: the checkpoint's sequence.
        digest: the checkpoint's digest, which tells it from any other.
        advance: the values of `rows.ADVANCE`.
        checkpoint: the row of the checkpoint.
        results: the rows of the new results.
        others: further statements with their rows, in their order.
    """

    run: int
    workflow_id: str
    attempt: int
    writer: str
    sequence: int
    digest: str
    advance: Row
    checkpoint: Row
    results: Sequence[Row]
    others: Sequence[tuple[str, Sequence[Row]]] = ()

    @property
    def identity(self) -> Row:
        """The values of `rows.IS_THERE`."""
        return self.run, self.sequence, self.digest, self.writer


class Database(Protocol):
    """The database of the tables."""

    @property
    def dialect(self) -> Dialect:
        """How statements are written."""
        ...

    def read(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Do work that reads, in one transaction of one moment.

        Args:
            workflow_id: the run, for errors.
            operation: what is being done, for errors.
            work: what to do.

        Raises:
            CheckpointStorageError: the database failed.
            CheckpointCorruptedError: it is damaged.
        """
        ...

    def write(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Do work that writes, in one transaction, and commit it durably.

        Args:
            workflow_id: the run, for errors.
            operation: what is being done, for errors.
            work: what to do.

        Raises:
            CheckpointStorageError: the database failed.
            CheckpointCorruptedError: it is damaged.
        """
        ...

    def add(self, addition: Addition) -> bool:
        """Write the rows of a save durably, or tell that the fence does not hold and write nothing.

        Args:
            addition: the rows.

        Raises:
            CheckpointStorageError: the database failed; it says whether the rows may be there.
        """
        ...

    def settle(self, addition: Addition) -> bool:
        """Write the rows of a save whose outcome is unknown, unless they are there, and without much patience.

        Args:
            addition: the rows, as they were given to `add`.

        Returns:
            Whether the fence holds.

        Raises:
            CheckpointStorageError: the outcome is as unknown as before.
        """
        ...

    def probe(self) -> None:
        """Return at once where the database answers.

        Raises:
            CheckpointStorageError: it does not.
        """
        ...

    def mark(self) -> object:
        """Return what tells this database from another one in its place, as far as that can be had for nothing."""
        ...

    def damages(self) -> list[str]:
        """Return what the database itself finds damaged."""
        ...

    def give_back_space(self) -> None:
        """Give pages that are free back to the system, where that is cheap and keeps nobody waiting."""
        ...

    def close(self) -> None:
        """Close the connections of this process."""
        ...


# Not waiting as long again for a database that is busy, once somebody has stopped such a wait: the program is to end.
#
# A second Ctrl-C ends the save that waits. What comes behind it, as the run is given back, would find the database busy
# still, and wait for minutes once more. It tries for a moment, and says that it did not get through.


HURRIED_SECONDS = 1.0
"""How long to wait where a wait was stopped."""


class StopWaiting:
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
