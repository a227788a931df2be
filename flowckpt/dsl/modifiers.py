"""What a step's modifiers say, apart from its action."""

from __future__ import annotations

import math

import attrs

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError


@attrs.frozen
class RetryPolicy:
    """When a failed try is followed by another, and after how long.

    The wait before try n + 1 is `backoff * 2**(n - 1)` seconds, at most `max_delay`, and varied by up to `jitter` of
    itself in both directions.

    Attributes:
        attempts: tries in all, the first one included.
        backoff: seconds before the second try.
        max_delay: the longest wait in seconds.
        jitter: fraction of the wait, 0 to 1.
        on: exception types that are tried again; others fail the step at once.
    """

    attempts: int
    backoff: float = 0.0
    max_delay: float = 60.0
    jitter: float = 0.0
    on: tuple[type[BaseException], ...] = (Exception,)

    def delay(self, tries: int, *, random: float) -> float:
        """Return the seconds to wait after that many tries.

        Args:
            tries: how many tries have failed, from 1.
            random: a number in [0, 1), the source of the jitter.
        """
        # 2**1024 is no float; long before that the wait has reached its limit.
        wait = min(self.max_delay, self.backoff * 2.0 ** min(tries - 1, 1000)) if self.backoff else 0.0
        return max(0.0, wait * (1 + self.jitter * (2 * random - 1)))


@attrs.frozen
class Modifiers:
    """The modifiers of one step.

    Attributes:
        has_checkpoint: whether a checkpoint is taken after the step.
        checkpoint_id: its id, or None for the step's path.
        retry: its retry policy, or None.
        timeout_seconds: the limit of one try, or None.
        is_ephemeral: whether it is never recorded, and run again at each replay.
        version: the tag of `.version()`, or None.
    """

    has_checkpoint: bool = False
    checkpoint_id: str | None = None
    retry: RetryPolicy | None = None
    timeout_seconds: float | None = None
    is_ephemeral: bool = False
    version: str | None = None


PLAIN = Modifiers()
CHECKPOINTED = Modifiers(has_checkpoint=True)


def retry_policy(
    name: str,
    attempts: int,
    backoff: float,
    max_delay: float,
    jitter: float,
    on: type[BaseException] | tuple[type[BaseException], ...],
) -> RetryPolicy:
    """Check the arguments of `.retry()` and return the policy; see `RetryPolicy`."""
    types = on if isinstance(on, tuple) else (on,)
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise StepDefinitionError(
            f"step {name!r}: .retry(attempts={attempts!r}) must be a whole number from 1",
            step=name,
            where=caller(),
            remedy="It counts all tries, the first one included.",
        )
    for label, number in (("backoff", backoff), ("max_delay", max_delay)):
        if not _is_number(number) or number < 0:
            raise StepDefinitionError(
                f"step {name!r}: .retry({label}={number!r}) must be seconds, 0 or more", step=name, where=caller()
            )
    if not _is_number(jitter) or not 0 <= jitter <= 1:
        raise StepDefinitionError(
            f"step {name!r}: .retry(jitter={jitter!r}) must lie in 0 … 1", step=name, where=caller()
        )
    for kind in types:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise StepDefinitionError(
                f"step {name!r}: .retry(on=…) takes exception classes, got {kind!r}", step=name, where=caller()
            )
    return RetryPolicy(attempts, float(backoff), float(max_delay), float(jitter), types)


def checked_timeout(name: str, seconds: float) -> float:
    """Check the argument of `.timeout()` and return it as a float."""
    if not _is_number(seconds) or seconds <= 0:
        raise StepDefinitionError(
            f"step {name!r}: .timeout({seconds!r}) must be seconds above 0", step=name, where=caller()
        )
    return float(seconds)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
