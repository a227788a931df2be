"""The records of a run: results, their history, and the checkpoints that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.checkpoint.data import CheckpointData, Reason, Status
from flowckpt.checkpoint.history import History, HistoryView
from flowckpt.checkpoint.result import LazyValue, StepError, StepResult
from flowckpt.lazy import front_door

if TYPE_CHECKING:
    from flowckpt.checkpoint.approval import Approval
    from flowckpt.checkpoint.command_output import CommandOutput
    from flowckpt.checkpoint.partial import PartialState
    from flowckpt.checkpoint.reference import CheckpointRef, Owner, RunInfo
    from flowckpt.checkpoint.selection import Selection
    from flowckpt.checkpoint.signal import Signal
    from flowckpt.checkpoint.wait import Wait, WaitKind

# The rarer records: a run needs none of them to start.
_ROOMS = {
    "Approval": "flowckpt.checkpoint.approval",
    "CheckpointRef": "flowckpt.checkpoint.reference",
    "CommandOutput": "flowckpt.checkpoint.command_output",
    "Owner": "flowckpt.checkpoint.reference",
    "PartialState": "flowckpt.checkpoint.partial",
    "RunInfo": "flowckpt.checkpoint.reference",
    "Selection": "flowckpt.checkpoint.selection",
    "Signal": "flowckpt.checkpoint.signal",
    "Wait": "flowckpt.checkpoint.wait",
    "WaitKind": "flowckpt.checkpoint.wait",
}

__all__ = [
    "Approval",
    "CheckpointData",
    "CheckpointRef",
    "CommandOutput",
    "History",
    "HistoryView",
    "LazyValue",
    "Owner",
    "PartialState",
    "Reason",
    "RunInfo",
    "Selection",
    "Signal",
    "Status",
    "StepError",
    "StepResult",
    "Wait",
    "WaitKind",
]

__getattr__, __dir__ = front_door(__name__, _ROOMS, __all__, globals())
