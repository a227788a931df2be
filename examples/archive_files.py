"""Move the files of a folder to an archive, all of them or none: if one fails, the others are moved back.

    flowckpt run examples/archive_files.py -i inbox=inbox -i archive=archive

A file that is in the archive already is never replaced: the run fails there, and all that it moved is moved back, newest
first. So it is when the run is stopped by Ctrl-C, and after a crash: then the resume finishes what was begun.
"""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import attrs

from flowckpt import step, workflow
from flowckpt.evidence import artifact_exists


@attrs.frozen
class Move:
    source: Path
    target: Path


def list_files(inbox: Path) -> list[str]:
    return sorted(path.name for path in inbox.iterdir() if path.is_file())


def move(source: Path, target: Path) -> Move:
    if source.exists():  # otherwise an earlier try moved it and died before that was recorded
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(source)  # unlike a rename, it never replaces a file
        source.unlink()
    return Move(source, target)


def move_back(moved: Move) -> None:
    if moved.target.exists():  # otherwise it was already moved back
        moved.source.hardlink_to(moved.target)
        moved.target.unlink()


@workflow
def archive_files(inbox: Path, archive: Path) -> Generator[Any, Any, int]:
    names = yield from step("list").python(list_files, inbox).checkpoint()
    for name in names:
        moving = step("move").python(move, inbox / name, archive / name).rollback(move_back)
        yield moving.evidence(artifact_exists(archive / name, type="file")).checkpoint()
    return len(names)
