"""Secrets in what a step saves of itself, tells and logs, and in what a determinism check reports."""

from __future__ import annotations

import itertools

import pytest

from flowckpt import MemoryCheckpointStore, Secret, WorkflowEngine, check_determinism, current_step, step, workflow
from flowckpt.core.codec.checkpoints import export_document

TOKEN = "hunter2-hunter2"


@pytest.fixture
def engine():
    return WorkflowEngine(MemoryCheckpointStore())


def keep(token: Secret[str]) -> str:
    current_step().save({"page": 3, "token": token.reveal()})
    return "kept"


@workflow
def keeping(token: Secret[str]):
    return (yield step("keep").python(keep, token).checkpoint())


async def test_a_state_that_holds_a_secret_is_refused_where_it_is_saved_and_nothing_of_it_is_stored(engine):
    result = await engine.run(keeping, workflow_id="r", token=Secret(TOKEN))
    assert result.error is not None
    assert "token" in str(result.error)
    for each in await engine.store.list_checkpoints("r"):
        assert TOKEN not in export_document(await engine.store.load("r", each.checkpoint_id))
    assert TOKEN not in str(result.error)


numbers = itertools.count()


@workflow
def drifting(token: Secret[str]):
    yield step(f"send {next(numbers)}").python(len, token.reveal() if next(numbers) < 0 else "x")
    yield step("end").python(int, str(len(token.reveal()) + next(numbers)))


def test_a_determinism_check_of_a_run_with_a_secret_reports_and_shows_nothing_of_it():
    report = check_determinism(drifting, token=Secret(TOKEN))
    assert report.differences
    assert TOKEN not in str(report) + repr(report) + str(report.differences)
