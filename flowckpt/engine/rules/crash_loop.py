"""Rules that detect a crash loop in the record of a run, without I/O.

A crash is an attempt that ended without recording an outcome: the record still has the status `running`, and no process
owns the run. A crash adds to the count if it happened at the same step as the one before, and the attempt saved nothing
new: no result and no other partial state. An attempt that made progress, crashed elsewhere, or ended in any other way
resets the count.

The count is part of the checkpoint that each resume saves before it runs anything, so it survives every kind of crash.
It holds the crashes *before* that attempt; the process that reads the record adds the attempt's own crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec import dumps
from flowckpt.core.codec.blob import Blob, plain_tree
from flowckpt.core.codec.results import as_view, encode_time
from flowckpt.core.records import CheckpointData, Status
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.engine.rules.reasons import LIMITS, MAX_CRASHES

if TYPE_CHECKING:
    from flowckpt.core.records import PartialState


KEY = "deaths"
"""Metadata key: the document that `CrashCount.add_to_metadata` writes."""
_MOST_PATHS = 20


@attrs.frozen(eq=False, repr=False)
class CrashCount(FieldEquality):
    """How often a run crashed at one place with nothing new saved in between.

    Attributes:
        count: the number of crashes.
        paths: the steps at which it may have crashed, in the order of their starts; empty if unknown.
        since: the last save of the first crashed attempt, as recorded; empty if it saved nothing.
        seen: the last sign of life of the last attempt; empty if the store does not know it.
    """

    count: int = 0
    paths: tuple[str, ...] = ()
    since: str = ""
    seen: str = ""

    @property
    def path(self) -> str:
        """The step that was started last; empty if unknown."""
        return self.paths[-1] if self.paths else ""

    def is_crash_loop(self, most: int) -> bool:
        """Return whether the run reached its crash limit.

        Args:
            most: how often a run may crash at one step; 0 for no limit.
        """
        return 0 < most <= self.count

    def add_to_metadata(
        self, metadata: Mapping[str, Any], *, results: int, partial: Mapping[str, PartialState]
    ) -> dict[str, Any]:
        """Return metadata with this count, and with the point from which the new attempt resumes.

        Args:
            metadata: the metadata of the run.
            results: how many results the attempt resumes from.
            partial: the partial states that it resumes from.
        """
        kept = {name: value for name, value in metadata.items() if name != KEY}
        if self.count:
            kept[KEY] = {
                "count": self.count,
                "paths": list(self.paths),
                "since": self.since,
                "results": results,
                "partial": digest_of(partial),
                **({"seen": self.seen} if self.seen else {}),
            }
        return kept


def crash_count_of(latest: CheckpointData, begun: Sequence[str], *, silent: int = 0) -> CrashCount:
    """Return how often a run crashed at its last crash site. The run must have no owner.

    Args:
        latest: the newest checkpoint.
        begun: the steps that its attempt started afterwards, as far as they were noted.
        silent: how many later attempts died before they saved anything.
    """
    if latest.status is not Status.RUNNING:
        return CrashCount(silent)
    marked = [path for path in latest.in_flight if path not in begun]
    started = dict.fromkeys([*marked, *begun])
    for path in as_view(latest.step_results).ended(started):
        del started[path]
    paths = (*started,)[-_MOST_PATHS:]
    moment = encode_time(latest.saved_at)
    recorded = latest.metadata.get(KEY)
    if recorded is None or _is_new(latest, recorded):
        return CrashCount(1 + silent, paths, moment)
    before = tuple(recorded["paths"])
    common = tuple(path for path in paths if path in before)
    if before and paths and not common:
        return CrashCount(1 + silent, paths, moment)
    return CrashCount(recorded["count"] + 1 + silent, common or paths or before, recorded["since"])


def list_crash_sites(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the steps at which the run may have crashed before its last attempt."""
    return tuple(metadata.get(KEY, {}).get("paths", ()))


def digest_of(partial: Mapping[str, PartialState]) -> str:
    """Return a digest of partial states; empty for none.

    Args:
        partial: the states, by path.
    """
    if not partial:
        return ""
    states = {path: each.held_state for path, each in sorted(partial.items())}
    tree = {path: each.digest if isinstance(each, Blob) else plain_tree(each, path) for path, each in states.items()}
    return sha256(dumps(tree).encode()).hexdigest()


def limit_of(metadata: Mapping[str, Any], asked: int | None = None, default: int = MAX_CRASHES) -> int:
    """Return how often a run may crash at one step.

    Args:
        metadata: the metadata of its newest checkpoint.
        asked: the limit requested now, or None.
        default: the limit if none was ever requested.
    """
    if asked is not None:
        return asked
    limit = metadata.get(LIMITS, {}).get("max_crashes", default)
    return int(limit)


def _is_new(latest: CheckpointData, recorded: Mapping[str, Any]) -> bool:
    results: int = recorded["results"]
    return len(latest.step_results) > results or digest_of(latest.partial) != recorded["partial"]
