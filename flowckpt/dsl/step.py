"""One unit of work, as a value: a name, one action, and modifiers.

Steps are immutable: every method returns a new one. A modifier may stand before or after the action and may be given
once, so the order in which a step is written never changes what it means.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, overload

import attrs

from flowckpt.dsl.actions import Action, PythonAction
from flowckpt.dsl.caller import caller
from flowckpt.dsl.modifiers import CHECKPOINTED, PLAIN, Modifiers, checked_timeout, claimed_evidence, retry_policy
from flowckpt.dsl.path import MAX_NAME_LENGTH
from flowckpt.errors import StepDefinitionError
from flowckpt.lazy import LazyModule

if TYPE_CHECKING:
    from flowckpt.checkpoint.command_output import CommandOutput
    from flowckpt.dsl import command as command_arguments
else:  # only steps that run a program need it
    command_arguments = LazyModule("flowckpt.dsl.command")

P = ParamSpec("P")
T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")


@attrs.frozen
class _Modifiable:
    """What a step is before and after its action: a name and modifiers."""

    name: str
    modifiers: Modifiers

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

    def _refuse_both(self, modifiers: Modifiers) -> Modifiers:
        if modifiers.is_ephemeral and modifiers.has_checkpoint:
            raise StepDefinitionError(
                f"step {self.name!r} is .ephemeral() and has a .checkpoint()",
                step=self.name,
                where=caller(),
                remedy="An ephemeral step is never recorded; put the checkpoint on the step before it.",
            )
        if modifiers.is_ephemeral and (modifiers.is_at_most_once or modifiers.on_rerun is not None):
            which = "at_most_once" if modifiers.is_at_most_once else "on_rerun"
            raise StepDefinitionError(
                f"step {self.name!r} is .ephemeral() and has .{which}()",
                step=self.name,
                where=caller(),
                remedy="An ephemeral step is never recorded and runs at each replay; leave out one of the two.",
            )
        return modifiers

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
            _check_name(id, "checkpoint id")
        return self._with(self._refuse_both(attrs.evolve(modifiers, has_checkpoint=True, checkpoint_id=id)))

    def _with_checkpoint(self) -> Self:
        return attrs.evolve(self, modifiers=CHECKPOINTED)

    def retry(
        self,
        attempts: int,
        backoff: float = 0.0,
        max_delay: float = 60.0,
        jitter: float = 0.0,
        on: type[BaseException] | tuple[type[BaseException], ...] = (Exception,),
    ) -> Self:
        """Try the step again when it fails.

        Args:
            attempts: tries in all, the first one included.
            backoff: seconds before the second try; each further wait is twice as long.
            max_delay: the longest wait, in seconds.
            jitter: fraction (0 to 1) by which a wait varies at random.
            on: exception classes that are worth another try.

        Raises:
            StepDefinitionError: an argument is out of its range, or `.retry()` was given already.
        """
        self._refuse_twice("retry", self.modifiers.retry is not None)
        policy = retry_policy(self.name, attempts, backoff, max_delay, jitter, on)
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
            StepDefinitionError: it was given already, or the step has a checkpoint.
        """
        self._refuse_twice("ephemeral", self.modifiers.is_ephemeral)
        return self._with(self._refuse_both(attrs.evolve(self.modifiers, is_ephemeral=True)))

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
        claimed = claimed_evidence(self.name, claims, require_all, min_verified)
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
        return self._with(self._refuse_both(attrs.evolve(self.modifiers, is_at_most_once=True)))

    def adopt(self, function: Callable[..., Any]) -> Self:
        """Rebuild the result of an `.at_most_once()` step whose effect is proved, but whose end was never recorded.

        Args:
            function: gets the arguments that the step's own function gets, and returns what it would have returned.

        Raises:
            StepDefinitionError: it cannot be called, or `.adopt()` was given already.
        """
        self._refuse_twice("adopt", self.modifiers.adopt is not None)
        return self._with(attrs.evolve(self.modifiers, adopt=self._callable("adopt", function)))

    def on_rerun(self, function: Callable[[Any], Any]) -> Self:
        """Undo what the recorded execution left behind, right before a resume runs the step again.

        Args:
            function: gets the recorded output.

        Raises:
            StepDefinitionError: it cannot be called, the step is ephemeral, or `.on_rerun()` was given already.
        """
        self._refuse_twice("on_rerun", self.modifiers.on_rerun is not None)
        undo = self._callable("on_rerun", function)
        return self._with(self._refuse_both(attrs.evolve(self.modifiers, on_rerun=undo)))

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
        _check_name(tag, "version tag")
        return self._with(attrs.evolve(self.modifiers, version=tag))


@attrs.frozen
class Step(_Modifiable, Generic[T_co]):
    """A step with its action: what a workflow yields.

    `rows = yield step(…)` gives the step's output; `rows = yield from step(…)` is the same step with its type kept.
    """

    action: Action

    def __iter__(self) -> Generator[Step[T_co], Any, T_co]:
        """Yield the step itself and return what it is answered with: `yield from` for type checkers."""
        output: T_co = yield self
        return output

    def _with_checkpoint(self) -> Self:
        return type(self)(self.name, CHECKPOINTED, self.action)

    def python(self, *args: Any, **kwargs: Any) -> Self:
        """Refuse a second action.

        Raises:
            StepDefinitionError: always.
        """
        del args, kwargs
        raise self._second_action()

    def command(self, *args: Any, **kwargs: Any) -> Self:
        """Refuse a second action.

        Raises:
            StepDefinitionError: always.
        """
        del args, kwargs
        raise self._second_action()

    def _second_action(self) -> StepDefinitionError:
        return StepDefinitionError(
            f"step {self.name!r} has an action already: .{self.action.step_type}()",
            step=self.name,
            where=caller(),
            remedy="Yield two steps.",
        )


@attrs.frozen
class StepWithoutAction(_Modifiable):
    """A step that still lacks its action."""

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
            StepDefinitionError: it is not callable, or a lambda.
        """
        if not callable(function) or getattr(_unwrapped(function), "__name__", "") == "<lambda>":
            raise _not_a_named_function(self.name, function)
        if kwargs and not args and kwargs.keys() <= {"args", "kwargs"}:
            args, kwargs = _explicit_arguments(self.name, function, kwargs)
        return Step(self.name, self.modifiers, PythonAction(function, args, kwargs))

    def command(
        self,
        argv: Sequence[str | PathLike[str]],
        *,
        cwd: str | PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        stdin: str | bytes | None = None,
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


def step(name: str) -> StepWithoutAction:
    """Begin a unit of work; its action and its modifiers follow: `.python(fetch, source).checkpoint()`.

    Args:
        name: what to call it. It need not be unique: a name used again gets its occurrence in the path.

    Raises:
        StepDefinitionError: the name is no text, blank, or longer than 500 characters.
    """
    if type(name) is str:
        return _begun(name)
    _check_name(name, "step name")
    return StepWithoutAction(str.__str__(name), PLAIN)  # str() of an enum's member is its label


@functools.lru_cache(maxsize=4096)
def _begun(name: str) -> StepWithoutAction:
    """Begin a step of a plain name: checked and made once, because a step is immutable and loops repeat names."""
    _check_name(name, "step name")
    return StepWithoutAction(name, PLAIN)


def _check_name(name: object, what: str) -> None:
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


def _unwrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _not_a_named_function(step_name: str, function: object) -> StepDefinitionError:
    if callable(function):
        what = f"a lambda ({getattr(getattr(_unwrapped(function), '__code__', None), 'co_filename', '?')})"
        remedy = "Write 'def name(…): …': the function's name is part of the step's identity."
    else:
        what = f"{function!r} ({type(function).__name__}), which cannot be called"
        remedy = "Pass the function and its arguments apart: .python(fetch, source), not .python(fetch(source))."
    return StepDefinitionError(
        f"step {step_name!r}: .python() needs a named function, got {what}",
        step=step_name,
        where=caller(),
        remedy=remedy,
    )


def _explicit_arguments(
    step_name: str, function: Callable[..., Any], given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Tell `.python(fn, args=(…), kwargs={…})` from a function that itself has parameters of these names.

    `*args` and `**kwargs` are no parameters that could be given by these names.
    """
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        found = {}.values()  # a builtin without a signature
    if any(each.name in given and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY) for each in found):
        return (), dict(given)
    args, kwargs = given.get("args", ()), given.get("kwargs") or {}
    if isinstance(args, str | bytes) or not isinstance(args, Sequence) or not isinstance(kwargs, Mapping):
        raise StepDefinitionError(
            f"step {step_name!r}: args= takes a sequence and kwargs= a mapping, got {args!r} and {kwargs!r}",
            step=step_name,
            where=caller(),
        )
    return tuple(args), dict(kwargs)
