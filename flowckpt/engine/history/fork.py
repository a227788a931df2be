"""A new run that starts from another run's history: some of its results, perhaps edited, perhaps with other inputs.

The source is only read, so it may be live or completed. Its effects remain its own: the fork asks before it repeats an
at-most-once step, and never undoes the effect of a step of the source. An effect that the source has undone is not taken
over, whichever checkpoint the fork starts from.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from flowckpt.core import codec
from flowckpt.core.codec.blob import Blob, Recorded, plain_tree
from flowckpt.core.codec.results import append_result, as_view
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.dsl.world import NowAction, WorldAction
from flowckpt.core.identity import inputs_hash
from flowckpt.core.identity.call import identify
from flowckpt.core.identity.secrets import KnownSecrets, refuse_secrets
from flowckpt.core.records import CheckpointData, History, Reason, Status, StepResult, generation
from flowckpt.core.records.checkpoint import BIRTH
from flowckpt.core.records.listing import ROLLED_BACK, STARTED_BY, refuse_task
from flowckpt.core.records.wait import ENDED, birth_of
from flowckpt.core.replay import Answer, Command, Crash, Replay
from flowckpt.core.system.blocking import finish_despite_cancel
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.declared import shell_word
from flowckpt.core.system.ids import new_token
from flowckpt.core.system.process import identify_process
from flowckpt.engine.dry.recorded_drive import follow
from flowckpt.engine.history.checkpoints import (
    Execution,
    count_resumable,
    count_standing,
    execution_of,
    find_checkpoint,
    find_undone,
)
from flowckpt.engine.history.checkpoints import Recheck as Recheck  # noqa: PLC0414 - for the engine
from flowckpt.engine.rules.judge import identity_reasons
from flowckpt.engine.rules.paths import UNDOABLE, UNFINISHED, find_left_to_undo, find_path, is_within, select_for_fork
from flowckpt.engine.rules.reasons import LIMITS, ReasonKind
from flowckpt.engine.run.lease import hold_lease, require_run
from flowckpt.engine.run.resumption import add_runners, check_workflow_name, drop_reusable, note_runners
from flowckpt.engine.values.failures import read_answer
from flowckpt.engine.values.inputs import BoundInputs, bind_inputs, decode_input, rebind_recorded
from flowckpt.engine.values.options import RETRIES_USED, RunOptions
from flowckpt.engine.values.placeholders import PlanStopped, SecretNeeded, use_missing_secret
from flowckpt.engine.values.superseded import AT_MOST_ONCE, ON_RERUN, STARTED_ONCE, Superseded
from flowckpt.engine.values.waits import drop_waits
from flowckpt.errors import InputError, RunExistsError, StaleCheckpointError, StepNotFoundError
from flowckpt.execution.current_step import find_at_work
from flowckpt.execution.runner import output_annotation
from flowckpt.stores.base import StoreBase

# Replaced outputs: converted to the types of their steps, and recorded as if the steps had returned them.


EDITED = "edited"
"""Marks a result whose output was set by the user, not returned by its step."""

Edit: TypeAlias = Callable[[Any], Any]
"""Returns the output, given the annotation of the step's function."""


def make_edits(outputs: Mapping[str, Any]) -> dict[str, Edit]:
    """Return edits to values that already have the right types.

    Args:
        outputs: the values, by step.
    """

    def edit_to(value: Any) -> Edit:
        return lambda _: value

    return {step: edit_to(value) for step, value in outputs.items()}


_MOVES = (ReasonKind.ARGUMENTS, ReasonKind.VERSION)


def edit_results(
    workflow: Workflow[Any, Any],
    bound: BoundInputs,
    results: Sequence[StepResult],
    edits: Mapping[str, Edit],
    kept: Collection[str],
) -> list[StepResult]:
    """Return the results of the edited steps, driving the generator up to them. Nothing is run.

    Args:
        workflow: the workflow.
        bound: its inputs.
        results: the recorded results.
        edits: the new outputs, by path.
        kept: the other steps whose results stay.

    Raises:
        InputError: a step cannot be reached, or the resume would run an earlier one again and drop the edit.
        EncodingError: a value cannot be recorded.
        WorkflowChangedError: the program does not follow the record.
    """
    found: list[StepResult] = []
    secrets = bound.known_secrets()
    values = bound.values(workflow, use_missing=use_missing_secret)
    staying = [each for each in results if each.path in edits or each.path in kept]
    replay = Replay(workflow.make_generator(values), staying, workflow.name, is_muted=True)

    def visit(step: Step[Any], result: StepResult) -> Answer:
        if result.path in edits:
            edited, value = _edit_result(step, result, edits[result.path], secrets)
            found.append(edited)
            if len(found) == len(edits):
                raise _AllFoundError
            return value, None
        moved = [reason for reason in identity_reasons(step, result, secrets) if reason.kind in _MOVES]
        if moved:
            raise InputError(
                f"step {result.path!r} is before an edited one and would run again: {moved[0]}",
                parameter=next(iter(edits)),
                remedy="That would drop everything after it, including the edit. Edit that step as well, or leave out "
                "the change that makes it stale.",
            )
        return read_answer(step, result)

    with contextlib.closing(replay), contextlib.suppress(_AllFoundError):
        end = follow(replay, visit)
        raise _unreached_error(next(path for path in edits if path not in {each.path for each in found}), end, results)
    return found


class _AllFoundError(Exception):
    """Every edited step was reached, so the drive can stop."""


def _edit_result(step: Step[Any], result: StepResult, edit: Edit, secrets: KnownSecrets) -> tuple[StepResult, Any]:
    action = step.action
    annotation, call = output_annotation(action), identify(action, secrets, step.modifiers.version)
    value = edit(action.answers if isinstance(action, WorldAction) else annotation)
    if isinstance(action, NowAction) and getattr(value, "tzinfo", None) is None:
        problem = f"the output of step {result.path!r} must be a time with its time zone, not {value!s:.80}"
        raise InputError(problem, parameter=result.path, remedy="Add the zone, such as Z for UTC.")
    tree = codec.encode(value, annotation, place=f"{result.path}: output")
    refuse_secrets(tree, secrets, f"{result.path}: output")
    made = attrs.evolve(
        result,
        success=True,
        output=Recorded(tree),
        error=None,
        duration_ms=0.0,
        started_at=None,
        attempt=0,
        tries=1,
        function=call.function,
        version=call.version,
        fingerprint=call.fingerprint,
        arguments=call.arguments,
        evidence=None,  # its claims were about the effect of the step itself
        marks=(EDITED, *[mark for mark in result.marks if mark in (AT_MOST_ONCE, UNDOABLE)]),
        figures={},
    )
    return made, codec.decode(tree, annotation)


def _unreached_error(path: str, command: Command, results: Sequence[StepResult]) -> InputError:
    if any(is_within(result.path, path) and result.path != path for result in results):
        return InputError(
            f"the output of step {path!r} cannot be set: it consists of the outputs of its members",
            parameter=path,
            remedy="Set the output of a member, by its path.",
        )
    why = "a replay of the program does not reach it"
    if isinstance(command, Crash):
        why = f"the program raises {type(command.error).__name__} before it: {command.error}"
        if isinstance(command.error, SecretNeeded):
            name = command.error.args[0]
            why = f"the program uses the secret input {name!r} before it, which is not recorded: add -i {name}=…"
        elif isinstance(command.error, PlanStopped):
            why = f"the program needs the output of {command.error.args[0]!r} before it, which runs at each resume"
    return InputError(
        f"the output of step {path!r} cannot be set: {why}",
        parameter=path,
        remedy="Change the code of the step instead, and run it again with --from.",
    )


KEY = "forked_from"
"""Metadata key: the run and the checkpoint that a run was forked from."""
CHECKPOINT_ID = "@forked"


@attrs.frozen
class Forked:
    """A run that was forked from another.

    Attributes:
        workflow_id: the new run.
        source_id: the source run.
        checkpoint_id: the checkpoint of the source.
        sequence: the sequence of that checkpoint.
        steps: the number of copied results.
        edited: the paths of the results whose output was replaced.
        dropped: the paths of the source's results that were not copied.
        undone: those of them whose effects the source has undone, or is undoing.
        inputs: the changed inputs, leaf by leaf: recorded and new value as text.
        is_new: whether it was created now; False if the identical fork already existed.
    """

    workflow_id: str
    source_id: str
    checkpoint_id: str
    sequence: int
    steps: int
    edited: tuple[str, ...]
    dropped: tuple[str, ...]
    undone: tuple[str, ...]
    inputs: Mapping[str, tuple[str, str]]
    is_new: bool

    def to_document(self) -> dict[str, Any]:
        """Return the document that `fork --json` prints."""
        return {
            "workflow_id": self.workflow_id,
            "forked_from": {
                "workflow_id": self.source_id,
                "checkpoint_id": self.checkpoint_id,
                "sequence": self.sequence,
            },
            "steps": self.steps,
            "edited": list(self.edited),
            "dropped": list(self.dropped),
            "undone": list(self.undone),
            "inputs": {place: list(texts) for place, texts in self.inputs.items()},
            "is_new": self.is_new,
        }


@attrs.frozen(kw_only=True)
class ForkPlan:
    """The request for a fork.

    Attributes:
        new_id: the id of the new run.
        from_step: the step (path or name) before which the fork starts; empty to take over all results.
        edits: outputs to replace, by the path or name of their steps.
        inputs: inputs to change, by name.
        checkpoint: the id or sequence of the checkpoint to fork, which may be an abandoned one; empty for the newest.
    """

    new_id: str
    from_step: str = ""
    edits: Mapping[str, Edit] = attrs.field(factory=dict)
    inputs: Mapping[str, Any] = attrs.field(factory=dict)
    checkpoint: str = ""


async def fork_run(store: StoreBase, clock: Clock, source_id: str, plan: ForkPlan, rechecking: Recheck) -> Forked:
    """Create a new run from the history of another; a resume continues it.

    Args:
        store: the store of the source and of the new run.
        clock: the time.
        source_id: the run to start from.
        plan: the request.
        rechecking: checks evidence, and has the workflow for edits and inputs; a target in its options is recorded.

    Raises:
        CheckpointNotFoundError: the run or the checkpoint does not exist.
        StepNotFoundError: a step is not in the record.
        RunExistsError: the new id is taken.
        InputError: an edit or an input is invalid, or edits and `from_step` contradict each other.
        StaleCheckpointError: results to take over are no longer valid; nothing was saved.
        CheckpointStorageError: the store failed.
    """
    latest = require_run(source_id, await store.load_latest(source_id))
    refuse_task(source_id, latest)
    newest = latest
    if plan.checkpoint:
        latest = await find_checkpoint(store, source_id, latest, plan.checkpoint)
    results = as_view(latest.step_results)
    edits = {find_path(source_id, results, step): edit for step, edit in plan.edits.items()}
    if len(edits) < len(plan.edits):
        raise InputError("a step is edited twice, by its path and by its name", parameter="outputs")
    undone = await _find_undone(store, source_id, newest, latest)
    kept = _select_kept(source_id, latest, results, plan.from_step, edits, undone)
    workflow = _require_workflow(rechecking, source_id, latest) if edits or plan.inputs else None
    bound = None if workflow is None else _bind_changed(workflow, latest, plan.inputs)
    moved, answers = await rechecking.check_claims(latest, kept, base=latest, is_whole=len(kept) == len(results))
    if moved:
        raise _stale_error(source_id, latest, moved)
    edited: list[StepResult] = []
    if edits and workflow is not None and bound is not None:
        edited = edit_results(workflow, bound, results, edits, {result.path for result in kept})
    new = {result.path for result in (*kept, *edited)}
    dropped = [result for result in results if result.path not in new]
    data = _make_first_checkpoint(clock, source_id, latest, [*map(_inherit, kept), *edited], rechecking.options)
    data = attrs.evolve(data, evidence=answers, metadata=_record_effects(data, newest, latest, dropped, undone))
    data = await _keep_doubts(store, source_id, newest, data)
    differing: dict[str, tuple[str, str]] = {}
    if plan.inputs and bound is not None:
        metadata = {**data.metadata, "defaulted": list(bound.defaulted)}
        data = attrs.evolve(data, inputs=bound.recorded, inputs_hash=bound.hash, metadata=metadata)
        differing = inputs_hash.differences(plain_tree(latest.held_inputs, "inputs"), bound.tree)
    is_new = await _save_new(store, plan.new_id, data)
    return Forked(
        plan.new_id,
        source_id,
        latest.checkpoint_id,
        latest.sequence,
        len(data.step_results),
        tuple(each.path for each in edited),
        tuple(each.path for each in dropped),
        tuple(each.path for each in dropped if execution_of(each) in undone),
        differing,
        is_new,
    )


def _stale_error(source_id: str, data: CheckpointData, moved: dict[str, tuple[str, ...]]) -> StaleCheckpointError:
    first = next(iter(moved))
    hint = f"Nothing was changed. Fork before it: 'flowckpt fork {shell_word(source_id)} --from {shell_word(first)}'."
    return StaleCheckpointError(source_id, data.checkpoint_id, reasons=moved, remedy=hint if first else "")


async def _save_new(store: StoreBase, new_id: str, data: CheckpointData) -> bool:
    async with hold_lease(store, new_id) as lease:
        if lease.latest is not None:
            if _is_same_fork(lease.latest, data):  # created by a command that died before it could report it
                return False
            raise RunExistsError(new_id)
        data = attrs.evolve(data, attempt=lease.attempt, sequence=lease.last_sequence + 1)
        if sizes := _find_large_values(data):
            await finish_despite_cancel(store.share_values(data.metadata[KEY]["workflow_id"], new_id, sizes))
        await finish_despite_cancel(store.save(new_id, data))
    return True


def _find_large_values(data: CheckpointData) -> dict[str, int]:
    view = as_view(data.step_results)
    held = [blob for blobs in view.history.blobs.values() for blob in blobs.values()]
    held += [each for each in (data.held_inputs, data.held_snapshot) if isinstance(each, Blob)]
    return {blob.digest: blob.size for blob in held}


def _is_same_fork(found: CheckpointData, data: CheckpointData) -> bool:
    return (
        found.checkpoint_id == CHECKPOINT_ID
        and found.metadata.get(KEY) == data.metadata[KEY]
        and found.inputs_hash == data.inputs_hash
        and as_view(found.step_results).chain == as_view(data.step_results).chain
    )


async def _find_undone(
    store: StoreBase, source_id: str, newest: CheckpointData, latest: CheckpointData
) -> set[Execution]:
    """Return the executions of the source that were undone, and those that its next resume undoes."""
    results, undone = as_view(newest.step_results), find_undone(newest.step_results)
    if UNFINISHED in newest.metadata:
        undoable = {each.path for each in results if UNDOABLE in each.marks}
        undone |= set(map(execution_of, find_left_to_undo(results, undoable)))
    if not results.continues(as_view(latest.step_results)):  # an abandoned checkpoint: its own attempts know
        for attempt in await store.attempts(source_id):
            if latest.attempt <= attempt < newest.attempt and (last := await store.load_attempt(source_id, attempt)):
                undone |= find_undone(last.step_results)
    return undone


def _select_kept(
    source_id: str,
    latest: CheckpointData,
    results: Sequence[StepResult],
    from_step: str,
    edits: Mapping[str, Edit],
    undone: Collection[Execution],
) -> list[StepResult]:
    """Return the results that are taken over unchanged; the edited ones follow them."""
    paths = [result.path for result in results]
    length = count_standing(results[: count_resumable(latest)], undone)
    if edits and (first := min(paths.index(path) for path in edits)) > length:
        raise StepNotFoundError(source_id, paths[first], known=paths[: length + 1])
    if from_step and from_step not in latest.in_flight:  # an unfinished composite has no result, but its members may
        from_step = find_path(source_id, results, from_step)
    return select_for_fork(results, length, from_step, edits)


def _require_workflow(rechecking: Recheck, source_id: str, latest: CheckpointData) -> Workflow[Any, Any]:
    workflow = rechecking.workflow()
    if workflow is None:
        raise InputError(
            "changed outputs and inputs need the workflow, which defines their types",
            parameter="workflow",
            remedy="Pass workflow=….",
        )
    check_workflow_name(workflow, source_id, latest)
    return workflow


def _bind_changed(workflow: Workflow[Any, Any], latest: CheckpointData, given: Mapping[str, Any]) -> BoundInputs:
    """Bind the recorded inputs with the changed ones; an input left to its default keeps the recorded value."""
    if not given:
        return rebind_recorded(workflow, latest, {})
    recorded = plain_tree(latest.held_inputs, "inputs")
    unchanged = {
        name: decode_input(workflow, name, tree)
        for name, tree in recorded.items()
        if name in workflow.signature.parameters and name not in given
    }
    bound = bind_inputs(workflow, {**unchanged, **given})
    return attrs.evolve(
        bound, defaulted=tuple(name for name in latest.metadata.get("defaulted", ()) if name not in given)
    )


def _inherit(result: StepResult) -> StepResult:
    """Return a result in the form for the new run: not executed by its attempts, and without a compensation."""
    marks = tuple(mark for mark in result.marks if mark != ON_RERUN)
    return attrs.evolve(result, attempt=0, marks=marks)


def _record_effects(
    data: CheckpointData,
    newest: CheckpointData,
    latest: CheckpointData,
    dropped: Iterable[StepResult],
    undone: Collection[Execution],
) -> dict[str, Any]:
    """Return the metadata of a fork, with all effects of the source, including those after the checkpoint."""
    superseded, effects = Superseded(), [*Superseded(latest.metadata).values()]
    if newest is not latest:
        paths = {result.path for result in data.step_results}
        since = [*Superseded(newest.metadata).values(), *newest.step_results]
        effects += [result for result in since if result.path not in paths]
    inherited = (_inherit(each) for each in (*effects, *dropped) if execution_of(each) not in undone)
    superseded.add(inherited, is_decided=True)
    return superseded.add_to_metadata(data.metadata)


async def _keep_doubts(
    store: StoreBase, source_id: str, newest: CheckpointData, data: CheckpointData
) -> CheckpointData:
    """Return a fork's checkpoint with the steps that its source may be doing, also those after the forked checkpoint."""
    paths = {result.path for result in data.step_results}
    in_flight = tuple(each for each in dict.fromkeys((*data.in_flight, *newest.in_flight)) if each not in paths)
    _, runners = await note_runners(store, source_id, newest, is_stolen=await store.owner(source_id) is not None)
    once = {path: name for path, name in newest.metadata.get(STARTED_ONCE, {}).items() if path in in_flight}
    birth = birth_of(newest.metadata) or source_id
    for path in once:
        at_work = [identify_process(pid) for pid in find_at_work(birth, path) or ()]
        runners[path] = [*runners.get(path, ()), *at_work]
    noted = {path: processes for path, processes in runners.items() if processes and path in in_flight}
    metadata = add_runners({**data.metadata, STARTED_ONCE: once} if once else data.metadata, noted)
    return attrs.evolve(data, in_flight=in_flight, metadata=metadata)


def _make_first_checkpoint(
    clock: Clock, source_id: str, latest: CheckpointData, results: Sequence[StepResult], options: RunOptions
) -> CheckpointData:
    history = History()
    for result in results:
        append_result(history, result)
    metadata = {
        name: value
        for name, value in drop_waits(drop_reusable(latest.metadata)).items()
        if name not in (ROLLED_BACK, STARTED_BY, ENDED, UNFINISHED, generation.KEY)
    }
    metadata[BIRTH] = new_token(16)
    if LIMITS in metadata:  # the fork has made no retries yet
        metadata[LIMITS] = {name: value for name, value in metadata[LIMITS].items() if name != RETRIES_USED}
    metadata[KEY] = {
        "workflow_id": source_id,
        "checkpoint_id": latest.checkpoint_id,
        "sequence": latest.sequence,
    }
    metadata = options.add_to_metadata(metadata)
    return attrs.evolve(
        latest,
        checkpoint_id=CHECKPOINT_ID,
        step_results=history.view(),
        saved_at=clock.now(),
        reason=Reason.MANUAL,
        status=Status.SUSPENDED,
        partial={},
        metadata=metadata,
        output=None,
        error=None,
    )
