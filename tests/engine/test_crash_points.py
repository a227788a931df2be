"""For every workflow of the corpus and every save: crash there, resume, and end as an uninterrupted run does."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import corpus
import pytest
from crashing import CrashingStore, SimulatedCrash

from flowckpt import WorkflowEngine
from flowckpt.core.dsl import Workflow
from flowckpt.core.records import StepResult


def _plain(results: Any) -> list[tuple[Any, ...]]:
    """What must be the same whenever it was run: not the times, nor how often it was tried."""

    def one(result: StepResult) -> tuple[Any, ...]:
        error = (result.error.type, result.error.message) if result.error else None
        output = None if result.path == "flaky" else result.output
        return result.path, result.step_type, result.success, output, error, result.function, result.location

    return sorted((one(result) for result in results), key=lambda told: told[0])


def _composites(results: Any) -> int:
    return sum(result.step_type in ("map", "parallel", "workflow") for result in results)


def _uninterrupted(reopen: Callable[[], Any], workflow: Workflow[..., Any]) -> tuple[Any, Any, list[str], int]:
    corpus.effects.clear()
    corpus.tries.clear()
    store = CrashingStore(reopen(), 10**9, is_after=False)
    result = WorkflowEngine(store).run_sync(workflow, workflow_id="whole")
    assert result.status == "completed", result.error
    return result.output, _plain(store.acknowledged[-1].step_results), list(corpus.effects), store.saves


@pytest.mark.parametrize("workflow", corpus.CORPUS, ids=lambda w: w.name)
@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
def test_a_run_that_crashed_at_any_save_ends_as_an_uninterrupted_one(
    reopen: Callable[[], Any], workflow: Workflow[..., Any], is_after: bool
) -> None:
    output, history, effects, saves = _uninterrupted(reopen, workflow)
    assert saves >= 2
    for crash in range(1, saves + 1):
        corpus.effects.clear()
        corpus.tries.clear()
        run = f"crash-{crash}-{is_after}"
        store = CrashingStore(reopen(), crash, is_after=is_after)
        with contextlib.suppress(SimulatedCrash):
            ended = WorkflowEngine(store).run_sync(workflow, workflow_id=run)
            assert workflow in corpus.BESIDE and ended.output == output
            continue
        before = Counter(corpus.effects)
        durable = crash if is_after else crash - 1
        engine = WorkflowEngine(reopen())
        if durable == 0:  # nothing was ever saved: there is no run
            assert engine.run_sync(workflow, workflow_id=run).output == output
            continue
        recorded = [] if not store.acknowledged else store.acknowledged[-1].step_results
        stored = _latest(reopen(), run).step_results  # with the last save, if it was durable and never acknowledged
        corpus.effects.clear()
        resumed = engine.resume_sync(workflow, workflow_id=run)
        again = Counter(corpus.effects)

        assert resumed.status == "completed", resumed.error
        assert resumed.output == output
        assert type(resumed.output) is type(output)
        latest = _latest(reopen(), run)
        assert _plain(latest.step_results) == history
        # Every step was done, and those of an acknowledged checkpoint were not done again.
        done = {result.path for result in recorded}
        assert resumed.steps.restored >= len(done)
        assert set(before | again) == set(effects)
        if workflow is not corpus.retries:
            # Maps, groups and child workflows have no effect of their own.
            restored = resumed.steps.restored - _composites(stored)
            lost = len(history) - _composites(latest.step_results) - restored
            assert sum(again.values()) <= lost
            assert (before + again).total() <= len(effects) + lost


def _latest(store: Any, run: str) -> Any:
    import asyncio

    return asyncio.run(store.load_latest(run))


@pytest.mark.parametrize("workflow", corpus.CORPUS, ids=lambda w: w.name)
def test_a_run_that_crashes_at_every_attempt_still_ends_right(
    reopen: Callable[[], Any], workflow: Workflow[..., Any]
) -> None:
    output, history, _, _ = _uninterrupted(reopen, workflow)
    corpus.tries.clear()
    for attempt in range(1, 60):
        # Three saves an attempt: what it found is continued ("started"), a checkpoint, and the one it dies after.
        store = CrashingStore(reopen(), 3, is_after=True)
        engine = WorkflowEngine(store)
        try:
            if attempt == 1:
                result = engine.run_sync(workflow, workflow_id="run")
            else:
                result = engine.resume_sync(workflow, workflow_id="run")
        except SimulatedCrash:
            continue
        break
    assert result.output == output
    assert _plain(_latest(reopen(), "run").step_results) == history
