"""One try of a step: run its action, encode and decode its output, check its claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt import execution
from flowckpt.core import codec, dsl, records
from flowckpt.core.codec.annotations import return_annotation
from flowckpt.core.codec.blob import Recorded, plain_tree
from flowckpt.core.dsl.step import Action, PythonAction, Step
from flowckpt.core.identity.call import digest_arguments, function_info
from flowckpt.core.identity.secrets import (
    KnownSecrets,
    hide_output_of,
    redact_output,
    refuse_secret_claims,
    refuse_secrets,
)
from flowckpt.core.identity.values import is_held
from flowckpt.core.records import StepResult
from flowckpt.core.system.attrs_base import lazy_define
from flowckpt.core.system.blocking import finish_despite_cancel, may_block
from flowckpt.core.system.clock import Clock
from flowckpt.core.system.copies import IMMUTABLE
from flowckpt.core.system.secret import Secret
from flowckpt.execution import claims, remote
from flowckpt.execution.current_step import STEP_MARK, CurrentStep, StepCall, mark_of_step, set_call
from flowckpt.execution.interrupts import Interrupts
from flowckpt.execution.python import (
    await_interruptibly,
    copy_arguments,
    is_async,
    is_left_behind,
    run_python,
)

if TYPE_CHECKING:
    from uuid import UUID

    from flowckpt.execution.executors.base import ExecutorSpec
    from flowckpt.execution.remote.submit import RunExecutor


_log = logging.getLogger("flowckpt")

INTERRUPTIONS = (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)
"""Errors that end a run from outside; any other error of a step is its failure."""
_NEVER_AWAITED = frozenset({int, str, float, bool, type(None), list, dict, tuple, bytes})


@attrs.frozen(eq=False, repr=False)
class WorldSources:
    """The clock and the sources of ids and random numbers of a run, injected for tests.

    Attributes:
        clock: the time.
        random: returns numbers in [0, 1).
        new_uuid: creates UUIDs.
    """

    clock: Clock
    random: Callable[[], float]
    new_uuid: Callable[[], UUID]

    def answer(self, action: dsl.world.WorldAction) -> datetime | UUID | float | bool:
        """Return the value for an action; times are aware and in UTC."""
        if action.is_patch:
            return True  # no recorded result waits, otherwise replay would have answered
        if isinstance(action, dsl.world.NowAction):
            return self.clock.now().astimezone(UTC)
        return self.new_uuid() if isinstance(action, dsl.world.UuidAction) else self.random()


@lazy_define(eq=False, repr=False)
class Outcome:
    """How one try of a step ended.

    Attributes:
        value: the value for the generator: the output encoded and decoded, so that a resumed run gets the same.
        tree: the encoded output.
        error: the exception of the step, or None.
        committed: its checked claims; None without claims.
        is_started: whether its function may have been called.
    """

    value: Any = None
    tree: Any = None
    error: BaseException | None = None
    committed: claims.CommittedClaims | None = None
    is_started: bool = True


class StepRunner:
    """Runs the steps of one run.

    Args:
        interrupts: delivers signals to the running step.
        checker: checks the steps' claims.
        secrets: the secrets of the run; secrets returned by steps are added.
        world: the clock, ids and random numbers.
        executors: the executors outside this process, by name; built-in ones need not be given.
        act: starts other runs, and sends them signals.
    """

    def __init__(
        self,
        interrupts: Interrupts,
        checker: claims.ClaimChecker,
        secrets: KnownSecrets,
        world: WorldSources,
        executors: Mapping[str, ExecutorSpec] | None = None,
        act: Callable[[Any, StepCall], Awaitable[Any]] | None = None,
    ) -> None:
        self._act = act
        self._interrupts = interrupts
        self._checker = checker
        self._secrets = secrets
        self._world = world
        self._places = remote.executors.ExecutorPool(executors) if executors else None
        self._warned: set[tuple[str, str]] = set()
        self.has_places = bool(executors)
        """Whether steps can run outside the engine's own process."""

    async def make_try(self, call: StepCall, *, on_line: Callable[[str, str], None] | None = None) -> Outcome:
        """Try a step once.

        Args:
            call: the try.
            on_line: called with the stream and the text of each line of a command while it runs.

        Raises:
            KeyboardInterrupt: a signal arrived while the step ran.
            asyncio.CancelledError: the run was cancelled while the step ran.
        """
        modifiers, action = call.modifiers, call.action
        set_call(call)
        try:
            if type(action) is PythonAction and not (
                IMMUTABLE.issuperset(map(type, action.args))
                and not action.kwargs
                and type(action.function) in IMMUTABLE
            ):
                action = copy_arguments(action)
            if not modifiers.is_plain or self.has_places or type(action) is not PythonAction or not may_block():
                outcome = await self._attempt(call, action, on_line)
                if outcome.value is None and action is not call.action and isinstance(action, PythonAction):
                    self._warn_of_lost_changes(call, action)
                return outcome
            # A separate coroutine around the plain call would take 0.4 µs.
            value = self._interrupts.call(action.function, action.args, action.kwargs)
            # 0.2 µs; isawaitable would take 0.5
            if type(value) not in _NEVER_AWAITED and hasattr(type(value), "__await__"):
                value = await await_interruptibly(value, self._interrupts)
            if value is None and action is not call.action:
                self._warn_of_lost_changes(call, action)
            if call.identity.returns_plain and codec.is_itself(value) and not self._secrets.is_any:
                return Outcome(value, value)
            return Outcome(*self._encode(call, value))
        except INTERRUPTIONS as stop:
            if not self._is_raised_by_step(stop):
                raise
            return Outcome(error=stop)
        except (Exception, SystemExit) as error:
            if modifiers.content == "secret":
                hide_output_of(error)
            return Outcome(error=error)
        finally:
            set_call(None)

    async def _attempt(self, call: StepCall, action: Action, on_line: Callable[[str, str], None] | None) -> Outcome:
        """Try a step that is not a plain call, or that runs elsewhere."""
        step, path, modifiers = call.step, call.path, call.modifiers
        if modifiers.is_ephemeral and isinstance(action, PythonAction):  # those of recorded steps are already known
            self._secrets.learn_from((*action.args, *action.kwargs.values()))
        if modifiers.files is not None:
            await self.files.open(self._checker.verifier, step, path)
        where: RunExecutor | str = "engine"
        if self.has_places or modifiers.placement is not None:
            where = self.places.of(step, path)
        if not isinstance(where, str):
            assert isinstance(action, PythonAction)
            return await self._run_on_executor(where, action, call)
        is_here = where == "engine" and modifiers.timeout_seconds is None
        if is_here and type(action) is PythonAction and (may_block() or is_async(action.function)):
            if may_block():
                value = self._interrupts.call(action.function, action.args, action.kwargs)
            else:  # only creates a coroutine, without running the step
                value = action.function(*action.args, **action.kwargs)
            value = await await_interruptibly(value, self._interrupts) if hasattr(type(value), "__await__") else value
        else:
            value = await self._execute(
                action, call, modifiers.timeout_seconds, None if modifiers.is_secret else on_line
            )
        if modifiers.is_secret:
            self._secrets.learn((value.stdout, value.stderr) if action.is_command else value)
            value, tree = Secret(value), None
        elif modifiers.is_ephemeral:
            tree = None
        else:
            value, tree = self._encode(call, value)
        if modifiers.evidence is None and modifiers.files is None and not action.is_command:
            return Outcome(value, tree)
        return await self._commit(step, path, value, tree)

    def _warn_of_lost_changes(self, call: StepCall, called: PythonAction) -> None:
        """Warn once of a step that returned nothing but changed its arguments, which the workflow does not see."""
        before = call.identity.arguments
        after = digest_arguments(called.function, called.args, called.kwargs, self._secrets) if before else {}
        changed = [name for name, form in after.items() if before.get(name) != form and not is_held(form)]
        if changed:
            self.warn_once(
                call,
                f"changes {', '.join(map(repr, changed))} and returns None; a step works on copies of its arguments, so the "
                "workflow does not see the change: return the changed value",
            )

    def warn_once(self, call: StepCall, text: str) -> None:
        """Log what a step does wrong, once for all steps of its name."""
        if (call.step.name, text) not in self._warned:
            self._warned.add((call.step.name, text))
            _log.warning("run %s: step %s %s", call.workflow_id, call.step.name, text)

    def _encode(self, call: StepCall, value: Any) -> tuple[Any, Any]:
        """Return an output in the form for the generator, and in encoded form."""
        if call.identity.returns_plain and codec.is_itself(value) and not self._secrets.is_any:
            return value, value
        action, secrets, place = call.action, self._secrets, f"{call.path}: output"
        if action.is_command:
            value = redact_output(value, secrets)
        tree = codec.encode(value, annotation := output_annotation(action), place=place)
        if secrets.is_any:
            refuse_secrets(tree, secrets, place)
        return codec.decode(tree, annotation), tree

    async def open_files(self, call: StepCall) -> Outcome | None:
        """Record the files that an at-most-once step reads, before its start is saved; return a failure to do so."""
        if call.modifiers.files is None:
            return None
        try:
            await self.files.open_ahead(self._checker.verifier, call.step, call.path)
        except Exception as error:
            return Outcome(error=error, is_started=False)
        return None

    async def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], call: StepCall
    ) -> Any:
        """Call an adopting or compensating function of a step, in the place where the step's own function would run."""
        set_call(call)
        try:
            if not may_block():
                return await self._execute(PythonAction(function, args, kwargs), call, None, None)
            value = self._interrupts.call(function, args, kwargs)
            return await await_interruptibly(value, self._interrupts) if hasattr(type(value), "__await__") else value
        finally:
            set_call(None)

    async def adopt(
        self, call: StepCall, *, is_vouched: bool = False, make: Callable[[Any], Any] | None = None
    ) -> Outcome:
        """Create the result of a step whose effect is proved, and check the claims that need the result.

        Args:
            call: the earlier call.
            is_vouched: whether the user has confirmed the effect, so that its claims are not checked.
            make: returns the user's output, given an annotation; None to use `.adopt()`.
        """
        step, path = call.step, call.path
        action, adopt = step.action, step.modifiers.adopt
        args, kwargs = (action.args, action.kwargs) if isinstance(action, PythonAction) else ((), {})
        try:
            if step.modifiers.files is not None and not is_vouched:
                await self.files.open(self._checker.verifier, step, path)
            # Without .adopt() the step's result is not known: None, whatever its function's annotation says.
            annotation = Any if adopt is None and make is None else output_annotation(action)
            if make is not None:
                value = make(annotation)
            else:
                value = None if adopt is None else await self.call(adopt, args, kwargs, call)
            tree = codec.encode(value, annotation, place=f"{path}: output")
            refuse_secrets(tree, self._secrets, f"{path}: output")
            value = codec.decode(tree, annotation)
            if is_vouched:
                return Outcome(value, tree)
            return await self._commit(step, path, value, tree, is_adopted=True)
        except INTERRUPTIONS as stop:
            if not self._is_raised_by_step(stop):
                raise
            return Outcome(error=stop)
        except (Exception, SystemExit) as error:
            return Outcome(error=error)

    def _is_raised_by_step(self, stop: BaseException) -> bool:
        """Return whether the step raised `CancelledError` itself, rather than being cancelled with the run."""
        task = asyncio.current_task()
        is_cancelled = task is None or task.cancelling() or self._interrupts.pending_signal
        return isinstance(stop, asyncio.CancelledError) and not is_cancelled

    def is_left_behind(self, step: Step[Any]) -> bool:
        """Return whether the work of a step may keep running after its time limit."""
        where = "engine" if self.is_here(step) else self.places.of(step, step.name)
        if where == "engine":
            return is_left_behind(step.action)
        return True if where == "thread" else where.leaves_work

    def is_here(self, step: Step[Any]) -> bool:
        """Return whether a step always runs in the engine's own process."""
        return step.modifiers.placement is None and not self.has_places

    async def check_place(self, step: Step[Any], path: str) -> int:
        """Refuse a step that its executor cannot run; see `ExecutorPool.check`."""
        return await await_interruptibly(self.places.check(step, path), self._interrupts)  # type: ignore[no-any-return]

    @property
    def places(self) -> remote.executors.ExecutorPool:
        """The executors of the steps; created when the first step needs one."""
        if self._places is None:
            self._places = remote.executors.ExecutorPool()
            self.has_places = True
        return self._places

    @cached_property
    def files(self) -> execution.files.RunFiles:
        """The files that the steps of the run read and write."""
        return execution.files.RunFiles()

    @cached_property
    def _threads(self) -> execution.thread.StepThreads:
        return execution.thread.StepThreads()

    def close(self) -> None:
        """Release the run's threads."""
        if "_threads" in self.__dict__:
            self._threads.close()

    async def close_places(self) -> None:
        """End the executors that the run has created."""
        if self._places is not None:
            await self._places.close()

    def kill_places(self) -> None:
        """End the executors at once; does nothing if they are closed."""
        if self._places is not None:
            self._places.kill()

    async def _execute(
        self, action: Action, call: StepCall, timeout_seconds: float | None, on_line: Callable[[str, str], None] | None
    ) -> Any:
        if isinstance(action, PythonAction):
            return await run_python(
                action,
                workflow_id=call.workflow_id,
                path=call.path,
                timeout_seconds=timeout_seconds,
                interrupts=self._interrupts,
                threads=self._threads,
            )
        if not isinstance(action, dsl.command.CommandAction):
            if not isinstance(action, dsl.world.WorldAction):
                assert self._act is not None
                return await self._act(action, call)
            if isinstance(action, dsl.world.PublishAction):
                return call.services.publish(CurrentStep.of(call), action.name, action.value)
            return self._world.answer(action)
        if (
            call.modifiers.is_at_most_once
        ):  # for a resume after the death of this process, which the command may survive
            action = attrs.evolve(action, env={**action.env, STEP_MARK: mark_of_step(call.services.birth, call.path)})
        return await execution.command.run_command(
            action, path=call.path, timeout_seconds=timeout_seconds, interrupts=self._interrupts, on_line=on_line
        )

    async def _run_on_executor(self, place: RunExecutor, action: PythonAction, call: StepCall) -> Outcome:
        """Run a step on an executor, which returns the encoded output."""
        step = call.step
        modifiers, tree = step.modifiers, await place.run_function(action, call, self._interrupts)
        refuse_secrets(tree, self._secrets, f"{call.path}: output")
        value = codec.decode(tree, output_annotation(action))
        if modifiers.evidence is None and modifiers.files is None:
            return Outcome(value, tree)
        return await self._commit(step, call.path, value, tree)

    async def _commit(self, step: Step[Any], path: str, value: Any, tree: Any, *, is_adopted: bool = False) -> Outcome:
        """Check the claims of a step that has ended."""
        action, claimed, has_files = step.action, step.modifiers.evidence, step.modifiers.files is not None
        if claimed is None:
            pack = claims.make_stated_pack(None) if has_files else None
        elif is_adopted and step.modifiers.adopt is None:  # there is no result to derive claims from
            pack = claims.make_stated_pack(claimed)
        else:
            own = value  # pass a copy to functions of the result: a resumed run would not see their changes
            if not step.modifiers.is_ephemeral and any(callable(each) for each in claimed.claims):
                own = codec.decode(tree, output_annotation(action))
            pack = claims.make_pack(claimed, own, place=path)
        exit_code = None
        if action.is_command and isinstance(action, dsl.command.CommandAction) and not is_adopted:
            output = value.reveal() if isinstance(value, Secret) else value
            exit_code = output.exit_code
            if pack is None or not claims.has_exit_claim(pack):
                shown = attrs.evolve(output, stdout="", stderr="") if output is not value else output
                execution.command.check_exit(path, action, shown)
        if pack is None:
            return Outcome(value, tree)
        if has_files:
            pack = attrs.evolve(pack, evidence_list=[*pack, *self.files.claim_writes(self._checker.verifier, step)])
        if self._secrets.is_any:
            refuse_secret_claims(pack.to_document(), self._secrets, path)
        # The step is done: a cancel while its claims are checked must not lose it.
        own = self.files if has_files else None
        committing = self._checker.commit(pack, path=path, exit_code=exit_code, files=own)
        committed = await finish_despite_cancel(committing)
        if self._secrets.is_any:  # captured facts may contain a secret
            refuse_secret_claims(committed.document["pack"], self._secrets, path)
            committed = attrs.evolve(committed, document=self._secrets.redact_tree(committed.document))
        error = None if committed.report.verified else claims.evidence_error(path, committed.report)
        return Outcome(value, tree, error, committed)


def restore_value(step: Step[Any], result: StepResult) -> Any:
    """Return the decoded output of a recorded step.

    Args:
        step: the step as it is yielded now; the annotation of its function gives the type.
        result: the recorded result.

    Raises:
        DecodingError: the record does not fit the annotation.
    """
    held, action = result.held_output, step.action
    info = function_info(action)
    if info is not None and info.is_plain:
        if codec.is_itself(held):
            return held
        if type(held) is Recorded and held.is_untagged:
            return held.take()
    tree = held.tree if type(held) is Recorded else plain_tree(held, "output")
    if tree is None and "adopted" in result.marks:
        return None
    is_same_code = info is not None and info.fingerprint == result.fingerprint  # which includes the annotated class
    decode = codec.decode if is_same_code else codec.decode_unchanged
    return decode(tree, output_annotation(action), place=f"{result.path}: output")


def output_annotation(action: Action) -> Any:
    """Return the type of an action's output, as far as it is known."""
    if isinstance(action, PythonAction):
        return return_annotation(action.function)
    if action.is_command:
        return records.outputs.CommandOutput
    if action.is_composite and isinstance(action, dsl.composites.WorkflowAction):
        return action.workflow.output_type
    return action.output_type
