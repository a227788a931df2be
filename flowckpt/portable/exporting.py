"""A run to a file, and its checkpoints to documents for people and for git."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from flowckpt.blocking import run_blocking
from flowckpt.checkpoint import CheckpointData
from flowckpt.checkpoint.reference import Owner
from flowckpt.codec.checkpoints import export_text
from flowckpt.portable.gathering import Gathered, gathered
from flowckpt.portable.whole_file import whole_file
from flowckpt.portable.writing import run_lines
from flowckpt.stores.base import CheckpointStore

_NOT_PLAIN = re.compile(r"[^a-z0-9_-]+")


@attrs.frozen
class ExportedRun:
    """What an export wrote.

    Attributes:
        workflow_id: the run.
        file: the file, or the directory of the documents.
        attempts: how many attempts it had that saved something.
        checkpoints: how many checkpoints, in all.
        left_behind: how many of these no longer count.
        steps: how many results the newest checkpoint holds.
        checkpoint_id: the newest checkpoint: the run was exported as of it.
        owner: the process that ran it meanwhile, so that it has gone on since, perhaps; None where it rested.
    """

    workflow_id: str
    file: str
    attempts: int
    checkpoints: int
    steps: int
    checkpoint_id: str
    owner: Owner | None = None
    left_behind: int = 0


async def export_run(store: CheckpointStore, workflow_id: str, file: Path | str) -> ExportedRun:
    """Write a whole run to one file: all attempts, checkpoints, results and large values, and where its workflow is.

    The source is only read. The file is all there, durably, or not there at all.

    Args:
        store: where the run lies.
        workflow_id: the run.
        file: where to; compressed where the name ends in `.gz`.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptedError: a record is damaged.
        StoreAbilityError: the store cannot read what no longer counts.
        OSError: the file cannot be written.
    """
    run = await gathered(store, workflow_id)
    place = Path(file)

    def write() -> None:
        with whole_file(place, is_compressed=place.suffix == ".gz") as stream:
            for line in run_lines(workflow_id, run.checkpoints):
                stream.write(line)

    await run_blocking(write)
    return exported(run, str(file))


async def stream_run(store: CheckpointStore, workflow_id: str, write: Callable[[bytes], Any]) -> ExportedRun:
    """Hand the lines of an exported run to a function; whoever reads them sees by the last whether all came.

    Args:
        store: where the run lies.
        workflow_id: the run.
        write: takes a line.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptedError: a record is damaged.
        StoreAbilityError: the store cannot read what no longer counts.
    """
    run = await gathered(store, workflow_id)

    def write_all() -> None:
        for line in run_lines(workflow_id, run.checkpoints):
            write(line)

    await run_blocking(write_all)
    return exported(run, "-")


async def export_documents(
    store: CheckpointStore, workflow_id: str, directory: Path | str, *, is_forced: bool = True
) -> ExportedRun:
    """Write each checkpoint as a JSON document of its own, in a directory that can be kept in git.

    Names begin with the sequence, so they never change; a later export adds to them.

    Args:
        store: where the run lies.
        workflow_id: the run.
        directory: where to; made where it is missing.
        is_forced: replace documents that are there and say something else, as those of another run do.

    Raises:
        CheckpointNotFoundError: there is no such run.
        CheckpointCorruptedError: a record is damaged.
        StoreAbilityError: the store cannot read what no longer counts.
        FileExistsError: a document would replace another one; nothing was written.
        OSError: a file cannot be written.
    """
    run = await gathered(store, workflow_id)
    place = Path(directory)

    def write() -> None:
        if not is_forced:
            for data in run.checkpoints:
                refuse_other(place / document_name(data), export_text(data).encode())
        place.mkdir(parents=True, exist_ok=True)
        for data in run.checkpoints:
            with whole_file(place / document_name(data)) as stream:
                stream.write(export_text(data).encode())

    await run_blocking(write)
    return exported(run, str(directory))


def refuse_other(file: Path, content: bytes) -> None:
    """Refuse to replace a file that says something else.

    Args:
        file: the file.
        content: what is to stand in it.

    Raises:
        FileExistsError: it is there, with another content.
    """
    if file.is_file() and file.read_bytes() != content:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))


def document_name(data: CheckpointData) -> str:
    """Return the name of a checkpoint's document: its sequence, and of its id what is harmless in a name.

    Args:
        data: the checkpoint.
    """
    plain = _NOT_PLAIN.sub("-", data.checkpoint_id.lower()).strip("-")[:40]
    return f"{data.sequence:06d}{f'-{plain}' if plain else ''}.json"


def exported(run: Gathered, file: str) -> ExportedRun:
    """Return what is to be said of an export.

    Args:
        run: the run.
        file: where it went.
    """
    latest = run.latest
    return ExportedRun(
        run.workflow_id,
        file,
        len({data.attempt for data in run.checkpoints}),
        len(run.checkpoints),
        len(latest.step_results),
        latest.checkpoint_id,
        run.owner,
        run.left_behind,
    )
