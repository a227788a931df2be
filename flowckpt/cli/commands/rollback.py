"""`flowckpt rollback`."""

from __future__ import annotations

import click

from flowckpt.cli.loaded_run import program_at_need
from flowckpt.cli.next_steps import show_resume_hint
from flowckpt.cli.options import (
    Command,
    RunName,
    here_option,
    json_option,
    network_option,
    store_option,
    target_option,
    verify_option,
)
from flowckpt.cli.render.terminal import escaped, json_text, keep_for_document, shortened, write
from flowckpt.cli.runs import chosen_run, opened_store, waited
from flowckpt.cli.settings import choose_store
from flowckpt.core.system.clock import SystemClock
from flowckpt.engine import RunOptions
from flowckpt.engine.history.checkpoints import Rechecking
from flowckpt.engine.history.rollback import RolledBack, roll_back

_EXAMPLE = """\b
Examples:
  flowckpt rollback nightly clean
  flowckpt rollback nightly 7 --verify stat --json"""

_MOST = 8


@click.command("rollback", cls=Command, epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.argument("checkpoint")
@verify_option
@network_option
@target_option
@here_option
@json_option
@store_option
def command(
    run: str,
    checkpoint: str,
    verify: str | None,
    allow_network: tuple[str, ...],
    target: str | None,
    is_here: bool,
    as_json: bool,
    store: str | None,
) -> None:
    """Make an earlier checkpoint the one to resume from. Runs nothing; later checkpoints stay in the store.

    CHECKPOINT is an id, of which the newest counts, or a sequence. The evidence of every result up to it is checked
    first: if a claim does not hold, or cannot be checked, nothing changes and the exit code is 10. Later checkpoints
    stay visible in show --history.
    """
    if as_json:
        keep_for_document()
    checkpoints, choice = opened_store(store), choose_store(store)
    run = chosen_run(checkpoints, run)
    program = program_at_need(checkpoints, run, target, is_here=is_here)
    options = RunOptions(verify=verify, allow_network=allow_network, base_path=program.base_path)
    rechecking = Rechecking(options, program=program)
    done = waited(roll_back(checkpoints, SystemClock(), run, checkpoint, rechecking))
    if as_json:
        write(f"{json_text(done.to_document(), indent=2)}\n")
    else:
        write("".join(f"{line}\n" for line in _lines(done)))
        show_resume_hint(run, choice)


def _lines(done: RolledBack) -> list[str]:
    place = f"checkpoint {escaped(done.checkpoint_id)} (sequence {done.sequence})"
    if not done.is_new:
        return [f"run {escaped(done.workflow_id)} stands at {place} already: nothing was changed"]
    lines = [f"run {escaped(done.workflow_id)} is back at {place}"]
    lines.append(f"results: {done.steps} count, {len(done.dropped)} no longer count")
    lines += [f"no longer counts: {shortened(path, 80)}" for path in done.dropped[:_MOST]]
    if len(done.dropped) > _MOST:
        lines.append(f"no longer count: {len(done.dropped) - _MOST} more")
    return lines
