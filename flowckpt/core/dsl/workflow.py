"""The decorated generator function, the binding of its inputs, and the logger for its body."""

from __future__ import annotations

import functools
import inspect
import logging
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Generic, Never, NoReturn, ParamSpec, TypeVar, overload

from flowckpt.core.dsl.checks import caller, note_created
from flowckpt.core.system.copies import IMMUTABLE, Copier
from flowckpt.core.system.declared import module_name, short_repr
from flowckpt.core.system.functions import note_loaded_modules
from flowckpt.core.system.secret import NOT_SECRET, secret_type
from flowckpt.errors import InputError, WorkflowDefinitionError

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
T = TypeVar("T")

RESERVED_INPUTS = frozenset({"workflow_id", "options", "if_exists"})
"""Keyword arguments of the engine itself; an input with such a name could never be passed."""


PROGRAM_MODULES: dict[str, None] = {}
"""The modules of this process's workflows, by name; in a worker, those of its steps."""


class Workflow(Generic[P, R_co]):
    """A generator function that the engine can run and resume.

    Calling it returns the plain generator, so a test can drive it by hand.

    Attributes:
        name: the workflow's name, compared at a resume.
        function: the generator function.
        signature: its inputs.
    """

    def __init__(self, function: Callable[P, Generator[Any, Any, R_co]], name: str) -> None:
        functools.update_wrapper(self, function)  # first: it copies the function's own attributes, whatever their names
        self.name = name
        self.function = function
        self.signature = inspect.signature(function)
        PROGRAM_MODULES[function.__module__] = None

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Generator[Any, Any, R_co]:
        """Return the generator, not started."""
        return self.function(*args, **kwargs)

    def make_generator(self, inputs: Mapping[str, Any]) -> Generator[Any, Any, R_co]:
        """Return the generator, not started, with copies of its inputs: no other drive sees what it changes in place.

        Args:
            inputs: inputs by name.
        """
        if not IMMUTABLE.issuperset(map(type, inputs.values())):
            copier = Copier()
            inputs = {name: copier.copy_whole(value) for name, value in inputs.items()}
        return self.function(**inputs)  # type: ignore[call-arg]

    def __repr__(self) -> str:
        return f"<workflow {self.name!r} of {self.where}>"

    @property
    def where(self) -> str:
        """`file:line` of the definition."""
        return _where(self.function)

    @property
    def function_name(self) -> str:
        """`module:qualname` of the generator function."""
        return f"{module_name(self.function.__module__)}:{self.function.__qualname__}"

    @functools.cached_property
    def hints(self) -> Mapping[str, Any]:
        """The annotations of the inputs, resolved.

        Raises:
            WorkflowDefinitionError: an annotation refers to an unknown name.
        """
        try:
            return typing.get_type_hints(inspect.unwrap(self.function), include_extras=True)
        except Exception as error:
            raise WorkflowDefinitionError(
                f"workflow {self.name!r}: its annotations cannot be resolved: {error}",
                where=self.where,
                remedy="Import the annotated types outside 'if TYPE_CHECKING'.",
            ) from error

    @functools.cached_property
    def secret_inputs(self) -> Mapping[str, Any]:
        """The secret inputs, with the type inside the secret: `str` for `Secret[str]`."""
        inner = {name: secret_type(self.hints.get(name, Any)) for name in self.signature.parameters}
        return {name: found for name, found in inner.items() if found is not NOT_SECRET}

    @property
    def output_type(self) -> Any:
        """The type that the workflow returns, from `Generator[…, …, R]`; `Any` without an annotation."""
        returns = self.hints.get("return", Any)
        is_generator = typing.get_origin(returns) is Generator
        return typing.get_args(returns)[2] if is_generator else Any

    @property
    def claimed_output(self) -> Any:
        """The declared return type, even if the annotation omits `Generator[…]`."""
        returns = self.hints.get("return", Any)
        is_of_generator = (typing.get_origin(returns) or returns) in (Generator, Iterator, Iterable)
        return self.output_type if is_of_generator else returns

    def bind(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs in the order of the signature, with defaults applied.

        Args:
            inputs: inputs by name.

        Raises:
            InputError: one is unknown, or a required one is missing.
        """
        for name in inputs:
            if name not in self.signature.parameters:
                known = ", ".join(self.signature.parameters) or "none"
                raise InputError(
                    f"workflow {self.name!r} has no input {name!r}", parameter=name, remedy=f"Its inputs: {known}."
                )
        try:
            bound = self.signature.bind(**inputs)
        except TypeError as error:
            missing = [n for n, p in self.signature.parameters.items() if p.default is p.empty and n not in inputs]
            raise InputError(
                f"workflow {self.name!r} lacks its input {', '.join(map(repr, missing))}",
                parameter=missing[0] if missing else "",
                remedy=self._how_to_pass(missing),
            ) from error
        bound.apply_defaults()
        return {**bound.arguments}

    def _how_to_pass(self, missing: list[str]) -> str:
        secret = next((name for name in missing if name in self.secret_inputs), "")
        if not secret:
            return "Give it by name: -i NAME=VALUE on the command line, NAME=value in Python."
        return (
            f"Give {secret!r} by -i {secret}=@env:NAME, -i {secret}=@file:PATH or -i {secret}=- (to be asked) on the command "
            f"line, so that nothing shows it; by {secret}=value in Python."
        )


RETURN_IT = "Write 'return continue_as(…)': it ends this generation of the run."


class NextGeneration:
    """The value that a workflow returns to start the next generation of its run.

    Attributes:
        inputs: the inputs of the next generation, by name.
        where: `file:line` of the call that made it.
    """

    __slots__ = ("inputs", "where")

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.inputs = dict(inputs)
        self.where = caller()

    def __repr__(self) -> str:
        return f"<continue_as() at {self.where}>"

    def __iter__(self) -> NoReturn:
        raise WorkflowDefinitionError(
            f"{self!r} was iterated, by 'yield from' or by unpacking",
            where=caller(),
            remedy=RETURN_IT,
        )


def continue_as(*given: Never, **inputs: Any) -> T:  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeVarUse]
    """End the history of the run and start its next generation, with new inputs.

    Return the result: `return continue_as(cursor=cursor)`. The next generation is the same workflow and has the same
    run id. It starts with an empty history, so a workflow that never ends keeps a record of constant size. Messages
    that no step has taken stay for it. The effects of this generation are final: they are not undone if a later
    generation fails.

    Only the workflow of a run can continue, not a child workflow.

    Args:
        *given: not allowed; pass inputs by name.
        **inputs: the inputs of the next generation, like those of a new run: an input that is not given has its default.

    Returns:
        The value for the workflow to return; it type checks as any type. mypy accepts no returned value in a
            workflow typed `Generator[Any, Any, None]`: write `Any` for the `None`.

    Raises:
        WorkflowDefinitionError: an input was given without its name.
    """
    if given:
        raise WorkflowDefinitionError(
            f"continue_as() takes the inputs of the next generation by name, got {given[0]!r:.60}",
            where=caller(),
            remedy="Name each input: return continue_as(name=value).",
        )
    made = NextGeneration(inputs)
    note_created(made, "")
    return made  # type: ignore[return-value]


@overload
def workflow(name: Callable[P, Generator[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(name: str | None = None) -> Callable[[Callable[P, Generator[Any, Any, R]]], Workflow[P, R]]: ...
def workflow(name: Any = None) -> Any:
    """Turn a generator function into a workflow: `@workflow("etl")`, or bare `@workflow`.

    Every input must be passable by name: no `*args`, no `**kwargs`, no positional-only parameters. `workflow_id` and
    `options` are arguments of the engine and cannot be inputs.

    Args:
        name: the workflow's name, up to 200 printable characters, recorded and compared at a resume; the function's
            name by default.

    Raises:
        WorkflowDefinitionError: the function is not a generator function, the name is blank, or an input cannot be
            passed by name.
    """
    if callable(name):
        return _make_workflow(name, _name_of(name))
    return lambda function: _make_workflow(function, _name_of(function) if name is None else name)


def _name_of(function: object) -> str:
    return getattr(function, "__name__", "") or type(function).__name__


def _make_workflow(function: Callable[..., Any], name: object) -> Workflow[Any, Any]:
    where = _where(function)
    if not isinstance(name, str) or not name.strip():
        raise WorkflowDefinitionError(f"a workflow's name must be text and not blank, got {name!r}", where=where)
    if len(name) > 200 or not name.isprintable():
        raise WorkflowDefinitionError(
            f"a workflow's name may have 200 printable characters, got {name[:60]!r}", where=where
        )

    def refused(problem: str, remedy: str) -> WorkflowDefinitionError:
        return WorkflowDefinitionError(f"workflow {name!r} {problem}", where=where, remedy=remedy)

    plain = inspect.unwrap(function) if callable(function) else function
    if inspect.isasyncgenfunction(plain) or inspect.iscoroutinefunction(plain):
        raise refused("is an async function", "Write 'def' and 'yield step(…)'; the steps' own functions may be async.")
    if isinstance(plain, functools.partial):
        raise refused(
            f"is a functools.partial: {short_repr(function, 120)}",
            "Write 'def name(…): …', with defaults for what it is to be given: a resume finds the workflow by its "
            "function's name.",
        )
    if getattr(plain, "__name__", "") == "<lambda>":
        raise refused("is a lambda", "Write 'def name(…): …': a resume finds the workflow by its function's name.")
    if not inspect.isgeneratorfunction(plain):
        raise refused(
            f"is not a generator function: {short_repr(function, 120)}",
            "Yield at least one step in it: 'yield step(\"name\").python(function)'.",
        )
    for number, parameter in enumerate(inspect.signature(function).parameters.values()):
        if number == 0 and parameter.name in ("self", "cls") and _is_in_class(plain):
            raise refused(
                f"is a method: nothing would pass its {parameter.name!r}",
                "Define it outside the class, and pass what it needs as inputs.",
            )
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise refused(
                f"has an input '{parameter}' that cannot be passed by name",
                "Make every input a named parameter: inputs are recorded and compared by name.",
            )
        if parameter.name in RESERVED_INPUTS:
            raise refused(
                f"has an input {parameter.name!r} with the name of an engine argument",
                f"Rename it; {', '.join(sorted(RESERVED_INPUTS))} are arguments of the engine.",
            )
    note_loaded_modules(getattr(plain, "__globals__", {}))
    return Workflow(function, name)


def _where(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return f"{code.co_filename}:{code.co_firstlineno}" if code else caller()


def _is_in_class(function: Any) -> bool:
    outer = function.__qualname__.rpartition(".")[0]
    return bool(outer) and not outer.endswith("<locals>")


# A logger for the code of workflows.


_is_repeated: ContextVar[bool] = ContextVar("flowckpt_is_repeated", default=False)

is_repeated = _is_repeated.get
"""Return whether the calling generator is being replayed from its record."""


begin_repeating, end_repeating = _is_repeated.set, _is_repeated.reset
"""Set and reset for each recorded step; a context manager would take 1.2 µs more."""


if typing.TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class WorkflowLogger(_Adapter):
    """A logger for the code of workflows: a resume does not repeat its messages."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's name
        """Return whether a message of this level is logged now."""
        return not is_repeated() and self.logger.isEnabledFor(level)

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the message unchanged."""
        return msg, kwargs


def workflow_logger(name: str | logging.Logger) -> WorkflowLogger:
    """Return a logger for the body of a workflow; it is silent during replay.

    It logs from the first step that is executed, because an earlier attempt has logged everything before. Outside the
    body of a workflow it is a plain logger.

    Args:
        name: the logger, or its name as for `logging.getLogger`.
    """
    return WorkflowLogger(logging.getLogger(name) if isinstance(name, str) else name, {})
