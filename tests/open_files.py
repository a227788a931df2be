"""The files that this process has open, of those that a test means: what earlier tests forgot is closed at any moment."""

from __future__ import annotations

import os
from pathlib import Path


def open_below(directory: Path) -> list[str]:
    """The open files and directories in a directory, itself included."""
    links = (os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
    return [link for link in links if Path(link).is_relative_to(directory)]
