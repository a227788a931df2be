"""The engine: it gets the next step from replay, executes it, and returns the outcome to replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports
from flowckpt.engine.engine import WorkflowEngine
from flowckpt.engine.values.options import RunOptions

if TYPE_CHECKING:
    from flowckpt.engine.values.result import StepCounts, WorkflowResult


_EXPORTS = {
    "flowckpt.engine.values.result": "StepCounts WorkflowResult",
}

__all__ = ["RunOptions", "StepCounts", "WorkflowEngine", "WorkflowResult"]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, globals())
