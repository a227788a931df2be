"""`flowckpt determinism`."""

from __future__ import annotations

import attrs
import click

from flowckpt.cli.arguments import convert_inputs, read_inputs_file, typed_target
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.notices import show_warnings
from flowckpt.cli.options import TargetName, color_option, input_option, json_option, without_repeats
from flowckpt.cli.progress import choose_progress
from flowckpt.cli.render.terminal import escaped, json_text, keep_for_document, write
from flowckpt.core.records import Status
from flowckpt.core.system.numbers import counted
from flowckpt.engine.determinism import DeterminismReport, determinism_of

_EXAMPLE = """\b
Examples:
  flowckpt determinism pipeline.py:etl -i source=sample.csv
  flowckpt determinism pipeline.py --same-process --json"""


@click.command("determinism", epilog=_EXAMPLE)
@click.argument("target", type=TargetName())
@input_option
@click.option("--inputs", "inputs_file", metavar="FILE", help="The inputs as a JSON object (or TOML); - reads JSON.")
@click.option("--same-process", is_flag=True, help="Do not drive it in another process, too.")
@json_option
@color_option
def command(
    target: str,
    inputs: tuple[tuple[str, str], ...],
    inputs_file: str | None,
    same_process: bool,
    as_json: bool,
    no_color: bool,
) -> int:
    """Run a workflow once, in memory, then drive it again from its record, and report what was not the same.

    Its steps do what they do, once: give it inputs that do no harm. Nothing is stored. It is driven a third time in
    another process, in which text is hashed otherwise, so that what depends on the order of a set shows.

    Exits with 0 where nothing differs, with 14 where something does, and with 1 where the run failed and nothing
    differs up to there.
    """
    if as_json:
        keep_for_document()
    show_warnings()
    document = None if inputs_file is None else read_inputs_file(inputs_file)
    workflow, described = typed_target(target)
    values = convert_inputs(workflow, without_repeats(inputs, "-i"), document)
    progress = choose_progress(as_events=False, no_color=no_color, output_type=workflow.output_type, restored_attempt=0)
    progress.start()
    try:
        report = determinism_of(
            workflow, values, target=described, has_other_process=not same_process, on_event=progress.tell
        )
    finally:
        progress.stop()
    write(f"{json_text(_document(report), indent=2)}\n" if as_json else _text(report))
    if report.differences:
        return ExitCode.MISMATCH
    return ExitCode.DONE if report.status is Status.COMPLETED else ExitCode.WORKFLOW_FAILED


def _document(report: DeterminismReport) -> dict[str, object]:
    return {
        "workflow_name": report.workflow_name,
        "status": report.status.value,
        "steps": report.steps,
        "is_deterministic": report.is_deterministic,
        "is_other_process_checked": report.is_other_process_checked,
        "note": report.note,
        "differences": [attrs.asdict(each) for each in report.differences],
    }


def _text(report: DeterminismReport) -> str:
    where = "in this process and in another one" if report.is_other_process_checked else "in this process"
    lines = [f"{escaped(report.workflow_name)}: {counted(report.steps, 'step')} compared, {where}"]
    for each in report.differences:
        lines.append(f"{escaped(each.where)}: {each.kind} of {escaped(each.path or 'the workflow')} ({each.place})")
        lines += [f"  first: {escaped(each.recorded)}", f"  then:  {escaped(each.now)}"]
    if report.note:
        lines.append(f"note: {escaped(report.note)}")
    lines.append(f"{len(report.differences)} differences" if report.differences else "no difference")
    return "".join(f"{line}\n" for line in lines)
