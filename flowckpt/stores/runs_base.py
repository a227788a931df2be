"""The runs of a store: the rules that files, buckets, databases and memory share.

`RunsBase` holds the runs that this process owns. A `RunWriter` is the only object that writes to one of them. The rules
of a save are in `RunWriter.save`: who may save, under which attempt and sequence, and that the history continues the
stored one. The abstract methods of both are what a medium implements: how it claims a run, how bytes
become durable, and how a writer learns that the run has a new owner. `BlockingStore` is the store around them: its async
methods run on a worker thread, or in place if nothing else could run meanwhile.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar, cast

from flowckpt import stores
from flowckpt.core import records
from flowckpt.core.codec import dumps
from flowckpt.core.codec.results import as_view
from flowckpt.core.records import CheckpointData, History, HistoryView, Reason
from flowckpt.core.system.blocking import may_block, run_blocking
from flowckpt.errors import (
    CheckpointStorageError,
    EncodingError,
    FencedError,
    ForeignRecordError,
    RunLockedError,
    SaveConflictError,
)
from flowckpt.stores.base import Finding, Lease, RunSurvey, StoreBase, refuse_failed
from flowckpt.stores.leases import Heartbeat, RunLimit

if TYPE_CHECKING:
    from flowckpt.core.codec.blob import Blob, Fetch
    from flowckpt.core.records.listing import CheckpointRef, Owner, RunFilter, RunInfo, Selection
    from flowckpt.stores.log.image import RunImage


_log = logging.getLogger("flowckpt")
_CONTINUED = Reason.CONTINUED  # an enum takes 60 ns to find a member of it


@contextmanager
def refused_as_encoding_error() -> Iterator[None]:
    """Raise `EncodingError` for a field that JSON or UTF-8 cannot hold (a lone surrogate)."""
    try:
        yield
    except (TypeError, ValueError, RecursionError) as error:
        raise as_encoding_error(error) from error


def as_encoding_error(error: Exception) -> EncodingError:
    """Return the error for a field that JSON or UTF-8 cannot hold (a lone surrogate).

    Args:
        error: a `TypeError`, `ValueError`, `OverflowError` or `RecursionError` of Python.
    """
    return EncodingError(
        f"a field of the checkpoint cannot be recorded: {error}", place="checkpoint", remedy="Give it as text."
    )


class FencedWriter:
    """A writer that writes nothing more once it was fenced or a write failed.

    Attributes:
        is_poisoned: whether the outcome of a write is unknown, so that nothing more may be written.
    """

    is_poisoned = False
    _fence: FencedError | None = None  # what a save raised

    @property
    def is_fenced(self) -> bool:
        """Whether a save found that another attempt has started, or that the run was removed."""
        return self._fence is not None

    def _refuse_write(self, workflow_id: str, attempt: int, medium: str) -> NoReturn:
        """Raise the error of a writer that was fenced, or whose last write failed.

        Args:
            workflow_id: the run.
            attempt: the writer's attempt.
            medium: the place of the unknown outcome, such as "on the disk".

        Raises:
            FencedError: a save found that this attempt is not the newest.
            CheckpointStorageError: the outcome of the last write is unknown.
        """
        if self._fence is not None:
            raise FencedError(workflow_id, attempt=attempt, newest_attempt=self._fence.newest_attempt) from self._fence
        raise CheckpointStorageError(
            f"an earlier save of run {workflow_id!r} failed, so what is {medium} is unknown",
            workflow_id=workflow_id,
            operation="save",
            is_outcome_unknown=True,
            remedy="This attempt writes nothing more. Resume the run: the next attempt finds out what was saved.",
        )


class PreparedSave(NamedTuple):
    """A checkpoint that may be saved.

    Attributes:
        data: the checkpoint.
        view: its history.
        held: the number of results that are stored already.
        encoded: what `RunWriter._encode` returned.
        beginning: what the same write must record about the beginning of the attempt; see `RunWriter._begin_attempt`.
        evicted: the sequences of the checkpoints that the same write removes.
    """

    data: CheckpointData
    view: HistoryView
    held: int
    encoded: Any
    beginning: Sequence[Any]
    evicted: frozenset[int]


class RunWriter(ABC):
    """A run that this process owns: the only object that writes to it.

    Args:
        attempt: the claimed attempt; the fencing number.
        token: identifies this owner.
        last_sequence: the highest sequence that the run ever had.
        values: the digests of the large values that the run has.
        fetch: reads a large value.

    Attributes:
        is_adopted: whether the medium has recorded what the attempt continues.
        saved: the history at the last checkpoint of the run.
        on_lost: called when the run has a new owner; None if the caller does not want to know.
    """

    def __init__(
        self, workflow_id: str, attempt: int, token: str, *, last_sequence: int, values: set[str], fetch: Fetch
    ) -> None:
        self.workflow_id = workflow_id
        self.attempt = attempt
        self.token = token
        self.last_sequence = last_sequence
        self.is_adopted = False
        self.saved: HistoryView = History().view()
        self.on_lost: Callable[[FencedError], None] | None = None
        self._first: CheckpointData | None = None  # of this attempt: later checkpoints hold what differs from it
        self._evicted: set[int] = set()
        self._values = values
        self._fetch = fetch
        self._is_closed = False
        self._one_at_a_time = threading.Lock()
        self._pid = os.getpid()

    @property
    def is_mine(self) -> bool:
        """Whether this process claimed the run: a forked child inherits the object and must not use it."""
        return os.getpid() == self._pid

    def evict_with_next_save(self, sequences: Sequence[int]) -> None:
        """Remove checkpoints in the same write as the next save."""
        self._evicted.update(sequences)

    def save(self, data: CheckpointData) -> None:
        """Save a checkpoint with its new results."""
        self._check_process()
        with self._one_at_a_time:
            save = self._prepare_save(data)
            self._write(save)
            self._acknowledge(save)

    def _prepare_save(self, data: CheckpointData) -> PreparedSave:
        """Check that a checkpoint may be saved, and encode it."""
        self._check_usable()
        if data.attempt != self.attempt:
            raise FencedError(self.workflow_id, attempt=data.attempt, newest_attempt=self.attempt)
        if data.sequence <= self.last_sequence:
            raise SaveConflictError(self.workflow_id, sequence=data.sequence, last_sequence=self.last_sequence)
        try:
            results = data.step_results
            view = results if type(results) is HistoryView else as_view(results)
            encoded = self._encode(data, view)
        except (TypeError, ValueError, RecursionError) as error:
            raise as_encoding_error(error) from error
        beginning: Sequence[Any] = ()
        saved = self.saved
        if not self.is_adopted:
            if data.reason is Reason.CONTINUED:
                self._values = set()
            beginning, saved = self._begin_attempt(view, data)
        held = saved.length
        if (view.history is not saved.history or view.length < held) and not view.continues(saved):
            raise ForeignRecordError(
                f"the history to be saved for run {self.workflow_id!r} does not continue the stored one",
                workflow_id=self.workflow_id,
                found=f"{held} results stored, {len(view)} given",
            )
        evicted = frozenset(self._evicted) if self._evicted else _NOTHING
        return PreparedSave(data, view, held, encoded, beginning, evicted)

    def _acknowledge(self, save: PreparedSave) -> None:
        """Record in memory that a checkpoint is durable."""
        self.is_adopted = True
        self.saved, self.last_sequence = save.view, save.data.sequence
        if self._first is None:
            self._first = save.data
        if save.evicted:
            self._evicted -= save.evicted  # not those that the caller added since, for the next save

    def _find_new_values(self, save: PreparedSave, of_head: Mapping[str, Blob]) -> tuple[list[Blob], dict[str, Blob]]:
        """Return the large values of a save, and by digest those that the run does not have yet."""
        blobs, of_results = list(of_head.values()), save.view.history.blobs
        if of_results:
            for index in range(save.held, len(save.view)):
                blobs.extend(of_results.get(index, {}).values())
        return blobs, {blob.digest: blob for blob in blobs if blob.digest not in self._values}

    def _mark_values_durable(self, blobs: list[Blob], missing: Iterable[str]) -> None:
        """Record that large values are durable, and free their bytes."""
        self._values.update(missing)
        for blob in blobs:
            blob.release_content(self._fetch)

    def _check_process(self) -> None:
        """Refuse a forked child before it waits for a lock that its parent held."""
        if os.getpid() != self._pid:
            raise CheckpointStorageError(
                f"run {self.workflow_id!r} is owned by the process that this one was forked from",
                workflow_id=self.workflow_id,
                operation="save",
                remedy="Save from the parent; start processes with 'spawn' or 'forkserver', and open the store in them.",
            )

    @contextmanager
    def _lock_for_write(self) -> Iterator[None]:
        """Hold the lock for the block, if this writer may write."""
        self._check_process()
        with self._one_at_a_time:
            self._check_usable()
            yield

    def repeat_unknown_save(self) -> None:  # noqa: B027 - only if a medium can repeat a save
        """Repeat a save whose outcome is unknown, so that the next one can follow; a save that succeeded is not done twice.

        Raises:
            FencedError: another owner has the run, or it was removed.
            CheckpointStorageError: the medium still fails.
        """

    def note_started(self, path: str) -> None:  # noqa: B027 - a hint, which a medium may leave out
        """Note, without a sync, that a step starts; does nothing if the medium keeps no such notes."""

    def _check_usable(self) -> None:
        """Refuse to write after a failure, after a release, or after a new owner's claim.

        Raises:
            FencedError: another attempt has started, or the run was released.
            CheckpointStorageError: an earlier write failed.
        """
        if self._is_closed:  # another task released the run or took it over meanwhile
            raise FencedError(self.workflow_id, attempt=self.attempt, newest_attempt=self.attempt)
        self._check_unfenced()

    # --- the medium ------------------------------------------------------------------------------------------------

    def _check_unfenced(self) -> None:  # noqa: B027 - only if a save of the medium can fail or find a new owner
        """Refuse to write after a failure, or after a save that found a new owner; see `_check_usable`."""

    @abstractmethod
    def _encode(self, data: CheckpointData, view: HistoryView) -> Any:
        """Return a checkpoint encoded without its results; write nothing.

        Raises:
            TypeError, ValueError, RecursionError: a field cannot be recorded.
        """

    @abstractmethod
    def _begin_attempt(
        self, view: HistoryView, first: CheckpointData | None = None
    ) -> tuple[Sequence[Any], HistoryView]:
        """Find the records that the attempt continues: those whose history the new one shares.

        Args:
            view: the history of the new one.
            first: the first checkpoint of the attempt, if this is one. The first of a generation continues nothing.

        Returns:
            What the same write must record about it, and the history stored there.
        """

    @abstractmethod
    def _write(self, save: PreparedSave) -> None:
        """Make a checkpoint durable with its results from `held` on, and check afterwards that the run is still owned.

        Raises:
            FencedError: another attempt has started; the checkpoint does not count.
            CheckpointStorageError: the medium failed.
        """

    @abstractmethod
    def delete(self, sequences: list[int]) -> None:
        """Delete checkpoints durably; their results stay."""


class LogRunWriter(RunWriter):
    """Writes to one run whose records form a log: lines of a file, or objects of a bucket.

    Args:
        attempt: the claimed attempt.
        token: identifies this owner.
        fetch: reads a large value.

    Attributes:
        image: the run as read after the claim.
    """

    def __init__(self, image: RunImage, attempt: int, token: str, fetch: Fetch) -> None:
        last_sequence = image.last_sequence
        values = {digest for blobs in image.history.blobs.values() for digest in blobs}
        super().__init__(image.workflow_id, attempt, token, last_sequence=last_sequence, values=values, fetch=fetch)
        self.image = image

    def _write(self, save: PreparedSave) -> None:
        line = self._write_values_and_encode(save)
        self._append(save, [*save.beginning, line])

    def _write_values_and_encode(self, save: PreparedSave) -> bytes:
        """Make the large values of a checkpoint durable; return its line without the closing brace."""
        head, of_head = save.encoded
        history = save.view.history
        if of_head or history.blobs:
            blobs, missing = self._find_new_values(save, of_head)
            if missing:
                self._write_values(missing)
            self._mark_values_durable(blobs, missing)
        results = b",".join(history.encoded_between(save.held, save.view.length))
        if save.evicted:
            head += b',"evicts":%b' % dumps(sorted(save.evicted)).encode()
        return b'{"step_results":[%b],%b' % (results, head)

    @abstractmethod
    def _write_values(self, missing: Mapping[str, Blob]) -> None:
        """Make large values durable, given by digest."""

    @abstractmethod
    def _append(self, save: PreparedSave, lines: Sequence[bytes]) -> None:
        """Make the lines of a checkpoint durable; see `_write`."""


_NOTHING: frozenset[int] = frozenset()
W = TypeVar("W", bound=RunWriter)
Claimed = tuple[W, CheckpointData | None, tuple[str, ...]]
"""The writer of a claimed run, the newest checkpoint, and remarks from reading."""


class RunsBase(ABC, Generic[W]):
    """The runs of a store, and those of them that this process owns. The methods keep the promises of `StoreBase`.

    Attributes:
        owned: the runs that this process owns.
    """

    has_leases: ClassVar[bool] = True
    """Whether owned runs need heartbeats from the moment of the claim."""
    run_limit: RunLimit | None = None
    """Limits the owned runs; None if an owned run keeps no file open."""

    def __init__(self, seconds: float) -> None:
        self.owned: dict[str, W] = {}
        self._heartbeat = Heartbeat(self.renew_leases, seconds)

    def close(self) -> None:
        """Release every run that this process owns."""
        for workflow_id in list(self.owned):
            self.release(workflow_id)
        self._heartbeat.stop()

    def renew_leases(self) -> bool:
        """Send heartbeats for owned runs, report lost ones, and return whether any are owned."""
        return bool(self.owned)

    def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Save a checkpoint in the owned attempt, which is claimed first if necessary."""
        writer = self.owned.get(workflow_id)
        if writer is None:
            writer = self._claim_for_save(workflow_id, data.attempt)
        try:
            writer.save(data)
        except (FencedError, OSError) as error:
            self._explain_failure(writer, error)
            raise
        if data.reason is _CONTINUED:
            self._drop_earlier_generations(writer, data.sequence)

    def save_later(self, workflow_id: str, data: CheckpointData) -> asyncio.Future[None] | None:
        """Save a checkpoint in a batch with others; None if it must be saved alone."""

    def acquire_new_later(self, workflow_id: str) -> asyncio.Future[Lease | None] | None:
        """Claim a run in a batch with others; None, also as the result, if it must be claimed alone."""

    def release_later(self, workflow_id: str, token: str) -> asyncio.Future[None] | None:
        """Release a run in a batch with others; None if it must be released alone."""

    def _drop_earlier_generations(self, writer: W, sequence: int) -> None:
        """Remove the remains of earlier generations, if the save that started this one did not. Failures are only logged.

        Args:
            writer: the owner of the run.
            sequence: the first checkpoint of this generation.
        """

    def _explain_failure(self, writer: W, error: FencedError | OSError) -> None:
        """Raise a better error for a save that failed, if the medium knows one."""

    def _claim_for_save(self, workflow_id: str, attempt: int) -> W:
        """Claim a run for a caller that saves without a lease."""
        lease = self.acquire(workflow_id, at_least=attempt)
        if lease.attempt != attempt:
            self.release(workflow_id)
            raise FencedError(workflow_id, attempt=attempt, newest_attempt=lease.attempt - 1)
        return self.owned[workflow_id]

    def acquire(self, workflow_id: str, *, take_over: bool = False, at_least: int = 1) -> Lease:
        """Claim the run's next attempt, then read the run."""
        if not take_over:
            self._refuse_own_run(workflow_id)
        self._prepare_leases()
        return self._register_writer(*self._claim(workflow_id, take_over=take_over, at_least=at_least))

    def _refuse_own_run(self, workflow_id: str) -> None:
        """Refuse a run that this process owns."""
        if workflow_id in self.owned:
            raise RunLockedError(workflow_id, holder=f"this process, by a store in {self.place}")

    def _register_writer(self, writer: W, latest: CheckpointData | None, notices: tuple[str, ...]) -> Lease:
        """Record that this process owns a run, and return its lease."""
        self.owned[writer.workflow_id] = writer
        self._prepare_leases()
        return Lease(writer.workflow_id, writer.attempt, latest, writer.last_sequence, notices, writer.token)

    def _prepare_leases(self) -> None:
        """Start the heartbeat thread, before a claim (which is refused without it) and again after it.

        Raises:
            CheckpointStorageError: no thread can be started.
        """
        if self.has_leases:
            self._heartbeat.start()

    def begin_generation(self, workflow_id: str, *, token: str = "") -> Lease:
        """Claim the next attempt of a run, if the owner with that token still owns it."""
        writer = self.owned.get(workflow_id)
        if writer is None or token not in ("", writer.token):
            raise FencedError(workflow_id, attempt=0, newest_attempt=None if writer is None else writer.attempt)
        return self._replace_writer(writer, self._claim_next(writer))

    def _replace_writer(
        self, former: W, writer: W, latest: CheckpointData | None = None, notices: tuple[str, ...] = ()
    ) -> Lease:
        """Continue an owned run with the writer of its next attempt, and return its lease."""
        writer.on_lost = former.on_lost
        return self._register_writer(writer, latest, notices)

    def release(self, workflow_id: str, *, token: str = "") -> None:
        """Release a run, if the owner with that token still owns it."""
        writer = self.owned.get(workflow_id)
        if writer is not None and token in ("", writer.token):
            del self.owned[workflow_id]
            self._give_up(writer)

    def make_savable(self, workflow_id: str, history: HistoryView) -> Lease | None:
        """Repeat a save whose outcome is unknown, so that the same attempt can continue; the next save holds the history."""
        writer = self.owned.get(workflow_id)
        if writer is not None and writer.is_mine:
            writer.repeat_unknown_save()
        return None

    def call_when_lost(self, workflow_id: str, callback: Callable[[FencedError], None]) -> None:
        """Call a function once an owned run is lost."""
        writer = self.owned.get(workflow_id)
        if writer is not None:
            writer.on_lost = callback

    # --- checkpoints -----------------------------------------------------------------------------------------------

    def list_checkpoints(self, workflow_id: str, **wanted: Any) -> Sequence[CheckpointRef]:
        """Return the selected checkpoints, newest first."""
        return self._select_checkpoints(workflow_id, records.Selection(**wanted))

    def _select_checkpoints(self, workflow_id: str, wanted: Selection) -> Sequence[CheckpointRef]:
        return wanted.of(self.references(workflow_id))

    def delete_checkpoint(self, workflow_id: str, checkpoint_id: str) -> bool:
        """Delete the checkpoints of an id; return whether there were any."""
        return self._delete_where(workflow_id, lambda name, _: name == checkpoint_id) > 0

    def delete_sequences(self, workflow_id: str, sequences: Collection[int]) -> int:
        """Delete checkpoints; return how many there were."""
        return self._delete_where(workflow_id, lambda _, sequence: sequence in sequences)

    def _delete_where(self, workflow_id: str, wanted: Callable[[str, int], bool]) -> int:
        is_mine = workflow_id in self.owned
        if not is_mine:
            self._check_writer(workflow_id)
            if not self._select_sequences(workflow_id, wanted):
                return 0  # do not claim the run if nothing matches
            self.acquire(workflow_id)
        try:
            return self._delete(self.owned[workflow_id], wanted)
        finally:
            if not is_mine:
                self.release(workflow_id)

    def _delete(self, writer: W, wanted: Callable[[str, int], bool]) -> int:
        """Delete checkpoints of an owned run, chosen by id and sequence; return how many."""
        sequences = self._find_deletable(writer, wanted)
        if sequences:
            writer.delete(sequences)
        return len(sequences)

    def _find_deletable(self, writer: W, wanted: Callable[[str, int], bool]) -> list[int]:
        return self._select_sequences(writer.workflow_id, wanted)

    def _select_sequences(self, workflow_id: str, wanted: Callable[[str, int], bool]) -> list[int]:
        """Return the sequences of the checkpoints selected by id and sequence."""
        return [each.sequence for each in self.references(workflow_id) if wanted(each.checkpoint_id, each.sequence)]

    def _check_writer(self, workflow_id: str) -> None:
        """Raise if this process may not change the store."""

    # --- runs ------------------------------------------------------------------------------------------------------

    def list_runs(self) -> list[RunInfo]:
        """Return the runs, most recently started first; log the damaged ones."""
        survey = self.survey_runs()
        refuse_failed(survey.unreadable)
        self._log_unreadable(survey.unreadable)
        return records.listing.RunList(survey.runs)

    def _log_unreadable(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            message = "%s in %s is left out of the list: %s (see 'flowckpt store check')"
            _log.warning(message, finding.workflow_id, self.place, finding.detail)

    def unreadable_runs(self) -> list[Finding]:
        """Return the damaged runs."""
        return [*self.survey_runs().unreadable]

    # --- the medium ------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def place(self) -> str:
        """The place of the runs, for messages."""

    @abstractmethod
    def _claim(self, workflow_id: str, *, take_over: bool, at_least: int) -> Claimed[W]:
        """Claim the run's next attempt, then read the run; after an error nothing is claimed.

        The medium closes this store's own writer of the run, if any: with locks of files before the claim, because a
        process cannot lock a file twice; otherwise once the claim holds.

        Args:
            workflow_id: the run.
            take_over: claim it although its owner is alive.
            at_least: the lowest number of the attempt.
        """

    def _claim_next(self, writer: W) -> W:
        """Claim the attempt after a writer's own, and close that writer.

        Raises:
            FencedError: the run has another owner, or was removed.
        """
        return self._claim(writer.workflow_id, take_over=True, at_least=1)[0]

    @abstractmethod
    def _give_up(self, writer: W) -> None:
        """Release a run; a claim without a save leaves no trace."""

    @abstractmethod
    def references(self, workflow_id: str) -> list[CheckpointRef]:
        """Return the checkpoints of a run, newest first."""

    @abstractmethod
    def clear(self, workflow_id: str) -> object:
        """Remove a run with everything that belongs to it."""

    @abstractmethod
    def owner(self, workflow_id: str) -> Owner | None:
        """Return the live owner of a run."""

    @abstractmethod
    def note_live(self, writer: W, content: bytes) -> None:
        """Replace the live note of an owned run."""

    @abstractmethod
    def live_note(self, workflow_id: str) -> bytes | None:
        """Return the live note of a run."""

    @abstractmethod
    def survey_runs(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the selected runs, most recently started first, and the damaged ones."""


F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R", bound="RunsBase[Any]")


def delegate_to_runs(method: F) -> F:
    """Return a method that calls the method of the same name of the store's `runs`.

    Args:
        method: of `StoreBase`; it gives the name, the signature and the docstring.
    """
    name = method.__name__

    @functools.wraps(method)
    async def call(self: BlockingStore[Any], *args: Any, **options: Any) -> Any:
        return await self._run(functools.partial(getattr(self.runs, name), *args, **options))

    call.__dict__.pop("__isabstractmethod__", None)
    return cast("F", call)


class BlockingStore(StoreBase, Generic[R]):
    """A store with synchronous runs, called from async methods.

    Attributes:
        runs: the runs, with a synchronous method for each of the store's.
    """

    runs: R

    async def save(self, workflow_id: str, data: CheckpointData) -> None:
        """Make a checkpoint durable; see `CheckpointStore.save`."""
        if may_block():
            self.runs.save(workflow_id, data)
        elif (save := self.runs.save_later(workflow_id, data)) is not None:
            await save
        else:
            await self._run(lambda: self.runs.save(workflow_id, data))

    async def acquire(self, workflow_id: str, *, take_over: bool = False) -> Lease:
        """Claim the run's next attempt, then read the run; see `StoreBase.acquire`."""
        if self.runs.run_limit is None:
            return await self._acquire(workflow_id, take_over)
        async with self.runs.run_limit.reserve_room(workflow_id):
            return await self._acquire(workflow_id, take_over)

    async def _acquire(self, workflow_id: str, take_over: bool) -> Lease:
        if not take_over and workflow_id not in self.runs.owned and not may_block():
            claim = self.runs.acquire_new_later(workflow_id)
            if claim is not None and (new := await claim) is not None:
                return new
        lease: Lease = await self._run(lambda: self.runs.acquire(workflow_id, take_over=take_over))
        return lease

    async def release(self, workflow_id: str, *, token: str = "") -> None:
        """Release the run, if the owner with that token still owns it; see `StoreBase.release`."""
        release = functools.partial(self.runs.release, workflow_id, token=token)
        try:
            released = None if may_block() else self.runs.release_later(workflow_id, token)
        except CheckpointStorageError:  # no thread can be started, and without a release no process can resume the run
            release()
        else:
            await (self._run(release) if released is None else released)

    async def _run(self, work: Callable[[], Any]) -> Any:
        return await run_blocking(work)

    async def load(self, workflow_id: str, checkpoint_id: str) -> CheckpointData:
        """Return the newest checkpoint of that id; see `CheckpointStore.load`."""
        try:
            return await self._load(workflow_id, checkpoint_id)
        except CheckpointStorageError as error:
            error.ref = error.ref or f"{workflow_id}@{checkpoint_id}"
            raise

    _load = delegate_to_runs(StoreBase.load)
    load_latest = delegate_to_runs(StoreBase.load_latest)
    clear = delegate_to_runs(StoreBase.clear)
    list_checkpoints = delegate_to_runs(StoreBase.list_checkpoints)
    begin_generation = delegate_to_runs(StoreBase.begin_generation)
    claimed_by = delegate_to_runs(StoreBase.claimed_by)
    owner = delegate_to_runs(StoreBase.owner)
    list_runs = delegate_to_runs(StoreBase.list_runs)
    survey_runs = delegate_to_runs(StoreBase.survey_runs)
    unreadable_runs = delegate_to_runs(StoreBase.unreadable_runs)
    describe_run = delegate_to_runs(StoreBase.describe_run)
    delete_checkpoint = delegate_to_runs(StoreBase.delete_checkpoint)
    delete_sequences = delegate_to_runs(StoreBase.delete_sequences)
    load_attempt = delegate_to_runs(StoreBase.load_attempt)
    attempts = delegate_to_runs(StoreBase.attempts)
    list_attempt = delegate_to_runs(StoreBase.list_attempt)
    read_attempt = delegate_to_runs(StoreBase.read_attempt)
    receive_run = delegate_to_runs(StoreBase.receive_run)
    share_values = delegate_to_runs(StoreBase.share_values)
    send_signal = delegate_to_runs(StoreBase.send_signal)
    signals = delegate_to_runs(StoreBase.signals)
    remove_signals = delegate_to_runs(StoreBase.remove_signals)
    repair = delegate_to_runs(StoreBase.repair)
    tidy = delegate_to_runs(StoreBase.tidy)
    read_index = delegate_to_runs(StoreBase.read_index)
    write_index = delegate_to_runs(StoreBase.write_index)
    clear_index = delegate_to_runs(StoreBase.clear_index)
    live_note = delegate_to_runs(StoreBase.live_note)

    async def check(self, workflow_id: str | None = None) -> Sequence[Finding]:
        """Read and verify everything; see `StoreBase.check`."""
        return await stores.content.check_content(self, await self._check(workflow_id))

    _check = delegate_to_runs(StoreBase.check)

    def note_started(self, workflow_id: str, path: str) -> None:
        """Note, without a sync, that a step starts; see `StoreBase.note_started`."""
        writer = self.runs.owned.get(workflow_id)
        if writer is not None:
            writer.note_started(path)

    def note_live(self, workflow_id: str, content: bytes) -> None:
        """Replace the live note of an owned run; see `StoreBase.note_live`."""
        writer = self.runs.owned.get(workflow_id)
        if writer is not None and writer.is_mine:
            self.runs.note_live(writer, content)

    def call_when_lost(self, workflow_id: str, callback: Callable[[FencedError], None]) -> None:
        """Call a function once an owned run is lost; see `StoreBase.call_when_lost`."""
        self.runs.call_when_lost(workflow_id, callback)

    def evict_with_next_save(self, workflow_id: str, sequences: Sequence[int]) -> None:
        """Remove checkpoints in the same write as the next save; see `StoreBase.evict_with_next_save`."""
        writer = self.runs.owned.get(workflow_id)
        if writer is not None:
            writer.evict_with_next_save(sequences)

    def close(self) -> None:
        """Release every run that this store owns, and all its resources."""
        self.runs.close()


class RetainingStore(BlockingStore[R]):
    """A store whose runs can also be pinned, compacted, and removed in bounded batches."""

    pin = delegate_to_runs(StoreBase.pin)
    unpin = delegate_to_runs(StoreBase.unpin)
    pinned = delegate_to_runs(StoreBase.pinned)
    compactable = delegate_to_runs(StoreBase.compactable)
    compact = delegate_to_runs(StoreBase.compact)
    page_runs = delegate_to_runs(StoreBase.page_runs)
    total_bytes = delegate_to_runs(StoreBase.total_bytes)
    stored_bytes = delegate_to_runs(StoreBase.stored_bytes)
    clear_unchanged = delegate_to_runs(StoreBase.clear_unchanged)
