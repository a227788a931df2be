"""Options and fixtures of all tests."""

from __future__ import annotations

import pytest

from tests.stable_ids import ADDRESS

pytest.register_assert_rewrite("flowckpt.testing.contract")


def pytest_addoption(parser):
    parser.addoption("--soak", action="store_true", help="run the long proofs too, and the others at full length")


def pytest_collection_modifyitems(config, items):
    if changing := [item.nodeid for item in items if ADDRESS.search(item.nodeid)]:
        raise pytest.UsageError(f"an id with an address is another one in each worker: {changing[0]}; use stable_ids")
    if not config.getoption("--soak"):
        skip = pytest.mark.skip(reason="a long proof: run with --soak")
        for item in items:
            if "soak" in item.keywords:
                item.add_marker(skip)


@pytest.fixture(scope="session")
def is_soak(request) -> bool:
    """Whether the long proofs are asked for."""
    return request.config.getoption("--soak")
