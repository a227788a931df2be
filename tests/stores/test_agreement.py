"""Random programs, run against every store at once: all answer alike."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from flowckpt.stores import FileCheckpointStore, MemoryCheckpointStore, PostgresCheckpointStore, open_store
from tests.stores.agreement import Agreement, Place

_around = {}
"""What a machine cannot ask a fixture for."""


@pytest.fixture(autouse=True)
def server(postgres, postgres_database):
    _around["dsn"] = postgres.dsn(postgres_database)
    _around["postgres"] = f"{postgres.url(postgres_database)}?allow_unsafe=true"
    PostgresCheckpointStore(_around["postgres"]).runs.list_runs()  # the tables, once
    yield
    _around.clear()


class AllStores(Agreement):
    """The stores of this machine."""

    def opened(self):
        with tempfile.TemporaryDirectory() as directory:
            yield [*self.local(Path(directory)), self.postgres()]

    def local(self, directory):
        yield Place("memory", MemoryCheckpointStore())
        yield Place("file", *(FileCheckpointStore(directory / "store") for _ in range(2)))
        for name, spec in {
            "sqlite": f"sqlite:{directory / 'store.db'}",
            "objects": f"objects+file://{directory / 'objects'}?allow_unsafe=true",
        }.items():
            yield Place(name, open_store(spec), open_store(spec))

    def postgres(self):
        with psycopg.connect(_around["dsn"], autocommit=True) as connection:
            connection.execute("TRUNCATE flowckpt.runs, flowckpt.blob_contents CASCADE")
        return Place("postgresql", open_store(_around["postgres"]), open_store(_around["postgres"]))


class WithS3(AllStores):
    """The same, and a bucket."""

    def opened(self):
        with contextlib.contextmanager(super().opened)() as places:
            server = _around["s3"]
            spec = server.spec(server.make_bucket())
            yield [*places, Place("s3", open_store(spec), open_store(spec))]


def programs_of(machine, examples, steps, is_long=False):
    """Return the tests of a machine: the same programs each time, or, for long, others."""
    case = type(machine.__name__, (machine.TestCase,), {})
    case.settings = settings(
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=not is_long,
    )
    return pytest.mark.soak(pytest.mark.timeout(3_600)(case)) if is_long else case


@pytest.fixture
def bucket_server(s3):
    _around["s3"] = s3


TestAgreement = programs_of(AllStores, examples=12, steps=25)
TestAgreementForLong = programs_of(AllStores, examples=1_000, steps=50, is_long=True)
TestAgreementWithS3 = pytest.mark.usefixtures("bucket_server")(programs_of(WithS3, examples=3, steps=10))
TestAgreementWithS3ForLong = pytest.mark.usefixtures("bucket_server")(programs_of(WithS3, 100, 30, is_long=True))
