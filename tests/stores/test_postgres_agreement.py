"""The random programs of the agreement, with a PostgreSQL store among the stores."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from flowckpt.stores import PostgresCheckpointStore
from tests.postgres import PostgresServer
from tests.stores.test_agreement import Agreement

_server: list[PostgresServer] = []


def setup_module():
    _server.append(PostgresServer())
    _server[0].start()


def teardown_module():
    _server.pop().close()


class PostgresAgreement(Agreement):
    """The same, and one store more."""

    def __init__(self):
        super().__init__()
        self.stores["postgres"] = PostgresCheckpointStore(_server[0].url(), allow_unsafe=True)

    def teardown(self):
        super().teardown()
        _server[0].execute("DELETE FROM flowckpt.runs")


PostgresAgreement.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)
TestPostgresAgreement = PostgresAgreement.TestCase


class TestPostgresAgreementForLong(PostgresAgreement.TestCase):
    """The same with other programs each time."""

    settings = settings(
        max_examples=300,
        stateful_step_count=50,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


TestPostgresAgreementForLong = pytest.mark.soak(pytest.mark.timeout(3_600)(TestPostgresAgreementForLong))
