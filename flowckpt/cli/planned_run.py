"""The plan of a run's resume, with the answers of the world that it rests upon."""

from __future__ import annotations

from flowckpt.cli.exit_codes import ExitCode
from flowckpt.cli.recorded_run import RecordedRun
from flowckpt.cli.settings import max_deaths_setting
from flowckpt.cli.stored_runs import waited
from flowckpt.engine import RunOptions
from flowckpt.engine.resume_planning import PlannedResume, plan_resume
from flowckpt.plan.model import Decision, ResumePlan
from flowckpt.plan.reason import ReasonKind


def planned_run(run: RecordedRun, options: RunOptions) -> PlannedResume:
    """Plan the resume of a run; nothing is run or saved.

    Args:
        run: the run.
        options: how it would be resumed.

    Raises:
        InputMismatchError: an input differs from the recorded one.
        WorkflowChangedError: it is another workflow.
        StepNotFoundError: the step to go on from is not in the record.
    """
    most = max_deaths_setting()
    return waited(
        plan_resume(
            run.store, run.workflow, run.workflow_id, run.latest, inputs=run.inputs, options=options, max_deaths=most
        )
    )


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
    if plan.is_undoing:
        return ExitCode.MISMATCH if plan.stopped_by else ExitCode.WORKFLOW_FAILED
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
