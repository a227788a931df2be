"""The random programs of the agreement, with a store in S3 among the stores."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, settings

from flowckpt.stores import open_store
from tests.s3 import CREDENTIALS, S3Server, moto
from tests.stores.test_agreement import Agreement

_server: list[S3Server] = []
_opened = contextlib.ExitStack()


def setup_module():
    patch = _opened.enter_context(pytest.MonkeyPatch.context())
    for name, value in CREDENTIALS.items():
        patch.setenv(name, value)
    _server.append(S3Server(_opened.enter_context(moto())))


def teardown_module():
    _server.clear()
    _opened.close()


class ObjectsAgreement(Agreement):
    """The same, and one store more."""

    def __init__(self):
        super().__init__()
        self.stores["s3"] = open_store(_server[0].spec(_server[0].make_bucket()))


ObjectsAgreement.TestCase.settings = settings(
    max_examples=4,
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)
TestObjectsAgreement = ObjectsAgreement.TestCase


class TestObjectsAgreementForLong(ObjectsAgreement.TestCase):
    """The same with other programs each time."""

    settings = settings(
        max_examples=100,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )


TestObjectsAgreementForLong = pytest.mark.soak(pytest.mark.timeout(3_600)(TestObjectsAgreementForLong))
