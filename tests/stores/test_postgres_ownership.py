"""One writer a run in the PostgreSQL store, among real processes."""

from __future__ import annotations

import pytest

from tests.postgres import postgres, postgres_database  # noqa: F401 - fixtures
from tests.stores.sql_ownership import SqlOwnership


class TestPostgresOwnership(SqlOwnership):
    @pytest.fixture
    def spec(self, postgres, postgres_database):  # noqa: F811
        return f"{postgres.url(postgres_database)}?allow_unsafe=true"
