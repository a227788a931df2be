"""What checks claims where blocking is allowed: in place, on a thread, or on any worker of an executor.

Whatever goes wrong while a claim is checked becomes its outcome. Nothing here raises for what a record says, or for what
a plugin does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import closing

from flowckpt.errors import EvidenceCaptureError, FlowckptError
from flowckpt.evidence.checks import check_for
from flowckpt.evidence.checks.base import (
    Check,
    CheckContext,
    CheckTimeoutError,
    MalformedClaimError,
    Outcome,
    RefusedClaimError,
)
from flowckpt.evidence.model import Evidence, State
from flowckpt.evidence.sandbox import PathRefusedError, Sandbox
from flowckpt.evidence.settings import Settings
from flowckpt.evidence.verdict import VerdictStatus

Answer = Outcome | Awaitable[Outcome]


def verify_all(claims: Sequence[Evidence], context: CheckContext, own: Mapping[str, Check]) -> list[Answer]:
    """Return the outcome of each claim.

    Args:
        claims: the claims.
        context: what may be used; its sandbox is closed at the end.
        own: the kinds that the program adds.
    """
    with closing(context.sandbox):
        return [verify_one(claim, context, own) for claim in claims]


def verify_one(claim: Evidence, context: CheckContext, own: Mapping[str, Check]) -> Answer:
    """Return the outcome of a claim; an awaitable has to be awaited in the program's loop.

    Args:
        claim: the claim.
        context: what may be used.
        own: the kinds that the program adds.
    """
    if claim.state is State.UNREADABLE:
        return Outcome(
            VerdictStatus.CANNOT_CHECK,
            "it cannot be checked: it was recorded by a newer program in a form that this one cannot read. "
            "Upgrade flowckpt.",
        )
    try:
        check = check_for(claim.evidence_type, own)
        if claim.state is State.UNCAPTURED:
            return check.verify_uncaptured(claim, context)
        return check.verify(claim, context)
    except Exception as error:
        return outcome_of(error)


def capture_all(
    claims: Sequence[Evidence], context: CheckContext, own: Mapping[str, Check]
) -> list[Evidence | Exception]:
    """Return each claim with its facts, or why it has none.

    Args:
        claims: the claims.
        context: what may be used; its sandbox is closed at the end.
        own: the kinds that the program adds.
    """
    with closing(context.sandbox):
        found: list[Evidence | Exception] = []
        for claim in claims:
            try:
                found.append(check_for(claim.evidence_type, own).capture(claim, context))
            except Exception as error:  # a plugin's too
                found.append(error)
        return found


def verify_shipped(claims: Sequence[Evidence], settings: Settings) -> list[Outcome]:
    """Return the outcome of each claim, on a worker of an executor: nothing but values comes along.

    Args:
        claims: the claims; of kinds that any worker can check.
        settings: what may be done.
    """
    context = CheckContext(settings, Sandbox(settings.base_path, allow_absolute=settings.allow_absolute))
    return [
        each if isinstance(each, Outcome) else outcome_of(TypeError("it can only be checked by the program itself"))
        for each in verify_all(claims, context, {})
    ]


def verify_for_quorum(claim: Evidence, settings: Settings, linger: float) -> tuple[str, Outcome]:
    """Return which worker this is, and its outcome of a claim.

    Args:
        claim: the claim.
        settings: what may be done.
        linger: how long to keep the worker afterwards, so that the same question reaches another one.
    """
    outcome = verify_shipped([claim], settings)[0]
    if linger:
        time.sleep(linger)
    return f"{os.uname().nodename}, process {os.getpid()}, thread {threading.get_native_id()}", outcome


def outcome_of(error: BaseException) -> Outcome:
    """Return the outcome of a claim whose check ended with an error: nobody knows, and this is why.

    Args:
        error: the error.
    """
    if isinstance(error, EvidenceCaptureError):
        return Outcome(VerdictStatus.FAILED, error.detail, (error.detail,))
    if isinstance(error, MalformedClaimError):
        return Outcome(VerdictStatus.MALFORMED, f"the claim is malformed: {error}")
    if isinstance(error, RefusedClaimError | PathRefusedError):
        return Outcome(VerdictStatus.REFUSED, f"the check was refused: {error}")
    if isinstance(error, CheckTimeoutError):
        return Outcome(VerdictStatus.TIMED_OUT, f"it could not be checked in time: {error}")
    if isinstance(error, TimeoutError):
        return Outcome(VerdictStatus.TIMED_OUT, "it could not be checked in time")
    if isinstance(error, FlowckptError):
        return Outcome(VerdictStatus.CANNOT_CHECK, f"it cannot be checked: {error}")
    if isinstance(error, OSError) and error.strerror:
        return Outcome(VerdictStatus.CANNOT_CHECK, f"it cannot be checked: {error.strerror}")
    return Outcome(
        VerdictStatus.CANNOT_CHECK, f"it cannot be checked: its check raised {type(error).__name__}: {error!s:.200}"
    )
