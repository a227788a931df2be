"""The records of a run: results, their history, and the checkpoints that hold them."""

from flowckpt.checkpoint.data import CheckpointData, Reason, Status
from flowckpt.checkpoint.history import History, HistoryView
from flowckpt.checkpoint.result import LazyValue, StepError, StepResult

__all__ = [
    "CheckpointData",
    "History",
    "HistoryView",
    "LazyValue",
    "Reason",
    "Status",
    "StepError",
    "StepResult",
]
