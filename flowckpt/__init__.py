"""Resumable pipelines: generator replay whose results carry evidence about the outside world."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt._version import __version__ as __version__
    from flowckpt.cli.hooks import Hooks as Hooks
    from flowckpt.cli.settings import configured_engine as configured_engine
    from flowckpt.cli.settings import configured_options as configured_options
    from flowckpt.core.codec import register_type as register_type
    from flowckpt.core.dsl import Step as Step
    from flowckpt.core.dsl import Workflow as Workflow
    from flowckpt.core.dsl import continue_as as continue_as
    from flowckpt.core.dsl import now as now
    from flowckpt.core.dsl import patched as patched
    from flowckpt.core.dsl import random as random
    from flowckpt.core.dsl import step as step
    from flowckpt.core.dsl import uuid as uuid
    from flowckpt.core.dsl import workflow as workflow
    from flowckpt.core.dsl.composites import parallel as parallel
    from flowckpt.core.dsl.workflow import workflow_logger as workflow_logger
    from flowckpt.core.records import CheckpointData as CheckpointData
    from flowckpt.core.records import CheckpointRef as CheckpointRef
    from flowckpt.core.records import History as History
    from flowckpt.core.records import HistoryView as HistoryView
    from flowckpt.core.records import Owner as Owner
    from flowckpt.core.records import PartialState as PartialState
    from flowckpt.core.records import Reason as Reason
    from flowckpt.core.records import RunInfo as RunInfo
    from flowckpt.core.records import Signal as Signal
    from flowckpt.core.records import Status as Status
    from flowckpt.core.records import StepError as StepError
    from flowckpt.core.records import StepResult as StepResult
    from flowckpt.core.records import Wait as Wait
    from flowckpt.core.records import WaitKind as WaitKind
    from flowckpt.core.records.outputs import Approval as Approval
    from flowckpt.core.records.outputs import CommandOutput as CommandOutput
    from flowckpt.core.system.blocking import InSync as InSync
    from flowckpt.core.system.blocking import in_sync as in_sync
    from flowckpt.core.system.secret import Secret as Secret
    from flowckpt.engine import RunOptions as RunOptions
    from flowckpt.engine import WorkflowEngine as WorkflowEngine
    from flowckpt.engine.determinism import DeterminismReport as DeterminismReport
    from flowckpt.engine.determinism import check_determinism as check_determinism
    from flowckpt.engine.dry.time_travel import Moment as Moment
    from flowckpt.engine.dry.time_travel import RunHistory as RunHistory
    from flowckpt.engine.history.checkpoints import RolledBack as RolledBack
    from flowckpt.engine.history.fork import Forked as Forked
    from flowckpt.engine.loops import CheckpointManager as CheckpointManager
    from flowckpt.engine.loops import CommittedStep as CommittedStep
    from flowckpt.engine.loops import RestoredTask as RestoredTask
    from flowckpt.engine.loops import StartedStep as StartedStep
    from flowckpt.engine.loops import TaskCheckpoint as TaskCheckpoint
    from flowckpt.engine.rules.plan import Decision as Decision
    from flowckpt.engine.rules.plan import PlannedStep as PlannedStep
    from flowckpt.engine.rules.plan import ResumePlan as ResumePlan
    from flowckpt.engine.run.checkpointer import Checkpointer as Checkpointer
    from flowckpt.engine.run.live import Published as Published
    from flowckpt.engine.run.resumption import crash_loop as crash_loop
    from flowckpt.engine.session.control import Cancelled as Cancelled
    from flowckpt.engine.session.respond import Sent as Sent
    from flowckpt.engine.values.options import CompositeTrigger as CompositeTrigger
    from flowckpt.engine.values.options import Progress as Progress
    from flowckpt.engine.values.options import StepCountTrigger as StepCountTrigger
    from flowckpt.engine.values.options import TimeTrigger as TimeTrigger
    from flowckpt.engine.values.options import Trigger as Trigger
    from flowckpt.engine.values.options import asks_for_checkpoint as asks_for_checkpoint
    from flowckpt.engine.values.result import StepCounts as StepCounts
    from flowckpt.engine.values.result import WorkflowResult as WorkflowResult
    from flowckpt.errors import FlowckptError as FlowckptError
    from flowckpt.evidence import Evidence as Evidence
    from flowckpt.evidence import EvidencePack as EvidencePack
    from flowckpt.evidence import EvidenceType as EvidenceType
    from flowckpt.evidence import EvidenceVerifier as EvidenceVerifier
    from flowckpt.execution.current_step import CurrentStep as CurrentStep
    from flowckpt.execution.current_step import current_step as current_step
    from flowckpt.execution.current_step import publish as publish
    from flowckpt.execution.executors.base import WayUp as WayUp
    from flowckpt.execution.executors.base import way_up as way_up
    from flowckpt.execution.executors.dask import DaskExecutor as DaskExecutor
    from flowckpt.execution.executors.processes import ProcessExecutor as ProcessExecutor
    from flowckpt.execution.interrupts import RunInterrupted as RunInterrupted
    from flowckpt.execution.remote.executors import open_executor as open_executor
    from flowckpt.front import resume as resume
    from flowckpt.front import resume_sync as resume_sync
    from flowckpt.front import run as run
    from flowckpt.front import run_sync as run_sync
    from flowckpt.maintenance.mirror import MirroredStore as MirroredStore
    from flowckpt.maintenance.prune import prune as prune
    from flowckpt.maintenance.retention import OnSuccess as OnSuccess
    from flowckpt.maintenance.retention import Retention as Retention
    from flowckpt.stores import open_store as open_store
    from flowckpt.stores.adapted import CheckpointStore as CheckpointStore
    from flowckpt.stores.file import FileCheckpointStore as FileCheckpointStore
    from flowckpt.stores.memory import MemoryCheckpointStore as MemoryCheckpointStore


# Lazy (PEP 562): a program imports only what it uses, and `flowckpt --help` next to nothing.
_EXPORTS = {
    "flowckpt._version": "__version__",
    "flowckpt.front": "resume resume_sync run run_sync",
    "flowckpt.cli.hooks": "Hooks",
    "flowckpt.cli.settings": "configured_engine configured_options",
    "flowckpt.core.codec": "register_type",
    "flowckpt.core.dsl": "Step Workflow continue_as now patched random step uuid workflow",
    "flowckpt.core.dsl.composites": "parallel",
    "flowckpt.core.dsl.workflow": "workflow_logger",
    "flowckpt.core.records": "CheckpointData CheckpointRef History HistoryView Owner PartialState Reason RunInfo Signal Status "
    "StepError StepResult Wait WaitKind",
    "flowckpt.core.records.outputs": "Approval CommandOutput",
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

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, globals())
