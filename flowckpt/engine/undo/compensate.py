"""Undo the steps of a failed or cancelled run, newest first, including those of earlier attempts.

Each undone step is recorded at once. Before the first one, a checkpoint records that the rollback has started and how
the run ends. After a crash in the middle, the next resume continues the rollback and ends the run in the same way. A
step that cannot be undone does not prevent the undo of others, and does not hide why the run ended.

Some attempts only undo: if an earlier attempt stopped during a rollback, or if a run without a process is cancelled.
Then recorded results are not judged: the effects happened, whatever has changed since. Only the code has the
compensations, so each step must still be yielded at its place; if one is not, the user must decide. So the generator is
driven and answered from the record. The record does not bind it here: edited code may yield steps that were never
recorded, without an error. Such a step is not run. Its output is a placeholder, which may be passed on, but ends the
search when the generator uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from functools import partial
from itertools import takewhile
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
from flowckpt.engine.rules.paths import (
    FAILED_AT,
    ROLLBACK,
    UNFINISHED,
    find_left_to_undo,
    find_not_yielded,
    merge_set_aside,
    undone_paths,
)
from flowckpt.engine.rules.plan import Decision, PlannedStep, ResumePlan
from flowckpt.engine.run.context import RunContext
from flowckpt.engine.run.resumption import check_workflow_name
from flowckpt.engine.run.undo_steps import find_moved_argument, undo_step
from flowckpt.engine.steps.run_step import note_restored, run_step
from flowckpt.engine.values.failures import find_failed_step, read_answer, read_fan_out
from flowckpt.engine.values.inputs import BoundInputs, rebind_recorded
from flowckpt.engine.values.options import RunOptions
from flowckpt.engine.values.placeholders import PlanStopped, SecretNeeded, make_placeholder, use_missing_secret
from flowckpt.engine.values.superseded import Superseded
from flowckpt.errors import (
    CancelRefusedError,
    DecodingError,
    FlowckptError,
    NotUndoableError,
    RunCancelledError,
    RunUndoneError,
    StepFailedError,
)
from flowckpt.execution.python import keep_arguments


@attrs.frozen
class UnfinishedRollback:
    """How a run ends once its rollback is finished.

    Attributes:
        reason: `failed` or `cancelled`.
        error: the error of a failed run, or None.
    """

    reason: Reason
    error: StepError | None

    def add_to_metadata(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return metadata with this end."""
        error = None if self.error is None else encode_error(self.error)
        return {**metadata, UNFINISHED: {"reason": self.reason.value, "error": error}}


def read_unfinished(metadata: Mapping[str, Any]) -> UnfinishedRollback | None:
    """Return how a run ends that died during a rollback; None for any other run.

    Args:
        metadata: the metadata of its newest checkpoint.
    """
    document = metadata.get(UNFINISHED)
    if document is None:
        return None
    error = document["error"]
    return UnfinishedRollback(Reason(document["reason"]), None if error is None else decode_error(error))


def check_cancel(workflow_id: str, latest: CheckpointData) -> UnfinishedRollback:
    """Return the end of a run that is being cancelled.

    Raises:
        CancelRefusedError: the run has completed.
        InputError: the run is a task of a checkpoint manager.
    """
    refuse_task(workflow_id, latest)
    if latest.status is Status.COMPLETED:
        raise CancelRefusedError(workflow_id)
    return UnfinishedRollback(Reason.CANCELLED, None)


async def roll_back(run: RunContext, end: UnfinishedRollback) -> tuple[StepFailedError, ...] | None:
    """Undo the run's steps, and return the failures.

    Returns:
        The steps that could not be undone; None if nothing was undone, because the start of the rollback could not be
        saved: a resume would still take the undone steps for done.

    Raises:
        FlowckptError: an undo cannot be saved; nothing more is undone.
        KeyboardInterrupt: a signal arrived; the next resume continues.
        asyncio.CancelledError: the run was cancelled; the next resume continues.
    """
    checkpointer = run.recorder.checkpointer
    undoable = run.recorder.undo.undoable.keys() | run.recorder.undo.not_undoable.keys()
    view = merge_set_aside(checkpointer.history.results, run.recorder.superseded.list_undoable())
    todo = find_left_to_undo(view, undoable)
    if not todo:
        checkpointer.metadata = drop_unfinished(checkpointer.metadata)
        return ()
    before = checkpointer.metadata
    checkpointer.metadata = end.add_to_metadata(before)
    saved = await run.recorder.checkpoint(
        Reason.ROLLBACK
    )  # save again even if it is recorded: the checkpoint counts the crashes
    await run.recorder.emit_saved(saved)
    if isinstance(saved, FlowckptError):
        checkpointer.metadata = before
        return None
    failures = [failure for result in todo if (failure := await undo_step(run, result)) is not None]
    checkpointer.metadata = drop_unfinished(checkpointer.metadata)
    return tuple(failures)


def note_failed_step(metadata: Mapping[str, Any], latest: CheckpointData) -> Mapping[str, Any]:
    """Return the metadata of a run that is cancelled, with the step whose failure had ended it before, if one did."""
    path = "" if latest.error is None else latest.error.path
    return {**metadata, FAILED_AT: path} if path else metadata


def drop_unfinished(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata without the key of an unfinished rollback."""
    return (
        {name: value for name, value in metadata.items() if name != UNFINISHED} if UNFINISHED in metadata else metadata
    )


MOST_NOT_RUN = 200
"""How many unrecorded steps are skipped at most: a loop may yield them endlessly."""

RunEphemeral: TypeAlias = Callable[[Execute], Awaitable[Answer]]
OnFound: TypeAlias = Callable[[Step[Any], StepResult], Awaitable[None]]


@attrs.define(eq=False)
class UndoSearch(DryResponder):
    """Finds the compensations of a workflow's recorded steps.

    Attributes:
        ephemeral: runs an ephemeral step, because a compensation may need its output; None for a plan, which runs
            nothing.
        found: called with each recorded step that was found.
        secrets: the secrets of the run.
        aside: the recorded results that have not found their step.
        replays: the started generators, to be closed at the end.
        undoable: the found steps with a compensation, by path.
        yielded: all found steps.
        unreadable: why the output or the arguments of a step cannot be passed to its compensation, by path.
        passes: failed steps that are answered with placeholders, to find the steps that an earlier attempt ran after it.
        ends_at: why the search ended before the end of the record.
        is_blind: whether a plan's search ended earlier than that of a resume would.
    """

    ephemeral: RunEphemeral | None = None
    found: OnFound | None = None
    secrets: KnownSecrets = attrs.field(factory=KnownSecrets)
    aside: DroppedResults = attrs.field(init=False, factory=DroppedResults)
    replays: list[Replay] = attrs.field(factory=list)
    passes: frozenset[str] = frozenset()
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
        """Drive a generator as far as the record and the edited code allow.

        Args:
            generator: the generator of the workflow, not yet started.
            workflow_name: the workflow.
            results: the recorded results, without the undone ones.
        """
        self.aside.spare.update({each.path: each for each in results})
        await self._drive(generator, workflow_name, "")

    async def _drive(self, generator: Generator[Any, Any, Any], workflow_name: str, prefix: str) -> None:
        replay = Replay(
            generator, (), workflow_name, prefix=prefix, drops_what_changed=True, aside=self.aside, is_muted=True
        )
        self.replays.append(replay)
        end = await drive(replay, self)
        if isinstance(end, Crash):
            self._note_stop(end.error)

    def _note_stop(self, error: BaseException) -> None:
        """Note why a generator stopped; an error after its last recorded step is how it ended before."""
        if isinstance(error, SecretNeeded):
            self.is_blind = True
            self.ends_at = f"the workflow uses the secret input {error.args[0]!r}, which is not recorded"
        elif isinstance(error, PlanStopped):
            self.is_blind = self.is_blind or error.args[0] in self._not_run
            self.ends_at = f"the workflow uses the output of {error.args[0]!r}, which was not run"
        elif not isinstance(error, Exception):
            raise error
        elif self.aside.spare and find_failed_step(error) not in self.yielded:
            self.ends_at = f"the workflow raises {type(error).__name__}: {error}"[:300]

    async def restore(self, replay: Replay, command: Restore) -> Answer:
        """Note the step's compensation, and answer with its result."""
        return await self._restore(command.step, command.result)

    async def execute(self, replay: Replay, command: Execute) -> Answer | None:
        """Run an ephemeral step; skip any other."""
        if not command.step.modifiers.is_ephemeral:
            return self._skip(replay, command)
        if self.ephemeral is None:
            self._not_run.add(command.path)
            return make_placeholder(command.step, command.path), None
        return await self.ephemeral(command)

    async def enter(self, replay: Replay, command: Enter) -> Answer | None:
        """Search a composite; skip one that has not ended."""
        answer = await self.answer_composite(replay, command)
        return self._skip(replay, command) if answer is None else answer

    def _skip(self, replay: Replay, command: Execute | Enter) -> Answer | None:
        """Skip a step without an output, if recorded results of its generator still wait for their steps."""
        if not any(each.startswith(replay.prefix) for each in self.aside.spare):
            return None
        self.ends_at = f"the workflow yields the step {command.path!r}, which was not recorded"
        self._passed_over += 1
        return (make_placeholder(command.step, command.path), None) if self._passed_over <= MOST_NOT_RUN else None

    async def _restore(self, step: Step[Any], result: StepResult) -> Answer:
        path = result.path
        await self._note_found(step, result)
        if path in self.passes:
            return make_placeholder(step, path), None
        try:
            answer = read_answer(step, result)
        except DecodingError as error:
            self.unreadable[path] = error.message
            return make_placeholder(step, path), None
        if result.success and step.modifiers.rollback is not None:
            if moved := find_moved_argument(step, result, self.secrets):
                self.unreadable[path] = moved
                return answer
            self.undoable[path] = keep_arguments(step)
        return answer

    async def _note_found(self, step: Step[Any], result: StepResult) -> None:
        self.yielded.add(result.path)
        if self.found is not None:
            await self.found(step, result)

    async def answer_child(self, replay: Replay, enter: Enter, action: WorkflowAction) -> Answer | None:
        """Search a child workflow; return its recorded end, if there is one."""
        self.aside.spare.update({each.path: each for each in enter.nested})
        child = action.workflow
        await self._drive(child.make_generator(action.inputs), child.name, f"{enter.path}/")
        return None if enter.result is None else await self._restore(enter.step, enter.result)

    async def answer_fan_out(self, replay: Replay, enter: Enter) -> Answer | None:
        """Search the members of a fan-out; return its recorded end, if there is one."""
        end, expansion = enter.result, expand(enter)
        try:
            answers = await self.answer_members(replay, expansion)
        except (PlanStopped, Exception) as error:  # raised by the iterable of items
            if isinstance(error, PlanStopped):
                self._note_stop(error)
            else:
                self.ends_at = f"the items of {enter.path!r} cannot be created: {type(error).__name__}: {error}"[:300]
            return None
        finally:
            self.aside.dropped += expansion.take_rest()
        if end is None:
            return None
        await self._note_found(enter.step, end)
        return read_fan_out(enter, end, answers)

    async def answer_member(self, replay: Replay, member: Enter) -> Answer | None:
        """Search a member, if its record belongs to the same step."""
        if member.result is not None and is_another(member.step, member.result):
            self.aside.dropped += [*member.nested, member.result]
            return None
        return await super().answer_member(replay, member)


@attrs.frozen
class UndoAttempt:
    """The start of an attempt that only undoes.

    Attributes:
        workflow: the workflow.
        workflow_id: the run.
        latest: its newest checkpoint.
        bound: its inputs.
        end: how the run ends.
        options: the options of the resume.
        is_cancel: whether the run is resumed only to be cancelled.
    """

    workflow: Workflow[Any, Any]
    workflow_id: str
    latest: CheckpointData
    bound: BoundInputs
    end: UnfinishedRollback
    options: RunOptions
    is_cancel: bool = False

    @property
    def view(self) -> list[StepResult]:
        """The history, with the results that a rerun has set aside, whose steps did not run again."""
        return merge_set_aside(as_view(self.latest.step_results), Superseded(self.latest.metadata).list_undoable())

    @property
    def recorded(self) -> list[StepResult]:
        """The results of the steps, without those that were undone."""
        return [each for each in self.view if each.step_type != ROLLBACK]

    @property
    def passes(self) -> frozenset[str]:
        """The failed steps at the end of the record, if an earlier attempt has reached steps after them."""
        if not Superseded(self.latest.metadata).list_undoable():
            return frozenset()
        return frozenset(each.path for each in takewhile(lambda each: not each.success, reversed(self.recorded)))

    def error(self) -> FlowckptError:
        """Return the error that ends the attempt; the run has not failed again."""
        if self.is_cancel:
            return RunCancelledError(self.workflow_id)
        return RunUndoneError(self.workflow_id, status=self.end.reason.value, is_left=not self.options.rolls_back)

    async def find(self, run: RunContext) -> None:
        """Find the compensations of the steps, and add them to the attempt.

        Raises:
            NotUndoableError: a compensation was not found; nothing was changed.
        """
        if not self.options.rolls_back:
            return

        found = partial(note_restored, run, is_spare=False)
        search = UndoSearch(partial(run_step, run), found, run.secrets, run.generators, self.passes)
        generator = self.workflow.make_generator(self.bound.values(self.workflow))
        await search.search(generator, self.workflow.name, self.recorded)
        reasons = self._find_not_undoable(search)
        if reasons and not self.options.force:
            raise self._make_refusal(reasons)
        run.recorder.undo.undoable, run.recorder.undo.not_undoable = search.undoable, reasons

    async def plan(self) -> ResumePlan:
        """Return what the attempt would do."""
        view = self.view
        search = UndoSearch(secrets=self.bound.known_secrets(), passes=self.passes)
        reasons: dict[str, str] = {}
        todo: list[StepResult] = []
        if self.options.rolls_back:
            generator = self.workflow.make_generator(self.bound.values(self.workflow, use_missing=use_missing_secret))
            try:
                await search.search(generator, self.workflow.name, self.recorded)
            finally:
                for replay in reversed(search.replays):
                    replay.close()
            reasons = self._find_not_undoable(search)
            todo = find_left_to_undo(view, search.undoable.keys() | reasons.keys())
        if search.is_blind:  # for steps that were not reached, the record decides
            reasons = {}
        why = f"the run {_describe_end(self.end)}, and stopped before this step was undone"
        steps = [_plan_step(each, why, reasons) for each in todo]
        undone, listed = undone_paths(view), {each.path for each in todo}
        for each in self.recorded:
            if each.path not in listed:
                undone_reason = (
                    rules.Reason(rules.ReasonKind.UNDONE, f"it was undone when the run {_describe_end(self.end)}"),
                )
                kept = undone_reason if each.path in undone else ()
                steps.append(PlannedStep(each.path, Decision.KEEP, kept, (), each.duration_ms, each.location))
        stops, stopped_by = self._describe_stop(), ""
        if reasons and not self.options.force:
            stops, stopped_by = self._make_refusal(reasons).message, next(iter(reasons))
        return ResumePlan(
            self.workflow_id,
            self.workflow.name,
            steps,
            ends_at=search.ends_at if search.is_blind else "",
            stops=stops,
            stopped_by=stopped_by,
            is_undoing=True,
        )

    def _describe_stop(self) -> str:
        if not self.options.rolls_back:
            return "it stopped during a rollback: a resume leaves the remaining steps, and ends the run as it had ended"
        return "it stopped during a rollback: a resume finishes the rollback, and ends the run as it had ended"

    def _find_not_undoable(self, search: UndoSearch) -> dict[str, str]:
        """Return why steps with a recorded compensation cannot be undone, by path."""
        unreadable = search.unreadable
        reasons = {}
        for each in find_not_yielded(self.view, search.yielded - unreadable.keys()):
            why = unreadable.get(each.path) or search.ends_at or "the workflow no longer yields it"
            if each.path not in unreadable and any(dropped.path == each.path for dropped in search.aside.dropped):
                why = "the workflow yields another step or none in its place"
            reasons[each.path] = why
        return reasons

    def _make_refusal(self, reasons: Mapping[str, str]) -> NotUndoableError:
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
) -> UndoAttempt:
    """Read the record of a run for an attempt that only undoes.

    Args:
        workflow: the workflow.
        workflow_id: the run.
        latest: its newest checkpoint.
        inputs: inputs given again; may be empty.
        end: how the run ends.
        options: the options of the resume.
        is_cancel: whether the run is resumed only to be cancelled.

    Raises:
        WorkflowChangedError: the record belongs to another workflow.
        InputMismatchError: an input differs from the recorded one.
    """
    check_workflow_name(workflow, workflow_id, latest)
    bound = rebind_recorded(workflow, latest, inputs)
    return UndoAttempt(workflow, workflow_id, latest, bound, end, options, is_cancel)


def _plan_step(result: StepResult, why: str, reasons: Mapping[str, str]) -> PlannedStep:
    decision = Decision.ORPHANED if result.path in reasons else Decision.UNDO
    detail = why if decision is Decision.UNDO else f"it cannot be undone: {reasons[result.path]}"
    reason = rules.Reason(rules.ReasonKind.UNDOING, detail)
    return PlannedStep(result.path, decision, (reason,), (), result.duration_ms, result.location)


def _describe_end(end: UnfinishedRollback) -> str:
    return "failed" if end.reason.value == "failed" else f"was {end.reason.value}"
