"""`flowckpt recover`."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import click

from flowckpt.cli.config.settings import SETTINGS
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.next_steps import command_line
from flowckpt.cli.options import (
    Command,
    SecondsRange,
    executor_option,
    json_option,
    parse_executors,
    stale_options,
    store_option,
)
from flowckpt.cli.recoverer.child import Child, find_working_directory
from flowckpt.cli.recoverer.recoverer import Recoverer
from flowckpt.cli.render.terminal import escape, say, say_with_time, write_document
from flowckpt.cli.runs import open_chosen_store
from flowckpt.cli.settings import StoreChoice
from flowckpt.core.system.clock import SystemClock
from flowckpt.execution.interrupts import STOP_SIGNALS
from flowckpt.maintenance.recovery import DueRun, Outcome, Recovered
from flowckpt.stores.base import StoreBase


@click.command("recover", cls=Command)
@click.option("--once", is_flag=True, help="Resume what is due now, then exit (the default).")
@click.option("--watch", is_flag=True, help="Keep polling until a signal stops it.")
@click.option(
    "--every",
    type=SecondsRange(0.05, 86_400),
    metavar="SECONDS",
    help="With --watch: seconds between two polls (default: 15).",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Resume at most N runs at the same time.",
)
@click.option("--workflow", "workflows", metavar="W", multiple=True, help="Only runs of this workflow; repeatable.")
@click.option("--show-output", is_flag=True, help="Print the output of the runs, each line after the id of its run.")
@stale_options
@executor_option
@json_option
@store_option
def recover_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    once: bool,
    watch: bool,
    every: float | None,
    jobs: int,
    workflows: tuple[str, ...],
    show_output: bool,
    executors: tuple[str, ...],
    as_json: bool,
    store: StoreChoice,
    **policy: str | None,
) -> int:
    """Resume every run whose process is gone or whose wake-up time has come.

    Each run is resumed in its own process, in the directory in which it was started, as by flowckpt resume. Several
    recoverers, also on several machines, share the work: each run is resumed by one of them. A run that cannot be
    resumed (its program or a secret is missing here) is reported and left unchanged. A run that needs a
    person (edited code, an effect that would be repeated, a step in doubt) is reported once, and listed by flowckpt list
    --status stale. The exit code is 0 if every run succeeded, waits again, or was reported before; else 1.

    Examples:
      flowckpt recover
      flowckpt recover --watch --every 10 --jobs 4
      flowckpt recover --on-code-change reuse
      flowckpt recover --on-package-change rerun
      flowckpt recover --executor gpu=dask://scheduler:8786
      flowckpt recover --workflow etl --json
    """
    if once and watch:
        raise click.UsageError("--once and --watch exclude each other")
    if every is not None and not watch:
        raise click.UsageError("--every needs --watch")
    if watch and every is None:
        every = 15.0
    parse_executors(executors)
    checkpoints = open_chosen_store(store)
    if store.spec.startswith("memory:"):
        raise click.UsageError("a store in the memory of another process cannot be recovered")
    results: list[Recovered] = []
    options = [word for name, each in policy.items() if each is not None for word in (SETTINGS[name].option, each)]
    options += [word for each in executors for word in ("--executor", each)]
    stopped_by = asyncio.run(
        _recover(checkpoints, store, results, every, jobs, workflows, options, shows_output=show_output)
    )
    counts = Counter(each.outcome for each in results if not each.is_reported)
    reported = sum(each.is_reported for each in results)
    if as_json:
        runs = [attrs.asdict(each) for each in results]
        write_document({"runs": runs, "counts": dict(sorted(counts.items()))})
    else:
        _show_sum(counts, reported, store)
    if stopped_by:
        return ExitCode[stopped_by]
    return ExitCode.WORKFLOW_FAILED if any(each.is_trouble for each in results) else ExitCode.DONE


async def _recover(
    store: StoreBase,
    choice: StoreChoice,
    results: list[Recovered],
    every: float | None,
    jobs: int,
    workflows: tuple[str, ...],
    options: list[str],
    *,
    shows_output: bool,
) -> str:
    """Recover runs; return the name of the signal that stopped it, or an empty text."""
    stopped_by: list[str] = []
    tell = say if every is None else say_with_time
    if every is not None:
        tell(_describe_watch(choice, workflows, every, jobs))

    def new_child(run: DueRun) -> Child:
        name = escape(run.workflow_id)
        on_line = (lambda line: tell(f"{name} | {escape(line)}")) if shows_output else None
        return Child(run, choice, options=options, on_line=on_line)

    def report_start(run: DueRun) -> None:
        directory = find_working_directory(run.info)
        place = "" if directory in (None, Path.cwd()) else f" in {escape(str(directory))}"
        tell(f"{_describe_run(run.info)}: {run.why.said}; resuming from attempt {run.info.attempt}{place}")

    def report_end(recovered: Recovered) -> None:
        if recovered.outcome is not Outcome.SKIPPED:
            results.append(recovered)
            if not recovered.is_reported:
                tell(_describe_outcome(recovered))
        elif recovered.exit_code is not None:  # its start was reported
            tell(f"{_describe_run(recovered)}: {recovered.detail}; not resumed here")

    recoverer = Recoverer(
        store,
        SystemClock(),
        new_child,
        jobs=jobs,
        workflows=workflows,
        shuffle=random.shuffle,
        on_start=report_start,
        on_end=report_end,
        on_trouble=lambda error: tell(f"flowckpt: {escape(error.message)}; trying again"),
    )

    def stop(number: signal.Signals) -> None:
        if not stopped_by:
            tell(f"flowckpt: {number.name}: the runs are being saved")
        stopped_by.append(number.name)
        recoverer.stop()

    with _on_signals(stop):
        await (recoverer.once() if every is None else recoverer.watch(every))
    return stopped_by[0] if stopped_by else ""


@contextlib.contextmanager
def _on_signals(stop: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call a function for each signal that ends the command, during the block."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _describe_run(run: Any) -> str:
    return escape(f"{run.workflow_id} ({run.workflow_name})")


def _describe_outcome(recovered: Recovered) -> str:
    detail = f": {escape(recovered.detail)}" if recovered.detail else ""
    outcome = {Outcome.STOPPED: "stopped, and due again", Outcome.LEFT: "left as it is"}.get(
        recovered.outcome, recovered.outcome.value
    )
    return f"{_describe_run(recovered)}: {outcome}{detail}"


def _show_sum(counts: Counter[Outcome], reported: int, choice: StoreChoice) -> None:
    if reported:
        need = f"{reported} {'needs' if reported == 1 else 'need'} a person, as reported before"
        say(f"flowckpt: {need}: {command_line('list', choice, options=['--status', 'stale'])}")
    if counts:
        summary = ", ".join(f"{count} {outcome.value}" for outcome, count in sorted(counts.items()))
        say(f"flowckpt: {summary}")
    elif not reported:
        say(f"flowckpt: no run in {choice.shown} is due")


def _describe_watch(choice: StoreChoice, workflows: tuple[str, ...], every: float, jobs: int) -> str:
    which = f"runs of {', '.join(map(escape, workflows))}" if workflows else "all runs"
    return f"flowckpt: watching {escape(choice.shown)}: {which}, every {every:g} s, at most {jobs} at a time"
