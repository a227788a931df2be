"""The one way to the plan of a resume: for `engine.plan`, and for whatever shows plans.

It decides, as the resume does, what kind of attempt it would be, so no other code has to know that there are several.
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
from flowckpt.engine.rules.plan import ResumePlan
from flowckpt.engine.rules.reasons import MAX_CRASHES
from flowckpt.engine.run.resumption import crash_loop_at, read_resumption
from flowckpt.engine.undo.compensate import unfinished_rollback
from flowckpt.engine.undo.undo_run import read_undoing
from flowckpt.engine.values.options import RunOptions
from flowckpt.evidence.report import VerificationReport
from flowckpt.evidence.verifier import EvidenceVerifier
from flowckpt.execution.claims import ClaimChecker
from flowckpt.stores.base import StoreBase


@attrs.frozen
class PlannedResume:
    """A plan, with the answers of the world that it rests upon.

    Attributes:
        plan: the plan.
        reports: the answers to the recorded claims of the results that may be reused, by path.
        verifying: what asked for them.
    """

    plan: ResumePlan
    reports: Mapping[str, VerificationReport]
    verifying: ClaimChecker


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
        store: where the run lies.
        workflow: its workflow.
        workflow_id: the run.
        latest: its newest checkpoint.
        inputs: inputs given again, by name: one may have the name of anything.
        options: how it would be resumed.
        verifier: checks the claims, or None for one that looks where the run was started.
        max_crashes: how often the run may die at one step, where its record does not say.
        clock: the time; the system's by default.

    Raises:
        InputMismatchError: an input differs from the recorded one.
        WorkflowChangedError: it is another workflow.
        StepNotFoundError: the step to continue from is not in the record.
    """
    verifying = ClaimChecker.of(latest, verifier, options)
    unfinished = unfinished_rollback(latest.metadata)
    if unfinished is not None:
        undoing = read_undoing(workflow, workflow_id, latest, inputs=inputs, end=unfinished, options=options)
        crash_loop = None
        if not options.force and not options.steal:
            most = limit_of(latest.metadata, options.max_crashes, max_crashes)
            crash_loop = await crash_loop_at(store, workflow_id, latest, most=most)
        return PlannedResume(await undoing.plan(crash_loop), {}, verifying)
    read = partial(read_resumption, workflow, workflow_id, latest, inputs=inputs, options=options, verifying=verifying)
    resumption, clock = await read(store=store, max_crashes=max_crashes), clock or SystemClock()
    plan = await make_plan(workflow, workflow_id, resumption, verifying, store, clock)
    if latest.status is Status.COMPLETED and latest.metadata.get(IMPORTED) is True and not plan.is_nothing_to_do:
        resumption = await read(store=store, max_crashes=max_crashes, drops_answers=True)
        plan = await make_plan(workflow, workflow_id, resumption, verifying, store, clock)
    return PlannedResume(plan, resumption.judge.reports, verifying)
