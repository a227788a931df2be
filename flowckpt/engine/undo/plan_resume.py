"""The plan of a resume, for `engine.plan` and all other code that shows plans.

Like the resume, it first decides what kind of attempt it would be, so callers need not know that there are several.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs

from flowckpt.core.dsl import Workflow
from flowckpt.core.records import CheckpointData, Status
from flowckpt.core.records.listing import IMPORTED
from flowckpt.core.system.clock import Clock, SystemClock
from flowckpt.engine.dry.planner import make_plan
from flowckpt.engine.rules.crash_loop import limit_of
from flowckpt.engine.rules.plan import Decision, ResumePlan
from flowckpt.engine.rules.reasons import MAX_CRASHES, ReasonKind
from flowckpt.engine.run.resumption import (
    Resumption,
    crash_loop_error,
    find_crash_loop,
    needless_decision_error,
    read_resumption,
    read_started_steps,
)
from flowckpt.engine.undo.compensate import read_undoing, read_unfinished
from flowckpt.engine.values.failures import stale_step_error
from flowckpt.engine.values.options import RunOptions
from flowckpt.errors import InputError
from flowckpt.evidence.report import VerificationReport
from flowckpt.evidence.verifier import EvidenceVerifier
from flowckpt.execution.claims import ClaimChecker
from flowckpt.stores.base import StoreBase


@attrs.frozen
class PlannedResume:
    """A plan, with the checked evidence that it is based on.

    Attributes:
        plan: the plan.
        reports: the verdicts on the claims of results that may be reused, by path.
        claims: the checker that produced them.
    """

    plan: ResumePlan
    reports: Mapping[str, VerificationReport]
    claims: ClaimChecker


async def plan_resume(  # noqa: PLR0913 - the run, its ports, and the options of the resume
    store: StoreBase,
    workflow: Workflow[Any, Any],
    workflow_id: str,
    latest: CheckpointData,
    *,
    inputs: Mapping[str, Any],
    options: RunOptions,
    verifier: EvidenceVerifier | None = None,
    max_crashes: int = MAX_CRASHES,
    clock: Clock | None = None,
) -> PlannedResume:
    """Return what a resume would do; nothing is run or saved.

    Args:
        store: the store of the run.
        workflow: its workflow.
        workflow_id: the run.
        latest: its newest checkpoint.
        inputs: inputs given again, by name.
        options: the options of the resume.
        verifier: checks the claims; None for one based on the directory where the run was started.
        max_crashes: how often the run may crash at one step, unless its record says.
        clock: the time; the system's by default.

    Raises:
        InputMismatchError: an input differs from the recorded one.
        WorkflowChangedError: the record belongs to another workflow.
        StepNotFoundError: the step given with `--from` is not in the record.
    """
    claims = options.make_checker(verifier, latest.metadata)
    started = await read_started_steps(store, workflow_id, latest)
    unfinished = read_unfinished(latest.metadata)
    reports: Mapping[str, VerificationReport] = {}
    if unfinished is not None:
        undoing = read_undoing(workflow, workflow_id, latest, inputs=inputs, end=unfinished, options=options)
        plan = await undoing.plan()
    else:
        given: Any = {"inputs": inputs, "options": options, "claims": claims, "store": store}
        read = partial(read_resumption, workflow, workflow_id, latest, started, **given)
        resumption, clock = await read(), clock or SystemClock()
        plan = await make_plan(workflow, workflow_id, resumption, claims, store, clock)
        if latest.status is Status.COMPLETED and latest.metadata.get(IMPORTED) is True and not plan.is_nothing_to_do:
            resumption = await read(drops_answers=True)
            plan = await make_plan(workflow, workflow_id, resumption, claims, store, clock)
        refuse_needless(plan, resumption)
        reports = resumption.judge.reports
    if not (options.force or options.steal):
        most = limit_of(latest.metadata, options.max_crashes, max_crashes)
        if (crashes := await find_crash_loop(store, workflow_id, latest, started, most=most)) is not None:
            why = crash_loop_error(workflow_id, crashes).message
            plan = attrs.evolve(plan, is_crash_loop=True, stops=why, stopped_by="", repeats_effect=False)
    return PlannedResume(plan, reports, claims)


def refuse_needless(plan: ResumePlan, resumption: Resumption) -> None:
    """Refuse a decision about a step that is not in doubt.

    Args:
        plan: the plan.
        resumption: the record, with the policy of the resume and its decisions.

    Raises:
        InputError: a decision would not count: its step would be reused, is stale itself, or simply runs again.
    """
    policy = resumption.judge.policy
    failed = {each.path for each in resumption.history.results if not each.success} if policy.settled else ()
    for path in policy.settled:
        planned = plan.step(path)
        if planned is None:
            continue
        if planned.decision is Decision.INTERRUPTED:
            raise InputError(
                f"step {path!r} was interrupted, but it is not .at_most_once(): it simply runs again",
                parameter=path,
                remedy="Leave out --done and --not-done. To set its output instead, fork the run with --set.",
            )
        is_asked = policy.reruns_what_follows or any(each.kind is ReasonKind.STARTED for each in planned.reasons)
        if planned.decision in (Decision.REUSE, Decision.RERUN) and not is_asked and path not in failed:
            doubtful = [each.path for each in plan.steps if each.decision is Decision.IN_DOUBT]
            raise needless_decision_error(policy, plan.workflow_id, path, doubtful)


def refuse_stop(plan: ResumePlan) -> None:
    """Refuse a resume that would stop at a stale result.

    Args:
        plan: the plan.

    Raises:
        StaleStepError: the resume would stop at a stale result.
    """
    if (stopped := plan.stale_stop) is not None:
        raise stale_step_error(plan.workflow_id, stopped.path, stopped.reasons, repeats_effect=plan.repeats_effect)
