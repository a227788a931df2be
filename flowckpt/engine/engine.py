"""The doors of the engine: start a run, resume one, with events or with a result, from async code or not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

from flowckpt import codec
from flowckpt.blocking import blocking_allowed
from flowckpt.checkpoint import CheckpointData, History, HistoryView, Status
from flowckpt.checkpointer import Checkpointer
from flowckpt.clock import Clock, SystemClock
from flowckpt.codec.results import as_view, plain_tree
from flowckpt.dsl import Workflow
from flowckpt.engine.binding import BoundInputs, bind_inputs, rebind_inputs
from flowckpt.engine.drive import Drive
from flowckpt.engine.options import RunOptions
from flowckpt.engine.result import StepCounts, WorkflowResult
from flowckpt.engine.target import describe_target
from flowckpt.errors import (
    CheckpointNotFoundError,
    NestedLoopError,
    RunExistsError,
    WorkflowChangedError,
    WorkflowDefinitionError,
)
from flowckpt.events import Event, WorkflowCompleted, WorkflowResumed
from flowckpt.execution.interrupts import Interrupts
from flowckpt.fingerprint import fingerprint
from flowckpt.ids import IdFactory, new_run_id
from flowckpt.replay import Replay
from flowckpt.stores.base import CheckpointStore, Lease, OwnsRuns
from flowckpt.stores.file import FileCheckpointStore

_DEFAULT_OPTIONS = RunOptions()


class WorkflowEngine:
    """Runs workflows and resumes them. It works under asyncio.

    Args:
        checkpoint_store: where checkpoints go; `FileCheckpointStore(".flowckpt")` where not given.
        clock: the time, for tests.
        new_id: makes the ids of runs that are not named.
        random: returns numbers in [0, 1), for the jitter of retries.
    """

    def __init__(
        self,
        checkpoint_store: CheckpointStore | None = None,
        *,
        clock: Clock | None = None,
        new_id: IdFactory = new_run_id,
        random: Callable[[], float] = random.random,
    ) -> None:
        self.store: CheckpointStore = FileCheckpointStore() if checkpoint_store is None else checkpoint_store
        self._clock: Clock = clock or SystemClock()
        self._new_id = new_id
        self._random = random

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
        return self._observed(self._session(workflow, workflow_id, options, inputs))

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
        return self._observed(self._resumption(workflow, workflow_id, options, inputs))

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
        return await self._session(workflow, workflow_id, options, inputs).result()

    async def resume_run(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> WorkflowResult:
        """Carry a run on and return how it ended; see `resume`."""
        return await self._resumption(workflow, workflow_id, options, inputs).result()

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
        return self.drive_sync(self._session(workflow, workflow_id, options, inputs), door="run_sync")

    def resume_sync(
        self, workflow: Workflow[..., Any], /, *, workflow_id: str, options: RunOptions | None = None, **inputs: Any
    ) -> WorkflowResult:
        """Carry a run on in a loop of its own and return how it ended; see `resume` and `run_sync`."""
        return self.drive_sync(self._resumption(workflow, workflow_id, options, inputs), door="resume_sync")

    @staticmethod
    def drive_sync(
        session: Session, *, door: str = "run_sync", on_event: Callable[[Event], None] | None = None
    ) -> WorkflowResult:
        """Drive a session in a loop of its own, with the signals handled.

        Args:
            session: what to drive.
            door: what the caller is called, for an error.
            on_event: told every event.
        """
        with session.interrupts:
            return _in_own_loop(session.result(on_event), door)

    # --- what stands behind the doors ------------------------------------------------------------------------------

    def _session(
        self, workflow: Any, workflow_id: str | None, options: RunOptions | None, inputs: dict[str, Any]
    ) -> Session:
        _check_workflow(workflow)
        bound = bind_inputs(workflow, inputs)
        return Session(self, workflow, workflow_id, options or _DEFAULT_OPTIONS, bound, inputs)

    def _resumption(
        self, workflow: Any, workflow_id: str, options: RunOptions | None, inputs: dict[str, Any]
    ) -> Session:
        _check_workflow(workflow)
        return Session(self, workflow, workflow_id, options or _DEFAULT_OPTIONS, None, inputs)

    async def _observed(self, session: Session) -> AsyncGenerator[Event, None]:
        async with aclosing(session.events()) as events:
            async for event in events:
                yield event


class Session:
    """One start or one resume: it takes the run, drives it, and gives it back whatever happens.

    Attributes:
        interrupts: the signals; entered by whoever owns the loop.
    """

    def __init__(
        self,
        engine: WorkflowEngine,
        workflow: Workflow[Any, Any],
        workflow_id: str | None,
        options: RunOptions,
        bound: BoundInputs | None,
        inputs: dict[str, Any],
    ) -> None:
        self.interrupts = Interrupts()
        self._engine = engine
        self._workflow = workflow
        self._workflow_id = workflow_id
        self._options = options
        self._bound = bound
        self._inputs = inputs
        self._ended: WorkflowResult | None = None

    async def result(self, on_event: Callable[[Event], None] | None = None) -> WorkflowResult:
        """Drive the run to its end and return how it ended."""
        async with aclosing(self.events()) as events:
            async for event in events:
                if on_event is not None:
                    on_event(event)
        assert self._ended is not None
        return self._ended

    async def events(self) -> AsyncGenerator[Event, None]:
        """Take the run, drive it, and give it back."""
        store = self._engine.store
        workflow_id = self._workflow_id or self._engine._new_id()
        lease = await _acquired(store, workflow_id, steal=self._options.steal)
        try:
            if self._bound is not None:
                drive = self._started(lease, self._bound)
            elif lease.latest is None:
                raise CheckpointNotFoundError(workflow_id)
            elif lease.latest.status is Status.COMPLETED:
                self._check_name(lease.latest)
                self._rebound(lease.latest)
                for event in self._already_completed(lease.latest):
                    yield event
                return
            else:
                drive = self._resumed(lease, lease.latest)
            async with aclosing(drive.events()) as events:
                try:
                    async for event in events:
                        yield event
                finally:
                    self._ended = drive.result
        finally:
            if isinstance(store, OwnsRuns):
                await store.release(workflow_id)

    def _started(self, lease: Lease, bound: BoundInputs) -> Drive:
        if lease.latest is not None:
            raise RunExistsError(lease.workflow_id)
        options, workflow = self._options, self._workflow
        metadata = {
            "target": dict(describe_target(workflow) if options.target is None else options.target),
            "tags": dict(options.tags),
            "defaulted": list(bound.defaulted),
        }
        return self._drive(lease, bound, History(), None, metadata, fingerprint(workflow.function))

    def _resumed(self, lease: Lease, latest: CheckpointData) -> Drive:
        self._check_name(latest)
        bound = self._rebound(latest)
        history = _effective_history(latest)
        return self._drive(lease, bound, history, latest, dict(latest.metadata), fingerprint(self._workflow.function))

    def _drive(
        self,
        lease: Lease,
        bound: BoundInputs,
        history: History,
        latest: CheckpointData | None,
        metadata: dict[str, Any],
        code: str,
    ) -> Drive:
        engine, workflow = self._engine, self._workflow
        checkpointer = Checkpointer(
            engine.store,
            engine._clock,
            lease.workflow_id,
            workflow.name,
            bound.hash,
            bound.recorded,
            code,
            metadata,
            lease.attempt,
            lease.last_sequence,
            history,
        )
        generator = workflow(**bound.values(workflow))
        return Drive(
            workflow,
            Replay(generator, history.results, workflow.name),
            checkpointer,
            engine._clock,
            engine._random,
            self.interrupts,
            latest,
        )

    def _check_name(self, latest: CheckpointData) -> None:
        if latest.workflow_name != self._workflow.name:
            raise WorkflowChangedError(
                f"run {self._workflow_id!r} belongs to workflow {latest.workflow_name!r}, not to {self._workflow.name!r}",
                workflow_name=self._workflow.name,
                recorded=latest.workflow_name,
                yielded=self._workflow.name,
                remedy="Resume it with the workflow that started it.",
            )

    def _rebound(self, latest: CheckpointData) -> BoundInputs:
        return rebind_inputs(
            self._workflow,
            recorded=plain_tree(latest.held_inputs, "inputs"),
            recorded_hash=latest.inputs_hash,
            defaulted=tuple(latest.metadata.get("defaulted", ())),
            given=self._inputs,
        )

    def _already_completed(self, latest: CheckpointData) -> list[Event]:
        """Answer the resume of a run that has ended: its recorded result, and nothing run or saved."""
        run, restored = self._workflow_id or "", len(latest.step_results)
        output = codec.decode(
            plain_tree(latest.held_output, "output"), self._workflow.output_type, place="the workflow's output"
        )
        self._ended = WorkflowResult(
            run, self._workflow.name, Status.COMPLETED, output, latest.attempt, StepCounts(restored=restored), 0.0
        )
        return [
            WorkflowResumed(run, self._workflow.name, latest.attempt, restored, latest.checkpoint_id),
            WorkflowCompleted(run, output, 0, restored, 0.0),
        ]


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


def _effective_history(latest: CheckpointData) -> History:
    """Return the results that a resume goes on from.

    A failed run goes on before the step whose failure ended it, so that the step is executed again. A failure that
    the generator handled stays: it is part of what the run did.
    """
    view: HistoryView = as_view(latest.step_results)
    length = len(view)
    if latest.status is Status.FAILED and latest.error is not None and latest.error.path:
        for index, result in enumerate(view):
            if result.path == latest.error.path:
                length = index
                break
    return view.history if length == len(view.history.results) else view.history.forked(length)


async def _acquired(store: CheckpointStore, workflow_id: str, *, steal: bool) -> Lease:
    """Take the run; a store that knows no owners is trusted to have one user."""
    if isinstance(store, OwnsRuns):
        return await store.acquire(workflow_id, steal=steal)
    latest = await store.load_latest(workflow_id)
    if latest is None:
        return Lease(workflow_id, 1, None)
    return Lease(workflow_id, latest.attempt + 1, latest, latest.sequence)


def _check_workflow(workflow: object) -> None:
    if not isinstance(workflow, Workflow):
        raise WorkflowDefinitionError(
            f"{workflow!r:.120} is no workflow",
            remedy="Decorate the generator function with @workflow and pass it uncalled.",
        )


def _in_own_loop(work: Coroutine[Any, Any, WorkflowResult], door: str) -> WorkflowResult:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        work.close()
        raise NestedLoopError(door)

    async def alone() -> WorkflowResult:
        with blocking_allowed(True):
            return await work

    with asyncio.Runner() as runner:
        return runner.run(alone())
