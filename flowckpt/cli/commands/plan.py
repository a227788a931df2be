"""`flowckpt plan`."""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from flowckpt.cli.arguments import load_typed_target, make_run_options
from flowckpt.cli.exit_codes import ExitCode, code_of_error, code_of_plan
from flowckpt.cli.loaded_run import RecordedRun, load_recorded_run, plan_run
from flowckpt.cli.next_steps import ResumeLine
from flowckpt.cli.options import (
    Command,
    RunName,
    StepName,
    color_option,
    input_option,
    json_option,
    policy_options,
    program_options,
    store_option,
)
from flowckpt.cli.render.plan import explain_step, plan_text
from flowckpt.cli.render.tables import draws_colors, show_table
from flowckpt.cli.render.terminal import escape, say, write, write_document, write_lines
from flowckpt.cli.runs import open_chosen_store, read_owner, read_survey, report_left_out
from flowckpt.cli.settings import StoreChoice, is_color_allowed
from flowckpt.core.records import Status
from flowckpt.core.records.listing import MANAGED, RunFilter, RunInfo
from flowckpt.engine.rules.plan import Decision, ResumePlan
from flowckpt.engine.rules.reasons import OnStale
from flowckpt.errors import FlowckptError, StaleStepError

if TYPE_CHECKING:
    from flowckpt.engine import RunOptions


_ANSWERS = {
    "r": OnStale.RERUN,
    "run": OnStale.RERUN,
    "rerun": OnStale.RERUN,  # the word of the option
    "u": OnStale.REUSE,
    "reuse": OnStale.REUSE,
    "s": None,
    "stop": None,
}


@click.command("plan", cls=Command)
@click.argument("run", type=RunName(is_unfinished=True), required=False)
@click.argument("step", type=StepName(), required=False)
@click.option(
    "--all", "is_all", is_flag=True, help="Plan every unfinished run of the store, for example before a deployment."
)
@policy_options
@input_option
@program_options
@json_option
@store_option
@color_option
def plan_command(
    run: str | None,
    step: str | None,
    is_all: bool,
    inputs: dict[str, str],
    target: str | None,
    is_here: bool,
    as_json: bool,
    store: StoreChoice,
    **policy: Any,
) -> int:
    """Show what a resume with the same options would do, step by step, and why. Runs and changes nothing.

    With STEP, explain the decision about one step: its code, arguments, version, evidence, and the steps before it. STEP
    is a path, or a name (its first use).

    With --all, show for each unfinished run (with --target, only of that workflow) whether a resume would stop, and why.
    A run that would only run steps again does not count.

    The exit code is 0 if nothing is stale and 10 if something is. If the resume would stop, the exit code is that of the
    resume: 10 for a stale result, 14 if the workflow yields other steps than recorded, 15 for a step in doubt, and 1 for
    a run that stopped during its undo.

    Examples:
      flowckpt plan nightly
      flowckpt plan nightly --on-code-change rerun --verify stat
      flowckpt plan nightly --from clean --json
      flowckpt plan nightly clean
      flowckpt plan nightly 'parse[24]' --json
      flowckpt plan --all --json
    """
    if is_all:
        if run is not None or inputs:
            raise click.UsageError("--all excludes RUN and -i: it plans every unfinished run")
        return show_all(store, make_run_options(policy), target, as_json=as_json)
    if run is None:
        raise click.UsageError("Give an id, a unique prefix of one, --last, or --all; 'flowckpt list' shows the ids")
    recorded = load_recorded_run(store, run, target=target, inputs=inputs, is_here=is_here)
    options = make_run_options(policy, base_path=recorded.base_path)
    if step is not None:
        return show_step(recorded, options, step, as_json=as_json)
    return show_plan(recorded, options, as_json=as_json)


def show_plan(run: RecordedRun, options: RunOptions, *, as_json: bool) -> ExitCode:
    """Show the plan of a run on standard output, and return its exit code.

    Args:
        run: the run.
        options: how it would be resumed.
        as_json: whether to write a JSON document.
    """
    owner = read_owner(run.store, run.workflow_id)
    if owner is not None:
        say(f"flowckpt: the run is running now, in {escape(str(owner))}: this is the plan from its newest checkpoint")
    plan = plan_run(run, options).plan
    if as_json:
        write_document(plan.to_document())
    else:
        line = ResumeLine(run.workflow_id, run.choice, options, run.target)
        write(plan_text(plan, line, is_colored=draws_colors()))
    return code_of_plan(plan)


@attrs.frozen
class RunVerdict:
    """Whether a run could be resumed with the current code.

    Attributes:
        info: the run.
        code: the exit code of its plan.
        why: why its resume would stop; empty if it would not.
        plan: its plan; None if there is none.
    """

    info: RunInfo
    code: ExitCode
    why: str = ""
    plan: ResumePlan | None = None

    def to_document(self) -> dict[str, Any]:
        """Return the verdict as plain JSON."""
        return {
            "workflow_id": self.info.workflow_id,
            "workflow_name": self.info.workflow_name,
            "status": self.info.status.value,
            "stops": bool(self.why),
            "why": self.why,
            "exit_code": int(self.code),
            "stale": 0 if self.plan is None else self.plan.stale,
            "plan": None if self.plan is None else self.plan.to_document(),
        }

    @property
    def text(self) -> str:
        """The verdict, in words."""
        if self.why or self.plan is None:
            return f"stops ({int(self.code)}): {self.why}"
        again = self.plan.count(Decision.RERUN)
        return f"resumes; {again} to run again" if again else "resumes"


def show_all(choice: StoreChoice, options: RunOptions, target: str | None, *, as_json: bool) -> ExitCode:
    """Show for each unfinished run whether its resume would stop; return the exit code of the first that would.

    Args:
        choice: the store.
        options: how the runs would be resumed.
        target: the workflow whose runs are planned, as typed; None for all runs with their recorded targets.
        as_json: whether to write a JSON document.
    """
    name = None if target is None else load_typed_target(target)[0].name
    run_filter = RunFilter(statuses={*Status} - {Status.COMPLETED, Status.CANCELLED}, workflow=name)
    survey = read_survey(open_chosen_store(choice), run_filter)
    runs = [info for info in survey.runs if info.workflow_name != MANAGED and not info.is_held]
    verdicts = [_judge_run(choice, info, options, target) for info in runs]
    if as_json:
        write_document([each.to_document() for each in verdicts])
    elif verdicts:
        rows = [
            [each.info.workflow_id, each.info.workflow_name, each.info.status.value, escape(each.text)]
            for each in verdicts
        ]
        show_table(("RUN", "WORKFLOW", "STATUS", "A RESUME"), rows, wrapped=("A RESUME",))
    else:
        say(f"flowckpt: no unfinished run in {choice.shown}")
    left_out = report_left_out(survey.unreadable)
    return next((each.code for each in verdicts if each.why), ExitCode(left_out))


def _judge_run(choice: StoreChoice, info: RunInfo, options: RunOptions, target: str | None) -> RunVerdict:
    try:
        with chdir(Path.cwd()):  # planning changes to the directory of the run
            plan = plan_run(load_recorded_run(choice, info.workflow_id, target=target), options).plan
    except FlowckptError as error:
        return RunVerdict(info, code_of_error(error), error.message)
    except Exception as error:  # its program cannot be imported; the other runs are planned
        return RunVerdict(info, ExitCode.USAGE, f"{type(error).__name__}: {error}"[:300])
    return RunVerdict(info, code_of_plan(plan), plan.stops, plan)


def show_step(run: RecordedRun, options: RunOptions, step: str, *, as_json: bool) -> ExitCode:
    """Show on standard output why a resume would run a step again or reuse it, and return the exit code of the plan."""
    planned = plan_run(run, options)
    explanation = explain_step(run.workflow_id, step, run.latest, planned)
    if as_json:
        write_document(explanation.to_document(run.workflow_id))
    else:
        lines = explanation.lines(is_colored=draws_colors())
        write_lines(lines)
    return code_of_plan(planned.plan)


def ask_about_code(error: StaleStepError, run: RecordedRun, options: RunOptions) -> RunOptions | None:
    """Show the plan and ask how to continue; return the options to resume with, or None to stop.

    Args:
        error: the error that stopped the resume.
        run: the run.
        options: the options of the stopped resume.
    """
    plan = plan_run(run, options).plan
    line = ResumeLine(run.workflow_id, run.choice, options, run.target)
    say(plan_text(plan, line, is_colored=is_color_allowed()).rstrip("\n"))
    question = f"[r]un again from '{escape(error.path)}' / re[u]se / [s]top"
    while True:
        try:
            typed = click.prompt(question, default="s", show_default=False, err=True)
        except click.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise
            say("")  # the end of the input
            return None
        answer = str(typed).strip().lower()
        if answer in _ANSWERS:
            chosen = _ANSWERS[answer]
            return None if chosen is None else attrs.evolve(options, on_code_change=chosen)
        say("flowckpt: answer with r, u or s")
