"""The records of a run: results, their history, and the checkpoints that hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.records.checkpoint import CheckpointData, Reason, Status
from flowckpt.core.records.result import History, HistoryView, LazyValue, StepError, StepResult
from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.core.records import generation as generation
    from flowckpt.core.records import listing as listing
    from flowckpt.core.records import outputs as outputs
    from flowckpt.core.records import wait as wait
    from flowckpt.core.records.listing import CheckpointRef, Owner, RunInfo, Selection
    from flowckpt.core.records.outputs import Approval, CommandOutput
    from flowckpt.core.records.result import PartialState
    from flowckpt.core.records.wait import Signal, Wait, WaitKind


# Imported on first use: a run can start without them.
_EXPORTS = {
    "flowckpt.core.records.listing": "CheckpointRef Owner RunInfo Selection",
    "flowckpt.core.records.outputs": "Approval CommandOutput",
    "flowckpt.core.records.result": "PartialState",
    "flowckpt.core.records.wait": "Signal Wait WaitKind",
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

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, globals(), modules="generation listing outputs wait")
