"""One file per kind of database, and the table that leads from the scheme of a claim's database to it.

A new kind is a module with a class that has the methods of `Database` in `checks/base.py`, and a line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from flowckpt.evidence.checks.base import Database, UncheckableClaimError
from flowckpt.evidence.databases import postgres_url as postgres_url

TABLE: Mapping[str, str] = {
    "sqlite": "sqlite.Sqlite",
    "postgresql": "postgres.Postgres",
    "postgres": "postgres.Postgres",
}
"""From a scheme to a module of this package, and its class."""

EXTRAS: Mapping[str, str] = {"postgres": "psycopg"}
"""From a module that needs a driver to the driver; the extra that brings it is called as the module."""


def database_for(scheme: str) -> Database:
    """Return what reads a kind of database.

    Raises:
        UncheckableClaimError: the scheme is unknown here, or its driver is not installed.
    """
    if scheme not in TABLE:
        raise UncheckableClaimError(
            f"rows of a {scheme!r:.40} database cannot be checked here", remedy=f"Known here: {', '.join(TABLE)}."
        )
    name, _, kind = TABLE[scheme].partition(".")
    try:
        module = importlib.import_module(f"flowckpt.evidence.databases.{name}")  # a name of the table
    except ImportError as error:
        if name not in EXTRAS:
            raise
        raise UncheckableClaimError(
            f"rows of a {scheme} database need the package {EXTRAS[name]!r}, which is not installed",
            remedy=f"pip install 'flowckpt[{name}]'",
        ) from error
    database: Database = getattr(module, kind)()
    return database
