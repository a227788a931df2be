"""The resume of a run that has ended."""

from __future__ import annotations

from typing import Any

from flowckpt import codec
from flowckpt.checkpoint import CheckpointData, Status
from flowckpt.checkpoint.result import COMPOSITES
from flowckpt.codec.results import plain_tree
from flowckpt.dsl import Workflow
from flowckpt.engine.listening import Tell
from flowckpt.engine.result import StepCounts, WorkflowResult
from flowckpt.lazy import LazyModule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flowckpt import events
else:
    events = LazyModule("flowckpt.events")


class CompletedRun:
    """The resume of a run that has ended: its recorded result, and nothing run or saved.

    Attributes:
        result: how the run ended.
    """

    def __init__(self, workflow: Workflow[Any, Any], workflow_id: str, latest: CheckpointData) -> None:
        tree = plain_tree(latest.held_output, "output")
        self.result = WorkflowResult(
            workflow_id,
            workflow.name,
            Status.COMPLETED,
            codec.decode(tree, workflow.output_type, place="the workflow's output"),
            latest.attempt,
            StepCounts(restored=sum(each.step_type not in COMPOSITES for each in latest.step_results)),
            0.0,
            last_saved=latest.checkpoint_id,
        )
        self._checkpoint_id = latest.checkpoint_id

    async def run(self, tell: Tell | None = None) -> None:
        """Tell that it was resumed, and that it was complete.

        Args:
            tell: told so.
        """
        if tell is not None:
            result = self.result
            run, restored = result.workflow_id, result.steps.restored
            await tell(events.WorkflowResumed(run, result.workflow_name, result.attempt, restored, self._checkpoint_id))
            await tell(events.WorkflowCompleted(run, result.output, 0, restored, 0.0))
