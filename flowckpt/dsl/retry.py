"""When a failed try of a step is followed by another: the arguments of `.retry()`, checked, as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeAlias

import attrs

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError
from flowckpt.finite import is_finite_number

Worth: TypeAlias = type[BaseException] | Callable[[BaseException], bool]
"""What is worth another try: an exception class, or a function that is given the exception and says so."""


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
        on: what is tried again: exception types, and functions that say so of an exception; others fail the step at once.
        deadline: seconds after the first try began in which a further one may begin; None for no limit.
    """

    attempts: int
    backoff: float = 0.0
    max_delay: float = 60.0
    jitter: float = 0.0
    on: tuple[Worth, ...] = (Exception,)
    deadline: float | None = None

    def delay(self, tries: int, *, random: float) -> float:
        """Return the seconds to wait after that many tries.

        Args:
            tries: how many tries have failed, from 1.
            random: a number in [0, 1), the source of the jitter.
        """
        # 2**1024 is no float; long before that the wait has reached its limit.
        wait = min(self.max_delay, self.backoff * 2.0 ** min(tries - 1, 1000)) if self.backoff else 0.0
        return max(0.0, wait * (1 + self.jitter * (2 * random - 1)))

    def is_worth_it(
        self,
        error: BaseException,
        *,
        doubt: Callable[[str], None],
        matches: Callable[[BaseException, tuple[type[BaseException], ...]], bool] = isinstance,
    ) -> bool:
        """Tell whether an exception is worth another try.

        A function that is asked and raises, or answers neither True nor False, means no, and `doubt` is told.

        Args:
            error: what the try raised.
            doubt: told what was wrong with a function, in one sentence.
            matches: tells whether an exception is one of some classes, also where it was raised far away.
        """
        for each in self.on:
            if isinstance(each, type):
                if matches(error, (each,)):
                    return True
                continue
            named = getattr(each, "__qualname__", type(each).__qualname__)
            try:
                answer: object = each(error)
            except Exception as failure:
                doubt(f"{named} of .retry(on=…) raised {type(failure).__name__}: {failure}, which counts as no")
                continue
            if answer is True:
                return True
            if answer is not False:
                doubt(f"{named} of .retry(on=…) answered {answer!r:.80}, not True or False, which counts as no")
        return False


def retry_policy(
    name: str,
    attempts: int,
    backoff: float,
    max_delay: float,
    jitter: float,
    on: Worth | tuple[Worth, ...],
    deadline: float | None,
) -> RetryPolicy:
    """Check the arguments of `.retry()` and return the policy; see `RetryPolicy`.

    Raises:
        StepDefinitionError: an argument is out of its range.
    """

    def refused(said: str, remedy: str = "") -> StepDefinitionError:
        return StepDefinitionError(f"step {name!r}: .retry({said}", step=name, where=caller(), remedy=remedy)

    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise refused(
            f"attempts={attempts!r:.80}) must be a whole number from 1", "It counts all tries, the first one included."
        )
    for label, number in (("backoff", backoff), ("max_delay", max_delay)):
        if not is_finite_number(number) or number < 0:
            raise refused(f"{label}={number!r:.80}) must be seconds, 0 or more")
    if not is_finite_number(jitter) or not 0 <= jitter <= 1:
        raise refused(f"jitter={jitter!r:.80}) must lie in 0 … 1")
    if deadline is not None and (not is_finite_number(deadline) or deadline <= 0):
        raise refused(f"deadline={deadline!r:.80}) must be seconds above 0, or None")
    worth = on if isinstance(on, tuple) else (on,)
    if not worth:
        raise refused("on=()) names nothing that is worth another try", "Leave .retry() out, or name exceptions.")
    for each in worth:
        if isinstance(each, type) and issubclass(each, Exception):
            continue
        if isinstance(each, type) or not callable(each):
            raise refused(f"on=…) takes exception classes and functions of an exception, got {each!r:.120}")
        if inspect.iscoroutinefunction(each):
            raise refused(f"on=…) was given {each!r:.120}, which is async", "Give a plain function.")
    return RetryPolicy(
        attempts,
        float(backoff),
        float(max_delay),
        float(jitter),
        worth,
        None if deadline is None else float(deadline),
    )
