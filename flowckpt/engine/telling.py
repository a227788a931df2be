"""Events of what was saved and of what was found in the world."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from flowckpt.checkpoint import CheckpointData
from flowckpt.codec.results import encode_time
from flowckpt.errors import FlowckptError
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from flowckpt import events
    from flowckpt.evidence.verdict import VerificationReport
else:
    events = LazyModule("flowckpt.events")

Told: TypeAlias = Callable[[], "events.Event"]
"""Makes an event, where somebody listens."""


def saved_event(workflow_id: str, data: CheckpointData) -> events.CheckpointSaved:
    """Return the event of a checkpoint that is durable.

    Args:
        workflow_id: the run.
        data: the checkpoint.
    """
    return events.CheckpointSaved(workflow_id, data.checkpoint_id, data.sequence, data.reason, len(data.step_results))


def failed_event(workflow_id: str, data: CheckpointData | None, error: FlowckptError) -> events.CheckpointFailed:
    """Return the event of a checkpoint that could not be saved.

    Args:
        workflow_id: the run.
        data: the checkpoint.
        error: why not.
    """
    assert data is not None
    return events.CheckpointFailed(workflow_id, data.checkpoint_id, data.sequence, data.reason, str(error))


def evidence_event(
    workflow_id: str, path: str, report: VerificationReport, moment: str
) -> events.EvidenceVerified | events.EvidenceFailed:
    """Return the event of a step whose claims were checked.

    Args:
        workflow_id: the run.
        path: the step.
        report: the answers.
        moment: `now` after the step, `resume`, or `in_doubt`.
    """
    if report.verified or report.outcome == "no_evidence":
        return events.EvidenceVerified(workflow_id, path, moment, report.verified_count)
    details = tuple(each.error for each in report.verdicts if each.error is not None and each.is_against)
    return events.EvidenceFailed(workflow_id, path, moment, report.reason, details)


def answer_documents(reports: Mapping[str, VerificationReport]) -> tuple[Any, ...]:
    """Return what a checkpoint records of the answers that a resume got.

    Args:
        reports: the answers, by the path of the step whose claims they are.
    """
    return tuple(
        {"path": path, "outcome": str(report.outcome), "verified_at": encode_time(report.verdicts[0].verified_at)}
        for path, report in reports.items()
        if report.verdicts
    )
