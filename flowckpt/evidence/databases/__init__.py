"""Readers of databases, one module per kind, and the table from schemes to readers.

To add a kind, write a module with a class that has the methods of `Database` in `checks/base.py`, and add a line here.
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
"""The module and the class for each scheme."""

EXTRAS: Mapping[str, str] = {"postgres": "psycopg"}
"""The driver package of each module that needs one; the extra that installs it has the module's name."""


def database_for(scheme: str) -> Database:
    """Return the reader for a scheme.

    Raises:
        UncheckableClaimError: the scheme is unknown here, or its driver is not installed.
    """
    if scheme not in TABLE:
        raise UncheckableClaimError(
            f"rows of a {scheme!r:.40} database cannot be checked here", remedy=f"Known here: {', '.join(TABLE)}."
        )
    name, _, kind = TABLE[scheme].partition(".")
    try:
        module = importlib.import_module(f"flowckpt.evidence.databases.{name}")  # a name from the table
    except ImportError as error:
        if name not in EXTRAS:
            raise
        raise UncheckableClaimError(
            f"rows of a {scheme} database need the package {EXTRAS[name]!r}, which is not installed",
            remedy=f"pip install 'flowckpt[{name}]'",
        ) from error
    database: Database = getattr(module, kind)()
    return database
