"""Whether the results up to a checkpoint are still true: what was verified once may have moved since."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowckpt.checkpoint import StepResult
from flowckpt.codec.results import encode_time, plain_tree
from flowckpt.dsl import Workflow
from flowckpt.engine.binding import rebind_inputs
from flowckpt.engine.failures import step_failure
from flowckpt.engine.planning import NotRun
from flowckpt.engine.verifying import Verifying, is_open
from flowckpt.evidence.model import EvidencePack
from flowckpt.evidence.verdict import Moment, VerificationReport
from flowckpt.execution import evidence
from flowckpt.execution.runner import restored_value
from flowckpt.plan.judge import evidence_reasons
from flowckpt.replay import Command, Execute, Replay, Restore

if TYPE_CHECKING:
    from flowckpt.checkpoint import CheckpointData


async def moved_evidence(
    data: CheckpointData,
    results: Sequence[StepResult],
    verifying: Verifying,
    *,
    workflow: Workflow[Any, Any] | None = None,
    is_whole: bool = True,
) -> tuple[dict[str, tuple[str, ...]], tuple[Any, ...]]:
    """Check the claims of results against the world.

    Args:
        data: the checkpoint that they come from.
        results: those of them that are to be gone on from.
        verifying: what checks them.
        workflow: the program, which can answer more than its record; None where it is not at hand.
        is_whole: whether the claims of the checkpoint itself are checked, too.

    Returns:
        What moved, by the path of the step, an empty one for the checkpoint itself; and the answers for the record.
    """
    reports = await verifying.reports_of(results)
    if workflow is not None and any(map(is_open, reports.values())):
        lend_functions(workflow, data)
        asked_again = [result for result in results if is_open(reports.get(result.path))]
        reports.update(await verifying.reports_of(asked_again))
    if is_whole:
        packs = list(checkpoint_packs(data))
        answers = [await verifying().verify_evidence_pack(pack, moment=Moment.RESUME) for pack in packs]
        reports.update({f"\0{index}": report for index, report in enumerate(answers)})
    moved: dict[str, tuple[str, ...]] = {}
    for path, report in reports.items():
        if found := evidence_reasons(report):
            place = "" if path[:1] == "\0" else path
            moved[place] = moved.get(place, ()) + tuple(reason.detail for reason in found)
    return moved, _recorded(reports)


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
        if report.verdicts and path[:1] != "\0"
    )


def lend_functions(workflow: Workflow[Any, Any], data: CheckpointData) -> None:
    """Answer the generator with its recorded results, so that it makes the claims of its steps again.

    That lends the functions of its claims, and the addresses of its databases, to whoever checks them. Nothing is run.

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
    replay = Replay(workflow(**bound.values(workflow)), data.step_results, workflow.name)
    with contextlib.closing(replay):
        command: Command = replay.start()
        while True:
            if isinstance(command, Restore):
                step, result = command.step, command.result
                if not result.success and result.error is not None:
                    command = replay.throw(step_failure(result.path, result.error))
                    continue
                value = restored_value(step, result)
                claimed = step.modifiers.evidence
                if claimed is not None and any(callable(each) for each in claimed.claims):
                    evidence.claimed_pack(claimed, value, place=result.path)
                command = replay.send(value)
            elif isinstance(command, Execute) and command.step.modifiers.is_ephemeral:
                command = replay.send(NotRun(command.path))
            else:
                return
