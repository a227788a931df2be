"""The doors of the engine: start a run, resume one, with events or with a result, from async code or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from flowckpt import execution
from flowckpt.core.dsl import Workflow
from flowckpt.core.system import ids
from flowckpt.core.system.blocking import hidden_loop, run_alone
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.core.system.ids import IdFactory, check_new_id, new_message_id, new_run_id
from flowckpt.engine import dry, history, session, undo
from flowckpt.engine import run as attempts
from flowckpt.engine.rules.reasons import MAX_CRASHES
from flowckpt.engine.values.options import (
    IfExists,
    RunOptions,
    Saving,
    check_functions,
    check_options,
    check_ports,
)
from flowckpt.execution import remote
from flowckpt.stores.adapted import CheckpointStore, adapt
from flowckpt.stores.file import FileCheckpointStore

if TYPE_CHECKING:
    from uuid import UUID

    from flowckpt.core.records import CheckpointData
    from flowckpt.engine.history.checkpoints import RolledBack
    from flowckpt.engine.history.fork import Forked
    from flowckpt.engine.rules.plan import ResumePlan
    from flowckpt.engine.run.live import Published
    from flowckpt.engine.run.notify import Listener
    from flowckpt.engine.session.control import Cancelled
    from flowckpt.engine.session.respond import Sent
    from flowckpt.engine.session.session import Session
    from flowckpt.engine.values.options import Trigger
    from flowckpt.engine.values.result import WorkflowResult
    from flowckpt.events import Event
    from flowckpt.evidence.verifier import EvidenceVerifier
    from flowckpt.execution.executors.base import ExecutorSpec
    from flowckpt.maintenance.retention import Retention


# An event loop for calls from sync code.


T = TypeVar("T")


def run_in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in its own event loop, which it may block, and return its value.

    A loop that already runs in this thread, as in a notebook, stands still meanwhile.

    Args:
        work: the coroutine.
    """
    with (
        hidden_loop() as is_hidden,
        asyncio.Runner(loop_factory=asyncio.new_event_loop if is_hidden else None) as runner,
    ):
        return run_alone(runner, work)


class WorkflowEngine:
    """Runs and resumes workflows, under asyncio. From sync code, use `run_sync`, `resume_sync`, and `in_sync(engine)` for the rest.

    A failing workflow is a result with the status `failed`, not an exception. A stale result or a step in doubt raises
    `StaleStepError` or `StepInDoubtError` if nothing was executed yet; later it ends the run like an error of the
    workflow.

    Args:
        checkpoint_store: where checkpoints are stored; `FileCheckpointStore(".flowckpt")` by default.
        clock: the time, for tests.
        new_id: creates run ids where none is given; a ULID by default.
        random: returns numbers in [0, 1), for the jitter of retries and for `random()`.
        new_uuid: creates the UUIDs of `uuid()`.
        verifier: checks evidence. The default resolves relative paths from the directory in which the run was started,
            allows absolute ones, and reaches only hosts of `RunOptions(allow_network=…)`.
        trigger: requests checkpoints in addition to the explicit ones, after each step.
        on_save_error: if the checkpoint after a step cannot be saved, `fail` ends the run; `continue` emits
            `CheckpointFailed` and continues without a durable checkpoint.
        retention: which checkpoints of a run stay; all by default.
        retry_budget: total retries for all steps and attempts of a run without its own budget; None for no limit.
        max_crashes: crashes at the same step after which a run without its own limit is not resumed; 0 for no limit.
        executors: where steps can run, by the names of `.on()`: an executor, a function that creates one, or a
            description such as `process:8`. `default` takes all steps that name none and may run there. Executors
            created by functions or descriptions end with the run.
        listeners: functions that are called with every event of every run, in its thread. An exception that they raise
            is logged and otherwise ignored.

    Attributes:
        store: the checkpoint store.

    Raises:
        SettingError: an argument is invalid, or the store lacks what the retention needs.
        ExecutorError: a description is invalid.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each setting
        self,
        checkpoint_store: CheckpointStore | None = None,
        *,
        clock: Clock | None = None,
        new_id: IdFactory = new_run_id,
        random: Callable[[], float] = ids.random_number,
        verifier: EvidenceVerifier | None = None,
        trigger: Trigger | None = None,
        on_save_error: str = "fail",
        retention: Retention | None = None,
        retry_budget: int | None = None,
        max_crashes: int = MAX_CRASHES,
        new_uuid: Callable[[], UUID] = ids.new_uuid,
        executors: Mapping[str, ExecutorSpec] | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self.store = FileCheckpointStore() if checkpoint_store is None else adapt(checkpoint_store, "checkpoint_store")
        check_ports(verifier, clock)
        self._clock = clock or SystemClock()
        self._new_id = new_id
        self._world = execution.runner.WorldSources(self._clock, random, new_uuid)
        self._verifier = verifier
        limits: Any = {"retry_budget": retry_budget, "max_crashes": max_crashes}
        self._saving = Saving.create(self.store, trigger, on_save_error, retention, **limits)
        if executors is not None:
            remote.executors.check_executors(executors)
        self._executors = dict(executors or {})
        self._listeners = check_functions("listeners", listeners, "that take an event")

    # --- with events -----------------------------------------------------------------------------------------------

    def execute(
        self,
        workflow: Workflow[..., Any],
        /,
        *,
        workflow_id: str | None = None,
        if_exists: str = "fail",
        options: RunOptions | None = None,
        **inputs: Any,
    ) -> AsyncGenerator[Event, None]:
        """Start a run and yield its events.

        Errors of the store are raised with the first event.

        Args:
            workflow: what to run.
            workflow_id: the run id; a new ULID by default.
            if_exists: what to do if the store has a run of this id: `fail`; `resume` it, with the options of a resume;
                or `return` how it ended and run nothing. The workflow and the inputs must be those of that run.
            options: tags, policies and more.
            **inputs: the workflow's inputs.

        Raises:
            WorkflowDefinitionError: it is not a workflow.
            InputError: an input is unknown or missing.
            EncodingError: an input cannot be recorded.
            RunExistsError: the store has a run of this id, and `if_exists` is `fail`.
            RunLockedError: another process owns it.
            InputMismatchError: the run of this id has other inputs.
            WorkflowChangedError: it is a run of another workflow.
        """
        return self._stream_events(self.prepare(workflow, workflow_id, options, inputs, if_exists=if_exists))

    def resume(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> AsyncGenerator[Event, None]:
        """Resume a run from its last checkpoint and yield its events.

        Errors of the store and of the record are raised with the first event.

        Args:
            workflow: the workflow of the run.
            workflow_id: the run.
            options: policies and more.
            **inputs: none, to use the recorded ones; given inputs must match them.

        Raises:
            WorkflowDefinitionError: it is not a workflow.
            CheckpointNotFoundError: the run does not exist.
            CheckpointCorruptedError: its record is damaged.
            RunLockedError: another process owns it.
            InputMismatchError: an input differs from the recorded one.
            WorkflowChangedError: it is another workflow, or its generator does not follow the record.
            StaleStepError: a recorded result is stale, and the policy is to stop.
            StepInDoubtError: an at-most-once step may have run, and its evidence cannot tell.
        """
        return self._stream_events(self.prepare_resume(workflow, workflow_id, options, inputs))

    # --- with a result ---------------------------------------------------------------------------------------------

    async def run(
        self,
        workflow: Workflow[..., Any],
        /,
        *,
        workflow_id: str | None = None,
        if_exists: str = "fail",
        options: RunOptions | None = None,
        **inputs: Any,
    ) -> WorkflowResult:
        """Start a run and return its result; see `WorkflowEngine.execute`."""
        return await self.prepare(workflow, workflow_id, options, inputs, if_exists=if_exists).result()

    async def resume_run(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> WorkflowResult:
        """Resume a run and return its result; see `WorkflowEngine.resume`."""
        return await self.prepare_resume(workflow, workflow_id, options, inputs).result()

    @staticmethod
    async def join() -> None:
        """Wait until the runs that `.start()` steps have started in this loop have ended or are suspended.

        `run_sync` and `flowckpt run` do this by themselves. If the loop ends first, the runs are suspended, and `flowckpt recover`
        continues them.
        """
        await session.outbox.loop_runs().join(execution.interrupts.Interrupts())

    # --- without running anything ------------------------------------------------------------------------------------

    async def plan(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> ResumePlan:
        """Return what a resume with the same arguments would do; executes and saves nothing.

        The generator's own code runs, with recorded outputs for its steps.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            CheckpointCorruptedError: its record is damaged.
            InputMismatchError: an input differs from the recorded one.
            WorkflowChangedError: it is another workflow.
            StepNotFoundError: the step of `from_step` is not in the record.
        """
        session.check_workflow(workflow)
        check_options(options)
        run, options = session.check_id(workflow_id), options or RunOptions()
        latest = attempts.lease.require_run(run, await self.store.load_latest(run))
        most, given = self._saving.max_crashes, self._verifier
        how: Any = {"inputs": inputs, "options": options, "verifier": given, "max_crashes": most, "clock": self._clock}
        planning = undo.plan_resume.plan_resume(self.store, workflow, run, latest, **how)
        return (await attempts.lease.explain_failure(self.store, run, planning)).plan

    def open(
        self, workflow_id: str, /, *, workflow: Workflow[..., Any] | None = None, **inputs: Any
    ) -> dry.time_travel.RunHistory:
        """Open the recorded history of a run: `engine.open(run).at("transform").locals`. Nothing is run or saved.

        Args:
            workflow_id: the run.
            workflow: its workflow; by default loaded from where the record says.
            **inputs: the run's secret inputs, if its body uses them.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            CheckpointCorruptedError: its record is damaged.
            TargetError: the workflow cannot be loaded, or the run was imported and no workflow is given.
            InputMismatchError: an input differs from the recorded one.
        """
        latest = attempts.lease.require_run(
            workflow_id, run_in_own_loop(self.store.load_latest(session.check_id(workflow_id)))
        )

        async def open_recorded() -> dry.time_travel.RunHistory:
            return dry.time_travel.open_history(workflow_id, latest, workflow, inputs, self.store)

        return run_in_own_loop(attempts.lease.explain_failure(self.store, workflow_id, open_recorded()))

    # --- rollback and fork -------------------------------------------------------------------------------------------

    async def rollback(
        self,
        workflow_id: str,
        checkpoint_id: str,
        /,
        *,
        workflow: Workflow[..., Any] | None = None,
        options: RunOptions | None = None,
    ) -> RolledBack:
        """Make an earlier checkpoint the one to resume from; later checkpoints stay in the store but no longer count.

        Args:
            workflow_id: the run.
            checkpoint_id: an id, for its newest checkpoint; or a sequence in digits.
            workflow: the workflow of the run, if claims need the program.
            options: how evidence is checked.

        Raises:
            CheckpointNotFoundError: the run or checkpoint does not exist.
            RunLockedError: another process owns the run.
            StaleCheckpointError: the evidence of a result up to the checkpoint does not hold; nothing was changed.
        """
        run = session.check_id(workflow_id)
        checks = history.checkpoints.Recheck(options or RunOptions(), self._verifier, lambda: workflow)
        return await history.checkpoints.roll_back(self.store, self._clock, run, checkpoint_id, checks)

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
        """Create a new run from the history of another; resume it to continue.

        Args:
            workflow_id: the source run; it is only read, and may be live or completed.
            new_id: the id of the new run; a new ULID by default.
            checkpoint_id: the checkpoint to start from (id or sequence), also one that no longer counts; the newest by default.
            from_step: take over only the results before this step (path or name); all by default.
            outputs: replaced outputs, by step; results after a replaced one are dropped.
            inputs: changed inputs, by name; the resume reruns steps whose arguments change.
            workflow: the workflow of the run; required with `outputs` or `inputs`.
            options: how evidence is checked.

        Raises:
            CheckpointNotFoundError: the run or checkpoint does not exist.
            StepNotFoundError: a step is not in the record.
            RunExistsError: the new id is taken.
            InputError: an input or output is invalid, or the workflow that defines its type is missing.
            EncodingError: an input or output cannot be recorded.
            StaleCheckpointError: the evidence of a result to take over does not hold.
        """
        source, new = (
            session.check_id(workflow_id),
            check_new_id(self._new_id() if new_id is None else new_id),
        )
        changes: Any = {"edits": history.fork.make_edits(outputs or {}), "inputs": inputs or {}}
        plan = history.fork.ForkPlan(new_id=new, checkpoint=checkpoint_id, from_step=from_step, **changes)
        checks = history.fork.Recheck(options or RunOptions(), self._verifier, lambda: workflow)
        return await history.fork.fork_run(self.store, self._clock, source, plan, checks)

    # --- signals, answers and requests -------------------------------------------------------------------------------

    async def signal(
        self,
        workflow_id: str,
        name: str,
        data: Any = None,
        *,
        by: str = "",
        signal_id: str | None = None,
        wait: float | None = None,
    ) -> Sent:
        """Send a signal to a run; the next wait of this name takes it.

        Args:
            workflow_id: the run.
            name: the signal's name.
            data: its data.
            by: the sender.
            signal_id: identifies the message; sending it again has no further effect.
            wait: how many seconds to wait for the `.reply()` of the run, returned as `reply`; not at all by default.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            SignalRefusedError: the run has completed, or waits for data of another type.
            NoReplyError: the run has not replied in time, or has completed without a reply.
            EncodingError: the data cannot be recorded.
            SettingError: the store cannot deliver signals.
        """
        made = new_message_id() if signal_id is None else signal_id
        if wait is not None:
            how: Any = {"data": data, "by": by, "signal_id": made, "patience_seconds": wait}
            return await session.respond.ask(self.store, self._clock, workflow_id, name, **how)
        send = session.respond.send_signal if signal_id is None else session.respond.send_once
        return await send(self.store, self._clock, workflow_id, name, data=data, by=by, signal_id=made)

    async def approve(
        self,
        workflow_id: str,
        name: str,
        *,
        by: str = "",
        comment: str = "",
        request: str = "",
        options: RunOptions | None = None,
    ) -> Sent:
        """Approve what a run asks for; the claims that the approval is bound to are checked first.

        Args:
            workflow_id: the run.
            name: the approval's name, or the path of its step.
            by: the name of the approver.
            comment: why.
            request: the `Wait.request_id` of the question that was read; by default whatever the run asks now.
            options: how evidence is checked.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            SignalRefusedError: the run does not ask for it, its deadline is over, it was answered already, or the run
                asks another question now.
            ApprovalStaleError: what is to be approved has changed since the run asked.
            SettingError: the store cannot deliver signals.
        """
        answer = {"by": by, "comment": comment, "request": request, "is_approved": True}
        return await self._answer(workflow_id, name, options, **answer)

    async def reject(
        self,
        workflow_id: str,
        name: str,
        *,
        by: str = "",
        comment: str = "",
        request: str = "",
        options: RunOptions | None = None,
    ) -> Sent:
        """Reject what a run asks for; see `WorkflowEngine.approve`."""
        answer = {"by": by, "comment": comment, "request": request, "is_approved": False}
        return await self._answer(workflow_id, name, options, **answer)

    async def _answer(self, workflow_id: str, name: str, options: RunOptions | None, **answer: Any) -> Sent:
        answer |= {"verifier": self._verifier, "options": options or RunOptions()}
        return await session.respond.send_answer(self.store, self._clock, workflow_id, name, **answer)

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
        """Stop a run permanently and undo its steps.

        The owner of a live run stops it: in this process at once, on this machine by a signal, elsewhere at its next
        step. Its `run` returns a result with the status `cancelled` and a `RunCancelledError`. A run without an owner
        is taken over.

        Args:
            workflow_id: the run.
            workflow: its workflow; required if the run has no owner and steps have to be undone.
            rolls_back: whether to undo steps that have a `.rollback()`.
            patience_seconds: how long to wait for a live run to stop.
            options: how the run is taken over.
            **inputs: the run's secret inputs.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            CancelRefusedError: it has completed.
            RequestPendingError: it is live and has not stopped in time.
            RunLockedError: another process has taken it over meanwhile.
            InputError: the workflow is required and missing.
            WorkflowChangedError: it is another workflow, or its generator does not follow the record.
        """
        run = session.check_id(workflow_id)

        def make_undo() -> Session:
            return self.prepare_resume(session.require_workflow(workflow, run), run, options, inputs, is_cancel=True)

        make = make_undo if rolls_back else None
        return await session.control.cancel_run(
            self.store, self._clock, run, undo=make, patience_seconds=patience_seconds
        )

    async def tag(
        self, workflow_id: str, change: Mapping[str, str | None], /, *, patience_seconds: float = 60.0
    ) -> Mapping[str, str]:
        """Add, change or remove tags of a run, and return all its tags. The owner of a live run saves them itself.

        Args:
            workflow_id: the run.
            change: the new value of each tag; None removes it.
            patience_seconds: how long to wait for the owner of a live run.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            RequestPendingError: it is live, and its owner has not acted in time.
            RunLockedError: another process took it meanwhile, or its owner cannot be asked.
        """
        run = session.check_id(workflow_id)
        data = await session.control.tag_run(self.store, self._clock, run, change, patience_seconds=patience_seconds)
        return dict(data.metadata.get("tags", {}))

    async def published(self, workflow_id: str, /) -> Mapping[str, Published]:
        """Return what a run published, by name: the last value, when, and by which step. A live run shows it within seconds.

        Args:
            workflow_id: the run.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            CheckpointCorruptedError: its record is damaged.
        """
        return await attempts.live.read_published(self.store, session.check_id(workflow_id))

    async def save_checkpoint(self, workflow_id: str, /, *, patience_seconds: float = 60.0) -> CheckpointData:
        """Have the owner of a live run save a checkpoint at the end of its present step, and return the checkpoint.

        Args:
            workflow_id: the run.
            patience_seconds: how long to wait for it.

        Raises:
            CheckpointNotFoundError: the run does not exist.
            InputError: no process runs it.
            RequestPendingError: its owner has not saved one in time.
            RunLockedError: its owner cannot be asked.
        """
        run = session.check_id(workflow_id)
        return await session.control.checkpoint_run(self.store, self._clock, run, patience_seconds=patience_seconds)

    # --- from code that is not async ---------------------------------------------------------------------------------

    def run_sync(
        self,
        workflow: Workflow[..., Any],
        /,
        *,
        workflow_id: str | None = None,
        if_exists: str = "fail",
        options: RunOptions | None = None,
        **inputs: Any,
    ) -> WorkflowResult:
        """Start a run in its own loop and return its result; see `WorkflowEngine.execute`.

        Sync steps run in the calling thread. A loop that runs in this thread already, as in a notebook, stands still
        until the run has ended. Ctrl-C and SIGTERM stop the run after saving it.

        Raises:
            RunInterrupted: a signal stopped the run; a `KeyboardInterrupt` with the result in `.result`.
        """
        prepared = self.prepare(workflow, workflow_id, options, inputs, if_exists=if_exists)
        return self.drive_sync(prepared)

    def resume_sync(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> WorkflowResult:
        """Resume a run in its own loop and return its result; see `WorkflowEngine.resume` and `WorkflowEngine.run_sync`."""
        return self.drive_sync(self.prepare_resume(workflow, workflow_id, options, inputs))

    @staticmethod
    def drive_sync(
        taken: Session, *, on_event: Callable[[Event], None] | None = None, folds_restored: bool = False
    ) -> WorkflowResult:
        """Drive a prepared run in its own loop, with signals handled.

        Args:
            taken: the prepared run.
            on_event: called with every event.
            folds_restored: whether consecutive restored steps share one event.
        """
        with taken.interrupts:
            return run_in_own_loop(taken.run_all(on_event, folds_restored=folds_restored))

    # --- preparation of sessions -----------------------------------------------------------------------------------

    def prepare(
        self,
        workflow: Any,
        workflow_id: str | None,
        options: RunOptions | None,
        inputs: dict[str, Any],
        *,
        if_exists: str = "fail",
    ) -> Session:
        """Bind a start without starting it, for `drive_sync`; see `WorkflowEngine.execute`.

        Args:
            workflow: what to run.
            workflow_id: the run id, or None for a new one.
            options: tags, policies and more.
            inputs: the workflow's inputs, by name.
            if_exists: what to do if the store has a run of this id.
        """
        session.check_workflow(workflow)
        check_options(options)
        if options is not None:
            self._saving.trigger_of(options.given_saving)  # refuses a number out of range before the lease is taken
        bound = session.bind_inputs(workflow, inputs)
        session.refuse_output(workflow)
        run = check_new_id(self._new_id() if workflow_id is None else workflow_id)
        return self._make_session(workflow, run, options, inputs, bound=bound, if_exists=IfExists.parse(if_exists))

    def prepare_resume(
        self,
        workflow: Any,
        workflow_id: str,
        options: RunOptions | None,
        inputs: dict[str, Any],
        *,
        is_cancel: bool = False,
    ) -> Session:
        """Bind a resume without starting it, for `drive_sync`; see `WorkflowEngine.resume`.

        Args:
            workflow: the workflow of the run.
            workflow_id: the run.
            options: policies and more.
            inputs: none, or inputs that must match the recorded ones.
            is_cancel: only undo, and end the run as cancelled.
        """
        session.check_workflow(workflow)
        check_options(options)
        return self._make_session(workflow, session.check_id(workflow_id), options, inputs, is_cancel=is_cancel)

    def _make_session(
        self, workflow: Any, run: str, options: RunOptions | None, inputs: dict[str, Any], **how: Any
    ) -> Session:
        if remote.Loading.is_under_way:
            raise remote.run_while_loading_error()
        ports = session.session.Ports(
            self.store,
            self._world,
            self._verifier,
            self._saving,
            self._executors,
            self._listeners,
            self._drive_started,
        )
        return session.session.Session(ports, workflow, run, options or RunOptions(), inputs=inputs, **how)

    async def _drive_started(self, workflow: Workflow[..., Any], workflow_id: str) -> WorkflowResult:
        return await self.prepare_resume(workflow, workflow_id, None, {}).join()

    async def _stream_events(self, taken: Session) -> AsyncGenerator[Event, None]:
        async with aclosing(taken.events()) as events:
            async for event in events:
                yield event
