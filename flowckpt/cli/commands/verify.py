"""`flowckpt verify`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import attrs
import click

from flowckpt.cli.config.settings import SETTINGS
from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.loaded_run import prepare_program
from flowckpt.cli.notices import warn
from flowckpt.cli.options import (
    Command,
    RunName,
    color_option,
    json_option,
    network_option,
    program_options,
    setting_option,
    store_option,
    verify_option,
)
from flowckpt.cli.render.documents import verdict_text
from flowckpt.cli.render.tables import FoldedMembers, draws_colors, fold_members
from flowckpt.cli.render.terminal import escape, write_document, write_lines
from flowckpt.cli.runs import open_run, run_async
from flowckpt.cli.settings import StoreChoice
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import CheckpointData, StepResult
from flowckpt.core.records.listing import is_task
from flowckpt.core.system.clock import SystemClock
from flowckpt.core.system.declared import type_name
from flowckpt.engine import RunOptions
from flowckpt.engine.history.checkpoints import Program, find_checkpoint, read_packs, recreate_claims
from flowckpt.engine.values.placeholders import PlanStopped
from flowckpt.errors import FlowckptError
from flowckpt.evidence.checks.base import StepFacts
from flowckpt.evidence.claims import EvidencePack
from flowckpt.evidence.report import Moment, VerdictStatus, VerificationReport
from flowckpt.evidence.verifier import EvidenceVerifier
from flowckpt.execution.claims import read_facts, read_pack
from flowckpt.maintenance.task_log import read_log
from flowckpt.stores.queries import Verifications, note_verification

_SUMMED = {
    "verified": "verified",
    "failed": "failed",
    "cannot_tell": "cannot be checked",
    "not_rechecked": "not checked again",
}
_COLORS = {"holds": "green", "fails": "red", "cannot be checked": "yellow", "not checked again": "bright_black"}
_CHUNKS_A_JOB = 4
_UNANSWERED = (VerdictStatus.CANNOT_CHECK, VerdictStatus.REFUSED)
"""Answers that may change once the program is loaded, because it registers functions and databases."""


@click.command("verify", cls=Command)
@click.argument("run", type=RunName())
@click.option("--checkpoint", metavar="ID", help="The newest checkpoint of this id; by default, the latest checkpoint.")
@setting_option("jobs")
@verify_option
@network_option
@program_options
@json_option
@store_option
@color_option
def verify_command(  # noqa: PLR0913, PLR0917 - one parameter for each option
    run: str,
    checkpoint: str | None,
    jobs: int | None,
    verify: str | None,
    allow_network: tuple[str, ...],
    target: str | None,
    is_here: bool,
    as_json: bool,
    store: StoreChoice,
) -> int:
    """Check the recorded evidence of each step against the world now. The record is not changed.

    The answers count in the figures of store stats, and show --json has the time of the last verification.

    The program of the run is loaded only for claims that need it. Exits with 10 if a step's evidence does not hold or
    cannot be checked.

    Examples:
      flowckpt verify nightly
      flowckpt verify nightly --checkpoint clean --verify stat
      flowckpt verify nightly --jobs 8 --json
    """
    checkpoints, run = open_run(store, run)
    program = prepare_program(checkpoints, run, target, is_here=is_here, takes_tasks=True)
    data = program.latest
    if checkpoint is not None:
        data = run_async(find_checkpoint(checkpoints, run, data, checkpoint))
    options = RunOptions(verify=verify, allow_network=allow_network, base_path=program.base_path)
    if is_task(data):  # what it was rolled back from is no longer claimed
        steps = run_async(read_log(checkpoints, run, data))
        claimed = {step.path for step in steps.live_chain(steps.head)}
        data = attrs.evolve(data, step_results=[each for each in data.step_results if each.path in claimed])
    checked = check_evidence(data, options, program, jobs=jobs or SETTINGS["jobs"].default)
    stale = sum(not each.holds for each in checked)
    clock = SystemClock()
    answers = [answer for each in checked for answer in each.report.answers]
    noted = Verifications.of(answers, clock.now(), data.sequence, is_verified=not stale)
    run_async(note_verification(checkpoints, clock, run, data.metadata, noted))
    if as_json:
        write_document(_make_document(run, data, checked, stale))
    else:
        lines = _lines(run, data, checked, is_colored=draws_colors())
        write_lines(lines)
    return ExitCode.STALE if stale else ExitCode.DONE


def _count_answers(checked: Sequence[CheckedEvidence]) -> dict[str, int]:
    counts = Counter({"total": 0, "verified": 0, "failed": 0, "cannot_tell": 0, "not_rechecked": 0})
    for each in checked:
        counts.update(each.report.counts)
    return dict(counts)


def _make_document(run: str, data: CheckpointData, checked: Sequence[CheckedEvidence], stale: int) -> dict[str, Any]:
    return {
        "workflow_id": run,
        "workflow_name": data.workflow_name,
        "checkpoint_id": data.checkpoint_id,
        "sequence": data.sequence,
        "steps": [each.to_document() for each in checked if each.path],
        "checkpoint": [each.to_document() for each in checked if not each.path],
        "counts": _count_answers(checked),
        "stale": stale,
    }


_HOLDS, _STALE = "their evidence holds", "their evidence does not hold, or cannot be checked; --json has them all"


def _lines(run: str, data: CheckpointData, checked: Sequence[CheckedEvidence], *, is_colored: bool) -> list[str]:
    lines = [f"evidence of run {escape(run)} ({escape(data.workflow_name)}), checkpoint {escape(data.checkpoint_id)}"]
    for each in fold_members(checked, lambda it: it.path, lambda it: _HOLDS if it.holds else _STALE, _HOLDS):
        if isinstance(each, FoldedMembers):
            more = "more steps" if each.is_rest else "steps"
            lines.append(f"{escape(each.path)}/[…]: {each.count} {more}: {each.kind}")
            continue
        lines.append(escape(each.path) if each.path else "the checkpoint itself")
        for verdict in each.report.verdicts:
            text = verdict_text(verdict)
            lines.append(f"  {_colorize(escape(text), is_colored=is_colored)}")
            lines += [f"    {escape(detail)}" for detail in verdict.details if detail not in text]
        counted = [verdict for verdict in each.report.verdicts if verdict.status is not VerdictStatus.NOT_RECHECKED]
        if each.holds is not all(verdict.verified for verdict in counted):  # the policy of the pack decided
            word = "is true" if each.holds else "is not true"
            lines.append(f"  as a whole it {word}: {escape(each.report.reason)}")
    counts = _count_answers(checked)
    if not counts["total"]:
        lines.append("nothing to check: no recorded result has evidence")
        return lines
    parts = [f"{counts[key]} {word}" for key, word in _SUMMED.items() if counts[key] or key == "verified"]
    lines.append(f"claims: {', '.join(parts)}")
    return lines


def _colorize(line: str, *, is_colored: bool) -> str:
    word, colon, rest = line.partition(":")
    return f"{click.style(word, fg=_COLORS.get(word))}{colon}{rest}" if is_colored else line


# The check of the recorded evidence against the world, without running any step.


@attrs.frozen
class CheckedEvidence:
    """The current state of the evidence of a step or of the checkpoint itself.

    Attributes:
        path: the step; empty for the checkpoint.
        report: the answers.
    """

    path: str
    report: VerificationReport

    @property
    def holds(self) -> bool:
        """Whether a resume would accept it."""
        return self.report.verified or self.report.outcome == "no_evidence"

    def to_document(self) -> dict[str, Any]:
        """Return the answers as plain JSON, without secrets."""
        return {"path": self.path, **self.report.to_document()}


def check_evidence(data: CheckpointData, options: RunOptions, program: Program, *, jobs: int) -> list[CheckedEvidence]:
    """Check the recorded claims of every result of a checkpoint, and its own.

    Args:
        data: the checkpoint.
        options: how files are checked, and what may be reached.
        program: loads the workflow of the run; called if a claim needs it.
        jobs: how many checks run at the same time.

    Raises:
        DecodingError: a record of claims is malformed.
    """
    packs = [*_step_packs(data.step_results), *(("", pack, StepFacts()) for pack in read_packs(data))]
    if not packs:
        return []
    with ExitStack() as pools:
        verifier = options.make_checker(None, data.metadata).verifier
        if jobs > 1:
            verifier = verifier.changed(executor=pools.enter_context(ThreadPoolExecutor(jobs, "flowckpt-verify")))
        reports = asyncio.run(_verify_packs(verifier, [each[1:] for each in packs], jobs))
        again = [index for index, report in enumerate(reports) if _is_unanswered(report)]
        if again and (workflow := program()) is not None:
            why_not_all = _why_not_all_claims(workflow, data)
            answers = asyncio.run(_verify_packs(verifier, [packs[index][1:] for index in again], jobs))
            for index, report in zip(again, answers, strict=True):
                reports[index] = report
            if why_not_all and any(map(_is_unanswered, answers)):
                warn(f"not every claim of the run's program is known: {why_not_all}")
    return [CheckedEvidence(path, report) for (path, _, _), report in zip(packs, reports, strict=True)]


def _step_packs(results: Sequence[StepResult]) -> Iterator[tuple[str, EvidencePack, StepFacts]]:
    for result in results:
        if result.evidence is not None and result.success:
            yield result.path, read_pack(result), read_facts(result)


async def _verify_packs(
    verifier: EvidenceVerifier, packs: Sequence[tuple[EvidencePack, StepFacts]], jobs: int
) -> list[VerificationReport]:
    # In pieces, or a few large files would all be read by one worker.
    size = max(1, -(-len(packs) // (jobs * _CHUNKS_A_JOB))) if jobs > 1 else len(packs)
    pieces = [packs[begin : begin + size] for begin in range(0, len(packs), size)]
    answers = await asyncio.gather(*(verifier.verify_packs(piece, moment=Moment.RESUME) for piece in pieces))
    return [report for piece in answers for report in piece]


def _is_unanswered(report: VerificationReport) -> bool:
    return any(verdict.status in _UNANSWERED for verdict in report.verdicts)


# --- what only the program knows -------------------------------------------------------------------------------------


def _why_not_all_claims(workflow: Workflow[..., Any], data: CheckpointData) -> str:
    """Let the run's generator make its claims; return why it did not come to all of them, or nothing."""
    try:
        recreate_claims(workflow, data)
    except PlanStopped:
        return "it needs the output of a step that is run at each resume"
    except FlowckptError as error:  # its remedy is that of a resume
        return error.message
    except Exception as error:
        return f"{type_name(type(error))}: {error}"
    return ""
