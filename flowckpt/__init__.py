"""Resumable pipelines: generator replay whose results carry evidence about the outside world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt._version import __version__
from flowckpt.core.system.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.cli.settings import configured_engine, configured_options
    from flowckpt.core.dsl import now, random, step, uuid, workflow
    from flowckpt.core.dsl.composites import parallel
    from flowckpt.core.records import Approval, CheckpointData, CommandOutput, StepResult
    from flowckpt.core.replay.logger import workflow_logger
    from flowckpt.core.system.secret import Secret
    from flowckpt.core.system.sync_proxy import in_sync
    from flowckpt.engine import RunOptions, WorkflowEngine, WorkflowResult, run_sync
    from flowckpt.engine.determinism import check_determinism
    from flowckpt.engine.loops import CheckpointManager
    from flowckpt.engine.run.checkpointer import Checkpointer
    from flowckpt.engine.values.options import CompositeTrigger, StepCountTrigger, TimeTrigger
    from flowckpt.errors import FlowckptError
    from flowckpt.evidence import Evidence, EvidencePack, EvidenceType, EvidenceVerifier
    from flowckpt.execution.current_step import current_step
    from flowckpt.maintenance.retention import Retention, prune
    from flowckpt.stores import CheckpointStore, FileCheckpointStore, MemoryCheckpointStore, open_store


# The front door is lazy (PEP 562): a program pays for what it uses, and `flowckpt --help` for next to nothing.
_ROOMS = {
    "Approval": "flowckpt.core.records.outputs",
    "CheckpointData": "flowckpt.core.records",
    "CheckpointManager": "flowckpt.engine.loops",
    "CheckpointStore": "flowckpt.stores.base",
    "Checkpointer": "flowckpt.engine.run.checkpointer",
    "CommandOutput": "flowckpt.core.records.outputs",
    "CompositeTrigger": "flowckpt.engine.values.options",
    "Evidence": "flowckpt.evidence",
    "EvidencePack": "flowckpt.evidence",
    "EvidenceType": "flowckpt.evidence",
    "EvidenceVerifier": "flowckpt.evidence",
    "FileCheckpointStore": "flowckpt.stores.file",
    "FlowckptError": "flowckpt.errors",
    "MemoryCheckpointStore": "flowckpt.stores.memory",
    "Retention": "flowckpt.maintenance.retention",
    "RunOptions": "flowckpt.engine",
    "Secret": "flowckpt.core.system.secret",
    "StepCountTrigger": "flowckpt.engine.values.options",
    "StepResult": "flowckpt.core.records",
    "TimeTrigger": "flowckpt.engine.values.options",
    "WorkflowEngine": "flowckpt.engine",
    "WorkflowResult": "flowckpt.engine.values.result",
    "check_determinism": "flowckpt.engine.determinism",
    "configured_engine": "flowckpt.cli.settings",
    "configured_options": "flowckpt.cli.settings",
    "current_step": "flowckpt.execution.current_step",
    "in_sync": "flowckpt.core.system.sync_proxy",
    "now": "flowckpt.core.dsl",
    "open_store": "flowckpt.stores",
    "parallel": "flowckpt.core.dsl.composites",
    "prune": "flowckpt.maintenance.retention",
    "random": "flowckpt.core.dsl",
    "run_sync": "flowckpt.engine",
    "step": "flowckpt.core.dsl",
    "uuid": "flowckpt.core.dsl",
    "workflow": "flowckpt.core.dsl",
    "workflow_logger": "flowckpt.core.replay.logger",
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
