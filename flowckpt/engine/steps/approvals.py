"""Approvals of something: how it is taken from the world, and how each step after them checks that it is still so.

A generator cannot be taken back within an attempt. So where the bytes have moved, nothing behind the approval begins any
more: the run comes to rest, the question is put again, and a resume goes back to the approval.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.dsl import Step
from flowckpt.core.dsl.waits import ApprovalAction
from flowckpt.core.identity.call import identify
from flowckpt.core.records import StepResult
from flowckpt.core.records.outputs import Approval
from flowckpt.core.records.wait import Wait, WaitKind
from flowckpt.engine.rules.judge import evidence_reasons
from flowckpt.engine.rules.paths import is_behind
from flowckpt.engine.values.approved import StandingApproval
from flowckpt.engine.values.waits import Suspended
from flowckpt.events import ApprovalVoided
from flowckpt.evidence.claims import EvidencePack, EvidenceType, State
from flowckpt.evidence.report import Moment
from flowckpt.execution import claims as evidence
from flowckpt.execution import redaction

if TYPE_CHECKING:
    from flowckpt.engine.run.context import RunContext
    from flowckpt.evidence.report import VerificationReport
    from flowckpt.execution.claims import Committed


async def captured(run: RunContext, action: ApprovalAction, path: str) -> Committed:
    """Take what is to be approved from the world, as it is now.

    Raises:
        EvidenceError: a claim holds a secret, or is malformed.
    """
    first = action.claims[0]
    pack = first if isinstance(first, EvidencePack) else EvidencePack(action.claims)
    if run.secrets.is_any:
        redaction.refuse_secret_claims(pack.to_document(), run.secrets, path)
    return await run.claims.commit(pack, path=path)


def next_request(run: RunContext, earlier: str) -> str:
    """Return what names a question: unique in the run, for one that is saved under this attempt has its number once."""
    return f"{run.number}.{int(earlier.rpartition('.')[2] or 0) + 1}"


def stand(run: RunContext, step: Step[Any], wait: Wait, document: Mapping[str, Any], by: str) -> None:
    """Hold the steps after an approval to what was approved."""
    action: Any = step.action
    pack = EvidencePack.from_document(document["pack"])
    run.waits.approved[wait.path] = StandingApproval(wait.path, action, pack, by, wait.since, wait.request)


def stand_again(run: RunContext, step: Step[Any], result: StepResult, approval: Any) -> None:
    """Hold the steps after a restored approval to what was approved, unless that moved and the policy is to continue."""
    path, action = result.path, step.action
    run.waits.end(path)  # what was approved is there again, so no new question is needed
    if not isinstance(action, ApprovalAction) or not isinstance(approval, Approval) or result.started_at is None:
        return
    if not run.judge.evidence_reasons(result):
        pack = evidence.recorded_pack(result)
        run.waits.approved[path] = StandingApproval(path, action, pack, approval.by, result.started_at)


async def check(run: RunContext, path: str) -> None:
    """Look whether what was approved before a step is still what it was.

    Raises:
        Suspended: it is not, and was asked for again: the step does not begin.
    """
    for standing in [each for each in run.waits.approved.values() if is_behind(path, each.path)]:
        if not standing.is_void:
            report = await _looked_at(run, standing)
            if not evidence_reasons(report):
                continue
            if not standing.is_void:  # a member beside this one may have found it meanwhile
                await _void(run, standing, report)
        raise Suspended([path])


async def _looked_at(run: RunContext, standing: StandingApproval) -> VerificationReport:
    """Check what was approved; a file that had to be read is known by its looks from then on."""
    verifier = run.claims.quick
    report = await verifier.verify_evidence_pack(standing.pack, moment=Moment.RESUME)
    read = {
        index
        for index, verdict in enumerate(report.verdicts)
        if verdict.verified and verdict.method == "hash" and verdict.evidence.evidence_type == EvidenceType.FILE_SHA256
    }
    if not report.verified or not read or run.claims.reads_all:
        return report
    claims = list(standing.pack)
    asked = [attrs.evolve(claims[index], state=State.STATED) for index in sorted(read)]
    taken, again = await verifier.commit(EvidencePack(asked))
    if not again.verified:
        return await verifier.verify_evidence_pack(standing.pack, moment=Moment.RESUME)
    for index, claim in zip(sorted(read), taken, strict=True):
        claims[index] = attrs.evolve(claim, state=claims[index].state)
    standing.pack = attrs.evolve(standing.pack, evidence_list=claims)
    return report


async def _void(run: RunContext, standing: StandingApproval, report: VerificationReport) -> None:
    """Ask again, for the present facts; only a resume can ask for facts that are missing now."""
    standing.is_void = True
    path, action, details = standing.path, standing.action, evidence.found_in(report)
    if run.notifier.emit is not None:
        await run.notifier.emit(ApprovalVoided(run.workflow_id, path, standing.by, report.reason, details))
    claims = standing.pack.to_document()
    with contextlib.suppress(Exception):
        committed = await captured(run, action, path)
        claims = committed.document["pack"] if committed.report.verified else claims
    since = max(run.clock.now(), standing.asked_at + timedelta(microseconds=1))  # newer, whatever the clock says
    run.waits.begin(
        Wait(
            path,
            WaitKind.APPROVAL,
            action.name,
            since,
            action.deadline(since),
            next_request(run, standing.request),
            claims,
            identify(action, run.secrets).arguments,
            "; ".join(details) or report.reason,
        )
    )
