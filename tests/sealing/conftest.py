"""Tests that may block where a loop would run."""

from __future__ import annotations

import pytest

from flowckpt.core.system.blocking import blocking_allowed


@pytest.fixture(autouse=True)
def quick():
    with blocking_allowed(True):
        yield
