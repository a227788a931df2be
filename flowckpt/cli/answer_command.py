"""The command that answers an approval, made twice: `approve` and `reject` differ in a word and in what they say."""

from __future__ import annotations

import click

from flowckpt.cli.answering import by_option, resume_option, resumed, tell_sent, user_name
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.options import RunName, json_option, network_option, store_option
from flowckpt.cli.output import keep_for_document
from flowckpt.cli.settings import choose_store
from flowckpt.cli.stored_runs import opened_store, waited
from flowckpt.engine import RunOptions, WorkflowEngine


def answer_command(name: str, *, is_approved: bool, explained: str, comment: str) -> click.Command:
    """Return the command that answers what a run asks for.

    Args:
        name: the command's name.
        is_approved: whether it says yes.
        explained: its help.
        comment: a comment for the examples.
    """
    examples = f"""\b
Examples:
  flowckpt {name} nightly release
  flowckpt {name} nightly release --by ann --comment "{comment}"
  flowckpt {name} nightly 'pages/[3]/review' --resume"""

    @click.command(name, help=explained, epilog=examples)
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
        if as_json:
            keep_for_document()
        checkpoints, choice = opened_store(store), choose_store(store)
        who = user_name() if by is None else by
        engine, options = WorkflowEngine(checkpoints), RunOptions(allow_network=allow_network)
        answer = engine.approve if is_approved else engine.reject
        sent = waited(answer(run, name, by=who, comment=comment, options=options))
        said = f"{sent.name} of run {run} is {'approved' if is_approved else 'rejected'}"
        if is_to_resume and not sent.owner:
            return resumed(context, said, run, store, as_json=as_json)
        tell_sent(sent, said, choice, as_json=as_json)
        return ExitCode.DONE

    return command
