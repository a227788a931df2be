"""The contract of a check: one kind of claim, compared with the world.

A check says what it found by returning an `Outcome`, and raises one of the errors below where it cannot find out. It
blocks: the verifier calls it where blocking is allowed. It must end in bounded time, whatever the claim says, because
claims come from records, and records may have been written by somebody else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Any

import attrs

from flowckpt.clock import Clock, SystemClock
from flowckpt.errors import FlowckptError
from flowckpt.evidence.model import Evidence
from flowckpt.evidence.sandbox import Sandbox
from flowckpt.evidence.settings import Settings
from flowckpt.evidence.verdict import VerdictStatus


class MalformedClaimError(FlowckptError):
    """The claim itself is wrong: nothing in the world could answer it."""


class RefusedClaimError(FlowckptError):
    """The claim asks for what the verifier may not do."""


class UncheckableClaimError(FlowckptError):
    """The world cannot be asked: a driver is missing, a file cannot be read, a database is locked."""


class CheckTimeoutError(FlowckptError, TimeoutError):
    """The check took longer than its limit."""


@attrs.frozen
class Outcome:
    """What a check found.

    Attributes:
        status: the answer.
        error: why it is not verified; None where it is.
        details: what differs, leaf by leaf.
        method: how it was checked, where there are several ways.
    """

    status: VerdictStatus
    error: str | None = None
    details: tuple[str, ...] = ()
    method: str = ""


VERIFIED = Outcome(VerdictStatus.VERIFIED)
VERIFIED_BY_STAT = Outcome(VerdictStatus.VERIFIED, method="stat")
VERIFIED_BY_HASH = Outcome(VerdictStatus.VERIFIED, method="hash")


def failed(error: str, *details: str, method: str = "") -> Outcome:
    """Return the outcome of a claim that the world contradicts.

    Args:
        error: what was found instead, in one sentence.
        *details: what differs, leaf by leaf.
        method: how it was checked.
    """
    return Outcome(VerdictStatus.FAILED, error, details, method)


def uncaptured(claim: Evidence) -> Outcome:
    """Return the outcome of a claim whose facts were never captured.

    Args:
        claim: the claim.
    """
    return Outcome(
        VerdictStatus.UNCAPTURED,
        f"{claim.description}: nothing was recorded to compare with; capture it when the step commits",
    )


@attrs.define
class CheckContext:
    """What a check may use.

    Attributes:
        settings: what it may do, and how far.
        sandbox: the files that it may see.
        clock: time.
        predicates: the functions that the program passed, by name; empty on another worker.
        executor: takes pieces of large work; None where the check itself runs on such an executor.
    """

    settings: Settings
    sandbox: Sandbox
    clock: Clock = attrs.field(factory=SystemClock)
    predicates: Mapping[str, Callable[..., Any]] = attrs.field(factory=dict)
    executor: Executor | None = None

    def deadline_after(self, seconds: float) -> Deadline:
        """Return a deadline.

        Args:
            seconds: how long from now.
        """
        return Deadline(self.clock.elapsed_ns, self.clock.elapsed_ns() + int(seconds * 1e9), seconds)


@attrs.frozen
class Deadline:
    """The end of a check's time.

    Attributes:
        elapsed_ns: the monotonic clock.
        at_ns: when the time is over.
        seconds: how long it was, for the message.
    """

    elapsed_ns: Callable[[], int]
    at_ns: int
    seconds: float

    def left(self) -> float:
        """Return the seconds that are left.

        Raises:
            CheckTimeoutError: none are.
        """
        left = self.at_ns - self.elapsed_ns()
        if left <= 0:
            raise CheckTimeoutError(f"it took longer than the limit of {self.seconds:g} s")
        return left / 1e9

    def is_over(self) -> bool:
        """Tell whether the time is over."""
        return self.elapsed_ns() >= self.at_ns


class Check:
    """One kind of claim. Subclass it, write `verify`, and name an instance in the entry-point group `flowckpt.evidence`.

    Attributes:
        is_slow: whether it waits for others (a network, a database): slow checks run beside one another.
        is_local: whether only the process of the program can answer, so that no quorum can be asked.
        splits_work: whether it hands pieces of its work to the executor itself, and so must not run on it.
    """

    is_slow: bool = False
    is_local: bool = False
    splits_work: bool = False

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome | Awaitable[Outcome]:
        """Compare a claim with the world; an awaitable is awaited in the program's loop.

        Args:
            claim: the claim.
            context: what may be used.
        """
        raise NotImplementedError(f"{type(self).__qualname__} cannot verify")

    def verify_uncaptured(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Answer a claim without facts; most kinds cannot.

        Args:
            claim: the claim.
            context: what may be used.
        """
        return uncaptured(claim)

    def capture(self, claim: Evidence, context: CheckContext) -> Evidence:
        """Return the claim with the facts of the world; kinds that need none return it as it is.

        Args:
            claim: the claim.
            context: what may be used.
        """
        return claim
