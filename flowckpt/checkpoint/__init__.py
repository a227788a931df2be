"""The records of a run: results, their history, and the checkpoints that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.checkpoint.data import CheckpointData, Reason, Status
from flowckpt.checkpoint.history import History, HistoryView
from flowckpt.checkpoint.result import LazyValue, StepError, StepResult
from flowckpt.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.checkpoint.command_output import CommandOutput
    from flowckpt.checkpoint.reference import CheckpointRef, Owner, RunInfo
    from flowckpt.checkpoint.selection import Selection

# The rarer records: a run needs none of them to start.
_ROOMS = {
    "CheckpointRef": "flowckpt.checkpoint.reference",
    "CommandOutput": "flowckpt.checkpoint.command_output",
    "Owner": "flowckpt.checkpoint.reference",
    "RunInfo": "flowckpt.checkpoint.reference",
    "Selection": "flowckpt.checkpoint.selection",
}

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
    "Selection",
    "Status",
    "StepError",
    "StepResult",
]

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
