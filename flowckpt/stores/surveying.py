"""The runs of a store together with those that it cannot read: a list alone would be silent about these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import attrs

from flowckpt.stores.base import CheckpointStore
from flowckpt.stores.finding import listing
from flowckpt.stores.integrity import Finding

if TYPE_CHECKING:
    from flowckpt.checkpoint.reference import RunInfo
    from flowckpt.checkpoint.run_filter import RunFilter


@attrs.frozen
class RunSurvey:
    """What a store has.

    Attributes:
        runs: the runs that can be read, the one started last first.
        unreadable: what the list had to leave out: `corrupt`, or `locked` where a key is missing.
    """

    runs: Sequence[RunInfo]
    unreadable: Sequence[Finding] = ()


@runtime_checkable
class SurveysRuns(Protocol):
    """A store that can tell which runs its list leaves out. Ask with `surveyed` and `unreadable_runs`."""

    async def survey_runs(self, wanted: RunFilter | None = None) -> RunSurvey:
        """Return the runs, and those that the list leaves out.

        Args:
            wanted: which of the runs; all where not given. A store with an index for them names only those of the others
                that it comes across.

        Raises:
            CheckpointStorageError: the medium failed.
        """
        ...

    async def unreadable_runs(self) -> Sequence[Finding]:
        """Return only those that the list leaves out, without the others in memory.

        Raises:
            CheckpointStorageError: the medium failed.
        """
        ...


async def surveyed(store: CheckpointStore, wanted: RunFilter | None = None) -> RunSurvey:
    """Return the runs of a store, and what its list leaves out as far as the store can tell.

    Args:
        store: the store.
        wanted: which of the runs; all where not given.

    Raises:
        SettingError: the store cannot list its runs.
        CheckpointStorageError: the medium failed.
    """
    if isinstance(store, SurveysRuns):
        return await store.survey_runs(wanted)
    runs = await listing(store).list_runs()
    return RunSurvey(runs if wanted is None else wanted.of(runs))


async def unreadable_runs(store: CheckpointStore) -> Sequence[Finding]:
    """Return what the list of a store leaves out, as far as the store can tell.

    Args:
        store: the store.
    """
    return await store.unreadable_runs() if isinstance(store, SurveysRuns) else ()
