"""The plan of a run's resume, with the answers of the world that it rests upon."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.recorded_run import RecordedRun
from flowckpt.cli.settings import max_deaths_setting
from flowckpt.cli.stored_runs import waited
from flowckpt.engine import RunOptions
from flowckpt.engine.planning import make_plan
from flowckpt.engine.resumption import read_resumption
from flowckpt.engine.verifying import Verifying, verifying_of
from flowckpt.evidence.verdict import VerificationReport
from flowckpt.plan.model import Decision, ResumePlan
from flowckpt.plan.reason import ReasonKind


@attrs.frozen
class PlannedRun:
    """A plan.

    Attributes:
        plan: the plan.
        reports: the answers to the recorded claims of the results that may be reused, by path.
        verifying: what asked for them.
    """

    plan: ResumePlan
    reports: Mapping[str, VerificationReport]
    verifying: Verifying


def planned_run(run: RecordedRun, options: RunOptions) -> PlannedRun:
    """Plan the resume of a run; nothing is run or saved.

    Args:
        run: the run.
        options: how it would be resumed.

    Raises:
        InputMismatchError: an input differs from the recorded one.
        WorkflowChangedError: it is another workflow.
        StepNotFoundError: the step to go on from is not in the record.
    """
    return waited(_planned(run, options))


async def _planned(run: RecordedRun, options: RunOptions) -> PlannedRun:
    # Not by engine.plan(): an input may have the name of one of its arguments.
    verifying = verifying_of(run.latest, None, options)
    resumption = await read_resumption(
        run.workflow,
        run.workflow_id,
        run.latest,
        inputs=run.inputs,
        options=options,
        verifying=verifying,
        store=run.store,
        max_deaths=max_deaths_setting(),
    )
    plan = await make_plan(run.workflow, run.workflow_id, resumption, verifying)
    return PlannedRun(plan, resumption.judge.reports, verifying)


def code_of_plan(plan: ResumePlan) -> ExitCode:
    """Return the exit code of a plan: what the resume would stop with, else whether anything is stale.

    Args:
        plan: the plan.
    """
    if plan.stops:
        return code_of_stop(plan)
    return ExitCode.STALE if plan.stale else ExitCode.DONE


def code_of_stop(plan: ResumePlan) -> ExitCode:
    """Return the exit code of the resume that a plan says would stop.

    Args:
        plan: the plan.
    """
    if plan.is_parked:
        return ExitCode.IN_DOUBT
    step = plan.step(plan.stopped_by)
    if step is None:
        return ExitCode.MISMATCH
    return ExitCode.IN_DOUBT if step.decision is Decision.IN_DOUBT else ExitCode.STALE


def kinds_of_stop(plan: ResumePlan) -> frozenset[ReasonKind]:
    """Return what moved at the step that a resume would stop at.

    Args:
        plan: the plan.
    """
    step = plan.step(plan.stopped_by)
    return frozenset() if step is None else frozenset(reason.kind for reason in step.reasons if reason.makes_stale)
