"""One file per kind of database, and the table that leads from the scheme of a claim's database to it.

A new kind is a module with a class that has the methods of `databases.base.Database`, and a line here.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from flowckpt.evidence.checks.base import UncheckableClaimError
from flowckpt.evidence.databases.base import Database

TABLE: Mapping[str, str] = {"sqlite": "Sqlite"}
"""From a scheme to the class, in the module of the scheme's own name."""


def database_for(scheme: str) -> Database:
    """Return what reads a kind of database.

    Args:
        scheme: `sqlite` …

    Raises:
        UncheckableClaimError: nobody here knows the scheme.
    """
    if scheme not in TABLE:
        raise UncheckableClaimError(
            f"rows of a {scheme!r:.40} database cannot be checked here", remedy=f"Known here: {', '.join(TABLE)}."
        )
    module = importlib.import_module(f"flowckpt.evidence.databases.{scheme}")  # a name of the table
    database: Database = getattr(module, TABLE[scheme])()
    return database
