"""Several workers answer the same claim, and must agree: what one machine sees of a shared system, another may not."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from flowckpt.evidence.checks.base import Outcome
from flowckpt.evidence.model import Evidence
from flowckpt.evidence.settings import Settings
from flowckpt.evidence.verdict import VerdictStatus
from flowckpt.evidence.worker import outcome_of, verify_for_quorum

# How long a worker is kept after its answer, round by round. A quick worker would else answer for its neighbours.
LINGER = (0.0, 0.05, 0.25, 1.0)


async def ask_workers(claim: Evidence, settings: Settings, executor: Executor) -> Outcome:
    """Return the common outcome of a claim, or that there is none.

    Args:
        claim: the claim, with how many workers must agree.
        settings: what may be done.
        executor: has the workers.
    """
    answers: dict[str, list[Outcome]] = {}
    lost: list[BaseException] = []
    limits = settings.limits
    seconds = limits.hash_seconds + limits.query_seconds + limits.network_seconds
    try:
        async with asyncio.timeout(seconds):
            for linger in LINGER:
                asked = [
                    asyncio.wrap_future(executor.submit(verify_for_quorum, claim, settings, linger))
                    for _ in range(claim.workers)
                ]
                for answer in await asyncio.gather(*asked, return_exceptions=True):
                    if isinstance(answer, BaseException):
                        lost.append(answer)
                    else:
                        answers.setdefault(answer[0], []).append(answer[1])
                if len(answers) >= claim.workers or lost:
                    break
    except TimeoutError:
        return Outcome(
            VerdictStatus.TIMED_OUT, f"{len(answers)} of {claim.workers} workers answered within {seconds:g} s"
        )
    except Exception as error:  # an executor that takes no work any more
        lost.append(error)
    return agreed(answers, claim.workers, lost)


def agreed(answers: Mapping[str, Sequence[Outcome]], workers: int, lost: Sequence[BaseException] = ()) -> Outcome:
    """Return what workers agree on.

    Args:
        answers: the outcomes by worker.
        workers: how many must have answered.
        lost: why others did not.
    """
    given = [outcome for outcomes in answers.values() for outcome in outcomes]
    statuses = sorted({outcome.status for outcome in given})
    if len(statuses) > 1:
        said = ", ".join(f"{sum(outcome.status is status for outcome in given)} say {status}" for status in statuses)
        details = [
            f"{worker}: {outcome.status}{f' ({outcome.error})' if outcome.error else ''}"
            for worker, outcomes in answers.items()
            for outcome in outcomes
        ]
        return Outcome(VerdictStatus.DISAGREEMENT, f"the workers disagree: {said}", tuple(details), "quorum")
    if len(answers) < workers:
        why = f"; {outcome_of(lost[0]).error}" if lost else ""
        return Outcome(
            VerdictStatus.CANNOT_CHECK,
            f"it cannot be checked: {len(answers)} of {workers} workers answered{why}. "
            "Give the verifier an executor with as many workers as the quorum.",
            method="quorum",
        )
    return Outcome(given[0].status, given[0].error, given[0].details, "quorum")
