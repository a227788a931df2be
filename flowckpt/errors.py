"""Every error of flowckpt, in one tree.

The rules of this file:

- Each error says what happened, shows the offending value, and ends with what to do (`remedy`).
- Each carries its data as attributes, so a program need not parse the message.
- Each survives pickling, whatever its signature (`_rebuild`).
- An error of a driver or of the operating system never leaves a port bare: it becomes the `__cause__` of one of these.

How a class declares its fields and texts, and the root of all errors: `core/system/declared.py`. The errors of stores are
declared in `store_errors.py`; programs import every error from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flowckpt.core.system.declared import (
    Declared,
    FlowckptError,
    OfRun,
    OfStep,
    declared_class,
    derived,
    field,
    is_named,
    rebuild_failed,
    shell_word,
    with_builtin,
)
from flowckpt.store_errors import (
    CheckpointCorruptedError,
    CheckpointNotFoundError,
    CheckpointStorageError,
    DiskFullError,
    FencedError,
    ForeignRecordError,
    ImportRefusedError,
    KeyFileError,
    KeyMissingError,
    MirrorError,
    ReadOnlyStoreError,
    RunLockedError,
    RunMovedOnError,
    SaveConflictError,
    SourceUnreadableError,
    StoreAbilityError,
    StoreSpecError,
    SuspensionUnsavedError,
    UnauthenticatedRecordError,
    UnsupportedFilesystemError,
    UnsupportedSchemaError,
    UntrustedStoreError,
    VanishedError,
    WrongKeyError,
)

# fmt: off
__all__ = [
    "ApprovalRejectedError", "ApprovalStaleError", "CancelRefusedError",
    "CheckpointCorruptedError", "CheckpointNotFoundError", "CheckpointStorageError", "CommandFailedError",
    "CrashLoopError", "DecodingError", "DiskFullError", "EncodingError", "EvidenceCaptureError", "EvidenceError",
    "EvidenceNotVerifiedError", "ExecutorError", "FanOutFailedError", "FencedError", "FinalError", "FlowckptError",
    "ForeignRecordError", "ImportRefusedError", "InputError", "InputMismatchError", "KeyFileError",
    "KeyMissingError", "MirrorError", "NoAsyncioError", "NoReplyError", "NotSendableError", "NotUndoableError",
    "ReadOnlyStoreError", "RequestPendingError", "RunCancelledError", "RunExistsError", "RunFinalError", "RunLockedError", "RunMovedOnError",
    "RunNotCompletedError", "RunSuspendedError", "RunUndoneError", "SaveConflictError", "SecretMissingError",
    "SettingError", "SignalRefusedError", "SourceUnreadableError", "StaleCheckpointError", "StaleStepError",
    "StepDefinitionError", "StepFailedError", "StepFilesError", "StepInDoubtError", "StepNotFoundError",
    "StepNotStartedError", "StepNotYieldedError", "StepStoppedError", "StepTimeoutError", "StoreAbilityError", "StoreSpecError",
    "SuspensionUnsavedError", "TargetError", "UnauthenticatedRecordError", "UnknownExecutorError",
    "UnsupportedFilesystemError", "UnsupportedSchemaError", "UntrustedStoreError", "VanishedError",
    "WorkerDiedError", "WorkflowChangedError", "WorkflowDefinitionError", "WrongKeyError",
]
# fmt: on


# --- Definitions: the program contains a mistake ---------------------------------------------------------------------


class _Located(Declared):
    where: str

    def _words(self) -> Mapping[str, object]:
        vars(self)["message"] += f" (at {self.where})" if self.where else ""
        return {}


class WorkflowDefinitionError(_Located, FlowckptError):
    """A workflow definition is invalid; raised by the decorator, or at the invalid `yield`."""

    where: str = field("`file:line` of the definition or of the `yield`", default="")


class StepDefinitionError(_Located, FlowckptError):
    """A step definition is invalid: a blank name, no action or two, a lambda, a modifier given twice."""

    step: str = field("the step's name as given", default="")
    where: str = field("`file:line` of the step, if known", default="")


class StepNotYieldedError(StepDefinitionError, AttributeError, TypeError):
    """A step is used as if it were its output: a `yield` is missing."""

    remedy: str = derived('Yield it: value = yield step("{step}")…')


class TargetError(FlowckptError):
    """The target of a run (`file.py:workflow`, `package.module:workflow`) cannot be loaded."""

    target: str = field("the target as given or as recorded")


class InputError(FlowckptError):
    """An input is missing, unknown, or does not fit its annotation."""

    parameter: str = field("the input's name; empty if several are concerned", default="")


class SecretMissingError(InputError):
    """A resume needs a secret input that was given at the start; records do not contain its value."""

    names: Sequence[str] = field("the missing secret inputs", kw_only=False)
    workflow_id: str = field("the run; empty if unknown", default="")
    parameter: str = derived("{first}")
    message: str = derived(
        "{inputs}[ of run {workflow_id!r}] must be given again: secrets are not recorded; the command also reads {variables}"
    )
    remedy: str = derived(
        "Run 'flowckpt resume {id} {options}', or with @file:PATH, or with - to be asked; in Python: "
        "engine.resume(workflow, workflow_id=…, {arguments})."
    )

    def _words(self) -> Mapping[str, object]:
        names, plural = self.names, "s" * (len(self.names) > 1)
        return {
            "first": names[0] if names else "",
            "inputs": f"the secret input{plural} {', '.join(map(repr, names))}" if names else "a recorded secret",
            "id": shell_word(self.workflow_id) if self.workflow_id else "RUN",
            "options": " ".join(f"-i {name}=@env:{name.upper()}" for name in names or ["NAME"]),
            "arguments": ", ".join(f"{name}=…" for name in names or ["NAME"]),
            "variables": ", ".join(f"FLOWCKPT_SECRET_{name.upper()}" for name in names or ["NAME"]),
        }


class SettingError(FlowckptError):
    """An argument or a setting is invalid, or a package is missing."""

    setting: str = field("the name of the argument or of the setting", default="")
    source: str = field("the environment variable or file of a setting; empty for an argument", default="")


# --- Values: something cannot be recorded, or cannot be read again ---------------------------------------------------


class EncodingError(FlowckptError):
    """A value cannot be stored and restored unchanged."""

    place: str = field("the place in the value, such as `output.rows[3].conn`", default="")
    type_name: str = field("the type at that place", default="")


class DecodingError(FlowckptError):
    """A recorded value cannot be restored as the type that the program now asks for."""

    place: str = field("the place in the value", default="")


# --- Evidence: a claim about the outside world is written wrongly (what the world says is a verdict, never an error) -


class EvidenceError(FlowckptError):
    """A claim, a pack or a verifier is invalid."""

    evidence_type: str = field("the kind of the claim; empty if none is concerned", default="")


class EvidenceCaptureError(EvidenceError):
    """The facts of a claim cannot be captured, because they do not exist."""

    evidence_type: str = field("the kind of the claim")
    description: str = field("the claim; `evidence_type` is its kind")
    detail: str = field("what was found instead")
    message: str = derived("the facts of {description!r} ({evidence_type}) cannot be captured: {detail}")
    remedy: str = derived("A step's evidence must hold when the step ends: fix the step, or remove the claim.")


class EvidenceNotVerifiedError(OfStep, EvidenceError):
    """The claims of a step do not hold when the step ends."""

    reason: str = field("why the claims together do not hold")
    reasons: Sequence[str] = field("the finding for each claim", default=())
    evidence_type: str = derived("")
    message: str = derived("step {path!r} ended, but its evidence does not hold: {reason}[ ({reasons})]")
    remedy: str = derived("Fix the step so that it leaves behind what it claims, or fix the claim.")


class StepFilesError(OfStep, EvidenceError):
    """A file that a step reads or writes is missing, changed while it ran, or belongs to another step."""

    detail: str = field("what is wrong with which file")
    evidence_type: str = derived("")
    message: str = derived("step {path!r}: {detail}")


# --- Running ---------------------------------------------------------------------------------------------------------


class StepFailedError(OfStep, FlowckptError):
    """A step failed; raised inside the workflow, at the step's `yield`, and again at each replay.

    It is also an instance of the built-in exception that the step raised, or of the nearest built-in base of that:
    `except ValueError` around a `yield` works, at each replay, too. It contains only what was recorded, so a replay raises
    the same error; the step's exception itself is not its `__cause__`. For classes that are not built in, ask
    `failed_with(MyError)`, or compare `error_type`. Python prints the recorded traceback with the error.
    """

    error_type: str = field("the qualified name of the exception's class; builtins without a module")
    error_message: str = field("`str()` of the exception")
    error_bases: Sequence[str] = field("the qualified names of the class and its bases, most derived first", default=())
    traceback: str = field("the formatted traceback, or an empty string", default="")
    tries: int = field("the number of tries", default=1)
    message: str = derived("step {path!r} failed{after} with {error_type}[: {error_message}]")

    if not TYPE_CHECKING:
        _builtin = Exception

        def __new__(cls, *_given: Any, error_type: str = "", error_bases: Sequence[str] = (), **_named: Any) -> Any:
            """Make an instance that is also one of the built-in exception that was recorded."""
            made = with_builtin(cls, (error_type, *error_bases))
            return made._builtin.__new__(made)

        def __reduce__(self) -> tuple[Any, ...]:
            return rebuild_failed, (declared_class(type(self)), self.args, self.__dict__)

    @property
    def trace(self) -> str:
        """The place of the failure, for people: the recorded traceback from the first frame of the user's code on."""
        return self.traceback.rstrip()

    def _words(self) -> Mapping[str, object]:
        return {"after": f" after {self.tries} tries" if self.tries > 1 else ""}

    def _recorded(self) -> tuple[object, ...]:
        return tuple(vars(self)[name] for name in self.__signature__.parameters)

    def __eq__(self, other: object) -> bool:
        """Return whether it is the same recorded failure: a replayed failure equals the one that was raised first."""
        if type(other) is not type(self):
            return NotImplemented
        return self._recorded() == other._recorded()

    def __hash__(self) -> int:
        return hash(self._recorded())

    def failed_with(self, *types: type[BaseException]) -> bool:
        """Return whether the step's exception was an instance of one of these types.

        Args:
            *types: exception classes, compared by module and qualified name with what was recorded. A class that has
                moved to another module since is the same class.
        """
        recorded = {self.error_type, *self.error_bases}
        return any(is_named(name, each) for each in types for name in recorded)


class FanOutFailedError(StepFailedError):
    """More members of a map or group failed than allowed; raised inside the workflow, at the `yield` of the fan-out."""

    causes: Sequence[StepFailedError] = field("the failures of the members, in the order of the members", default=())

    @property
    def trace(self) -> str:
        """The place where the first member failed, and the numbers of other failures by exception."""
        if not self.causes:
            return super().trace
        first, *others = self.causes
        kinds: dict[str, int] = {}
        for each in others:
            kinds[each.error_type] = kinds.get(each.error_type, 0) + 1
        counted = ", ".join(f"{count} with {kind}" for kind, count in kinds.items())
        more = [f"{len(others)} more failed: {counted}"] if others else []
        return "\n".join([f"{first.path} failed:", first.trace or first.error_message, *more])

    def failed_with(self, *types: type[BaseException]) -> bool:
        """Return whether one of the members failed with an instance of one of these types."""
        return super().failed_with(*types) or any(cause.failed_with(*types) for cause in self.causes)


class RunCancelledError(OfRun, FlowckptError):
    """The run was cancelled by request; the `error` of its result, not a failure."""

    message: str = derived("run {workflow_id!r} was cancelled by request")
    remedy: str = derived("'flowckpt resume {run}' runs again what was undone, and continues.")


class CancelRefusedError(OfRun, FlowckptError):
    """A completed run cannot be cancelled; nothing was changed."""

    message: str = derived("run {workflow_id!r} has completed, so it cannot be cancelled")
    remedy: str = derived("Nothing was changed. To go back to an earlier point: flowckpt rollback {run} CHECKPOINT.")


class RequestPendingError(OfRun, FlowckptError):
    """The owner of a live run has not acted on a request in time."""

    asked: str = field("the request: `stop`, `save a checkpoint` or `change its tags`")
    holder: str = field("the owner: process, host, since when")
    waited_seconds: float = field("how long the command waited")
    message: str = derived(
        "run {workflow_id!r} was asked to {asked}; {holder} has not done so after {waited_seconds:g} s"
    )
    remedy: str = derived(
        "It follows at the end of a step: wait longer with --wait. If its process hangs, end the process."
    )


class FinalError(FlowckptError):
    """Raise it, or a subclass, in a step or a workflow for a failure that no retry and no resume can change."""


class RunFinalError(OfRun, FlowckptError):
    """The run failed with a `FinalError`, so a resume is refused; nothing was run."""

    detail: str = field("the recorded error")
    message: str = derived("run {workflow_id!r} has failed, and its failure is final: {detail}")
    remedy: str = derived(
        "Nothing was run. Start a new run; or run everything again from a step on: 'flowckpt resume {run} --from STEP'."
    )


class RunUndoneError(OfRun, FlowckptError):
    """A resume has finished the rollback of a failed or cancelled run, and ends the run as it had ended."""

    status: str = field("how the run had ended: `failed` or `cancelled`")
    is_left: bool = field("whether the remaining steps were not undone, because of `--no-rollback`", default=False)
    message: str = derived("run {workflow_id!r} {ended} before, and stopped while its steps were undone; {now}")
    remedy: str = derived("'flowckpt resume {run}' runs again what was undone, and continues.")

    def _words(self) -> Mapping[str, object]:
        return {
            "ended": "had failed" if self.status == "failed" else f"was {self.status}",
            "now": "the remaining steps stay done, as requested" if self.is_left else "that is finished now",
        }


class StepStoppedError(FlowckptError):
    """A member of a race was stopped, or not started: enough of the others had succeeded."""

    message: str = "it was stopped: enough of the others had succeeded"


class StepTimeoutError(OfStep, FlowckptError, TimeoutError):
    """A try of a step exceeded its timeout."""

    timeout_seconds: float = field("the limit")
    message: str = derived("step {path!r} did not end within its timeout of {timeout_seconds:g} s")
    remedy: str = field("what to do", default="Raise the limit with .timeout(seconds), or make the step smaller.")


class ApprovalRejectedError(OfStep, FlowckptError):
    """An `.approval()` step was rejected. A resume of the failed run asks again."""

    by: str = field("who rejected")
    comment: str = field("why; may be empty", default="")
    message: str = derived("{path!r} was rejected[ by {by}][: {comment}]")
    remedy: str = derived("Handle the rejection in the workflow, or fix what was rejected; a resume asks again.")


class ApprovalStaleError(OfRun, FlowckptError):
    """The approved content has changed since the run asked; nothing was recorded."""

    name: str = field("the approval", kw_only=False)
    reasons: Sequence[str] = field("the finding for each claim")
    message: str = derived("cannot approve {name!r} of run {workflow_id!r}: its evidence has changed since: {reasons}")
    remedy: str = derived("Nothing was recorded. 'flowckpt resume {run}' asks again, for what is there now.")


class RunSuspendedError(OfRun, FlowckptError):
    """`WorkflowResult.unwrap()` was called for a suspended run."""

    waits: Sequence[str] = field("what it waits for, as text")
    message: str = derived("run {workflow_id!r} is suspended: {waits}")
    remedy: str = derived("The output exists when the run has completed: 'flowckpt resume {run}'.")


class SignalRefusedError(OfRun, FlowckptError):
    """A run cannot take a signal or an answer: it has completed, does not wait for it, or was answered already."""

    name: str = field("the signal or the approval", kw_only=False)
    detail: str = field("why it was refused")
    message: str = derived("{name!r} was not sent to run {workflow_id!r}: {detail}")
    remedy: str = "See what it waits for with 'flowckpt show {run}'."


class NoReplyError(OfRun, FlowckptError):
    """A signal was sent and has no reply yet, or will have none."""

    name: str = field("the signal", kw_only=False)
    signal_id: str = field("the id of the message: send it again under this id to wait for the same reply")
    detail: str = field("why there is no reply")
    message: str = derived("signal {name!r} (id {signal_id}) to run {workflow_id!r} has no reply: {detail}")
    remedy: str = "It was sent, once. Send it again under the same id to wait on; 'flowckpt show {run}' shows the run."


class CommandFailedError(FlowckptError):
    """The program of a `.command()` step could not be started, or returned a code other than 0."""

    path: str = field("the step's path", default="")
    argv: Sequence[str] = field("the program and its arguments", default=())
    exit_code: int | None = field("its return code, or minus the signal; None if it did not run", default=None)
    stdout: str = field("the end of its standard output", default="")
    stderr: str = field("the end of its standard error", default="")


class ExecutorError(FlowckptError):
    """An executor cannot be created or reached, or cannot run a step."""

    executor: str = field("its name in `.on()`; empty if it has none yet", default="")
    path: str = field("the step; empty if none is concerned", default="")


class UnknownExecutorError(ExecutorError):
    """A step names an executor that was not given or cannot run it, or a resume lacks an executor at an address."""

    executor: str = field("the name")
    known: Sequence[str] = field("the known names", default=())


class NotSendableError(OfStep, ExecutorError):
    """The function of a step, or an argument, cannot be sent to another process or read there."""

    executor: str = field("the name of the executor")
    place: str = field("what cannot be sent: `the function`, or the argument's name or number")
    type_name: str = field("its type")
    detail: str = field("Python's message")
    remedy: str = field("what to do about it")
    message: str = derived("step {path!r} cannot be sent to executor {executor!r}: {place} ({type_name}): {detail}")


class WorkerDiedError(OfStep, ExecutorError):
    """The process or machine that ran a step died, or the executor lost it; the effect of the step is unknown."""

    executor: str = field("the name of the executor")
    detail: str = field("what is known")
    exit_code: int | None = field("its return code, or minus the signal that killed it; None if unknown", default=None)
    message: str = derived("the worker of executor {executor!r} that ran step {path!r} died: {detail}")
    remedy: str = "'.retry(3)' on the step tries it again on another worker; a resume runs it again, too."


class WorkflowChangedError(FlowckptError):
    """The workflow is a different one, or does not follow the record; nothing was run or saved."""

    workflow_name: str = field("the workflow")
    recorded: str = field("the recorded step, with file and line", default="")
    yielded: str = field("what the generator did instead, with file and line", default="")


class NotUndoableError(WorkflowChangedError):
    """Steps have to be undone, but the edited workflow no longer says how; nothing was undone."""

    workflow_id: str = field("the run", kw_only=False)
    reasons: Mapping[str, str] = field("why each step cannot be undone, by path")
    command: str = field("the command: `resume` or `cancel`", default="resume")
    recorded: str = derived("{steps}")
    yielded: str = derived("")
    message: str = derived(
        "run {workflow_id!r} of {workflow_name!r}{started} has {count} that cannot be undone with the code as it is "
        "now: {found}"
    )
    remedy: str = derived(
        "Nothing was undone now. Restore the code that did them, and {command} again; or "
        "'flowckpt {command} {run} --force' undoes the others, and reports these as failures; or "
        "'flowckpt cancel {run} --no-rollback' ends the run and undoes nothing more."
    )

    def _words(self) -> Mapping[str, object]:
        return {
            "started": "" if self.command == "cancel" else ", which had started to undo what it did,",
            "count": f"{len(self.reasons)} steps" if len(self.reasons) > 1 else "a step",
            "found": "; ".join(f"{path!r}: {reason}" for path, reason in self.reasons.items()),
            "steps": ", ".join(f"step {path!r}" for path in self.reasons),
        }

    @property
    def paths(self) -> tuple[str, ...]:
        """The steps, the oldest first."""
        return tuple(self.reasons)

    @classmethod
    def of_step(cls, workflow_id: str, workflow_name: str, path: str, reason: str) -> NotUndoableError:
        """Return the failure of one step, for a run whose other steps are still undone."""
        error = cls(workflow_id, workflow_name=workflow_name, reasons={path: reason})
        error.message, error.remedy = f"the code as it is now does not say how: {reason}", ""
        return error


class StaleStepError(OfRun, FlowckptError):
    """A recorded result is stale, or its evidence cannot be checked, and the policy is to stop."""

    path: str = field("the step; the oldest if there are several", kw_only=False)
    reasons: Sequence[str] = field("what changed, as `kind: detail`")
    is_proved: bool = field("whether a change is certain; False if evidence cannot be checked", default=True)
    remedy: str = field("what to do about it")
    others: Mapping[str, Sequence[str]] = field("the same for other steps found at the same time, by path", default={})
    repeats_effect: bool = field("whether a rerun repeats an effect that happened once", default=False)
    message: str = derived("the recorded result of step {path!r} of run {workflow_id!r} {verdict}: {reasons}{also}")

    def _words(self) -> Mapping[str, object]:
        also = (f"; and of step {path!r}: {'; '.join(found)}" for path, found in self.others.items())
        return {"also": "".join(also), "verdict": "is stale" if self.is_proved else "may be stale"}


class StaleCheckpointError(OfRun, FlowckptError):
    """A run cannot be rolled back to a checkpoint or forked from it, because results up to it are stale."""

    checkpoint_id: str = field("the checkpoint", kw_only=False)
    reasons: Mapping[str, Sequence[str]] = field("what moved, by the path of the step; empty for the checkpoint itself")
    message: str = derived("checkpoint {checkpoint_id!r} of run {workflow_id!r} is stale: {found}")
    remedy: str = "Nothing was changed. See 'flowckpt verify {run} --checkpoint {checkpoint}'."

    def _words(self) -> Mapping[str, object]:
        found = (f"{path or 'the checkpoint itself'}: {', '.join(each)}" for path, each in self.reasons.items())
        return {"found": "; ".join(found), "checkpoint": shell_word(self.checkpoint_id)}


class StepInDoubtError(OfRun, FlowckptError):
    """An at-most-once step may have run, and its evidence cannot tell whether its effect happened."""

    path: str = field("the step", kw_only=False)
    detail: str = field("what is known")
    was_done: bool = field("whether its success is recorded, so that it would run a second time", default=False)
    message: str = derived("step {path!r} must run at most once, and {doubt}: {detail}")
    remedy: str = derived(
        "Find out what it did. If it was done: 'flowckpt resume {run} --done {step}', or --done {step}=JSON with its "
        "output. If it was not: 'flowckpt resume {run} --not-done {step}'. Evidence that can tell, such as db_row with "
        "stated values, makes the question needless."
    )

    def _words(self) -> Mapping[str, object]:
        doubt = "has had its effect" if self.was_done else "may have had its effect"
        return {"step": shell_word(self.path), "doubt": doubt}


class CrashLoopError(OfRun, FlowckptError):
    """A run crashed repeatedly at the same step without saving anything new, and is not resumed."""

    path: str = field("the step, or the last candidate; empty if unknown")
    count: int = field("the number of crashes")
    since: str = field("when the first of these attempts saved last; empty if unknown", default="")
    candidates: Sequence[str] = field("all steps that may have been running", default=())
    message: str = derived(
        "run {workflow_id!r} is in a crash loop: its process died {often} {where}[ since {since}], with nothing new saved between"
    )
    remedy: str = derived(
        "Find out what the process dies of (memory, a crash in native code, a limit of the machine). Then "
        "'flowckpt resume {run} --force' resumes it, and resets the count."
    )

    def _words(self) -> Mapping[str, object]:
        where = f"at step {self.path!r}" if self.path else "before its next step"
        others = [each for each in self.candidates if each != self.path]
        if others:
            more = f" and {len(others) - 3} more" if len(others) > 3 else ""
            where += f" (or at one that had started before it: {', '.join(map(repr, others[:3]))}{more})"
        often = "once" if self.count == 1 else f"{self.count} times"
        return {"often": often, "where": where}


class StepNotStartedError(FlowckptError):
    """A step of a `CheckpointManager` is committed or abandoned, but was not begun or has ended already."""

    task_id: str = field("the task", kw_only=False)
    step_id: str = field("the step as given", kw_only=False)
    detail: str = field("what became of it, if known: for example, the checkpoint of its commit")
    message: str = derived("step {step_id!r} of task {task_id!r} is not running: {detail}")
    remedy: str = derived("Commit each step once, under the id that begin_step returned for it.")


class StepNotFoundError(OfRun, FlowckptError):
    """The record has no such step, named by `--from`, `RunOptions(from_step=…)` or `flowckpt plan RUN STEP`."""

    step: str = field("the requested step", kw_only=False)
    known: Sequence[str] = field("the recorded steps, in order", default=())
    message: str = derived("run {workflow_id!r} has no step {step!r}")
    remedy: str = derived("{steps}")

    def _words(self) -> Mapping[str, object]:
        if not self.known:
            return {"steps": "It has not recorded any step yet."}
        return {"steps": f"It has: {', '.join(self.known[:8])}{', …' if len(self.known) > 8 else ''}."}


class InputMismatchError(FlowckptError):
    """A resume was given other inputs than the start."""

    expected_hash: str = field("the hash in the record")
    actual_hash: str = field("the hash of the given inputs")
    differences: Mapping[str, tuple[str, str]] = field("what differs, by leaf: (recorded, given) as text")
    message: str = derived("the inputs differ from the recorded ones ({recorded}, now {given}): {found}")
    remedy: str = (
        "Resume without inputs to use the recorded ones. Or make a new run with the new inputs, which reuses the results "
        "that are still valid: 'flowckpt fork RUN {options}'."
    )

    def _words(self) -> Mapping[str, object]:
        found = "; ".join(f"{leaf}: {old} → {new}" for leaf, (old, new) in self.differences.items())
        recorded, given = (_short(digest) for digest in (self.expected_hash, self.actual_hash))
        return {
            "found": found or "only their digests differ",
            "recorded": recorded,
            "given": given,
            "options": " ".join(f"-i {name}=…" for name in self.names or ["NAME"]),
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that differ, as far as `differences` names them."""
        return tuple(dict.fromkeys(leaf.partition(".")[0].partition("[")[0] for leaf in self.differences))


def _short(digest: str) -> str:
    """Return the start of a digest, with its scheme, enough to tell two of them apart."""
    scheme, colon, digits = digest.rpartition(":")
    return f"{scheme}{colon}{digits[:8]}…" if len(digits) >= 32 else digest


class NoAsyncioError(FlowckptError):
    """The engine was awaited without a running asyncio loop, for example under trio."""

    function: str = field("the method that was awaited", kw_only=False)
    message: str = derived("{function}() was awaited where no asyncio loop runs; the engine works under asyncio only")
    remedy: str = derived("Await it under asyncio.run(…), or call engine.run_sync(…) in a thread of its own.")


class RunExistsError(OfRun, FlowckptError):
    """The store already has a run with the id of a new run."""

    message: str = derived("run {workflow_id!r} exists already")
    remedy: str = (
        "Resume it with 'flowckpt resume {run}', or choose another id. One line that starts or resumes it: "
        "run --if-exists resume (in Python if_exists='resume')."
    )


class RunNotCompletedError(OfRun, FlowckptError):
    """An earlier run with this id has not completed, and `if_exists="return"` runs nothing."""

    status: str = field("its status: `failed`, `cancelled` or `crashed`")
    detail: str = field("its recorded error, if it has one", default="")
    message: str = derived("run {workflow_id!r} is recorded as {status}[: {detail}]")
    remedy: str = derived("Nothing was run. Resume it with 'flowckpt resume {run}'.")
