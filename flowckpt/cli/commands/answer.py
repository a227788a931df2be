"""Answers to a waiting run: `flowckpt signal`, `approve` and `reject`; each can resume the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from flowckpt.cli.arguments import refuse_known_secrets
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.next_steps import resume_command
from flowckpt.cli.notices import show_warnings
from flowckpt.cli.options import (
    Command,
    RunName,
    SecondsRange,
    by_option,
    json_option,
    network_option,
    parsed_json,
    store_option,
    user_name,
)
from flowckpt.cli.render.terminal import escaped, json_text, say, write, write_document
from flowckpt.cli.runs import opened_run, waited
from flowckpt.cli.settings import StoreChoice, choose_store
from flowckpt.core import codec
from flowckpt.core.records import Status
from flowckpt.core.records.wait import WaitKind
from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.engine.session.respond import Sent

F = TypeVar("F", bound=Callable[..., Any])
_ENDED = {Status.FAILED: "has failed", Status.CANCELLED: "was cancelled"}
"""The ends from which a resume can continue; a complete run takes nothing."""


def resume_option(command: F) -> F:
    """Add `--resume`."""
    return click.option(
        "--resume",
        "is_to_resume",
        is_flag=True,
        help="Resume the run at once; output and exit code are those of resume.",
    )(command)


def tell_sent(sent: Sent, said: str, store: StoreChoice, *, as_json: bool) -> None:
    """Tell what was sent, and what continues the run.

    Args:
        sent: the message.
        said: what was done, in a few words.
        store: the store of the run.
        as_json: as one document.
    """
    if as_json:
        write_document(sent.to_document())
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
    elif sent.is_awaited:
        say(f"Resume with: {resume_command(sent.workflow_id, store)}")


def followed(
    context: click.Context, sent: Sent, said: str, store: str | None, *, is_to_resume: bool, as_json: bool
) -> int:
    """Resume the run after a message to it, or tell what continues it.

    Args:
        context: of the command.
        sent: the message.
        said: what was done, in a few words.
        store: the option that the command was given.
        is_to_resume: whether to resume the run, unless it is live.
        as_json: as one document.
    """
    if not is_to_resume or sent.owner:
        tell_sent(sent, said, choose_store(store), as_json=as_json)
        return ExitCode.DONE
    from flowckpt.cli.commands import resume  # noqa: PLC0415 - most who send something do not resume

    say(escaped(said))
    code: int = context.invoke(resume.resume_command, run=sent.workflow_id, store=store, as_json=as_json)
    return code if isinstance(code, int) else ExitCode.DONE


# The command that answers an approval, made twice: `approve` and `reject` differ in a word and in what they say.


def answer_command(name: str, *, is_approved: bool, explained: str, comment: str) -> click.Command:
    """Return the command that answers what a run asks for.

    Args:
        name: the command's name.
        is_approved: whether it says yes.
        explained: its help.
        comment: a comment for the examples.
    """
    explained += f"""
Examples:
  flowckpt {name} nightly release
  flowckpt {name} nightly release --by ann --comment "{comment}"
  flowckpt {name} nightly 'pages/[3]/review' --resume"""

    @click.command(name, cls=Command, help=explained)
    @click.argument("run", type=RunName(is_unfinished=True))
    @click.argument("name")
    @by_option
    @click.option("--comment", metavar="TEXT", default="", help="Why; recorded with the decision.")
    @network_option
    @resume_option
    @json_option
    @store_option
    @click.pass_context
    def command(  # noqa: PLR0913, PLR0917 - one parameter for each option
        context: click.Context,
        run: str,
        name: str,
        by: str | None,
        comment: str,
        allow_network: tuple[str, ...],
        is_to_resume: bool,
        as_json: bool,
        store: str | None,
    ) -> int:
        checkpoints, run = opened_run(store, run, is_unfinished=True)
        who = user_name() if by is None else by
        refuse_known_secrets(comment=comment, sender=who)
        engine, options = WorkflowEngine(checkpoints), RunOptions(allow_network=allow_network)
        answer = engine.approve if is_approved else engine.reject
        sent = waited(answer(run, name, by=who, comment=comment, options=options))
        said = f"{sent.name} of run {run} is {'approved' if is_approved else 'rejected'}"
        return followed(context, sent, said, store, is_to_resume=is_to_resume, as_json=as_json)

    return command


_APPROVE_HELP = """Approve what a run asks for. NAME is the approval's name, or the path of its step.

The facts that the approval is bound to are checked first: if they differ from what the run has asked for, nothing is
recorded and the exit code is 10. They are checked once more before the run uses the approval.
"""

approve_command = answer_command("approve", is_approved=True, explained=_APPROVE_HELP, comment="looks good")


@click.command("signal", cls=Command)
@click.argument("run", type=RunName(is_unfinished=True))
@click.argument("name")
@click.option("--data", metavar="JSON", help="The data of the signal, as JSON; none by default.")
@by_option
@click.option(
    "--id", "signal_id", metavar="ID", help="Names this very signal: sent again under the same id, it is there once."
)
@click.option(
    "--wait",
    "patience",
    type=SecondsRange(0, has_infinity=True),
    is_flag=False,
    flag_value=math.inf,
    metavar="[SECONDS]",
    help="Wait for the reply of the run, as long as it takes or so many seconds, and print it as JSON.",
)
@resume_option
@json_option
@store_option
@click.pass_context
def signal_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    context: click.Context,
    run: str,
    name: str,
    data: str | None,
    by: str | None,
    signal_id: str | None,
    patience: float | None,
    is_to_resume: bool,
    as_json: bool,
    store: str | None,
) -> int:
    """Send a signal to a run. It is made durable, and taken once, by the first wait of its NAME.

    A signal that comes early is kept until the run waits for it. The run may be live in another process, suspended or
    crashed; one that is complete takes no signals (exit code 2). With --wait, the reply is printed; exit code 75 means
    that there is none.

    Examples:
      flowckpt signal nightly go
      flowckpt signal nightly order --data '{"id": 7, "paid": true}'
      flowckpt signal nightly go --id 2026-11-20 --resume
      flowckpt signal shop price --data '"tea"' --wait 30
    """
    if patience is not None and is_to_resume:
        raise click.UsageError("--wait and --resume exclude each other: the resume of the run prints its own output")
    show_warnings()
    checkpoints, run = opened_run(store, run, is_unfinished=True)
    carried = None if data is None else parsed_json(data, "--data", "--data '\"yes\"'")
    who = user_name() if by is None else by
    refuse_known_secrets(data=carried, sender=who, name=name, id=signal_id)
    engine = WorkflowEngine(checkpoints)
    sent = waited(engine.signal(run, name, carried, by=who, signal_id=signal_id, wait=patience))
    if patience is not None:
        write(
            f"{json_text(sent.to_document() if as_json else codec.encode(sent.reply), indent=2 if as_json else None)}\n"
        )
        return ExitCode.DONE
    said = f"signal {name} was sent to run {run}"
    return followed(context, sent, said, store, is_to_resume=is_to_resume, as_json=as_json)


_REJECT_HELP = """Reject what a run asks for. NAME is the approval's name, or the path of its step.

The step of the run fails, unless the workflow handles it; then a resume asks again.
"""

reject_command = answer_command("reject", is_approved=False, explained=_REJECT_HELP, comment="the totals are wrong")
