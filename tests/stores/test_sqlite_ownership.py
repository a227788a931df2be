"""One writer a run in the SQLite store, among real processes."""

from __future__ import annotations

import pytest

from tests.stores.sql_ownership import SqlOwnership


class TestSqliteOwnership(SqlOwnership):
    @pytest.fixture
    def spec(self, tmp_path):
        return f"sqlite:{tmp_path / 'runs.db'}"
