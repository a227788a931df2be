"""`flowckpt store check`."""

from __future__ import annotations

from contextlib import suppress

import click

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.options import Command, RunName, json_option, store_option
from flowckpt.cli.render.documents import finding_document
from flowckpt.cli.render.terminal import escaped, json_text, say, write
from flowckpt.cli.runs import chosen_run, opened_store
from flowckpt.cli.settings import choose_store
from flowckpt.cli.stored_run import checked
from flowckpt.core.system.numbers import counted
from flowckpt.errors import FlowckptError
from flowckpt.stores.base import Finding

_EXAMPLE = """\b
Examples:
  flowckpt store check
  flowckpt store check nightly
  flowckpt store check --json"""


@click.command("check", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName(), required=False)
@json_option
@store_option
def command(run: str | None, as_json: bool, store: str | None) -> int:
    """Read all of the store, or of one run, and verify it. Nothing is changed.

    A notice is harmless, as a record that a crash cut short. Exits with 11 where something is corrupt, with 13 where
    something could not be read now, and with 2 where a key is missing without which nothing can be said.
    """
    checkpoints = opened_store(store, runs_nothing=True)
    findings = checked(checkpoints, None if run is None else chosen_run(checkpoints, run))
    with suppress(FlowckptError):  # a file that is not a database is among the findings
        if medium := checkpoints.medium():
            say(f"flowckpt: {choose_store(store).shown} is kept by {medium}")
    if as_json:
        write(f"{json_text([finding_document(finding) for finding in findings], indent=2)}\n")
    else:
        write("".join(f"{_line(finding)}\n" for finding in findings))
    corrupt = sum(finding.severity == "corrupt" for finding in findings)
    if corrupt:
        say(
            f"flowckpt: {corrupt} of {counted(len(findings), 'finding')} in {choose_store(store).shown} {'is' if corrupt == 1 else 'are'} corrupt"
        )
    locked = sum(finding.severity == "locked" for finding in findings)
    if locked:
        say(
            f"flowckpt: {locked} of {counted(len(findings), 'finding')} in {choose_store(store).shown} "
            f"{'needs' if locked == 1 else 'need'} a key that is not here"
        )
    elif not findings:
        say(f"flowckpt: {choose_store(store).shown} holds no run")
    failed = sum(finding.severity == "failed" for finding in findings)
    if failed:
        say(
            f"flowckpt: {failed} of {counted(len(findings), 'finding')} could not be read now, which says nothing about the record"
        )
    if corrupt or failed:
        return ExitCode.CORRUPT if corrupt else ExitCode.STORE_FAILED
    return ExitCode.USAGE if locked else ExitCode.DONE


def _line(finding: Finding) -> str:
    return escaped(f"{finding.severity}: {finding.workflow_id or 'store'}: {finding.detail}")
