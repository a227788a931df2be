"""Fixtures of the codec tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for closed_set


@pytest.fixture(autouse=True)
def no_program(monkeypatch):
    """Hide the modules of workflows that other tests have loaded from the codec."""
    monkeypatch.setattr("flowckpt.core.codec.tags._PROGRAM", [])
