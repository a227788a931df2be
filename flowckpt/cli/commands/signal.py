"""`flowckpt signal`."""

from __future__ import annotations

import json
import math
from typing import Any

import click

from flowckpt.cli.commands.approve import resume_option, resumed, tell_sent
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.notices import show_warnings
from flowckpt.cli.options import Command, RunName, SecondsRange, by_option, json_option, store_option, user_name
from flowckpt.cli.render.terminal import json_text, keep_for_document, write
from flowckpt.cli.runs import chosen_run, opened_store, waited
from flowckpt.cli.settings import choose_store
from flowckpt.core import codec
from flowckpt.engine import WorkflowEngine

_EXAMPLE = """\b
Examples:
  flowckpt signal nightly go
  flowckpt signal nightly order --data '{"id": 7, "paid": true}'
  flowckpt signal nightly go --id 2026-11-20 --resume
  flowckpt signal shop price --data '"tea"' --wait 30"""


@click.command("signal", cls=Command, epilog=_EXAMPLE)
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
def command(  # noqa: PLR0913, PLR0917 - one parameter for each option
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
    """
    if patience is not None and is_to_resume:
        raise click.UsageError("--wait and --resume exclude each other: the resume of the run prints its own output")
    if as_json:
        keep_for_document()
    show_warnings()
    checkpoints, choice = opened_store(store), choose_store(store)
    run = chosen_run(checkpoints, run, is_unfinished=True)
    carried = None if data is None else _parsed(data)
    who = user_name() if by is None else by
    engine = WorkflowEngine(checkpoints)
    sent = waited(engine.signal(run, name, carried, by=who, signal_id=signal_id, wait=patience))
    if patience is not None:
        write(
            f"{json_text(sent.to_document() if as_json else codec.encode(sent.reply), indent=2 if as_json else None)}\n"
        )
        return ExitCode.DONE
    said = f"signal {name} was sent to run {run}"
    if is_to_resume and not sent.owner:
        return resumed(context, said, run, store, as_json=as_json)
    tell_sent(sent, said, choice, as_json=as_json)
    return ExitCode.DONE


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.UsageError(
            f"--data is not JSON: {error}; a text needs quotes of its own: --data '\"yes\"'"
        ) from None
