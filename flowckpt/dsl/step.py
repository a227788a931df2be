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

from flowckpt.dsl.actions import Action, PythonAction
from flowckpt.dsl.caller import caller
from flowckpt.dsl.explicit_arguments import explicit_arguments
from flowckpt.dsl.modifiable import Modifiable, check_name
from flowckpt.dsl.modifiers import CHECKPOINTED, PLAIN, Modifiers
from flowckpt.dsl.named_function import check_function
from flowckpt.errors import StepDefinitionError
from flowckpt.lazy import LazyModule
from flowckpt.secret import Secret

if TYPE_CHECKING:
    from flowckpt.checkpoint.approval import Approval
    from flowckpt.checkpoint.command_output import CommandOutput
    from flowckpt.dsl import command as command_arguments
    from flowckpt.dsl import composite_arguments, waits
    from flowckpt.dsl.workflow import Workflow
    from flowckpt.errors import StepFailedError
else:  # only steps that run a program, are made of steps, or wait, need them
    command_arguments = LazyModule("flowckpt.dsl.command")
    composite_arguments = LazyModule("flowckpt.dsl.composite_arguments")
    waits = LazyModule("flowckpt.dsl.waits")

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
        action = composite_arguments.map_action(
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
        return Step(self.name, self.modifiers, composite_arguments.workflow_action(self.name, child, args, inputs))

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
