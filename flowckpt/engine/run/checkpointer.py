"""Saving the checkpoints of one run: number them, add the facts of the run, and pass them to the store."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.identity.secrets import KnownSecrets, refuse_secret_record
from flowckpt.core.records import CheckpointData, History, HistoryView, Reason, Status, StepError
from flowckpt.core.records.checkpoint import STATUS_OF_REASON, checkpoint_of
from flowckpt.core.system.attrs_base import lazy_define
from flowckpt.core.system.blocking import finish_despite_cancel, may_block
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.declared import shell_word
from flowckpt.engine.values import options
from flowckpt.errors import CheckpointStorageError, EncodingError, FencedError, FlowckptError
from flowckpt.stores.base import StoreBase

if TYPE_CHECKING:
    from flowckpt.core.records import PartialState
    from flowckpt.maintenance.evict import Evictor


_log = logging.getLogger("flowckpt")

# A store that hangs takes a minute to refuse a save, and steps must not wait that long each time. After a slow refusal,
# the next save waits ten times as long as the refusal took, or until the end of the run. A fast refusal is retried at
# each save.

_HANGS_NS = 1_000_000_000
_REST = 10


@attrs.frozen(eq=False, repr=False)
class RunFacts:
    """The facts about a run that each of its checkpoints repeats.

    Attributes:
        workflow_id: the run.
        workflow_name: its workflow.
        inputs_hash: the digest of its inputs.
        inputs: the encoded inputs.
        fingerprint: the identity of the workflow's code.
        remedy: how to find out whether a save with unknown outcome succeeded; by default a resume.
    """

    workflow_id: str
    workflow_name: str
    inputs_hash: str
    inputs: Any
    fingerprint: str = ""
    remedy: str = ""


@attrs.define(eq=False, repr=False)
class SavePolicy:
    """When to save besides the steps' checkpoints, what to remove then, and whether to continue after a failure.

    Attributes:
        trigger: requests checkpoints in addition to the explicit ones, or None.
        continue_on_save_error: whether the run continues if a checkpoint cannot be saved.
        evictor: selects older checkpoints to remove, or None.
        is_timed: whether a listener gets the duration of each save.
        took: the sequence of the last timed checkpoint, and how many milliseconds its save took.
    """

    trigger: options.Trigger | None = None
    continue_on_save_error: bool = False
    evictor: Evictor | None = None
    is_timed: bool = False
    took: tuple[int, float] = attrs.field(init=False, default=(0, 0.0))
    _saved_results: int = attrs.field(init=False, default=0)
    _saved_ns: int = attrs.field(init=False, default=0)
    _logged: set[str] = attrs.field(init=False, factory=set)

    def is_due(self, results: int, clock: Clock) -> bool:
        """Return whether the trigger asks for a checkpoint now, after a step that has none of its own.

        Args:
            results: the length of the history.
            clock: the time.
        """
        if self.trigger is None:
            return False
        seconds = (clock.elapsed_ns() - self._saved_ns) / 1e9
        progress = options.Progress(results - self._saved_results, seconds, results, clock.now())
        return options.asks_for_checkpoint(self.trigger, progress, _log, self._logged)

    def after_save(self, data: CheckpointData, clock: Clock) -> None:
        """Take note of a checkpoint that is durable now."""
        if self.evictor is not None:
            self.evictor.after_save(data)
        if self.trigger is not None:
            self._saved_results, self._saved_ns = len(data.step_results), clock.elapsed_ns()

    def continues_after(self, failure: FlowckptError) -> bool:
        """Return whether the run continues although a checkpoint could not be saved.

        A run that another owner has taken over never does. A run that was removed from the store may: it has no other owner.
        """
        return self.continue_on_save_error and not (isinstance(failure, FencedError) and failure.newest_attempt)


@lazy_define(eq=False, repr=False)
class _Backoff:
    """The last save failed.

    Attributes:
        refusal: the error of the save, if the store was slow to refuse.
        ask_at_ns: when to try the next save, by the clock's `elapsed_ns`.
    """

    refusal: FlowckptError | None = None
    ask_at_ns: int = 0

    def note_refusal(self, failure: FlowckptError, started_ns: int, ended_ns: int) -> None:
        """Keep the error of a slow refusal, and when to try the next save."""
        took_ns = ended_ns - started_ns
        self.refusal = failure if took_ns >= _HANGS_NS else None
        self.ask_at_ns = ended_ns + _REST * took_ns


@attrs.define(eq=False, repr=False)
class Checkpointer:
    """Saves the checkpoints of one attempt: numbers them, fills them in, and passes them to the store.

    The engine creates one per attempt; programs rarely need it.

    Attributes:
        clock: the time.
        run: the facts that every checkpoint repeats.
        metadata: target, tags and more.
        attempt: the attempt, the fencing number.
        sequence: the sequence of the last checkpoint.
        history: the run's results, which grow during the run.
        policy: when to save, which older checkpoints to remove, and whether to continue after a failed save.
        partial: the partial state of steps that have not succeeded, by path.
        is_usable: whether another save makes sense: not after one with unknown outcome, unless the run continues
            anyway.
        attempted: the checkpoint of the last save, successful or not.
        last_saved: the id of the last checkpoint known to be saved, or None.
        secrets: values that no checkpoint may contain.
        searched: how many results were searched for secrets.
    """

    store: StoreBase
    clock: Clock
    run: RunFacts
    metadata: Mapping[str, Any]
    attempt: int
    sequence: int
    history: History
    policy: SavePolicy = attrs.field(factory=SavePolicy)
    partial: dict[str, PartialState] = attrs.field(factory=dict)
    is_usable: bool = True
    attempted: CheckpointData | None = None
    last_saved: str | None = None
    secrets: KnownSecrets = attrs.field(factory=KnownSecrets)
    searched: int = 0
    _backoff: _Backoff | None = attrs.field(init=False, default=None)

    @property
    def is_store_away(self) -> bool:
        """Whether the last save failed."""
        return self._backoff is not None or not self.is_usable

    def is_due(self) -> bool:
        """Return whether the trigger asks for a checkpoint now, after a step that has none of its own."""
        return self.policy.is_due(len(self.history.results), self.clock)

    async def save_or_continue(
        self,
        reason: Reason,
        checkpoint_id: str | None = None,
        *,
        in_flight: tuple[str, ...] = (),
        evidence: tuple[Any, ...] = (),
        status: Status | None = None,
    ) -> CheckpointData | FlowckptError:
        """Make the next checkpoint durable; if that fails and the run continues anyway, return the error.

        Args:
            reason: why the checkpoint is saved.
            checkpoint_id: the id of the checkpoint; see `save`.
            in_flight: the paths of steps that were started and have not ended.
            evidence: claims about the outside world, as recorded.
            status: the status of the run; by default implied by the reason.

        Raises:
            FencedError: the run was taken over by another owner.
            FlowckptError: the save failed, and the run must stop.
        """
        try:
            return await self.save(reason, checkpoint_id, in_flight=in_flight, evidence=evidence, status=status)
        except FlowckptError as failure:
            if not self.policy.continues_after(failure):
                raise
            self.is_usable = True
            self._backoff = self._backoff or _Backoff()
            return failure

    async def save(
        self,
        reason: Reason,
        checkpoint_id: str | None = None,
        *,
        output: Any = None,
        error: StepError | None = None,
        in_flight: tuple[str, ...] = (),
        evidence: tuple[Any, ...] = (),
        status: Status | None = None,
        snapshot: Any = None,
    ) -> CheckpointData:
        """Make the next checkpoint durable. A cancel during the save waits until its outcome is known.

        Args:
            reason: why the checkpoint is saved.
            checkpoint_id: the id of the checkpoint; by default `@reason`, from the second attempt on `@reason.N`.
            output: the encoded output of the workflow.
            error: how the run failed.
            in_flight: the paths of steps that were started and have not ended.
            evidence: claims about the outside world, as recorded.
            status: the status of the run; by default implied by the reason.
            snapshot: the encoded state of the program.

        Raises:
            FlowckptError: an error of the store; `CheckpointStorageError` if the store raised anything else.
        """
        refused = await self._make_savable(self._backoff, reason) if self._backoff is not None else None
        self.sequence += 1
        data = self.attempted = self._make(reason, checkpoint_id, status, output, error, in_flight, evidence, snapshot)
        if self.secrets.is_any:
            results = self.history.results
            refuse_secret_record(data, results[self.searched :], self.secrets)
            self.searched = len(results)
        run, policy = self.run.workflow_id, self.policy
        if refused is not None:
            self.is_usable = False
            raise refused.with_traceback(None)
        if policy.evictor is not None:
            await finish_despite_cancel(policy.evictor.before_save(data))
        self.is_usable = False
        started_ns = self.clock.elapsed_ns() if policy.is_timed else 0
        try:
            saving = self.store.save(run, data)  # blocks in place if nothing else runs in the loop
            await (saving if may_block() else finish_despite_cancel(saving))
        except FlowckptError as failed:
            self.is_usable = isinstance(failed, EncodingError)  # refused before any write
            failed.__dict__.setdefault("ref", f"{run}@{data.checkpoint_id}")
            raise
        except Exception as failure:
            raise self._unknown_outcome_error(failure, data) from failure
        if policy.is_timed:
            policy.took = data.sequence, (self.clock.elapsed_ns() - started_ns) / 1e6
        self.is_usable = True
        self.last_saved = data.checkpoint_id
        self._backoff = None
        if policy.evictor is not None or policy.trigger is not None:
            policy.after_save(data, self.clock)
        return data

    def _unknown_outcome_error(self, failure: Exception, data: CheckpointData) -> CheckpointStorageError:
        run = self.run
        error = CheckpointStorageError(
            f"{self.store.kind} raised {type(failure).__name__} during a save: {failure}",
            workflow_id=run.workflow_id,
            operation="save",
            is_outcome_unknown=True,
            remedy=run.remedy or f"'flowckpt resume {shell_word(run.workflow_id)}' finds out what was saved.",
        )
        error.ref = f"{run.workflow_id}@{data.checkpoint_id}"
        return error

    def _make(
        self,
        reason: Reason,
        checkpoint_id: str | None,
        status: Status | None,
        output: Any,
        error: StepError | None,
        in_flight: tuple[str, ...],
        evidence: tuple[Any, ...],
        snapshot: Any,
    ) -> CheckpointData:
        """Return the next checkpoint, with the facts of the run."""
        if checkpoint_id is None:
            checkpoint_id = f"@{reason}" if self.attempt == 1 else f"@{reason}.{self.attempt}"
        run, history = self.run, self.history
        fields = {
            "checkpoint_id": checkpoint_id,
            "workflow_name": run.workflow_name,
            "inputs_hash": run.inputs_hash,
            "step_results": HistoryView(history, len(history.results)),
            "saved_at": self.clock.now(),
            "sequence": self.sequence,
            "attempt": self.attempt,
            "reason": reason,
            "status": status or STATUS_OF_REASON[reason],
            "_inputs": run.inputs,
            "fingerprint": run.fingerprint,
            "metadata": self.metadata,
            "_output": output,
        }
        if in_flight:
            fields["in_flight"] = in_flight
        if evidence:
            fields["evidence"] = evidence
        if error is not None:
            fields["error"] = error
        if snapshot is not None:
            fields["_snapshot"] = snapshot
        if self.partial and reason is not Reason.COMPLETED:
            fields["partial"] = {**self.partial}
        return checkpoint_of(fields)

    async def _make_savable(self, backoff: _Backoff, reason: Reason) -> FlowckptError | None:
        """Continue as a new attempt if the store requires that after a failed save; return the error if it cannot."""
        started_ns = self.clock.elapsed_ns()
        is_last = STATUS_OF_REASON[reason] is not Status.RUNNING
        if backoff.refusal is not None and not is_last and started_ns < backoff.ask_at_ns:
            return backoff.refusal
        try:
            pending = self.store.make_savable(self.run.workflow_id, self.history.view())
            lease = await (pending if may_block() else finish_despite_cancel(pending))
        except FlowckptError as failure:
            backoff.note_refusal(failure, started_ns, self.clock.elapsed_ns())
            return failure
        backoff.refusal = None
        if lease is not None:
            for notice in lease.notices:
                _log.warning("run %s: %s", self.run.workflow_id, notice)
            self.attempt, self.sequence = lease.attempt, max(self.sequence, lease.last_sequence)
        return None
