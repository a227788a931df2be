"""Files that commands write at a path of the user's choice."""

from __future__ import annotations

import errno
from pathlib import Path

import click

from flowckpt.cli.runs import waited
from flowckpt.core.system.streams import write_whole

MISNAMED = (
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENODEV, errno.ETXTBSY),
)
"""Errors of a path that cannot be written; another error is one of the disk."""


def write_output(path: Path, text: str) -> None:
    """Write a whole file that only its owner can read; a symbolic link is not followed.

    Raises:
        click.UsageError: the path cannot be written.
        OSError: the disk failed; an earlier file is unchanged.
    """
    try:
        waited(write_whole(path, [text.encode()]))
    except OSError as error:
        if error.errno in MISNAMED:
            raise click.UsageError(f"{path} cannot be written: {error.strerror}") from None
        raise
