"""Tests whose stores may block the event loop."""

from __future__ import annotations

import pytest

from flowckpt.core.system.blocking import blocking_allowed


@pytest.fixture(autouse=True)
def quick():
    with blocking_allowed(True):
        yield
