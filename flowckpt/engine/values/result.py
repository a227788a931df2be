"""How a run ended."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.records import Status, StepError
from flowckpt.core.system.attrs_base import Fieldwise
from flowckpt.core.system.lazy import LazyModule
from flowckpt.errors import FlowckptError, RunSuspendedError, StepFailedError

if TYPE_CHECKING:
    from flowckpt.core.records import wait
else:
    wait = LazyModule("flowckpt.core.records.wait")


@attrs.frozen(eq=False, repr=False)
class StepCounts(Fieldwise):
    """The steps of one attempt, what it ran and what it did not have to run counted apart.

    Attributes:
        executed: steps run by this attempt, failed ones included.
        restored: results that came from the record.
        failed: executed steps that failed.
    """

    executed: int = 0
    restored: int = 0
    failed: int = 0


@attrs.frozen(eq=False, repr=False)
class WorkflowResult(Fieldwise):
    """How a run ended.

    Attributes:
        workflow_id: the run.
        workflow_name: its workflow.
        status: `completed`, `failed`, `cancelled` or `suspended`.
        output: what the workflow returned; None where it did not.
        attempt: how often the run was started or resumed.
        steps: what was executed and what was restored.
        duration_ms: how long this attempt took, in milliseconds.
        error: the error that ended the run, or None.
        is_saved: whether the end was recorded. Where it was not, a resume does not begin there.
        rollback_failures: the steps that were to be undone and could not be.
        failure: how the run failed, as its record says it: without what is secret.
        waits: what a suspended run waits for.
        undone: the paths of the steps that were undone, in the order of that.
        last_saved: the id of the last checkpoint that is known to be saved; None where there is none.
        save_error: why the end was not recorded, or None.
        is_removed: whether the run was removed from its store when it had completed, as `on_success="clear"` asks for.
    """

    workflow_id: str
    workflow_name: str
    status: Status
    output: Any
    attempt: int
    steps: StepCounts
    duration_ms: float
    error: BaseException | None = None
    is_saved: bool = True
    rollback_failures: tuple[StepFailedError, ...] = ()
    failure: StepError | None = None
    undone: tuple[str, ...] = ()
    waits: tuple[wait.Wait, ...] = ()
    last_saved: str | None = None
    save_error: FlowckptError | None = None
    is_removed: bool = False

    @property
    def due_at(self) -> datetime | None:
        """When a suspended run goes on by itself, if it is resumed; None where only a signal can end its waits."""
        return wait.due_at(self.waits)

    def unwrap(self) -> Any:
        """Return the output, or raise the error that ended the run.

        Raises:
            RunSuspendedError: it has none yet.
            BaseException: the run's error.
        """
        if self.status is Status.SUSPENDED:
            raise RunSuspendedError(self.workflow_id, waits=[str(wait) for wait in self.waits])
        if self.error is not None:
            raise self.error
        return self.output
