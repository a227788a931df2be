"""The command that carries a run on, for a run that stopped early."""

from __future__ import annotations

import shlex

from flowckpt.cli.output import say
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.terminal_text import escaped
from flowckpt.stores.opening import shown_spec


def show_resume_hint(workflow_id: str, store: StoreChoice) -> None:
    """Show the very command that carries the run on.

    Args:
        workflow_id: the run.
        store: the store that it is in.
    """
    if store.spec.startswith("memory:"):
        say("It cannot be resumed: its store was the memory of this process.")
    else:
        say(f"Resume with: {resume_command(workflow_id, store)}")


def resume_command(workflow_id: str, store: StoreChoice) -> str:
    """Return the command that carries a run on, ready for a shell.

    Args:
        workflow_id: the run.
        store: the store that it is in.
    """
    return command_line("resume", store, workflow_id)


def command_line(name: str, store: StoreChoice, *words: str) -> str:
    """Return a command on the same store, ready for a shell.

    Args:
        name: the command.
        store: the store.
        *words: its arguments.
    """
    line = ["flowckpt", name]
    if store.given:
        line += ["--store", shown_spec(store.given)]
    if any(word.startswith("-") for word in words):
        line.append("--")
    return escaped(shlex.join([*line, *words]))
