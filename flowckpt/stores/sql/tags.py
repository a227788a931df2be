"""The tags of runs as rows, by which runs are found. What a tag really says, the metadata of the run say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from flowckpt.codec import decode
from flowckpt.errors import DecodingError
from flowckpt.stores.sql.database import Row, Session
from flowckpt.stores.sql.texts import id_text

ADD_TAG = (
    "INSERT INTO run_tags (run, name, value, started_at) SELECT run, ?, ?, started_at FROM runs "
    "WHERE run = ? AND started_at IS NOT NULL ON CONFLICT (run, name) DO UPDATE SET value = excluded.value"
)
_LONGEST = 200
_AT_ONCE = 1000


def tag_text(text: str) -> str:
    """Return the name or the value of a tag as an index of any database holds it: a long one by its digest.

    Args:
        text: any text.
    """
    if len(text) <= _LONGEST:
        return id_text(text)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def tag_rows(metadata: Mapping[str, Any], run: int) -> list[Row]:
    """Return the parameters of `ADD_TAG` for each tag of a run.

    Args:
        metadata: of the run; what they say of tags may be of any form.
        run: the run's key.
    """
    tags = metadata.get("tags")
    if not isinstance(tags, Mapping):
        return []
    return [(tag_text(name), tag_text(str(value)), run) for name, value in tags.items() if isinstance(name, str)]


def add_missing_tags(session: Session) -> None:
    """Add the rows of all runs, of a time before there were such rows.

    Args:
        session: the transaction.
    """
    last = 0
    while found := session.execute(
        "SELECT run, CAST(metadata AS TEXT) FROM runs WHERE run > ? AND metadata IS NOT NULL ORDER BY run LIMIT ?",
        (last, _AT_ONCE),
    ):
        for run, text in found:
            for row in _rows_of(text, run):
                session.change(ADD_TAG, row)
        last = found[-1][0]


def _rows_of(text: str, run: int) -> list[Row]:
    try:
        metadata = decode(json.loads(text))
    except (DecodingError, ValueError, TypeError):  # a damaged run is no reason to refuse the others
        return []
    return tag_rows(metadata, run) if isinstance(metadata, Mapping) else []
