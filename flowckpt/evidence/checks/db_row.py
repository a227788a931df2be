"""`db_row`: matching rows exist, and all of them have the claimed values."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

import attrs

from flowckpt.core.system.secret import HIDDEN
from flowckpt.evidence.checks.base import (
    VERIFIED,
    Check,
    CheckContext,
    MalformedClaimError,
    NoSuchThingError,
    Outcome,
    Query,
    UncheckableClaimError,
    failed_outcome,
    parse_mapping,
    parse_text,
)
from flowckpt.evidence.claims import Evidence, is_sensitive
from flowckpt.evidence.databases import database_for, postgres_url
from flowckpt.evidence.documents import is_digest
from flowckpt.evidence.sandbox import Sandbox

MOST_SHOWN = 3
DEFAULT_DATABASE = "main"

_SCHEME = re.compile(r"([a-z][a-z0-9+]*)://(.*)", re.DOTALL)


class DbRow(Check):
    """Reads all matching rows."""

    is_slow = True

    def verify(self, claim: Evidence, context: CheckContext) -> Outcome:
        """Compare every matching row, and require at least one."""
        facts = claim.expected
        table, where, values = parse_text(facts, "table"), parse_mapping(facts, "where"), parse_mapping(facts, "values")
        scheme, database, context = _find_database(claim, context)
        kind = database_for(scheme)
        columns = list(values)
        deadline = context.deadline_after(context.settings.limits.query_seconds)
        count, wrong, details = 0, 0, list[str]()
        try:
            with kind.rows(database, Query(table, columns, where), context) as rows:
                for row in rows:
                    count += 1
                    deadline.left()
                    different = [
                        _describe_difference(name, values[name], found, claim)
                        for name, found in zip(columns, row, strict=False)
                        if not kind.is_same(values[name], found)
                    ]
                    if different:
                        wrong += 1
                        if len(details) < MOST_SHOWN:
                            details.append(f"{table} row {count}: {'; '.join(different)}")
        except NoSuchThingError as missing:
            return failed_outcome(str(missing), str(missing))
        if not count:
            return failed_outcome(f"no row of {table!r:.80} matches {_format_where(where, claim)}")
        if wrong:
            if wrong > len(details):
                details.append(f"… and {wrong - len(details)} more rows")
            return failed_outcome(f"{wrong} of {count} matching rows of {table!r:.80} differ: {details[0]}", *details)
        return VERIFIED


def _find_database(claim: Evidence, context: CheckContext) -> tuple[str, str, CheckContext]:
    """Return the scheme and the location of a claim's database, and the context to read it with."""
    path = claim.metadata.get("db_path")
    if isinstance(path, PurePath):
        path = str(path)
    if path is not None:
        if type(path) is not str or not path:
            raise MalformedClaimError(f"metadata['db_path'] is {path!r:.80}, not a path")
        return "sqlite", path, context
    named = context.settings.databases
    address = claim.metadata.get("database", DEFAULT_DATABASE if DEFAULT_DATABASE in named else None)
    if isinstance(address, str) and address.isidentifier():
        return _find_named_database(address, context)
    match = _SCHEME.fullmatch(address) if isinstance(address, str) else None
    if match is None or not isinstance(address, str):
        raise MalformedClaimError(
            "the claim does not name a database", remedy="Give it a metadata['db_path'], or a metadata['database'] URL."
        )
    return match[1], match[2].removeprefix("/") if match[1] == "sqlite" else address, context


def _find_named_database(name: str, context: CheckContext) -> tuple[str, str, CheckContext]:
    """Return a database that the program named; its location may be outside the base path."""
    spec = context.settings.databases.get(name)
    if spec is None:
        raise UncheckableClaimError(
            f"there is no database {name!r} here",
            remedy=f'Set databases = {{{name} = "sqlite:FILE"}} in [tool.flowckpt], or call register_database().',
        )
    scheme, _, rest = spec.partition(":")
    if scheme == "sqlite":
        sandbox = Sandbox(context.settings.base_path, allow_absolute=True)
        return scheme, rest, attrs.evolve(context, sandbox=sandbox)
    postgres_url.register(spec)  # needed in a worker process, where nothing was registered
    return scheme, spec, context


def _describe_difference(name: str, wanted: Any, found: Any, claim: Evidence) -> str:
    if is_digest(wanted) or name in claim.hidden_names or is_sensitive(name):
        return f"{name} differs {HIDDEN}"
    return f"{name} is {found!r:.60}, not {wanted!r:.60}"


def _format_where(where: dict[str, Any], claim: Evidence) -> str:
    if not where:
        return "(the table is empty)"
    return ", ".join(
        f"{name}={HIDDEN if name in claim.hidden_names or is_sensitive(name) else f'{value!r:.60}'}"
        for name, value in where.items()
    )
