"""A run that is taken from its session through the same store object: the session ends, and the thief keeps the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from flowckpt import WorkflowEngine, step, workflow
from flowckpt.errors import FencedError


def test_a_fenced_session_leaves_the_run_to_the_thief(reopen: Callable[[], Any]) -> None:
    store = reopen()
    leases: list[Any] = []

    async def steals() -> None:
        leases.append(await store.acquire("run", take_over=True))

    @workflow
    def flow() -> Generator[Any, Any, None]:
        yield step("steals").python(steals).checkpoint()

    with pytest.raises(FencedError):
        WorkflowEngine(store).run_sync(flow, workflow_id="run").unwrap()
    assert asyncio.run(store.owner("run")) is not None
    asyncio.run(store.release("run", token=leases[0].token))
    assert asyncio.run(store.owner("run")) is None
