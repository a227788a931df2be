"""The port between the rules of the SQL stores and the two databases.

Statements are written with `?`. Work may be repeated after a lost connection, so it must be idempotent.
"""

# ruff: noqa: B027  # empty methods of Database are defaults that do nothing

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
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

    @property
    def dialect(self) -> Dialect:
        """The SQL dialect."""
        ...

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        ...

    def change(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        """Run a statement and return the number of changed rows."""
        ...

    def now(self) -> datetime:
        """Return the time used for leases."""
        ...


@attrs.define(eq=False)  # one for each save: a frozen one takes twice as long to make
class Addition:
    """The rows of one save, written in one transaction if its fence holds.

    Attributes:
        workflow_id: the run, for errors.
        writer: the name of the owner: the fence.
        checkpoint: the row of the checkpoint.
        results: the rows of the new results.
        others: further statements with their rows, in order.
        may_be_saved: whether an earlier write of it had an unknown outcome.
    """

    operation: ClassVar[str] = "save"
    workflow_id: str
    writer: str
    checkpoint: Row
    results: Sequence[Row]
    others: Sequence[tuple[str, Sequence[Row]]] = ()
    may_be_saved: bool = False

    @property
    def run(self) -> int:
        """The run's key."""
        key: int = self.checkpoint[0]
        return key

    @property
    def advance(self) -> Row:
        """The values of `rows.ADVANCE`."""
        run, sequence, _, _, _, status, steps, saved_at, *_ = self.checkpoint
        return sequence, sequence, steps, status, saved_at, run, self.writer, sequence

    @property
    def identity(self) -> Row:
        """The values of `rows.IS_SAVED`; the digest identifies the checkpoint."""
        run, sequence, *_, digest, _ = self.checkpoint
        return run, sequence, digest, self.writer


@attrs.frozen
class Work:
    """A transaction that writes for one run.

    Attributes:
        workflow_id: the run, for errors.
        operation: the verb for errors.
        do: does the work and returns rows; an exception rolls it back.
        statements: statements with the same effect that need no intermediate results, if the database supports them;
            the last one returns the rows. They are sent once: after a failure, `do` determines whether they were
            executed.
    """

    workflow_id: str
    operation: str
    do: Callable[[Session], Any]
    statements: Sequence[tuple[str, Row]] = ()


Item = Addition | Work
Outcome = Any
"""The result of an item (of a save: whether its fence held), or its exception."""

Completion = Callable[[Outcome], Any]
"""Handles an outcome, and returns or raises the caller's result."""


def unwrap_outcome(outcome: Outcome) -> Any:
    """Return the result of an item, or raise its error."""
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def storage_error(store: str, workflow_id: str, operation: str, reason: str, **options: Any) -> CheckpointStorageError:
    """Return the error for a failed operation of a database.

    Args:
        store: the store, for people.
        workflow_id: the run; may be empty.
        operation: the verb for the operation.
        reason: why it failed.
        **options: further fields of the error.
    """
    run = f" run {workflow_id!r}" if workflow_id else ""
    message = f"{store} could not {operation}{run}: {reason}"
    return CheckpointStorageError(message, workflow_id=workflow_id, operation=operation, **options)


@contextlib.contextmanager
def closed_on_error(connection: Any) -> Iterator[None]:
    """Close a new connection if the block, which prepares it, fails."""
    try:
        yield
    except BaseException:
        connection.close()
        raise


class Database(ABC):
    """The database of the tables."""

    @property
    @abstractmethod
    def dialect(self) -> Dialect:
        """The SQL dialect."""

    @abstractmethod
    def read(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Read in one transaction, from one snapshot.

        Args:
            workflow_id: the run, for errors.
            operation: the verb for errors.
            work: reads, with the session.

        Raises:
            CheckpointStorageError: the database failed.
            CheckpointCorruptedError: it is damaged.
        """

    @abstractmethod
    def write(self, workflow_id: str, operation: str, work: Callable[[Session], T]) -> T:
        """Write in one transaction, and commit it durably; see `read`."""

    @abstractmethod
    def write_now(self, item: Item) -> Any:
        """Write a save or other work durably, and return its result: of a save, whether its fence held.

        Args:
            item: the item; a save whose fence does not hold is not written.

        Raises:
            CheckpointStorageError: the database failed; the error says whether the rows of a save may exist.
        """

    @abstractmethod
    def write_once(self, addition: Addition) -> bool:
        """Write the rows of a save with an unknown outcome unless they exist, with a short wait for the database.

        Args:
            addition: the rows as passed to `now`.

        Returns:
            Whether the fence held.

        Raises:
            CheckpointStorageError: the outcome is still unknown.
        """

    def write_later(self, item: Item, complete: Completion) -> asyncio.Future[Any]:
        """Write a save or other work together with other pending items, and return at once.

        Args:
            item: the item.
            complete: called on another thread after the commit; it returns or raises the result of the future.
        """
        raise NotImplementedError

    def probe(self) -> None:
        """Check, without a wait, that the database answers.

        Raises:
            CheckpointStorageError: it does not.
        """

    def identify(self) -> object:
        """Return a value that changes if another database replaces this one, as far as that takes no time."""
        return None

    def find_damage(self) -> list[str]:
        """Return the damage that the database itself reports."""
        return []

    def total_bytes(self) -> int:
        """Return the size of the database in bytes, including indexes."""
        return 0

    def release_space(self) -> None:
        """Return free pages to the system if that is cheap and blocks no process."""

    def close(self) -> None:
        """Close the connections of this process."""


# Concurrent writes share one transaction with one sync. Each save has its own fence in it, is acknowledged after the
# commit, and fails on its own.
#
# There is no delay to fill a group: the next group gathers while one is written, so a single save never waits.

_GROUP_SIZE = 256
"""Maximum saves in one transaction, because other processes wait for it."""

_IDLE_SECONDS = 1.0
"""Seconds that the writing thread waits for more items before it ends."""


_THREADS = 16
"""The threads for items that could not be written in a group."""


@attrs.frozen
class Separate:
    """The outcome of an item that must be written on its own, on another thread.

    Attributes:
        item: the item, or its remaining work.
    """

    item: Item


_Pending = tuple[Item, Completion, "asyncio.Future[Any] | None"]


class GroupCommit:
    """The pending saves, claims and releases.

    Args:
        write: writes a group, and returns the outcome of each item.
    """

    def __init__(self, write: Callable[[Sequence[Item]], Sequence[Outcome]]) -> None:
        self._write = write
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._pending: deque[_Pending] = deque()
        self._turn = threading.Lock()  # held by the thread that writes a group
        self._arrival = threading.Condition(threading.Lock())
        self._has_thread = False
        self._is_idle = False

    def write_now(self, item: Item) -> Any:
        """Write an item on this thread, together with pending ones, and return its result."""
        self._reset_in_child()
        outcomes: list[Outcome] = []
        is_written = threading.Event()

        def complete(outcome: Outcome) -> None:
            outcomes.append(outcome)
            is_written.set()

        self._pending.append((item, complete, None))
        with self._turn:
            while self._pending and not outcomes:
                self._write_some()
        is_written.wait()
        return unwrap_outcome(outcomes[0])

    def write_later(self, item: Item, complete: Completion) -> asyncio.Future[Any]:
        """Write an item on the writing thread, together with pending ones, even if the future is cancelled.

        Raises:
            CheckpointStorageError: no thread can be started; the item is not written.
        """
        self._reset_in_child()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        waiting: _Pending = item, complete, answer
        self._pending.append(waiting)
        if self._is_idle or not self._has_thread:  # in this order: an ending thread sets them in the reverse order
            with self._arrival:
                if not self._has_thread:
                    try:
                        start_thread(self._write_all, "flowckpt-saves")
                    except CheckpointStorageError:
                        with contextlib.suppress(ValueError):  # another thread, in `now`, already writes it
                            self._pending.remove(waiting)
                            raise
                        return answer
                    self._has_thread = True
                self._arrival.notify()
        return answer

    def _write_all(self) -> None:
        while True:
            with self._arrival:
                self._is_idle = True
                self._has_thread = bool(self._arrival.wait_for(lambda: self._pending, _IDLE_SECONDS))
                self._is_idle = False
                if not self._has_thread:
                    return
            with self._turn:
                self._write_some()

    def _write_some(self) -> None:
        group: list[_Pending] = []
        while self._pending and len(group) < _GROUP_SIZE:
            group.append(self._pending.popleft())
        if group:
            alone = self._write_group(group)
            try:
                for _ in range(min(len(alone), _THREADS)):
                    start_thread(partial(self._write_each, alone), "flowckpt-save")
            except CheckpointStorageError:  # this thread writes the remaining items
                self._write_each(alone)

    def _write_each(self, waiting: deque[_Pending]) -> None:
        with contextlib.suppress(IndexError):  # none remain
            while True:
                self._write_group([waiting.popleft()])

    def _write_group(self, group: Sequence[_Pending]) -> deque[_Pending]:
        """Write a group and deliver the results; return the items that must be written on their own."""
        try:
            outcomes = self._write([item for item, _, _ in group])
        except BaseException as error:
            outcomes = [error] * len(group)
        alone: deque[_Pending] = deque()
        answers: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any, BaseException | None]]] = {}
        for (_, complete, future), outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Separate):
                alone.append((outcome.item, complete, future))
                continue
            answer: Any = None
            failure: BaseException | None = None
            try:
                answer = complete(outcome)
            except BaseException as error:  # delivered to the caller
                failure = error
            if future is not None:
                answers.setdefault(future.get_loop(), []).append((future, answer, failure))
        for loop, answered in answers.items():  # wakes each loop once for the whole group
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(_deliver, answered)
        return alone

    def _reset_in_child(self) -> None:
        if self._pid != os.getpid():  # a forked child has neither the thread nor the holders of the locks
            self._reset()


def _deliver(answered: Sequence[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, answer, error in answered:
        if not future.done():
            future.set_result(answer) if error is None else future.set_exception(error)


def prepare_again(item: Item, *, is_uncertain: bool) -> Item:
    """Return an item for writing it separately after its group failed, possibly after a commit."""
    if isinstance(item, Work):
        return attrs.evolve(item, statements=())
    return attrs.evolve(item, may_be_saved=True) if is_uncertain else item


class GroupingDatabase(Database):
    """A database that writes concurrent items in one transaction."""

    def __init__(self) -> None:
        self._group = GroupCommit(self._write_group)

    @abstractmethod
    def _write_group(self, items: Sequence[Item]) -> Sequence[Outcome]:
        """Write items, and return the outcome of each; an exception is the outcome of all."""

    @abstractmethod
    def _write_work(self, work: Work) -> Any:
        """Do work in its own transaction, and return its result."""

    @abstractmethod
    def _write_addition(self, addition: Addition) -> bool:
        """Write the rows of a save in their own transaction, unless they may exist and do; return whether the fence holds."""

    def _write_alone(self, item: Item) -> Any:
        return self._write_work(item) if isinstance(item, Work) else self._write_addition(item)

    def _try_to_write(self, item: Item, *, is_uncertain: bool = False) -> Outcome:
        """Write an item in its own transaction, and return its result or its error.

        Args:
            item: the item.
            is_uncertain: whether a group that contained it may have been committed.
        """
        try:
            return self._write_alone(prepare_again(item, is_uncertain=is_uncertain))
        except CheckpointStorageError as error:
            error.is_outcome_unknown = error.is_outcome_unknown or is_uncertain
            return error
        except Exception as error:
            return error

    def write_now(self, item: Item) -> Any:
        """Write a save or other work durably."""
        if threading.get_ident() == threading.main_thread().ident:  # a Ctrl-C there must not affect other runs
            return self._write_alone(item)
        return self._group.write_now(item)

    def write_later(self, item: Item, complete: Completion) -> asyncio.Future[Any]:
        """Write a save or other work in the next group."""
        return self._group.write_later(item, complete)


# After a wait for a busy database was interrupted, later waits are short, because the program is about to end.
#
# A second Ctrl-C interrupts a save that waits. Later work, such as the release of the run, would find the database
# still busy and wait for minutes again. Instead it tries for a moment and reports a failure.


HURRIED_SECONDS = 1.0
"""Seconds to wait after an interrupted wait."""


class ShortWaits:
    """Whether a wait for a database was interrupted, and no operation has succeeded since.

    Args:
        store: the store, for people.

    Attributes:
        is_on: whether this is the case.
    """

    def __init__(self, store: str) -> None:
        self._store = store
        self.is_on = False

    def busy_error(self, workflow_id: str, operation: str) -> CheckpointStorageError:
        """Return the error for a database that is still busy.

        Args:
            workflow_id: the run; may be empty.
            operation: the verb for the error.
        """
        reason = "another process keeps it locked, and the wait for it was interrupted"
        remedy = "Find the program that has it locked, and try again after it has ended. Nothing was changed here."
        return storage_error(self._store, workflow_id, operation, reason, remedy=remedy)
