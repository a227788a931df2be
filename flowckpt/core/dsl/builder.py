"""`step(name)` and its actions."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from os import PathLike
from types import FunctionType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypedDict, TypeVar, Unpack, overload

import attrs

from flowckpt.core.dsl.checks import (
    MOST_NOTED,
    check_function,
    check_name,
    created_steps,
    note_created,
    unpack_arguments,
    unyielded_argument_error,
)
from flowckpt.core.dsl.modifiers import (
    PLAIN,
)
from flowckpt.core.dsl.step import Action, PythonAction, Step, StepBase
from flowckpt.core.dsl.workflow import Workflow
from flowckpt.core.system.lazy import LazyModule
from flowckpt.core.system.secret import Secret

if TYPE_CHECKING:
    from flowckpt.core.dsl import command as command_arguments
    from flowckpt.core.dsl import composites, waits
    from flowckpt.core.records.outputs import Approval, CommandOutput
    from flowckpt.errors import StepFailedError
else:
    command_arguments = LazyModule("flowckpt.core.dsl.command")
    composites = LazyModule("flowckpt.core.dsl.composites")
    waits = LazyModule("flowckpt.core.dsl.waits")


P = ParamSpec("P")
R = TypeVar("R")
Item = TypeVar("Item")

if TYPE_CHECKING:

    class MapOptions(TypedDict, Generic[Item], total=False):
        """The options of `map` that do not affect the type of its output."""

        key: Callable[[Item], str | int] | None
        concurrency: int | None


@attrs.frozen(eq=False, repr=False)
class StepBuilder(StepBase):
    """A step without its action."""

    if not TYPE_CHECKING:  # type checkers refuse `yield from` such a step; the engine does, by its name and line
        __iter__ = Step.__iter__

    def _make_step(self, action: Action) -> Step[Any]:
        note_created(action, self.name, depth=3)
        return Step(self.name, self.modifiers, action)

    def secret(self) -> SecretStepBuilder:
        """Modifier: keep the output out of records, logs and events.

        The workflow receives a `Secret`; for a command, a secret `CommandOutput`, and no line of it is emitted. The
        output is not recorded, so the step runs at each replay, like an ephemeral one. It cannot be combined with
        `.ephemeral()`, `.at_most_once()`, `.checkpoint()`, `.adopt()` or `.on_rerun()`.

        Raises:
            StepDefinitionError: it was given before, or with a modifier that needs a recorded output.
        """
        made: SecretStepBuilder = self._mark_secret()
        return made

    @overload
    def python(
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Step[R]: ...
    @overload
    def python(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Step[R]: ...
    @overload
    def python(  # type: ignore[overload-cannot-match]  # matches when the arguments do not fit the first
        self, function: Callable[..., R], /, *, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None
    ) -> Step[R]: ...
    @overload
    def python(  # type: ignore[overload-cannot-match]  # likewise
        self, function: Callable[..., R], /, *, kwargs: Mapping[str, Any]
    ) -> Step[R]: ...
    def python(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Step[Any]:
        """Action: call a Python function, sync or async.

        `.python(function, args=(…), kwargs={…})` is for parameters with unusual names. A function that itself has a
        parameter `args` or `kwargs` receives it unchanged.

        Args:
            function: a named function, method, class, `functools.partial` or callable object. Its qualified name is
                part of the step's identity, so lambdas are refused.
            *args: positional arguments. Each call gets copies of lists and other values that it could change.
            **kwargs: keyword arguments, likewise.

        Raises:
            StepDefinitionError: the function is not callable, a lambda, or a workflow.
        """
        if type(function) is not FunctionType or function.__name__ == "<lambda>":
            check_function(self.name, function, "python")
        if kwargs and not args and kwargs.keys() <= {"args", "kwargs"}:
            args, kwargs = unpack_arguments(self.name, function, kwargs)
        for argument in (*args, *kwargs.values()) if kwargs else args:
            if type(argument) is Step:
                raise unyielded_argument_error(self.name, argument)
        action, name = PythonAction(function, args, kwargs), self.name
        if (noted := created_steps()) is not None and len(noted) < MOST_NOTED:  # `note_created`, inlined
            frame = sys._getframe(1)
            noted[id(action)] = (action, name, frame.f_code, frame.f_lasti)
        return Step(name, self.modifiers, action)

    @overload
    def map(  # pyright: ignore[reportOverlappingOverload] - constants may be named as any option
        self,
        function: Callable[[Item], Coroutine[Any, Any, R]] | Workflow[..., R],
        items: Iterable[Item],
        **how: Unpack[MapOptions[Item]],
    ) -> Step[list[R]]: ...
    @overload
    def map(
        self, function: Callable[[Item], R], items: Iterable[Item], **how: Unpack[MapOptions[Item]]
    ) -> Step[list[R]]: ...
    @overload
    def map(
        self,
        function: Callable[Concatenate[Item, ...], Coroutine[Any, Any, R]] | Workflow[..., R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
        min_success: None = None,
        tolerate: None = None,
        **constants: Any,
    ) -> Step[list[R]]: ...
    @overload
    def map(
        self,
        function: Callable[Concatenate[Item, ...], R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
        min_success: None = None,
        tolerate: None = None,
        **constants: Any,
    ) -> Step[list[R]]: ...
    @overload
    def map(
        self,
        function: Callable[Concatenate[Item, ...], Coroutine[Any, Any, R]] | Workflow[..., R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
        min_success: float | None = None,
        tolerate: float | None = None,
        **constants: Any,
    ) -> Step[list[R | StepFailedError]]: ...
    @overload
    def map(
        self,
        function: Callable[Concatenate[Item, ...], R],
        items: Iterable[Item],
        *,
        key: Callable[[Item], str | int] | None = None,
        concurrency: int | None = None,
        min_success: float | None = None,
        tolerate: float | None = None,
        **constants: Any,
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
        **constants: Any,
    ) -> Step[Any]:
        """Action: call a function for each item, several at a time; the output is the list of outputs.

        The outputs are in the order of the items. Each call is a step of its own, with its path (`pages/[17]`), record
        and the modifiers of this step. After a crash, only items without a result run. `.checkpoint()` applies to each
        call and to the map; a name given to it is that of the map's checkpoint.

        Without `min_success` and `tolerate`, the first failure stops the others and fails the map with
        `FanOutFailedError`. With one of them, a `StepFailedError` replaces each missing output. An error in `key` or
        while iterating over the items fails the map.

        Args:
            function: a named function of one item, sync or async; or a workflow with one input without a default.
            items: any iterable except text and sets; sort a set first. The next item is requested when a call can
                start.
            key: returns the name of an item in its path (`pages/[de]`), text or a whole number, so that items can be
                added and removed between attempts; items are numbered by default.
            concurrency: how many run in parallel; 32 by default.
            min_success: how many must succeed: a number, or a fraction as a float. Without `tolerate`, the other calls
                are stopped once this number is reached.
            tolerate: how many may fail: a number, or a fraction as a float.
            **constants: further arguments, the same for each call. Use `functools.partial` for a parameter that has the
                name of an argument above.

        Raises:
            StepDefinitionError: an argument is invalid.
        """
        completion = {"min_success": min_success, "tolerate": tolerate}
        action = composites.map_action(
            self.name, function, items, constants, key=key, concurrency=concurrency, **completion
        )
        return self._make_step(action)

    def workflow(self, child: Workflow[P, R], /, *args: P.args, **inputs: P.kwargs) -> Step[R]:
        """Action: run another workflow inside this one; the output is what the child returns.

        The step itself takes `.checkpoint()`, `.version()` and `.rollback()`. The child's steps have their own
        modifiers, and their paths are below this step's path.

        Args:
            child: the workflow, not called.
            *args: not allowed; only for type checkers.
            **inputs: its inputs, checked against the child's annotations at the `yield`.

        Raises:
            StepDefinitionError: the child is not a workflow.
            InputError: an input is unknown or missing.
        """
        return self._make_step(composites.workflow_action(self.name, child, args, inputs))

    def start(self, workflow: Workflow[P, Any], /, *args: P.args, **inputs: P.kwargs) -> Step[str]:
        """Action: start another run, exactly once, without waiting for it; the output is its id.

        The id is derived from this run, the path of the step and the inputs, so a step repeated after a crash starts
        nothing twice. The run is in the same store, has its own history, and may fail without failing this run. This
        process runs it in parallel; if the process ends first, `flowckpt recover` continues the run.

        Args:
            workflow: the workflow, not called.
            *args: not allowed; only for type checkers.
            **inputs: its inputs, recorded with the new run.

        Raises:
            StepDefinitionError: `workflow` is not a workflow, or an input is secret.
            InputError: an input is unknown or missing.
        """
        return self._make_step(composites.start_action(self.name, workflow, args, inputs))

    def signal(self, run: str, name: str, data: Any = None) -> Step[None]:
        """Action: send a signal to another run in the same store, exactly once; the next wait of this name takes it.

        The id of the message is derived from this run, the path of the step and its arguments, so a step repeated after a
        crash sends nothing twice.

        Args:
            run: the id of the run.
            name: the signal's name.
            data: its data.

        Raises:
            StepDefinitionError: an argument is invalid.
        """
        return self._make_step(waits.signal_action(self.name, run, name, data))

    def reply(self, to: str, value: Any = None) -> Step[Any]:
        """Action: reply to the signal that a `.wait()` has taken; the output is the reply.

        The sender gets it: `flowckpt signal RUN NAME --wait`, or `engine.signal(…, wait=60)`. The reply is recorded and
        durable at once, without `.checkpoint()`. If the wait ended without a signal, nothing is sent.

        Args:
            to: the name of the step that waited; if there are several, the last one counts. Or its path, if it is
                in another scope, such as a member of a `parallel`.
            value: the reply.

        Raises:
            StepDefinitionError: an argument is invalid.
        """
        return self._make_step(waits.reply_action(self.name, to, value))

    def command(
        self,
        argv: Sequence[str | PathLike[str]],
        *,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str | Secret[str] | None] | None = None,
        stdin: str | bytes | Secret[str] | Secret[bytes] | None = None,
        max_output: int = 1_000_000,
    ) -> Step[CommandOutput]:
        """Action: run a program without a shell; the output is a `CommandOutput`.

        A non-zero exit code fails the step with `CommandFailedError`, unless the step claims the code:
        `command_exit(2)`. The program, its directory, environment and input identify the step; `max_output` does not,
        but a resume runs the program again if the recorded output was cut at a lower limit.

        Args:
            argv: the program and its arguments, as text or paths. A program without `/` is looked up on the PATH.
            cwd: the working directory, relative to that of the process.
            env: variables to add to the environment; None removes one. A `Secret` is revealed only to the program.
            stdin: the program's input: text (as UTF-8), bytes, or a `Secret` of these; empty by default, never the
                terminal.
            max_output: the number of bytes kept of standard output, and of standard error: half from the beginning and
                half from the end, with a line in between that gives the number of omitted bytes.

        Raises:
            StepDefinitionError: an argument is invalid.
        """
        return self._make_step(command_arguments.command_action(self.name, argv, cwd, env, stdin, max_output))

    def sleep(self, time: float | timedelta | datetime | None = None, *, until: datetime | None = None) -> Step[None]:
        """Action: wait for a time, and return None.

        The end is fixed when the step is first reached, so a resumed run does not wait again from the start.

        Args:
            time: seconds, a `timedelta`, or an aware `datetime` to wait for.
            until: an aware `datetime` to wait for.

        Raises:
            StepDefinitionError: the time is negative, longer than a century, invalid, or has no zone.
        """
        return self._make_step(waits.sleep_action(self.name, time, until))

    @overload
    def wait(
        self, signal: str, *, timeout: float | timedelta | None = None, default: Any = ..., ask: Any = None
    ) -> Step[Any]: ...
    @overload
    def wait(
        self, signal: str, *, type: type[R], timeout: float | timedelta | None = None, ask: Any = None
    ) -> Step[R]: ...
    @overload
    def wait(
        self, signal: str, *, type: type[R], timeout: float | timedelta, default: None, ask: Any = None
    ) -> Step[R | None]: ...
    @overload
    def wait(
        self, signal: str, *, type: type[R], timeout: float | timedelta, default: R, ask: Any = None
    ) -> Step[R]: ...
    def wait(
        self,
        signal: str,
        *,
        type: Any = Any,  # noqa: A002 - part of the language
        timeout: Any = None,
        default: Any = ...,
        ask: Any = None,
    ) -> Step[Any]:
        """Action: wait for a signal, and return its data.

        Each signal is taken by one wait; early signals are kept.

        Args:
            signal: the name of the signal, as in `flowckpt signal RUN NAME`.
            type: the type of the data; JSON's own types by default.
            timeout: seconds or a `timedelta`, after which the step fails with `StepTimeoutError`.
            default: what to return after the timeout instead; must fit `type`, or be None.
            ask: the question, any value that can be recorded: shown with the wait by `flowckpt show`, `list` and the local
                page. Another question starts the wait again.

        Raises:
            StepDefinitionError: an argument is invalid.
        """
        given = waits.NOTHING if default is ... else default
        return self._make_step(waits.wait_action(self.name, signal, type, timeout, given, ask))

    def approval(
        self,
        name: str | None = None,
        *,
        of: Any = None,
        timeout: float | timedelta | None = None,
        on_rejection: str = "fail",
        ask: Any = None,
    ) -> Step[Approval]:
        """Action: wait for an approval (`flowckpt approve RUN NAME`), and return an `Approval`.

        The facts of the claims in `of` are captured when the step is reached, shown with the approval, and recorded
        with the decision. The approval becomes void if they change before the last later step has started. A
        `.transient()` claim must hold only when the decision is taken.

        Args:
            name: what is to be approved, for people; the step's name by default.
            of: claims about what is to be approved: a non-empty list, or an `EvidencePack`.
            timeout: seconds or a `timedelta`, after which the step fails with `StepTimeoutError`.
            on_rejection: `fail`: a rejection fails the step with `ApprovalRejectedError`; `return`: it returns an
                `Approval`.
            ask: the question, as for `.wait`.

        Raises:
            StepDefinitionError: an argument is invalid.
        """
        return self._make_step(waits.approval_action(self.name, name, of, timeout, on_rejection, ask))


if TYPE_CHECKING:

    class SecretStepBuilder(StepBase):
        """A secret step without its action, for type checkers only."""

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
            """Call a Python function; see `StepBuilder.python`."""
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
            """Run a program; see `StepBuilder.command`."""
            raise NotImplementedError


_WRONG_CALL = re.compile(r"(?:StepBuilder|StepBase)\.(\w+)\(\) (?:takes|got|missing) ")


def explain_mistake(error: BaseException) -> BaseException:
    """Return a better error if a step was asked for an attribute that it does not have; otherwise the same error.

    A note with the signature is added to the error of a method of a step that was called with wrong arguments.

    This is not done by a `__getattr__` of steps, because CPython 3.11 then looks up all their attributes the long way.

    Args:
        error: what a workflow raised.
    """
    if type(error) is TypeError and (called := _WRONG_CALL.match(str(error))) is not None:
        parameters = [*inspect.signature(getattr(StepBuilder, called[1])).parameters.values()][1:]
        bare = inspect.Signature([each.replace(annotation=each.empty) for each in parameters])
        hint = "; argv is a list: the program and its arguments" if called[1] == "command" else ""
        error.add_note(f"The method is .{called[1]}{bare}{hint}.")
        return error
    step, name = getattr(error, "obj", None), getattr(error, "name", None)
    if type(error) is not AttributeError or not isinstance(step, StepBase) or not name or name.startswith("_"):
        return error
    lines = [f"{frame.f_code.co_filename}:{line}" for frame, line in traceback.walk_tb(error.__traceback__)]
    made = step._attribute_error(name, lines[-1] if lines else "")
    made.name, made.obj = name, step  # with which Python says "Did you mean"
    return made.with_traceback(error.__traceback__)


def step(name: str) -> StepBuilder:
    """Create a step; its action and its modifiers follow: `step("fetch").python(fetch, source).checkpoint()`.

    A step needs exactly one action. Modifiers may precede or follow the action, each at most once, and their order does
    not matter. Steps are immutable: each method returns a new one. In a workflow, `value = yield step(…)` returns the
    step's output; `value = yield from step(…)` is the same step with its type kept for type checkers.

    Args:
        name: text of up to 500 characters. It need not be unique: the path of a repeated name contains its occurrence.

    Raises:
        StepDefinitionError: the name is not text, blank, or longer than 500 characters.
    """
    if type(name) is str:
        return _make_builder(name)
    check_name(name, "step name")
    return StepBuilder(str.__str__(name), PLAIN)  # str() of an enum's member is its label


@functools.lru_cache(maxsize=4096)
def _make_builder(name: str) -> StepBuilder:
    """Return the step of a name, cached: steps are immutable, and loops repeat names."""
    check_name(name, "step name")
    return StepBuilder(name, PLAIN)
