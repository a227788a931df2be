"""Rules over the record of a run, without I/O: when a crash loop is left alone.

A crash is an attempt that ended without a word: the record still says `running`, and no process owns the run. Crashes are
counted while each next one is at the same step as the one before and the attempt saved nothing new: no result, and no
other partial state. An attempt that came further, died elsewhere, or ended in any other way, resets the count.

The count is part of the checkpoint that each resume saves before it runs anything, so it survives whatever the attempt
dies of. It says how often the run had died *before* that attempt; the process that reads the record adds the attempt's own end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import attrs

from flowckpt.core.codec import dumps
from flowckpt.core.codec.blob import Blob
from flowckpt.core.codec.results import as_view, encode_time, plain_tree
from flowckpt.core.records import CheckpointData, Status
from flowckpt.core.system.attrs_base import FieldEquality
from flowckpt.engine.rules.reasons import LIMITS, MAX_CRASHES

if TYPE_CHECKING:
    from flowckpt.core.records import PartialState


KEY = "deaths"
"""In the metadata: what `CrashCount.written_to` writes."""
_MOST_PATHS = 20


@attrs.frozen(eq=False, repr=False)
class CrashCount(FieldEquality):
    """How often a run has died at one place, with nothing new saved between.

    Attributes:
        count: how often.
        paths: the steps that it may have died at, in the order in which they began; none if unknown.
        since: when the first of these attempts had saved last, as in the record; empty where there was none.
        seen: the last sign of life of the last one; empty where the store does not know it.
    """

    count: int = 0
    paths: tuple[str, ...] = ()
    since: str = ""
    seen: str = ""

    @property
    def path(self) -> str:
        """The step that was begun last; empty if unknown."""
        return self.paths[-1] if self.paths else ""

    def is_crash_loop(self, most: int) -> bool:
        """Tell whether that was often enough.

        Args:
            most: how often a run may die at one step; 0 for no limit.
        """
        return 0 < most <= self.count

    def written_to(
        self, metadata: Mapping[str, Any], *, results: int, partial: Mapping[str, PartialState]
    ) -> dict[str, Any]:
        """Return metadata that say so, and from where the attempt that starts now resumes.

        Args:
            metadata: of the run.
            results: how many results it continues from.
            partial: the partial states that it continues from.
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
    """Return how often a run has died at the place where it died last. Its owner must be gone.

    Args:
        latest: its newest checkpoint.
        begun: the steps that the attempt which saved it had begun since, as far as it left word.
        silent: how many attempts after it died before they saved anything.
    """
    if latest.status is not Status.RUNNING:
        return CrashCount(silent)
    marked = [path for path in latest.in_flight if path not in begun]
    started = dict.fromkeys([*marked, *begun])
    for path in as_view(latest.step_results).ended(started):
        del started[path]
    paths = (*started,)[-_MOST_PATHS:]
    moment = encode_time(latest.saved_at)
    said = latest.metadata.get(KEY)
    if said is None or _is_new(latest, said):
        return CrashCount(1 + silent, paths, moment)
    before = tuple(said["paths"])
    common = tuple(path for path in paths if path in before)
    if before and paths and not common:
        return CrashCount(1 + silent, paths, moment)
    return CrashCount(said["count"] + 1 + silent, common or paths or before, said["since"])


def digest_of(partial: Mapping[str, PartialState]) -> str:
    """Return what tells one set of partial states from another; an empty text for none.

    Args:
        partial: the states, by path.
    """
    if not partial:
        return ""
    held = {path: each.held_state for path, each in sorted(partial.items())}
    said = {path: each.digest if isinstance(each, Blob) else plain_tree(each, path) for path, each in held.items()}
    return sha256(dumps(said).encode()).hexdigest()


def limit_of(metadata: Mapping[str, Any], asked: int | None = None, default: int = MAX_CRASHES) -> int:
    """Return how often a run may die at one step.

    Args:
        metadata: of its newest checkpoint.
        asked: what is asked for now, or None.
        default: what holds where nothing was ever said.
    """
    if asked is not None:
        return asked
    found = metadata.get(LIMITS, {}).get("max_crashes", default)
    return int(found)


def _is_new(latest: CheckpointData, said: Mapping[str, Any]) -> bool:
    results: int = said["results"]
    return len(latest.step_results) > results or digest_of(latest.partial) != said["partial"]
