"""History is never rewritten: what no longer counts can still be read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from workshop import recorded_outputs, shop, world

from flowckpt import RunOptions, WorkflowEngine, in_sync
from flowckpt.cli.render.documents import read_run_history
from flowckpt.cli.stored_run import read_stored_run

Reopen = Callable[[], Any]


def shown(store: Any) -> dict[str, Any]:
    """All that is shown, without what became of it."""
    attempts = read_run_history(store, "run", read_stored_run(store, "run"))
    found: dict[str, Any] = {}
    for attempt in attempts:
        for reference, _ in attempt.checkpoints:
            found[f"{reference.sequence}"] = (reference.checkpoint_id, reference.attempt, reference.steps)
        for result, _ in attempt.results:
            found[f"{result.path} {result.attempt} {result.started_at}"] = repr(result.output)
    return found


def test_whatever_is_done_to_a_run_all_that_it_recorded_stays(reopen: Reopen) -> None:
    def forced(**options: Any) -> None:
        WorkflowEngine(reopen()).resume_sync(shop, workflow_id="run", options=RunOptions(force=True, **options))

    world["fails"] = True
    acts: list[Callable[[], Any]] = [
        lambda: WorkflowEngine(reopen()).run_sync(shop, workflow_id="run"),
        lambda: (world.update(fails=False), forced()),
        lambda: forced(from_step="clean"),
        lambda: in_sync(WorkflowEngine(reopen())).rollback("run", "fetch"),
        forced,
        lambda: in_sync(WorkflowEngine(reopen())).rollback("run", "work"),
        lambda: in_sync(WorkflowEngine(reopen())).rollback("run", "@started"),
        lambda: in_sync(WorkflowEngine(reopen())).fork("run", new_id="new", outputs={}, workflow=shop),
        forced,
        lambda: forced(from_step="fetch", reuse="inputs"),
    ]
    before: dict[str, Any] = {}
    left: dict[int, Any] = {}
    for act in acts:
        act()
        now = shown(reopen())
        assert before.items() <= now.items()
        attempt = asyncio.run(reopen().load_latest("run")).attempt
        recorded = recorded_outputs(reopen(), "run", attempt)
        assert left.items() <= recorded.items()
        before, left = now, recorded
    assert sum(name.isdigit() for name in before) > 30


def test_what_became_of_it_is_said(reopen: Reopen) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    in_sync(WorkflowEngine(reopen())).rollback("run", "pay")
    store = reopen()
    first, second = read_run_history(store, "run", read_stored_run(store, "run"))
    assert [(each.checkpoint_id, str(standing)) for each, standing in first.checkpoints] == [
        ("@started", "counts"),
        ("fetch", "counts"),
        ("rent", "counts"),
        ("work", "counts"),
        ("@in_doubt", "counts"),
        ("pay", "counts"),
        ("work", "left_behind"),
        ("@completed", "left_behind"),
    ]
    assert [(each.path, str(standing)) for each, standing in first.results][-2:] == [
        ("pay", "counts"),
        ("report", "left_behind"),
    ]
    assert second.rolled_back_to == {"checkpoint_id": "pay", "sequence": 6}
    assert [each.checkpoint_id for each, _ in second.checkpoints] == ["@rollback.2"]
    assert second.results == []
    WorkflowEngine(store).resume_sync(shop, workflow_id="run")
    first, *_ = read_run_history(store, "run", read_stored_run(store, "run"))
    assert [str(standing) for each, standing in first.checkpoints if each.checkpoint_id == "work"] == [
        "overwritten",
        "left_behind",
    ]


def test_attempts_are_listed_each_alone(reopen: Reopen) -> None:
    WorkflowEngine(reopen()).run_sync(shop, workflow_id="run")
    in_sync(WorkflowEngine(reopen())).rollback("run", "@started")

    def listed(attempt: int, run: str = "run") -> list[int]:
        return [each.sequence for each in asyncio.run(reopen().list_attempt(run, attempt))]

    assert listed(1) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert listed(2) == [9]
    assert listed(3) == listed(0) == listed(1, "nobody") == []
