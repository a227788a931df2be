"""One start or one resume of a run, from taking it to giving it back."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any

from flowckpt import codec
from flowckpt.blocking import finish_despite_cancel
from flowckpt.checkpoint import CheckpointData, History, HistoryView, Status
from flowckpt.checkpointer import Checkpointer
from flowckpt.clock import Clock
from flowckpt.codec.results import as_view, plain_tree
from flowckpt.dsl import Workflow
from flowckpt.engine.binding import BoundInputs, rebind_inputs
from flowckpt.engine.drive import Drive
from flowckpt.engine.options import RunOptions
from flowckpt.engine.result import StepCounts, WorkflowResult
from flowckpt.engine.target import describe_target
from flowckpt.errors import CheckpointNotFoundError, RunExistsError, WorkflowChangedError
from flowckpt.events import Event, WorkflowCompleted, WorkflowResumed
from flowckpt.execution.interrupts import Interrupts
from flowckpt.fingerprint import fingerprint
from flowckpt.replay import Replay
from flowckpt.stores.base import CheckpointStore, Lease, OwnsRuns

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
        bound: BoundInputs | None,
        inputs: Mapping[str, Any],
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

    async def result(self, on_event: Callable[[Event], None] | None = None) -> WorkflowResult:
        """Drive the run to its end and return how it ended."""
        async with self._taken(is_observed=on_event is not None) as drive, aclosing(drive.events()) as events:
            async for event in events:
                if on_event is not None:
                    on_event(event)
        assert drive.result is not None
        return drive.result

    async def events(self) -> AsyncGenerator[Event, None]:
        """Drive the run to its end, yielding what happens."""
        async with self._taken() as drive, aclosing(drive.events()) as events:
            async for event in events:
                yield event

    @asynccontextmanager
    async def _taken(self, *, is_observed: bool = True) -> AsyncGenerator[Drive | CompletedRun, None]:
        """Own the run for the block, and give it back however the block ends."""
        store, workflow_id = self._store, self._workflow_id
        lease = await finish_despite_cancel(_acquired(store, workflow_id, steal=self._options.steal))
        try:
            for notice in lease.notices:
                _log.warning("run %s: %s", workflow_id, notice)
            drive = self._started(lease, self._bound) if self._bound is not None else self._resumed(lease)
            drive.is_observed = is_observed
            yield drive
        finally:
            if isinstance(store, OwnsRuns):
                await finish_despite_cancel(store.release(workflow_id))

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

    def _resumed(self, lease: Lease) -> Drive | CompletedRun:
        latest = lease.latest
        if latest is None:
            raise CheckpointNotFoundError(self._workflow_id)
        self._check_name(latest)
        bound = self._rebound(latest)
        if latest.status is Status.COMPLETED:
            return CompletedRun(self._workflow, self._workflow_id, latest)
        metadata = dict(latest.metadata)
        if self._options.target is not None:  # the code has moved: the next resume finds it by itself
            metadata["target"] = dict(self._options.target)
        history = _effective_history(latest)
        return self._drive(lease, bound, history, latest, metadata, fingerprint(self._workflow.function))

    def _drive(
        self,
        lease: Lease,
        bound: BoundInputs,
        history: History,
        latest: CheckpointData | None,
        metadata: dict[str, Any],
        code: str,
    ) -> Drive:
        workflow = self._workflow
        checkpointer = Checkpointer(
            self._store,
            self._clock,
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
            self._clock,
            self._random,
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


class CompletedRun:
    """The resume of a run that has ended: its recorded result, and nothing run or saved.

    Attributes:
        result: how the run ended.
        is_observed: whether anybody hears its events; there are only two.
    """

    is_observed = True

    def __init__(self, workflow: Workflow[Any, Any], workflow_id: str, latest: CheckpointData) -> None:
        tree = plain_tree(latest.held_output, "output")
        self.result = WorkflowResult(
            workflow_id,
            workflow.name,
            Status.COMPLETED,
            codec.decode(tree, workflow.output_type, place="the workflow's output"),
            latest.attempt,
            StepCounts(restored=len(latest.step_results)),
            0.0,
        )
        self._checkpoint_id = latest.checkpoint_id

    async def events(self) -> AsyncGenerator[Event, None]:
        """Tell that it was resumed, and that it was complete."""
        result = self.result
        run, restored = result.workflow_id, result.steps.restored
        yield WorkflowResumed(run, result.workflow_name, result.attempt, restored, self._checkpoint_id)
        yield WorkflowCompleted(run, result.output, 0, restored, 0.0)


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
