"""Ids, messages and times as the columns of both databases can hold them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any


def id_text(name: str) -> str:
    """Return an id as text that any database holds: itself, or JSON where it has a NUL or a lone surrogate.

    Args:
        name: any text; `name_of` returns it again.
    """
    if name[:1] != '"' and "\0" not in name:
        try:
            name.encode()
        except UnicodeEncodeError:
            pass
        else:
            return name
    return json.dumps(name)


def name_of(text: str) -> str:
    """Return the id of a text in a column."""
    if text[:1] != '"':
        return text
    name: str = json.loads(text)
    return name


def shown(text: str) -> str:
    """Return text for people and queries, with a sign for each NUL, which PostgreSQL cannot hold."""
    return text.replace("\0", "\u2400") if "\0" in text else text


def sql_time(moment: datetime) -> str:
    """Return a time in UTC with six digits, so that the order of texts is that of times."""
    if moment.tzinfo is not UTC:
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return f"{moment.isoformat(timespec='microseconds')[:-6]}Z"


def moment_of(column: Any) -> datetime:
    """Return the time in a column: text from SQLite, a time from PostgreSQL."""
    moment = column if isinstance(column, datetime) else datetime.fromisoformat(column)
    return moment.astimezone(UTC)
