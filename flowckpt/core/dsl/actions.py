"""Actions: one frozen value for each kind of work that a step does. `execution/` carries them out."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import PurePath
from types import FunctionType, MethodType
from typing import Any, ClassVar

import attrs

from flowckpt.core.system.functions import cached_per_function


class Action:
    """The base of the actions."""

    __slots__ = ()
    step_type: ClassVar[str] = ""
    is_command: ClassVar[bool] = False
    """Whether it runs a program."""
    is_composite: ClassVar[bool] = False
    """Whether it is made of steps, which have results of their own."""
    refuses_modifiers: ClassVar[bool] = False
    """Whether there are modifiers that make no sense with it."""
    modifies_members: ClassVar[bool] = False
    is_patch: ClassVar[bool] = False
    """Whether the step's modifiers are meant for each of those steps."""
    is_saved: ClassVar[bool] = False
    """Whether its result is made durable as if the step had a `.checkpoint()`."""
    is_waiting: ClassVar[bool] = False
    """Whether it waits for something that the run cannot do, so that the run may be suspended meanwhile."""

    @property
    def function_name(self) -> str:
        """`module:qualname` of the action's function; empty where it has none."""
        return ""

    @property
    def output_type(self) -> Any:
        """The type of what it returns, if the action itself says it."""
        return Any

    @property
    def parameters(self) -> Collection[str]:
        """The names of its arguments that a `.rollback()` can ask for."""
        return ()

    def arguments(self) -> Mapping[str, Any]:
        """Return these arguments."""
        return {}

    @property
    def identity(self) -> Mapping[str, Any]:
        """Facts beside the function and its arguments that identify the work, by name."""
        return {}

    def refused_modifier(self, modifiers: Any) -> str:
        """Return a modifier that makes no sense with this action, or an empty text."""
        del modifiers
        return ""


@attrs.define(repr=False, unsafe_hash=True)  # it never changes; to be frozen takes 0.25 µs a step
class PythonAction(Action):
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
    """The base of the actions on other runs: one is started, or sent a signal.

    Both are exactly once. The id of the run, or of the message, is derived from the run that acts, the path of the step and its
    arguments, so a step that is repeated after a crash finds what it made.
    """

    __slots__ = ()
    refuses_modifiers: ClassVar[bool] = True

    def refused_modifier(self, modifiers: Any) -> str:
        """Return a modifier that makes no sense with this action, or an empty text."""
        given = {
            "at_most_once": modifiers.is_at_most_once,  # it is exactly once without it
            "adopt": modifiers.adopt is not None,
            "secret" if modifiers.is_secret else "ephemeral": modifiers.is_ephemeral,
            "on": modifiers.placement is not None,
            "timeout": modifiers.timeout_seconds is not None,
            "cache": modifiers.cache_seconds is not None,
            "record_arguments": modifiers.records_arguments,
            modifiers.files.word if modifiers.files else "": modifiers.files is not None,
        }
        return next((name for name, is_given in given.items() if is_given), "")


def parameters_of(function: Callable[..., Any]) -> Collection[str]:
    """Return the names of a function's parameters; nothing for a builtin without a signature."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()


def function_name(function: Callable[..., Any]) -> str:
    """Name a function as records do: `module:qualname`.

    A module run as a script is called `__main__`; its record would not match the one of the same file run by the
    command line, so it is named after its file (or its `-m` name).

    Args:
        function: a function, method, class, partial or callable object.
    """
    while isinstance(function, functools.partial | MethodType):  # new objects each time, called as what they call
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return _name_of_function(function)


@cached_per_function
def _name_of_function(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    named = function if hasattr(function, "__qualname__") else type(function)
    module = getattr(named, "__module__", None) or ""
    return f"{module_name(module)}:{named.__qualname__}"


def module_name(module: str) -> str:
    """Return the name of a module that stays the same when the file is run as a script."""
    if module != "__main__":
        return module
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return PurePath(file).stem if file else module
