"""`flowckpt run`."""

from __future__ import annotations

import click

from flowckpt.cli.arguments import convert_inputs, read_inputs_file, typed_target
from flowckpt.cli.drive import Form, follow
from flowckpt.cli.notices import show_warnings
from flowckpt.cli.options import (
    KeyValue,
    NewRunName,
    SecondsRange,
    TargetName,
    color_option,
    events_option,
    executor_option,
    input_option,
    json_option,
    limit_options,
    named_executors,
    network_option,
    on_stop_option,
    rollback_option,
    setting_option,
    store_option,
    without_repeats,
)
from flowckpt.cli.render.terminal import keep_for_document
from flowckpt.cli.runs import opened
from flowckpt.cli.secrets import ask_for_secrets
from flowckpt.cli.settings import choose_store, limits_setting, retention_set_here
from flowckpt.core.system.ids import new_run_id
from flowckpt.engine import RunOptions, WorkflowEngine
from flowckpt.engine.values.options import OnStop

_EXAMPLE = """\b
Examples:
  flowckpt run pipeline.py:etl -i source=orders.csv -i limit=500
  flowckpt run shop.pipelines:etl --inputs inputs.json --tag team=data
  flowckpt run pipeline.py:upload -i token=@file:/run/secrets/token
  flowckpt run pipeline.py --id nightly-2026-11-20 --json
  flowckpt run pipeline.py --executor process:8 --executor gpu=dask://scheduler:8786"""


@click.command("run", epilog=_EXAMPLE)
@click.argument("target", type=TargetName())
@input_option
@click.option("--inputs", "inputs_file", metavar="FILE", help="The inputs as a JSON object (or TOML); - reads JSON.")
@click.option("--id", "run", type=NewRunName(), metavar="RUN", help="The id of the run; a new ULID where not given.")
@click.option("--tag", "tags", metavar="K=V", type=KeyValue(), multiple=True, help="A label to list runs by.")
@setting_option("every")
@setting_option("interval")
@setting_option("on_save_error")
@limit_options
@network_option
@executor_option
@click.option(
    "--stay",
    type=SecondsRange(0, has_infinity=True),
    metavar="SECONDS",
    help="How long to stay when everything waits, in all; inf for ever. By default for what ends within a minute.",
)
@rollback_option
@on_stop_option
@json_option
@events_option
@store_option
@color_option
def command(
    target: str,
    inputs: tuple[tuple[str, str], ...],
    inputs_file: str | None,
    run: str | None,
    tags: tuple[tuple[str, str], ...],
    every: int | None,
    interval: float | None,
    on_save_error: str | None,
    retry_budget: int | None,
    max_deaths: int | None,
    allow_network: tuple[str, ...],
    stay: float | None,
    rolls_back: bool,
    on_stop: str,
    executors: tuple[str, ...],
    as_json: bool,
    as_events: bool,
    store: str | None,
    no_color: bool,
) -> int:
    """Start a run of a workflow.

    TARGET is path/to/file.py[:workflow] or package.module[:workflow]; the name may be left out where there is one.
    """
    if as_json and as_events:
        raise click.UsageError("--json and --events exclude each other: both print to standard output")
    if as_json or as_events:
        keep_for_document()
    show_warnings()
    texts, labels = without_repeats(inputs, "-i"), without_repeats(tags, "--tag")
    document = None if inputs_file is None else read_inputs_file(inputs_file)
    places = named_executors(executors)
    choice = choose_store(store)
    checkpoints = opened(choice)
    workflow, described = typed_target(target)
    values = convert_inputs(workflow, texts, document)
    parameters = workflow.signature.parameters
    needed = [name for name in workflow.secret_inputs if parameters[name].default is parameters[name].empty]
    ask_for_secrets(workflow, needed, values)
    run = run or new_run_id()
    options = RunOptions(
        tags=labels,
        target=described,
        every=every,
        interval=interval,
        retry_budget=retry_budget,
        max_deaths=max_deaths,
        allow_network=allow_network,
        stay=stay,
        rolls_back=rolls_back,
        on_stop=OnStop(on_stop),
        executors=places,
    )
    engine = WorkflowEngine(
        checkpoints, on_save_error=on_save_error or "fail", retention=retention_set_here(), **limits_setting()
    )
    session = engine.prepare(workflow, run, options, values)
    return follow(session, workflow, run, store=choice, form=Form(as_json, as_events, no_color))
