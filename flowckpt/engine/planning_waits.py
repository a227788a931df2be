"""The plan of a step that waits: what was sent for it, and whether what is to be approved is as it was asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.checkpoint.wait import Wait
from flowckpt.evidence.model import EvidencePack
from flowckpt.plan.judge import evidence_reasons
from flowckpt.plan.reason import Reason
from flowckpt.plan.waiting import message_for, wait_reason

if TYPE_CHECKING:
    from flowckpt.engine.planning import Planning


async def waiting_reason(planning: Planning, wait: Wait) -> Reason:
    """Return what a resume finds at a step that waits; what was sent for it is taken, so that no other one gets it.

    Args:
        planning: the plan.
        wait: the wait.
    """
    message = message_for(wait, planning.messages)
    moved: tuple[str, ...] = ()
    if wait.claims:
        report = await planning.verifying().verify_evidence_pack(EvidencePack.from_document(wait.claims))
        if message is not None or any(each.is_against and each.can_tell for each in report.verdicts):
            moved = tuple(reason.detail for reason in evidence_reasons(report))
    if message is not None:
        planning.messages.remove(message)
    return wait_reason(wait, message, tuple(map(planning.resumption.judge.secrets.text, moved)))
