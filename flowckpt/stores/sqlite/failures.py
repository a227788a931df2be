"""What SQLite and the system say when something fails, as errors of the store."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from flowckpt.errors import CheckpointCorruptedError, CheckpointStorageError, ReadOnlyStoreError
from flowckpt.stores.sqlite.connection import NOT_ALLOWED

BUSY_SECONDS = 60.0
"""How long to wait for other processes that are writing."""

_REMEDY = "Mend the file or the disk; nothing that was acknowledged is lost."
_NO_FILE = "Name the file of a store: --store sqlite:FILE."
_NO_DATABASE = "SQLITE_NOTADB"
_DAMAGED = "SQLITE_CORRUPT"
_AS_WHO_WRITES = os.access in os.supports_effective_ids


def error_of(
    error: sqlite3.Error, path: Path, workflow_id: str, operation: str, *, is_outcome_unknown: bool = False
) -> CheckpointCorruptedError | CheckpointStorageError:
    """Return the error of the store for one of SQLite.

    Args:
        error: what SQLite raised.
        path: the file.
        workflow_id: the run, or an empty text.
        operation: what was being done.
        is_outcome_unknown: whether it may have been done all the same.
    """
    name = _name_of(error)
    if (reason := _why_read_only(name, path)) and not is_outcome_unknown:
        return ReadOnlyStoreError(str(path), reason=reason, workflow_id=workflow_id, operation=operation)
    if name.startswith(_NO_DATABASE):
        return CheckpointCorruptedError(
            "",
            location=str(path),
            detail="it is not a database of SQLite, or its beginning is damaged",
            remedy="Nothing was changed. Name another file; where it was a store, restore it from a backup.",
        )
    if name.startswith(_DAMAGED):
        return CheckpointCorruptedError(
            workflow_id,
            location=str(path),
            detail=str(error),
            remedy="Nothing was changed. 'flowckpt store check' says more; restore the file from a backup.",
        )
    if is_busy(error):
        what = f"another process has kept it locked for more than {BUSY_SECONDS:g} s"
        remedy = "See which program has the file open, and end it."
    else:
        what, remedy = f"{error} ({name})" if name else str(error), _REMEDY
    return CheckpointStorageError(
        f"the SQLite store {path} could not {operation}{_of(workflow_id)}: {what}"
        + ("; whether it was saved is unknown" if is_outcome_unknown else ""),
        workflow_id=workflow_id,
        operation=operation,
        is_outcome_unknown=is_outcome_unknown,
        remedy=remedy,
    )


def os_error_of(
    error: OSError, path: Path, workflow_id: str, operation: str, *, is_write: bool = True
) -> CheckpointStorageError:
    """Return the error of the store for one of the system.

    Args:
        error: what the system said.
        path: the file.
        workflow_id: the run, or an empty text.
        operation: what was being done.
        is_write: whether that was to write.
    """
    said = error.strerror or str(error)
    if is_write and error.errno in NOT_ALLOWED:
        return ReadOnlyStoreError(str(path), reason=said, workflow_id=workflow_id, operation=operation)
    return CheckpointStorageError(
        f"the SQLite store {path} could not {operation}{_of(workflow_id)}: {said}",
        workflow_id=workflow_id,
        operation=operation,
        remedy=_NO_FILE if error.errno in (errno.EISDIR, errno.ENOTDIR) else _REMEDY,
    )


def is_sync(error: sqlite3.Error) -> bool:
    """Tell whether a sync failed: from then on nobody knows what of the file is on the disk, whatever a read shows.

    Args:
        error: what SQLite raised.
    """
    return _name_of(error) in ("SQLITE_IOERR_FSYNC", "SQLITE_IOERR_DIR_FSYNC", "SQLITE_IOERR_CLOSE")


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether another process kept the file locked.

    Args:
        error: what SQLite raised.
    """
    return _name_of(error).startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))


def _why_read_only(name: str, path: Path) -> str:
    """Return why SQLite could not write, by the name of its error; nothing where that is not why."""
    if name.startswith("SQLITE_READONLY") and not name.endswith("DBMOVED"):
        return "SQLite may not change the file, or what must lie beside it"
    if name.startswith("SQLITE_CANTOPEN") and not os.access(path.parent, os.W_OK, effective_ids=_AS_WHO_WRITES):
        return f"the directory {path.parent} takes no new file"
    return ""


def _name_of(error: sqlite3.Error) -> str:
    name: str = getattr(error, "sqlite_errorname", "")
    return name


def _of(workflow_id: str) -> str:
    return f" run {workflow_id!r}" if workflow_id else ""
