"""Stores: the places of checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

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
        FigureStatistics,
        RunStatistics,
        StepStatistics,
        StoreStatistics,
    )
    from flowckpt.stores import memory as memory
    from flowckpt.stores import objects as objects
    from flowckpt.stores import postgres as postgres
    from flowckpt.stores import queries as queries
    from flowckpt.stores import sqlite as sqlite
    from flowckpt.stores.adapted import CheckpointStore, adapt
    from flowckpt.stores.base import Ability, Finding, Lease, RunSurvey, StoreBase
    from flowckpt.stores.content import check_content
    from flowckpt.stores.file import FileCheckpointStore
    from flowckpt.stores.log.sealing.keys import KeyRing
    from flowckpt.stores.memory import MemoryCheckpointStore
    from flowckpt.stores.objects import ObjectCheckpointStore
    from flowckpt.stores.open import open_store
    from flowckpt.stores.postgres import PostgresCheckpointStore
    from flowckpt.stores.queries import Compacted, Loss, Repaired, find_runs, runs_of_status, store_statistics
    from flowckpt.stores.runs_base import refused_as_encoding_error
    from flowckpt.stores.sqlite import SqliteCheckpointStore


_EXPORTS = {
    "flowckpt.core.codec": "dumps",
    "flowckpt.core.codec.checkpoints": "decode_head encode_head",
    "flowckpt.core.codec.results": "as_view decode_result",
    "flowckpt.core.records": "Selection",
    "flowckpt.core.records.listing": "RunFilter",
    "flowckpt.core.records.statistics": "ClaimStatistics DayStatistics FailureStatistics FigureStatistics RunStatistics StepStatistics StoreStatistics",
    "flowckpt.stores.runs_base": "refused_as_encoding_error",
    "flowckpt.stores.adapted": "CheckpointStore adapt",
    "flowckpt.stores.base": "Ability Finding Lease RunSurvey StoreBase",
    "flowckpt.stores.content": "check_content",
    "flowckpt.stores.file": "FileCheckpointStore",
    "flowckpt.stores.log.sealing.keys": "KeyRing",
    "flowckpt.stores.memory": "MemoryCheckpointStore",
    "flowckpt.stores.objects": "ObjectCheckpointStore",
    "flowckpt.stores.open": "open_store",
    "flowckpt.stores.postgres": "PostgresCheckpointStore",
    "flowckpt.stores.queries": "Compacted Loss Repaired find_runs runs_of_status store_statistics",
    "flowckpt.stores.sqlite": "SqliteCheckpointStore",
}

# fmt: off
__all__ = [
    "Ability",
    "CheckpointStore",
    "ClaimStatistics",
    "Compacted",
    "DayStatistics",
    "FailureStatistics",
    "FigureStatistics",
    "FileCheckpointStore",
    "Finding",
    "KeyRing",
    "Lease",
    "Loss",
    "MemoryCheckpointStore",
    "ObjectCheckpointStore",
    "PostgresCheckpointStore",
    "Repaired",
    "RunFilter",
    "RunStatistics",
    "RunSurvey",
    "Selection",
    "SqliteCheckpointStore",
    "StepStatistics",
    "StoreBase",
    "StoreStatistics",
    "adapt",
    "as_view",
    "check_content",
    "decode_head",
    "decode_result",
    "dumps",
    "encode_head",
    "find_runs",
    "open_store",
    "refused_as_encoding_error",
    "runs_of_status",
    "store_statistics",
]
# fmt: on

__getattr__, __dir__ = lazy_exports(
    __name__, _EXPORTS, __all__, globals(), modules="content memory objects postgres queries sqlite"
)
