"""How many children of a fan-out may fail before it fails itself; pure rules, and one value."""

from __future__ import annotations

import math

import attrs

from flowckpt.dsl.caller import caller
from flowckpt.errors import StepDefinitionError


@attrs.frozen
class Completion:
    """When a fan-out counts as done although children failed. Where nothing is said, one failure is one too many.

    Attributes:
        min_success: how many must succeed: a number of children, or as a float a fraction of them.
        tolerate: how many may fail: likewise.
    """

    min_success: int | float | None = None
    tolerate: int | float | None = None

    @property
    def allows_failures(self) -> bool:
        """Whether any failure is tolerated at all, so that failures stand among the results."""
        return self.min_success is not None or self.tolerate is not None

    def is_lost(self, failed: int, total: int | None) -> bool:
        """Tell whether the fan-out can no longer succeed, so that the rest need not run.

        Args:
            failed: how many children have failed.
            total: how many children there are; None while that is not known.
        """
        if not failed:
            return False
        if not self.allows_failures:
            return True
        if type(self.tolerate) is int and failed > self.tolerate:
            return True
        if total is None:
            return False
        return failed > total - self.needed(total)

    def is_met(self, failed: int, total: int) -> bool:
        """Tell whether a fan-out whose children have all ended has succeeded.

        Args:
            failed: how many children failed.
            total: how many there were.
        """
        if not self.allows_failures:
            return failed == 0
        return total - failed >= self.needed(total)

    def needed(self, total: int) -> int:
        """Return how many of so many children must succeed."""
        needed = 0
        if self.min_success is not None:
            wanted = self.min_success
            needed = wanted if type(wanted) is int else math.ceil(round(wanted * total, 9))
        if self.tolerate is not None:
            may_fail = self.tolerate if type(self.tolerate) is int else math.floor(round(self.tolerate * total, 9))
            needed = max(needed, total - may_fail)
        return needed


ALL = Completion()


TOO_FEW_REMEDY = "Ask for fewer, or for a fraction of them: min_success=0.5; or see to it that there are more."


def completion_of(name: str, min_success: float | None, tolerate: float | None, size: int | None = None) -> Completion:
    """Check what a fan-out was told of failures and return it as a value.

    Args:
        name: the step, for errors.
        min_success: as in `Completion`.
        tolerate: likewise.
        size: how many children there are, where that is known.

    Raises:
        StepDefinitionError: a number is negative, a fraction lies outside 0 … 1, or more must succeed than there are.
    """
    for label, number in (("min_success", min_success), ("tolerate", tolerate)):
        if number is None:
            continue
        is_count = type(number) is int and number >= 0
        is_fraction = type(number) is float and 0.0 <= number <= 1.0
        if not (is_count or is_fraction):
            raise StepDefinitionError(
                f"step {name!r}: {label}={number!r:.40} is neither a number of children nor a fraction of them",
                step=name,
                where=caller(),
                remedy=f"Write {label}=3 for three of them, or {label}=0.5 for half of them.",
            )
    made = ALL if min_success is None and tolerate is None else Completion(min_success, tolerate)
    if size is not None and type(made.min_success) is int and made.min_success > size:
        raise StepDefinitionError(
            f"step {name!r}: min_success={min_success}, but there {'is' if size == 1 else 'are'} only {size}: it could "
            "never succeed",
            step=name,
            where=caller(),
            remedy=TOO_FEW_REMEDY,
        )
    return made
