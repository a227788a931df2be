"""The contract of a kind of database: give back all matching rows, and be unable to do anything else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import attrs

from flowckpt.evidence.checks.base import CheckContext


@attrs.frozen
class Query:
    """Which rows are meant.

    Attributes:
        table: the table, as the claim calls it.
        columns: what to return of each row; may be empty.
        where: columns and their values, compared so that NULL equals NULL.
    """

    table: str
    columns: Sequence[str]
    where: Mapping[str, Any]


class NoSuchThingError(Exception):
    """The database, the table or a column is not there: the claim does not hold. Its text says what is missing."""


class Database(Protocol):
    """A kind of database."""

    def rows(
        self, database: str, query: Query, context: CheckContext
    ) -> AbstractContextManager[Iterator[tuple[Any, ...]]]:
        """Return all matching rows, one by one.

        Identifiers are looked up in the catalogue and quoted, values bound, the connection is read-only, a missing
        database is not created, the time is limited, and at the end everything is closed.

        Raises:
            NoSuchThingError: something named is not there.
        """
        ...

    def is_same(self, wanted: Any, found: Any) -> bool:
        """Tell whether a row's value is the one that was promised.

        Args:
            wanted: the value of the claim, or the digest of a secret one.
            found: that of the row.
        """
        ...
