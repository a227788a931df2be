"""Checkpoints for plain loops: a program starts and commits steps itself, without the workflow language."""

from flowckpt.engine.loops.manager import CheckpointManager
from flowckpt.maintenance.task_log import CommittedStep, RestoredTask, StartedStep, TaskCheckpoint

__all__ = ["CheckpointManager", "CommittedStep", "RestoredTask", "StartedStep", "TaskCheckpoint"]
