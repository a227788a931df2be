"""What a step does: one frozen value an action. How it is done stands in `execution/`, a file an action."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import PurePath
from types import FunctionType, MethodType
from typing import Any, ClassVar

import attrs

from flowckpt.per_function import per_function
from flowckpt.secret import Secret


class Action:
    """The base of the actions."""

    __slots__ = ()
    step_type: ClassVar[str] = ""
    is_composite: ClassVar[bool] = False
    """Whether it is made of steps, which have results of their own."""
    refuses_modifiers: ClassVar[bool] = False
    """Whether there are modifiers that make no sense with it."""
    modifies_members: ClassVar[bool] = False
    """Whether the step's modifiers are meant for each of those steps."""
    is_waiting: ClassVar[bool] = False
    """Whether it waits for something that the run cannot do, so that the run may be suspended meanwhile."""

    @property
    def function_name(self) -> str:
        """`module:qualname` of the action's function; empty where it has none."""
        return ""

    @property
    def output_type(self) -> Any:
        """The type of what it returns, where the action itself says it."""
        return Any

    @property
    def identity(self) -> Mapping[str, Any]:
        """What makes it this very work, by name, where that is not told from its function and its arguments."""
        return {}

    def refused_modifier(self, modifiers: Any) -> str:
        """Return a modifier that makes no sense with this action, or an empty text.

        Args:
            modifiers: of the step.
        """
        del modifiers
        return ""


@attrs.frozen(repr=False)
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
    def function_name(self) -> str:
        """`module:qualname` of the function."""
        function = self.function
        return _name_of_function(function) if type(function) is FunctionType else function_name(function)


@attrs.frozen(eq=False, repr=False)
class CommandAction(Action):
    """Run a program; made by `dsl.command`, which checks what it is given.

    Attributes:
        argv: the program and its arguments.
        cwd: the directory to run it in, relative to the process's own; None for that one.
        env: what is added to the environment of the process, secrets too; None takes a name out of it.
        stdin: what it reads, as bytes or as text in UTF-8, or a secret of these; None for nothing.
        max_output: how many bytes are kept of its standard output, and of its standard error.
    """

    step_type: ClassVar[str] = "command"

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str | Secret[str] | None] = attrs.field(factory=dict, repr=False)  # it may hold secrets
    stdin: str | bytes | Secret[str] | Secret[bytes] | None = attrs.field(default=None, repr=False)
    max_output: int = 1_000_000

    def given(self) -> tuple[dict[str, str | None], bytes | None]:
        """Return the environment and the input as the program gets them, secrets revealed.

        Raises:
            TypeError: a secret holds neither text nor, for the input, bytes.
        """
        env = {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.env.items()}
        stdin = self.stdin.reveal() if isinstance(self.stdin, Secret) else self.stdin
        for name, value in env.items():
            if value is not None and not isinstance(value, str):
                raise TypeError(f"the secret {name!r} in env= holds a {type(value).__name__}, not a text")
        if stdin is not None and not isinstance(stdin, str | bytes):
            raise TypeError(f"the secret in stdin= holds a {type(stdin).__name__}, neither text nor bytes")
        return env, stdin.encode() if isinstance(stdin, str) else stdin

    def refused_modifier(self, modifiers: Any) -> str:
        """Return `on` where it is given: a program is a process of its own already."""
        return "" if modifiers.placement is None else "on"

    @property
    def identity(self) -> Mapping[str, Any]:
        """What makes it this command; how much of the output is kept is no part of it."""
        return {"argv": self.argv, "cwd": self.cwd, "env": self.env, "stdin": self.stdin}


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


@per_function
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
