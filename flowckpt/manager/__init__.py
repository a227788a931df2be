"""Checkpoints for plain loops: steps that a program begins and commits by itself, without the workflow language."""

from flowckpt.manager.checkpoint_manager import CheckpointManager
from flowckpt.manager.records import BegunStep, CommittedStep, RestoredTask, TaskCheckpoint

__all__ = ["BegunStep", "CheckpointManager", "CommittedStep", "RestoredTask", "TaskCheckpoint"]
