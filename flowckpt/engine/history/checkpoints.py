"""Earlier checkpoints of a run: find them by id or sequence, check them, roll back to them.

A checkpoint counts, or it is abandoned. A rollback rewrites nothing: a new attempt saves one checkpoint with the
shorter history, and the next resume continues from it. Later checkpoints stay in the store but no longer count. So a
crash leaves the run either unchanged or rolled back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from flowckpt.core.codec.results import as_view
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.records import CheckpointData, Reason, Status, StepResult
from flowckpt.core.records.checkpoint import STATUS_OF_REASON
from flowckpt.core.records.listing import IMPORTED, ROLLED_BACK, CheckpointRef, refuse_task
from flowckpt.core.replay import Answer, Replay
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.declared import shell_word
from flowckpt.engine.dry.recorded_drive import follow
from flowckpt.engine.rules.judge import evidence_reasons
from flowckpt.engine.rules.paths import (
    ROLLBACK,
    find_undone_in_races,
    list_in_flight,
    root_failures,
    step_of,
    undone_paths,
)
from flowckpt.engine.run.lease import hold_lease, require_run, save_after
from flowckpt.engine.run.notify import answer_documents
from flowckpt.engine.run.resumption import drop_reusable, read_started_steps
from flowckpt.engine.values.failures import read_answer
from flowckpt.engine.values.inputs import rebind_recorded
from flowckpt.engine.values.options import RunOptions
from flowckpt.engine.values.placeholders import PlanStopped, use_missing_secret
from flowckpt.engine.values.superseded import Superseded
from flowckpt.engine.values.waits import restore_waits
from flowckpt.errors import CheckpointNotFoundError, StaleCheckpointError
from flowckpt.evidence.claims import EvidencePack
from flowckpt.evidence.report import Moment, VerificationReport
from flowckpt.execution.claims import is_open, make_pack
from flowckpt.maintenance.attempts import warn_of_damage
from flowckpt.stores.base import StoreBase
from flowckpt.stores.queries import DAMAGE

if TYPE_CHECKING:
    from flowckpt.evidence.verifier import EvidenceVerifier


async def find_standing_checkpoint(
    store: StoreBase, workflow_id: str, latest: CheckpointData, wanted: str
) -> CheckpointData:
    """Return a checkpoint that counts.

    Args:
        store: the store that has the run.
        workflow_id: the run.
        latest: its newest checkpoint.
        wanted: an id, for its newest checkpoint, also with the run and `@` before it; or, if there is no such id, the
            sequence in digits. A sequence also finds a checkpoint whose id was used again.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
    """
    references = await store.list_checkpoints(workflow_id)
    ids = {each.checkpoint_id for each in references}
    if wanted not in ids:
        wanted = wanted.removeprefix(f"{workflow_id}@")  # the ids of a `CheckpointManager` contain their task
    if wanted in ids:
        return await store.load(workflow_id, wanted)
    reference = next((each for each in references if str(each.sequence) == wanted), None)
    if reference is None:
        if _find_reference(await list_left_behind(store, workflow_id), wanted) is None:
            raise CheckpointNotFoundError(workflow_id, wanted)
        raise CheckpointNotFoundError(
            workflow_id,
            wanted,
            detail="it no longer counts, and a rollback needs a checkpoint that counts",
            remedy=f"See 'flowckpt show {shell_word(workflow_id)} --history'. A new run can start from it: "
            f"'flowckpt fork {shell_word(workflow_id)} --checkpoint {shell_word(wanted)}'.",
        )
    data = await store.load(workflow_id, reference.checkpoint_id)
    if data.sequence == reference.sequence:
        return data
    if reference.reason is Reason.FAILED:  # only the checkpoint itself has the error
        raise CheckpointNotFoundError(workflow_id, wanted, detail="a later one with the same id has replaced it")
    # Its id was used again. All checkpoints that count share one history, so its results are available.
    return attrs.evolve(
        latest,
        checkpoint_id=reference.checkpoint_id,
        step_results=as_view(latest.step_results).history.view(reference.steps),
        saved_at=reference.saved_at,
        sequence=reference.sequence,
        attempt=reference.attempt,
        reason=reference.reason,
        status=STATUS_OF_REASON[reference.reason],
        evidence=(),
        in_flight=(),
        snapshot=None,
        output=None,
        error=None,
    )


async def find_checkpoint(store: StoreBase, workflow_id: str, latest: CheckpointData, wanted: str) -> CheckpointData:
    """Return a checkpoint to show or to fork from: one that counts, else one of an abandoned history.

    Args:
        store: the store that has the run.
        workflow_id: the run.
        latest: its newest checkpoint.
        wanted: as for `find_standing_checkpoint`. Of several abandoned checkpoints with this id, the newest is returned; each
            has its own sequence.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
    """
    try:
        return await find_standing_checkpoint(store, workflow_id, latest, wanted)
    except CheckpointNotFoundError:
        reference = _find_reference(await list_left_behind(store, workflow_id), wanted)
        if reference is None:
            raise
    for data in await store.read_attempt(workflow_id, reference.attempt):
        if data.sequence == reference.sequence:
            return data
    raise CheckpointNotFoundError(workflow_id, wanted)


async def list_left_behind(store: StoreBase, workflow_id: str) -> list[CheckpointRef]:
    """Return the checkpoints that no longer count, because a later attempt resumed from before them; oldest first.

    Args:
        store: the store of the run; a store without this ability has none.
        workflow_id: the run.

    Raises:
        CheckpointCorruptedError: the current history is damaged; a damaged attempt is left out with a warning.
    """
    counting = {(each.attempt, each.sequence) for each in await store.list_checkpoints(workflow_id)}
    parts: list[list[CheckpointRef]] = []
    bound: int | None = None
    for attempt in reversed(await store.attempts(workflow_id)):
        try:
            listed = await store.list_attempt(workflow_id, attempt)
        except DAMAGE as error:
            warn_of_damage(workflow_id, attempt, error)
            continue
        # A fenced writer's records after its successor's read were never acknowledged.
        part = [each for each in listed if each.attempt == attempt and (bound is None or each.sequence < bound)]
        if part:
            bound = part[0].sequence
            parts.append([each for each in part if (each.attempt, each.sequence) not in counting])
    return [each for part in reversed(parts) for each in part]


def _find_reference(references: Sequence[CheckpointRef], wanted: str) -> CheckpointRef | None:
    newest = references[::-1]
    by_id = (each for each in newest if each.checkpoint_id == wanted)
    return next(by_id, None) or next((each for each in newest if str(each.sequence) == wanted), None)


# Whether the results up to a checkpoint are still valid: verified facts may have changed since.


Program: TypeAlias = Callable[[], Workflow[Any, Any] | None]


@attrs.frozen
class Recheck:
    """Checks the evidence of earlier checkpoints again.

    Attributes:
        options: how to check, and which hosts may be reached.
        verifier: checks the claims; None for one based on the directory where the run was started.
        program: returns the workflow, whose functions some claims need; called only for such claims.
    """

    options: RunOptions
    verifier: EvidenceVerifier | None = None
    program: Program | None = None

    async def check_claims(
        self, data: CheckpointData, results: Sequence[StepResult], *, base: CheckpointData, is_whole: bool = True
    ) -> tuple[dict[str, tuple[str, ...]], tuple[Any, ...]]:
        """Check the claims of some results of a checkpoint.

        Args:
            data: the checkpoint.
            results: the results to continue from.
            base: the newest checkpoint of its run, which has the base of relative paths.
            is_whole: whether to check the claims of the checkpoint itself, too.

        Returns:
            The changes, by the path of the step (empty for the checkpoint itself); and the verdicts for the record.
        """
        claims = self.options.make_checker(self.verifier, base.metadata)
        reports = await claims.verify_results(results)
        if any(map(is_open, reports.values())) and (workflow := self.workflow()) is not None:
            with contextlib.suppress(Exception, PlanStopped):  # claims that cannot be checked count as changed
                recreate_claims(workflow, data)
            asked_again = [result for result in results if is_open(reports.get(result.path))]
            reports.update(await claims.verify_results(asked_again))
        answers = answer_documents(reports)
        moved = {path: objections for path, report in reports.items() if (objections := _list_objections(report))}
        for pack in read_packs(data) if is_whole else ():
            objections = _list_objections(await claims.verifier.verify_evidence_pack(pack, moment=Moment.RESUME))
            if objections:
                moved[""] = moved.get("", ()) + objections
        return moved, answers

    def workflow(self) -> Workflow[Any, Any] | None:
        """Return the workflow, if it is available."""
        return None if self.program is None else self.program()


def _list_objections(report: VerificationReport) -> tuple[str, ...]:
    return tuple(reason.detail for reason in evidence_reasons(report))


def read_packs(data: CheckpointData) -> Sequence[EvidencePack]:
    """Return the claims of a checkpoint itself."""
    packs = []
    for each in data.evidence:
        if isinstance(each, EvidencePack):
            packs.append(each)
        elif isinstance(each, Mapping) and "pack" in each:
            packs.append(EvidencePack.from_document(each["pack"]))
    return packs


def recreate_claims(workflow: Workflow[Any, Any], data: CheckpointData) -> None:
    """Replay the generator, so that it creates the claims of its steps again; nothing is run.

    This makes the functions of claims and the addresses of databases available to the code that checks them.

    Args:
        workflow: the workflow.
        data: a checkpoint of it.

    Raises:
        PlanStopped: the generator needs the output of an ephemeral step.
        FlowckptError: the present workflow does not follow the record.
    """
    bound = rebind_recorded(workflow, data, {})
    values = bound.values(workflow, use_missing=use_missing_secret)
    replay = Replay(workflow.make_generator(values), data.step_results, workflow.name, is_muted=True)

    def visit(step: Step[Any], result: StepResult) -> Answer:
        value, failure = read_answer(step, result)
        claimed = step.modifiers.evidence
        if failure is None and claimed is not None and any(callable(each) for each in claimed.claims):
            make_pack(claimed, value, place=result.path)
        return value, failure

    with contextlib.closing(replay):
        follow(replay, visit)


@attrs.frozen
class RolledBack:
    """The outcome of a rollback.

    Attributes:
        checkpoint_id: the checkpoint it went back to.
        sequence: the sequence of that checkpoint.
        steps: the number of results that count now.
        dropped: the paths of the results that no longer count.
        attempt: the attempt that went back.
        is_new: whether anything was saved; False if the run was already there.
    """

    workflow_id: str
    checkpoint_id: str
    sequence: int
    steps: int
    dropped: tuple[str, ...]
    attempt: int
    is_new: bool

    def to_document(self) -> dict[str, Any]:
        """Return the document that `rollback --json` prints."""
        return {**attrs.asdict(self), "dropped": list(self.dropped)}


async def roll_back(
    store: StoreBase,
    clock: Clock,
    workflow_id: str,
    checkpoint_id: str,
    rechecking: Recheck,
) -> RolledBack:
    """Make an earlier checkpoint the one to resume from.

    Args:
        store: the store that has the run.
        clock: the time.
        workflow_id: the run.
        checkpoint_id: an id, for its newest checkpoint; or a sequence in digits.
        rechecking: checks its evidence.

    Raises:
        CheckpointNotFoundError: the run or the checkpoint does not exist.
        RunLockedError: another process owns the run.
        StaleCheckpointError: results up to the checkpoint are no longer valid; nothing was changed.
        CheckpointStorageError: the store failed.
    """
    async with hold_lease(store, workflow_id) as lease:
        latest = require_run(workflow_id, lease.latest)
        refuse_task(workflow_id, latest)
        target = await find_standing_checkpoint(store, workflow_id, latest, checkpoint_id)
        undone = find_undone(view := as_view(latest.step_results))
        length = count_standing(view[: count_resumable(target)], undone)
        dropped = view[length:]
        moved, answers = await rechecking.check_claims(target, target.step_results[:length], base=latest)
        if moved:
            raise StaleCheckpointError(workflow_id, target.checkpoint_id, reasons=moved)
        place: dict[str, Any] = {"checkpoint_id": target.checkpoint_id, "sequence": target.sequence}
        is_there = latest.reason is Reason.MANUAL and latest.metadata.get(ROLLED_BACK) == place and not dropped
        if is_there or target.sequence == latest.sequence:
            return RolledBack(workflow_id, **place, steps=length, dropped=(), attempt=latest.attempt, is_new=False)
        started = await read_started_steps(store, workflow_id, latest) if latest.status is Status.RUNNING else ()
        superseded = Superseded(latest.metadata)
        superseded.add((each for each in dropped if execution_of(each) not in undone), is_decided=True)
        kept = rechecking.options.add_to_metadata(drop_reusable(latest.metadata))
        metadata = _keep_import_mark(superseded.add_to_metadata(kept), target)
        data = await save_after(
            store,
            clock,
            lease,
            latest,
            "@rollback",
            step_results=(view.history.forked(length) if dropped else view.history).view(length),
            reason=Reason.MANUAL,
            status=Status.SUSPENDED,
            evidence=answers,
            snapshot=target.held_snapshot,
            in_flight=list_in_flight(latest, started),
            partial=target.partial,
            metadata={**restore_waits(metadata, target.metadata, dropped), ROLLED_BACK: place},
            output=None,
            error=None,
        )
    paths = tuple(result.path for result in dropped)
    return RolledBack(workflow_id, target.checkpoint_id, target.sequence, length, paths, data.attempt, is_new=True)


def _keep_import_mark(metadata: Mapping[str, Any], target: CheckpointData) -> dict[str, Any]:
    """Return metadata with the mark of an import if the checkpoint has it: its answers stay untrusted."""
    return {**metadata, IMPORTED: target.metadata[IMPORTED]} if IMPORTED in target.metadata else {**metadata}


Execution: TypeAlias = tuple[str, int, datetime | None]
"""The path, the attempt and the start of an executed step: two lines of history may have the same execution."""


def execution_of(result: StepResult) -> Execution:
    """Return which execution a result is from."""
    return result.path, result.attempt, result.started_at


def find_undone(results: Iterable[StepResult]) -> set[Execution]:
    """Return the executions that were undone, according to a history."""
    undone = undone_paths(view := [*results])
    return {execution_of(each) for each in view if each.path in undone}


def count_standing(standing: Sequence[StepResult], undone: Collection[Execution]) -> int:
    """Return how many results still count: those before the first one that was undone when the run failed.

    Args:
        standing: the results to consider, from the first one of the run.
        undone: the executions that were undone, according to the newest history of the run.
    """
    of_races = find_undone_in_races(standing)
    kept = undone_paths(standing) & of_races.keys()
    stop = (
        i
        for i, each in enumerate(standing)
        if (each.path not in kept and execution_of(each) in undone)
        or (each.step_type == ROLLBACK and step_of(each.path) not in of_races)
    )
    return next(stop, len(standing))


def count_resumable(data: CheckpointData) -> int:
    """Return how many results of a checkpoint a resume keeps: all except a failure that ended the run."""
    results = data.step_results
    if data.status is Status.FAILED and data.error is not None and data.error.path:
        failed = set(root_failures(results, data.error.path))
        return next((index for index, result in enumerate(results) if result.path in failed), len(results))
    return len(results)
