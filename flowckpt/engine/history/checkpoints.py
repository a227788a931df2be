"""A checkpoint of a run, found by its id or by its sequence: one that counts, or one that was left behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from flowckpt.core.codec.results import as_view, encode_time, plain_tree
from flowckpt.core.dsl import Step, Workflow
from flowckpt.core.records import CheckpointData, Reason
from flowckpt.core.records.checkpoint import STATUS_OF_REASON
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.core.replay import Answer, Replay
from flowckpt.core.system.declared import shell_word
from flowckpt.engine.dry.recorded_drive import follow
from flowckpt.engine.rules.judge import evidence_reasons
from flowckpt.engine.values.failures import recorded_answer
from flowckpt.engine.values.inputs import rebind_inputs
from flowckpt.engine.values.options import RunOptions
from flowckpt.engine.values.placeholders import PlanStopped, use_missing_secret
from flowckpt.errors import CheckpointNotFoundError
from flowckpt.evidence.claims import EvidencePack
from flowckpt.evidence.report import Moment, VerificationReport
from flowckpt.execution.claims import ClaimChecker, claimed_pack, is_open
from flowckpt.maintenance.attempts import warn_of_damage
from flowckpt.stores.base import StoreBase
from flowckpt.stores.queries import DAMAGE

if TYPE_CHECKING:
    from flowckpt.core.records import StepResult
    from flowckpt.evidence.verifier import EvidenceVerifier


async def earlier_checkpoint(store: StoreBase, workflow_id: str, latest: CheckpointData, wanted: str) -> CheckpointData:
    """Return a checkpoint that counts.

    Args:
        store: where the run lies.
        workflow_id: the run.
        latest: its newest checkpoint.
        wanted: the id, whose newest is meant; or, where no id is so, the sequence in digits. A sequence finds a
            checkpoint whose id was used again, too.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
    """
    references = await store.list_checkpoints(workflow_id)
    if any(each.checkpoint_id == wanted for each in references):
        return await store.load(workflow_id, wanted)
    found = next((each for each in references if str(each.sequence) == wanted), None)
    if found is None:
        if _named(await left_behind(store, workflow_id), wanted) is None:
            raise CheckpointNotFoundError(workflow_id, wanted)
        raise CheckpointNotFoundError(
            workflow_id,
            wanted,
            detail="not any more: it was left behind, and a run only goes back to what counts",
            remedy=f"See 'flowckpt show {shell_word(workflow_id)} --history'. A new run can start from it: "
            f"'flowckpt fork {shell_word(workflow_id)} --checkpoint {shell_word(wanted)}'.",
        )
    data = await store.load(workflow_id, found.checkpoint_id)
    if data.sequence == found.sequence:
        return data
    if found.reason is Reason.FAILED:  # how it failed is written only in the checkpoint itself
        raise CheckpointNotFoundError(workflow_id, wanted, detail="a later one of the same id has taken its place")
    # Its id was used again. All checkpoints that count share one history, so its results are at hand.
    return attrs.evolve(
        latest,
        checkpoint_id=found.checkpoint_id,
        step_results=as_view(latest.step_results).history.view(found.steps),
        saved_at=found.saved_at,
        sequence=found.sequence,
        attempt=found.attempt,
        reason=found.reason,
        status=STATUS_OF_REASON[found.reason],
        evidence=(),
        in_flight=(),
        snapshot=None,
        output=None,
        error=None,
    )


async def any_checkpoint(store: StoreBase, workflow_id: str, latest: CheckpointData, wanted: str) -> CheckpointData:
    """Return a checkpoint to look at or to start from: one that counts, else one of an abandoned history.

    Args:
        store: where the run lies.
        workflow_id: the run.
        latest: its newest checkpoint.
        wanted: as for `earlier_checkpoint`. Of those left behind, the newest of that id is meant; each has a sequence of
            its own.

    Raises:
        CheckpointNotFoundError: there is no such checkpoint.
    """
    try:
        return await earlier_checkpoint(store, workflow_id, latest, wanted)
    except CheckpointNotFoundError:
        found = _named(await left_behind(store, workflow_id), wanted)
        if found is None:
            raise
    for data in await store.read_attempt(workflow_id, found.attempt):
        if data.sequence == found.sequence:
            return data
    raise CheckpointNotFoundError(workflow_id, wanted)


async def left_behind(store: StoreBase, workflow_id: str) -> list[CheckpointRef]:
    """Return the checkpoints that no longer count, because a later attempt resumed from before them; the oldest first.

    Args:
        store: where the run lies; one without that ability has none.
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
        # What a fenced writer appended when its successor had read the run was never acknowledged.
        part = [each for each in listed if each.attempt == attempt and (bound is None or each.sequence < bound)]
        if part:
            bound = part[0].sequence
            parts.append([each for each in part if (each.attempt, each.sequence) not in counting])
    return [each for part in reversed(parts) for each in part]


def _named(references: Sequence[CheckpointRef], wanted: str) -> CheckpointRef | None:
    newest = references[::-1]
    by_id = (each for each in newest if each.checkpoint_id == wanted)
    return next(by_id, None) or next((each for each in newest if str(each.sequence) == wanted), None)


# Whether the results up to a checkpoint are still true: what was verified once may have moved since.


Program: TypeAlias = Callable[[], Workflow[Any, Any] | None]


@attrs.frozen
class Rechecking:
    """Checks again what was verified once.

    Attributes:
        options: how, and what may be reached.
        verifier: checks the claims, or None for one that looks where the run was started.
        program: returns the workflow, which can answer more than its record; asked for only where that matters.
    """

    options: RunOptions
    verifier: EvidenceVerifier | None = None
    program: Program | None = None

    async def moved(
        self, data: CheckpointData, results: Sequence[StepResult], *, base: CheckpointData, is_whole: bool = True
    ) -> tuple[dict[str, tuple[str, ...]], tuple[Any, ...]]:
        """Check the claims of some results of a checkpoint against the world.

        Args:
            data: the checkpoint.
            results: those of its results that are to be continued from.
            base: the newest checkpoint of its run, which says where relative paths begin.
            is_whole: whether the claims of the checkpoint itself are checked, too.

        Returns:
            What moved, by the path of the step, an empty one for the checkpoint itself; and the answers for the record.
        """
        verifying = ClaimChecker.of(base, self.verifier, self.options)
        reports = await verifying.reports_of(results)
        if any(map(is_open, reports.values())) and (workflow := self.workflow()) is not None:
            with contextlib.suppress(Exception, PlanStopped):  # what cannot be answered then counts as moved
                lend_functions(workflow, data)
            asked_again = [result for result in results if is_open(reports.get(result.path))]
            reports.update(await verifying.reports_of(asked_again))
        answers = _recorded(reports)
        moved = {path: found for path, report in reports.items() if (found := _against(report))}
        for pack in checkpoint_packs(data) if is_whole else ():
            found = _against(await verifying.verifier.verify_evidence_pack(pack, moment=Moment.RESUME))
            if found:
                moved[""] = moved.get("", ()) + found
        return moved, answers

    def workflow(self) -> Workflow[Any, Any] | None:
        """Return the workflow, where it is at hand."""
        return None if self.program is None else self.program()


def _against(report: VerificationReport) -> tuple[str, ...]:
    return tuple(reason.detail for reason in evidence_reasons(report))


def checkpoint_packs(data: CheckpointData) -> Sequence[EvidencePack]:
    """Return the claims of a checkpoint itself.

    Args:
        data: the checkpoint.
    """
    packs = []
    for each in data.evidence:
        if isinstance(each, EvidencePack):
            packs.append(each)
        elif isinstance(each, Mapping) and "pack" in each:
            packs.append(EvidencePack.from_document(each["pack"]))
    return packs


def _recorded(reports: Mapping[str, VerificationReport]) -> tuple[Any, ...]:
    return tuple(
        {"path": path, "outcome": str(report.outcome), "verified_at": encode_time(report.verdicts[0].verified_at)}
        for path, report in reports.items()
        if report.verdicts
    )


def lend_functions(workflow: Workflow[Any, Any], data: CheckpointData) -> None:
    """Answer the generator with its recorded results, so that it makes the claims of its steps again.

    That lends the functions of its claims, and the addresses of its databases, to the code that checks them. Nothing is run.

    Args:
        workflow: the workflow.
        data: a checkpoint of it.

    Raises:
        PlanStopped: it needs the output of a step that is run at each resume.
        FlowckptError: the record is not one of the workflow as it is now.
    """
    bound = rebind_inputs(
        workflow,
        recorded=plain_tree(data.held_inputs, "inputs"),
        recorded_hash=data.inputs_hash,
        defaulted=tuple(data.metadata.get("defaulted", ())),
        given={},
    )
    values = bound.values(workflow, use_missing=use_missing_secret)
    replay = Replay(workflow(**values), data.step_results, workflow.name, is_muted=True)

    def visit(step: Step[Any], result: StepResult) -> Answer:
        value, failure = recorded_answer(step, result)
        claimed = step.modifiers.evidence
        if failure is None and claimed is not None and any(callable(each) for each in claimed.claims):
            claimed_pack(claimed, value, place=result.path)
        return value, failure

    with contextlib.closing(replay):
        follow(replay, visit)
