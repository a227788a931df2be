"""What a resume asks a person at a terminal where a step's function was edited."""

from __future__ import annotations

import sys

import attrs
import click

from flowckpt.cli.output import is_error_terminal, say
from flowckpt.cli.plan_text import plan_text
from flowckpt.cli.planned_run import planned_run
from flowckpt.cli.recorded_run import RecordedRun
from flowckpt.cli.settings import color_allowed
from flowckpt.cli.terminal_text import escaped
from flowckpt.cli.ways_on import ResumeLine
from flowckpt.engine import RunOptions
from flowckpt.errors import StaleStepError
from flowckpt.plan.policy import OnStale

_ANSWERS = {
    "r": OnStale.RERUN,
    "run": OnStale.RERUN,
    "rerun": OnStale.RERUN,  # the word of the option
    "u": OnStale.REUSE,
    "reuse": OnStale.REUSE,
    "s": None,
    "stop": None,
}


def can_ask(options: RunOptions) -> bool:
    """Tell whether a person sits there, and has not said already what to do.

    Args:
        options: how the resume is to be done.
    """
    is_open = options.on_code_change is None and not options.force
    return is_open and sys.stdin is not None and sys.stdin.isatty() and is_error_terminal()


def ask_about_code(
    error: StaleStepError, run: RecordedRun, options: RunOptions, *, no_color: bool
) -> RunOptions | None:
    """Show the plan and ask what to do; return the options to resume with, or None to stop.

    Args:
        error: what the resume stopped at.
        run: the run.
        options: how it was to be done.
        no_color: whether the command line forbids colours.
    """
    plan = planned_run(run, options).plan
    line = ResumeLine(run.workflow_id, run.choice, options, run.target)
    say(plan_text(plan, line, is_colored=not no_color and color_allowed()).rstrip("\n"))
    question = f"[r]un again from '{escaped(error.path)}' on / re[u]se / [s]top"
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
