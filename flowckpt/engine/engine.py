"""The doors of the engine: start a run, resume one, with events or with a result, from async code or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from flowckpt.core.dsl import Workflow
from flowckpt.core.system import ids
from flowckpt.core.system.blocking import blocking_allowed
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.ids import IdFactory, new_run_id
from flowckpt.core.system.lazy import LazyModule
from flowckpt.engine.rules.reasons import MAX_DEATHS
from flowckpt.engine.values import inputs as binding
from flowckpt.engine.values.inputs import check_workflow, checked_id, checked_new_id, needed_workflow
from flowckpt.engine.values.options import Limits, RunOptions, Saving
from flowckpt.errors import CheckpointNotFoundError, NestedLoopError
from flowckpt.execution.remote.loading import refuse_while_loading
from flowckpt.stores.base import CheckpointStore
from flowckpt.stores.file import FileCheckpointStore

if TYPE_CHECKING:
    from uuid import UUID

    from flowckpt.engine.history import checkpoints, fork, rollback
    from flowckpt.engine.history.fork import Forked
    from flowckpt.engine.history.rollback import RolledBack
    from flowckpt.engine.rules.plan import ResumePlan
    from flowckpt.engine.session import cancel as cancelling
    from flowckpt.engine.session import respond, session
    from flowckpt.engine.session.cancel import Cancelled
    from flowckpt.engine.session.respond import Sent
    from flowckpt.engine.session.session import Session
    from flowckpt.engine.undo import plan_resume
    from flowckpt.engine.values.options import Trigger
    from flowckpt.engine.values.result import WorkflowResult
    from flowckpt.events import Event
    from flowckpt.evidence.verifier import EvidenceVerifier
    from flowckpt.execution.executors.base import Given
    from flowckpt.execution.remote import executors as places
    from flowckpt.maintenance.retention.rule import Retention
else:
    respond = LazyModule("flowckpt.engine.session.respond")
    cancelling = LazyModule("flowckpt.engine.session.cancel")
    fork = LazyModule("flowckpt.engine.history.fork")
    checkpoints = LazyModule("flowckpt.engine.history.checkpoints")
    plan_resume = LazyModule("flowckpt.engine.undo.plan_resume")
    rollback = LazyModule("flowckpt.engine.history.rollback")
    session = LazyModule("flowckpt.engine.session.session")
    places = LazyModule("flowckpt.execution.remote.executors")


# A loop of its own for what is called from code that is not async.


T = TypeVar("T")


def in_own_loop(work: Coroutine[Any, Any, T], door: str) -> T:
    """Run something in a loop of its own, which it may block, and return what it returns.

    Args:
        work: what to run.
        door: what the caller is called, for the error.

    Raises:
        NestedLoopError: a loop runs in this thread already.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise NestedLoopError(door)

    async def alone() -> T:
        with blocking_allowed(True):
            return await work

    with asyncio.Runner() as runner:
        return runner.run(alone())


# The doors of the engine for whoever tells a run something: signals, and answers to approvals.


class AnswersRuns:
    """What an engine can tell the runs of its store."""

    store: CheckpointStore
    _clock: Clock
    _new_id: IdFactory
    _verifier: EvidenceVerifier | None

    async def signal(
        self, workflow_id: str, name: str, data: Any = None, *, by: str = "", signal_id: str | None = None
    ) -> Sent:
        """Send a signal to a run; it is taken by the wait of its name, now or when the run comes to it.

        Args:
            workflow_id: the run.
            name: the signal's name.
            data: what it carries.
            by: who sends it.
            signal_id: names this very message, so that it can be sent again without being there twice.

        Raises:
            CheckpointNotFoundError: there is no such run.
            SignalRefusedError: the run is complete, or waits for it with a type that the data do not fit.
            EncodingError: the data cannot be recorded.
            SettingError: the store cannot deliver signals.
        """
        made = self._new_id() if signal_id is None else signal_id
        return await respond.send_signal(self.store, self._clock, workflow_id, name, data=data, by=by, signal_id=made)

    async def approve(
        self, workflow_id: str, name: str, *, by: str = "", comment: str = "", options: RunOptions | None = None
    ) -> Sent:
        """Approve what a run asks for; its evidence is checked first.

        Args:
            workflow_id: the run.
            name: the approval's name, or the path of its step.
            by: who approves.
            comment: why.
            options: how evidence is checked.

        Raises:
            CheckpointNotFoundError: there is no such run.
            SignalRefusedError: the run does not ask for it, or it is answered already.
            ApprovalStaleError: what is to be approved is no longer what the run has asked for.
            SettingError: the store cannot deliver signals.
        """
        return await self._answer(workflow_id, name, by, comment, options, is_approved=True)

    async def reject(
        self, workflow_id: str, name: str, *, by: str = "", comment: str = "", options: RunOptions | None = None
    ) -> Sent:
        """Say no to what a run asks for; see `approve`."""
        return await self._answer(workflow_id, name, by, comment, options, is_approved=False)

    async def _answer(
        self, workflow_id: str, name: str, by: str, comment: str, options: RunOptions | None, *, is_approved: bool
    ) -> Sent:
        return await respond.send_answer(
            self.store,
            self._clock,
            workflow_id,
            name,
            is_approved=is_approved,
            by=by,
            comment=comment,
            signal_id=self._new_id(),
            verifier=self._verifier,
            options=options or RunOptions(),
        )

    def signal_sync(self, workflow_id: str, name: str, data: Any = None, **how: Any) -> Sent:
        """Send a signal from code that is not async; see `signal`."""
        return in_own_loop(self.signal(workflow_id, name, data, **how), "signal_sync")

    def approve_sync(self, workflow_id: str, name: str, **how: Any) -> Sent:
        """Approve from code that is not async; see `approve`."""
        return in_own_loop(self.approve(workflow_id, name, **how), "approve_sync")

    def reject_sync(self, workflow_id: str, name: str, **how: Any) -> Sent:
        """Reject from code that is not async; see `approve`."""
        return in_own_loop(self.reject(workflow_id, name, **how), "reject_sync")


# The doors of the engine for whoever stops a run for good.


class CancelsRuns:
    """How an engine stops the runs of its store."""

    store: CheckpointStore
    _clock: Clock

    if TYPE_CHECKING:

        def prepare_resume(  # noqa: D102 - the engine's
            self,
            workflow: Any,
            workflow_id: str,
            options: RunOptions | None,
            inputs: dict[str, Any],
            *,
            is_cancel: bool = False,
        ) -> Session: ...

    async def cancel(
        self,
        workflow_id: str,
        /,
        *,
        workflow: Workflow[..., Any] | None = None,
        rolls_back: bool = True,
        patience_seconds: float = 60.0,
        options: RunOptions | None = None,
        **inputs: Any,
    ) -> Cancelled:
        """Stop a run for good: a live one is asked to, any other is taken; what its steps did is undone.

        Args:
            workflow_id: the run.
            workflow: its workflow; needed where something is to be undone and nobody runs it.
            rolls_back: whether what its steps did is undone, where they say how.
            patience_seconds: how long to wait for a live run.
            options: how the run is taken.
            **inputs: secret ones, which no record holds.

        Raises:
            CheckpointNotFoundError: there is no such run.
            CancelRefusedError: it has completed.
            CancelPendingError: it is live, and has not stopped in time.
            RunLockedError: another process has taken it meanwhile.
            InputError: the workflow is missing, and is needed.
            WorkflowChangedError: it is another workflow, or yields something else than the record says.
        """
        run = checked_id(workflow_id)

        def undoing() -> Session:
            return self.prepare_resume(needed_workflow(workflow, run), run, options, inputs, is_cancel=True)

        undo = undoing if rolls_back else None
        return await cancelling.cancel_run(self.store, self._clock, run, undo=undo, patience_seconds=patience_seconds)

    def cancel_sync(self, workflow_id: str, /, **how: Any) -> Cancelled:
        """Stop a run for good, from code that is not async; see `cancel`."""
        return in_own_loop(self.cancel(workflow_id, **how), "cancel_sync")


class WorkflowEngine(AnswersRuns, CancelsRuns):
    """Runs workflows and resumes them. It works under asyncio.

    Args:
        checkpoint_store: where checkpoints go; `FileCheckpointStore(".flowckpt")` where not given.
        clock: the time, for tests.
        new_id: makes the ids of runs that are not named.
        random: returns numbers in [0, 1), for the jitter of retries and for `random()`.
        new_uuid: makes the UUIDs of `uuid()`.
        verifier: checks what the steps claim; where not given, one that looks where the run was started.
        trigger: asks for checkpoints besides the explicit ones, after each step; see `flowckpt.triggers`.
        on_save_error: what to do when the checkpoint behind a step cannot be saved: `fail` ends the run; `continue` tells
            it (`CheckpointFailed`) and goes on, with nothing durable behind the last checkpoint that was.
        retention: which checkpoints of a run stay, and what becomes of it when it has completed; all stay where not
            given. See `flowckpt.Retention`.
        retry_budget: how many retries a run may make, in all its attempts, where the run does not say; None for any number.
        max_deaths: how often a run may die at one step before it is parked, where it does not say; 0 for no limit.
        executors: where steps can run besides here, by the names that `.on()` has: an executor, a function that makes
            one, or a description as `process:8`. The one named `default` is that of all steps that name none and may run
            there. What is made by a function or from a description is ended with the run.

    Raises:
        SettingError: `on_save_error` is neither, the store, the trigger, the retention or an executor is none, or the
            store cannot do what the retention asks for.
        ExecutorError: a description describes no executor.
    """

    def __init__(
        self,
        checkpoint_store: CheckpointStore | None = None,
        *,
        clock: Clock | None = None,
        new_id: IdFactory = new_run_id,
        random: Callable[[], float] = ids.drawn,
        verifier: EvidenceVerifier | None = None,
        trigger: Trigger | None = None,
        on_save_error: str = "fail",
        retention: Retention | None = None,
        retry_budget: int | None = None,
        max_deaths: int = MAX_DEATHS,
        new_uuid: Callable[[], UUID] = ids.new_uuid,
        executors: Mapping[str, Given] | None = None,
    ) -> None:
        self.store: CheckpointStore = FileCheckpointStore() if checkpoint_store is None else checkpoint_store
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self._random = random
        self._new_uuid = new_uuid
        self._verifier = verifier
        self._saving = Saving.checked(trigger, on_save_error, retention, self.store, Limits(retry_budget, max_deaths))
        if executors is not None:
            places.check_given(executors)
        self._executors = dict(executors or {})

    # --- with events -----------------------------------------------------------------------------------------------

    def execute(
        self,
        workflow: Workflow[..., Any],
        /,
        *,
        workflow_id: str | None = None,
        options: RunOptions | None = None,
        **inputs: Any,
    ) -> AsyncGenerator[Event, None]:
        """Start a run and yield its events.

        Args:
            workflow: what to run.
            workflow_id: the run's id; a new ULID where not given.
            options: tags and the like.
            **inputs: the workflow's inputs.

        Raises:
            WorkflowDefinitionError: it is no workflow.
            InputError: an input is unknown or missing.
            EncodingError: an input cannot be recorded.
            RunExistsError: the store holds a run of that id (raised with the first event).
            RunLockedError: another process owns it (likewise).
        """
        return self._observed(self.prepare(workflow, workflow_id, options, inputs))

    def resume(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> AsyncGenerator[Event, None]:
        """Carry a run on from its last checkpoint and yield its events.

        Args:
            workflow: the workflow of the run.
            workflow_id: the run.
            options: whether to steal it, and the like.
            **inputs: none, to use the recorded ones; or inputs that must match them.

        Raises:
            WorkflowDefinitionError: it is no workflow.
            CheckpointNotFoundError: there is no such run (raised with the first event, as the following).
            CheckpointCorruptedError: its record is damaged.
            RunLockedError: another process owns it.
            InputMismatchError: an input differs from the recorded one.
            WorkflowChangedError: it is another workflow, or its generator yields something else than the record says.
        """
        return self._observed(self.prepare_resume(workflow, workflow_id, options, inputs))

    # --- with a result ---------------------------------------------------------------------------------------------

    async def run(
        self,
        workflow: Workflow[..., Any],
        /,
        *,
        workflow_id: str | None = None,
        options: RunOptions | None = None,
        **inputs: Any,
    ) -> WorkflowResult:
        """Start a run and return how it ended. A failing workflow is a result, not an exception; see `execute`."""
        return await self.prepare(workflow, workflow_id, options, inputs).result()

    async def resume_run(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> WorkflowResult:
        """Carry a run on and return how it ended; see `resume`."""
        return await self.prepare_resume(workflow, workflow_id, options, inputs).result()

    # --- without running anything ------------------------------------------------------------------------------------

    async def plan(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> ResumePlan:
        """Return what a resume with the same arguments would do, step by step, with reasons; runs and saves nothing.

        The generator's own code is driven, with recorded outputs for its steps.

        Raises:
            CheckpointNotFoundError: there is no such run.
            CheckpointCorruptedError: its record is damaged.
            InputMismatchError: an input differs from the recorded one.
            WorkflowChangedError: it is another workflow.
            StepNotFoundError: the step of `from_step` is not in the record.
        """
        check_workflow(workflow)
        run, options = checked_id(workflow_id), options or RunOptions()
        latest = await self.store.load_latest(run)
        if latest is None:
            raise CheckpointNotFoundError(run)
        most, given = self._saving.limits.max_deaths, self._verifier
        how: Any = {"inputs": inputs, "options": options, "verifier": given, "max_deaths": most}
        return (await plan_resume.plan_resume(self.store, workflow, run, latest, **how)).plan

    def plan_sync(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> ResumePlan:
        """Return what a resume would do, from code that is not async; see `plan`."""
        return in_own_loop(self.plan(workflow, workflow_id=workflow_id, options=options, **inputs), "plan_sync")

    # --- going back, and going another way ---------------------------------------------------------------------------

    async def rollback(
        self,
        workflow_id: str,
        checkpoint_id: str,
        /,
        *,
        workflow: Workflow[..., Any] | None = None,
        options: RunOptions | None = None,
    ) -> RolledBack:
        """Make an earlier checkpoint the one to resume from; later ones stay in the store, and count no more.

        Args:
            workflow_id: the run.
            checkpoint_id: the checkpoint's id, whose newest is meant; or its sequence, in digits.
            workflow: the workflow of the run, for claims that only the program can check.
            options: how evidence is checked.

        Raises:
            CheckpointNotFoundError: there is no such run or checkpoint.
            RunLockedError: another process owns the run.
            StaleCheckpointError: the evidence of a result up to the checkpoint does not hold now; nothing was changed.
        """
        run = checked_id(workflow_id)
        checks = checkpoints.Rechecking(options or RunOptions(), self._verifier, lambda: workflow)
        return await rollback.roll_back(self.store, self._clock, run, checkpoint_id, checks)

    def rollback_sync(self, workflow_id: str, checkpoint_id: str, /, **how: Any) -> RolledBack:
        """Make an earlier checkpoint the one to resume from, from code that is not async; see `rollback`."""
        return in_own_loop(self.rollback(workflow_id, checkpoint_id, **how), "rollback_sync")

    async def fork(
        self,
        workflow_id: str,
        /,
        *,
        new_id: str | None = None,
        checkpoint_id: str = "",
        from_step: str = "",
        outputs: Mapping[str, Any] | None = None,
        inputs: Mapping[str, Any] | None = None,
        workflow: Workflow[..., Any] | None = None,
        options: RunOptions | None = None,
    ) -> Forked:
        """Make a new run that starts from the history of another; resume it to go on.

        Args:
            workflow_id: the run to start from; it is only read, and may be live or completed.
            new_id: the id of the new run; a new ULID where not given.
            checkpoint_id: start from this checkpoint (id, or sequence), also one left behind; else from the newest.
            from_step: the step (path, or name) before which it begins; where not given, it has all results.
            outputs: outputs to put in the place of recorded ones, by step; what came after them is dropped.
            inputs: inputs to change, by name; the resume runs again what is called with other arguments then.
            workflow: the workflow of the run; needed for outputs and inputs.
            options: how evidence is checked.

        Raises:
            CheckpointNotFoundError: there is no such run, or no such checkpoint.
            StepNotFoundError: a step is not in its record.
            RunExistsError: the new id is taken.
            InputError: an input or an output cannot be, or the workflow is missing that says its type.
            EncodingError: an input or an output cannot be recorded.
            StaleCheckpointError: the evidence of a result that would be taken over does not hold now.
        """
        source, new = checked_id(workflow_id), checked_new_id(self._new_id() if new_id is None else new_id)
        changes: Any = {"edits": fork.as_given(outputs or {}), "inputs": inputs or {}}
        plan = fork.ForkPlan(new_id=new, checkpoint=checkpoint_id, from_step=from_step, **changes)
        checks = checkpoints.Rechecking(options or RunOptions(), self._verifier, lambda: workflow)
        return await fork.fork_run(self.store, self._clock, source, plan, checks)

    def fork_sync(self, workflow_id: str, /, **how: Any) -> Forked:
        """Make a new run from the history of another, from code that is not async; see `fork`."""
        return in_own_loop(self.fork(workflow_id, **how), "fork_sync")

    # --- from code that is not async ---------------------------------------------------------------------------------

    def run_sync(
        self,
        workflow: Workflow[..., Any],
        /,
        *,
        workflow_id: str | None = None,
        options: RunOptions | None = None,
        **inputs: Any,
    ) -> WorkflowResult:
        """Start a run in a loop of its own and return how it ended; see `execute`.

        Sync steps run in the calling thread. Ctrl-C and SIGTERM stop the run after saving it.

        Raises:
            RunInterrupted: a signal stopped the run (a `KeyboardInterrupt`, with the result in `.result`).
            NestedLoopError: a loop runs in this thread already.
        """
        return self.drive_sync(self.prepare(workflow, workflow_id, options, inputs), door="run_sync")

    def resume_sync(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> WorkflowResult:
        """Carry a run on in a loop of its own and return how it ended; see `resume` and `run_sync`."""
        return self.drive_sync(self.prepare_resume(workflow, workflow_id, options, inputs), door="resume_sync")

    @staticmethod
    def drive_sync(
        taken: Session, *, door: str = "run_sync", on_event: Callable[[Event], None] | None = None
    ) -> WorkflowResult:
        """Drive a taken run in a loop of its own, with the signals handled.

        Args:
            taken: what to drive.
            door: what the caller is called, for an error.
            on_event: told every event.
        """
        with taken.interrupts:
            return in_own_loop(taken.result(on_event), door)

    # --- what stands behind the doors ------------------------------------------------------------------------------

    def prepare(
        self, workflow: Any, workflow_id: str | None, options: RunOptions | None, inputs: dict[str, Any]
    ) -> Session:
        """Bind a start without beginning it, for whoever drives it by `drive_sync`; see `execute`.

        Args:
            workflow: what to run.
            workflow_id: the run's id, or None for a new one.
            options: tags and the like.
            inputs: the workflow's inputs, by name.
        """
        check_workflow(workflow)
        if options is not None:
            self._saving.trigger_of(options.asked_saving)  # a number out of range is told before anything is taken
        bound = binding.bind_inputs(workflow, inputs)
        run = checked_new_id(self._new_id() if workflow_id is None else workflow_id)
        return self._session(workflow, run, options, inputs, bound=bound)

    def prepare_resume(
        self,
        workflow: Any,
        workflow_id: str,
        options: RunOptions | None,
        inputs: dict[str, Any],
        *,
        is_cancel: bool = False,
    ) -> Session:
        """Name a resume without beginning it, for whoever drives it by `drive_sync`; see `resume`.

        Args:
            workflow: the workflow of the run.
            workflow_id: the run.
            options: whether to steal it, and the like.
            inputs: none, or inputs that must match the recorded ones.
            is_cancel: do nothing but undo, and end the run as cancelled.
        """
        check_workflow(workflow)
        return self._session(workflow, checked_id(workflow_id), options, inputs, is_cancel=is_cancel)

    def _session(
        self, workflow: Any, run: str, options: RunOptions | None, inputs: dict[str, Any], **how: Any
    ) -> Session:
        refuse_while_loading()
        parts = self.store, self._clock, self._random, workflow, run, options or RunOptions()
        own = {"verifier": self._verifier, "saving": self._saving, "executors": self._executors}
        how = {**own, "new_uuid": self._new_uuid, **how}
        return session.Session(*parts, inputs=inputs, **how)

    async def _observed(self, taken: Session) -> AsyncGenerator[Event, None]:
        async with aclosing(taken.events()) as events:
            async for event in events:
                yield event


def run_sync(
    workflow: Workflow[..., Any],
    /,
    *,
    workflow_id: str | None = None,
    options: RunOptions | None = None,
    **inputs: Any,
) -> WorkflowResult:
    """Start a run with the default engine (file store in `.flowckpt`); see `WorkflowEngine.run_sync`."""
    return WorkflowEngine().run_sync(workflow, workflow_id=workflow_id, options=options, **inputs)
