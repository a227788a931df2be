"""The port between the rules of the SQL stores and the two databases.

Statements are written with `?`. Work that is handed in may be done again after a lost connection, so it must come to
the same when it was done before.
"""

# ruff: noqa: B027  # a default that does nothing is what an empty method of Database is for

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import attrs

from flowckpt.core.system.blocking import start_thread
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
        may_be_there: whether it was written before, with an unknown outcome.
    """

    run: int
    operation: ClassVar[str] = "save"
    workflow_id: str
    attempt: int
    writer: str
    sequence: int
    digest: str
    advance: Row
    checkpoint: Row
    results: Sequence[Row]
    others: Sequence[tuple[str, Sequence[Row]]] = ()
    may_be_there: bool = False

    @property
    def identity(self) -> Row:
        """The values of `rows.IS_THERE`."""
        return self.run, self.sequence, self.digest, self.writer


@attrs.frozen
class Work:
    """Work that writes for one run, in one transaction.

    Attributes:
        workflow_id: the run, for errors.
        operation: what is being done, for errors.
        do: does it, and returns rows; what it raises undoes it.
        statements: what does the same without an answer in between, if the database can; the last one returns the rows.
            They are sent once: after a failure, `do` finds out whether it was done.
    """

    workflow_id: str
    operation: str
    do: Callable[[Session], Any]
    statements: Sequence[tuple[str, Row]] = ()


Item = Addition | Work
Outcome = Any
"""The value that an item returned (of a save: whether its fence held), or the exception that it failed with."""

End = Callable[[Outcome], Any]
"""Takes note of an outcome, and returns or raises what the caller gets."""


def answer_of(outcome: Outcome) -> Any:
    """Return what an item returned, or raise its error."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


class Database(ABC):
    """The database of the tables."""

    @property
    @abstractmethod
    def dialect(self) -> Dialect:
        """How statements are written."""

    @abstractmethod
    def read(self, workflow_id: str, operation: str, work: Callable[[Any], T]) -> T:
        """Do work that reads, in one transaction of one moment.

        Args:
            workflow_id: the run, for errors.
            operation: what is being done, for errors.
            work: what to do, given the session.

        Raises:
            CheckpointStorageError: the database failed.
            CheckpointCorruptedError: it is damaged.
        """

    @abstractmethod
    def write(self, workflow_id: str, operation: str, work: Callable[[Any], T]) -> T:
        """Do work that writes, in one transaction, and commit it durably; see `read`."""

    @abstractmethod
    def now(self, item: Item) -> Any:
        """Write a save or other work durably, and return what it returns: of a save, whether its fence holds.

        Args:
            item: what to write; nothing is written of a save whose fence does not hold.

        Raises:
            CheckpointStorageError: the database failed; it says whether the rows of a save may be there.
        """

    @abstractmethod
    def settle(self, addition: Addition) -> bool:
        """Write the rows of a save whose outcome is unknown, unless they are there, and without much patience.

        Args:
            addition: the rows, as they were given to `now`.

        Returns:
            Whether the fence holds.

        Raises:
            CheckpointStorageError: the outcome is as unknown as before.
        """

    def later(self, item: Item, end: End) -> asyncio.Future[Any]:
        """Write a save or other work together with what else waits, and return at once.

        Args:
            item: what to write.
            end: called on another thread after the commit; what it returns or raises is the result of the future.
        """
        raise NotImplementedError

    def probe(self) -> None:
        """Return at once where the database answers.

        Raises:
            CheckpointStorageError: it does not.
        """

    def mark(self) -> object:
        """Return what tells this database from another one in its place, as far as that can be had for nothing."""
        return None

    def damages(self) -> list[str]:
        """Return what the database itself finds damaged."""
        return []

    def total_bytes(self) -> int:
        """Return how many bytes the database takes, with its indexes."""
        return 0

    def give_back_space(self) -> None:
        """Give pages that are free back to the system, where that is cheap and keeps no process waiting."""

    def close(self) -> None:
        """Close the connections of this process."""


# What is to be written at the same time is written in one transaction with one sync. Each save is acknowledged after that
# commit, has a fence of its own in it, and fails alone.
#
# There is no pause for a group to fill: while one group is written the next one gathers, so a single save waits for nothing.

_AT_ONCE = 256
"""Saves in one transaction: other processes wait for it."""

_IDLE_SECONDS = 1.0
"""How long the writing thread waits for more before it ends."""


_THREADS = 16
"""Threads that write, each by itself, what could not be written in a group."""


@attrs.frozen
class Alone:
    """The outcome of an item that is to be written by itself, on another thread.

    Attributes:
        item: the item, or what is left to do of it.
    """

    item: Item


_Waiting = tuple[Item, End, "asyncio.Future[Any] | None"]


class GroupCommit:
    """The saves, claims and releases that wait to be written.

    Args:
        write: writes a group, and returns the outcome of each.
    """

    def __init__(self, write: Callable[[Sequence[Item]], Sequence[Outcome]]) -> None:
        self._write = write
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._waiting: deque[_Waiting] = deque()
        self._turn = threading.Lock()  # of the thread that writes a group
        self._some_wait = threading.Condition(threading.Lock())
        self._has_thread = False
        self._is_idle = False

    def now(self, item: Item) -> Any:
        """Write an item on this thread, with those that wait, and return what it returns."""
        self._leave_to_parent()
        if threading.get_ident() == threading.main_thread().ident:  # a Ctrl-C there concerns no other run
            return answer_of(self._write([item])[0])
        outcomes: list[Outcome] = []
        is_written = threading.Event()

        def end(outcome: Outcome) -> None:
            outcomes.append(outcome)
            is_written.set()

        self._waiting.append((item, end, None))
        with self._turn:
            while self._waiting and not outcomes:
                self._write_some()
        is_written.wait()
        return answer_of(outcomes[0])

    def later(self, item: Item, end: End) -> asyncio.Future[Any]:
        """Write an item on the writing thread, with those that wait, whatever becomes of the future.

        Raises:
            CheckpointStorageError: no thread can be started; the item is not written.
        """
        self._leave_to_parent()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting: _Waiting = item, end, answer
        self._waiting.append(waiting)
        if self._is_idle or not self._has_thread:  # in this order: a thread that ends sets them in the other one
            with self._some_wait:
                if not self._has_thread:
                    try:
                        start_thread(self._write_all, "flowckpt-saves")
                    except CheckpointStorageError:
                        with contextlib.suppress(ValueError):  # another thread, which is in `now`, writes it already
                            self._waiting.remove(waiting)
                            raise
                        return answer
                    self._has_thread = True
                self._some_wait.notify()
        return answer

    def _write_all(self) -> None:
        while True:
            with self._some_wait:
                self._is_idle = True
                self._has_thread = bool(self._some_wait.wait_for(lambda: self._waiting, _IDLE_SECONDS))
                self._is_idle = False
                if not self._has_thread:
                    return
            with self._turn:
                self._write_some()

    def _write_some(self) -> None:
        group: list[_Waiting] = []
        while self._waiting and len(group) < _AT_ONCE:
            group.append(self._waiting.popleft())
        if group:
            alone = self._write_group(group)
            try:
                for _ in range(min(len(alone), _THREADS)):
                    start_thread(partial(self._write_each, alone), "flowckpt-save")
            except CheckpointStorageError:  # this thread writes what the others have not begun
                self._write_each(alone)

    def _write_each(self, waiting: deque[_Waiting]) -> None:
        with contextlib.suppress(IndexError):  # there are no more
            while True:
                self._write_group([waiting.popleft()])

    def _write_group(self, group: Sequence[_Waiting]) -> deque[_Waiting]:
        """Write a group and give the answers; return those that have to be written alone."""
        try:
            outcomes = self._write([item for item, _, _ in group])
        except BaseException as error:
            outcomes = [error] * len(group)
        alone: deque[_Waiting] = deque()
        answers: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any, BaseException | None]]] = {}
        for (_, end, future), outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Alone):
                alone.append((outcome.item, end, future))
                continue
            answer: Any = None
            failure: BaseException | None = None
            try:
                answer = end(outcome)
            except BaseException as error:  # it is the caller's
                failure = error
            if future is not None:
                answers.setdefault(future.get_loop(), []).append((future, answer, failure))
        for loop, answered in answers.items():  # each loop is woken once for the whole group
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_give, answered)
        return alone

    def _leave_to_parent(self) -> None:
        if self._pid != os.getpid():  # a forked child has neither the thread nor those who hold the locks
            self._reset()


def _give(answered: Sequence[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, answer, error in answered:
        if not future.done():
            future.set_result(answer) if error is None else future.set_exception(error)


class GroupingDatabase(Database):
    """A database that writes what is to be written at the same time in one transaction."""

    def __init__(self) -> None:
        self._group = GroupCommit(self._write_group)

    @abstractmethod
    def _write_group(self, items: Sequence[Item]) -> Sequence[Outcome]:
        """Write items, and return the outcome of each; what it raises is the outcome of all."""

    def now(self, item: Item) -> Any:
        """Write a save or other work durably."""
        return self._group.now(item)

    def later(self, item: Item, end: End) -> asyncio.Future[Any]:
        """Write a save or other work in the next group."""
        return self._group.later(item, end)


# Not waiting as long again for a database that is busy, once somebody has stopped such a wait: the program is to end.
#
# A second Ctrl-C ends the save that waits. What comes behind it, as the run is given back, would find the database busy
# still, and wait for minutes again. It tries for a moment, and says that it did not get through.


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
