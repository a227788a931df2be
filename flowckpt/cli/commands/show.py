"""`flowckpt show`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

import click

from flowckpt.cli.next_steps import wait_lines
from flowckpt.cli.options import Command, RunName, StepName, color_option, json_option, store_option
from flowckpt.cli.render.documents import (
    attempt_document,
    read_recorded_claims,
    read_run_history,
    run_document,
    step_document,
)
from flowckpt.cli.render.tables import (
    Branch,
    FoldedMembers,
    ago_text,
    duration_text,
    figures_text,
    fold_members,
    moment_text,
    show_table,
    status_text,
    step_tree,
)
from flowckpt.cli.render.terminal import (
    escape,
    escape_lines,
    json_text,
    say,
    short_value,
    write,
    write_document,
    write_lines,
)
from flowckpt.cli.runs import open_run
from flowckpt.cli.settings import StoreChoice
from flowckpt.cli.stored_run import StoredRun, read_stored_run
from flowckpt.core.codec.blob import plain_tree
from flowckpt.core.codec.results import encode_time
from flowckpt.core.records import CheckpointData, Reason, Status, StepError, StepResult
from flowckpt.core.records.generation import Generation, generations_of, number_of
from flowckpt.core.records.listing import IMPORTED, STARTED_BY, CheckpointRef, is_not_started, is_task
from flowckpt.core.records.result import decode_held, sum_figures
from flowckpt.core.records.wait import Signal, WaitKind
from flowckpt.core.system.numbers import join_names
from flowckpt.engine.rules.paths import ROLLBACK, UNDOABLE, find_path, is_within, step_of
from flowckpt.engine.run.live import LiveNote
from flowckpt.engine.run.resumption import SETTLED, crash_loop_error
from flowckpt.engine.values.failures import read_failure
from flowckpt.errors import DecodingError
from flowckpt.maintenance.attempts import Attempt, Standing
from flowckpt.maintenance.recovery import Pause

_STEPS = ("STEP", "TYPE", "RESULT", "TIME", "STARTED", "ATTEMPT", "OUTPUT")
_EVIDENCE = ("STEP", "KIND", "CLAIM", "ANSWER", "CHECKED", "FOUND")
_MARKS = {
    "at_most_once": "at most once",
    "on_rerun": "undone before a rerun",
    "not_undone": "could not be undone",
    "not_started": "was not started",
    "undoable": "can be undone",
    "adopted": "adopted",
    "edited": "edited",
}
_CHECKPOINTS = ("CHECKPOINT", "SEQUENCE", "ATTEMPT", "REASON", "STEPS", "SAVED", "VERIFIED")
_HISTORY = ("ATTEMPT", "CHECKPOINT", "SEQUENCE", "REASON", "STEPS", "SAVED", "STANDING")
_GENERATIONS = ("GENERATION", "STARTED", "ENDED", "STEPS", "ATTEMPTS", "INPUTS")
_RESULTS = ("ATTEMPT", "STEP", "RESULT", "TIME", "STARTED", "OUTPUT", "STANDING")
_VERDICTS = {True: "yes", False: "no", None: "-"}
_ANSWERS = {"yes": True, "no": False, "none": None}


@click.command("show", cls=Command)
@click.argument("run", type=RunName())
@click.option("--steps", is_flag=True, help="Also each step with its evidence.")
@click.option("--members", is_flag=True, help="With --steps: each member of large maps and groups.")
@click.option(
    "--at",
    "at",
    metavar="STEP",
    type=StepName(),
    help="Also one step, by its path or name, and the steps inside it, with the complete output or error.",
)
@click.option("--checkpoints", is_flag=True, help="Also each checkpoint.")
@click.option("--attempt", type=click.IntRange(min=1), metavar="N", help="Show only checkpoints of attempt N.")
@click.option(
    "--reason",
    "reasons",
    type=click.Choice([str(reason) for reason in Reason]),
    multiple=True,
    help="Show only checkpoints taken for this reason; repeatable.",
)
@click.option(
    "--verified",
    type=click.Choice([*_ANSWERS]),
    help="Show only checkpoints whose evidence held (yes), did not hold (no), or that have none.",
)
@click.option(
    "--history", is_flag=True, help="Also each attempt with everything that it recorded, including superseded results."
)
@click.option(
    "--generations",
    is_flag=True,
    help="Also the generations of a run that uses continue_as(), oldest first.",
)
@json_option
@store_option
@color_option
def show_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    run: str,
    steps: bool,
    members: bool,
    at: str | None,
    checkpoints: bool,
    attempt: int | None,
    reasons: tuple[str, ...],
    verified: str | None,
    history: bool,
    generations: bool,
    as_json: bool,
    store: StoreChoice,
) -> None:
    """Show one run: its status, inputs and output, and on request its steps, checkpoints and history.

    Examples:
      flowckpt show nightly --steps
      flowckpt show nightly --steps --members
      flowckpt show nightly --at clean
      flowckpt show nightly --checkpoints
      flowckpt show nightly --checkpoints --attempt 2 --verified yes
      flowckpt show nightly --history
      flowckpt show nightly --generations
      flowckpt show nightly --json
    """
    if members and not steps:
        raise click.UsageError("--members goes with --steps")
    if steps and at is not None:
        raise click.UsageError("--steps and --at exclude each other: --at shows one of the steps")
    opened, run = open_run(store, run, runs_nothing=True)
    stored = read_stored_run(opened, run)
    attempts = read_run_history(opened, run, stored) if history else []
    results: Sequence[StepResult] = stored.latest.step_results
    if at is not None:
        at = find_path(run, results, at)
        results = [result for result in results if is_within(result.path, at)]
    selected = _select_checkpoints(stored.checkpoints, attempt, reasons, verified)
    is_filtered = attempt is not None or bool(reasons) or verified is not None
    place, shown_place = store.places_of(run)
    if as_json:
        document = run_document(run, stored, selected) | {"stored_at": place}
        document |= _generations_document(stored) if generations else {}
        document |= {"steps": [*map(step_document, results)]} if at is not None else {}
        document |= {"history": [*map(attempt_document, attempts)]} if history else {}
        write_document(document)
        return
    write_lines(_lines(run, stored, shown_place))
    if steps:
        _show_steps(results, stored.latest.in_flight, is_unfolded=members)
    elif at is not None:
        _show_step(at, results, stored.latest.error)
    if checkpoints or is_filtered:
        _show_checkpoints(selected)
    if generations:
        _show_below(_GENERATIONS, [*map(_generation_row, _list_generations(stored))], wrapped=())
    if history:
        _show_history(attempts)


def _select_checkpoints(
    checkpoints: Sequence[CheckpointRef], attempt: int | None, reasons: Collection[str], verified: str | None
) -> list[CheckpointRef]:
    """Return the checkpoints selected by the options."""
    return [
        reference
        for reference in checkpoints
        if attempt in (None, reference.attempt)
        and (not reasons or reference.reason in reasons)
        and (verified is None or reference.verified is _ANSWERS[verified])
    ]


def _show_below(header: Sequence[str], rows: Sequence[Sequence[str]], *, wrapped: Collection[str]) -> None:
    """Write a table after an empty line."""
    write("\n")
    show_table(header, rows, wrapped=wrapped)


def _show_steps(results: Sequence[StepResult], in_flight: Iterable[str], *, is_unfolded: bool) -> None:
    """Write steps and their claims."""
    branches = step_tree(results, is_unfolded=is_unfolded)
    if rows := [*map(_branch_row, branches), *map(_started_row, in_flight)]:
        _show_below(_STEPS, rows, wrapped=("STEP", "RESULT", "OUTPUT"))
    if claims := _claims_rows(results, is_unfolded=is_unfolded):
        _show_below(_EVIDENCE, claims, wrapped=("STEP", "CLAIM", "FOUND"))


def _show_step(path: str, results: Sequence[StepResult], ended: StepError | None) -> None:
    """Write a step, the steps inside it, and its complete output or error."""
    _show_steps(results, (), is_unfolded=False)
    if ended is None or ended.path != path:
        lines = _whole_lines(next(result for result in results if result.path == path))
        write_lines(["", *lines])


def _whole_lines(result: StepResult) -> list[str]:
    """Return the complete output of a step, as recorded JSON, or its complete error."""
    if result.error is not None:
        return _error_lines(result.error, [result])
    text = json_text(plain_tree(result.held_output, "output"), indent=2)
    return [f"output of {escape(result.path)}:", *text.splitlines()]


def _show_checkpoints(selected: Sequence[CheckpointRef]) -> None:
    if not selected:
        say("flowckpt: no checkpoint of this run matches")
        return
    _show_below(_CHECKPOINTS, [*map(_checkpoint_row, selected[::-1])], wrapped=("CHECKPOINT",))


def _show_history(attempts: Sequence[Attempt]) -> None:
    rows = [_history_row(*each) for attempt in attempts for each in attempt.checkpoints]
    _show_below(_HISTORY, rows, wrapped=("CHECKPOINT",))
    if rows := [_result_row(*each) for attempt in attempts for each in attempt.results]:
        _show_below(_RESULTS, rows, wrapped=("STEP", "OUTPUT"))


def _list_generations(run: StoredRun) -> list[Generation]:
    latest = run.latest
    return generations_of(
        latest.metadata,
        inputs_hash=latest.inputs_hash,
        started_at=run.started_at,
        attempt=latest.attempt,
        steps=len(latest.step_results),
    )


def _generations_document(run: StoredRun) -> dict[str, Any]:
    documents = [
        {
            "number": each.number,
            "started_at": encode_time(each.started_at),
            "ended_at": None if each.ended_at is None else encode_time(each.ended_at),
            "steps": each.steps,
            "attempts": [*each.attempts],
            "inputs_hash": each.inputs_hash,
        }
        for each in _list_generations(run)
    ]
    return {"generations": documents}


def _generation_row(generation: Generation) -> list[str]:
    first, last = generation.attempts
    return [
        str(generation.number),
        moment_text(generation.started_at),
        "-" if generation.ended_at is None else moment_text(generation.ended_at),
        str(generation.steps),
        str(first) if first == last else f"{first} to {last}",
        generation.inputs_hash.rpartition(":")[2][:12],
    ]


def _lines(workflow_id: str, run: StoredRun, place: str) -> list[str]:
    latest = run.latest
    lines = [
        f"run: {escape(workflow_id)}",
        f"workflow: {escape(latest.workflow_name)}",
        f"status: {status_text(run.status.value)}",
        f"attempt: {latest.attempt}",
        *([f"generation: {number}"] if (number := number_of(latest.metadata)) > 1 else []),
        f"started: {moment_text(run.started_at)}",
        f"updated: {moment_text(latest.saved_at)} ({ago_text(latest.saved_at)})",
        f"stored at: {escape(place)}",
    ]
    if is_task(latest) and run.status is not Status.COMPLETED:
        lines.append("task: of a CheckpointManager; run its program again to continue it")
    if IMPORTED in latest.metadata:
        lines.append("held: it was imported; nothing runs until a person resumes it with --accept-import")
    if run.owner is not None:
        lines.append(f"owner: {escape(str(run.owner))}")
    lines += [f"tag: {escape(f'{key}={value}')}" for key, value in latest.metadata.get("tags", {}).items()]
    lines += _origin_lines(run)
    for each in latest.metadata.get(SETTLED, ()):
        because = f" ({each['comment']})" if each["comment"] else ""
        said = (
            f"{each['by'] or 'a person'} decided that {each['step']} was {'' if each['done'] else 'not '}done{because}"
        )
        lines.append(f"settled: {escape(said)}, {moment_text(datetime.fromisoformat(each['at']))}")
    target = latest.metadata.get("target", {})
    if source := target.get("file") or target.get("module"):
        lines.append(f"target: {escape(':'.join(filter(None, (source, target.get('name')))))}")
    inputs = _decode_if_possible(latest.held_inputs, "inputs")
    lines += [f"input {escape(name)}: {short_value(value)}" for name, value in inputs.items()]
    lines += _lines_of_counts(latest)
    undoing = [result for result in latest.step_results if result.step_type == ROLLBACK]
    for said, is_undone in (("undone", True), ("could not be undone", False)):
        if paths := [step_of(result.path) for result in undoing if result.success is is_undone]:
            lines.append(f"{said}: {escape(join_names(paths, 5))}")
    lines += _live_lines(run.live)
    shown = set() if run.live is None else {step.path for step in run.live.steps}
    lines += [f"started, not ended: {escape(path)}" for path in latest.in_flight if path not in shown]
    for name, each in run.published.items():
        said = f"{short_value(each.value)} (by {escape(each.step)}, {ago_text(each.at)})"
        lines.append(f"published {escape(name)}: {said}")
    lines += wait_lines(run.waits)
    lines += map(_signal_line, run.signals)
    lines += [_signal_line(signal, "set aside: it does not fit") for signal in run.set_aside]
    if run.stale:
        lines.append(f"needs a person: {escape(run.stale)}")
    lines += [f"state saved by: {escape(path)}" for path in latest.partial]
    if run.crash_loop is not None:
        lines.append(
            f"crash loop: {escape(crash_loop_error(workflow_id, run.crash_loop).message)}; resume it with --force"
        )
    behind = f", and {run.left_behind} left behind (--history shows them)" if run.left_behind else ""
    lines.append(f"checkpoints: {len(run.checkpoints)}{behind}")
    pinned = [each for each in reversed(run.checkpoints) if each.sequence in run.pinned]
    lines += [f"pinned: checkpoint {escape(each.checkpoint_id)} (sequence {each.sequence})" for each in pinned]
    if run.status.value == "completed":
        lines.append(f"output: {short_value(_decode_if_possible(latest.held_output, 'output'))}")
    return lines if latest.error is None else [*lines, *_error_lines(latest.error, latest.step_results)]


def _live_lines(live: LiveNote | None) -> list[str]:
    """Return the steps that run now, or that ran when the process died."""
    if live is None:
        return []
    lead = "running now" if live.is_running else "in flight when the process died"
    lines = []
    for step in live.steps:
        figures = f" [{figures_text(step.figures)}]" if step.figures else ""
        progress = f", {escape(step.said)}" if step.said else ""
        lines.append(f"{lead}: {escape(step.path)} since {moment_text(step.since)}{progress}{figures}")
    if live.more:
        lines.append(f"{lead}: {live.more} more")
    return lines if live.is_running or not lines else [*lines, f"last noted: {moment_text(live.at)}"]


def _origin_lines(run: StoredRun) -> list[str]:
    """Return the origin of the run: another run, or one of its earlier checkpoints."""
    latest, lines = run.latest, []
    for key in ("rolled_back_to", "forked_from"):
        if point := latest.metadata.get(key):
            run_id = f"{point['workflow_id']} at " if "workflow_id" in point else ""
            origin = f"{run_id}checkpoint {point['checkpoint_id']} (sequence {point['sequence']})"
            lines.append(f"{key.replace('_', ' ')}: {escape(origin)}")
    if started_by := latest.metadata.get(STARTED_BY):
        lines.append(f"started by: {escape(started_by['path'])} of run {escape(started_by['workflow_id'])}")
        if is_not_started(latest.metadata, latest.attempt) and run.owner is None:
            lines.append("due: no process has run it yet; 'flowckpt recover' starts it")
    return lines


def _lines_of_counts(latest: CheckpointData) -> list[str]:
    results = latest.step_results
    executed = sum(
        result.attempt == latest.attempt and not result.source and result.step_type != ROLLBACK for result in results
    )
    taken = sum(bool(result.source) for result in results)
    others = f", {taken} taken from other runs" if taken else ""
    lines = [f"steps: {len(results)} recorded, {executed} of them executed by attempt {latest.attempt}{others}"]
    figures = sum_figures(results)
    return [*lines, f"figures: {figures_text(figures)}"] if figures else lines


def _error_lines(error: StepError, results: Sequence[StepResult]) -> list[str]:
    at = f" at step {error.path}" if error.path else ""
    headline = f"error{escape(at)}: {escape(f'{error.type}: {error.message}')}"
    return [headline, *escape_lines(read_failure(error, results).trace).splitlines()]


def _signal_line(signal: Signal, standing: str = "not taken yet") -> str:
    if (pause := Pause.of(signal)) is not None:
        tries = "once" if pause.count == 1 else f"{pause.count} times"
        return f"recovery tried {tries} without success, last at {moment_text(signal.sent_at)}"
    name = f"{signal.name} by {signal.by}" if signal.by else signal.name
    what = {WaitKind.SIGNAL: "signal", WaitKind.CANCEL: "request to"}.get(signal.kind, "answer")
    data = "" if signal.data is None else f": {short_value(signal.data, 60)}"
    return f"{what} {standing}: {escape(name)} at {moment_text(signal.sent_at)}{data}"


def _step_row(result: StepResult) -> list[str]:
    started = moment_text(result.started_at) if result.started_at else "-"
    if result.error is None:
        outcome, detail = "ok", short_value(_decode_if_possible(result.held_output, "output"), 60)
    else:
        outcome, detail = "failed", f"{result.error.type}: {result.error.message}"[:200]
    marks = [mark for mark in result.marks if result.attempt or mark != UNDOABLE]  # a fork undoes only its own steps
    if marks:
        outcome += f" ({', '.join(_MARKS.get(mark, mark) for mark in marks)})"
    if result.source:
        outcome += f" (from run {result.source['workflow_id']})"
    if result.figures:
        detail = f"{detail} [{figures_text(result.figures)}]"
    if result.argument_values:
        passed = ", ".join(f"{name}={short_value(value, 40)}" for name, value in result.argument_values.items())
        detail = f"{detail} ({escape(passed)})"[:400]
    time = duration_text(result.duration_ms)
    return [result.path, result.step_type, outcome, time, started, str(result.attempt), detail]


def _branch_row(branch: Branch) -> list[str]:
    indent = "  " * branch.depth
    if branch.members:
        return [
            f"{indent}{branch.path}/[…]",
            "",
            f"{branch.members} {branch.outcome}",
            "",
            "",
            "",
            "--members shows each",
        ]
    if branch.result is None:
        return [indent + branch.path, "-", "not ended", "-", "-", "-", ""]
    row = _step_row(branch.result)
    return [indent + row[0], *row[1:]]


def _started_row(path: str) -> list[str]:
    return [path, "-", "started, not ended", "-", "-", "-", ""]


def _claims_rows(results: Sequence[StepResult], *, is_unfolded: bool) -> list[list[str]]:
    """Return the rows of the evidence; claims of a large map's members are only counted, unless `--members` is given."""
    claimed = [(result.path, row) for result in results for row in _claim_rows(result)]
    if is_unfolded:
        return [row for _, row in claimed]
    answer = _EVIDENCE.index("ANSWER")
    return [
        [f"{each.path}/[…]", "", f"{each.count} more", each.kind, "", ""]
        if isinstance(each, FoldedMembers)
        else each[1]
        for each in fold_members(claimed, lambda it: it[0], lambda it: it[1][answer])
    ]


def _claim_rows(result: StepResult) -> list[list[str]]:
    return [
        [
            result.path,
            str(claim.claim.evidence_type),
            claim.description + (" (transient)" if claim.claim.is_transient else ""),
            claim.status or "-",
            _moment_text(claim.verified_at),
            claim.error,
        ]
        for claim in read_recorded_claims(result)
    ]


def _history_row(reference: CheckpointRef, standing: Standing) -> list[str]:
    name, sequence, attempt, *others, _ = _checkpoint_row(reference)
    return [attempt, name, sequence, *others, _standing_text(standing)]


def _standing_text(standing: Standing) -> str:
    return str(standing).replace("_", " ")


def _result_row(result: StepResult, standing: Standing) -> list[str]:
    path, _, outcome, time, started, attempt, detail = _step_row(result)
    return [attempt, path, outcome, time, started, detail, _standing_text(standing)]


def _moment_text(text: str) -> str:
    try:
        return moment_text(datetime.fromisoformat(text))
    except (ValueError, OverflowError):
        return "-"


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


def _decode_if_possible(value: Any, place: str) -> Any:
    """Return a recorded value; a value whose type only the program knows stays in its recorded form."""
    try:
        return decode_held(value)
    except DecodingError:
        return plain_tree(value, place)
