"""Resumable pipelines: generator replay whose results carry evidence about the outside world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt._version import __version__
from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.cli.hooks import Hooks
    from flowckpt.cli.settings import configured_engine, configured_options
    from flowckpt.core.codec import register_type
    from flowckpt.core.dsl import Step, Workflow, continue_as, now, patched, random, step, uuid, workflow
    from flowckpt.core.dsl.composites import parallel
    from flowckpt.core.records import (
        CheckpointData,
        CheckpointRef,
        History,
        HistoryView,
        Owner,
        PartialState,
        Reason,
        RunInfo,
        Signal,
        Status,
        StepError,
        StepResult,
        Wait,
        WaitKind,
    )
    from flowckpt.core.records.outputs import Approval, CommandOutput
    from flowckpt.core.replay.logger import workflow_logger
    from flowckpt.core.system.blocking import InSync, in_sync
    from flowckpt.core.system.secret import Secret
    from flowckpt.engine import RunOptions, WorkflowEngine
    from flowckpt.engine.determinism import DeterminismReport, check_determinism
    from flowckpt.engine.dry.time_travel import Moment, RunHistory
    from flowckpt.engine.history.checkpoints import RolledBack
    from flowckpt.engine.history.fork import Forked
    from flowckpt.engine.loops import CheckpointManager, CommittedStep, RestoredTask, StartedStep, TaskCheckpoint
    from flowckpt.engine.rules.plan import Decision, PlannedStep, ResumePlan
    from flowckpt.engine.run.checkpointer import Checkpointer
    from flowckpt.engine.run.live import Published
    from flowckpt.engine.run.resumption import crash_loop
    from flowckpt.engine.session.control import Cancelled
    from flowckpt.engine.session.respond import Sent
    from flowckpt.engine.values.options import (
        CompositeTrigger,
        Progress,
        StepCountTrigger,
        TimeTrigger,
        Trigger,
        asks_for_checkpoint,
    )
    from flowckpt.engine.values.result import StepCounts, WorkflowResult
    from flowckpt.errors import FlowckptError
    from flowckpt.evidence import Evidence, EvidencePack, EvidenceType, EvidenceVerifier
    from flowckpt.execution.current_step import CurrentStep, current_step, publish
    from flowckpt.execution.executors.base import WayUp, way_up
    from flowckpt.execution.executors.dask import DaskExecutor
    from flowckpt.execution.executors.processes import ProcessExecutor
    from flowckpt.execution.interrupts import RunInterrupted
    from flowckpt.execution.remote.executors import open_executor
    from flowckpt.front import resume, resume_sync, run, run_sync
    from flowckpt.maintenance.mirror import MirroredStore
    from flowckpt.maintenance.prune import prune
    from flowckpt.maintenance.retention import OnSuccess, Retention
    from flowckpt.stores import open_store
    from flowckpt.stores.adapted import CheckpointStore
    from flowckpt.stores.file import FileCheckpointStore
    from flowckpt.stores.memory import MemoryCheckpointStore


# The front door is lazy (PEP 562): a program pays for what it uses, and `flowckpt --help` for next to nothing.
_EXPORTS = {
    "flowckpt.front": "resume resume_sync run run_sync",
    "flowckpt.cli.hooks": "Hooks",
    "flowckpt.cli.settings": "configured_engine configured_options",
    "flowckpt.core.codec": "register_type",
    "flowckpt.core.dsl": "Step Workflow continue_as now patched random step uuid workflow",
    "flowckpt.core.dsl.composites": "parallel",
    "flowckpt.core.records": "CheckpointData CheckpointRef History HistoryView Owner PartialState Reason RunInfo Signal Status "
    "StepError StepResult Wait WaitKind",
    "flowckpt.core.records.outputs": "Approval CommandOutput",
    "flowckpt.core.replay.logger": "workflow_logger",
    "flowckpt.core.system.secret": "Secret",
    "flowckpt.core.system.blocking": "InSync in_sync",
    "flowckpt.engine": "RunOptions WorkflowEngine",
    "flowckpt.engine.determinism": "DeterminismReport check_determinism",
    "flowckpt.engine.history.fork": "Forked",
    "flowckpt.engine.history.checkpoints": "RolledBack",
    "flowckpt.engine.loops": "StartedStep CheckpointManager CommittedStep RestoredTask TaskCheckpoint",
    "flowckpt.engine.dry.time_travel": "Moment RunHistory",
    "flowckpt.engine.rules.plan": "Decision PlannedStep ResumePlan",
    "flowckpt.engine.run.checkpointer": "Checkpointer",
    "flowckpt.engine.run.live": "Published",
    "flowckpt.engine.run.resumption": "crash_loop",
    "flowckpt.engine.session.control": "Cancelled",
    "flowckpt.engine.session.respond": "Sent",
    "flowckpt.engine.values.options": "CompositeTrigger Progress StepCountTrigger TimeTrigger Trigger asks_for_checkpoint",
    "flowckpt.engine.values.result": "StepCounts WorkflowResult",
    "flowckpt.errors": "FlowckptError",
    "flowckpt.evidence": "Evidence EvidencePack EvidenceType EvidenceVerifier",
    "flowckpt.execution.current_step": "CurrentStep current_step publish",
    "flowckpt.execution.executors.dask": "DaskExecutor",
    "flowckpt.execution.executors.base": "WayUp way_up",
    "flowckpt.execution.remote.executors": "open_executor",
    "flowckpt.execution.executors.processes": "ProcessExecutor",
    "flowckpt.execution.interrupts": "RunInterrupted",
    "flowckpt.maintenance.mirror": "MirroredStore",
    "flowckpt.maintenance.prune": "prune",
    "flowckpt.maintenance.retention": "OnSuccess Retention",
    "flowckpt.stores": "open_store",
    "flowckpt.stores.adapted": "CheckpointStore",
    "flowckpt.stores.file": "FileCheckpointStore",
    "flowckpt.stores.memory": "MemoryCheckpointStore",
}

# fmt: off
__all__ = [
    "Approval",
    "Cancelled",
    "CheckpointData",
    "CheckpointManager",
    "CheckpointRef",
    "CheckpointStore",
    "Checkpointer",
    "CommandOutput",
    "CommittedStep",
    "CompositeTrigger",
    "CurrentStep",
    "DaskExecutor",
    "Decision",
    "DeterminismReport",
    "Evidence",
    "EvidencePack",
    "EvidenceType",
    "EvidenceVerifier",
    "FileCheckpointStore",
    "FlowckptError",
    "Forked",
    "History",
    "HistoryView",
    "Hooks",
    "InSync",
    "MemoryCheckpointStore",
    "MirroredStore",
    "Moment",
    "OnSuccess",
    "Owner",
    "PartialState",
    "PlannedStep",
    "ProcessExecutor",
    "Progress",
    "Published",
    "Reason",
    "RestoredTask",
    "ResumePlan",
    "Retention",
    "RolledBack",
    "RunHistory",
    "RunInfo",
    "RunInterrupted",
    "RunOptions",
    "Secret",
    "Sent",
    "Signal",
    "StartedStep",
    "Status",
    "Step",
    "StepCountTrigger",
    "StepCounts",
    "StepError",
    "StepResult",
    "TaskCheckpoint",
    "TimeTrigger",
    "Trigger",
    "Wait",
    "WaitKind",
    "WayUp",
    "Workflow",
    "WorkflowEngine",
    "WorkflowResult",
    "__version__",
    "asks_for_checkpoint",
    "check_determinism",
    "configured_engine",
    "configured_options",
    "continue_as",
    "crash_loop",
    "current_step",
    "in_sync",
    "now",
    "open_executor",
    "open_store",
    "parallel",
    "patched",
    "prune",
    "publish",
    "random",
    "register_type",
    "resume",
    "resume_sync",
    "run",
    "run_sync",
    "step",
    "uuid",
    "way_up",
    "workflow",
    "workflow_logger",
]
# fmt: on

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, __all__, globals())
