"""Checkpoints for plain loops: steps that a program begins and commits by itself, without the workflow language.

The names are imported when they are first used: a run of a workflow asks only whether a record is one of a plain loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.engine.loops.manager import CheckpointManager
    from flowckpt.maintenance.task_log import CommittedStep, RestoredTask, StartedStep, TaskCheckpoint


_EXPORTS = {
    "flowckpt.engine.loops.manager": "CheckpointManager",
    "flowckpt.maintenance.task_log": "StartedStep CommittedStep RestoredTask TaskCheckpoint",
}

__all__ = ["CheckpointManager", "CommittedStep", "RestoredTask", "StartedStep", "TaskCheckpoint"]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, __all__, globals())
