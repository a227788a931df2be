"""The policy of saving for one run: it numbers the checkpoints, fills in what the run says once, and hands them over."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

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


_log = logging.getLogger("flowckpt")

# A store that hangs takes a minute to refuse. Steps are not to wait for it each time: it is asked again after ten times as
# long, and at the end of the run. One that refuses at once is asked at each save.

_HANGS_NS = 1_000_000_000
_REST = 10


class Evicting(Protocol):
    """Says, before each save, which older checkpoints go with it."""

    async def before_save(self, data: CheckpointData) -> None:
        """Hand what goes to the store; never raises.

        Args:
            data: what is about to be saved.
        """
        ...

    def after_save(self, data: CheckpointData) -> None:
        """Take note of what is durable now.

        Args:
            data: what was saved.
        """
        ...


@attrs.frozen(eq=False, repr=False)
class RunFacts:
    """The facts about a run that each of its checkpoints repeats.

    Attributes:
        workflow_id: the run.
        workflow_name: its workflow.
        inputs_hash: the digest of its inputs.
        inputs: the inputs, as the record holds them.
        fingerprint: the identity of the workflow's code.
        remedy: how to find out what a save of unknown outcome has saved; by default a resume.
    """

    workflow_id: str
    workflow_name: str
    inputs_hash: str
    inputs: Any
    fingerprint: str = ""
    remedy: str = ""


@attrs.define(eq=False, repr=False)
class SavePolicy:
    """When a checkpoint is taken without a step asking for it, what goes with it, and what follows if it fails.

    Attributes:
        trigger: requests checkpoints in addition to the explicit ones, or None.
        continue_on_save_error: whether the run continues if a checkpoint cannot be saved.
        evictor: selects older checkpoints to remove, or None.
        is_timed: whether somebody listens, who is told how long a save took.
        took: the sequence of the last checkpoint that was timed, and how many milliseconds the store took for it.
    """

    trigger: options.Trigger | None = None
    continue_on_save_error: bool = False
    evictor: Evicting | None = None
    is_timed: bool = False
    took: tuple[int, float] = attrs.field(init=False, default=(0, 0.0))
    _saved_results: int = attrs.field(init=False, default=0)
    _saved_ns: int = attrs.field(init=False, default=0)
    _told: set[str] = attrs.field(init=False, factory=set)

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
        return options.asks_for_checkpoint(self.trigger, progress, _log, self._told)

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
class _Behind:
    """The store did not take the last save.

    Attributes:
        refusal: why it cannot be saved to, if it took long to say so.
        ask_at_ns: when to ask it again, by the clock's `elapsed_ns`.
    """

    refusal: FlowckptError | None = None
    ask_at_ns: int = 0

    def note_refusal(self, failure: FlowckptError, started_ns: int, ended_ns: int) -> None:
        """Note why the store cannot be saved to, if it took long to say so."""
        took_ns = ended_ns - started_ns
        self.refusal = failure if took_ns >= _HANGS_NS else None
        self.ask_at_ns = ended_ns + _REST * took_ns


@attrs.define(eq=False, repr=False)
class Checkpointer:
    """Saves the checkpoints of one attempt: numbers them, fills them in, and passes them to the store.

    The engine creates one per attempt; programs rarely need it.

    Attributes:
        clock: the time.
        run: what every checkpoint says of the run.
        metadata: target, tags and more.
        attempt: the attempt, the fencing number.
        sequence: the sequence of the last checkpoint.
        history: the run's results, which grow during the run.
        policy: when checkpoints are taken, what goes with them, and what follows if one cannot be saved.
        partial: the partial state of steps that have not succeeded, by path.
        is_usable: whether another save makes sense: not after one with unknown outcome, unless the run continues
            anyway.
        attempted: the checkpoint of the last save, successful or not.
        last_saved: the id of the last checkpoint known to be saved, or None.
        secrets: what no checkpoint may hold.
        searched: how many results were searched for them.
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
    _behind: _Behind | None = attrs.field(init=False, default=None)

    @property
    def is_store_away(self) -> bool:
        """Whether the store did not take the last save."""
        return self._behind is not None or not self.is_usable

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
        """Make the next checkpoint durable, or return why that was not possible if the run continues then.

        Args:
            reason: why it is taken.
            checkpoint_id: what to call it; see `save`.
            in_flight: the paths of steps that were started and have not ended.
            evidence: claims about the outside world, as recorded.
            status: where the run stands; implied by the reason where not given.

        Raises:
            FencedError: the run was taken over by another owner.
            FlowckptError: it could not be saved, and the run is to stop then.
        """
        try:
            return await self.save(reason, checkpoint_id, in_flight=in_flight, evidence=evidence, status=status)
        except FlowckptError as failure:
            if not self.policy.continues_after(failure):
                raise
            self.is_usable = True
            self._behind = self._behind or _Behind()
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
        """Make the next checkpoint durable. A cancel that comes meanwhile waits until the outcome is known.

        Args:
            reason: why it is taken.
            checkpoint_id: what to call it; `@reason`, with the attempt behind it from the second on, where not given.
            output: what the workflow returned, as the record holds it.
            error: how the run failed.
            in_flight: the paths of steps that were started and have not ended.
            evidence: claims about the outside world, as recorded.
            status: where the run stands; implied by the reason where not given.
            snapshot: a state of the program, as the record holds it.

        Raises:
            FlowckptError: one of the store's errors, or `CheckpointStorageError` for what it may not raise.
        """
        refused = await self._renewed(self._behind, reason) if self._behind is not None else None
        self.sequence += 1
        data = self.attempted = self._next(reason, checkpoint_id, status, output, error, in_flight, evidence, snapshot)
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
            saving = self.store.save(run, data)  # in place if nothing else runs in the loop
            await (saving if may_block() else finish_despite_cancel(saving))
        except FlowckptError as failed:
            self.is_usable = isinstance(failed, EncodingError)  # refused before anything was written
            failed.__dict__.setdefault("ref", f"{run}@{data.checkpoint_id}")
            raise
        except Exception as failure:
            raise self._unknown_outcome(failure, data) from failure
        if policy.is_timed:
            policy.took = data.sequence, (self.clock.elapsed_ns() - started_ns) / 1e6
        self.is_usable = True
        self.last_saved = data.checkpoint_id
        self._behind = None
        if policy.evictor is not None or policy.trigger is not None:
            policy.after_save(data, self.clock)
        return data

    def _unknown_outcome(self, failure: Exception, data: CheckpointData) -> CheckpointStorageError:
        run = self.run
        error = CheckpointStorageError(
            f"{self.store.kind} raised {type(failure).__name__} while it saved: {failure}",
            workflow_id=run.workflow_id,
            operation="save",
            is_outcome_unknown=True,
            remedy=run.remedy or f"'flowckpt resume {shell_word(run.workflow_id)}' finds out what was saved.",
        )
        error.ref = f"{run.workflow_id}@{data.checkpoint_id}"
        return error

    def _next(
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
        """Return the next checkpoint, with what every checkpoint of the run says."""
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

    async def _renewed(self, behind: _Behind, reason: Reason) -> FlowckptError | None:
        """Continue in another attempt if the store asks for that after a failed save, or return why it cannot."""
        started_ns = self.clock.elapsed_ns()
        is_last = STATUS_OF_REASON[reason] is not Status.RUNNING
        if behind.refusal is not None and not is_last and started_ns < behind.ask_at_ns:
            return behind.refusal
        try:
            renewing = self.store.renew(self.run.workflow_id, self.history.view())
            lease = await (renewing if may_block() else finish_despite_cancel(renewing))
        except FlowckptError as failure:
            behind.note_refusal(failure, started_ns, self.clock.elapsed_ns())
            return failure
        behind.refusal = None
        if lease is not None:
            for notice in lease.notices:
                _log.warning("run %s: %s", self.run.workflow_id, notice)
            self.attempt, self.sequence = lease.attempt, max(self.sequence, lease.last_sequence)
        return None
