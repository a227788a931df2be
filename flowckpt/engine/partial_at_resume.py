"""Before a step runs that saved something of itself in an earlier attempt: is that still its own?"""

from __future__ import annotations

from typing import Any

from flowckpt.dsl import Step
from flowckpt.engine.attempt import Attempt
from flowckpt.engine.failures import stale_step
from flowckpt.plan.partial import partial_reasons
from flowckpt.plan.policy import OnStale


def judge_partial(attempt: Attempt, step: Step[Any], path: str) -> None:
    """Drop what a step saved of itself where code or arguments have moved, as the policy for results says.

    Args:
        attempt: the attempt.
        step: the step as it is yielded now.
        path: its path.

    Raises:
        StaleStepError: something has moved, and the policy is to stop.
    """
    reasons = partial_reasons(step, attempt.checkpointer.partial[path], attempt.secrets)
    answer = attempt.judge.decide(reasons) if reasons else OnStale.REUSE
    if answer is OnStale.FAIL:
        raise stale_step(attempt.workflow_id, path, reasons)
    if answer is OnStale.RERUN:
        attempt.drop_state(path, "; ".join(map(str, reasons)))
