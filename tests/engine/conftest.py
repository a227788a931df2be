"""Stores of each kind, as a function that reopens the same one as by a new process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reopening import reopened_files, reopened_memory

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["memory", "file"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Any]]:
    open_again = reopened_memory() if request.param == "memory" else reopened_files(tmp_path / "store")
    yield open_again
    open_again()
