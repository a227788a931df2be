"""Pins: an empty file in the run's directory for each checkpoint that is pinned.

A file of its own needs no owner: a live run can be pinned, two people can pin at once, and a crash leaves a pin or none.
"""

from __future__ import annotations

import contextlib

from flowckpt.filesystem import FileSystem
from flowckpt.stores.file.names import pin_name


def set_pin(filesystem: FileSystem, directory: int, sequence: int) -> None:
    """Pin a checkpoint, durably.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        sequence: the checkpoint.
    """
    with contextlib.suppress(FileExistsError):
        file = filesystem.create(directory, pin_name(sequence))
        try:
            filesystem.sync(file)
        finally:
            filesystem.close(file)
    filesystem.sync(directory)


def take_pin_away(filesystem: FileSystem, directory: int, sequence: int) -> None:
    """Take a pin away, durably; no error where there is none.

    Args:
        filesystem: the calls.
        directory: the run's directory, open.
        sequence: the checkpoint.
    """
    with contextlib.suppress(FileNotFoundError):
        filesystem.unlink(directory, pin_name(sequence))
    filesystem.sync(directory)
