"""`flowckpt run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import click
from click.core import ParameterSource

from flowckpt.cli import progress
from flowckpt.cli.arguments import (
    ask_for_secrets,
    convert_inputs,
    load_typed_target,
    read_inputs_file,
    refuse_import,
)
from flowckpt.cli.drive import Form, ResumeFacts, follow_run, form_options
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.loaded_run import enter_directory
from flowckpt.cli.next_steps import ResumeLine
from flowckpt.cli.options import (
    Command,
    NewRunName,
    TargetName,
    cache_option,
    executor_option,
    input_option,
    limit_options,
    mirror_options,
    network_option,
    pairs_option,
    parse_executors,
    parse_json,
    rollback_option,
    setting_option,
    store_option,
)
from flowckpt.cli.render.terminal import escape, json_text, write, write_document, write_lines
from flowckpt.cli.runs import open_chosen_store, run_async
from flowckpt.cli.settings import StoreChoice, create_engine
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import Status
from flowckpt.core.records.listing import refuse_task
from flowckpt.core.system.ids import new_run_id
from flowckpt.core.system.numbers import pluralize
from flowckpt.engine import RunOptions

if TYPE_CHECKING:
    from flowckpt.engine.determinism import DeterminismReport

_BESIDE_CHECK = {"target", "inputs", "inputs_file", "check", "same_process", "as_json", "no_color", "log_level"}
_BESIDE_CRASHES = {*_BESIDE_CHECK - {"same_process"}, "crashes", "answers"}


@click.command("run", cls=Command)
@click.argument("target", type=TargetName())
@input_option
@click.option("--inputs", "inputs_file", metavar="FILE", help="The inputs as a JSON object (or TOML); - reads JSON.")
@click.option("--id", "run", type=NewRunName(), metavar="RUN", help="The run id; a new ULID by default.")
@click.option(
    "--if-exists",
    type=click.Choice(["fail", "resume", "return"]),
    default="fail",
    show_default=True,
    help="With --id, if the run exists: fail, resume it, or return its recorded result without running anything.",
)
@pairs_option("--tag", "tags", metavar="K=V", help="A label for the run.")
@setting_option("every")
@setting_option("interval")
@setting_option("on_save_error")
@mirror_options
@limit_options
@network_option
@executor_option
@rollback_option
@cache_option
@click.option("--check", is_flag=True, help="Store nothing: run it in memory, replay it, and report differences.")
@click.option("--same-process", is_flag=True, help="With --check: do not also replay it in a second process.")
@click.option(
    "--crashes",
    is_flag=True,
    help="With --check: crash at every save and step, fail every step once, lose every file, resume, and compare.",
)
@pairs_option(
    "--answer",
    "answers",
    metavar="NAME=JSON",
    help="With --crashes: the data of a signal, or true or false for an approval.",
)
@form_options
@store_option
def run_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    target: str,
    inputs: dict[str, str],
    inputs_file: str | None,
    run: str | None,
    if_exists: str,
    tags: dict[str, str],
    on_save_error: str | None,
    executors: tuple[str, ...],
    check: bool,
    same_process: bool,
    crashes: bool,
    answers: dict[str, str],
    form: Form,
    store: StoreChoice,
    **given: Any,
) -> int:
    """Start a run of a workflow.

    TARGET is path/to/file.py[:workflow] or package.module[:workflow]; the name may be omitted if there is only one.

    With --id and --if-exists resume, the same line starts a run, resumes it, and returns its output once it has
    completed: for cron, systemd and other schedulers. The workflow and the inputs must be those of the first time.

    With --check, the steps run once, so choose harmless inputs. The workflow is then replayed from its record, in this
    process and in a second one with another hash seed, which reveals code that depends on the order of a set. The exit
    code is 0 if nothing differs, 14 if something does, and 1 if the run failed without a difference.

    With --check --crashes, the steps run hundreds of times; files are restored at the end. The exit code is 14 if the
    output, a file, or the number of calls with an effect differs from an uninterrupted run.

    Examples:
      flowckpt run pipeline.py:etl -i source=orders.csv -i limit=500
      flowckpt run shop.pipelines:etl --inputs inputs.json --tag team=data
      flowckpt run pipeline.py:upload -i token=@file:/run/secrets/token
      flowckpt run pipeline.py --id nightly-2026-11-20 --if-exists resume --json
      flowckpt run pipeline.py --executor process:8 --executor gpu=dask://scheduler:8786
      flowckpt run pipeline.py:etl -i source=sample.csv --check
      flowckpt run release.py --check --crashes --answer release=true
    """
    _refuse_useless_options(run, if_exists, check, crashes, same_process, has_answers=bool(answers))
    document = None if inputs_file is None else read_inputs_file(inputs_file)
    if crashes:
        return _explore_crashes(target, inputs, document, answers, as_json=form.as_json)
    if check:
        return _check_determinism(target, inputs, document, has_other_process=not same_process, form=form)
    checkpoints = open_chosen_store(store)
    workflow, described, values = _load_target(target, inputs, document)
    ask_for_secrets(workflow, _find_required_secrets(workflow), values)
    run = run or new_run_id()
    resuming = None if if_exists == "fail" else _prepare_resume(store, run, on_save_error, is_run=if_exists == "resume")
    options = RunOptions(tags=tags, target=described, executors=parse_executors(executors), **given)
    engine = create_engine(checkpoints, store, on_save_error)
    session = engine.prepare(workflow, run, options, values, if_exists=if_exists)
    return follow_run(session, workflow, run, store=store, form=form, resuming=resuming)


def _load_target(
    target: str, texts: dict[str, str], document: Any
) -> tuple[Workflow[..., Any], dict[str, str], dict[str, Any]]:
    """Return the workflow of a target, the target for the record, and the converted inputs."""
    workflow, described = load_typed_target(target)
    return workflow, described, convert_inputs(workflow, texts, document)


def _find_required_secrets(workflow: Workflow[..., Any]) -> list[str]:
    """Return the secret inputs without a default."""
    parameters = workflow.signature.parameters
    return [name for name in workflow.secret_inputs if parameters[name].default is parameters[name].empty]


def _prepare_resume(choice: StoreChoice, run: str, on_save_error: str | None, *, is_run: bool) -> ResumeFacts | None:
    """Return whether the run exists; if it is to be resumed, enter the directory in which it was started.

    Raises:
        TargetError: the run was imported, or its directory cannot be entered.
        InputError: the run is a task of a checkpoint manager.
    """
    latest = run_async(open_chosen_store(choice).load_latest(run))
    if latest is None:
        return None
    refuse_task(run, latest)
    if is_run:
        refuse_import(latest.metadata, run)
        enter_directory(latest, run, is_here=False)
    return ResumeFacts(latest, ResumeLine(run, choice, RunOptions(), None, on_save_error))


def _refuse_useless_options(
    run: str | None, if_exists: str, check: bool, crashes: bool, same_process: bool, *, has_answers: bool
) -> None:
    """Refuse combinations in which an option has no effect.

    Raises:
        UsageError: an option has no effect.
    """
    if if_exists != "fail" and run is None:
        raise click.UsageError(f"--if-exists {if_exists} needs --id")
    if (same_process or crashes) and not check:
        raise click.UsageError(f"{'--crashes' if crashes else '--same-process'} needs --check")
    if has_answers and not crashes:
        raise click.UsageError("--answer needs --check --crashes")
    if check:
        _refuse_beside_check(click.get_current_context(), _BESIDE_CRASHES if crashes else _BESIDE_CHECK)


def _refuse_beside_check(context: click.Context, allowed: set[str]) -> None:
    for parameter in context.command.params:
        is_given = context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if is_given and parameter.name not in allowed:
            raise click.UsageError(f"{parameter.opts[0]} has no effect with --check, which stores nothing")


def _check_determinism(
    target: str, texts: dict[str, str], document: Any, *, has_other_process: bool, form: Form
) -> ExitCode:
    from flowckpt.engine.determinism import report_determinism  # noqa: PLC0415 - only --check needs it

    workflow, described, values = _load_target(target, texts, document)
    display = progress.choose_progress(as_events=False, output_type=workflow.output_type, restored_attempt=0)
    display.start()
    try:
        report = report_determinism(
            workflow, values, target=described, has_other_process=has_other_process, on_event=display.show
        )
    finally:
        display.stop()
    write(f"{json_text(_check_document(report), indent=2)}\n" if form.as_json else _check_text(report))
    if report.differences:
        return ExitCode.MISMATCH
    return ExitCode.DONE if report.status is Status.COMPLETED else ExitCode.WORKFLOW_FAILED


def _explore_crashes(
    target: str, texts: dict[str, str], document: Any, answers: dict[str, str], *, as_json: bool
) -> ExitCode:
    from flowckpt.testing.crashes import crash_report  # noqa: PLC0415 - only --crashes needs it

    workflow, described, values = _load_target(target, texts, document)
    data = {name: parse_json(text, f"--answer {name}", f"--answer '{name}=\"yes\"'") for name, text in answers.items()}
    report = crash_report(workflow, values, answers=data, options=RunOptions(target=described))
    if as_json:
        write_document({**attrs.asdict(report), "is_safe": not report.findings})
    else:
        write_lines(map(escape, str(report).splitlines()))
    return ExitCode.MISMATCH if report.findings else ExitCode.DONE


def _check_document(report: DeterminismReport) -> dict[str, object]:
    return {**attrs.asdict(report), "status": report.status.value, "is_deterministic": report.is_deterministic}


def _check_text(report: DeterminismReport) -> str:
    where = "in this process and in another one" if report.is_other_process_checked else "in this process"
    lines = [f"{escape(report.workflow_name)}: {pluralize(report.steps, 'step')} compared, {where}"]
    for each in report.differences:
        lines.append(f"{escape(each.where)}: {each.kind} of {escape(each.path or 'the workflow')} ({each.place})")
        lines += [f"  first: {escape(each.recorded)}", f"  then:  {escape(each.now)}"]
    if report.note:
        lines.append(f"note: {escape(report.note)}")
    count = len(report.differences)
    lines.append(f"{count} difference{'s' * (count != 1)}" if count else "no difference")
    return "".join(f"{line}\n" for line in lines)
