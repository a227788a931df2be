"""Where checkpoints live."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports
from flowckpt.stores.base import (
    CheckpointStore,
    DeletesCheckpoints,
    FiltersCheckpoints,
    KeepsAttempts,
    Lease,
    ListsAttempts,
    ListsRuns,
    NotesBeginnings,
    OwnsRuns,
    ReadsAttempts,
    ReceivesRuns,
    SharesValues,
    TellsFigures,
    filters_checkpoints,
)

if TYPE_CHECKING:
    from flowckpt.core.codec import dumps
    from flowckpt.core.codec.checkpoints import decode_head, encode_head
    from flowckpt.core.codec.results import as_view, decode_result
    from flowckpt.core.records import Selection
    from flowckpt.core.records.listing import RunFilter
    from flowckpt.core.records.statistics import (
        ClaimStatistics,
        DayStatistics,
        FailureStatistics,
        RunStatistics,
        StepStatistics,
        StoreStatistics,
    )
    from flowckpt.stores.async_store import refused_as_encoding_error
    from flowckpt.stores.base import (
        AnnouncesSignals,
        ChecksIntegrity,
        Compacted,
        CompactsRuns,
        DeliversSignals,
        EvictsCheckpoints,
        Finding,
        PinsCheckpoints,
        PrunesRuns,
        RenewsAttempts,
        SweepsLeftovers,
        TellsOfLostRuns,
    )
    from flowckpt.stores.file import FileCheckpointStore
    from flowckpt.stores.log.sealing.keys import KeyRing
    from flowckpt.stores.memory import MemoryCheckpointStore
    from flowckpt.stores.objects import ObjectCheckpointStore
    from flowckpt.stores.open import open_store
    from flowckpt.stores.postgres import PostgresCheckpointStore
    from flowckpt.stores.queries import (
        FindsRuns,
        RunSurvey,
        SurveysRuns,
        find_runs,
        runs_of_status,
        store_statistics,
        surveyed,
        unreadable_runs,
    )
    from flowckpt.stores.sqlite import SqliteCheckpointStore


_EXPORTS = {
    "flowckpt.core.codec": "dumps",
    "flowckpt.core.codec.checkpoints": "decode_head encode_head",
    "flowckpt.core.codec.results": "as_view decode_result",
    "flowckpt.core.records": "Selection",
    "flowckpt.core.records.listing": "RunFilter",
    "flowckpt.core.records.statistics": "ClaimStatistics DayStatistics FailureStatistics RunStatistics StepStatistics StoreStatistics",
    "flowckpt.stores.async_store": "refused_as_encoding_error",
    "flowckpt.stores.base": "AnnouncesSignals ChecksIntegrity Compacted CompactsRuns DeliversSignals EvictsCheckpoints Finding "
    "PinsCheckpoints PrunesRuns RenewsAttempts SweepsLeftovers TellsOfLostRuns",
    "flowckpt.stores.file": "FileCheckpointStore",
    "flowckpt.stores.log.sealing.keys": "KeyRing",
    "flowckpt.stores.memory": "MemoryCheckpointStore",
    "flowckpt.stores.objects": "ObjectCheckpointStore",
    "flowckpt.stores.open": "open_store",
    "flowckpt.stores.postgres": "PostgresCheckpointStore",
    "flowckpt.stores.queries": "FindsRuns RunSurvey SurveysRuns find_runs runs_of_status store_statistics surveyed unreadable_runs",
    "flowckpt.stores.sqlite": "SqliteCheckpointStore",
}

# fmt: off
__all__ = [
    "AnnouncesSignals",
    "CheckpointStore",
    "ChecksIntegrity",
    "ClaimStatistics",
    "Compacted",
    "CompactsRuns",
    "DayStatistics",
    "DeletesCheckpoints",
    "DeliversSignals",
    "EvictsCheckpoints",
    "FailureStatistics",
    "FileCheckpointStore",
    "FiltersCheckpoints",
    "Finding",
    "FindsRuns",
    "KeepsAttempts",
    "KeyRing",
    "Lease",
    "ListsAttempts",
    "ListsRuns",
    "MemoryCheckpointStore",
    "NotesBeginnings",
    "ObjectCheckpointStore",
    "OwnsRuns",
    "PinsCheckpoints",
    "PostgresCheckpointStore",
    "PrunesRuns",
    "ReadsAttempts",
    "ReceivesRuns",
    "RenewsAttempts",
    "RunFilter",
    "RunStatistics",
    "RunSurvey",
    "Selection",
    "SharesValues",
    "SqliteCheckpointStore",
    "StepStatistics",
    "StoreStatistics",
    "SurveysRuns",
    "SweepsLeftovers",
    "TellsFigures",
    "TellsOfLostRuns",
    "as_view",
    "decode_head",
    "decode_result",
    "dumps",
    "encode_head",
    "filters_checkpoints",
    "find_runs",
    "open_store",
    "refused_as_encoding_error",
    "runs_of_status",
    "store_statistics",
    "surveyed",
    "unreadable_runs",
]
# fmt: on

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, __all__, globals())
