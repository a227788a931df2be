"""An endless loop: takes files that arrive in a folder, a few in each generation of the run.

mkdir inbox
flowckpt run examples/endless_loop.py -i inbox=inbox --id clerk

Kill it at any moment and resume it: each file is taken once. The record holds one generation, however many there were. A file
with the name "stop" ends the run.
"""

import sqlite3
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from flowckpt import continue_as, step, workflow

AT_ONCE = 2


def look(inbox: Path) -> list[str]:
    return sorted(path.name for path in inbox.iterdir())[:AT_ONCE]


def take(inbox: Path, name: str) -> str:
    file = inbox / name
    with closing(sqlite3.connect("taken.db")) as taken, taken:
        taken.execute("CREATE TABLE IF NOT EXISTS files (name TEXT PRIMARY KEY, text TEXT)")
        if file.exists():  # otherwise an earlier try took it and died before that was recorded
            taken.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (name, file.read_text()))
    file.unlink(missing_ok=True)
    return name


@workflow("endless_loop")
def endless_loop(inbox: Path, done: int = 0) -> Generator[Any, Any, int]:
    names = yield from step("look").python(look, inbox).checkpoint()
    for name in names:
        yield step("take").python(take, inbox, name).checkpoint()
    if "stop" in names:
        return done + len(names)
    if not names:
        yield step("rest").sleep(1)
    return continue_as(inbox=inbox, done=done + len(names))
