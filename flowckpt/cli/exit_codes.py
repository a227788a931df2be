"""The exit codes of the command: one table."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from flowckpt import errors

if TYPE_CHECKING:
    from flowckpt.engine import WorkflowResult
    from flowckpt.engine.rules.plan import ResumePlan


class ExitCode(IntEnum):
    """The exit codes; a promise to scripts."""

    DONE = 0
    WORKFLOW_FAILED = 1
    USAGE = 2
    SUSPENDED = 3
    STALE = 10
    CORRUPT = 11
    NOT_FOUND = 12
    STORE_FAILED = 13
    MISMATCH = 14
    IN_DOUBT = 15
    INTERNAL = 70
    OUT_OF_MEMORY = 71
    OUTPUT_FAILED = 74
    LOCKED = 75
    SIGHUP = 129
    SIGINT = 130
    OUTPUT_CLOSED = 141
    SIGTERM = 143


_BY_ERROR: dict[type[BaseException], ExitCode] = {
    errors.FlowckptError: ExitCode.WORKFLOW_FAILED,
    errors.WorkflowDefinitionError: ExitCode.USAGE,
    errors.StepDefinitionError: ExitCode.USAGE,
    errors.TargetError: ExitCode.USAGE,
    errors.InputError: ExitCode.USAGE,
    errors.SettingError: ExitCode.USAGE,
    errors.EncodingError: ExitCode.USAGE,  # an input; a step's output that cannot be recorded is a failed workflow
    errors.RunExistsError: ExitCode.USAGE,
    errors.SignalRefusedError: ExitCode.USAGE,
    errors.RunSuspendedError: ExitCode.SUSPENDED,
    errors.StoreSpecError: ExitCode.USAGE,
    errors.UntrustedStoreError: ExitCode.USAGE,
    errors.StoreAbilityError: ExitCode.USAGE,
    errors.SourceUnreadableError: ExitCode.USAGE,
    errors.KeyFileError: ExitCode.USAGE,
    errors.KeyMissingError: ExitCode.USAGE,
    errors.WrongKeyError: ExitCode.USAGE,
    errors.ExecutorError: ExitCode.USAGE,  # before a run; one that a step fails with is a failed workflow
    errors.StaleStepError: ExitCode.STALE,
    errors.ApprovalStaleError: ExitCode.STALE,
    errors.StaleCheckpointError: ExitCode.STALE,
    errors.CheckpointCorruptedError: ExitCode.CORRUPT,
    errors.ForeignRecordError: ExitCode.CORRUPT,
    errors.UnauthenticatedRecordError: ExitCode.CORRUPT,
    errors.UnsupportedSchemaError: ExitCode.CORRUPT,
    errors.ImportRefusedError: ExitCode.CORRUPT,
    errors.CheckpointNotFoundError: ExitCode.NOT_FOUND,
    errors.StepNotFoundError: ExitCode.NOT_FOUND,
    errors.CheckpointStorageError: ExitCode.STORE_FAILED,
    errors.SaveConflictError: ExitCode.STORE_FAILED,
    errors.InputMismatchError: ExitCode.MISMATCH,
    errors.WorkflowChangedError: ExitCode.MISMATCH,
    errors.DecodingError: ExitCode.MISMATCH,  # a recorded value no longer fits the program's type
    errors.StepInDoubtError: ExitCode.IN_DOUBT,
    errors.CrashLoopError: ExitCode.IN_DOUBT,  # like a doubt: a person must decide
    errors.RunLockedError: ExitCode.LOCKED,
    errors.RunMovedOnError: ExitCode.LOCKED,
    errors.RunCancelledError: ExitCode.SIGTERM,
    errors.RequestPendingError: ExitCode.LOCKED,
    errors.NoReplyError: ExitCode.LOCKED,
    errors.CancelRefusedError: ExitCode.USAGE,
    errors.FencedError: ExitCode.LOCKED,
}


def code_of_error(error: BaseException) -> ExitCode:
    """Return the code for an error that ended the command."""
    for cls in type(error).__mro__:
        if cls in _BY_ERROR:
            return _BY_ERROR[cls]
    return ExitCode.INTERNAL


def code_of_result(result: WorkflowResult, *, signal_name: str = "", continue_on_save_error: bool = False) -> ExitCode:
    """Return the code for how a run ended.

    Args:
        result: how it ended.
        signal_name: the signal that stopped it (`SIGINT`, `SIGTERM` or `SIGHUP`), if one did.
        continue_on_save_error: whether the run continues when a checkpoint cannot be saved: then the code reports the run's
            own end, saved or not. Only a saved run counts as stopped and resumable.
    """
    if isinstance(result.error, errors.CheckpointCorruptedError) and not result.is_saved:
        return ExitCode.CORRUPT
    is_own_end = continue_on_save_error and result.status in ("completed", "failed")
    if isinstance(result.error, errors.CheckpointStorageError) or not (result.is_saved or is_own_end):
        return ExitCode.STORE_FAILED
    if signal_name and result.status != "completed":  # a signal after the end stopped nothing
        return ExitCode[signal_name]
    if isinstance(
        result.error,
        errors.StaleStepError | errors.StepInDoubtError | errors.RunCancelledError | errors.UnknownExecutorError,
    ):  # found out on the way
        return code_of_error(result.error)
    by_status = {
        "completed": ExitCode.DONE,
        "suspended": ExitCode.SUSPENDED,
        "cancelled": ExitCode.SIGINT,
    }
    return by_status.get(result.status.value, ExitCode.WORKFLOW_FAILED)


def code_of_plan(plan: ResumePlan) -> ExitCode:
    """Return the exit code of a plan: that of the resume if it would stop, else whether anything is stale."""
    if plan.stops:
        return code_of_stop(plan)
    return ExitCode.STALE if plan.stale else ExitCode.DONE


def code_of_stop(plan: ResumePlan) -> ExitCode:
    """Return the exit code of a resume that would stop."""
    if plan.is_crash_loop:
        return ExitCode.IN_DOUBT
    if plan.is_final:
        return ExitCode.WORKFLOW_FAILED
    if plan.is_undoing:
        return ExitCode.MISMATCH if plan.stopped_by else ExitCode.WORKFLOW_FAILED
    step = plan.step(plan.stopped_by)
    if step is None:
        return ExitCode.MISMATCH
    return ExitCode.IN_DOUBT if step.decision == "in_doubt" else ExitCode.STALE
