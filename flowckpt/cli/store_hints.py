"""Commands that stand in a message get the store that this command works on, where the next one would not find it.

Errors come from parts that know nothing of the command line: they say 'flowckpt show RUN'. This is the one place that
makes of it what can be typed.
"""

from __future__ import annotations

import re
import shlex

import click

from flowckpt.cli.groups import COMMANDS
from flowckpt.cli.render.terminal import escaped

_GIVEN = "flowckpt.given_store"
_WITHOUT_STORE = ("store key", "config", "completion")
_QUOTED = re.compile(r"""'(flowckpt (?:[^'"]|'[^']*'|"[^"]*")+?)'(?=[\s.,;:)]|$)""")
"""A command between quotes, with quotes of the shell's within it or not."""

_COMMAND = re.compile(
    rf"\bflowckpt ({'|'.join(name for name in COMMANDS if name not in _WITHOUT_STORE)})\b(?! --store)"
)


def remember_store(given: str) -> None:
    """Remember the store of the command that is under way; the first that is chosen counts.

    Args:
        given: what the next command needs on its line to find the same store, safe to show; empty for nothing.
    """
    context = click.get_current_context(silent=True)
    if context is not None:
        context.meta.setdefault(_GIVEN, given)


def with_store(text: str, context: click.Context | None = None) -> str:
    """Return a message whose commands name the store, where they must, and can be told from the quotes around them.

    A command stands between single quotes, or between double quotes where it has single ones itself.

    Args:
        text: the message.
        context: of the command; that of the one under way where not given.
    """
    context = context or click.get_current_context(silent=True)
    given = "" if context is None else context.meta.get(_GIVEN, "")
    if given:
        option = f"--store {escaped(shlex.quote(given))}"
        text = _COMMAND.sub(lambda found: f"{found[0]} {option}", text)
    return _QUOTED.sub(lambda found: f'"{found[1]}"' if "'" in found[1] else found[0], text)
