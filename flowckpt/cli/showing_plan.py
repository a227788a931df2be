"""Showing the plan of a run: what `plan` and `resume --plan` do."""

from __future__ import annotations

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.output import is_terminal, say, write
from flowckpt.cli.plan_text import plan_text
from flowckpt.cli.planned_run import code_of_plan, planned_run
from flowckpt.cli.recorded_run import RecordedRun
from flowckpt.cli.settings import color_allowed
from flowckpt.cli.stored_runs import owner_of
from flowckpt.cli.terminal_text import escaped, json_text
from flowckpt.cli.ways_on import ResumeLine
from flowckpt.engine import RunOptions


def show_plan(run: RecordedRun, options: RunOptions, *, as_json: bool, no_color: bool) -> ExitCode:
    """Show the plan of a run on standard output, and return the exit code that sums it up.

    Args:
        run: the run.
        options: how it would be resumed.
        as_json: as one document.
        no_color: whether the command line forbids colours.
    """
    owner = owner_of(run.store, run.workflow_id)
    if owner is not None:
        say(f"flowckpt: the run is running now, in {escaped(str(owner))}: this is the plan from its newest checkpoint")
    plan = planned_run(run, options).plan
    if as_json:
        write(f"{json_text(plan.to_document(), indent=2)}\n")
    else:
        is_colored = is_terminal() and not no_color and color_allowed()
        line = ResumeLine(run.workflow_id, run.choice, options, run.target)
        write(plan_text(plan, line, is_colored=is_colored))
    return code_of_plan(plan)
