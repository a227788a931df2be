"""The pytest plugin, loaded by its entry point: the fixture `flowckpt`, and async tests of contracts without another plugin."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from flowckpt import testing

if TYPE_CHECKING:
    from flowckpt.testing import WorkflowTester

pytest.register_assert_rewrite(
    "flowckpt.testing.contract",
    "flowckpt.testing.abilities",
    "flowckpt.testing.retention",
    "flowckpt.testing.store_under_test",
    "flowckpt.testing.evidence_contract",
)


@pytest.fixture
def flowckpt() -> WorkflowTester:
    """Return an engine in memory with a fake clock and scripted answers; see `flowckpt.testing.WorkflowTester`."""
    return testing.WorkflowTester()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test of a contract, or one that uses the fixture, if no other plugin does."""
    is_ours = getattr(pyfuncitem.cls, "is_flowckpt_contract", False) or "flowckpt" in pyfuncitem.fixturenames
    if not is_ours or not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    values: dict[str, Any] = pyfuncitem.funcargs
    names = pyfuncitem._fixtureinfo.argnames  # as pytest's own call does
    asyncio.run(pyfuncitem.obj(**{name: values[name] for name in names}))
    return True
