"""The conformance tests of the figures of a store; part of `flowckpt.testing.contract.CheckpointStoreContract`."""

# ruff: noqa: D102 - the name of a test is the sentence that it proves

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest

from flowckpt.checkpoint import Reason, Status, StepError, StepResult
from flowckpt.checkpoint.figures import ClaimFigures, DayFigures, FailureFigures, StepFigures
from flowckpt.errors import CheckpointNotFoundError, SettingError
from flowckpt.stores.base import CheckpointStore, DeletesCheckpoints, OwnsRuns, TellsFigures
from flowckpt.stores.figures import added_up, store_figures
from flowckpt.testing.store_under_test import NOON, StoreUnderTest, checkpoint, claimed


class FiguresContract(StoreUnderTest):
    """What a store promises that has the ability `TellsFigures`."""

    async def test_the_figures_are_those_of_all_that_happened_and_of_one_run_where_it_is_named(
        self, store: CheckpointStore
    ) -> None:
        telling, owning = self.able(store, TellsFigures), self.able(store, OwnsRuns)
        empty = await telling.figures()
        assert (empty.runs, empty.checkpoints, empty.size, empty.days, empty.slowest_steps) == (0, 0, 0, (), ())
        assert empty.mean_run_size is empty.all_claims.success_rate is None
        for run in ("one", "two"):
            await self._figured(store, run)
        await owning.acquire("alive")
        await store.save("alive", checkpoint(1, workflow_name="other", saved_at=NOON + timedelta(days=2)))
        figures = await store_figures(self.reopen(store), limit=2)
        assert dict(figures.statuses) == {Status.COMPLETED: 2, Status.RUNNING: 1}
        assert (figures.runs, figures.checkpoints, figures.steps) == (3, 11, 10)
        day = NOON.date()
        assert [attrs.evolve(each, runs=0, size=0) for each in figures.days if each.checkpoints] == [
            DayFigures(day, 0, 8, 0),
            DayFigures(day + timedelta(days=1), 0, 2, 0),
            DayFigures(day + timedelta(days=2), 0, 1, 0),
        ]
        assert sum(each.runs for each in figures.days) == 3
        assert sum(each.size for each in figures.days) == figures.size > 0
        assert [(run.workflow_id, run.checkpoints) for run in figures.largest_runs] == [("one", 5), ("two", 5)]
        assert [each.workflow_id for each in figures.largest_checkpoints] == ["one", "two"]
        assert figures.claims == (ClaimFigures("file_sha256", 4, 2, 4),)
        assert figures.all_claims.success_rate == 0.4
        assert figures.failures == (FailureFigures("ValueError", 2, 2),)
        assert figures.slowest_steps == (
            StepFigures("etl", "slow", 2, 90.0, 90.0),
            StepFigures("etl", "a", 6, 20.0, 60.0),
        )
        one = await telling.figures("one", limit=5)
        assert (one.runs, one.checkpoints, one.steps) == (1, 5, 5)
        assert one.claims == (ClaimFigures("file_sha256", 2, 1, 2),)
        assert [step.path for step in one.slowest_steps] == ["slow", "a", "b"]
        for each in (None, "one"):  # the store's own way and the one by its lists
            assert await telling.figures(each, limit=3) == await added_up(store, each, limit=3)
        with pytest.raises(CheckpointNotFoundError):
            await telling.figures("no-such-run")
        for limit in (0, True, "3"):
            with pytest.raises(SettingError):
                await store_figures(store, limit=limit)  # type: ignore[arg-type]

    async def _figured(self, store: CheckpointStore, run: str) -> None:
        """Save a run whose first attempt failed, and whose second one went back and came to its end."""
        owning = self.able(store, OwnsRuns)
        error = StepError("ValueError", "no")
        first = [
            StepResult("from a fork", attempt=0, duration_ms=5000.0, evidence=claimed("failed").evidence),
            claimed("verified", "a", "verified", "verified", "failed", duration_ms=10.0),
            StepResult("b", success=False, error=error, duration_ms=1.0),
        ]
        await store.save(run, checkpoint(1, first[:2]))
        await store.save(run, checkpoint(2, first, reason=Reason.FAILED, error=error))
        if isinstance(store, DeletesCheckpoints):
            await store.save(run, checkpoint(3, first, checkpoint_id="gone"))
            await store.delete_checkpoint(run, "gone")
        await owning.release(run)
        await owning.acquire(run)
        second = [
            *first[:2],
            claimed("cannot_tell", "a", "timed_out", attempt=2, duration_ms=20.0),
            claimed(None, "a", attempt=2, duration_ms=60.0),
            StepResult("slow", attempt=2, duration_ms=90.0),
            StepResult("all", "map", attempt=2, duration_ms=900.0, success=False, error=error),
        ]
        later = NOON + timedelta(days=1)
        await store.save(run, checkpoint(4, second[:3], attempt=2))
        await store.save(run, checkpoint(5, second, attempt=2, snapshot="x" * 5000))
        await store.save(run, checkpoint(6, second, attempt=2, reason=Reason.COMPLETED, saved_at=later))
        await owning.release(run)
