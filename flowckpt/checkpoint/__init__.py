"""The records of a run: results, their history, and the checkpoints that hold them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from flowckpt.checkpoint.data import CheckpointData, Reason, Status
from flowckpt.checkpoint.history import History, HistoryView
from flowckpt.checkpoint.result import LazyValue, StepError, StepResult

if TYPE_CHECKING:
    from flowckpt.checkpoint.command_output import CommandOutput
    from flowckpt.checkpoint.reference import CheckpointRef, Owner, RunInfo

__all__ = [
    "CheckpointData",
    "CheckpointRef",
    "CommandOutput",
    "History",
    "HistoryView",
    "LazyValue",
    "Owner",
    "Reason",
    "RunInfo",
    "Status",
    "StepError",
    "StepResult",
]


def __getattr__(name: str) -> Any:
    """Load the rarer records when one is asked for (PEP 562): a run needs none to start."""
    if name == "CommandOutput":
        return importlib.import_module("flowckpt.checkpoint.command_output").CommandOutput
    if name not in ("CheckpointRef", "Owner", "RunInfo"):
        raise AttributeError(f"module 'flowckpt.checkpoint' has no attribute {name!r}")
    return getattr(importlib.import_module("flowckpt.checkpoint.reference"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
