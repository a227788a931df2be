"""One unit of work, as a value: a name, one action, and modifiers.

Steps are immutable: every method returns a new one. A modifier may precede or follow the action and may be given once,
so their order never changes the meaning of a step.

Each kind of work that a step does has one class of frozen actions; `execution/` carries them out.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Generator, Mapping
from datetime import timedelta
from os import PathLike
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeAlias, TypeVar

import attrs

from flowckpt.core.dsl import modifiers as checked
from flowckpt.core.dsl.checks import (
    caller,
    check_name,
    check_unary,
    check_undo,
    public_names,
    step_error,
    suggestion,
)
from flowckpt.core.dsl.modifiers import (
    CHECKPOINTED,
    PLAIN,
    Modifiers,
    check_combination,
    refuse_needless_ephemeral,
    timeout_in_seconds,
)
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.declared import module_name
from flowckpt.core.system.functions import cached_per_function
from flowckpt.core.system.secret import Secret
from flowckpt.errors import StepDefinitionError, StepNotYieldedError


class Action:
    """The base of the actions."""

    __slots__ = ()
    step_type: ClassVar[str] = ""
    is_command: ClassVar[bool] = False
    """Whether it runs a program."""
    is_composite: ClassVar[bool] = False
    """Whether it is made of steps that have their own results."""
    refused: ClassVar[frozenset[str]] = frozenset()
    """The modifiers that cannot be used with this action."""
    modifies_members: ClassVar[bool] = False
    """Whether the step's modifiers apply to each of those steps."""
    is_patch: ClassVar[bool] = False
    """Whether it is a mark of `patched`, which records which code a run uses."""
    is_saved: ClassVar[bool] = False
    """Whether its result is made durable as if the step had a `.checkpoint()`."""
    is_waiting: ClassVar[bool] = False
    """Whether it waits for a time or a message, so that the run may be suspended meanwhile."""

    @property
    def function_name(self) -> str:
        """`module:qualname` of the action's function; empty if there is none."""
        return ""

    @property
    def output_type(self) -> Any:
        """The type of the output, if the action itself determines it."""
        return Any

    @property
    def parameters(self) -> Collection[str]:
        """The names of its arguments, for `.rollback()` functions."""
        return self.arguments().keys()

    def arguments(self) -> Mapping[str, Any]:
        """Return its arguments by name."""
        return {}

    @property
    def identity(self) -> Mapping[str, Any]:
        """Further facts that identify the work besides the function and its arguments, by name."""
        return {}

    def refused_modifier(self, modifiers: Modifiers) -> str:
        """Return a modifier that cannot be used with this action, or an empty text."""
        return modifiers.first_of(self.refused)


@attrs.define(eq=False, repr=False)  # never modified, but not frozen: that takes 0.25 µs a step
class PythonAction(FieldEquality, Action):
    """Call a Python function.

    Attributes:
        function: the function.
        args: its positional arguments.
        kwargs: its keyword arguments.
    """

    step_type: ClassVar[str] = "python"

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def parameters(self) -> Collection[str]:
        """The names of its arguments."""
        return parameters_of(self.function)

    def arguments(self) -> Mapping[str, Any]:
        """Return its arguments by name, with defaults applied."""
        bound = inspect.signature(self.function).bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        return bound.arguments

    @property
    def function_name(self) -> str:
        """`module:qualname` of the function."""
        function = self.function
        return _name_of_function(function) if type(function) is FunctionType else function_name(function)


class RunAction(Action):
    """The base of the actions that start other runs or send them signals.

    Both are exactly once. The id of the run or message is derived from the acting run, the path of the step and its
    arguments, so a step repeated after a crash finds the run or message that it made.
    """

    __slots__ = ()
    refused: ClassVar[frozenset[str]] = frozenset(
        # exactly once without `at_most_once`
        {
            "at_most_once",
            "adopt",
            "secret",
            "ephemeral",
            "on",
            "timeout",
            "cache",
            "record_arguments",
            "reads",
            "writes",
        }
    )


def parameters_of(function: Callable[..., Any]) -> Collection[str]:
    """Return the names of a function's parameters; none for a builtin without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()


def function_name(function: Callable[..., Any]) -> str:
    """Return the recorded name of a function: `module:qualname`.

    The module of a script is called `__main__`, which would not match the same file run by the command, so the name of its
    file (or its `-m` name) replaces it.

    Args:
        function: a function, method, class, partial or callable object.
    """
    while isinstance(
        function, functools.partial | MethodType
    ):  # new objects each time; named after the function they call
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return _name_of_function(function)


@cached_per_function
def _name_of_function(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or ""
    return f"{module_name(module)}:{named.__qualname__}"


T_co = TypeVar("T_co", covariant=True)
AnyPath: TypeAlias = str | PathLike[str]


@attrs.frozen(eq=False, repr=False)
class StepBase(FieldEquality):
    """A name and modifiers: the base of steps with and without an action."""

    name: str
    modifiers: Modifiers

    def __repr__(self) -> str:
        return f"<step {self.name!r} without an action>"

    def _attribute_error(self, attribute: str, where: str) -> AttributeError:
        """Return the error for an attribute that the step does not have."""
        del where
        known = ", ".join(each for each in public_names(type(self)) if each not in ("modifiers", "name"))
        near = suggestion(type(self), attribute) or f" (it has {known})"
        return AttributeError(f"step {self.name!r} has no action or modifier {attribute!r}{near}")

    def _replace_modifiers(self, modifiers: Modifiers) -> Self:
        return attrs.evolve(self, modifiers=modifiers)

    def _add_modifier(self, modifier: str, **fields: Any) -> Self:
        """Return the step with the fields of one more modifier; refuse a repeated one."""
        if any(getattr(self.modifiers, name) != getattr(PLAIN, name) for name in fields):
            raise checked.repeated_modifier_error(self.name, modifier)
        return self._replace_modifiers(check_combination(self.name, attrs.evolve(self.modifiers, **fields)))

    def checkpoint(self, id: str | None = None) -> Self:  # noqa: A002 - the keyword is part of the language
        """Modifier: take a checkpoint after the step succeeded.

        Args:
            id: the checkpoint's id; the step's path by default.

        Raises:
            StepDefinitionError: it was given before, the id is blank, or the step is ephemeral.
        """
        if id is not None:
            check_name(id, "checkpoint id")
        return self._add_modifier("checkpoint", has_checkpoint=True, checkpoint_id=id)

    def retry(
        self,
        attempts: int | None,
        backoff: float | timedelta = 0.0,
        max_delay: float | timedelta | None = None,
        jitter: float = 0.0,
        on: checked.RetryOn | tuple[checked.RetryOn, ...] = (Exception,),
        deadline: float | timedelta | None = None,
        factor: float = 2.0,
    ) -> Self:
        """Modifier: try the step again when it fails.

        A step whose output cannot be recorded is not retried. If an error says how long to wait, with an attribute
        `retry_after` or the HTTP header `Retry-After` of its response, the next try waits at least that long. A wait of
        more than a minute, or longer than `RunOptions(stay=…)`, suspends the run; a resume continues with the next try.

        Args:
            attempts: the number of tries, including the first; a whole number from 1, or None for any number.
            backoff: seconds or a `timedelta` before the second try; each further wait is `factor` times as long.
            max_delay: the longest wait by `backoff`, in seconds or as a `timedelta`; a minute by default, or `backoff` if
                that is longer.
            jitter: the fraction, from 0 to 1, by which each wait varies at random.
            on: which errors to retry: an exception class, a function that gets the exception and returns a bool, or a
                tuple of these. A function that raises or returns anything else means no.
            deadline: no new try starts later than this (seconds or a `timedelta`) after the first; waits end by then. A running try
                is not stopped; see `.timeout()`.
            factor: how many times longer each wait is than the one before; 1 waits equally long each time.

        Raises:
            StepDefinitionError: an argument is out of range, or `.retry()` was given before.
        """
        policy = checked.make_retry_policy(self.name, attempts, backoff, max_delay, jitter, on, deadline, factor)
        return self._add_modifier("retry", retry=policy)

    def timeout(self, seconds: float | timedelta) -> Self:
        """Modifier: limit the time of each try; a longer try fails with `StepTimeoutError`.

        A sync function with a timeout runs on its own thread, which is abandoned at the timeout.

        Args:
            seconds: the limit in seconds or as a `timedelta`, above 0.

        Raises:
            StepDefinitionError: the number is not above 0, or `.timeout()` was given before.
        """
        return self._add_modifier("timeout", timeout_seconds=timeout_in_seconds(self.name, seconds))

    def ephemeral(self) -> Self:
        """Modifier: never record the step, and run it at each replay: for a model, a connection, an open file.

        Raises:
            StepDefinitionError: it was given before, or with a modifier that needs a record.
        """
        if self.modifiers.is_secret:
            refuse_needless_ephemeral(self.name)
        return self._add_modifier("ephemeral", is_ephemeral=True)

    def evidence(self, *claims: Any, require_all: bool = True, min_verified: int | None = None) -> Self:
        """Modifier: claim what the step leaves in the outside world, such as a file or a row.

        The claims are checked after each try, before anything is saved; a false claim fails the try with
        `EvidenceNotVerifiedError`. They are checked again before a resume reuses the result, except `.transient()`
        claims.

        Args:
            *claims: claims of `flowckpt.evidence`, functions that get the step's result and return a claim or a list of
                claims, or a single `EvidencePack`.
            require_all: whether every claim must hold; otherwise at least one.
            min_verified: how many must hold, from 1; overrides `require_all`.

        Raises:
            StepDefinitionError: an argument is invalid, or `.evidence()` was given before.
        """
        claimed = checked.make_claimed_evidence(self.name, claims, require_all, min_verified)
        return self._add_modifier("evidence", evidence=claimed)

    def reads(self, *paths: AnyPath | Callable[..., Any]) -> Self:
        """Modifier: name the files and directories that the step reads.

        Their content is recorded before each try, and compared before a resume reuses the result: if one changed, the
        step runs again. A missing file fails the step before its function is called; so does a file that changes while
        the step runs, after it.

        Args:
            *paths: paths, relative to the directory of the run; or functions that get the arguments of the step's
                function, and return a path or a list of paths.

        Raises:
            StepDefinitionError: an argument is invalid, the step is ephemeral, or `.reads()` was given before.
        """
        return self._add_files("reads", paths)

    def writes(self, *paths: AnyPath | Callable[..., Any]) -> Self:
        """Modifier: name the files and directories that the step writes.

        Each must exist when the step ends. Its content is recorded with the step, and compared before a resume reuses
        the result: if a file changed or is gone, the step runs again. No two steps of a run may write the same file, and
        none may write a file that an earlier step read.

        Args:
            *paths: paths, relative to the directory of the run; or functions that get the arguments of the step's
                function, and return a path or a list of paths.

        Raises:
            StepDefinitionError: an argument is invalid, the step is ephemeral, or `.writes()` was given before.
        """
        return self._add_files("writes", paths)

    def _add_files(self, role: str, paths: tuple[Any, ...]) -> Self:
        files = self.modifiers.files
        if files is not None and getattr(files, role):
            raise checked.repeated_modifier_error(self.name, role)
        made = attrs.evolve(self.modifiers, files=checked.make_step_files(self.name, role, paths, files))
        return self._replace_modifiers(check_combination(self.name, made))

    def at_most_once(self) -> Self:
        """Modifier: never repeat the step on a guess: for a payment, a mail, anything that must not happen twice.

        A durable marker is saved before the step starts, and its result as soon as it ends, with or without a
        checkpoint. If the process dies in between, the step's evidence decides: proved done, the result is adopted;
        proved not done, the step runs; otherwise the resume stops and asks.

        Raises:
            StepDefinitionError: it was given before, or the step is ephemeral.
        """
        return self._add_modifier("at_most_once", is_at_most_once=True)

    def adopt(self, function: Callable[..., Any]) -> Self:
        """Modifier: rebuild the result of an `.at_most_once()` step that is proved done but was never recorded.

        Without it, the result is None.

        Args:
            function: sync or async; gets the arguments of the step's function, and returns what that would have
                returned.

        Raises:
            StepDefinitionError: it is not callable, or `.adopt()` was given before.
        """
        return self._add_modifier("adopt", adopt=checked.check_callable(self.name, "adopt", function))

    def on_rerun(self, function: Callable[[Any], Any]) -> Self:
        """Modifier: undo the recorded execution just before a resume runs the step again.

        An error in the function fails the step, which then does not run.

        Args:
            function: sync or async; gets the recorded output.

        Raises:
            StepDefinitionError: it does not take one argument, the step is ephemeral, or `.on_rerun()` was given
                before.
        """
        undo = check_unary(self.name, "on_rerun", checked.check_callable(self.name, "on_rerun", function))
        return self._add_modifier("on_rerun", on_rerun=undo)

    def _mark_secret(self) -> Any:
        modifiers = self.modifiers
        if modifiers.is_secret:
            raise checked.repeated_modifier_error(self.name, "secret")
        if modifiers.is_ephemeral:
            refuse_needless_ephemeral(self.name)
        modifiers = check_combination(self.name, attrs.evolve(modifiers, is_ephemeral=True))
        return self._replace_modifiers(check_combination(self.name, attrs.evolve(modifiers, content="secret")))

    def rollback(self, function: Callable[..., Any]) -> Self:
        """Modifier: undo the step if the run fails or is cancelled later, newest step first, in any attempt.

        An error in the function neither stops the rollback of other steps nor hides why the run ended.

        Args:
            function: sync or async; gets the recorded output. Further parameters without a default get the step's
                arguments of the same names: `def refund(receipt, amount)`.

        Raises:
            StepDefinitionError: it has no parameter for the output, the step is ephemeral, or `.rollback()` was given
                before. If a parameter matches no argument of the step, the step is refused at its `yield`.
        """
        undo = check_undo(self.name, checked.check_callable(self.name, "rollback", function))
        return self._add_modifier("rollback", rollback=undo)

    def on(self, executor: str, *, resources: Mapping[str, float] | None = None) -> Self:
        """Modifier: run the step on a thread, in another process, or on another machine.

        It applies to `.python()` and to the members of a `.map()` of a function. It is not part of the step's identity:
        a step that moves to another executor keeps its recorded result.

        Args:
            executor: `thread`, `process`, `engine` (the engine's own process), or a name of
                `WorkflowEngine(executors={"gpu": …})`.
            resources: the resources that the step needs on a worker, such as `{"GPU": 1}`, if the executor supports
                them.

        Raises:
            StepDefinitionError: the name is invalid, the step is ephemeral, or `.on()` was given before.
        """
        return self._add_modifier("on", placement=checked.make_placement(self.name, executor, resources))

    def version(self, tag: str) -> Self:
        """Modifier: tag the version of the step. A recorded result with another tag is stale.

        Args:
            tag: any text that is not blank, compared for equality.

        Raises:
            StepDefinitionError: the tag is not text or blank, or `.version()` was given before.
        """
        check_name(tag, "version tag")
        return self._add_modifier("version", version=tag)

    def cache(self, *, max_age: float | timedelta | None = None) -> Self:
        """Modifier: take the result of an equal call in any run of the store, instead of running the step.

        Calls are equal if function, code, arguments, `.version()` and `.reads()` are. The evidence of the other result is
        checked first; a result whose evidence fails, or that lacks a claim of this step, is not taken. Failures are never
        taken.

        Args:
            max_age: seconds or a `timedelta`: the maximum age of the result; any age by default.

        Raises:
            StepDefinitionError: the age is not above 0, `.cache()` was given before, or the step has an effect or an
                output of its own: `.at_most_once()`, `.rollback()`, `.on_rerun()`, `.ephemeral()`, `.secret()`.
        """
        return self._add_modifier("cache", cache_seconds=checked.age_in_seconds(self.name, max_age))

    def record_arguments(self) -> Self:
        """Modifier: record the arguments of the call as JSON, to read and query them later.

        Without it, the record has only digests of the arguments, which show whether they changed. Secrets are left out.
        Arguments that cannot be written as JSON, or that take more than 64 KiB together, fail the step before its
        function is called.

        Raises:
            StepDefinitionError: `.record_arguments()` was given before, or the step is never recorded (`.ephemeral()`).
        """
        if self.modifiers.content == "arguments":
            raise checked.repeated_modifier_error(self.name, "record_arguments")
        return self._replace_modifiers(check_combination(self.name, attrs.evolve(self.modifiers, content="arguments")))


@attrs.frozen(eq=False, repr=False, init=False)
class Step(StepBase, Generic[T_co]):
    """A step with its action: what a workflow yields.

    `rows = yield step(…)` gives the step's output; `rows = yield from step(…)` is the same step with its type kept.
    """

    action: Action

    def __init__(self, name: str, modifiers: Modifiers, action: Action) -> None:
        # As attrs initializes a frozen class, but with the setter of each slot: 0.25 µs instead of 0.35, twice a step.
        _set_name(self, name)
        _set_modifiers(self, modifiers)
        _set_action(self, action)

    def __repr__(self) -> str:
        return f"<step {self.name!r}: .{self.action.step_type}()>"

    def __iter__(self) -> Generator[Step[T_co], Any, T_co]:
        """Yield the step itself and return its output: `yield from` keeps the type for type checkers."""
        output: T_co = yield self
        return output

    def checkpoint(self, id: str | None = None) -> Self:  # noqa: A002 - as in `StepBase`
        """Modifier: take a checkpoint after the step succeeded; see `StepBase.checkpoint`."""
        if id is None and self.modifiers is PLAIN:  # by far the most common case: avoid `evolve` (5 µs)
            return type(self)(self.name, CHECKPOINTED, self.action)
        return super().checkpoint(id)

    def secret(self) -> Step[Secret[T_co]]:
        """Modifier: keep the output out of records, logs and events; see `step`.

        Raises:
            StepDefinitionError: it was given before, or with a modifier that needs a recorded output.
        """
        made: Step[Secret[T_co]] = self._mark_secret()
        return made

    def python(self, *args: Any, **kwargs: Any) -> Self:
        """Refuse a second action.

        Raises:
            StepDefinitionError: always.
        """
        del args, kwargs
        raise self._second_action_error()

    command = map = workflow = start = signal = reply = sleep = wait = approval = python

    if not TYPE_CHECKING:  # type checkers report these mistakes by themselves

        def __bool__(self) -> bool:
            raise self._unyielded_error("is neither true nor false")

        def __len__(self) -> int:
            raise self._unyielded_error("has no length")

        def __getitem__(self, key: object) -> Any:
            raise self._unyielded_error(f"has no item {key!r:.40}")

        def __eq__(self, other: object) -> bool:
            if not isinstance(other, StepBase):
                raise self._unyielded_error(f"cannot be compared with {other!r:.40}")
            return super().__eq__(other)

        __hash__ = FieldEquality.__hash__

        def __lt__(self, other: object) -> bool:
            raise self._unyielded_error(f"cannot be compared with {other!r:.40}")

        __le__ = __gt__ = __ge__ = __lt__

        def _calculate(self, other: object = None, modulo: object = None) -> Any:
            del other, modulo
            raise self._unyielded_error("does not support arithmetic")

        __add__ = __sub__ = __mul__ = __matmul__ = __truediv__ = __floordiv__ = __mod__ = __divmod__ = __pow__ = (
            _calculate
        )
        __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = _calculate
        __rdivmod__ = __rpow__ = __lshift__ = __rshift__ = __and__ = __xor__ = __or__ = _calculate
        __rlshift__ = __rrshift__ = __rand__ = __rxor__ = __ror__ = _calculate
        __neg__ = __pos__ = __abs__ = __invert__ = __round__ = __int__ = __float__ = __index__ = _calculate

    def _attribute_error(self, attribute: str, where: str) -> AttributeError:
        return self._unyielded_error(f"has no attribute {attribute!r}{suggestion(type(self), attribute)}", where)

    def _unyielded_error(self, what: str, where: str | None = None) -> StepNotYieldedError:
        return StepNotYieldedError(
            f"step {self.name!r} {what}: it is a step, and has no output until it is yielded",
            step=self.name,
            where=caller() if where is None else where,
        )

    def _second_action_error(self) -> StepDefinitionError:
        return step_error(self.name, f"it has an action already: .{self.action.step_type}()", "Yield two steps.")


_set_name, _set_modifiers = vars(StepBase)["name"].__set__, vars(StepBase)["modifiers"].__set__
_set_action = vars(Step)["action"].__set__
