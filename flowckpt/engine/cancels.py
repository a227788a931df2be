"""The doors of the engine for whoever stops a run for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowckpt.engine.given import checked_id, needed_workflow
from flowckpt.engine.own_loop import in_own_loop
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from flowckpt.clock import Clock
    from flowckpt.dsl import Workflow
    from flowckpt.engine import cancelling
    from flowckpt.engine.cancelling import Cancelled
    from flowckpt.engine.options import RunOptions
    from flowckpt.engine.session import Session
    from flowckpt.stores.base import CheckpointStore
else:  # only whoever cancels needs it
    cancelling = LazyModule("flowckpt.engine.cancelling")


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
