"""What `signal`, `approve` and `reject` have in common: what was sent is told, and the run perhaps resumed."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from typing import Any, TypeVar

import click

from flowckpt.checkpoint import Status
from flowckpt.checkpoint.wait import WaitKind
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.output import say, write
from flowckpt.cli.resume_hint import resume_command
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.terminal_text import escaped, json_text
from flowckpt.engine.answering import Sent

F = TypeVar("F", bound=Callable[..., Any])
_ENDED = {Status.FAILED: "has failed", Status.CANCELLED: "was cancelled"}
"""The ends that a resume can still go on from; a run that is complete takes nothing."""


def by_option(command: F) -> F:
    """Add `--by`."""
    return click.option("--by", metavar="WHO", help="Who says so; the user of this machine where not given.")(command)


def resume_option(command: F) -> F:
    """Add `--resume`."""
    return click.option(
        "--resume",
        "is_to_resume",
        is_flag=True,
        help="Resume the run at once; output and exit code are those of resume.",
    )(command)


def user_name() -> str:
    """Return who uses the machine; an empty text where it does not say."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without a table of users
        return ""


def tell_sent(sent: Sent, said: str, store: StoreChoice, *, as_json: bool) -> None:
    """Tell what was sent, and what continues the run.

    Args:
        sent: the message.
        said: what was done, in a few words.
        store: the store of the run.
        as_json: as one document.
    """
    if as_json:
        write(f"{json_text(sent.to_document(), indent=2)}\n")
        return
    write(f"{escaped(said)}\n" if sent.is_new else f"it was sent before under the id {escaped(sent.signal_id)}\n")
    if sent.pending_before:
        count = sent.pending_before
        lie = "signal of this name lies" if count == 1 else "signals of this name lie"
        say(f"{count} {lie} there already; this one is for a later wait.")
    elif sent.kind is WaitKind.SIGNAL and not sent.owner and sent.status in _ENDED:
        said = _ENDED[sent.status]
        say(f"The run {said}, so nothing takes it now. It is kept: a resume that comes to a wait of its name takes it.")
    elif sent.kind is WaitKind.SIGNAL and not sent.is_awaited and not sent.owner:
        say("The run does not wait for it yet; it is kept until it does.")
    if sent.owner:
        say(f"The run is live, and takes it by itself: {escaped(sent.owner)}.")
    else:
        say(f"Resume with: {resume_command(sent.workflow_id, store)}")


def resumed(context: click.Context, said: str, run: str, store: str | None, *, as_json: bool) -> int:
    """Resume a run that was told something.

    Args:
        context: of the command.
        said: what was done, in a few words.
        run: the run.
        store: the option that the command was given.
        as_json: as one document.
    """
    from flowckpt.cli.commands import resume  # noqa: PLC0415 - most who send something do not resume

    say(escaped(said))
    code: int = context.invoke(resume.command, run=run, store=store, as_json=as_json)
    return code if isinstance(code, int) else ExitCode.DONE
