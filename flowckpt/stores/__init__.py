"""Stores: the places of checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flowckpt.core.system.lazy import lazy_exports

if TYPE_CHECKING:
    from flowckpt.core.codec import dumps as dumps
    from flowckpt.core.codec.checkpoints import decode_head as decode_head
    from flowckpt.core.codec.checkpoints import encode_head as encode_head
    from flowckpt.core.codec.results import as_view as as_view
    from flowckpt.core.codec.results import decode_result as decode_result
    from flowckpt.core.records import Selection as Selection
    from flowckpt.core.records.listing import RunFilter as RunFilter
    from flowckpt.core.records.statistics import ClaimStatistics as ClaimStatistics
    from flowckpt.core.records.statistics import DayStatistics as DayStatistics
    from flowckpt.core.records.statistics import FailureStatistics as FailureStatistics
    from flowckpt.core.records.statistics import FigureStatistics as FigureStatistics
    from flowckpt.core.records.statistics import RunStatistics as RunStatistics
    from flowckpt.core.records.statistics import StepStatistics as StepStatistics
    from flowckpt.core.records.statistics import StoreStatistics as StoreStatistics
    from flowckpt.stores import memory as memory
    from flowckpt.stores import objects as objects
    from flowckpt.stores import postgres as postgres
    from flowckpt.stores import queries as queries
    from flowckpt.stores import sqlite as sqlite
    from flowckpt.stores.adapted import CheckpointStore as CheckpointStore
    from flowckpt.stores.adapted import adapt as adapt
    from flowckpt.stores.base import Ability as Ability
    from flowckpt.stores.base import Finding as Finding
    from flowckpt.stores.base import Lease as Lease
    from flowckpt.stores.base import RunSurvey as RunSurvey
    from flowckpt.stores.base import StoreBase as StoreBase
    from flowckpt.stores.content import check_content as check_content
    from flowckpt.stores.file import FileCheckpointStore as FileCheckpointStore
    from flowckpt.stores.log.sealing.keys import KeyRing as KeyRing
    from flowckpt.stores.memory import MemoryCheckpointStore as MemoryCheckpointStore
    from flowckpt.stores.objects import ObjectCheckpointStore as ObjectCheckpointStore
    from flowckpt.stores.open import open_store as open_store
    from flowckpt.stores.postgres import PostgresCheckpointStore as PostgresCheckpointStore
    from flowckpt.stores.queries import Compacted as Compacted
    from flowckpt.stores.queries import Loss as Loss
    from flowckpt.stores.queries import Repaired as Repaired
    from flowckpt.stores.queries import find_runs as find_runs
    from flowckpt.stores.queries import runs_of_status as runs_of_status
    from flowckpt.stores.queries import store_statistics as store_statistics
    from flowckpt.stores.runs_base import refused_as_encoding_error as refused_as_encoding_error
    from flowckpt.stores.sqlite import SqliteCheckpointStore as SqliteCheckpointStore


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

__getattr__, __dir__ = lazy_exports(
    __name__, _EXPORTS, globals(), modules="content memory objects postgres queries sqlite"
)
