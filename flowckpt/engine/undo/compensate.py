"""When a run fails or is cancelled, what its steps did is undone: newest first, also what an earlier attempt did.

Each step undone is recorded at once. Before the first one, a checkpoint says that undoing has begun, and how the run
ends: whatever dies in the middle, the next resume continues undoing and ends the run in the same way.

A step that cannot be undone keeps no other from being undone, and does not hide why the run ended.

An attempt may do nothing but undo: where an earlier one stopped while steps were undone, or where a run without a process
is cancelled. Nothing of the record is judged then: what was done was done, whatever has moved since. Only the code can say
how it is undone, so each step must still be yielded at its place; where one is not, a person is asked.

So the generator is asked, and answered from the record. The record binds nothing here: edited code may yield steps that
were never recorded, and is not told that it changed. Such a step is not run. A placeholder for its output may be handed
on, and ends the search where the generator uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import Any, TypeAlias

import attrs

from flowckpt.core.codec.results import as_view, decode_error, encode_error
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.dsl.composites import WorkflowAction
from flowckpt.core.identity.secrets import KnownSecrets
from flowckpt.core.records import CheckpointData, Reason, Status, StepError, StepResult
from flowckpt.core.records.listing import refuse_task
from flowckpt.core.replay import Answer, Crash, DroppedResults, Enter, Execute, Replay, Restore, drive, expand
from flowckpt.core.replay.replay import is_another
from flowckpt.engine.dry.recorded_drive import DryResponder
from flowckpt.engine.rules import reasons as rules
from flowckpt.engine.rules.crash_loop import CrashCount
from flowckpt.engine.rules.paths import ROLLBACK, UNFINISHED, left_to_undo, not_yielded, undone_paths
from flowckpt.engine.rules.plan import Decision, PlannedStep, ResumePlan
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.notify import events
from flowckpt.engine.run.resumption import check_name, crash_loop_error
from flowckpt.engine.run.undo_steps import moved_argument, undo_step
from flowckpt.engine.steps.run_step import run_step
from flowckpt.engine.values.failures import failed_step, recorded_answer, recorded_fan_out
from flowckpt.engine.values.inputs import BoundInputs, rebind_recorded
from flowckpt.engine.values.options import RunOptions
from flowckpt.engine.values.placeholders import PlanStopped, SecretNeeded, not_run, use_missing_secret
from flowckpt.errors import (
    CancelRefusedError,
    DecodingError,
    FlowckptError,
    NotUndoableError,
    RunCancelledError,
    RunUndoneError,
    StepFailedError,
)


@attrs.frozen
class UnfinishedRollback:
    """How a run ends whose undoing was begun.

    Attributes:
        reason: `failed` or `cancelled`.
        error: what made it fail, or None.
    """

    reason: Reason
    error: StepError | None

    def written_to(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return metadata that say so."""
        error = None if self.error is None else encode_error(self.error)
        return {**metadata, UNFINISHED: {"reason": self.reason.value, "error": error}}


def unfinished_rollback(metadata: Mapping[str, Any]) -> UnfinishedRollback | None:
    """Return how a run ends that died while its steps were undone; None for any other.

    Args:
        metadata: of its newest checkpoint.
    """
    found = metadata.get(UNFINISHED)
    if found is None:
        return None
    error = found["error"]
    return UnfinishedRollback(Reason(found["reason"]), None if error is None else decode_error(error))


def cancelling(workflow_id: str, latest: CheckpointData) -> UnfinishedRollback:
    """Return how a run ends that is resumed only to be cancelled.

    Args:
        workflow_id: the run.
        latest: its newest checkpoint.

    Raises:
        CancelRefusedError: it has completed.
        InputError: it is a task of a checkpoint manager.
    """
    refuse_task(workflow_id, latest)
    if latest.status is Status.COMPLETED:
        raise CancelRefusedError(workflow_id)
    return UnfinishedRollback(Reason.CANCELLED, None)


async def roll_back(run: RunContext, end: UnfinishedRollback) -> tuple[StepFailedError, ...] | None:
    """Undo what is to be undone, and return what could not be.

    Returns:
        The failures; None where nothing was undone, because it could not be saved that undoing begins: a resume would
        take for done what was undone.

    Raises:
        FlowckptError: what was undone cannot be saved; nothing more is undone.
        KeyboardInterrupt: a signal came; the next resume continues.
        asyncio.CancelledError: likewise, of a cancel.
    """
    checkpointer = run.recorder.checkpointer
    undoable = run.recorder.undo.undoable.keys() | run.recorder.undo.not_undoable.keys()
    todo = left_to_undo(checkpointer.history.results, undoable)
    if not todo:
        checkpointer.metadata = without_key(checkpointer.metadata)
        return ()
    before = checkpointer.metadata
    checkpointer.metadata = end.written_to(before)
    saved = await run.recorder.checkpoint(
        Reason.ROLLBACK
    )  # also if the record says so: it counts how often that crashed
    await run.recorder.emit_saved(saved)
    if isinstance(saved, FlowckptError):
        checkpointer.metadata = before
        return None
    failures = [failure for result in todo if (failure := await undo_step(run, result)) is not None]
    checkpointer.metadata = without_key(checkpointer.metadata)
    return tuple(failures)


def without_key(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata that say nothing of undoing.

    Args:
        metadata: the metadata of a run.
    """
    return (
        {name: value for name, value in metadata.items() if name != UNFINISHED} if UNFINISHED in metadata else metadata
    )


MOST_NOT_RUN = 200
"""So many steps that were never recorded are passed over: a loop may yield them for ever."""

RunsEphemeral: TypeAlias = Callable[[Execute], Awaitable[Answer]]
TellsFound: TypeAlias = Callable[[Step[Any], StepResult], Awaitable[None]]


@attrs.define(eq=False)
class UndoSearch(DryResponder):
    """Asks a workflow how its recorded steps are undone.

    Attributes:
        ephemeral: runs a step that runs at each resume, for the code that undoes may need its output; None for a plan,
            which runs nothing.
        found: called with each recorded step that was found.
        secrets: those of the run.
        aside: the recorded results that have not found their step.
        replays: the generators that were started, to be closed when all is over.
        undoable: the steps that say how they are undone, by path.
        yielded: the steps that were found, and may say so or not.
        unreadable: why the output or the arguments of a step cannot be given to what undoes it, by path.
        ends_at: why it sees no further, where that is not the end of the record.
        is_blind: whether a plan sees no further where the resume does.
    """

    ephemeral: RunsEphemeral | None = None
    found: TellsFound | None = None
    secrets: KnownSecrets = attrs.field(factory=KnownSecrets)
    aside: DroppedResults = attrs.field(init=False, factory=DroppedResults)
    replays: list[Replay] = attrs.field(factory=list)
    undoable: dict[str, Step[Any]] = attrs.field(init=False, factory=dict)
    yielded: set[str] = attrs.field(init=False, factory=set)
    unreadable: dict[str, str] = attrs.field(init=False, factory=dict)
    ends_at: str = attrs.field(init=False, default="")
    is_blind: bool = attrs.field(init=False, default=False)
    _passed_over: int = attrs.field(init=False, default=0)
    _not_run: set[str] = attrs.field(init=False, factory=set)

    async def search(
        self, generator: Generator[Any, Any, Any], workflow_name: str, results: Iterable[StepResult]
    ) -> None:
        """Drive a generator as far as the record and what was edited allow.

        Args:
            generator: that of the workflow, not yet started.
            workflow_name: its workflow.
            results: the record, without what was undone.
        """
        self.aside.spare.update({each.path: each for each in results})
        await self._driven(generator, workflow_name, "")

    async def _driven(self, generator: Generator[Any, Any, Any], workflow_name: str, prefix: str) -> None:
        replay = Replay(
            generator, (), workflow_name, prefix=prefix, drops_what_changed=True, aside=self.aside, is_muted=True
        )
        self.replays.append(replay)
        end = await drive(replay, self)
        if isinstance(end, Crash):
            self._stopped(end.error)

    def _stopped(self, error: BaseException) -> None:
        """Note why a generator went no further; what it raised after its last recorded step is how it ended before."""
        if isinstance(error, SecretNeeded):
            self.is_blind = True
            self.ends_at = f"the workflow uses the secret input {error.args[0]!r}, which no record holds"
        elif isinstance(error, PlanStopped):
            self.is_blind = self.is_blind or error.args[0] in self._not_run
            self.ends_at = f"the workflow uses the output of {error.args[0]!r}, which was not run"
        elif not isinstance(error, Exception):
            raise error
        elif self.aside.spare and failed_step(error) not in self.yielded:
            self.ends_at = f"the workflow raises {type(error).__name__}: {error}"[:300]

    async def restore(self, replay: Replay, command: Restore) -> Answer:
        """Note how the step is undone, and answer with its result."""
        return await self._recorded(command.step, command.result)

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        """Run an ephemeral step; pass over any other."""
        if not command.step.modifiers.is_ephemeral:
            return self._passed(replay, command.path, command.step)
        if self.ephemeral is None:
            self._not_run.add(command.path)
            return not_run(command), None
        return await self.ephemeral(command)

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        """Search a composite; pass over one that has not ended."""
        answer = await self.composite(replay, command)
        return self._passed(replay, command.path, command.step) if answer is None else answer

    def _passed(self, replay: Replay, path: str, step: Step[Any]) -> Answer | None:
        """Pass over a step without an output, if recorded results of its generator still wait for their steps."""
        if not any(each.startswith(replay.prefix) for each in self.aside.spare):
            return None
        self.ends_at = f"the workflow yields the step {path!r}, which was not recorded"
        self._passed_over += 1
        return (not_run(Execute(path, step, "")), None) if self._passed_over <= MOST_NOT_RUN else None

    async def _recorded(self, step: Step[Any], result: StepResult) -> Answer:
        path = result.path
        await self._found(step, result)
        try:
            answer = recorded_answer(step, result)
        except DecodingError as error:
            self.unreadable[path] = error.message
            return not_run(Execute(path, step, "")), None
        if result.success and step.modifiers.rollback is not None:
            if moved := moved_argument(step, result, self.secrets):
                self.unreadable[path] = moved
                return answer
            self.undoable[path] = step
        return answer

    async def _found(self, step: Step[Any], result: StepResult) -> None:
        self.yielded.add(result.path)
        if self.found is not None:
            await self.found(step, result)

    async def child(self, replay: Replay, enter: Enter, action: WorkflowAction) -> Answer | None:
        """Search a child workflow; return its recorded end, if there is one."""
        self.aside.spare.update({each.path: each for each in enter.nested})
        child = action.workflow
        await self._driven(child(**action.inputs), child.name, f"{enter.path}/")
        return None if enter.result is None else await self._recorded(enter.step, enter.result)

    async def fan_out(self, replay: Replay, enter: Enter) -> Answer | None:
        """Search the members of a fan-out; return its recorded end, if there is one."""
        end, expansion = enter.result, expand(enter)
        try:
            answers = await self.members(replay, expansion)
        except (PlanStopped, Exception) as error:  # what makes the items
            if isinstance(error, PlanStopped):
                self._stopped(error)
            else:
                self.ends_at = f"the items of {enter.path!r} cannot be made: {type(error).__name__}: {error}"[:300]
            return None
        finally:
            self.aside.dropped += expansion.take_rest()
        if end is None:
            return None
        await self._found(enter.step, end)
        return recorded_fan_out(enter, end, answers)

    async def member(self, replay: Replay, member: Enter) -> Answer | None:
        """Search a member, if its record is that of the same step."""
        if member.result is not None and is_another(member.step, member.result):
            self.aside.dropped += [*member.nested, member.result]
            return None
        return await super().member(replay, member)


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

        search = UndoSearch(ephemeral, found, run.secrets, run.generators)
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
        search = UndoSearch(secrets=self.bound.known_secrets())
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
                said = (rules.Reason(rules.ReasonKind.UNDONE, f"it was undone, when the run {_had(self.end)}"),)
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
    bound = rebind_recorded(workflow, latest, inputs)
    return Undoing(workflow, workflow_id, latest, bound, end, options, is_cancel)


def _planned(result: StepResult, why: str, reasons: Mapping[str, str]) -> PlannedStep:
    decision = Decision.ORPHANED if result.path in reasons else Decision.UNDO
    said = [why] if decision is Decision.UNDO else [f"it cannot be undone: {reasons[result.path]}"]
    detail = tuple(rules.Reason(rules.ReasonKind.UNDOING, each) for each in said)
    return PlannedStep(result.path, decision, detail, (), result.duration_ms, result.location)


def _had(end: UnfinishedRollback) -> str:
    return "failed" if end.reason.value == "failed" else f"was {end.reason.value}"
