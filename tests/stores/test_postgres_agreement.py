"""The random programs of the agreement, with a PostgreSQL store among the stores."""

from __future__ import annotations

import itertools

import pytest

from flowckpt.stores import PostgresCheckpointStore
from tests.stores.test_agreement import Agreement, long, short

_urls: list[str] = []
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def place(postgres, postgres_database):
    """Where the machine finds its database: it is no test, and has no fixtures."""
    _urls.append(f"{postgres.url(postgres_database)}?allow_unsafe=true")
    yield
    _urls.clear()


class PostgresAgreement(Agreement):
    """The same, and one store more: a schema of its own for each program."""

    def __init__(self):
        super().__init__()
        self.stores["postgres"] = PostgresCheckpointStore(_urls[0], schema=f"program_{next(_numbers)}")


TestPostgresAgreement = short(PostgresAgreement, examples=12, steps=20)
TestPostgresAgreementForLong = long(PostgresAgreement, examples=300)
