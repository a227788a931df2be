"""One unit of work, as a value: a name, one action, and modifiers.

Steps are immutable: every method returns a new one. A modifier may stand before or after the action and may be given
once, so the order in which a step is written never changes what it means.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

import attrs

from flowckpt.core.dsl import modifiers as evidences
from flowckpt.core.dsl import modifiers as placements
from flowckpt.core.dsl import modifiers as retries
from flowckpt.core.dsl.actions import Action, PythonAction
from flowckpt.core.dsl.checks import caller, explicit_arguments, of_one_argument
from flowckpt.core.dsl.modifiers import (
    CHECKPOINTED,
    PLAIN,
    Modifiers,
    checked_timeout,
    checked_together,
    refuse_needless_ephemeral,
)
from flowckpt.core.dsl.path import MAX_NAME_LENGTH
from flowckpt.core.dsl.workflow import Workflow
from flowckpt.core.system.attrs_base import Fieldwise
from flowckpt.core.system.lazy import LazyModule
from flowckpt.core.system.secret import Secret
from flowckpt.errors import StepDefinitionError

if TYPE_CHECKING:
    from flowckpt.core.dsl import command as command_arguments
    from flowckpt.core.dsl import composites, waits
    from flowckpt.core.records.outputs import Approval, CommandOutput
    from flowckpt.errors import StepFailedError
else:
    command_arguments = LazyModule("flowckpt.core.dsl.command")
    composites = LazyModule("flowckpt.core.dsl.composites")
    waits = LazyModule("flowckpt.core.dsl.waits")


# What a step is before and after its action: a name and modifiers, and the methods that add them.


@attrs.frozen(eq=False, repr=False)
class Modifiable(Fieldwise):
    """What a step is before and after its action: a name and modifiers."""

    name: str
    modifiers: Modifiers

    def __repr__(self) -> str:
        return f"<step {self.name!r} without an action>"

    def _with(self, modifiers: Modifiers) -> Self:
        return attrs.evolve(self, modifiers=modifiers)

    def _refuse_twice(self, modifier: str, was_given: bool) -> None:
        if was_given:
            raise StepDefinitionError(
                f"step {self.name!r}: .{modifier}() is given twice",
                step=self.name,
                where=caller(),
                remedy="Keep one of them: the order of modifiers has no meaning, so neither could win.",
            )

    def checkpoint(self, id: str | None = None) -> Self:  # noqa: A002 - the keyword is part of the language
        """Take a checkpoint after the step.

        Args:
            id: what to call it; the step's path where not given.

        Raises:
            StepDefinitionError: it was given already, the id is blank, or the step is ephemeral.
        """
        modifiers = self.modifiers
        if id is None and modifiers is PLAIN:  # by far the most common: no evolve (5 µs)
            return self._with_checkpoint()
        self._refuse_twice("checkpoint", modifiers.has_checkpoint)
        if id is not None:
            check_name(id, "checkpoint id")
        return self._with(checked_together(self.name, attrs.evolve(modifiers, has_checkpoint=True, checkpoint_id=id)))

    def _with_checkpoint(self) -> Self:
        return attrs.evolve(self, modifiers=CHECKPOINTED)

    def retry(
        self,
        attempts: int,
        backoff: float = 0.0,
        max_delay: float = 60.0,
        jitter: float = 0.0,
        on: retries.Worth | tuple[retries.Worth, ...] = (Exception,),
        deadline: float | None = None,
    ) -> Self:
        """Try the step again when it fails.

        Args:
            attempts: tries in all, the first one included.
            backoff: seconds before the second try; each further wait is twice as long.
            max_delay: the longest wait, in seconds.
            jitter: fraction (0 to 1) by which a wait varies at random.
            on: what is worth another try: exception classes, and functions that get the exception and return True
                or False; one of them is enough.
            deadline: seconds after the first try began in which another may begin. No wait goes beyond it; a try that
                runs is not stopped by it (that is what `.timeout()` does).

        Raises:
            StepDefinitionError: an argument is out of its range, or `.retry()` was given already.
        """
        self._refuse_twice("retry", self.modifiers.retry is not None)
        policy = retries.retry_policy(self.name, attempts, backoff, max_delay, jitter, on, deadline)
        return self._with(attrs.evolve(self.modifiers, retry=policy))

    def timeout(self, seconds: float) -> Self:
        """Limit how long one try may take; a try that takes longer fails with `StepTimeoutError`.

        A synchronous function with a timeout runs on a thread of its own, and is left behind when it does not end.

        Args:
            seconds: the limit, above 0.

        Raises:
            StepDefinitionError: the number is not above 0, or `.timeout()` was given already.
        """
        self._refuse_twice("timeout", self.modifiers.timeout_seconds is not None)
        return self._with(attrs.evolve(self.modifiers, timeout_seconds=checked_timeout(self.name, seconds)))

    def ephemeral(self) -> Self:
        """Never record the step and run it again at each replay: for a model, a connection, an open file.

        Raises:
            StepDefinitionError: it was given already, or the step is secret or has a checkpoint.
        """
        if self.modifiers.is_secret:
            refuse_needless_ephemeral(self.name)
        self._refuse_twice("ephemeral", self.modifiers.is_ephemeral)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, is_ephemeral=True)))

    def evidence(self, *claims: Any, require_all: bool = True, min_verified: int | None = None) -> Self:
        """Claim what is true of the outside world once the step is done.

        The claims are checked after each try, before anything is saved: one that fails fails the try. They are checked
        again before a resume reuses the result, except those that are `.transient()`.

        Args:
            *claims: claims (`flowckpt.evidence`), functions that get the step's result and return a claim or a list
                of them, or one `EvidencePack` alone.
            require_all: whether every claim must hold.
            min_verified: how many must hold, where some may fail; sets `require_all` aside.

        Raises:
            StepDefinitionError: an argument is none of these, or `.evidence()` was given already.
        """
        self._refuse_twice("evidence", self.modifiers.evidence is not None)
        claimed = evidences.claimed_evidence(self.name, claims, require_all, min_verified)
        return self._with(attrs.evolve(self.modifiers, evidence=claimed))

    def at_most_once(self) -> Self:
        """Never repeat the step on a guess: for a payment, a mail, anything that must not be done twice.

        A mark is made durable before the step begins, and its result as soon as it ends, checkpoint or not. When the
        process dies in between, the step's evidence decides: proved done, it is adopted; proved not done, it is run;
        and where the evidence cannot tell, the resume stops and asks.

        Raises:
            StepDefinitionError: it was given already, or the step is ephemeral.
        """
        self._refuse_twice("at_most_once", self.modifiers.is_at_most_once)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, is_at_most_once=True)))

    def adopt(self, function: Callable[..., Any]) -> Self:
        """Rebuild the result of an `.at_most_once()` step whose effect is proved, but whose end was never recorded.

        Args:
            function: gets the arguments that the step's own function gets, and returns what it would have returned.

        Raises:
            StepDefinitionError: it cannot be called, or `.adopt()` was given already.
        """
        self._refuse_twice("adopt", self.modifiers.adopt is not None)
        adopt = self._callable("adopt", function)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, adopt=adopt)))

    def on_rerun(self, function: Callable[[Any], Any]) -> Self:
        """Undo what the recorded execution left behind, right before a resume runs the step again.

        Args:
            function: gets the recorded output.

        Raises:
            StepDefinitionError: it cannot be called with one argument, the step is ephemeral, or `.on_rerun()` was given already.
        """
        self._refuse_twice("on_rerun", self.modifiers.on_rerun is not None)
        undo = of_one_argument(self.name, "on_rerun", self._callable("on_rerun", function))
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, on_rerun=undo)))

    def _with_secret(self) -> Any:
        modifiers = self.modifiers
        self._refuse_twice("secret", modifiers.is_secret)
        if modifiers.is_ephemeral:
            refuse_needless_ephemeral(self.name)
        return self._with(checked_together(self.name, attrs.evolve(modifiers, is_secret=True, is_ephemeral=True)))

    def rollback(self, function: Callable[[Any], Any]) -> Self:
        """Undo what the step did, when the run fails or is cancelled later: newest first, in every attempt.

        Args:
            function: gets the recorded output, sync or async.

        Raises:
            StepDefinitionError: it cannot be called with one argument, the step is ephemeral, or `.rollback()` was given already.
        """
        self._refuse_twice("rollback", self.modifiers.rollback is not None)
        undo = of_one_argument(self.name, "rollback", self._callable("rollback", function))
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, rollback=undo)))

    def on(self, executor: str, *, resources: Mapping[str, float] | None = None) -> Self:
        """Run the step elsewhere: on a thread, in another process, on another machine.

        It is for `.python()` and for the members of a `.map()` of a function. Where a step runs is no part of its
        identity: a step that is moved to another executor keeps its recorded result.

        Args:
            executor: `thread`, `process`, `engine` (the engine's own process, where a default executor is given), or a
                name that the engine knows: `WorkflowEngine(executors={"gpu": …})`.
            resources: what a worker must have, and how much of it the step takes, where the executor knows resources.

        Raises:
            StepDefinitionError: it is no name, the step is ephemeral, or `.on()` was given already.
        """
        self._refuse_twice("on", self.modifiers.placement is not None)
        placed = placements.placement(self.name, executor, resources)
        return self._with(checked_together(self.name, attrs.evolve(self.modifiers, placement=placed)))

    def _callable(self, modifier: str, function: Any) -> Any:
        if not callable(function):
            raise StepDefinitionError(
                f"step {self.name!r}: .{modifier}() needs a function, got {function!r:.80} ({type(function).__name__})",
                step=self.name,
                where=caller(),
            )
        return function

    def version(self, tag: str) -> Self:
        """Tag what the step means; a recorded result with another tag is no longer this step's result.

        Args:
            tag: any text, compared for equality.

        Raises:
            StepDefinitionError: the tag is no text or blank, or `.version()` was given already.
        """
        self._refuse_twice("version", self.modifiers.version is not None)
        check_name(tag, "version tag")
        return self._with(attrs.evolve(self.modifiers, version=tag))


def check_name(name: object, what: str) -> None:
    """Refuse what cannot name a step.

    Args:
        name: the name.
        what: what it is to name, for the error.

    Raises:
        StepDefinitionError: it is no text, blank, no valid Unicode, or longer than 500 characters.
    """
    if not isinstance(name, str):
        raise StepDefinitionError(f"a {what} must be text, got {name!r} ({type(name).__name__})", where=caller())
    if not name.strip():
        raise StepDefinitionError(f"a {what} must not be blank, got {name!r}", step=name, where=caller())
    try:
        name.encode()
    except UnicodeEncodeError:
        raise StepDefinitionError(f"a {what} must be valid Unicode, got {name!r:.80}", where=caller()) from None
    if len(name) > MAX_NAME_LENGTH:
        raise StepDefinitionError(
            f"a {what} may have {MAX_NAME_LENGTH} characters, got {len(name)}: {name[:40]!r}…",
            step=name[:MAX_NAME_LENGTH],
            where=caller(),
            remedy="Name the work, and pass the data as arguments.",
        )


# A step's function has a name, because the name is part of what the step is.


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def told_of(value: object) -> str:
    """Say what was given instead, in a few words.

    Args:
        value: it.
    """
    if isinstance(value, Modifiable):
        return repr(value)
    return f"{value!r:.80} ({type(value).__name__})"


def check_function(step_name: str, function: object, action: str) -> None:
    """Refuse what is no named function.

    Args:
        step_name: the step.
        function: what it was given.
        action: the action that it was given to.

    Raises:
        StepDefinitionError: it is not callable, a lambda, or a workflow.
    """
    if isinstance(function, Workflow):
        raise StepDefinitionError(
            f"step {step_name!r}: .{action}() was given the workflow {function.name!r}, whose generator nobody would drive",
            step=step_name,
            where=caller(),
            remedy="Run it inside this one by .workflow(child, …), or for each of some items by .map(child, items).",
        )
    if not callable(function) or getattr(_unwrapped(function), "__name__", "") == "<lambda>":
        raise _not_a_named_function(step_name, function, action)


def _not_a_named_function(step_name: str, function: object, action: str) -> StepDefinitionError:
    if callable(function):
        what = f"a lambda ({getattr(getattr(_unwrapped(function), '__code__', None), 'co_filename', '?')})"
        remedy = "Write 'def name(…): …': the function's name is part of the step's identity."
    else:
        what = f"{told_of(function)}, which cannot be called"
        remedy = f"Pass the function and its arguments apart: .{action}(fetch, source), not .{action}(fetch(source))."
        if isinstance(function, Modifiable):
            remedy = "Pass the function itself; steps beside each other are a parallel(…)."
    return StepDefinitionError(
        f"step {step_name!r}: .{action}() needs a named function, got {what}",
        step=step_name,
        where=caller(),
        remedy=remedy,
    )


P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
Item = TypeVar("Item")


@attrs.frozen(eq=False, repr=False, init=False)
class Step(Modifiable, Generic[T_co]):
    """A step with its action: what a workflow yields.

    `rows = yield step(…)` gives the step's output; `rows = yield from step(…)` is the same step with its type kept.
    """

    action: Action

    def __init__(self, name: str, modifiers: Modifiers, action: Action) -> None:
        # As attrs would fill in what is frozen, but with each slot's own setter: 0.25 µs, not 0.35, twice a step.
        _set_name(self, name)
        _set_modifiers(self, modifiers)
        _set_action(self, action)

    def __repr__(self) -> str:
        return f"<step {self.name!r}: .{self.action.step_type}()>"

    def __iter__(self) -> Generator[Step[T_co], Any, T_co]:
        """Yield the step itself and return what it is answered with: `yield from` for type checkers."""
        output: T_co = yield self
        return output

    def _with_checkpoint(self) -> Self:
        return type(self)(self.name, CHECKPOINTED, self.action)

    def secret(self) -> Step[Secret[T_co]]:
        """Keep the output out of records, logs and events; the workflow gets it as a `Secret`.

        What is not recorded cannot be restored: the step is run again at each replay, as an ephemeral one is.

        Raises:
            StepDefinitionError: it was given already, or with a modifier that needs a record of the output.
        """
        made: Step[Secret[T_co]] = self._with_secret()
        return made

    def python(self, *args: Any, **kwargs: Any) -> Self:
        """Refuse a second action.

        Raises:
            StepDefinitionError: always.
        """
        del args, kwargs
        raise self._second_action()

    command = map = workflow = sleep = wait = approval = python

    def _second_action(self) -> StepDefinitionError:
        return StepDefinitionError(
            f"step {self.name!r} has an action already: .{self.action.step_type}()",
            step=self.name,
            where=caller(),
            remedy="Yield two steps.",
        )


_set_name, _set_modifiers = vars(Modifiable)["name"].__set__, vars(Modifiable)["modifiers"].__set__
_set_action = vars(Step)["action"].__set__


@attrs.frozen(eq=False, repr=False)
class StepWithoutAction(Modifiable):
    """A step that still lacks its action."""

    if not TYPE_CHECKING:  # type checkers refuse `yield from` such a step; the engine does, by its name and line
        __iter__ = Step.__iter__

    def secret(self) -> SecretStepWithoutAction:
        """Keep the output out of records, logs and events; see `Step.secret`.

        Raises:
            StepDefinitionError: it was given already, or with a modifier that needs a record of the output.
        """
        made: SecretStepWithoutAction = self._with_secret()
        return made

    @overload
    def python(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Step[R]: ...
    @overload
    def python(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def python(  # type: ignore[overload-cannot-match]  # it is matched where the first does not fit the arguments
        self, function: Callable[..., R], /, *, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> Step[R]: ...
    @overload
    def python(  # type: ignore[overload-cannot-match]  # likewise
        self, function: Callable[..., R], /, *, kwargs: Mapping[str, Any]
    ) -> Step[R]: ...
    def python(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step[Any]:
        """Call a Python function, sync or async.

        Args:
            function: a named function; its qualified name is part of the step's identity.
            *args: its positional arguments; or, as the only ones, the keywords `args=(…)` and `kwargs={…}`.
            **kwargs: its keyword arguments.

        Raises:
            StepDefinitionError: it is not callable, a lambda, or a workflow.
        """
        if type(function) is not FunctionType or function.__name__ == "<lambda>":
            check_function(self.name, function, "python")
        if kwargs and not args and kwargs.keys() <= {"args", "kwargs"}:
            args, kwargs = explicit_arguments(self.name, function, kwargs)
        return Step(self.name, self.modifiers, PythonAction(function, args, kwargs))

    @overload
    def map(
        self,
        function: Callable[[Item], Coroutine[Any, Any, R]] | Workflow[..., R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
    ) -> Step[list[R]]: ...
    @overload
    def map(
        self,
        function: Callable[[Item], Coroutine[Any, Any, R]] | Workflow[..., R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
        min_success: float,
        tolerate: float | None = None,
    ) -> Step[list[R | StepFailedError]]: ...
    @overload
    def map(
        self,
        function: Callable[[Item], Coroutine[Any, Any, R]] | Workflow[..., R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
        tolerate: float,
    ) -> Step[list[R | StepFailedError]]: ...
    @overload
    def map(
        self,
        function: Callable[[Item], R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
    ) -> Step[list[R]]: ...
    @overload
    def map(
        self,
        function: Callable[[Item], R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
        min_success: float,
        tolerate: float | None = None,
    ) -> Step[list[R | StepFailedError]]: ...
    @overload
    def map(
        self,
        function: Callable[[Item], R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
        tolerate: float,
    ) -> Step[list[R | StepFailedError]]: ...
    def map(
        self,
        function: Any,
        items: Iterable[Any],
        *,
        key: Callable[[Any], str | int] | None = None,
        concurrency: int | None = None,
        min_success: float | None = None,
        tolerate: float | None = None,
    ) -> Step[Any]:
        """Call a function for each of some items, several at a time; the outputs come in the order of the items.

        Each call is a step of its own: it has its path (`pages/[17]`), its retries, time limit, evidence and record, as
        the modifiers say. After a crash only those run that have no result yet.

        Args:
            function: a named function of one item, sync or async; or a workflow with one input.
            items: the items, as many as you like; they may be made one by one.
            key: names an item in its path, so that items may come and go; where not given, they are numbered.
            concurrency: how many run beside each other; 32 where not given.
            min_success: how many must succeed for the map to succeed: a number, or a fraction as a float.
            tolerate: how many may fail: likewise. With either of them, a `StepFailedError` stands in the place of each
                output that there is not; without, the first failure stops the rest and fails the map.

        Raises:
            StepDefinitionError: an argument is none of these.
        """
        action = composites.map_action(
            self.name, function, items, key=key, concurrency=concurrency, min_success=min_success, tolerate=tolerate
        )
        return Step(self.name, self.modifiers, action)

    def workflow(self, child: Workflow[P, R], /, *args: P.args, **inputs: P.kwargs) -> Step[R]:
        """Run a workflow inside this one: its steps have their places under this step's path.

        Args:
            child: the workflow.
            *args: none: inputs are given by name.
            **inputs: its inputs.

        Raises:
            StepDefinitionError: it is no workflow.
            InputError: an input is unknown or missing.
        """
        return Step(self.name, self.modifiers, composites.workflow_action(self.name, child, args, inputs))

    def command(
        self,
        argv: Sequence[str | PathLike[str]],
        *,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str | Secret[str] | None] | None = None,
        stdin: str | bytes | Secret[str] | Secret[bytes] | None = None,
        max_output: int = 1_000_000,
    ) -> Step[CommandOutput]:
        """Run a program, without a shell.

        A program that returns another code than 0 fails the step, unless the step claims the code: `command_exit(2)`.

        Args:
            argv: a list of the program and its arguments; a path without `/` is looked for on the PATH.
            cwd: the directory to run it in, relative to the process's own.
            env: names to add to the environment of the process; None takes one out of it.
            stdin: what it reads, text as UTF-8; nothing where not given, and never the terminal.
            max_output: bytes that are kept of its standard output, and as many of its standard error: the first and
                the last half.

        Raises:
            StepDefinitionError: an argument is none that a program can be run with.
        """
        action = command_arguments.command_action(self.name, argv, cwd, env, stdin, max_output)
        return Step(self.name, self.modifiers, action)

    def sleep(self, time: float | timedelta | datetime | None = None, *, until: datetime | None = None) -> Step[None]:
        """Wait for a time. The end is fixed when the step is first met; a run that is resumed does not wait anew.

        Args:
            time: seconds, a timedelta, or the time itself.
            until: the time, aware, instead.

        Raises:
            StepDefinitionError: it is negative, more than a century, no time, or a time without a zone.
        """
        return Step(self.name, self.modifiers, waits.sleep_action(self.name, time, until))

    @overload
    def wait(self, signal: str, *, timeout: float | timedelta | None = None, default: Any = ...) -> Step[Any]: ...
    @overload
    def wait(self, signal: str, *, type: type[R], timeout: float | timedelta | None = None) -> Step[R]: ...
    @overload
    def wait(self, signal: str, *, type: type[R], timeout: float | timedelta, default: None) -> Step[R | None]: ...
    @overload
    def wait(self, signal: str, *, type: type[R], timeout: float | timedelta, default: R) -> Step[R]: ...
    def wait(self, signal: str, *, type: Any = Any, timeout: Any = None, default: Any = ...) -> Step[Any]:  # noqa: A002 - part of the language
        """Wait for a signal, and return what it carries. Each signal is taken by one wait; an early one is kept.

        Args:
            signal: its name: `flowckpt signal RUN NAME`.
            type: the type of what it carries; where not given, JSON's own types.
            timeout: seconds or a timedelta; when they are over, the step fails with `StepTimeoutError`.
            default: what is returned then, instead.

        Raises:
            StepDefinitionError: an argument is none of these.
        """
        given = waits.NOTHING if default is ... else default
        return Step(self.name, self.modifiers, waits.wait_action(self.name, signal, type, timeout, given))

    def approval(
        self,
        name: str | None = None,
        *,
        of: Any = None,
        timeout: float | timedelta | None = None,
        on_rejection: str = "fail",
    ) -> Step[Approval]:
        """Wait until somebody approves: `flowckpt approve RUN NAME`.

        Args:
            name: what is to be approved, for people; the step's name where not given.
            of: a list of claims about what is to be approved, or an `EvidencePack`; not an empty one. Their facts are taken when the step is met,
                shown to whoever decides, and recorded with the decision; an approval is void if they move before the last step behind it has
                begun. A `.transient()` claim must hold when the answer is taken, and not after that.
            timeout: seconds or a timedelta; when they are over, the step fails with `StepTimeoutError`.
            on_rejection: `fail`: the step fails with `ApprovalRejectedError`; `return`: an `Approval` that says no.

        Raises:
            StepDefinitionError: an argument is none of these.
        """
        action = waits.approval_action(self.name, name, of, timeout, on_rejection)
        return Step(self.name, self.modifiers, action)


if TYPE_CHECKING:

    class SecretStepWithoutAction(Modifiable):
        """What type checkers see of a step that is secret before it has its action."""

        @overload
        def python(
            self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
        ) -> Step[Secret[R]]: ...
        @overload
        def python(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[Secret[R]]: ...
        @overload
        def python(  # type: ignore[overload-cannot-match]  # as above
            self, function: Callable[..., R], /, *, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
        ) -> Step[Secret[R]]: ...
        @overload
        def python(  # type: ignore[overload-cannot-match]  # as above
            self, function: Callable[..., R], /, *, kwargs: Mapping[str, Any]
        ) -> Step[Secret[R]]: ...
        def python(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step[Any]:
            """Call a Python function; see `StepWithoutAction.python`."""
            raise NotImplementedError

        def command(
            self,
            argv: Sequence[str | PathLike[str]],
            *,
            cwd: str | PathLike[str] | None = None,
            env: Mapping[str, str | Secret[str] | None] | None = None,
            stdin: str | bytes | Secret[str] | Secret[bytes] | None = None,
            max_output: int = 1_000_000,
        ) -> Step[Secret[CommandOutput]]:
            """Run a program; see `StepWithoutAction.command`."""
            raise NotImplementedError


def step(name: str) -> StepWithoutAction:
    """Begin a unit of work; its action and its modifiers follow: `.python(fetch, source).checkpoint()`.

    Args:
        name: what to call it. It need not be unique: a name used again gets its occurrence in the path.

    Raises:
        StepDefinitionError: the name is no text, blank, or longer than 500 characters.
    """
    if type(name) is str:
        return _begun(name)
    check_name(name, "step name")
    return StepWithoutAction(str.__str__(name), PLAIN)  # str() of an enum's member is its label


@functools.lru_cache(maxsize=4096)
def _begun(name: str) -> StepWithoutAction:
    """Begin a step of a plain name: checked and made once, because a step is immutable and loops repeat names."""
    check_name(name, "step name")
    return StepWithoutAction(name, PLAIN)
