"""Documents are read, split and indexed for search; after a crash, only the missing ones are read.

flowckpt run examples/document_ingest.py -i folder=docs              # every .md and .py file below a folder

An index that was edited or deleted since is built again by the next resume: each document's rows are its evidence.
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from flowckpt import step, workflow
from flowckpt.evidence import db_row

ENDINGS = {".md", ".py", ".txt"}


def find(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*") if path.suffix in ENDINGS and path.is_file())


def cut(document: str) -> list[str]:
    """Return the paragraphs of a document."""
    text = Path(document).read_text("utf-8", "replace")
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def store(document: str, parts: list[str]) -> int:
    with closing(sqlite3.connect("index.db")) as index, index:
        index.execute("CREATE TABLE IF NOT EXISTS documents (document TEXT PRIMARY KEY, parts INTEGER)")
        index.execute("CREATE TABLE IF NOT EXISTS parts (document TEXT, number INTEGER, text TEXT)")
        index.execute("DELETE FROM parts WHERE document = ?", (document,))
        index.executemany("INSERT INTO parts VALUES (?, ?, ?)", [(document, *each) for each in enumerate(parts)])
        index.execute("INSERT OR REPLACE INTO documents VALUES (?, ?)", (document, len(parts)))
    return len(parts)


@workflow("document_ingest")
def document_ingest(folder: Path = Path("docs")) -> Generator[Any, Any, int]:
    documents = yield from step("find").python(find, folder).checkpoint()
    total = 0
    for document in documents:
        parts = yield from step("cut").python(cut, document).retry(3, backoff=0.1)
        stored = step("store").python(store, document, parts)
        row = db_row("index.db", "documents", {"document": document}, {"parts": len(parts)})
        total += yield from stored.evidence(row).checkpoint()
    return total
