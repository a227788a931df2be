"""Retention: which checkpoints of a run stay, as a value and a pure rule."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import attrs

from flowckpt.core.records.generation import KEPT
from flowckpt.core.records.listing import CheckpointRef
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.core.system.numbers import age_of, check_number
from flowckpt.errors import SettingError


class OnSuccess(StrEnum):
    """The fate of the checkpoints of a completed run."""

    KEEP = "keep"
    """They stay within the limits."""
    KEEP_LAST = "keep_last"
    """Only the last one, the newest verified one and pinned ones stay."""
    CLEAR = "clear"
    """The run is removed completely, unless one of its checkpoints is pinned."""


def check_count(value: object, setting: str) -> int | None:
    """Return a number of at least 1, or None for no limit.

    Raises:
        SettingError: it is not valid.
    """
    remedy = "The newest checkpoint always stays, so 1 is the least that can be kept."
    return check_number(value, setting, remedy, is_optional=True)


def _check_keep_last(value: int | None) -> int | None:
    return check_count(value, "keep_last")


def _check_keep_generations(value: int | None) -> int | None:
    return check_count(value, "keep_generations")


def _check_max_bytes(value: int | None) -> int | None:
    return check_count(value, "max_bytes")


def _check_max_age(value: timedelta | float | str | None) -> timedelta | None:
    return None if value is None else age_of(value, "max_age")


def _check_on_success(value: object) -> OnSuccess:
    if value in tuple(OnSuccess):
        return OnSuccess(str(value))
    raise SettingError(
        f"on_success={value!r:.80} is not one of {', '.join(repr(str(each)) for each in OnSuccess)}",
        setting="on_success",
        remedy="Write one of them.",
    )


def _check_pinned(value: Iterable[str]) -> frozenset[str]:
    if isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise SettingError(
            f"pinned is a collection of checkpoint ids, not {value!r:.80}",
            setting="pinned",
            remedy="Write pinned=['trained'].",
        )
    return frozenset(value)


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Retention(FieldEquality):
    """Which checkpoints of a run stay. Each limit applies separately: a checkpoint that exceeds any limit is removed.

    The newest checkpoint, the newest verified one and pinned ones are never removed, and results always stay.

    Attributes:
        keep_last: keep this many of the newest; None for no limit.
        max_age: remove older ones: a `timedelta`, seconds, or text such as `30d`; None for no limit.
        max_bytes: keep the newest whose records take this many bytes together, without large values; None for no limit.
        pinned: ids of checkpoints that always stay.
        keep_generations: list this many former generations of a run that continues as another one; None for all. Only the
            list of them stays, not their steps.
        on_success: for a completed run: `keep` all, `keep_last` one, or `clear` the run.

    Raises:
        SettingError: a value is out of its range.
    """

    keep_last: int | None = attrs.field(default=None, converter=_check_keep_last)
    max_age: timedelta | None = attrs.field(default=None, converter=_check_max_age)
    max_bytes: int | None = attrs.field(default=None, converter=_check_max_bytes)
    pinned: frozenset[str] = attrs.field(default=frozenset(), converter=_check_pinned)
    on_success: OnSuccess = attrs.field(default=OnSuccess.KEEP, converter=_check_on_success)
    keep_generations: int | None = attrs.field(default=KEPT, converter=_check_keep_generations)

    @property
    def has_limits(self) -> bool:
        """Whether anything can be removed during the run."""
        return any(limit is not None for limit in (self.keep_last, self.max_age, self.max_bytes))


ONLY_THE_LAST = Retention(keep_last=1)


def read_retention(setting: Callable[[str], Any]) -> Retention | None:
    """Return the retention of the settings, or None."""
    retention = Retention(
        **{name: setting(name) for name in ("keep_last", "max_age", "max_bytes", "on_success", "keep_generations")}
    )
    return None if retention == Retention() else retention


def check_retention(value: Any) -> Retention:
    """Return a retention; raise for any other value.

    Raises:
        SettingError: it is not valid.
    """
    if isinstance(value, Retention):
        return value
    raise SettingError(
        f"{value!r:.80} is not a Retention", setting="retention", remedy="Write retention=Retention(keep_last=10)."
    )


@attrs.frozen(eq=False, repr=False)
class Resting(FieldEquality):
    """The checkpoints that the state of a run depends on, in addition to the newest one.

    Attributes:
        needed: sequences that the state of the run depends on.
        counted: the sequences that `keep_last` counts; None for all.
    """

    needed: frozenset[int] = frozenset()
    counted: frozenset[int] | None = None


ALL_IN_THE_NEWEST = Resting()


def removable(
    references: Iterable[CheckpointRef],
    retention: Retention,
    now: datetime,
    *,
    pinned: Collection[int] = (),
    resting: Resting = ALL_IN_THE_NEWEST,
    must_pass_all: bool = False,
) -> list[CheckpointRef]:
    """Return which checkpoints of a run a retention removes, oldest first.

    Args:
        references: all checkpoints that count, in any order.
        retention: the limits.
        now: the time, aware.
        pinned: sequences that stay, in addition to the ids pinned by the retention.
        resting: the checkpoints that the state of the run depends on, which stay.
        must_pass_all: whether a checkpoint must exceed every limit given, as for `prune`, rather than any.
    """
    newest_first = sorted(references, key=lambda each: each.sequence, reverse=True)
    safe = find_protected(newest_first, retention, pinned) | resting.needed
    decide = all if must_pass_all else any
    room = retention.max_bytes
    if room is not None:
        room -= sum(each.size for each in newest_first if each.sequence in safe)
    gone: list[CheckpointRef] = []
    newer = 0
    for each in newest_first:
        place, newer = newer, newer + (resting.counted is None or each.sequence in resting.counted)
        if each.sequence in safe:
            continue
        exceeded = []
        if retention.keep_last is not None:
            exceeded.append(place >= retention.keep_last)
        if retention.max_age is not None:
            exceeded.append(now - each.saved_at > retention.max_age)
        if room is not None:
            room -= each.size
            exceeded.append(room < 0)
        if exceeded and decide(exceeded):
            gone.append(each)
    return gone[::-1]


def find_protected(newest_first: Sequence[CheckpointRef], retention: Retention, pinned: Collection[int]) -> set[int]:
    """Return the sequences that no limit removes: the newest, the newest verified one, and pinned ones."""
    safe = {each.sequence for each in newest_first[:1]}
    safe |= {
        each.sequence for each in newest_first if each.sequence in pinned or each.checkpoint_id in retention.pinned
    }
    verified = next((each.sequence for each in newest_first if each.verified), None)
    return safe if verified is None else safe | {verified}
