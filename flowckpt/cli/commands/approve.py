"""`flowckpt approve`."""

from __future__ import annotations

import click

from flowckpt.cli.answering import by_option, resume_option, resumed, tell_sent, user_name
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.options import RunName, json_option, network_option, store_option
from flowckpt.cli.output import keep_for_document
from flowckpt.cli.settings import choose_store
from flowckpt.cli.stored_runs import opened_store, waited
from flowckpt.engine import RunOptions, WorkflowEngine

_EXAMPLE = """\b
Examples:
  flowckpt approve nightly release
  flowckpt approve nightly release --by ann --comment "looks good"
  flowckpt approve nightly 'pages/[3]/review' --resume"""


@click.command("approve", epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.argument("name")
@by_option
@click.option("--comment", metavar="TEXT", default="", help="Why; recorded with the decision.")
@network_option
@resume_option
@json_option
@store_option
@click.pass_context
def command(
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
    """Approve what a run asks for. NAME is the approval's name, or the path of its step.

    What the approval is bound to is checked first: where it is no longer what the run has asked for, nothing is recorded
    and the exit code is 10. It is checked once more before the run uses the approval.
    """
    if as_json:
        keep_for_document()
    checkpoints, choice = opened_store(store), choose_store(store)
    who = user_name() if by is None else by
    options = RunOptions(allow_network=allow_network)
    sent = waited(WorkflowEngine(checkpoints).approve(run, name, by=who, comment=comment, options=options))
    said = f"{sent.name} of run {run} is approved"
    if is_to_resume and not sent.owner:
        return resumed(context, said, run, store, as_json=as_json)
    tell_sent(sent, said, choice, as_json=as_json)
    return ExitCode.DONE
