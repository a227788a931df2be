"""The parts that the classes of both SQL stores share."""

from __future__ import annotations

from flowckpt.stores.async_store import RetainingStore, in_runs
from flowckpt.stores.base import StoreBase
from flowckpt.stores.sql.runs import SqlRuns


class SqlCheckpointStore(RetainingStore[SqlRuns]):
    """Checkpoints in the tables of a database: in place where nothing else runs, else on a worker thread.

    Args:
        runs: the runs, with synchronous methods.
    """

    def __init__(self, runs: SqlRuns) -> None:
        self.runs = runs

    renew = in_runs(StoreBase.renew)
    find_runs = in_runs(StoreBase.find_runs)
    figures = in_runs(StoreBase.figures)
