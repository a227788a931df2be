"""An attempt that does nothing but undo: what it starts from, what it may undo, and its plan.

It begins where an earlier one stopped while steps were undone, or where a run without a process is cancelled. Nothing of
the record is judged: what was done was done, whatever has moved since. Only the code can say how it is undone, so each
step must still be yielded at its place; where one is not, a person is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from flowckpt.core.codec.results import as_view, plain_tree
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.replay import Execute
from flowckpt.engine.dry.undo_search import UndoSearch
from flowckpt.engine.rules.crash_loop import CrashCount
from flowckpt.engine.rules.paths import ROLLBACK, left_to_undo, not_yielded, undone_paths
from flowckpt.engine.rules.plan import Decision, PlannedStep, ResumePlan
from flowckpt.engine.rules.reasons import Reason, ReasonKind
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.notify import events
from flowckpt.engine.run.resumption import check_name, crash_loop_error
from flowckpt.engine.steps.run_step import run_step
from flowckpt.engine.undo.compensate import UnfinishedRollback
from flowckpt.engine.values.inputs import BoundInputs, rebind_inputs
from flowckpt.engine.values.options import RunOptions
from flowckpt.engine.values.placeholders import use_missing_secret
from flowckpt.errors import FlowckptError, NotUndoableError, RunCancelledError, RunUndoneError


@attrs.frozen
class Undoing:
    """The start of an attempt that only undoes.

    Attributes:
        workflow: the workflow.
        workflow_id: the run.
        latest: its newest checkpoint.
        bound: its inputs.
        end: how the run ends.
        options: how it is resumed.
        is_cancel: whether it is resumed only to be cancelled.
    """

    workflow: Workflow[Any, Any]
    workflow_id: str
    latest: CheckpointData
    bound: BoundInputs
    end: UnfinishedRollback
    options: RunOptions
    is_cancel: bool = False

    @property
    def recorded(self) -> list[StepResult]:
        """The results of the steps, without those that were undone."""
        return [each for each in as_view(self.latest.step_results) if each.step_type != ROLLBACK]

    def error(self) -> FlowckptError:
        """Return the error that ends the attempt; the run has not failed again."""
        if self.is_cancel:
            return RunCancelledError(self.workflow_id)
        return RunUndoneError(self.workflow_id, status=self.end.reason.value, is_left=not self.options.rolls_back)

    async def look(self, run: RunContext) -> None:
        """Ask the code how the steps are undone, and tell the attempt.

        Raises:
            NotUndoableError: the code does not say it of each of them; nothing was changed.
        """
        if not self.options.rolls_back:
            return

        async def ephemeral(command: Execute) -> Any:
            return await run_step(run, command)

        async def found(step: Step[Any], result: StepResult) -> None:
            action = step.action
            run.notifier.restored += not action.is_composite
            if run.notifier.emit is not None:
                told = result.path, result.success, result.duration_ms, action.step_type
                await run.notifier.emit(events.StepRestored(run.workflow_id, *told))

        search = UndoSearch(ephemeral, found, run.generators)
        generator = self.workflow(**self.bound.values(self.workflow))
        await search.search(generator, self.workflow.name, self.recorded)
        reasons = self._not_undoable(search)
        if reasons and not self.options.force:
            raise self._refused(reasons)
        run.recorder.undo.undoable, run.recorder.undo.not_undoable = search.undoable, reasons

    async def plan(self, crash_loop: CrashCount | None) -> ResumePlan:
        """Return what the attempt would do.

        Args:
            crash_loop: how often the run died, where a resume would refuse it for that.
        """
        view = as_view(self.latest.step_results)
        search = UndoSearch()
        reasons: dict[str, str] = {}
        todo: list[StepResult] = []
        if self.options.rolls_back:
            generator = self.workflow(**self.bound.values(self.workflow, use_missing=use_missing_secret))
            try:
                await search.search(generator, self.workflow.name, self.recorded)
            finally:
                for replay in reversed(search.replays):
                    replay.close()
            reasons = self._not_undoable(search)
            todo = left_to_undo(view, search.undoable.keys() | reasons.keys())
        if search.is_blind:  # of what it did not come to, the record says that it can be undone
            reasons = {}
        why = f"the run {_had(self.end)}, and stopped before it was undone"
        steps = [_planned(each, why, reasons) for each in todo]
        undone, listed = undone_paths(view), {each.path for each in todo}
        for each in self.recorded:
            if each.path not in listed:
                said = (Reason(ReasonKind.UNDONE, f"it was undone, when the run {_had(self.end)}"),)
                kept = said if each.path in undone else ()
                steps.append(PlannedStep(each.path, Decision.KEEP, kept, (), each.duration_ms, each.location))
        stops, stopped_by = self._stops(), ""
        if reasons and not self.options.force:
            stops, stopped_by = self._refused(reasons).message, next(iter(reasons))
        if crash_loop is not None:
            stops, stopped_by = crash_loop_error(self.workflow_id, crash_loop).message, ""
        return ResumePlan(
            self.workflow_id,
            self.workflow.name,
            steps,
            ends_at=search.ends_at if search.is_blind else "",
            stops=stops,
            stopped_by=stopped_by,
            is_crash_loop=crash_loop is not None,
            is_undoing=True,
        )

    def _stops(self) -> str:
        if not self.options.rolls_back:
            return "it stopped while its steps were undone: a resume leaves the others as they are, and ends the run as it had ended"
        return "it stopped while its steps were undone: a resume finishes that, and ends the run as it had ended"

    def _not_undoable(self, search: UndoSearch) -> dict[str, str]:
        """Return why steps cannot be undone that said how, by path."""
        view = as_view(self.latest.step_results)
        unreadable = search.unreadable
        reasons = {}
        for each in not_yielded(view, search.yielded - unreadable.keys()):
            why = unreadable.get(each.path) or search.ends_at or "the workflow does not yield it any more"
            if each.path not in unreadable and any(dropped.path == each.path for dropped in search.aside.dropped):
                why = "the workflow yields another step in its place, or none"
            reasons[each.path] = why
        return reasons

    def _refused(self, reasons: Mapping[str, str]) -> NotUndoableError:
        command = "cancel" if self.is_cancel else "resume"
        return NotUndoableError(self.workflow_id, workflow_name=self.workflow.name, reasons=reasons, command=command)


def read_undoing(
    workflow: Workflow[Any, Any],
    workflow_id: str,
    latest: CheckpointData,
    *,
    inputs: Mapping[str, Any],
    end: UnfinishedRollback,
    options: RunOptions,
    is_cancel: bool = False,
) -> Undoing:
    """Read the record of a run whose steps are to be undone.

    Args:
        workflow: the workflow.
        workflow_id: the run.
        latest: its newest checkpoint.
        inputs: inputs given again, perhaps none.
        end: how the run ends.
        options: how it is resumed.
        is_cancel: whether it is resumed only to be cancelled.

    Raises:
        WorkflowChangedError: it is the record of another workflow.
        InputMismatchError: an input differs from the recorded one.
    """
    check_name(workflow, workflow_id, latest)
    bound = rebind_inputs(
        workflow,
        recorded=plain_tree(latest.held_inputs, "inputs"),
        recorded_hash=latest.inputs_hash,
        defaulted=tuple(latest.metadata.get("defaulted", ())),
        given=inputs,
    )
    return Undoing(workflow, workflow_id, latest, bound, end, options, is_cancel)


def _planned(result: StepResult, why: str, reasons: Mapping[str, str]) -> PlannedStep:
    decision = Decision.ORPHANED if result.path in reasons else Decision.UNDO
    said = [why] if decision is Decision.UNDO else [f"it cannot be undone: {reasons[result.path]}"]
    detail = tuple(Reason(ReasonKind.UNDOING, each) for each in said)
    return PlannedStep(result.path, decision, detail, (), result.duration_ms, result.location)


def _had(end: UnfinishedRollback) -> str:
    return "failed" if end.reason.value == "failed" else f"was {end.reason.value}"
