"""How a run ended."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core import records
from flowckpt.core.records import Status, StepError
from flowckpt.core.system.attrs_base import FieldEquality, ShownInNotebook, lazy_frozen
from flowckpt.errors import FlowckptError, RunSuspendedError, StepFailedError

if TYPE_CHECKING:
    from flowckpt.engine.rules.paths import HandledFailure


@lazy_frozen(eq=False, repr=False)
class StepCounts(FieldEquality):
    """The number of steps in one attempt.

    A map, a group and a child workflow count once each, like every step inside them.

    Attributes:
        executed: steps executed by this attempt, including failed ones.
        restored: results from the record.
        failed: executed steps that failed.
    """

    executed: int = 0
    restored: int = 0
    failed: int = 0


@lazy_frozen(eq=False, repr=False)
class WorkflowResult(FieldEquality, ShownInNotebook):
    """How a run ended.

    Attributes:
        workflow_name: its workflow.
        status: `completed`, `failed`, `cancelled` or `suspended`.
        output: what the workflow returned; otherwise None.
        attempt: the number of starts and resumes, plus one for each move to a new place after a failed save.
        steps: the numbers of executed, restored and failed steps.
        duration_ms: how long this attempt took.
        error: the exception that ended the run, or None.
        is_saved: whether the end was recorded; otherwise a resume continues from an earlier checkpoint.
        rollback_failures: steps that could not be undone: a `StepFailedError` each.
        failure: how the run failed according to its record, without secrets; `error` is the workflow's own exception.
        waits: what a suspended run waits for.
        undone: the paths of the undone steps, in the order of undoing.
        last_saved: the id of the last checkpoint known to be saved, or None.
        save_error: why the end was not recorded, or None.
        handled: the failure that the workflow handled before the run failed; a resume replays it and runs nothing. Or None.
        undoable: after a signal, the steps that `flowckpt cancel` would undo, newest first.
        figures: what the steps of the run recorded by `current_step().record(…)`, added up by name.
        generation: the number of the generation in which an endless run stopped or ended; 1 for any other run.
        is_removed: whether the completed run was removed from its store, as `on_success="clear"` requests.
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
    waits: tuple[records.Wait, ...] = ()
    last_saved: str | None = None
    save_error: FlowckptError | None = None
    is_removed: bool = False
    handled: HandledFailure | None = None
    undoable: tuple[str, ...] = ()
    figures: Mapping[str, int | float] = attrs.field(factory=dict, hash=False)
    generation: int = 1

    @property
    def due_at(self) -> datetime | None:
        """When the first wait of a suspended run ends by itself; None if only a signal can end them."""
        return records.wait.due_at(self.waits)

    def unwrap(self) -> Any:
        """Return the output, or raise the error that ended the run.

        Raises:
            RunSuspendedError: the run is suspended.
            BaseException: the run's error.
        """
        if self.status is Status.SUSPENDED:
            raise RunSuspendedError(self.workflow_id, waits=[str(wait) for wait in self.waits])
        if self.error is not None:
            raise self.error
        return self.output
