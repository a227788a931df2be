"""Every error of flowckpt, in one tree.

The rules of this file:

- Each error says what happened, shows the offending value, and ends with what to do (`remedy`).
- Each carries its data as attributes, so a program need not parse the message.
- Each survives pickling, whatever its signature (`_rebuild`).
- An error of a driver or of the operating system never leaves a port bare: it becomes the `__cause__` of one of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "ApprovalRejectedError",
    "ApprovalStaleError",
    "CancelPendingError",
    "CancelRefusedError",
    "CheckpointCorruptedError",
    "CheckpointNotFoundError",
    "CheckpointStorageError",
    "CommandFailedError",
    "DecodingError",
    "EncodingError",
    "EvidenceCaptureError",
    "EvidenceError",
    "EvidenceNotVerifiedError",
    "ExecutorError",
    "FanOutFailedError",
    "FencedError",
    "FlowckptError",
    "ForeignRecordError",
    "ImportRefusedError",
    "InputError",
    "InputMismatchError",
    "KeyFileError",
    "KeyMissingError",
    "NestedLoopError",
    "NoAsyncioError",
    "NotSendableError",
    "NotUndoableError",
    "ReadOnlyStoreError",
    "RunCancelledError",
    "RunExistsError",
    "RunLockedError",
    "RunMovedOnError",
    "RunParkedError",
    "RunSuspendedError",
    "RunUndoneError",
    "SaveConflictError",
    "SecretMissingError",
    "SettingError",
    "SignalDataError",
    "SignalRefusedError",
    "SourceUnreadableError",
    "StaleCheckpointError",
    "StaleStepError",
    "StepDefinitionError",
    "StepFailedError",
    "StepInDoubtError",
    "StepNotBegunError",
    "StepNotFoundError",
    "StepTimeoutError",
    "StoreAbilityError",
    "StoreSpecError",
    "SuspensionUnsavedError",
    "TargetError",
    "UnauthenticatedRecordError",
    "UnknownExecutorError",
    "UnsupportedFilesystemError",
    "UnsupportedSchemaError",
    "VanishedError",
    "WorkerDiedError",
    "WorkflowChangedError",
    "WorkflowDefinitionError",
    "WrongKeyError",
]


def _rebuild(cls: type[FlowckptError], args: tuple[Any, ...], state: dict[str, Any]) -> FlowckptError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class FlowckptError(Exception):
    """The root of all errors that flowckpt raises.

    Attributes:
        message: what happened, with the offending value.
        remedy: the suggested fix; may be empty.
    """

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}. {self.remedy}" if self.remedy else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


# --- Definitions: the program says something that cannot be ---------------------------------------------------------


class WorkflowDefinitionError(FlowckptError):
    """A workflow definition is invalid; raised by the decorator, or at the invalid `yield`.

    Attributes:
        where: `file:line` of the definition or of the `yield`.
    """

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(f"{message} (at {where})" if where else message, remedy=remedy)
        self.where = where


class StepDefinitionError(FlowckptError):
    """A step definition is invalid: a blank name, no action or two, a lambda, a modifier given twice.

    Attributes:
        step: the step's name as given.
        where: `file:line` of the step, if known.
    """

    def __init__(self, message: str, *, step: str = "", where: str = "", remedy: str = "") -> None:
        super().__init__(f"{message} (at {where})" if where else message, remedy=remedy)
        self.step = step
        self.where = where


class TargetError(FlowckptError):
    """The target of a run (`file.py:workflow`, `package.module:workflow`) cannot be loaded.

    Attributes:
        target: the target as given or as recorded.
    """

    def __init__(self, message: str, *, target: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.target = target


class InputError(FlowckptError):
    """An input is missing, unknown, or does not fit its annotation.

    Attributes:
        parameter: the input's name; empty if several are concerned.
    """

    def __init__(self, message: str, *, parameter: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.parameter = parameter


class SecretMissingError(InputError):
    """A resume needs a secret input that was given at the start; records do not contain its value.

    Attributes:
        workflow_id: the run; empty if unknown.
        names: the missing secret inputs.
    """

    def __init__(self, names: Sequence[str], *, workflow_id: str = "") -> None:
        said = (
            f"the secret input{'s' * (len(names) > 1)} {', '.join(map(repr, names))}" if names else "a recorded secret"
        )
        run = f" of run {workflow_id!r}" if workflow_id else ""
        shell = " ".join(f"-i {name}=@env:{name.upper()}" for name in names or ["NAME"])
        python = ", ".join(f"{name}=…" for name in names or ["NAME"])
        super().__init__(
            f"{said}{run} must be given again: the value of a secret is never recorded",
            parameter=names[0] if names else "",
            remedy=f"Run 'flowckpt resume {shell_word(workflow_id) if workflow_id else 'RUN'} {shell}', or with @file:PATH, "
            f"or with - to be asked; in Python: engine.resume(workflow, workflow_id=…, {python}).",
        )
        self.workflow_id = workflow_id
        self.names = tuple(names)


class SettingError(FlowckptError):
    """An argument or a setting is invalid, or a package is missing.

    Attributes:
        setting: the name of the argument or of the setting.
        source: the environment variable or file of a setting; empty for an argument.
    """

    def __init__(self, message: str, *, setting: str = "", source: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.setting = setting
        self.source = source


# --- Values: something cannot be recorded, or not be read again ------------------------------------------------------


class EncodingError(FlowckptError):
    """A value cannot be stored and restored unchanged.

    Attributes:
        place: the place in the value, such as `output.rows[3].conn`.
        type_name: the type at that place.
    """

    def __init__(self, message: str, *, place: str = "", type_name: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.place = place
        self.type_name = type_name


class DecodingError(FlowckptError):
    """A recorded value cannot be restored as the type that the program now asks for.

    Attributes:
        place: the place in the value.
    """

    def __init__(self, message: str, *, place: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.place = place


# --- Evidence: a claim about the outside world is written wrongly (what the world says is a verdict, never an error) --


class EvidenceError(FlowckptError):
    """A claim, a pack or a verifier is invalid.

    Attributes:
        evidence_type: the kind of the claim; empty if none is concerned.
    """

    def __init__(self, message: str, *, evidence_type: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.evidence_type = evidence_type


class EvidenceCaptureError(EvidenceError):
    """The facts of a claim cannot be captured, because they do not exist.

    Attributes:
        description: the claim; `evidence_type` is its kind.
        detail: what was found instead.
    """

    def __init__(self, *, evidence_type: str, description: str, detail: str) -> None:
        super().__init__(
            f"the facts of {description!r} ({evidence_type}) cannot be captured: {detail}",
            evidence_type=evidence_type,
            remedy="A step's evidence must hold when the step ends: mend the step, or leave the claim out.",
        )
        self.description = description
        self.detail = detail


class EvidenceNotVerifiedError(EvidenceError):
    """The claims of a step do not hold when the step ends.

    Attributes:
        path: the step.
        reason: why the claims together do not hold.
        reasons: the finding for each claim.
    """

    def __init__(self, path: str, *, reason: str, reasons: Sequence[str] = ()) -> None:
        found = "; ".join(reasons)
        super().__init__(
            f"step {path!r} ended, but its evidence does not hold: {reason}" + (f" ({found})" if found else ""),
            remedy="Mend the step so that it leaves behind what it claims, or mend the claim.",
        )
        self.path = path
        self.reason = reason
        self.reasons = tuple(reasons)


# --- Running ---------------------------------------------------------------------------------------------------------


class StepFailedError(FlowckptError):
    """A step failed; raised inside the workflow, at the step's `yield`, and again at each replay.

    It contains only what was recorded, so a replay raises the same error: check `failed_with(KeyError)`, not the cause.

    Attributes:
        path: the step's path.
        error_type: the qualified name of the exception's class; builtins without a module.
        error_bases: the qualified names of the class and its bases, most derived first.
        error_message: `str()` of the exception.
        traceback: the formatted traceback, or an empty string.
        tries: the number of tries.
        remedy: the remedy of the exception, if it is one of flowckpt's own.
    """

    def __init__(
        self,
        path: str,
        *,
        error_type: str,
        error_message: str,
        error_bases: Sequence[str] = (),
        traceback: str = "",
        tries: int = 1,
        remedy: str = "",
    ) -> None:
        said = f": {error_message}" if error_message else ""
        after = f" after {tries} tries" if tries > 1 else ""
        super().__init__(f"step {path!r} failed{after} with {error_type}{said}", remedy=remedy)
        self.path = path
        self.error_type = error_type
        self.error_bases = tuple(error_bases)
        self.error_message = error_message
        self.traceback = traceback
        self.tries = tries

    def _recorded(self) -> tuple[object, ...]:
        """Return what is recorded of it, in the order in which it is given to `__init__`."""
        return (
            self.path,
            self.error_type,
            self.error_message,
            self.error_bases,
            self.traceback,
            self.tries,
            self.remedy,
        )

    def __eq__(self, other: object) -> bool:
        """Tell whether it is the same recorded failure: one that is replayed equals the one that was raised first."""
        if type(other) is not type(self):
            return NotImplemented
        return self._recorded() == other._recorded()

    def __hash__(self) -> int:
        """Hash what is compared."""
        return hash(self._recorded())

    def failed_with(self, *types: type[BaseException]) -> bool:
        """Tell whether the step's exception was an instance of one of these types.

        Args:
            *types: exception classes, compared by module and qualified name with what was recorded.
        """
        names = {type_name(t) for t in types}
        return self.error_type in names or any(base in names for base in self.error_bases)


class FanOutFailedError(StepFailedError):
    """More members of a map or group failed than allowed; raised inside the workflow, at the `yield` of the fan-out.

    Attributes:
        path: the path of the fan-out.
        error_type: the qualified name of this class.
        error_bases: the qualified names of its bases.
        error_message: how many members failed, and the first three failures.
        traceback: an empty string; the causes have their own.
        tries: 1.
        causes: the failure of each failed member, in the order of the members.
    """

    def __init__(
        self,
        path: str,
        *,
        error_type: str,
        error_message: str,
        error_bases: Sequence[str] = (),
        traceback: str = "",
        tries: int = 1,
        causes: Sequence[StepFailedError] = (),
        remedy: str = "",
    ) -> None:
        super().__init__(
            path,
            error_type=error_type,
            error_message=error_message,
            error_bases=error_bases,
            traceback=traceback,
            tries=tries,
            remedy=remedy,
        )
        self.causes = tuple(causes)

    def _recorded(self) -> tuple[object, ...]:
        return (*super()._recorded(), self.causes)

    def failed_with(self, *types: type[BaseException]) -> bool:
        """Tell whether one of the members failed with an instance of one of these types.

        Args:
            *types: exception classes, compared by module and qualified name with what was recorded.
        """
        return super().failed_with(*types) or any(cause.failed_with(*types) for cause in self.causes)


class RunCancelledError(FlowckptError):
    """The run was cancelled by request; the `error` of its result, not a failure.

    Attributes:
        workflow_id: the run.
    """

    def __init__(self, workflow_id: str) -> None:
        super().__init__(
            f"run {workflow_id!r} was cancelled by request",
            remedy=f"'flowckpt resume {shell_word(workflow_id)}' runs again what was undone, and carries on.",
        )
        self.workflow_id = workflow_id


class CancelRefusedError(FlowckptError):
    """A completed run cannot be cancelled; nothing was changed.

    Attributes:
        workflow_id: the run.
    """

    def __init__(self, workflow_id: str) -> None:
        super().__init__(
            f"run {workflow_id!r} has completed, so it cannot be cancelled",
            remedy="Nothing was changed. To go back to an earlier point: "
            f"flowckpt rollback {shell_word(workflow_id)} CHECKPOINT.",
        )
        self.workflow_id = workflow_id


class CancelPendingError(FlowckptError):
    """A live run was asked to stop and has not stopped yet.

    Attributes:
        workflow_id: the run.
        holder: the owner: process, host, since when.
        waited_seconds: how long the command waited.
    """

    def __init__(self, workflow_id: str, *, holder: str, waited_seconds: float) -> None:
        super().__init__(
            f"run {workflow_id!r} was asked to stop, and {holder} has not given it up after {waited_seconds:g} s",
            remedy="It stops as soon as it can, at its next step at the latest: "
            f"'flowckpt show {shell_word(workflow_id)}' says when it is "
            "cancelled. Where its process hangs, end the process and cancel again.",
        )
        self.workflow_id = workflow_id
        self.holder = holder
        self.waited_seconds = waited_seconds


class RunUndoneError(FlowckptError):
    """A resume has finished the rollback of a failed or cancelled run, and ends the run as it had ended.

    Attributes:
        workflow_id: the run.
        status: how the run had ended: `failed` or `cancelled`.
        is_left: whether the remaining steps were not undone, because of `--no-rollback`.
    """

    def __init__(self, workflow_id: str, *, status: str, is_left: bool = False) -> None:
        had = "had failed" if status == "failed" else f"was {status}"
        now = "what was left is not undone, as asked for" if is_left else "that is finished now"
        super().__init__(
            f"run {workflow_id!r} {had} before, and stopped while its steps were undone; {now}",
            remedy=f"'flowckpt resume {shell_word(workflow_id)}' runs again what was undone, and carries on.",
        )
        self.workflow_id = workflow_id
        self.status = status
        self.is_left = is_left


class StepTimeoutError(FlowckptError, TimeoutError):
    """A try of a step exceeded its timeout.

    Attributes:
        path: the step's path.
        timeout_seconds: the limit.
    """

    def __init__(self, path: str, *, timeout_seconds: float) -> None:
        super().__init__(
            f"step {path!r} did not end within its timeout of {timeout_seconds:g} s",
            remedy="Raise the limit with .timeout(seconds), or make the step smaller.",
        )
        self.path = path
        self.timeout_seconds = timeout_seconds


class ApprovalRejectedError(FlowckptError):
    """An `.approval()` step was rejected. A resume of the failed run asks again.

    Attributes:
        path: the step's path.
        by: who rejected.
        comment: why; may be empty.
    """

    def __init__(self, path: str, *, by: str, comment: str = "") -> None:
        super().__init__(
            f"{path!r} was rejected by {by or 'somebody'}" + (f": {comment}" if comment else ""),
            remedy="Handle it in the workflow, or mend what was rejected; a resume asks again.",
        )
        self.path = path
        self.by = by
        self.comment = comment


class ApprovalStaleError(FlowckptError):
    """The approved content has changed since the run asked; nothing was recorded.

    Attributes:
        workflow_id: the run.
        name: the approval.
        reasons: the finding for each claim.
    """

    def __init__(self, workflow_id: str, name: str, *, reasons: Sequence[str]) -> None:
        super().__init__(
            f"{name!r} of run {workflow_id!r} cannot be approved: what is to be approved has changed since the run asked "
            f"for it: {'; '.join(reasons)}",
            remedy=f"Nothing was recorded. 'flowckpt resume {shell_word(workflow_id)}' asks anew, for what is there now.",
        )
        self.workflow_id = workflow_id
        self.name = name
        self.reasons = tuple(reasons)


class RunSuspendedError(FlowckptError):
    """`WorkflowResult.unwrap()` was called for a suspended run.

    Attributes:
        workflow_id: the run.
        waits: what it waits for, as text.
    """

    def __init__(self, workflow_id: str, *, waits: Sequence[str]) -> None:
        super().__init__(
            f"run {workflow_id!r} is suspended: {'; '.join(waits)}",
            remedy=f"It has an output once it has gone on: 'flowckpt resume {shell_word(workflow_id)}'.",
        )
        self.workflow_id = workflow_id
        self.waits = tuple(waits)


class SignalDataError(FlowckptError):
    """The data of a signal does not fit the type of the step that took it.

    Attributes:
        path: the step.
        name: the signal.
        detail: what does not fit, and where.
        by: the sender; may be empty.
        signal_id: the id of the message.
    """

    def __init__(self, path: str, name: str, *, detail: str, by: str, signal_id: str) -> None:
        super().__init__(
            f"{path!r} has taken the signal {name!r} of {by or 'somebody'} (id {signal_id}), and cannot use it: {detail}",
            remedy="Handle it in the workflow, or resume the run, which waits for another signal, and send that.",
        )
        self.path = path
        self.name = name
        self.detail = detail
        self.by = by
        self.signal_id = signal_id


class SignalRefusedError(FlowckptError):
    """A run cannot take a signal or an answer: it has completed, does not wait for it, or was answered already.

    Attributes:
        workflow_id: the run.
        name: the signal or the approval.
        detail: why it was refused.
    """

    def __init__(self, workflow_id: str, name: str, *, detail: str, remedy: str = "") -> None:
        super().__init__(
            f"{name!r} was not sent to run {workflow_id!r}: {detail}",
            remedy=remedy or f"See what it waits for with 'flowckpt show {shell_word(workflow_id)}'.",
        )
        self.workflow_id = workflow_id
        self.name = name
        self.detail = detail


class CommandFailedError(FlowckptError):
    """The program of a `.command()` step could not be started, or returned a code other than 0.

    Attributes:
        path: the step's path.
        argv: the program and its arguments.
        exit_code: the exit code; the negative number of the signal that killed it; None if it did not start.
        stdout: the end of its standard output.
        stderr: the end of its standard error.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str = "",
        argv: Sequence[str] = (),
        exit_code: int | None = None,
        stdout: str = "",
        stderr: str = "",
        remedy: str = "",
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.path = path
        self.argv = tuple(argv)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr


class ExecutorError(FlowckptError):
    """An executor cannot be created or reached, or cannot run a step.

    Attributes:
        executor: its name in `.on()`; empty if it has none yet.
        path: the step; empty if none is concerned.
    """

    def __init__(self, message: str, *, executor: str = "", path: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.executor = executor
        self.path = path


class UnknownExecutorError(ExecutorError):
    """A step names an executor that was not given or cannot run it, or a resume lacks an executor at an address.

    Attributes:
        executor: the name.
        path: the step; empty if the whole run is concerned.
        known: the known names.
    """

    def __init__(
        self, message: str, *, executor: str, path: str = "", known: Sequence[str] = (), remedy: str = ""
    ) -> None:
        super().__init__(message, executor=executor, path=path, remedy=remedy)
        self.known = tuple(known)


class NotSendableError(ExecutorError):
    """The function of a step, or an argument, cannot be sent to another process or read there.

    Attributes:
        executor: the name of the executor.
        path: the step.
        place: what cannot be sent: `the function`, or the argument's name or number.
        type_name: its type.
        detail: Python's message.
    """

    def __init__(self, path: str, *, executor: str, place: str, type_name: str, detail: str, remedy: str) -> None:
        super().__init__(
            f"step {path!r} cannot be sent to executor {executor!r}: {place} ({type_name}): {detail}",
            executor=executor,
            path=path,
            remedy=remedy,
        )
        self.place = place
        self.type_name = type_name
        self.detail = detail


class WorkerDiedError(ExecutorError):
    """The process or machine that ran a step died, or the executor lost it; the effect of the step is unknown.

    Attributes:
        executor: the name of the executor.
        path: the step.
        detail: what is known.
        exit_code: the exit code of the process, the negative signal number if killed; None if unknown.
    """

    def __init__(
        self, path: str, *, executor: str, detail: str, exit_code: int | None = None, remedy: str = ""
    ) -> None:
        super().__init__(
            f"the worker of executor {executor!r} that ran step {path!r} died: {detail}",
            executor=executor,
            path=path,
            remedy=remedy or "'.retry(3)' on the step tries it again on another worker; a resume runs it again, too.",
        )
        self.exit_code = exit_code
        self.detail = detail


class WorkflowChangedError(FlowckptError):
    """The workflow is a different one, or does not follow the record; nothing was run or saved.

    Attributes:
        workflow_name: the workflow.
        recorded: the recorded step, with file and line.
        yielded: what the generator did instead, with file and line.
    """

    def __init__(
        self, message: str, *, workflow_name: str, recorded: str = "", yielded: str = "", remedy: str = ""
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.workflow_name = workflow_name
        self.recorded = recorded
        self.yielded = yielded


class NotUndoableError(WorkflowChangedError):
    """Steps have to be undone, but the edited workflow no longer says how; nothing was undone.

    Attributes:
        workflow_id: the run.
        paths: the steps, oldest first.
        reasons: why each step cannot be undone, by path.
        command: the command: `resume` or `cancel`.
    """

    def __init__(
        self, workflow_id: str, *, workflow_name: str, reasons: Mapping[str, str], command: str = "resume"
    ) -> None:
        said = "; ".join(f"{path!r}: {reason}" for path, reason in reasons.items())
        count = f"{len(reasons)} steps" if len(reasons) > 1 else "a step"
        begun = "" if command == "cancel" else ", which had begun to undo what it did,"
        super().__init__(
            f"run {workflow_id!r} of {workflow_name!r}{begun} has {count} that cannot be undone with the code as it is now: {said}",
            workflow_name=workflow_name,
            recorded=", ".join(f"step {path!r}" for path in reasons),
            remedy=f"Nothing was undone now. Restore the code that did them, and {command} again; or 'flowckpt {command} "
            f"{shell_word(workflow_id)} --force' undoes the others, and tells these as failures; or "
            f"'flowckpt cancel {shell_word(workflow_id)} --no-rollback' ends the run and leaves as it is what its steps did.",
        )
        self.workflow_id = workflow_id
        self.command = command
        self.paths = tuple(reasons)
        self.reasons = dict(reasons)

    @classmethod
    def of_step(cls, workflow_id: str, workflow_name: str, path: str, reason: str) -> NotUndoableError:
        """Return the failure of one step, where the others are undone all the same.

        Args:
            workflow_id: the run.
            workflow_name: its workflow.
            path: the step.
            reason: why it cannot be undone.
        """
        error = cls(workflow_id, workflow_name=workflow_name, reasons={path: reason})
        error.message = f"the code as it is now does not say how: {reason}"
        error.remedy = ""
        return error


class StaleStepError(FlowckptError):
    """A recorded result is stale and the policy is to stop.

    Attributes:
        workflow_id: the run.
        path: the step; the oldest if there are several.
        reasons: what changed, as `kind: detail`.
        others: the same for other steps found at the same time, by path.
    """

    def __init__(
        self,
        workflow_id: str,
        path: str,
        *,
        reasons: Sequence[str],
        remedy: str,
        others: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.workflow_id = workflow_id
        self.path = path
        self.reasons = tuple(reasons)
        self.others = {path: tuple(found) for path, found in (others or {}).items()}
        also = "".join(f"; and of step {path!r}: {'; '.join(found)}" for path, found in self.others.items())
        super().__init__(
            f"the recorded result of step {path!r} of run {workflow_id!r} is stale: {'; '.join(reasons)}{also}",
            remedy=remedy,
        )


class StaleCheckpointError(FlowckptError):
    """A run cannot be rolled back to a checkpoint or forked from it, because results up to it are stale.

    Attributes:
        workflow_id: the run.
        checkpoint_id: the checkpoint.
        reasons: what changed, by step path; an empty path stands for the checkpoint itself.
    """

    def __init__(
        self, workflow_id: str, checkpoint_id: str, *, reasons: Mapping[str, Sequence[str]], remedy: str = ""
    ) -> None:
        said = "; ".join(f"{path or 'the checkpoint itself'}: {', '.join(found)}" for path, found in reasons.items())
        super().__init__(
            f"checkpoint {checkpoint_id!r} of run {workflow_id!r} is no longer true: {said}",
            remedy=remedy
            or f"Nothing was changed. See 'flowckpt verify {shell_word(workflow_id)} --checkpoint {shell_word(checkpoint_id)}'.",
        )
        self.workflow_id = workflow_id
        self.checkpoint_id = checkpoint_id
        self.reasons = {path: tuple(found) for path, found in reasons.items()}


class StepInDoubtError(FlowckptError):
    """An at-most-once step may have run, and its evidence cannot tell whether its effect happened.

    Attributes:
        workflow_id: the run.
        path: the step.
        detail: what is known.
    """

    def __init__(self, workflow_id: str, path: str, *, detail: str) -> None:
        super().__init__(
            f"step {path!r} is to be done at most once, and nobody knows whether it was: {detail}",
            remedy="Find out what it did. Then either make its evidence able to tell (claims with stated facts, such as "
            f"db_row) and resume, or run it again with 'flowckpt resume {shell_word(workflow_id)} --force'.",
        )
        self.workflow_id = workflow_id
        self.path = path
        self.detail = detail


class RunParkedError(FlowckptError):
    """A run crashed repeatedly at the same step without saving anything new, and is not resumed.

    Attributes:
        workflow_id: the run.
        path: the step, or the last candidate; empty if unknown.
        count: the number of crashes.
        since: when the first of these attempts saved last; empty if unknown.
        candidates: all steps that may have been running.
    """

    def __init__(
        self, workflow_id: str, *, path: str, count: int, since: str = "", candidates: Sequence[str] = ()
    ) -> None:
        where = f"at step {path!r}" if path else "before its next step"
        others = [each for each in candidates if each != path]
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            where += f" (or at one that had begun before it: {', '.join(map(repr, others[:3]))}{more})"
        moment = f" since {since}" if since else ""
        super().__init__(
            f"run {workflow_id!r} is parked: its process died {count} times {where}{moment}, with nothing new saved between",
            remedy="Find out what the process dies of (memory, a crash in native code, a limit of the machine). Then "
            f"'flowckpt resume {shell_word(workflow_id)} --force' goes on, and counts anew.",
        )
        self.workflow_id = workflow_id
        self.path = path
        self.count = count
        self.since = since
        self.candidates = tuple(candidates)


class StepNotBegunError(FlowckptError):
    """A step of a `CheckpointManager` is committed or abandoned, but was not begun or has ended already.

    Attributes:
        task_id: the task.
        step_id: the step as given.
        detail: what became of it, if known: for example, the checkpoint of its commit.
    """

    def __init__(self, task_id: str, step_id: str, *, detail: str) -> None:
        super().__init__(
            f"step {step_id!r} of task {task_id!r} is not begun: {detail}",
            remedy="Commit each step once, under the id that begin_step returned for it.",
        )
        self.task_id = task_id
        self.step_id = step_id
        self.detail = detail


class StepNotFoundError(FlowckptError):
    """The record has no such step, named by `--from`, `RunOptions(from_step=…)` or `flowckpt plan RUN STEP`.

    Attributes:
        workflow_id: the run.
        step: the requested step.
        known: the recorded steps, in order.
    """

    def __init__(self, workflow_id: str, step: str, *, known: Sequence[str] = ()) -> None:
        shown = ", ".join(known[:8]) + (", …" if len(known) > 8 else "")
        super().__init__(
            f"run {workflow_id!r} has no step {step!r}",
            remedy=f"It has: {shown}." if known else "It has recorded no step yet.",
        )
        self.workflow_id = workflow_id
        self.step = step
        self.known = tuple(known)


class InputMismatchError(FlowckptError):
    """A resume was given other inputs than the start.

    Attributes:
        expected_hash: the hash in the record.
        actual_hash: the hash of the given inputs.
        differences: for each differing place, the recorded and the given value as text.
    """

    def __init__(
        self, *, expected_hash: str, actual_hash: str, differences: Mapping[str, tuple[str, str]], remedy: str = ""
    ) -> None:
        said = "; ".join(f"{leaf}: {old} → {new}" for leaf, (old, new) in differences.items())
        super().__init__(
            f"the inputs differ from those of the record: {said or 'only in their digests'} "
            f"(recorded {expected_hash}, given {actual_hash})",
            remedy=remedy or "Resume without inputs to use the recorded ones, or start a new run with the new inputs.",
        )
        self.expected_hash = expected_hash
        self.actual_hash = actual_hash
        self.differences = dict(differences)


_ASYNC_DOORS = {"resume_sync": "resume_run"}


class NestedLoopError(FlowckptError):
    """`run_sync`, `resume_sync` or a method of an `in_sync` object was called inside a running asyncio loop."""

    def __init__(self, door: str, *, remedy: str = "") -> None:
        super().__init__(
            f"{door}() was called inside a running asyncio loop, which it would block",
            remedy=remedy or f"Write 'await engine.{_ASYNC_DOORS.get(door, door.removesuffix('_sync'))}(…)' there.",
        )
        self.door = door


class NoAsyncioError(FlowckptError):
    """The engine was awaited without a running asyncio loop, for example under trio.

    Attributes:
        door: what was called.
    """

    def __init__(self, door: str) -> None:
        super().__init__(
            f"{door}() was awaited where no asyncio loop runs; the engine works under asyncio only",
            remedy="Await it under asyncio.run(…), or call engine.run_sync(…) in a thread of its own.",
        )
        self.door = door


class RunExistsError(FlowckptError):
    """The store already has a run with the id of a new run.

    Attributes:
        workflow_id: the id.
    """

    def __init__(self, workflow_id: str, *, remedy: str = "") -> None:
        super().__init__(
            f"run {workflow_id!r} exists already",
            remedy=remedy or f"Carry it on with 'flowckpt resume {shell_word(workflow_id)}', or choose another id.",
        )
        self.workflow_id = workflow_id


# --- Stores ----------------------------------------------------------------------------------------------------------


class StoreSpecError(FlowckptError):
    """A store specification is invalid.

    Attributes:
        spec: the specification as given.
    """

    def __init__(self, message: str, *, spec: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.spec = spec


class CheckpointNotFoundError(FlowckptError):
    """The store has no such run, or the run has no such checkpoint.

    Attributes:
        workflow_id: the requested run.
        checkpoint_id: the requested checkpoint, or None for the latest.
    """

    def __init__(
        self, workflow_id: str, checkpoint_id: str | None = None, *, detail: str = "", remedy: str = ""
    ) -> None:
        what = (
            f"run {workflow_id!r} has no checkpoint {checkpoint_id!r}" if checkpoint_id else f"no run {workflow_id!r}"
        )
        super().__init__(
            f"{what}{f' ({detail})' if detail else ''}",
            remedy=remedy
            or (
                f"See 'flowckpt show {shell_word(workflow_id)} --checkpoints'."
                if checkpoint_id
                else "See 'flowckpt list'."
            ),
        )
        self.workflow_id = workflow_id
        self.checkpoint_id = checkpoint_id


class CheckpointCorruptedError(FlowckptError):
    """A record exists but is damaged: its checksum, chain or form is wrong.

    Attributes:
        workflow_id: the run; empty if the store itself is concerned, such as a file that is not a database.
        location: the file.
        detail: what is wrong, and where in the file.
    """

    def __init__(self, workflow_id: str, *, location: str, detail: str, remedy: str = "") -> None:
        what = (
            f"the record of run {workflow_id!r} is corrupt at {location}" if workflow_id else f"{location} is corrupt"
        )
        super().__init__(
            f"{what}: {detail}",
            remedy=remedy
            or "Nothing was changed. 'flowckpt store check' lists what is damaged; restore the file from a backup.",
        )
        self.workflow_id = workflow_id
        self.location = location
        self.detail = detail


class ForeignRecordError(FlowckptError):
    """A record belongs to another run, or continues another history than the store holds.

    Attributes:
        workflow_id: the requested run.
        found: what was found instead.
    """

    def __init__(self, message: str, *, workflow_id: str, found: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.workflow_id = workflow_id
        self.found = found


class ImportRefusedError(FlowckptError):
    """A file to import is truncated, changed, malformed, or exceeds a limit; nothing was imported.

    Attributes:
        file: the file.
        line: its line, from 1; 0 if none is concerned.
        detail: what is wrong.
    """

    def __init__(self, detail: str, *, file: str = "", line: int = 0, remedy: str = "") -> None:
        place = f"{file or 'the file'}{f', line {line}' if line else ''}"
        super().__init__(f"{place}: {detail}; nothing was imported", remedy=remedy)
        self.file = file
        self.line = line
        self.detail = detail


class SourceUnreadableError(FlowckptError):
    """A file to import cannot be read.

    Attributes:
        file: the file.
    """

    def __init__(self, file: str, *, detail: str) -> None:
        super().__init__(f"{file} cannot be read: {detail}")
        self.file = file


class StoreAbilityError(FlowckptError):
    """A third-party store lacks the ability that an operation needs.

    Attributes:
        ability: the missing protocol of `flowckpt.stores`.
        store: what the store calls itself.
        purpose: the operation.
    """

    def __init__(self, store: str, *, ability: str, purpose: str) -> None:
        super().__init__(
            f"{store} cannot {purpose}: it has not the ability {ability}",
            remedy=f"Use another store, or ask its author for flowckpt.stores.base.{ability}.",
        )
        self.store = store
        self.ability = ability
        self.purpose = purpose


class KeyFileError(FlowckptError):
    """A key file is missing, invalid, or readable by other users.

    Attributes:
        path: the file.
    """

    def __init__(self, message: str, *, path: str, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.path = path


class KeyMissingError(FlowckptError):
    """A store or record is sealed with a key, and none was given; this does not indicate damage.

    Attributes:
        workflow_id: the run; empty if the whole store is concerned.
        key_id: the key that sealed it; empty if unknown.
    """

    def __init__(self, workflow_id: str, *, key_id: str = "") -> None:
        which = f" {key_id}" if key_id else ""
        where = f"run {workflow_id!r} is in a store that" if workflow_id else "the store"
        super().__init__(
            f"{where} is protected by a key{which}, and no key was given",
            remedy="Name the key file: FLOWCKPT_KEY_FILE=FILE for the command, "
            "FileCheckpointStore(…, key_file=FILE) in Python.",
        )
        self.workflow_id = workflow_id
        self.key_id = key_id


class WrongKeyError(FlowckptError):
    """A store or record is sealed with another key than the given ones; this does not indicate damage.

    Attributes:
        workflow_id: the run; empty if the whole store is concerned.
        key_id: the key that sealed it.
        known: the ids of the given keys, newest first.
        is_whole_store: whether none of the given keys belongs to the store; otherwise one record needs another key.
    """

    def __init__(self, workflow_id: str, *, key_id: str, known: Sequence[str], is_whole_store: bool = False) -> None:
        where = f"run {workflow_id!r}" if workflow_id else "the store"
        if is_whole_store and workflow_id:
            where = f"run {workflow_id!r} is in a store that"
        super().__init__(
            f"{where} is sealed with key {key_id}; the key file has {', '.join(known)}",
            remedy="Name the key file of the store. To give the store a new key, put it before the old one: "
            "'flowckpt store key rotate FILE'."
            if is_whole_store
            else "Name the right key file, or add the old key behind the new one in it: old records need old keys.",
        )
        self.workflow_id = workflow_id
        self.key_id = key_id
        self.known = tuple(known)
        self.is_whole_store = is_whole_store


class UnauthenticatedRecordError(FlowckptError):
    """A record was written without the given key: before the key existed, or by somebody who does not have it.

    Attributes:
        workflow_id: the run.
        location: the file.
    """

    def __init__(self, workflow_id: str, *, location: str) -> None:
        super().__init__(
            f"{location} of run {workflow_id!r} was written without a key, so whoever can write to the store may have "
            "written it",
            remedy="If the run is older than the key, look at it without the key, and then say that you trust it: "
            f"'flowckpt store trust {shell_word(workflow_id)}'. Else restore it from a backup.",
        )
        self.workflow_id = workflow_id
        self.location = location


class CheckpointStorageError(FlowckptError):
    """The medium of a store failed.

    Attributes:
        workflow_id: the run, or an empty string.
        operation: what the store was doing.
        is_outcome_unknown: whether the data may have reached the medium despite the error.
    """

    def __init__(
        self,
        message: str,
        *,
        workflow_id: str = "",
        operation: str = "",
        is_outcome_unknown: bool = False,
        remedy: str = "",
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.workflow_id = workflow_id
        self.operation = operation
        self.is_outcome_unknown = is_outcome_unknown


class SuspensionUnsavedError(CheckpointStorageError):
    """A run with `on_save_error="continue"` failed, because its suspension could not be saved; nothing was undone.

    Attributes:
        waits: what it waits for, one line each.
    """

    def __init__(self, workflow_id: str, *, waits: Sequence[str]) -> None:
        super().__init__(
            f"run {workflow_id!r} waits, and that could not be saved, so it is not suspended: {', '.join(waits)}",
            workflow_id=workflow_id,
            operation="save",
            is_outcome_unknown=True,
            remedy="It goes on from its last checkpoint, where there is one, and waits again.",
        )
        self.waits = tuple(waits)


class ReadOnlyStoreError(CheckpointStorageError):
    """A store is readable but not writable here; nothing was changed.

    Attributes:
        store: its place, without a password.
        reason: why it cannot be written.
    """

    def __init__(
        self, store: str, *, reason: str, workflow_id: str = "", operation: str = "write", remedy: str = ""
    ) -> None:
        run = f" run {workflow_id!r}" if workflow_id else ""
        super().__init__(
            f"the store {store} is read-only here, so it could not {operation}{run}: {reason}",
            workflow_id=workflow_id,
            operation=operation,
            remedy=remedy
            or "Work where it may be written, with the rights for it. Reading it goes on: 'flowckpt list'.",
        )
        self.store = store
        self.reason = reason


class VanishedError(CheckpointStorageError):
    """A store was removed or replaced during a run: its directory, its database file, or the objects of its bucket.

    Attributes:
        store: its place.
    """

    def __init__(self, store: str, *, workflow_id: str) -> None:
        super().__init__(
            f"the store {store} is gone: it was removed or replaced while run {workflow_id!r} was going on, so nothing "
            "more can be saved to it",
            workflow_id=workflow_id,
            operation="save",
            is_outcome_unknown=True,
            remedy="Put it back, if it was moved; else start the run again. Let no other program remove a store in use.",
        )
        self.store = store


class UnsupportedFilesystemError(CheckpointStorageError):
    """The directory of a store is on a network or FUSE file system, which cannot guarantee a single writer.

    Attributes:
        path: the directory.
        filesystem: the type of the file system, such as `nfs4`.
    """

    def __init__(self, path: str, *, filesystem: str) -> None:
        super().__init__(
            f"{path} lies on a file system of type {filesystem!r}, where locks and caching make a single writer unsound",
            operation="open",
            remedy=f"Use a local directory, or say that you accept it: FileCheckpointStore(…, "
            f"allow_filesystems=({filesystem!r},)).",
        )
        self.path = path
        self.filesystem = filesystem


class SaveConflictError(FlowckptError):
    """A checkpoint has a sequence that the run already has or has passed; only for programs that call `save`.

    Attributes:
        workflow_id: the run.
        sequence: the sequence of the refused checkpoint.
        last_sequence: the highest sequence of the run.
    """

    def __init__(self, workflow_id: str, *, sequence: int, last_sequence: int) -> None:
        super().__init__(
            f"checkpoint {sequence} of run {workflow_id!r} cannot be saved: the run is at {last_sequence}",
            remedy="Number checkpoints 1, 2, 3 …; start from the 'last_sequence' that acquire() returns.",
        )
        self.workflow_id = workflow_id
        self.sequence = sequence
        self.last_sequence = last_sequence


class RunLockedError(FlowckptError):
    """Another live process owns the run.

    Attributes:
        workflow_id: the run.
        holder: the owner: process, host, since when.
    """

    def __init__(self, workflow_id: str, *, holder: str) -> None:
        super().__init__(
            f"run {workflow_id!r} is owned by {holder}",
            remedy="Wait for it or stop it. If that process is dead or stopped for good, resume with --steal.",
        )
        self.workflow_id = workflow_id
        self.holder = holder


class RunMovedOnError(FlowckptError):
    """The run is no longer at the requested attempt, because another process has continued it; nothing was changed.

    Attributes:
        workflow_id: the run.
        expected: the requested attempt.
        attempt: the current attempt.
    """

    def __init__(self, workflow_id: str, *, expected: int, attempt: int) -> None:
        super().__init__(
            f"run {workflow_id!r} is at attempt {attempt}, not at attempt {expected}: somebody has gone on with it",
            remedy=f"Nothing was changed. See how it stands with 'flowckpt show {shell_word(workflow_id)}'.",
        )
        self.workflow_id = workflow_id
        self.expected = expected
        self.attempt = attempt


class FencedError(FlowckptError):
    """A save came from a writer that no longer owns the run; nothing was acknowledged.

    Attributes:
        workflow_id: the run.
        attempt: the attempt of the refused writer.
        newest_attempt: the newest attempt, or None if the run is gone.
    """

    def __init__(self, workflow_id: str, *, attempt: int, newest_attempt: int | None) -> None:
        now = "the run was cleared" if newest_attempt is None else f"attempt {newest_attempt} has taken over"
        super().__init__(
            f"attempt {attempt} of run {workflow_id!r} may not save any more: {now}",
            remedy="Nothing was acknowledged. "
            + (
                "Nothing of the run is left in the store."
                if newest_attempt is None
                else f"See who owns it with 'flowckpt show {shell_word(workflow_id)}'."
            ),
        )
        self.workflow_id = workflow_id
        self.attempt = attempt
        self.newest_attempt = newest_attempt


class UnsupportedSchemaError(FlowckptError):
    """A record was written by a newer flowckpt, or it has upgraded an open database.

    Attributes:
        found: the version in the record.
        supported: the newest version that this program reads.
    """

    def __init__(
        self, *, found: object, supported: int, what: str = "record", detail: str = "", remedy: str = ""
    ) -> None:
        is_version = isinstance(found, str) or (type(found) is int and found > supported)
        usual = "Upgrade flowckpt." if is_version else "That is no version: it is damaged, or of another program."
        super().__init__(
            f"the {what} has schema version {found!r:.80}; this flowckpt reads up to {supported}"
            + (f": {detail}" if detail else ""),
            remedy=remedy or usual,
        )
        self.found = found
        self.supported = supported


_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./-_")


def shell_word(text: str) -> str:
    """Write a text as one word of a shell command, as `shlex.quote` does, whose module takes long to import.

    Args:
        text: the id of a run, or another word of a command that an error says.
    """
    return text if text and _PLAIN.issuperset(text) else "'" + text.replace("'", "'\"'\"'") + "'"


def type_name(cls: type) -> str:
    """Name a class as errors and records do: bare for builtins, else `module.QualName`."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
