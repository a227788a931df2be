"""The action that runs a program; `.command()` checks its arguments at definition."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

import attrs

from flowckpt.core.dsl.checks import describe_argument, step_error
from flowckpt.core.dsl.step import Action
from flowckpt.core.system.declared import is_unicode
from flowckpt.core.system.secret import Secret
from flowckpt.errors import StepDefinitionError


@attrs.frozen(eq=False, repr=False)
class CommandAction(Action):
    """Run a program; made by `command_action`, which checks the arguments.

    Attributes:
        argv: the program and its arguments.
        cwd: the working directory, relative to that of the process; None for the same directory.
        env: variables added to the environment of the process, possibly secret; None removes a variable.
        stdin: its input, as bytes or as text in UTF-8, or a secret of these; None for no input.
        max_output: the number of bytes kept of its standard output, and of its standard error.
    """

    step_type: ClassVar[str] = "command"
    is_command: ClassVar[bool] = True
    refused: ClassVar[frozenset[str]] = frozenset({"on"})  # a program already has its own process

    argv: tuple[str, ...]
    cwd: str | None = None
    env: Mapping[str, str | Secret[str] | None] = attrs.field(factory=dict, repr=False)  # may contain secrets
    stdin: str | bytes | Secret[str] | Secret[bytes] | None = attrs.field(default=None, repr=False)
    max_output: int = 1_000_000

    def reveal_secrets(self) -> tuple[dict[str, str | None], bytes | None]:
        """Return the environment and the input for the program, with secrets revealed.

        Raises:
            TypeError: a secret is neither text nor, for the input, bytes.
        """
        env = {name: value.reveal() if isinstance(value, Secret) else value for name, value in self.env.items()}
        stdin = self.stdin.reveal() if isinstance(self.stdin, Secret) else self.stdin
        for name, value in env.items():
            if value is not None and not isinstance(value, str):
                raise TypeError(f"the secret {name!r} in env= holds a {type(value).__name__}, not text")
        if stdin is not None and not isinstance(stdin, str | bytes):
            raise TypeError(f"the secret in stdin= holds a {type(stdin).__name__}, neither text nor bytes")
        return env, stdin.encode() if isinstance(stdin, str) else stdin

    @property
    def identity(self) -> Mapping[str, Any]:
        """The facts that identify the command; `max_output` is not one of them."""
        return {"argv": self.argv, "cwd": self.cwd, "env": self.env, "stdin": self.stdin}


def command_action(step_name: str, argv: Any, cwd: Any, env: Any, stdin: Any, max_output: Any) -> CommandAction:
    """Check the arguments of `.command()` and return the action; see `StepBuilder.command`.

    Raises:
        StepDefinitionError: an argument is invalid.
    """
    if isinstance(stdin, str):
        if not is_unicode(stdin):
            raise _refusal(step_name, f"stdin= is not valid Unicode: {stdin!r:.80}", "Pass it as bytes.")
    elif stdin is not None and not isinstance(stdin, bytes | Secret):
        raise _refusal(
            step_name, f"stdin= takes text, bytes or None, got {describe_argument(stdin)}", "Read the file first."
        )
    if type(max_output) is not int or max_output < 0:
        raise _refusal(
            step_name,
            f"max_output={max_output!r:.80} must be a whole number from 0",
            "It limits the bytes kept of standard output and, separately, of standard error.",
        )
    directory = None if cwd is None else _check_text(step_name, "cwd=", cwd)
    return CommandAction(_check_argv(step_name, argv), directory, _check_env(step_name, env), stdin, max_output)


def _check_argv(step_name: str, argv: Any) -> tuple[str, ...]:
    if isinstance(argv, str):
        raise _refusal(
            step_name,
            f"it takes a list, got the text {argv!r:.80}",
            f'Write a list, {argv.split()!r:.80}, or let a shell read it: ["sh", "-c", {argv!r:.80}].',
        )
    if not isinstance(argv, list | tuple):
        raise _refusal(
            step_name,
            f"it takes a list of the program and its arguments, got {describe_argument(argv)}",
            'Write ["make", "all"].',
        )
    if not argv:
        raise _refusal(step_name, "the list is empty", 'Its first item is the program: ["make", "all"].')
    found = tuple(_check_text(step_name, f"item {index}", item, can_be_empty=True) for index, item in enumerate(argv))
    if not found[0].strip():
        raise _refusal(step_name, f"the program is blank: {found[0]!r}", 'It is the first item: ["make", "all"].')
    return found


def _check_env(step_name: str, env: Any) -> Mapping[str, str | Secret[str] | None]:
    """Check the environment; its values may be secret, so no message shows one."""
    if env is None:
        return {}
    if not isinstance(env, Mapping):
        raise _refusal(step_name, f"env= takes a mapping, got a {type(env).__name__}", 'Write {"LANG": "C"}.')
    for name, value in env.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name or not _is_for_the_system(name):
            raise _refusal(step_name, f"env= has the name {name!r:.80}", "A name must be text without '=' or NUL.")
        if isinstance(value, Secret):  # checked when the program starts: a plan does not have it
            continue
        if value is not None and not isinstance(value, str):
            raise _refusal(
                step_name,
                f"the value of {name!r} in env= is a {type(value).__name__}",
                "Pass text, or None to remove the variable.",
            )
        if value is not None and ("\0" in value or not _is_for_the_system(value)):
            raise _refusal(step_name, f"the value of {name!r} in env= contains NUL or invalid Unicode", "Remove it.")
    return {
        str.__str__(name): value if value is None or isinstance(value, Secret) else str.__str__(value)
        for name, value in env.items()
    }


def _check_text(step_name: str, what: str, value: Any, *, can_be_empty: bool = False) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(text, Secret):
        raise _refusal(
            step_name,
            f"{what} is a secret, and other users of the machine can read the command line of a program",
            "Pass it in env= or stdin=, which accept secrets.",
        )
    if not isinstance(text, str):
        remedy = "Write os.fsdecode(…)." if isinstance(text, bytes) else f"Write str({value!r:.40}) if you mean that."
        raise _refusal(step_name, f"{what} must be text or a path, got {describe_argument(value)}", remedy)
    if "\0" in text or not _is_for_the_system(text):
        raise _refusal(
            step_name,
            f"{what} contains NUL or invalid Unicode: {text!r:.80}",
            "The operating system cannot pass it; use stdin= or a file.",
        )
    if not text and not can_be_empty:
        raise _refusal(step_name, f"{what} is empty", "Leave it out for the directory of the process.")
    return str.__str__(text)  # str() of an enum's member is its label


def _is_for_the_system(text: str) -> bool:
    """Return whether the operating system accepts a text: file names may contain bytes that are not UTF-8."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _refusal(step_name: str, what: str, remedy: str) -> StepDefinitionError:
    return step_error(step_name, f".command(): {what}", remedy)
