"""The engine: it asks replay for the next step, executes it, and hands the outcome back."""

from flowckpt.engine.engine import WorkflowEngine, run_sync
from flowckpt.engine.options import RunOptions
from flowckpt.engine.result import StepCounts, WorkflowResult

__all__ = ["RunOptions", "StepCounts", "WorkflowEngine", "WorkflowResult", "run_sync"]
