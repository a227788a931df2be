"""Which checkpoints of a run are wanted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from flowckpt.checkpoint.data import Reason
from flowckpt.checkpoint.reference import CheckpointRef
from flowckpt.errors import SettingError


def _checked_attempt(_: object, __: object, value: Any) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise SettingError(
            f"an attempt is a whole number from 1 on, not {value!r:.80}", setting="attempt", remedy="Write attempt=2."
        )


def _checked_limit(_: object, __: object, value: Any) -> None:
    if value is not None and (type(value) is not int or value < 0):
        raise SettingError(
            f"limit is a whole number from 0 on, not {value!r:.80}", setting="limit", remedy="Write limit=100."
        )


def _checked_verified(_: object, __: object, value: Any) -> None:
    if value is not None and type(value) is not bool:
        raise SettingError(
            f"verified is True, False or None, not {value!r:.80}", setting="verified", remedy="Write verified=True."
        )


def _reason(value: Reason | str | None) -> Reason | None:
    if value is None:
        return None
    try:
        return Reason(value)
    except ValueError:
        known = ", ".join(Reason)
        raise SettingError(
            f"no checkpoint is taken for the reason {value!r:.80}", setting="reason", remedy=f"It is one of {known}."
        ) from None


@attrs.frozen(kw_only=True)
class Selection:
    """Which checkpoints of a run are wanted; what is None does not matter.

    Attributes:
        attempt: only those that this attempt saved.
        reason: only those that were taken for this reason.
        verified: only those whose evidence was found to hold (True), or was not (False).
        limit: at most so many, the newest.
    """

    attempt: int | None = attrs.field(default=None, validator=_checked_attempt)
    reason: Reason | None = attrs.field(default=None, converter=_reason)
    verified: bool | None = attrs.field(default=None, validator=_checked_verified)
    limit: int | None = attrs.field(default=None, validator=_checked_limit)

    def takes(self, reference: CheckpointRef) -> bool:
        """Tell whether a checkpoint is one of those wanted; the limit does not matter here."""
        return (
            self.attempt in (None, reference.attempt)
            and self.reason in (None, reference.reason)
            and (self.verified is None or self.verified is reference.verified)
        )

    def of(self, references: Iterable[CheckpointRef]) -> list[CheckpointRef]:
        """Return the wanted ones among checkpoints.

        Args:
            references: the checkpoints, newest first.
        """
        return [reference for reference in references if self.takes(reference)][: self.limit]


EVERY = Selection()
"""All checkpoints of a run."""
