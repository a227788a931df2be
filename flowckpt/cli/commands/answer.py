"""Answers to a waiting run: `flowckpt signal`, `approve` and `reject`; each can resume the run."""

from __future__ import annotations

import math

import click

from flowckpt.cli.arguments import refuse_known_secrets
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.next_steps import command_line
from flowckpt.cli.options import (
    Command,
    RunName,
    SecondsRange,
    by_option,
    find_user_name,
    json_option,
    network_option,
    parse_json,
    store_option,
)
from flowckpt.cli.render.terminal import escape, json_text, say, write, write_document
from flowckpt.cli.runs import open_run, run_async
from flowckpt.cli.settings import StoreChoice
from flowckpt.core import codec
from flowckpt.core.records import Status
from flowckpt.core.records.wait import WaitKind
from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.engine.session.respond import Sent

_ENDED = {Status.FAILED: "has failed", Status.CANCELLED: "was cancelled"}
"""The ends from which a resume can continue; a completed run takes no signals."""


resume_option = click.option(
    "--resume", "is_to_resume", is_flag=True, help="Resume the run at once; output and exit code are those of resume."
)


def report_sent(sent: Sent, message: str, store: StoreChoice, *, as_json: bool) -> None:
    """Report the sent message, and how the run continues.

    Args:
        sent: the message.
        message: a short description.
        store: the store of the run.
        as_json: whether to print one JSON document.
    """
    if as_json:
        write_document(sent.to_document())
        return
    write(f"{escape(message)}\n" if sent.is_new else f"already sent under the id {escape(sent.signal_id)}\n")
    if not sent.is_new and not sent.is_awaited:
        return
    if sent.pending_before:
        count = sent.pending_before
        what = "earlier signal of this name is" if count == 1 else "earlier signals of this name are"
        say(f"{count} {what} still pending; this one is for a later wait.")
    elif sent.kind is WaitKind.SIGNAL and not sent.owner and sent.status in _ENDED:
        message = _ENDED[sent.status]
        say(f"The run {message}, so the signal is kept until a resume reaches a wait of its name.")
    elif sent.kind is WaitKind.SIGNAL and not sent.is_awaited and not sent.owner:
        say("The run is not waiting for it yet; the signal is kept until it does.")
    if sent.owner:
        say(f"The run is live and will take it: {escape(sent.owner)}.")
    elif sent.is_awaited:
        say(f"Resume with: {command_line('resume', store, sent.workflow_id)}")


def resume_or_report(
    context: click.Context, sent: Sent, message: str, store: StoreChoice, *, is_to_resume: bool, as_json: bool
) -> int:
    """Resume the run after a message to it, or show how it continues.

    Args:
        context: the context of the command.
        sent: the message.
        message: a short description.
        store: the store option of the command.
        is_to_resume: whether to resume the run, unless it is live.
        as_json: whether to print one JSON document.
    """
    if not is_to_resume or sent.owner:
        report_sent(sent, message, store, as_json=as_json)
        return ExitCode.DONE
    from flowckpt.cli.commands import resume  # noqa: PLC0415 - most senders do not resume

    say(escape(message))
    code: int = context.invoke(resume.resume_command, run=sent.workflow_id, store=store, inputs={}, as_json=as_json)
    return code if isinstance(code, int) else ExitCode.DONE


# The commands `approve` and `reject`, which differ only in their texts.


def make_answer_command(name: str, *, is_approved: bool, explained: str, comment: str) -> click.Command:
    """Return a command that answers an approval.

    Args:
        name: the command's name.
        is_approved: whether it approves.
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
    @click.option(
        "--request",
        metavar="ID",
        default="",
        help="Answer only this question, as show --json names it; it is refused if the run asks another one meanwhile.",
    )
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
        request: str,
        allow_network: tuple[str, ...],
        is_to_resume: bool,
        as_json: bool,
        store: StoreChoice,
    ) -> int:
        checkpoints, run = open_run(store, run, is_unfinished=True)
        who = find_user_name() if by is None else by
        refuse_known_secrets(comment=comment, sender=who)
        engine, options = WorkflowEngine(checkpoints), RunOptions(allow_network=allow_network)
        answer = engine.approve if is_approved else engine.reject
        sent = run_async(answer(run, name, by=who, comment=comment, request=request, options=options))
        message = f"{sent.name} of run {run} is {'approved' if is_approved else 'rejected'}"
        return resume_or_report(context, sent, message, store, is_to_resume=is_to_resume, as_json=as_json)

    return command


_APPROVE_HELP = """Approve what a run asks for. NAME is the approval's name, or the path of its step.

The evidence of the approval is checked first: if it differs from the run's request, nothing is recorded and the exit
code is 10. It is checked again before the run uses the approval.
"""

approve_command = make_answer_command("approve", is_approved=True, explained=_APPROVE_HELP, comment="looks good")


@click.command("signal", cls=Command)
@click.argument("run", type=RunName(is_unfinished=True))
@click.argument("name")
@click.option("--data", metavar="JSON", help="The data of the signal, as JSON; none by default.")
@by_option
@click.option(
    "--id", "signal_id", metavar="ID", help="An id for the signal: sent again under the same id, it is stored once."
)
@click.option(
    "--wait",
    "patience",
    type=SecondsRange(0, has_infinity=True),
    is_flag=False,
    flag_value=math.inf,
    metavar="[SECONDS]",
    help="Wait for the run's reply, at most SECONDS (inf: forever), and print it as JSON.",
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
    store: StoreChoice,
) -> int:
    """Send a signal to a run. It is durable, and the first wait of its NAME takes it, once.

    An early signal is kept until the run waits for it. The run may be live in another process, suspended or crashed; a
    completed run takes no signals (exit code 2). With --wait, the reply is printed; exit code 75 means that none came.

    Examples:
      flowckpt signal nightly go
      flowckpt signal nightly order --data '{"id": 7, "paid": true}'
      flowckpt signal nightly go --id 2026-11-20 --resume
      flowckpt signal shop price --data '"tea"' --wait 30
    """
    if patience is not None and is_to_resume:
        raise click.UsageError("--wait and --resume exclude each other: --resume prints the output of the run")
    checkpoints, run = open_run(store, run, is_unfinished=True)
    carried = None if data is None else parse_json(data, "--data", "--data '\"yes\"'")
    who = find_user_name() if by is None else by
    refuse_known_secrets(data=carried, sender=who, name=name, id=signal_id)
    engine = WorkflowEngine(checkpoints)
    sent = run_async(engine.signal(run, name, carried, by=who, signal_id=signal_id, wait=patience))
    if patience is not None:
        write(
            f"{json_text(sent.to_document() if as_json else codec.encode(sent.reply), indent=2 if as_json else None)}\n"
        )
        return ExitCode.DONE
    message = f"signal {name} was sent to run {run}"
    return resume_or_report(context, sent, message, store, is_to_resume=is_to_resume, as_json=as_json)


_REJECT_HELP = """Reject what a run asks for. NAME is the approval's name, or the path of its step.

The step of the run fails, unless the workflow handles it; then a resume asks again.
"""

reject_command = make_answer_command(
    "reject", is_approved=False, explained=_REJECT_HELP, comment="the totals are wrong"
)
