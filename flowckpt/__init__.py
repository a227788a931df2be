"""Resumable pipelines: generator replay whose results carry evidence about the outside world."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowckpt._version import __version__

if TYPE_CHECKING:
    from flowckpt.checkpoint import CheckpointData, CommandOutput, StepResult
    from flowckpt.dsl import step, workflow
    from flowckpt.engine import RunOptions, WorkflowEngine, WorkflowResult, run_sync
    from flowckpt.errors import FlowckptError
    from flowckpt.evidence import Evidence, EvidencePack, EvidenceType, EvidenceVerifier
    from flowckpt.execution.current_step import current_step
    from flowckpt.stores import CheckpointStore, FileCheckpointStore, MemoryCheckpointStore, open_store

# The front door is lazy (PEP 562): a program pays for what it uses, and `flowckpt --help` for next to nothing.
_ROOMS = {
    "CheckpointData": "flowckpt.checkpoint",
    "CheckpointStore": "flowckpt.stores.base",
    "CommandOutput": "flowckpt.checkpoint.command_output",
    "Evidence": "flowckpt.evidence",
    "EvidencePack": "flowckpt.evidence",
    "EvidenceType": "flowckpt.evidence",
    "EvidenceVerifier": "flowckpt.evidence",
    "FileCheckpointStore": "flowckpt.stores.file",
    "FlowckptError": "flowckpt.errors",
    "MemoryCheckpointStore": "flowckpt.stores.memory",
    "RunOptions": "flowckpt.engine",
    "StepResult": "flowckpt.checkpoint",
    "WorkflowEngine": "flowckpt.engine",
    "WorkflowResult": "flowckpt.engine",
    "current_step": "flowckpt.execution.current_step",
    "open_store": "flowckpt.stores",
    "run_sync": "flowckpt.engine",
    "step": "flowckpt.dsl",
    "workflow": "flowckpt.dsl",
}

__all__ = [
    "CheckpointData",
    "CheckpointStore",
    "CommandOutput",
    "Evidence",
    "EvidencePack",
    "EvidenceType",
    "EvidenceVerifier",
    "FileCheckpointStore",
    "FlowckptError",
    "MemoryCheckpointStore",
    "RunOptions",
    "StepResult",
    "WorkflowEngine",
    "WorkflowResult",
    "__version__",
    "current_step",
    "open_store",
    "run_sync",
    "step",
    "workflow",
]


def __getattr__(name: str) -> Any:
    room = _ROOMS.get(name)
    if room is None:
        raise AttributeError(f"module 'flowckpt' has no attribute {name!r}")
    found = getattr(importlib.import_module(room), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
