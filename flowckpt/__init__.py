"""Resumable pipelines: generator replay whose results carry evidence about the outside world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt._version import __version__
from flowckpt.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.checkpoint import Approval, CheckpointData, CommandOutput, StepResult
    from flowckpt.checkpointer import Checkpointer
    from flowckpt.configured import configured_engine, configured_options
    from flowckpt.dsl import now, random, step, uuid, workflow
    from flowckpt.dsl.parallel import parallel
    from flowckpt.engine import RunOptions, WorkflowEngine, WorkflowResult, run_sync
    from flowckpt.engine.determinism import check_determinism
    from flowckpt.errors import FlowckptError
    from flowckpt.evidence import Evidence, EvidencePack, EvidenceType, EvidenceVerifier
    from flowckpt.execution.current_step import current_step
    from flowckpt.manager import CheckpointManager
    from flowckpt.replay.silence import workflow_logger
    from flowckpt.retention import Retention, prune
    from flowckpt.secret import Secret
    from flowckpt.stores import CheckpointStore, FileCheckpointStore, MemoryCheckpointStore, open_store
    from flowckpt.sync_door import in_sync
    from flowckpt.triggers import CompositeTrigger, StepCountTrigger, TimeTrigger

# The front door is lazy (PEP 562): a program pays for what it uses, and `flowckpt --help` for next to nothing.
_ROOMS = {
    "Approval": "flowckpt.checkpoint.approval",
    "CheckpointData": "flowckpt.checkpoint",
    "CheckpointManager": "flowckpt.manager",
    "CheckpointStore": "flowckpt.stores.base",
    "Checkpointer": "flowckpt.checkpointer",
    "CommandOutput": "flowckpt.checkpoint.command_output",
    "CompositeTrigger": "flowckpt.triggers",
    "Evidence": "flowckpt.evidence",
    "EvidencePack": "flowckpt.evidence",
    "EvidenceType": "flowckpt.evidence",
    "EvidenceVerifier": "flowckpt.evidence",
    "FileCheckpointStore": "flowckpt.stores.file",
    "FlowckptError": "flowckpt.errors",
    "MemoryCheckpointStore": "flowckpt.stores.memory",
    "Retention": "flowckpt.retention",
    "RunOptions": "flowckpt.engine",
    "Secret": "flowckpt.secret",
    "StepCountTrigger": "flowckpt.triggers",
    "StepResult": "flowckpt.checkpoint",
    "TimeTrigger": "flowckpt.triggers",
    "WorkflowEngine": "flowckpt.engine",
    "WorkflowResult": "flowckpt.engine.result",
    "check_determinism": "flowckpt.engine.determinism",
    "configured_engine": "flowckpt.configured",
    "configured_options": "flowckpt.configured",
    "current_step": "flowckpt.execution.current_step",
    "in_sync": "flowckpt.sync_door",
    "now": "flowckpt.dsl",
    "open_store": "flowckpt.stores",
    "parallel": "flowckpt.dsl.parallel",
    "prune": "flowckpt.retention",
    "random": "flowckpt.dsl",
    "run_sync": "flowckpt.engine",
    "step": "flowckpt.dsl",
    "uuid": "flowckpt.dsl",
    "workflow": "flowckpt.dsl",
    "workflow_logger": "flowckpt.replay.silence",
}

__all__ = [
    "Approval",
    "CheckpointData",
    "CheckpointManager",
    "CheckpointStore",
    "Checkpointer",
    "CommandOutput",
    "CompositeTrigger",
    "Evidence",
    "EvidencePack",
    "EvidenceType",
    "EvidenceVerifier",
    "FileCheckpointStore",
    "FlowckptError",
    "MemoryCheckpointStore",
    "Retention",
    "RunOptions",
    "Secret",
    "StepCountTrigger",
    "StepResult",
    "TimeTrigger",
    "WorkflowEngine",
    "WorkflowResult",
    "__version__",
    "check_determinism",
    "configured_engine",
    "configured_options",
    "current_step",
    "in_sync",
    "now",
    "open_store",
    "parallel",
    "prune",
    "random",
    "run_sync",
    "step",
    "uuid",
    "workflow",
    "workflow_logger",
]

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
