"""Write a database as SQL text; see README.md.

python dump.py sqlite FILE          python dump.py postgresql PG_DUMP DSN
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys

KEPT = ("SET check_function_bodies", "SELECT pg_catalog.set_config('search_path'")


def of_sqlite(file):
    connection = sqlite3.connect(file)
    number = connection.execute("PRAGMA application_id").fetchone()[0]
    return [f"PRAGMA application_id = {number};", *connection.iterdump()]


def of_postgres(program, dsn):
    """Dump without what only psql knows, and without settings that other versions of the server do not know."""
    options = ["--schema=flowckpt", "--no-owner", "--no-privileges", "--inserts", "--rows-per-insert=100"]
    text = subprocess.run([program, *options, dsn], capture_output=True, text=True, check=True).stdout
    lines = [line for line in text.splitlines() if line and not line.startswith(("--", "\\"))]
    return [
        line for line in lines if not line.startswith(("SET ", "SELECT pg_catalog.set_config")) or line.startswith(KEPT)
    ]


if __name__ == "__main__":
    kind, *where = sys.argv[1:]
    print("\n".join((of_sqlite if kind == "sqlite" else of_postgres)(*where)))
