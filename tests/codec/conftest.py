"""What the tests of the codec share."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for closed_set


@pytest.fixture(autouse=True)
def no_program(monkeypatch):
    """The modules of workflows that other tests have loaded are not part of what a codec knows."""
    monkeypatch.setattr("flowckpt.core.codec.tags._PROGRAM", [])
