"""The engine: it asks replay for the next step, executes it, and hands the outcome back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.engine.engine import WorkflowEngine, run_sync
from flowckpt.engine.options import RunOptions
from flowckpt.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.engine.result import StepCounts, WorkflowResult

_ROOMS = {"StepCounts": "flowckpt.engine.result", "WorkflowResult": "flowckpt.engine.result"}

__all__ = ["RunOptions", "StepCounts", "WorkflowEngine", "WorkflowResult", "run_sync"]

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
