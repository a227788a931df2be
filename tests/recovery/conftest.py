"""Fixtures of the recovery tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def spec(store_kind, request, tmp_path):
    """The spec of an empty store of the kind `store_kind`."""
    if store_kind == "postgresql":
        return (
            f"{request.getfixturevalue('postgres').url(request.getfixturevalue('postgres_database'))}?allow_unsafe=true"
        )
    if store_kind == "objects":
        return f"objects+file://{tmp_path / 'store'}?allow_unsafe=true"
    return f"{store_kind}:{tmp_path / 'store'}"


@pytest.fixture(params=["file", "sqlite", "postgresql", "objects"])
def store_kind(request):
    return request.param
