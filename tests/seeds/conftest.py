"""The command in a directory of its own, isolated from other tests."""

from __future__ import annotations

import pytest

from flowckpt.evidence import claims
from tests.cli.conftest import Command


@pytest.fixture
def flowckpt(tmp_path):
    return Command(tmp_path)


@pytest.fixture(autouse=True)
def _own_databases(monkeypatch):
    monkeypatch.setattr(claims, "_DATABASES", {})
