"""Which runs of a store are wanted: a rule over the description of a run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.checkpoint.data import Status
from flowckpt.errors import SettingError

if TYPE_CHECKING:
    from flowckpt.checkpoint.reference import RunInfo


def _statuses(value: Collection[Status | str] | None) -> frozenset[Status] | None:
    if value is None:
        return None
    try:
        return frozenset(Status(each) for each in value)
    except ValueError:
        known = ", ".join(Status)
        raise SettingError(
            f"no run has one of the statuses {[*value]!r:.80}", setting="statuses", remedy=f"They are {known}."
        ) from None


def _tags(value: Iterable[tuple[str, str | None]]) -> tuple[tuple[str, str | None], ...]:
    return tuple(value)


def _checked_limit(_: object, __: object, value: Any) -> None:
    if value is not None and (type(value) is not int or value < 1):
        raise SettingError(
            f"limit is a whole number from 1 on, not {value!r:.80}", setting="limit", remedy="Write limit=100."
        )


@attrs.frozen(kw_only=True)
class RunFilter:
    """Which runs are wanted; what is None, or empty, does not matter.

    Attributes:
        statuses: only those that stand so; `crashed` and `running` are told apart by whether there is a live owner.
        workflow: only those of this workflow, by name.
        tags: only those that have all of these tags: the name, and the value, or None for any.
        limit: at most so many, those that were started last.
    """

    statuses: frozenset[Status] | None = attrs.field(default=None, converter=_statuses)
    workflow: str | None = None
    tags: tuple[tuple[str, str | None], ...] = attrs.field(default=(), converter=_tags)
    limit: int | None = attrs.field(default=None, validator=_checked_limit)

    def takes(self, info: RunInfo) -> bool:
        """Tell whether a run is wanted, whatever the limit.

        Args:
            info: the run.
        """
        return (
            (self.statuses is None or info.status in self.statuses)
            and (self.workflow is None or info.workflow_name == self.workflow)
            and all(name in info.tags and value in (None, info.tags[name]) for name, value in self.tags)
        )

    def of(self, runs: Iterable[RunInfo]) -> list[RunInfo]:
        """Return those of some runs that are wanted.

        Args:
            runs: the runs, the one started last first.
        """
        return [info for info in runs if self.takes(info)][: self.limit]
