"""`flowckpt resume`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from flowckpt.cli import commands, drive, recoverer
from flowckpt.cli.arguments import make_run_options
from flowckpt.cli.drive import Form, ResumeFacts, follow_run, form_options
from flowckpt.cli.loaded_run import RecordedRun, load_recorded_run
from flowckpt.cli.next_steps import ResumeLine
from flowckpt.cli.options import (
    Command,
    RunName,
    by_option,
    executor_option,
    input_option,
    limit_options,
    mirror_options,
    parse_executors,
    policy_options,
    program_options,
    rollback_option,
    setting_option,
    store_option,
)
from flowckpt.cli.settings import StoreChoice, create_engine
from flowckpt.engine import RunOptions
from flowckpt.errors import StaleStepError

if TYPE_CHECKING:
    from flowckpt.engine.session.session import Session


@click.command("resume", cls=Command)
@click.argument("run", type=RunName(is_unfinished=True))
@click.option("--plan", "only_plan", is_flag=True, help="Show what the resume would do, like plan, and run nothing.")
@policy_options
@by_option
@click.option("--comment", metavar="TEXT", default="", help="With --done and --not-done: the reason; recorded.")
@setting_option("on_save_error")
@mirror_options
@limit_options
@input_option
@program_options
@click.option(
    "--if-attempt",
    type=click.IntRange(min=1),
    metavar="N",
    help="Resume only if N is the newest attempt; otherwise the exit code is 75.",
)
@click.option("--kept-by", type=click.IntRange(min=0), hidden=True)  # a socket to the recoverer that owns the run
@executor_option
@click.option(
    "--accept-import",
    is_flag=True,
    help="Allow the first resume of an imported run (default: ask). Approvals and signals in its file count only if it "
    "was signed with a key of the store.",
)
@click.option("--steal", is_flag=True, help="Take over the run even if another process owns it.")
@rollback_option
@form_options
@store_option
def resume_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    run: str,
    only_plan: bool,
    inputs: dict[str, str],
    target: str | None,
    by: str | None,
    is_here: bool,
    on_save_error: str | None,
    accept_import: bool,
    kept_by: int | None,
    executors: tuple[str, ...],
    form: Form,
    store: StoreChoice,
    **policy: Any,
) -> int:
    """Resume a run from its last checkpoint, and reuse only results that are still valid.

    Its inputs and its target were recorded at the start. Inputs that you give again must match the record; secret
    ones are not recorded, so the command asks for them. If a step's function was edited, the command shows the plan
    at a terminal and asks; elsewhere it stops, exits with 10 and says how to continue.

    Examples:
      flowckpt resume --last
      flowckpt resume nightly --plan
      flowckpt resume nightly --on-code-change rerun
      flowckpt resume nightly -i token=@env:SHOP_TOKEN
      flowckpt resume nightly --from clean --reuse inputs
      flowckpt resume nightly --done 'charge="receipt 12"' --comment "it is in the bank's list"
      flowckpt resume nightly --target moved/pipeline.py:etl --json
    """
    if only_plan and form.as_events:
        raise click.UsageError("--plan and --events exclude each other: a plan runs nothing, so there are no events")
    places = parse_executors(executors)
    recorded = load_recorded_run(
        store,
        run,
        target=target,
        inputs=inputs,
        asks_for_secrets=not only_plan,
        is_here=is_here,
        accepts=None
        if only_plan
        else lambda found, shown_inputs: accept_import or drive.ask_about_import(found, shown_inputs),
    )
    run = recorded.workflow_id
    options = make_run_options(policy, by, target=recorded.moved_to, base_path=recorded.base_path, executors=places)
    if only_plan:
        return commands.plan.show_plan(recorded, options, as_json=form.as_json)
    shown_inputs = {name: text for name, text in inputs.items() if name not in recorded.workflow.secret_inputs}
    line = ResumeLine(run, store, options, target, on_save_error, shown_inputs)
    resuming = ResumeFacts(recorded.latest, line, is_noted=kept_by is None and target is None)
    session = _prepare_session(recorded, options, on_save_error, is_recovered=kept_by is not None)
    if kept_by is not None:
        recoverer.child.ask_for_run(kept_by)
    can_ask = not (form.as_json or form.as_events) and drive.can_ask(options)
    ask = partial(_ask_person, recorded=recorded, line=line) if can_ask else None
    return follow_run(session, recorded.workflow, run, store=store, form=form, resuming=resuming, ask=ask)


def _ask_person(
    error: StaleStepError, *, recorded: RecordedRun, line: ResumeLine
) -> tuple[Session, ResumeFacts] | None:
    """Ask what to do about edited code; return the session for the answer, or None to stop."""
    chosen = commands.plan.ask_about_code(error, recorded, line.options)
    if chosen is None:
        return None
    line = ResumeLine(line.workflow_id, line.choice, chosen, line.target, line.on_save_error)
    return _prepare_session(recorded, chosen, line.on_save_error), ResumeFacts(recorded.latest, line)


def _prepare_session(
    run: RecordedRun, options: RunOptions, on_save_error: str | None, *, is_recovered: bool = False
) -> Session:
    is_reported = is_recovered and recoverer.child.is_reported(run.store, run.workflow_id, run.latest)
    engine = create_engine(run.store, run.choice, on_save_error, is_reported=is_reported)
    return engine.prepare_resume(run.workflow, run.workflow_id, options, run.inputs)
