"""`flowckpt show`."""

from __future__ import annotations

from typing import Any

import click

from flowckpt.checkpoint import StepResult
from flowckpt.checkpoint.reference import CheckpointRef
from flowckpt.checkpoint.result import look
from flowckpt.cli.documents import run_document
from flowckpt.cli.durations import ago_text, duration_text, moment_text
from flowckpt.cli.options import RunName, color_option, json_option, store_option
from flowckpt.cli.output import write
from flowckpt.cli.status_text import status_text
from flowckpt.cli.stored_runs import StoredRun, opened_store, stored_run
from flowckpt.cli.table import show_table
from flowckpt.cli.terminal_text import escaped, json_text, short_value
from flowckpt.codec.results import plain_tree
from flowckpt.errors import DecodingError

_EXAMPLE = """\b
Examples:
  flowckpt show nightly --steps
  flowckpt show nightly --checkpoints
  flowckpt show nightly --json"""

_STEPS = ("STEP", "TYPE", "RESULT", "TIME", "STARTED", "ATTEMPT", "OUTPUT")
_CHECKPOINTS = ("CHECKPOINT", "SEQUENCE", "ATTEMPT", "REASON", "STEPS", "SAVED", "VERIFIED")
_VERDICTS = {True: "yes", False: "no", None: "-"}


@click.command("show", epilog=_EXAMPLE)
@click.argument("run", type=RunName())
@click.option("--steps", is_flag=True, help="Also each step: its result, its time, the attempt that executed it.")
@click.option("--checkpoints", is_flag=True, help="Also each checkpoint.")
@json_option
@store_option
@color_option
def command(run: str, steps: bool, checkpoints: bool, as_json: bool, store: str | None, no_color: bool) -> None:
    """Show one run: its status, its inputs and output, and on request its steps and checkpoints."""
    found = stored_run(opened_store(store), run)
    if as_json:
        write(f"{json_text(run_document(run, found), indent=2)}\n")
        return
    write("".join(f"{line}\n" for line in _lines(run, found, no_color=no_color)))
    if steps and found.latest.step_results:
        write("\n")
        show_table(
            _STEPS,
            [_step_row(result) for result in found.latest.step_results],
            wrapped=("STEP", "OUTPUT"),
            no_color=no_color,
        )
    if checkpoints:
        write("\n")
        rows = [_checkpoint_row(reference) for reference in reversed(found.checkpoints)]
        show_table(_CHECKPOINTS, rows, wrapped=("CHECKPOINT",), no_color=no_color)


def _lines(workflow_id: str, run: StoredRun, *, no_color: bool) -> list[str]:
    latest = run.latest
    lines = [
        f"run: {escaped(workflow_id)}",
        f"workflow: {escaped(latest.workflow_name)}",
        f"status: {status_text(run.status.value, no_color=no_color)}",
        f"attempt: {latest.attempt}",
        f"started: {moment_text(run.started_at)}",
        f"updated: {moment_text(latest.saved_at)} ({ago_text(latest.saved_at)})",
    ]
    if run.owner is not None:
        lines.append(f"owner: {escaped(str(run.owner))}")
    lines += [f"tag: {escaped(f'{key}={value}')}" for key, value in latest.metadata.get("tags", {}).items()]
    target = latest.metadata.get("target", {})
    if place := target.get("file") or target.get("module"):
        lines.append(f"target: {escaped(':'.join(filter(None, (place, target.get('name')))))}")
    inputs = _looked_at(latest.held_inputs, "inputs")
    lines += [f"input {escaped(name)}: {short_value(value)}" for name, value in inputs.items()]
    executed = sum(result.attempt == latest.attempt for result in latest.step_results)
    count = len(latest.step_results)
    lines.append(f"steps: {count} recorded, {executed} of them executed by attempt {latest.attempt}")
    lines.append(f"checkpoints: {len(run.checkpoints)}")
    if run.status.value == "completed":
        lines.append(f"output: {short_value(_looked_at(latest.held_output, 'output'))}")
    if latest.error is not None:
        at = f" at step {latest.error.path}" if latest.error.path else ""
        lines.append(f"error{escaped(at)}: {escaped(f'{latest.error.type}: {latest.error.message}')}")
    return lines


def _step_row(result: StepResult) -> list[str]:
    started = moment_text(result.started_at) if result.started_at else "-"
    if result.error is None:
        outcome, detail = "ok", short_value(_looked_at(result.held_output, "output"), 60)
    else:
        outcome, detail = "failed", f"{result.error.type}: {result.error.message}"[:200]
    time = duration_text(result.duration_ms)
    return [result.path, result.step_type, outcome, time, started, str(result.attempt), detail]


def _checkpoint_row(reference: CheckpointRef) -> list[str]:
    return [
        reference.checkpoint_id,
        str(reference.sequence),
        str(reference.attempt),
        reference.reason.value,
        str(reference.steps),
        moment_text(reference.saved_at),
        _VERDICTS[reference.verified],
    ]


def _looked_at(held: Any, place: str) -> Any:
    """Return a recorded value; one of a type that only its program knows, as the record has it."""
    try:
        return look(held)
    except DecodingError:
        return plain_tree(held, place)
