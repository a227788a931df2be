"""Checkpoints for plain loops: steps that a program begins and commits by itself, without the workflow language.

The names are imported when they are first used: a run of a workflow asks only whether a record is one of a plain loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.engine.loops.manager import CheckpointManager
    from flowckpt.maintenance.task_log import BegunStep, CommittedStep, RestoredTask, TaskCheckpoint


_ROOMS = {
    "flowckpt.engine.loops.manager": "CheckpointManager",
    "flowckpt.maintenance.task_log": "BegunStep CommittedStep RestoredTask TaskCheckpoint",
}

__all__ = ["BegunStep", "CheckpointManager", "CommittedStep", "RestoredTask", "TaskCheckpoint"]

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
