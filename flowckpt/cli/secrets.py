"""Secret inputs on the command line: from where no shell history, no process list and no screen shows them.

`-i token=@env:NAME` reads an environment variable, `-i token=@file:PATH` a file, and `-i token=-` asks for it at a
terminal, or reads a line of standard input. What is not given at all is looked for in `FLOWCKPT_SECRET_TOKEN`, and
then asked for at a terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from flowckpt.cli.render.terminal import escaped, is_error_terminal
from flowckpt.cli.values import MisfitError, expected_text, from_json, from_text
from flowckpt.core.dsl import Workflow
from flowckpt.core.system.secret import HIDDEN, Secret
from flowckpt.errors import InputError

VARIABLE = "FLOWCKPT_SECRET_"
_HINT = "Give it as @env:NAME or @file:PATH, or as - to be asked."


def read_secret(workflow: Workflow[..., Any], name: str, given: Any, *, is_text: bool) -> Secret[Any] | None:
    """Return a secret input as it was given by `-i`, or in a file of inputs.

    Args:
        workflow: the workflow.
        name: the input.
        given: a text, which may say where the value is, or a JSON value.
        is_text: whether a text is read as a person writes values; else it is taken at its word.

    Raises:
        InputError: there is nothing where it is said to be, or it does not fit the annotation. The value is not shown.
    """
    if given is None:
        return None
    if isinstance(given, str) and (found := _fetched(name, given)) is not None:
        return _converted(workflow, name, found, is_text=True)
    return _converted(workflow, name, given, is_text=is_text)


def ask_for_secrets(
    workflow: Workflow[..., Any], names: Iterable[str], inputs: dict[str, Any], *, at_terminal: bool = True
) -> None:
    """Add secret inputs that were not given: from their variables, else by asking for them.

    Args:
        workflow: the workflow.
        names: the secret inputs that are needed.
        inputs: the inputs so far; what is found is put in. What is not found is left out.
        at_terminal: whether a person may be asked.
    """
    for name in names:
        if name in inputs:
            continue
        text = os.environ.get(f"{VARIABLE}{name.upper()}")
        if text is None and at_terminal and _is_person_there():
            text = _asked(name)
        if text is not None:
            inputs[name] = _converted(workflow, name, text, is_text=True)


def _fetched(name: str, text: str) -> str | None:
    """Return what a text points to; None where it is the value itself."""
    if text == "-":
        return _asked(name) if _is_person_there() else _line_of_input(name)
    kind, _, place = text.partition(":")
    if kind == "@env":
        found = os.environ.get(place)
        if found is None:
            raise InputError(
                f"the secret input {name!r} is to be in the environment variable {place!r}, which is not set",
                parameter=name,
                remedy="Set it, without a command line that shows its value.",
            )
        return found
    if kind == "@file":
        try:
            return Path(place).read_text("utf-8").removesuffix("\n")
        except (OSError, UnicodeError) as error:
            why = (error.strerror or "it cannot be read") if isinstance(error, OSError) else "it is not UTF-8"
            raise InputError(
                f"the secret input {name!r} cannot be read from the file {place!r}: {why}", parameter=name
            ) from None
    if text.startswith("@"):
        raise InputError(
            f"the secret input {name!r} begins with @, and is neither @env:NAME nor @file:PATH",
            parameter=name,
            remedy="Put a value that begins with @ into a variable or a file.",
        )
    return None


def _line_of_input(name: str) -> str:
    line = "" if sys.stdin is None else sys.stdin.readline()
    if not line:
        raise InputError(
            f"the secret input {name!r} is to be read from standard input, which is empty", parameter=name, remedy=_HINT
        )
    return line.removesuffix("\n")


def _asked(name: str) -> str:
    """Ask at the terminal until something was typed.

    Not by `click.prompt`: that asks first, and what is typed until the terminal has stopped to show it is thrown away,
    a Ctrl-C with it. `getpass` asks when it is ready.
    """
    import getpass  # noqa: PLC0415 - most runs have no secret, and are not asked

    try:
        while not (line := getpass.getpass(f"{escaped(name)} (secret, not shown): ", sys.stderr)):
            pass
    except (KeyboardInterrupt, EOFError):
        click.echo(err=True)  # the question's line is not ended by what was typed
        raise click.Abort from None
    return line


def _is_person_there() -> bool:
    try:
        return sys.stdin is not None and sys.stdin.isatty() and is_error_terminal()
    except ValueError:  # it was closed
        return False


def _converted(workflow: Workflow[..., Any], name: str, given: Any, *, is_text: bool) -> Secret[Any]:
    wanted = workflow.secret_inputs[name]
    try:
        return Secret((from_text if is_text else from_json)(given, wanted))
    except MisfitError:
        pass
    raise InputError(  # behind the handler: the cause holds the value
        f"the secret input {name!r} of workflow {workflow.name!r} must be {expected_text(wanted)}, got {HIDDEN}",
        parameter=name,
        remedy=_HINT,
    )
