"""Which runs are resumed by themselves, and which wait for a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowckpt import MemoryCheckpointStore
from flowckpt.core.records import Owner, Reason, RunInfo, Status
from flowckpt.core.records.listing import MANAGED
from flowckpt.core.records.wait import Signal, Wait, WaitKind
from flowckpt.errors import StoreAbilityError
from flowckpt.maintenance.recovery import Why, find_due_run, find_due_runs, why_due
from flowckpt.stores import adapt
from flowckpt.testing.clock import FakeClock
from flowckpt.testing.store_under_test import checkpoint
from tests.stores.test_adapt import Five

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def info(status: Status, **fields: Any) -> RunInfo:
    return RunInfo("run", fields.pop("workflow_name", "etl"), status, 1, NOON, NOON, 1, {}, **fields)


def asked(run: RunInfo, *, waits: int = 0, due_at: datetime | None = None, is_signalled: bool = False) -> Why | None:
    return why_due(run, NOON, waits=waits, due_at=due_at, is_signalled=is_signalled)


@pytest.mark.parametrize("status", [Status.RUNNING, Status.COMPLETED, Status.FAILED, Status.CANCELLED])
def test_a_run_that_is_live_or_has_ended_is_not_due(status):
    assert asked(info(status), due_at=NOON, waits=1, is_signalled=True) is None


def test_a_crashed_run_is_due():
    assert asked(info(Status.CRASHED)) is Why.CRASHED


def test_a_task_of_a_checkpoint_manager_is_left_to_its_own_loop():
    assert asked(info(Status.CRASHED, workflow_name=MANAGED)) is None


def test_a_suspended_run_is_due_when_its_time_has_come_and_not_before():
    assert asked(info(Status.SUSPENDED), waits=1, due_at=NOON + timedelta(milliseconds=1)) is None
    assert asked(info(Status.SUSPENDED), waits=1, due_at=NOON) is Why.DUE


def test_a_suspended_run_is_due_when_what_it_waits_for_was_sent():
    assert asked(info(Status.SUSPENDED), waits=1) is None
    assert asked(info(Status.SUSPENDED), waits=1, is_signalled=True) is Why.SIGNALLED


def test_a_run_that_was_stopped_to_be_gone_on_with_is_due():
    assert asked(info(Status.SUSPENDED)) is Why.STOPPED


def test_a_suspended_run_whose_process_stays_is_not_due():
    owner = Owner("here", "", 1, 1, NOON)
    assert asked(info(Status.SUSPENDED, owner=owner), waits=1, due_at=NOON) is None


async def _suspended(store: MemoryCheckpointStore, run: str, *waits: Wait, name: str = "etl") -> None:
    metadata = {"waits": {wait.path: wait.to_document() for wait in waits}}
    await store.save(run, checkpoint(reason=Reason.SUSPENDED, metadata=metadata, workflow_name=name))
    await store.release(run)


async def test_the_store_is_asked_for_what_is_due_and_its_signals_count():
    store, clock = MemoryCheckpointStore(), FakeClock(NOON)
    await _suspended(store, "later", Wait("nap", WaitKind.SLEEP, "", NOON, NOON + timedelta(hours=1)))
    await _suspended(store, "asks", Wait("ask", WaitKind.SIGNAL, "go", NOON))
    await _suspended(store, "other", Wait("ask", WaitKind.SIGNAL, "go", NOON), name="other")
    await store.save("crashed", checkpoint())
    await store.release("crashed")
    assert [run.workflow_id for run in await find_due_runs(store, clock)] == ["crashed"]
    for run in ("asks", "other"):
        await store.send_signal(run, Signal("s1", "stop", NOON))
    assert [run.workflow_id for run in await find_due_runs(store, clock)] == ["crashed"]
    for run in ("asks", "other"):
        await store.send_signal(run, Signal("s2", "go", NOON))
    found = {run.workflow_id: run.why for run in await find_due_runs(store, clock)}
    assert found == {"crashed": Why.CRASHED, "asks": Why.SIGNALLED, "other": Why.SIGNALLED}
    assert [run.workflow_id for run in await find_due_runs(store, clock, workflows=["other"])] == ["other"]
    clock.advance(3600)
    assert "later" in {run.workflow_id for run in await find_due_runs(store, clock)}


async def test_a_run_that_somebody_has_gone_on_with_is_not_due_any_more():
    store, clock = MemoryCheckpointStore(), FakeClock(NOON)
    await store.save("run", checkpoint())
    await store.release("run")
    (due,) = await find_due_runs(store, clock)
    assert await find_due_run(store, clock, due) == due
    await store.acquire("run")
    assert await find_due_run(store, clock, due) is None
    await store.save("run", checkpoint(2, attempt=2))
    await store.release("run")
    assert await find_due_run(store, clock, due) is None  # crashed again, and another's to count


async def test_a_store_that_cannot_list_its_runs_is_refused():
    with pytest.raises(StoreAbilityError, match="cannot list"):
        await find_due_runs(adapt(Five()), FakeClock(NOON))
