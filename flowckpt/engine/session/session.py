"""One start or one resume of a run, from taking it to giving it back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.results import as_view, plain_tree
from flowckpt.core.dsl import Workflow
from flowckpt.core.identity.fingerprint import fingerprint, step_fingerprint
from flowckpt.core.records import CheckpointData, History, Status, StepResult
from flowckpt.core.records.result import COMPOSITES
from flowckpt.core.replay import Replay
from flowckpt.core.system import ids
from flowckpt.core.system.blocking import finish_despite_cancel
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.rules.crash_loop import Deaths, limit_of
from flowckpt.engine.rules.judge import Judge
from flowckpt.engine.rules.partial import kept_partial
from flowckpt.engine.rules.paths import UNFINISHED
from flowckpt.engine.rules.reasons import LIMITS, ResumePolicy, ReuseMode
from flowckpt.engine.run.attempt import Attempt
from flowckpt.engine.run.checkpointer import Checkpointer
from flowckpt.engine.run.lease import acquired, given_back, known_as_live, stop_when_lost
from flowckpt.engine.run.notify import Tell, redact_error, redacting, told_by
from flowckpt.engine.run.resumption import Resumption, deaths_at_resume, kept_history, parked_error, read_resumption
from flowckpt.engine.run.verification import Verifying, verifying_of
from flowckpt.engine.session.drive import Drive
from flowckpt.engine.values.failures import NO_SECRETS, stale_step
from flowckpt.engine.values.inputs import BoundInputs, refuse_in_labels
from flowckpt.engine.values.options import OnStop, RunOptions, Saving
from flowckpt.engine.values.result import StepCounts, WorkflowResult
from flowckpt.engine.values.target import describe_target
from flowckpt.engine.values.waits import Waits
from flowckpt.errors import (
    CheckpointNotFoundError,
    FlowckptError,
    NoAsyncioError,
    RunExistsError,
    RunMovedOnError,
    SecretMissingError,
    UnknownExecutorError,
)
from flowckpt.execution.interrupts import Interrupts
from flowckpt.stores.base import CheckpointStore, Lease, OwnsRuns

if TYPE_CHECKING:
    from uuid import UUID

    from flowckpt import events
    from flowckpt.engine.dry import planner
    from flowckpt.engine.undo import compensate
    from flowckpt.engine.undo import undo_run as undoings
    from flowckpt.events import Event
    from flowckpt.evidence.verifier import EvidenceVerifier
    from flowckpt.execution.executors.base import Given
    from flowckpt.maintenance.retention import evict
else:
    planner = LazyModule("flowckpt.engine.dry.planner")
    compensate = LazyModule("flowckpt.engine.undo.compensate")
    undoings = LazyModule("flowckpt.engine.undo.undo_run")
    evict = LazyModule("flowckpt.maintenance.retention.evict")
    events = LazyModule("flowckpt.events")


# The executors of an attempt: given now, the engine's own, and recorded when the run was started.


RECORDED = "executors"
"""In the metadata: the descriptions that the run was started with, by name."""

_HARMLESS = ("engine", "thread", "process")


def chosen_executors(metadata: dict[str, Any], own: Mapping[str, Given], given: Mapping[str, str]) -> dict[str, Given]:
    """Return the executors of an attempt, and write down in the metadata what was given for it.

    A record may come from anywhere, and whoever runs a step sees its arguments and says what came of it: so an address in
    a record is never used. It is only told, and wants to be given again.

    Args:
        metadata: that of the run; changed.
        own: the engine's.
        given: descriptions that were given for this attempt.

    Raises:
        UnknownExecutorError: the run was started with an executor on another machine, and nobody has given one now.
    """
    recorded = {str(name): str(each) for name, each in dict(metadata.get(RECORDED, {})).items()}
    for name, description in recorded.items():
        if name not in own and name not in given and not _is_harmless(description):
            option = description if name == "default" else f"{name}={description}"
            here = "engine" if name == "default" else f"{name}=process"
            raise UnknownExecutorError(
                f"the run was started with executor {name!r} as {description!r}, an address that is not taken from a record",
                executor=name,
                remedy=f"Give it again, --executor {option}, or another one, --executor {here}.",
            )
    if written := {**recorded, **given}:
        metadata[RECORDED] = written
    return {**recorded, **own, **given}


def _is_harmless(description: str) -> bool:
    """Tell whether it is no address: the steps stay on this machine, in what the run itself starts."""
    kind, _, rest = description.partition(":")
    return kind in _HARMLESS or (kind == "dask" and rest.partition(":")[0] == "local")


_log = logging.getLogger("flowckpt")


class Session:
    """One start or one resume: it takes the run, drives it, and gives it back whatever happens.

    Args:
        store: where checkpoints go.
        clock: the time.
        random: returns numbers in [0, 1), for the jitter of retries.
        workflow: what is run.
        workflow_id: the run.
        options: what was said about the run beside its inputs.
        bound: the inputs of a start; None for a resume.
        inputs: the inputs as they were given, for a resume perhaps none.
        is_cancel: whether a resume does nothing but undo, and end the run as cancelled.
        verifier: checks what the steps claim, or None for one that looks where the run was started.
        saving: how the run is saved besides its explicit checkpoints.
        new_uuid: makes UUIDs.
        executors: where steps can run besides here, by name.

    Attributes:
        interrupts: the signals; entered by whoever owns the loop.
    """

    def __init__(
        self,
        store: CheckpointStore,
        clock: Clock,
        random: Callable[[], float],
        workflow: Workflow[Any, Any],
        workflow_id: str,
        options: RunOptions,
        *,
        bound: BoundInputs | None = None,
        inputs: Mapping[str, Any],
        verifier: EvidenceVerifier | None,
        saving: Saving,
        executors: Mapping[str, Given],
        is_cancel: bool = False,
        new_uuid: Callable[[], UUID] = ids.new_uuid,
    ) -> None:
        self.interrupts = Interrupts()
        self._store = store
        self._clock = clock
        self._random = random
        self._workflow = workflow
        self._workflow_id = workflow_id
        self._options = options
        self._bound = bound
        self._inputs = inputs
        self._verifier = verifier
        self._saving = saving
        self._is_cancel = is_cancel
        self._new_uuid = new_uuid
        self._executors = executors
        self._secrets = NO_SECRETS
        if bound is not None:
            refuse_in_labels(bound, workflow_id, options.tags)

    @property
    def store(self) -> CheckpointStore:
        """Where checkpoints go."""
        return self._store

    @property
    def goes_on_unsaved(self) -> bool:
        """Whether the run goes on when a checkpoint cannot be saved."""
        return self._saving.goes_on_unsaved

    async def result(self, on_event: Callable[[Event], None] | None = None) -> WorkflowResult:
        """Drive the run to its end and return how it ended.

        Args:
            on_event: told every event.

        Raises:
            NoAsyncioError: no asyncio loop runs here.
        """
        _check_loop("engine.run")
        async with self._taken() as drive:
            await drive.run(None if on_event is None else redacting(on_event, lambda: self._secrets))
        assert drive.result is not None
        is_removed = await self._settled(drive.result)
        return attrs.evolve(drive.result, is_removed=True) if is_removed else drive.result

    async def events(self) -> AsyncGenerator[Event, None]:
        """Drive the run to its end, yielding what happens.

        Raises:
            NoAsyncioError: no asyncio loop runs here.
        """
        _check_loop("engine.execute")
        async with aclosing(told_by(self._run)) as events:
            async for event in events:
                yield event

    async def _run(self, tell: Tell) -> None:
        async with self._taken() as drive:
            await drive.run(redacting(tell, lambda: self._secrets))
        await self._settled(drive.result)

    @asynccontextmanager
    async def _taken(self) -> AsyncGenerator[Drive | CompletedRun, None]:
        """Own the run for the block, and give it back however the block ends."""
        store, workflow_id = self._store, self._workflow_id
        lease = await finish_despite_cancel(acquired(store, workflow_id, steal=self._options.steal))
        try:
            for notice in lease.notices:
                _log.warning("run %s: %s", workflow_id, notice)
            stop_when_lost(store, workflow_id, self.interrupts, goes_on_unsaved=self.goes_on_unsaved)
            with known_as_live(store, workflow_id, self.interrupts):
                yield self._started(lease, self._bound) if self._bound is not None else await self._resumed(lease)
        except FlowckptError as error:
            redact_error(error, self._secrets)
            raise
        finally:
            if isinstance(store, OwnsRuns):
                await finish_despite_cancel(given_back(store, lease), is_last=True)

    async def _settled(self, result: WorkflowResult | None) -> bool:
        """Do with a run that has completed what the engine was told, and tell whether it is gone; it is given back."""
        retention = self._saving.retention
        if retention is not None and result is not None and result.status is Status.COMPLETED and result.is_saved:
            settling = evict.settle_completed(self._store, self._workflow_id, retention)
            return await finish_despite_cancel(settling, is_last=True)
        return False

    def _started(self, lease: Lease, bound: BoundInputs) -> Drive:
        if lease.latest is not None:
            raise RunExistsError(lease.workflow_id)
        options, workflow = self._options, self._workflow
        base_path = str(Path.cwd())
        metadata: dict[str, Any] = {
            "target": dict(describe_target(workflow) if options.target is None else options.target),
            "tags": dict(options.tags),
            "defaulted": list(bound.defaulted),
            "base_path": base_path,
        }
        if options.asked_saving:
            metadata["saving"] = options.asked_saving
        if options.asked_limits:
            metadata[LIMITS] = options.asked_limits
        verifying = Verifying(self._verifier, options.verify, base_path, options.allow_network)
        judge = Judge(ResumePolicy(), secrets=bound.known_secrets())
        return self._drive(lease, bound, History(), metadata, verifying, judge)

    async def _resumed(self, lease: Lease) -> Drive | CompletedRun:
        latest = lease.latest
        if latest is None:
            raise CheckpointNotFoundError(self._workflow_id)
        if self._options.if_attempt not in (None, latest.attempt):
            raise RunMovedOnError(self._workflow_id, expected=self._options.if_attempt or 0, attempt=latest.attempt)
        deaths = await self._deaths(lease, latest)
        verifying = verifying_of(latest, self._verifier, self._options)
        end = None
        if self._is_cancel:
            end = compensate.cancelling(self._workflow_id, latest)
        elif UNFINISHED in latest.metadata:
            end = compensate.unfinished_rollback(latest.metadata)
        if end is not None:
            return self._undoing(lease, latest, end, verifying, deaths)
        resumption = await read_resumption(
            self._workflow,
            self._workflow_id,
            latest,
            inputs=self._inputs,
            options=self._options,
            verifying=verifying,
            store=self._store,
        )
        self._secrets = resumption.judge.secrets
        # Reusing by inputs, the step to stop at may stand behind one that runs; and it is to stop before anything does.
        is_completed, mode = latest.status is Status.COMPLETED, resumption.judge.policy.reuse
        if is_completed or mode is ReuseMode.INPUTS:
            plan = await planner.make_plan(self._workflow, self._workflow_id, resumption, verifying)
            if is_completed and plan.is_nothing_to_do:
                return CompletedRun(self._workflow, self._workflow_id, latest)
            if (stopped := plan.stale_stop) is not None:
                raise stale_step(self._workflow_id, stopped.path, stopped.reasons)
        metadata = self._options.written_to(resumption.superseded.written_to(latest.metadata))
        drive = self._going_on(lease, latest, resumption, verifying, metadata)
        drive.attempt.deaths = deaths
        drive.attempt.checkpointer.partial = kept_partial(latest.partial, resumption.judge.policy)
        return drive

    def _undoing(
        self,
        lease: Lease,
        latest: CheckpointData,
        end: compensate.UnfinishedRollback,
        verifying: Verifying,
        deaths: Deaths,
    ) -> Drive:
        workflow, options = self._workflow, self._options
        undoing = undoings.read_undoing(
            workflow,
            self._workflow_id,
            latest,
            inputs=self._inputs,
            end=end,
            options=options,
            is_cancel=self._is_cancel,
        )
        # A cancel says anew how the run ends, before it undoes anything; and where nothing more is undone, it has ended.
        is_new = self._is_cancel or not options.rolls_back
        told = compensate.without_key(latest.metadata) if is_new else latest.metadata
        metadata = deaths.written_to(options.written_to(told), results=len(latest.step_results), partial=latest.partial)
        history = kept_history(as_view(latest.step_results), ())
        judge = Judge(ResumePolicy(), secrets=undoing.bound.known_secrets())
        drive = self._drive(lease, undoing.bound, history, metadata, verifying, judge, undoing=undoing)
        drive.attempt.in_doubt = {*latest.in_flight}
        drive.attempt.checkpointer.partial = dict(latest.partial)
        return self._goes_on_from(latest, drive)

    async def _deaths(self, lease: Lease, latest: CheckpointData) -> Deaths:
        """Return how often the run has died where it died last, and refuse one that did too often.

        Whoever forces a resume, or takes a run from its owner, begins the count anew.
        """
        options = self._options
        if options.force or options.steal:
            return Deaths()
        deaths = await deaths_at_resume(self._store, lease, latest)
        most = limit_of(latest.metadata, options.max_deaths, self._saving.limits.max_deaths)
        if deaths.is_parked(most) and not self._is_cancel:  # to cancel it is what somebody does who has looked
            raise parked_error(lease.workflow_id, deaths)
        return deaths

    def _going_on(
        self,
        lease: Lease,
        latest: CheckpointData,
        resumption: Resumption,
        verifying: Verifying,
        metadata: dict[str, Any],
    ) -> Drive:
        drive = self._drive(
            lease,
            resumption.bound,
            resumption.history,
            metadata,
            verifying,
            resumption.judge,
            drops_what_changed=resumption.judge.policy.is_forced,
            spare=resumption.spare,
        )
        attempt = self._goes_on_from(latest, drive).attempt
        is_prefix = resumption.judge.policy.reuse is ReuseMode.PREFIX
        attempt.waits.let_go((result for result, _ in resumption.cut.values()), takes_behind=is_prefix)
        attempt.superseded = resumption.superseded
        attempt.in_doubt = {*resumption.in_doubt}
        attempt.is_stolen = self._options.steal
        return drive

    @staticmethod
    def _goes_on_from(latest: CheckpointData, drive: Drive) -> Drive:
        attempt = drive.attempt
        attempt.resumed_from = latest
        attempt.checkpointer.last_saved = latest.checkpoint_id
        if latest.status is Status.CANCELLED:
            attempt.cancelled_before = latest.saved_at
        attempt.waits = Waits.of(latest.metadata)
        return drive

    def _drive(
        self,
        lease: Lease,
        bound: BoundInputs,
        history: History,
        metadata: dict[str, Any],
        verifying: Verifying,
        judge: Judge,
        *,
        drops_what_changed: bool = False,
        spare: Mapping[str, StepResult] | None = None,
        undoing: undoings.Undoing | None = None,
    ) -> Drive:
        workflow = self._workflow
        if bound.missing:
            raise SecretMissingError(bound.missing, workflow_id=self._workflow_id)
        self._secrets = judge.secrets
        checkpointer = Checkpointer(
            self._store,
            self._clock,
            lease.workflow_id,
            workflow.name,
            bound.hash,
            bound.recorded,
            fingerprint(workflow.function),
            metadata,
            lease.attempt,
            lease.last_sequence,
            history,
            self._saving.trigger_of(metadata.get("saving", {})),
            self._saving.goes_on_unsaved,
        )
        if (retention := self._saving.retention) is not None:
            is_new = lease.latest is None
            checkpointer.evictor = evict.Evictor(
                self._store, retention, self._clock, lease.workflow_id, history, is_new=is_new
            )
        step_fingerprint(workflow.function)  # reads the source of its module now, before anybody edits it
        generator = workflow(**bound.values(workflow))
        replay = Replay(
            generator,
            history.results,
            workflow.name,
            drops_what_changed=drops_what_changed,
            spare=spare,
            is_repeated=self._bound is None,
        )
        executors: Mapping[str, Given] = {}
        is_wanted = self._options.executors or self._executors or metadata.get(RECORDED)
        if is_wanted and undoing is None:  # undoing is done here
            executors = chosen_executors(metadata, self._executors, self._options.executors)
        attempt = Attempt(
            checkpointer,
            self._clock,
            self._random,
            self.interrupts,
            verifying,
            replay.aside,
            self._new_uuid,
            judge=judge,
            executors=executors,
        )
        attempt.rolls_back = self._options.rolls_back
        attempt.is_suspended_by_stop = self._options.on_stop is OnStop.SUSPEND
        attempt.budget.limit = metadata.get(LIMITS, {}).get("retry_budget", self._saving.limits.retry_budget)
        return Drive(workflow, replay, attempt, undoing, self._options.stay)


def _check_loop(door: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise NoAsyncioError(door) from None


# The resume of a run that has ended.


class CompletedRun:
    """The resume of a run that has ended: its recorded result, and nothing run or saved.

    Attributes:
        result: how the run ended.
    """

    def __init__(self, workflow: Workflow[Any, Any], workflow_id: str, latest: CheckpointData) -> None:
        tree = plain_tree(latest.held_output, "output")
        self.result = WorkflowResult(
            workflow_id,
            workflow.name,
            Status.COMPLETED,
            codec.decode(tree, workflow.output_type, place="the workflow's output"),
            latest.attempt,
            StepCounts(restored=sum(each.step_type not in COMPOSITES for each in latest.step_results)),
            0.0,
            last_saved=latest.checkpoint_id,
        )
        self._checkpoint_id = latest.checkpoint_id

    async def run(self, tell: Tell | None = None) -> None:
        """Tell that it was resumed, and that it was complete.

        Args:
            tell: told so.
        """
        if tell is not None:
            result = self.result
            run, restored = result.workflow_id, result.steps.restored
            await tell(events.WorkflowResumed(run, result.workflow_name, result.attempt, restored, self._checkpoint_id))
            await tell(events.WorkflowCompleted(run, result.output, 0, restored, 0.0))
