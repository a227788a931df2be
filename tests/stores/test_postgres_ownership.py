"""One writer a run in the PostgreSQL store, among real processes."""

from __future__ import annotations

import pytest

from tests.stores.sql_ownership import SqlOwnership


class TestPostgresOwnership(SqlOwnership):
    @pytest.fixture
    def spec(self, postgres, postgres_database):
        return f"{postgres.url(postgres_database)}?allow_unsafe=true"
